/*
 * What goes on beside the threads of a block: barriers that count bytes, copies, and products of
 * warpgroups (emu.h, "of sm_90a"). A part of emu.cc, which alone includes it.
 */
#ifndef S2S_KERNELS_CUDA_EMU_ASYNC_H
#define S2S_KERNELS_CUDA_EMU_ASYNC_H

/* ---- the async proxy ---- */

/* No memcpy here or elsewhere below, which TSan would watch. */
static volatile char *async_view()
{
    for (size_t i = 0; !now.has_view && i < now.shared_size; i++)
        now.view[i] = (char)0xff;
    now.has_view = true;
    return now.view;
}

void async_fence()
{
    volatile char *const view = async_view();
    const size_t words = now.shared_size / 8;
    for (size_t i = 0; i < words; i++)
        ((volatile uint64_t *)view)[i] = ((const uint64_t *)now.shared)[i];
    for (size_t i = words * 8; i < now.shared_size; i++)
        view[i] = now.shared[i];
}

void async_write(uint32_t at, uint16_t x)
{
    *(volatile uint16_t *)(async_view() + at) = x;
}

uint16_t async_read(uint32_t at)
{
    return *(volatile uint16_t *)(async_view() + at);
}

static mbarrier *find_mbarrier(uint32_t at)
{
    for (mbarrier &b : now.mbarriers)
        if (b.used && b.at == at)
            return &b;
    fail("an mbarrier that was not begun");
}

void mbarrier_new(uint32_t at, int count)
{
    if (at % 8 || at + 8 > now.shared_size || count < 1)
        fail("mbarrier_init: no address or count of a barrier");
    for (mbarrier &b : now.mbarriers) {
        if (b.used && b.at == at)
            fail("mbarrier_init: it is one already");
        if (b.used)
            continue;
        b = {};
        b.at = at;
        b.count = b.pending = count;
        b.used = true;
        return;
    }
    fail("mbarrier_init: too many barriers");
}

void mbarrier_fenced()
{
    for (mbarrier &b : now.mbarriers)
        b.fenced = true;
}

void mbarrier_add(uint32_t at, int arrivals, int expected)
{
    mbarrier *b = find_mbarrier(at);
    EMU_RELEASE(b);
    b->pending -= arrivals;
    b->bytes += expected;
    if (expected < 0 && !b->fenced)
        fail("a copy to an mbarrier that no mbarrier_fence showed it");
    if (b->pending < 0)
        fail("more threads arrive at an mbarrier than it waits for");
    if (b->bytes >= 1 << 20 || b->bytes <= -(1 << 20))
        fail("an mbarrier that counts too many bytes");
    if (b->pending || b->bytes)
        return;
    b->phase++;
    b->pending = b->count;
    release(&b->who);
}

void mbarrier_sleep(uint32_t at, uint32_t parity)
{
    mbarrier *b = find_mbarrier(at);
    if (parity > 1)
        fail("mbarrier_wait: a parity is 0 or 1");
    while ((b->phase & 1) == parity)
        wait_in(&b->who, "mbarrier_wait");
    EMU_ACQUIRE(b);
}

void job_issue(job *j)
{
    if (now.n_jobs == MAX_JOBS)
        fail("too many copies are under way");
    EMU_RELEASE(&j->issued);
    now.jobs[now.n_jobs++] = j;
}

/* As a thread of its own, of which the last one's work of N_ENGINES jobs ago is known. */
static void run_job(job *j)
{
#ifdef EMU_TSAN
    void *own = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(now.engines[now.at_engine++ % N_ENGINES], 1);
#endif
    EMU_ACQUIRE(&j->issued);
    j->run(j);
    free(j);
#ifdef EMU_TSAN
    __tsan_switch_to_fiber(own, 1);
#endif
}

static void run_product(warp *w)
{
    job *j = w->first;
    w->first = j->next;
    if (!w->first)
        w->last = &w->first;
    now.n_queued--;
    run_job(j);
}

/* One of those under way. */
static void run_any_job()
{
    const unsigned n_warps = now.n / 32, first = (unsigned)(random() >> 20) % n_warps;
    if (now.n_jobs && (!now.n_queued || (random() >> 20 & 1))) {
        job **at = &now.jobs[(unsigned)(random() >> 20) % (unsigned)now.n_jobs], *j = *at;
        *at = now.jobs[--now.n_jobs];
        run_job(j);
        return;
    }
    for (unsigned i = 0; i < n_warps; i++) {
        warp *w = &now.warps[(first + i) % n_warps];
        if (w->first) {
            run_product(w);
            return;
        }
    }
}

/* ---- products of warpgroups ---- */

static const uint32_t in_flight = 0x7fc0fade; /* what lanes have in their accumulators: a NaN */

static warp *own_warp()
{
    return &now.warps[running->index / 32];
}

void product_mark()
{
    warp *w = own_warp();
    if (!w->next_product && !(w->next_product = (product *)calloc(1, sizeof(product))))
        abort();
    EMU_RELEASE(&w->next_product->issued);
}

