/* What the instructions of ptx_sm90.h mean, for g++ (emu.h). Included by ptx_sm90.h alone. */
#ifndef S2S_KERNELS_CUDA_EMU_PTX_SM90_EMU_H
#define S2S_KERNELS_CUDA_EMU_PTX_SM90_EMU_H

#include <cstdlib>

/* ---- barriers in shared memory ---- */

inline void mbarrier_init(uint32_t bar, int count)
{
    emu::mbarrier_new(bar, count);
}

inline void mbarrier_fence()
{
    emu::mbarrier_fenced();
}

inline void mbarrier_arrive(uint32_t bar)
{
    emu::mbarrier_add(bar, 1, 0);
}

inline void mbarrier_expect(uint32_t bar, uint32_t bytes)
{
    emu::mbarrier_add(bar, 1, (int)bytes);
}

inline void mbarrier_wait(uint32_t bar, uint32_t parity)
{
    emu::mbarrier_sleep(bar, parity);
}

/* ---- copies ---- */

namespace emu
{

/* What rt_tensor_map leaves in a map. */
struct box_map {
    const char *data;
    int64_t rows, planes, cols, row_bytes;
    int box_rows, box_cols, swizzle;
};

struct box_copy : job {
    box_map map;
    uint32_t dst, bar;
    int x, y, z;
};

/* Chunks of 16 bytes stand permuted by the number of their line of 128 bytes, as addresses count
 * them. */
inline uint32_t swizzled(uint32_t addr, int swizzle)
{
    return addr ^ ((addr >> 7 & (uint32_t)(swizzle / 16 - 1)) << 4);
}

inline void run_box_copy(job *j)
{
    const box_copy *c = static_cast<box_copy *>(j);
    const box_map *m = &c->map;
    char *const sh = shared();
    for (int r = 0; r < m->box_rows; r++)
        for (int i = 0; i < m->box_cols; i++) {
            const int64_t row = (int64_t)c->z + r, col = c->x + i;
            const bool is_there = row >= 0 && row < m->rows && c->y >= 0 && c->y < m->planes &&
                                  col >= 0 && col < m->cols;
            const uint32_t to = swizzled(c->dst + (uint32_t)(r * m->swizzle + i * 2), m->swizzle);
            const char *const from = m->data + row * m->row_bytes + (c->y * m->cols + col) * 2;
            const uint16_t x = is_there ? *(const uint16_t *)from : (uint16_t)0;
            *(volatile uint16_t *)(sh + to) = x;
            async_write(to, x);
        }
    mbarrier_add(c->bar, 0, -m->box_rows * m->box_cols * 2);
}

} // namespace emu

inline void fence_async()
{
    emu::async_fence();
}

inline void tma_load(uint32_t dst, const struct tensor_map *map, int x, int y, int z, uint32_t bar)
{
    emu::box_copy *c = (emu::box_copy *)calloc(1, sizeof *c);
    if (!c)
        abort();
    static_assert(sizeof c->map <= sizeof *map, "room in a map");
    __builtin_memcpy(&c->map, map, sizeof c->map);
    c->run = emu::run_box_copy;
    c->dst = dst;
    c->bar = bar;
    c->x = x;
    c->y = y;
    c->z = z;
    if (!c->map.data)
        emu::fail("tma_load: a map that was not made");
    if (dst % (8u * (uint32_t)c->map.swizzle) ||
        dst + (size_t)c->map.box_rows * (size_t)c->map.swizzle > emu::shared_size())
        emu::fail("tma_load: no place for a box in shared memory");
    emu::job_issue(c);
}

inline void tma_prefetch(const struct tensor_map *)
{
}

/* ---- registers of a warpgroup ---- */

template <int N> inline void registers_more()
{
    static_assert(N % 8 == 0 && N >= 24 && N <= 256, "a number of registers");
    emu::meet(~0u, nullptr, nullptr, "setmaxnreg", nullptr);
}

