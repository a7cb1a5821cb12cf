/*
 * Memory of the CPU table. Large blocks are mapped by themselves: they go back to the system when
 * they are freed, whatever was allocated after them, and come in huge pages, of which a fresh one
 * costs less than its 512 small ones, and one entry of the TLB.
 */
#include <stdlib.h>
#include <sys/mman.h>

#include "kernels/cpu/cpu.h"

/* From here on a block is mapped. A build with sanitizers maps none: they watch what malloc gives.
 */
#ifndef CPU_MAP_BYTES
#define CPU_MAP_BYTES (4 << 20)
#endif

enum { ALIGN = 256 };

/* Stands in the ALIGN bytes before a block. */
struct head {
    size_t mapped; /* length of the mapping; 0: from malloc */
};

void *cpu_alloc(struct s2s_queue *queue, size_t bytes)
{
    const size_t all = bytes + ALIGN;
    struct head *head = NULL;
    if (all < bytes)
        return NULL;
    if (bytes < CPU_MAP_BYTES) {
        void *block;
        if (posix_memalign(&block, ALIGN, all))
            return NULL;
        head = block;
        head->mapped = 0;
    } else {
        void *block = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (block == MAP_FAILED)
            return NULL;
        madvise(block, all, MADV_HUGEPAGE); /* a wish */
        head = block;
        head->mapped = all;
    }
    return (char *)head + ALIGN;
}

void cpu_free(struct s2s_queue *queue, void *ptr)
{
    if (!ptr)
        return;
    struct head *head = (struct head *)((char *)ptr - ALIGN);
    if (head->mapped)
        munmap(head, head->mapped);
    else
        free(head);
}
