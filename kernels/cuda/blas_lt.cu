/*
 * blas.h over cublasLt. The library is looked for when the first queue is opened. Its choice of an
 * algorithm, which costs tens of microseconds, is kept for each form of product. Only algorithms
 * that sum in a fixed order are asked for.
 *
 * The library stores by columns: what is a row-major c = a b here is c' = b' a' there, so a and b
 * change places.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/blas.h"
#include "kernels/cuda/blas_lt_api.h"
#include "kernels/cuda/library.h"

enum { WORKSPACE_BYTES = 64 << 20, N_PLANS = 1024 };
/* statuses of this file: FAILED + that of the library */
enum { MISSING = 2000, TYPES = 2002, FAILED = 2100 };

/* ---- the library ---- */

static struct {
#define X(name, arguments) int(*name) arguments;
    LT_FUNCTIONS(X)
#undef X
} lt;

static int load(void)
{
    static bool loaded;
    if (loaded)
        return 0;
    static const char *const names[] = {"libcublasLt.so.13", "libcublasLt.so.12", NULL};
    void *lib = library_open(names);
    if (!lib)
        return MISSING;
#define X(name, arguments) \
    *(void **)&lt.name = dlsym(lib, #name); \
    if (!lt.name) \
        return MISSING;
    LT_FUNCTIONS(X)
#undef X
    loaded = true;
    return 0;
}

const char *blas_status_text(int status)
{
    static char text[100];
    switch (status) {
    case MISSING:
        return "libcublasLt.so.13 (or .12) " LIBRARY_PLACES;
    case BLAS_NO_MEMORY:
        return "no memory for the workspace of products";
    case TYPES:
        return "a product of matrices of two types";
    }
    if (status < FAILED)
        return NULL;
    snprintf(text, sizeof text, "cublasLt failed with status %d%s", status - FAILED,
             status - FAILED == LT_NOT_SUPPORTED ? " (not supported)" : "");
    return text;
}

/* ---- forms of products ---- */

/* What decides about the algorithm. Compared as bytes. */
struct form {
    int64_t m, n, k, lda, ldb, ldc, step_a, step_b, step_c, n_batch;
    int32_t align_a, align_b, align_c, type_ab, type_c, compute;
    bool trans_a, trans_b;
};

struct plan {
    struct form form;
    lt_operation operation;
    lt_layout a, b, c;
    struct lt_algo algo;
    bool made;
};

struct blas {
    lt_handle handle;
    struct rt_stream *stream;
    void *workspace;
    struct plan plans[N_PLANS]; /* by a hash of the form; a newer one takes the place of an older */
};

static void release(struct plan *plan)
{
    if (plan->operation)
        lt.cublasLtMatmulDescDestroy(plan->operation);
    lt_layout layouts[] = {plan->a, plan->b, plan->c};
    for (int i = 0; i < 3; i++)
        if (layouts[i])
            lt.cublasLtMatrixLayoutDestroy(layouts[i]);
    memset(plan, 0, sizeof *plan);
}

int blas_new(struct blas **out, struct rt_stream *stream)
{
    int rc = load();
    *out = NULL;
    if (rc)
        return rc;
    struct blas *blas = (struct blas *)calloc(1, sizeof *blas);
    if (!blas)
        return BLAS_NO_MEMORY;
    blas->stream = stream;
    if ((rc = lt.cublasLtCreate(&blas->handle)) != LT_SUCCESS)
        rc += FAILED;
    else if (!(blas->workspace = rt_alloc(WORKSPACE_BYTES)))
        rc = BLAS_NO_MEMORY;
    if (rc) {
        blas_free(blas);
        return rc;
    }
    *out = blas;
    return 0;
}

void blas_free(struct blas *blas)
{
    if (!blas)
        return;
    for (int i = 0; i < N_PLANS; i++)
        release(&blas->plans[i]);
    rt_free(blas->workspace);
    if (blas->handle)
        lt.cublasLtDestroy(blas->handle);
    free(blas);
}

/* The largest power of two up to 256 that the address is a multiple of. */
static int32_t alignment(const void *ptr)
{
    int32_t align = 256;
    while ((uintptr_t)ptr % (uintptr_t)align)
        align /= 2;
    return align;
}

static struct form form_of(const struct s2s_k_gemm *g, bool tf32)
{
    struct form f;
    memset(&f, 0, sizeof f); /* padding too */
    f.m = g->m;
    f.n = g->n;
    f.k = g->k;
    f.lda = g->a.stride;
    f.ldb = g->b.stride;
    f.ldc = g->c.stride;
    f.n_batch = g->n_batch > 0 ? g->n_batch : 1;
    f.step_a = g->step_a;
    f.step_b = g->step_b;
    f.step_c = g->step_c;
    f.align_a = alignment(g->a.data);
    f.align_b = alignment(g->b.data);
    f.align_c = alignment(g->c.data);
    f.type_ab = g->a.dtype == S2S_BF16 ? LT_TYPE_BF16 : LT_TYPE_F32;
    f.type_c = g->c.dtype == S2S_BF16 ? LT_TYPE_BF16 : LT_TYPE_F32;
    f.compute = g->a.dtype == S2S_F32 && tf32 ? LT_COMPUTE_TF32 : LT_COMPUTE_F32;
    f.trans_a = g->trans_a;
    f.trans_b = g->trans_b;
    return f;
}

static uint64_t hash(const struct form *form)
{
    const unsigned char *at = (const unsigned char *)form;
    uint64_t h = 14695981039346656037u; /* FNV-1a */
    for (size_t i = 0; i < sizeof *form; i++)
        h = (h ^ at[i]) * 1099511628211u;
    return h ^ h >> 32;
}

/* A row-major [rows, cols] matrix, which is [cols, rows] there. */
static int make_layout(lt_layout *layout, int type, int64_t rows, int64_t cols, int64_t ld,
                       const struct form *f, int64_t step)
{
    const int32_t n_batch = (int32_t)f->n_batch;
    int rc = lt.cublasLtMatrixLayoutCreate(layout, type, (uint64_t)cols, (uint64_t)rows,
                                           ld > cols ? ld : cols);
    if (rc || n_batch == 1)
        return rc;
    rc = lt.cublasLtMatrixLayoutSetAttribute(*layout, LT_LAYOUT_BATCH_COUNT, &n_batch,
                                             sizeof n_batch);
    return rc ? rc
              : lt.cublasLtMatrixLayoutSetAttribute(*layout, LT_LAYOUT_BATCH_STEP, &step,
                                                    sizeof step);
}

static int set_preference(lt_preference preference, const struct form *f)
{
    const uint64_t bytes = WORKSPACE_BYTES;
    const uint32_t reductions = LT_REDUCTION_NONE | LT_REDUCTION_COMPUTE;
    /* a and b have changed places */
    const struct {
        int attribute;
        uint32_t value;
    } words[] = {{LT_PREF_REDUCTIONS, reductions},
                 {LT_PREF_ALIGN_A, (uint32_t)f->align_b},
                 {LT_PREF_ALIGN_B, (uint32_t)f->align_a},
                 {LT_PREF_ALIGN_C, (uint32_t)f->align_c},
                 {LT_PREF_ALIGN_D, (uint32_t)f->align_c}};
    int rc = lt.cublasLtMatmulPreferenceSetAttribute(preference, LT_PREF_WORKSPACE_BYTES, &bytes,
                                                     sizeof bytes);
    for (size_t i = 0; rc == 0 && i < sizeof words / sizeof *words; i++)
        rc = lt.cublasLtMatmulPreferenceSetAttribute(preference, words[i].attribute,
                                                     &words[i].value, sizeof words[i].value);
    return rc;
}

static int describe(struct plan *plan)
{
    const struct form *f = &plan->form;
    const int32_t trans_a = f->trans_b ? LT_OP_T : LT_OP_N,
                  trans_b = f->trans_a ? LT_OP_T : LT_OP_N;
    int rc = lt.cublasLtMatmulDescCreate(&plan->operation, f->compute, LT_TYPE_F32);
    if (rc == 0)
        rc = lt.cublasLtMatmulDescSetAttribute(plan->operation, LT_DESC_TRANS_A, &trans_a,
                                               sizeof trans_a);
    if (rc == 0)
        rc = lt.cublasLtMatmulDescSetAttribute(plan->operation, LT_DESC_TRANS_B, &trans_b,
                                               sizeof trans_b);
    if (rc == 0)
        rc = make_layout(&plan->a, f->type_ab, f->trans_a ? f->k : f->m, f->trans_a ? f->m : f->k,
                         f->lda, f, f->step_a);
    if (rc == 0)
        rc = make_layout(&plan->b, f->type_ab, f->trans_b ? f->n : f->k, f->trans_b ? f->k : f->n,
                         f->ldb, f, f->step_b);
    return rc ? rc : make_layout(&plan->c, f->type_c, f->m, f->n, f->ldc, f, f->step_c);
}

static int choose(struct blas *blas, struct plan *plan)
{
    struct lt_found found;
    lt_preference preference = NULL;
    int n_found = 0, rc = lt.cublasLtMatmulPreferenceCreate(&preference);
    if (rc == 0)
        rc = set_preference(preference, &plan->form);
    if (rc == 0)
        rc = lt.cublasLtMatmulAlgoGetHeuristic(blas->handle, plan->operation, plan->b, plan->a,
                                               plan->c, plan->c, preference, 1, &found, &n_found);
    if (preference)
        lt.cublasLtMatmulPreferenceDestroy(preference);
    if (rc == 0 && (n_found == 0 || found.status))
        rc = LT_NOT_SUPPORTED;
    if (rc == 0)
        plan->algo = found.algo;
    return rc;
}

int blas_gemm(struct blas *blas, const struct s2s_k_gemm *g, float beta, bool tf32)
{
    if (g->a.dtype != g->b.dtype)
        return TYPES;
    const struct form form = form_of(g, tf32);
    struct plan *plan = &blas->plans[hash(&form) % N_PLANS];
    int rc = 0;
    if (!plan->made || memcmp(&plan->form, &form, sizeof form) != 0) {
        release(plan);
        memcpy(&plan->form, &form, sizeof form);
        if ((rc = describe(plan)) != 0 || (rc = choose(blas, plan)) != 0) {
            release(plan);
            return FAILED + rc;
        }
        plan->made = true;
    }
    rc = lt.cublasLtMatmul(blas->handle, plan->operation, &g->alpha, g->b.data, plan->b, g->a.data,
                           plan->a, &beta, g->c.data, plan->c, g->c.data, plan->c, &plan->algo,
                           blas->workspace, WORKSPACE_BYTES, blas->stream);
    return rc ? FAILED + rc : 0;
}