template <int N> inline void registers_less()
{
    registers_more<N>();
}

/* ---- products ---- */

namespace emu
{

/* A number, as both proxies see it. */
inline float operand_at(uint32_t addr)
{
    if (addr + 2 > shared_size())
        fail("wgmma: an operand outside shared memory");
    const uint16_t bits = *(volatile uint16_t *)(shared() + addr);
    if (bits != async_read(addr))
        fail("wgmma reads what was written to shared memory without a fence_async");
    return __uint_as_float((uint32_t)bits << 16);
}

/* [16, n] from row `first` on of an operand (wgmma_operand): element k, row at to[k * by_k + row *
 * by_row]. */
inline void read_operand(float *to, int by_k, int by_row, uint64_t desc, bool trans, int first,
                         int n)
{
    const int width = desc >> 62 == 1 ? 128 : 64;
    const uint32_t start = (uint32_t)(desc & 0x3fff) << 4;
    const uint32_t leading = (uint32_t)(desc >> 16 & 0x3fff) << 4;
    const uint32_t stride = (uint32_t)(desc >> 32 & 0x3fff) << 4;
    if (desc >> 62 == 0 || desc >> 62 == 3 || (start >> 7 & (uint32_t)(width / 16 - 1)))
        fail("wgmma: an operand that begins inside the pattern of its swizzle");
    for (int i = 0; i < n; i++)
        for (int k = 0; k < 16; k++) {
            const int row = first + i;
            uint32_t at = start;
            if (trans)
                at += (uint32_t)(row / (width / 2)) * leading + (uint32_t)(k / 8) * stride +
                      (uint32_t)(k % 8 * width + row % (width / 2) * 2);
            else
                at += (uint32_t)(row / 8) * stride + (uint32_t)(row % 8 * width + k * 2);
            to[k * by_k + i * by_row] = operand_at(swizzled(at, width));
        }
}

inline void run_product(job *j)
{
    product *p = static_cast<product *>(j);
    if (!p->from_registers)
        read_operand(&p->a[0][0], 1, 16, p->a_desc, p->trans_a, p->warp % 4 * 16, 16);
    read_operand(p->b, p->n, 1, p->b_desc, p->trans_b, 0, p->n);
    product_multiply(p);
}

template <int N, bool TRANS_A, bool TRANS_B>
EMU_QUIET inline void issue_all(const lane_io *lanes, uint32_t)
{
    product_issue(lanes, N, TRANS_A, TRANS_B, run_product);
}

template <int N, bool TRANS_A, bool TRANS_B> inline void issue(const product_in &in)
{
    static_assert(N % 8 == 0 && N <= 256, "columns of a product");
    product_mark();
    meet(~0u, &in, nullptr, "wgmma", issue_all<N, TRANS_A, TRANS_B>);
}

} // namespace emu

template <class... R> inline void wgmma_fence(R &...)
{
    emu::meet(~0u, nullptr, nullptr, "wgmma.fence", nullptr);
    emu::product_fence();
}

inline void wgmma_commit()
{
    emu::meet(~0u, nullptr, nullptr, "wgmma.commit_group", nullptr);
    emu::product_commit();
}

template <int PENDING, class... R> inline void wgmma_wait(R &...)
{
    emu::meet(~0u, nullptr, nullptr, "wgmma.wait_group", nullptr);
    emu::product_wait(PENDING);
}

template <bool TRANS_A, bool TRANS_B, int N8>
inline void wgmma(float (&d)[N8][4], uint64_t a, uint64_t b, bool accumulate)
{
    emu::issue<N8 * 8, TRANS_A, TRANS_B>({nullptr, a, b, accumulate, &d[0][0]});
}

template <bool TRANS_B, int N8>
inline void wgmma(float (&d)[N8][4], const uint32_t (&a)[4], uint64_t b, bool accumulate)
{
    emu::issue<N8 * 8, false, TRANS_B>({a, 0, b, accumulate, &d[0][0]});
}

#endif