/* All four warps of a warpgroup issue the same products in the same order. */
static void compare_issued(warp *w, const product *p)
{
    const unsigned group = running->index / 128;
    if (now.n < (group + 1) * 128)
        fail("wgmma in a warpgroup that is not whole");
    issued *first = &now.products[group][w->n_products % MAX_PRODUCTS];
    w->n_products++;
    if (first->number < w->n_products)
        *first = {w->n_products, p->a_desc, p->b_desc, p->n};
    else if (first->number != w->n_products || first->a != p->a_desc || first->b != p->b_desc ||
             first->n != p->n)
        fail("warps of a warpgroup issue different products");
}

/* Operand a out of the lanes' registers. */
static void take_rows(const warp *w, product *p, const lane_io *lanes)
{
    if (!w->fenced)
        fail("wgmma: registers without a wgmma_fence before");
    for (int l = 0; l < 32; l++)
        for (int i = 0; i < 8; i++) {
            const uint32_t pair = ((const product_in *)lanes[l].in)->a[i / 2];
            p->a[l / 4 + i / 2 % 2 * 8][l % 4 * 2 + i / 4 * 8 + i % 2] =
                __uint_as_float(pair >> 16 * (i % 2) << 16);
        }
}

/* The lanes' accumulators on their way. */
static accumulators *take_accumulators(warp *w, const lane_io *lanes, int n)
{
    accumulators *acc = nullptr;
    for (accumulators &a : w->flight) {
        if (!a.used) {
            acc = &a;
        } else if (a.lanes[0] == ((const product_in *)lanes[0].in)->d) {
            if (a.n != n || a.back)
                fail("wgmma: accumulators of one product are those of another");
            return &a;
        }
    }
    if (!acc)
        fail("wgmma: too many accumulators are under way");
    if (!w->fenced)
        fail("wgmma: registers without a wgmma_fence before");
    acc->used = true;
    acc->n = n;
    acc->pending = 0;
    acc->back = 0;
    for (int l = 0; l < 32; l++) {
        float *d = acc->lanes[l] = ((const product_in *)lanes[l].in)->d;
        for (int i = 0; i < n / 2; i++) {
            acc->v[(l / 4 + i / 2 % 2 * 8) * n + i / 4 * 8 + l % 4 * 2 + i % 2] = d[i];
            d[i] = __uint_as_float(in_flight);
        }
    }
    return acc;
}

void product_issue(const lane_io *lanes, int n, bool trans_a, bool trans_b, void (*run)(job *))
{
    warp *w = own_warp();
    product *p = w->next_product;
    const product_in *in = (const product_in *)lanes[0].in;
    w->next_product = nullptr;
    p->run = run;
    p->n = n;
    p->warp = (int)(running->index / 32);
    p->trans_a = trans_a;
    p->trans_b = trans_b;
    p->a_desc = in->a_desc;
    p->b_desc = in->b_desc;
    p->accumulate = in->accumulate;
    p->from_registers = in->a != nullptr;
    p->group = running->groups;
    if (in->a)
        take_rows(w, p, lanes);
    compare_issued(w, p);
    p->to = take_accumulators(w, lanes, n);
    p->to->pending++;
    p->to->group = p->group;
    *w->last = p;
    w->last = &p->next;
    now.n_queued++;
}

void product_multiply(product *p)
{
    typedef float wide __attribute__((vector_size(32), aligned(4), may_alias));
    const int n = p->n;
    for (int row = 0; row < 16; row++)
        for (int col = 0; col < n; col += 8) {
            wide sum = {}, *to = (wide *)&p->to->v[row * n + col];
            for (int k = 0; k < 16; k++)
                sum += p->a[row][k] * *(const wide *)&p->b[k * n + col];
            *to = p->accumulate ? *to + sum : sum;
        }
    p->to->pending--;
    EMU_RELEASE(&now.warps[p->warp].done[p->group % MAX_GROUPS]);
    done.products++;
}

void product_fence()
{
    own_warp()->fenced = true;
}

void product_commit()
{
    running->groups++;
    own_warp()->fenced = false;
}

/* This lane's part of accumulators that are done. */
static void give_back(accumulators *acc)
{
    const int l = (int)here.lane, n = acc->n;
    if (acc->back >> l & 1)
        return;
    float *d = acc->lanes[l];
    for (int i = 0; i < n / 2; i++) {
        if (__float_as_uint(d[i]) != in_flight)
            fail("accumulators of a product under way were written");
        d[i] = acc->v[(l / 4 + i / 2 % 2 * 8) * n + i / 4 * 8 + l % 4 * 2 + i % 2];
    }
    acc->back |= 1u << l;
    acc->used = acc->back != ~0u;
}

void product_wait(int pending)
{
    warp *w = own_warp();
    fibre *f = running;
    const uint64_t until = f->groups > (uint64_t)pending ? f->groups - (uint64_t)pending : 0;
    while (w->first && w->first->group < until)
        run_product(w);
    for (; f->waited < until; f->waited++)
        EMU_ACQUIRE(&w->done[f->waited % MAX_GROUPS]);
    for (accumulators &acc : w->flight)
        if (acc.used && !acc.pending && acc.group < until)
            give_back(&acc);
}

#endif
