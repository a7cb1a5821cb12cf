/*
 * The fibres of a block, and what makes them meet (emu.h). Never instrumented by TSan: to it a
 * fibre is a thread, and the calls here say what orders them. EMU_ASAN, EMU_TSAN: built for one of
 * the sanitizers.
 */
#include "kernels/cuda/emu/emu.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#ifdef EMU_TSAN
extern "C" {
void *__tsan_get_current_fiber(void);
void *__tsan_create_fiber(unsigned flags);
void __tsan_switch_to_fiber(void *fiber, unsigned flags);
void __tsan_acquire(void *addr);
void __tsan_release(void *addr);
}
#define EMU_ACQUIRE(p) __tsan_acquire(p)
#define EMU_RELEASE(p) __tsan_release(p)
#else
#define EMU_ACQUIRE(p) (void)(p)
#define EMU_RELEASE(p) (void)(p)
#endif
#ifdef EMU_ASAN
extern "C" {
void __sanitizer_start_switch_fiber(void **fake, const void *stack, size_t size);
void __sanitizer_finish_switch_fiber(void *fake, const void **old_stack, size_t *old_size);
}
#endif

namespace emu
{

enum { STACK = 256 << 10, MAX_THREADS = 1024, MAX_COPIES = 256, N_BARRIERS = 16, MAX_MEETINGS = 4 };
enum { MAX_MBARRIERS = 64, MAX_JOBS = 256, N_ENGINES = 32, MAX_GROUPS = 64, MAX_PRODUCTS = 1024 };
enum { MAX_FLIGHT = 8, MAX_SHARED = 232448 };

/* A stack, and what of the thread that runs on it is not in `place`. */
struct fibre {
    void *sp, *tsan;
    char *stack;
    uint3 thread;
    unsigned index;
    const char *where; /* it waits there; nullptr: it does not */
    bool ended;
    copy copies[MAX_COPIES];
    int group[MAX_COPIES], n_copies, at_group;
    uint64_t groups, waited; /* of products: committed, and those of them it waited for */
    fibre *next;             /* that waits for the same */
};

struct waiters {
    fibre *first;
    unsigned arrived;
};

struct barrier {
    waiters who;
    unsigned count;
    const char *where;
};

/* Lanes of a warp in one operation; those of other masks may be in another one meanwhile. */
struct meeting {
    waiters who;
    uint32_t arrived, mask; /* arrived 0: free */
    const char *what;
    lane_io lanes[32];
};

/* [16, n], of one warp: under way, or done and not yet with all lanes. */
struct accumulators {
    float *lanes[32];
    int n, pending; /* products to be done */
    uint64_t group; /* of the last one */
    uint32_t back;  /* lanes that have them again */
    bool used;
    float v[16 * 256];
};

struct warp {
    meeting meetings[MAX_MEETINGS];
    char mark; /* of sync_warp, for TSan */
    job *first, **last;
    product *next_product;
    uint64_t n_products; /* of all blocks */
    bool fenced;
    accumulators flight[MAX_FLIGHT];
    char done[MAX_GROUPS]; /* of groups of products, for TSan */
};

struct mbarrier {
    waiters who;
    uint32_t at;
    int count, pending, bytes; /* pending: arrivals that are to come */
    uint32_t phase;
    bool used, fenced;
};

/* What the first warp of a warpgroup to issue a product said. */
struct issued {
    uint64_t number, a, b;
    int n;
};

static struct {
    fibre *fibres[MAX_THREADS];
    fibre *ready[MAX_THREADS];
    unsigned n_made, n_ready, n, alive;
    barrier barriers[N_BARRIERS];
    warp warps[MAX_THREADS / 32];
    mbarrier mbarriers[MAX_MBARRIERS];
    issued products[MAX_THREADS / 128][MAX_PRODUCTS];
    job *jobs[MAX_JOBS];  /* in no order */
    int n_jobs, n_queued; /* queued: of warps, in theirs */
    void *engines[N_ENGINES];
    unsigned at_engine, late; /* late: of so many steps one is of jobs */
    char *shared;
    volatile char view[MAX_SHARED];
    bool has_view;
    size_t shared_size;
    const char *kernel;
    void (*entry)(void *);
    void *arg, *main_sp, *main_tsan;
    const void *main_stack;
    size_t main_stack_size;
    uint64_t random;
    char start_mark, end_mark;
} now;
static pthread_mutex_t one_launch = PTHREAD_MUTEX_INITIALIZER;
static fibre *running;
place here;
counts done;

uint64_t random()
{
    uint64_t x = now.random;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return now.random = x;
}

char *shared()
{
    return now.shared;
}

size_t shared_size()
{
    return now.shared_size;
}

void fail(const char *text)
{
    fprintf(stderr, "emu: %s, block (%u, %u, %u)", now.kernel, here.block.x, here.block.y,
            here.block.z);
    if (running)
        fprintf(stderr, ", thread %u", running->index);
    fprintf(stderr, ": %s\n", text);
    const char *last = nullptr;
    for (unsigned i = 0; i < now.n; i++) {
        const fibre *f = now.fibres[i];
        if (!f->ended && f->where && f->where != last)
            fprintf(stderr, "  thread %u waits at %s\n", f->index, f->where);
        last = f->ended ? nullptr : f->where;
    }
    abort();
}

/* ---- switching ---- */

extern "C" void emu_swap(void **save, void *to);
__asm__(".text\n"
        ".globl emu_swap\n"
        ".hidden emu_swap\n"
        ".type emu_swap, @function\n"
        "emu_swap:\n"
        "push %rbp\n push %rbx\n push %r12\n push %r13\n push %r14\n push %r15\n"
        "mov %rsp, (%rdi)\n"
        "mov %rsi, %rsp\n"
        "pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbx\n pop %rbp\n"
        "ret\n"
        ".size emu_swap, . - emu_swap\n");

static void to_fibre(fibre *f)
{
    running = f;
    here.thread = f->thread;
    here.lane = f->index % 32;
#ifdef EMU_ASAN
    void *fake;
    __sanitizer_start_switch_fiber(&fake, f->stack, STACK);
#endif
#ifdef EMU_TSAN
    __tsan_switch_to_fiber(f->tsan, 1); /* 1: no order between the two */
#endif
    emu_swap(&now.main_sp, f->sp);
#ifdef EMU_ASAN
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
}

static void to_main()
{
    fibre *f = running;
#ifdef EMU_ASAN
    void *fake = nullptr;
    __sanitizer_start_switch_fiber(f->ended ? nullptr : &fake, now.main_stack, now.main_stack_size);
#endif
#ifdef EMU_TSAN
    __tsan_switch_to_fiber(now.main_tsan, 1);
#endif
    emu_swap(&f->sp, now.main_sp);
#ifdef EMU_ASAN
    __sanitizer_finish_switch_fiber(fake, &now.main_stack, &now.main_stack_size);
#endif
}

static void wait_in(waiters *w, const char *where)
{
    running->where = where;
    running->next = w->first;
    w->first = running;
    to_main();
    running->where = nullptr;
}

static void release(waiters *w)
{
    for (fibre *f = w->first; f; f = f->next)
        now.ready[now.n_ready++] = f;
    w->first = nullptr;
    w->arrived = 0;
}

/* ---- meetings ---- */

void sync_block(int id, unsigned count, bool waits, const char *where)
{
    if (id < 0 || id >= N_BARRIERS || count % 32)
        fail("a barrier that there is not");
    barrier *b = &now.barriers[id];
    if (b->who.arrived && (b->where != where || b->count != count)) {
        fprintf(stderr, "emu: thread %u is at %s (barrier %d, %u threads), others at %s (%u)\n",
                running->index, where ? where : "barrier_sync", id, count,
                b->where ? b->where : "barrier_sync", b->count);
        fail("threads of a block meet at different barriers");
    }
    b->where = where;
    b->count = count;
    EMU_RELEASE(b);
    b->who.arrived++;
    if (b->who.arrived == (count ? count : now.alive)) {
        release(&b->who);
        if (!waits)
            return;
        /* the last to come does not always go on first */
        now.ready[now.n_ready++] = running;
        to_main();
    } else if (waits) {
        wait_in(&b->who, where ? where : "barrier_sync");
    } else {
        return;
    }
    EMU_ACQUIRE(b);
}

/* The meeting that this lane comes to. Two that wait for lanes of each other never end. */
static meeting *find_meeting(warp *w, uint32_t mask, const char *what)
{
    meeting *own = nullptr, *unused = nullptr;
    for (meeting *m = w->meetings; m < w->meetings + MAX_MEETINGS; m++) {
        if (!m->arrived)
            unused = m;
        else if (m->mask == mask && strcmp(m->what, what) == 0)
            own = m;
        else if ((m->mask >> here.lane & 1) && (m->arrived & mask)) {
            fprintf(stderr, "emu: thread %u is at %s (mask %08x), others at %s (%08x)\n",
                    running->index, what, mask, m->what, m->mask);
            fail("lanes of a warp meet in different operations or masks");
        }
    }
    if (!own && !unused)
        fail("lanes of a warp are in too many operations");
    return own ? own : unused;
}

void meet(uint32_t mask, const void *in, void *out, const char *what,
          void (*fn)(const lane_io *lanes, uint32_t mask))
{
    if (!(mask >> here.lane & 1))
        fail("a lane outside its own mask");
    meeting *m = find_meeting(&now.warps[running->index / 32], mask, what);
    m->mask = mask;
    m->what = what;
    m->arrived |= 1u << here.lane;
    m->lanes[here.lane] = {in, out};
    if (m->arrived != mask) {
        wait_in(&m->who, what);
        return;
    }
    if (fn)
        fn(m->lanes, mask);
    m->arrived = 0;
    release(&m->who);
}

void sync_warp(uint32_t mask, const char *where)
{
    char *mark = &now.warps[running->index / 32].mark;
    EMU_RELEASE(mark);
    meet(mask, nullptr, nullptr, where, nullptr);
    EMU_ACQUIRE(mark);
}

/* ---- copies ---- */

bool copy_later(const copy &c)
{
    fibre *f = running;
    if ((random() >> 20 & 1) || f->n_copies == MAX_COPIES)
        return false;
    f->copies[f->n_copies] = c;
    f->group[f->n_copies++] = f->at_group;
    return true;
}

void copy_commit()
{
    running->at_group++;
}

bool copy_due(copy *c, int pending)
{
    fibre *f = running;
    for (int i = 0; i < f->n_copies; i++)
        if (f->group[i] < f->at_group - pending) {
            *c = f->copies[i];
            f->n_copies--;
            f->copies[i] = f->copies[f->n_copies];
            f->group[i] = f->group[f->n_copies];
            return true;
        }
    return false;
}

#include "kernels/cuda/emu/async.h"

/* ---- blocks ---- */

static void run_thread()
{
#ifdef EMU_ASAN
    __sanitizer_finish_switch_fiber(nullptr, &now.main_stack, &now.main_stack_size);
#endif
    EMU_ACQUIRE(&now.start_mark);
    now.entry(now.arg);
    EMU_RELEASE(&now.end_mark);
    running->ended = true;
    now.alive--;
    /* the others may only have waited for this one */
    barrier *b = &now.barriers[0];
    if (now.alive && b->count == 0 && b->who.arrived == now.alive)
        release(&b->who);
    to_main();
    abort();
}

/* Shared memory of a block, NaN all over. TSan forgets what was mapped; ASan watches malloc's. */
static char *new_shared(size_t size)
{
    void *p = nullptr;
#ifdef EMU_TSAN
    p = mmap(nullptr, size + 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        abort();
#else
    if (posix_memalign(&p, 1024, size ? size : 1))
        abort();
#endif
    memset(p, 0xff, size);
    return (char *)p;
}

static void free_shared(char *p, size_t size)
{
#ifdef EMU_TSAN
    munmap(p, size + 1);
#else
    (void)size;
    free(p);
#endif
}

/* Threads take the stacks in another order in each block, so that TSan does not believe the n-th
 * threads of two blocks to be one. */
static void start_threads(dim3 dim)
{
    const unsigned first = (unsigned)(random() >> 20) % now.n;
    fibre *made[MAX_THREADS];
    memcpy(made, now.fibres, now.n * sizeof *made);
    now.n_ready = 0;
    for (unsigned i = 0; i < now.n; i++) {
        fibre *f = now.fibres[i] = made[(i + first) % now.n];
        f->index = i;
        f->thread = {i % dim.x, i / dim.x % dim.y, i / dim.x / dim.y};
        f->ended = false;
        f->where = nullptr;
        f->n_copies = f->at_group = 0;
        f->groups = f->waited = 0;
        void **sp = (void **)(f->stack + STACK) - 2;
        *sp = (void *)run_thread;
        f->sp = sp - 6;
        now.ready[now.n_ready++] = f;
    }
    now.alive = now.n;
}

static void start_warps()
{
    memset(now.barriers, 0, sizeof now.barriers);
    for (warp &w : now.warps) {
        for (meeting &m : w.meetings) {
            m.arrived = 0;
            m.who = {};
        }
        w.last = &w.first;
        w.fenced = false;
    }
}

/* Nothing may be under way when a block ends. */
static void end_async()
{
    if (now.n_jobs || now.n_queued)
        fail("a copy or a product that nobody waits for");
    for (unsigned i = 0; i < now.n / 32; i++) {
        warp *w = &now.warps[i];
        if (w->n_products != now.warps[i / 4 * 4].n_products)
            fail("warps of a warpgroup issue different products");
        for (accumulators &acc : w->flight)
            if (acc.used)
                fail("a product that nobody waits for");
    }
    for (mbarrier &b : now.mbarriers)
        b.used = false;
    now.has_view = false;
}

static void run_block(dim3 dim)
{
    start_warps();
    now.shared = new_shared(now.shared_size);
    start_threads(dim);
    EMU_RELEASE(&now.start_mark);
    now.late = 2u << (random() >> 20) % 4 * 5;
    while (now.n_ready > 0 || now.n_jobs || now.n_queued) {
        if ((now.n_jobs || now.n_queued) &&
            (now.n_ready == 0 || (random() >> 20) % now.late == 0)) {
            run_any_job();
            continue;
        }
        const unsigned i = (unsigned)(random() >> 20) % now.n_ready;
        fibre *f = now.ready[i];
        now.ready[i] = now.ready[--now.n_ready];
        to_fibre(f);
    }
    running = nullptr;
    if (now.alive)
        fail("threads wait for each other for ever");
    end_async();
    free_shared(now.shared, now.shared_size);
    now.shared = nullptr;
    done.blocks++;
}

static void make_fibres()
{
    for (; now.n_made < now.n; now.n_made++) {
        fibre *f = (fibre *)calloc(1, sizeof *f);
        /* a page below the stack is never there */
        char *map = (char *)mmap(nullptr, STACK + 4096, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (!f || map == MAP_FAILED || mprotect(map, 4096, PROT_NONE) != 0)
            abort();
        f->stack = map + 4096;
#ifdef EMU_TSAN
        f->tsan = __tsan_create_fiber(0);
#endif
        now.fibres[now.n_made] = f;
    }
}

static uint64_t gcd(uint64_t a, uint64_t b)
{
    return b ? gcd(b, a % b) : a;
}

void run(const char *kernel, dim3 grid, dim3 block, size_t shared_bytes, void (*entry)(void *),
         void *arg)
{
    const uint64_t n_blocks = (uint64_t)grid.x * grid.y * grid.z;
    pthread_mutex_lock(&one_launch);
    now.kernel = kernel;
    now.n = 0;
    if (n_blocks == 0 || block.x * block.y * block.z == 0 ||
        block.x * block.y * block.z > MAX_THREADS || block.z > 64 || grid.y > 65535 ||
        grid.z > 65535 || shared_bytes > MAX_SHARED)
        fail("a launch that no GPU takes");
    now.n = block.x * block.y * block.z;
    now.shared_size = shared_bytes;
    now.entry = entry;
    now.arg = arg;
    const char *seed = getenv("S2S_EMU_SEED");
    now.random = (seed ? strtoull(seed, nullptr, 10) + 1 : 1) * 0x9E3779B97F4A7C15ull | 1;
    make_fibres();
#ifdef EMU_TSAN
    now.main_tsan = __tsan_get_current_fiber();
    for (void *&engine : now.engines)
        if (!engine)
            engine = __tsan_create_fiber(0);
#endif
    here.block_dim = block;
    here.grid_dim = grid;
    uint64_t step = random() % n_blocks + 1, at = random() % n_blocks;
    while (gcd(step, n_blocks) != 1)
        step++;
    for (uint64_t i = 0; i < n_blocks; i++, at = (at + step) % n_blocks) {
        here.block = {(unsigned)(at % grid.x), (unsigned)(at / grid.x % grid.y),
                      (unsigned)(at / grid.x / grid.y)};
        run_block(block);
    }
    EMU_ACQUIRE(&now.end_mark);
    done.launches++;
    pthread_mutex_unlock(&one_launch);
}

} // namespace emu
