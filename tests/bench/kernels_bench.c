/*
 * A line for every kernel of kernels/list.h: calls, the mean time of one, GFLOP/s, GB/s, and its
 * share of this machine's limit, which is the time that its operations take at the speed of
 * products, or its bytes at that of adding two matrices to a third, whichever is longer. Both are
 * measured in the same run. What fits the cache may be above 1; calls of some microseconds are far
 * below.
 *
 *   kernels_bench [PRECISION]     fp32 or bf16-mixed (default: both)
 *
 * The calls are those of training steps of three models 512 wide, with dropout, of 2,048 tokens:
 * a decoder behind a FastConformer whose batch norm has statistics of the batch, a hybrid of Mamba2
 * layers and experts, and a bare encoder with pooling in front; and what only meshes call, or GPUs.
 * The status is 1 where a kernel of the list has no line.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/profile/profile.h"
#include "lib/base/base.h"
#include "lib/base/rng.h"
#include "lib/conf/conf.h"
#include "lib/model/salm.h"
#include "lib/train/step.h"
#include "tests/bench/product.h"

enum { TOKENS = 2048, VOCAB = 8192, WIDTH = 512, MELS = 80, ROUNDS = 4, SUM_ROWS = 2048 };

static const char decoder[] =
    "{\"model_type\": \"qwen2\", \"vocab_size\": 8192, \"hidden_size\": 512, "
    "\"num_hidden_layers\": 2, \"num_attention_heads\": 8, \"num_key_value_heads\": 4, "
    "\"intermediate_size\": 1536}";
static const char encoder[] =
    "{\"model_type\": \"parakeet_encoder\", \"hidden_size\": 512, \"num_hidden_layers\": 2, "
    "\"num_attention_heads\": 8, \"intermediate_size\": 2048, \"num_mel_bins\": 80}";
static const char pooled[] =
    "{\"model_type\": \"parakeet_encoder\", \"hidden_size\": 512, \"num_hidden_layers\": 1, "
    "\"num_attention_heads\": 8, \"intermediate_size\": 2048, \"num_mel_bins\": 80, "
    "\"subsampling\": \"vggnet\", \"subsampling_conv_channels\": 16}";
static const char hybrid[] =
    "{\"model_type\": \"nemotron_h\", \"vocab_size\": 8192, \"hidden_size\": 512, "
    "\"hybrid_override_pattern\": \"ME*-\", \"num_attention_heads\": 8, "
    "\"num_key_value_heads\": 4, \"head_dim\": 64, \"intermediate_size\": 2048, "
    "\"mamba_num_heads\": 16, \"mamba_head_dim\": 64, \"n_groups\": 2, \"ssm_state_size\": 64, "
    "\"n_routed_experts\": 16, \"num_experts_per_tok\": 4, \"n_group\": 4, \"topk_group\": 2, "
    "\"moe_intermediate_size\": 512, \"moe_shared_expert_intermediate_size\": 512}";

static const struct model {
    const char *encoder, *llm; /* one may be absent */
} models[] = {{encoder, decoder}, {NULL, hybrid}, {pooled, NULL}};
enum { N_MODELS = sizeof models / sizeof *models };

/* Of one kernel: all calls of a step. */
struct line {
    int64_t calls;
    double seconds, ideal, flops, bytes;
};

static struct line lines[S2S_ENTRIES]; /* the best rounds of each model */
static double limit_flops, limit_bytes;

/* ---- a model and its batch ---- */

static const int32_t cu[] = {0, 70, 190, 520, 1100, 1148, 1500, TOKENS};
enum { SEQS = sizeof cu / sizeof *cu - 1 };

struct bench {
    struct s2s_mesh *mesh;
    struct s2s_layout layout;
    struct s2s_device *device;
    struct s2s_model *model;
    struct s2s_optim *optim;
    struct s2s_side side;
    struct s2s_batch batch;
    int32_t ids[TOKENS], labels[TOKENS], positions[TOKENS], rows[SEQS], slot_of_row[TOKENS];
    uint64_t draws[SEQS];
    int64_t cu_mel[SEQS + 1];
    float *mel, *target;
};

static const struct s2s_dropout_rates rates = {.1, .1, .1, .1, .1, .1};

static int parse(struct s2s_conf **conf, const char *text, struct s2s_error *err)
{
    return text ? s2s_conf_parse(conf, text, strlen(text), "the bench", S2S_CONF_JSON, err) : 0;
}

static int open_model(struct bench *b, const struct model *m, struct s2s_error *err)
{
    struct s2s_salm_parts parts = {.batch_norm_batch = true, .dropout = &rates};
    struct s2s_conf *ears = NULL, *llm = NULL;
    int rc = parse(&ears, m->encoder, err);
    if (rc < 0 || (rc = parse(&llm, m->llm, err)) < 0)
        goto out;
    if (m->encoder && m->llm) {
        parts.encoder.conf = ears;
        parts.llm.conf = llm;
        rc = s2s_salm_open(&b->model, b->device, NULL, &parts, err);
    } else {
        const struct s2s_model_options options = {
            .conf = ears ? ears : llm, .batch_norm_batch = true, .dropout = &rates};
        rc = s2s_model_open(&b->model, b->device, NULL, NULL, &options, err);
    }
out:
    s2s_conf_free(ears);
    s2s_conf_free(llm);
    return rc;
}

static void fill_text(struct bench *b)
{
    for (int s = 0; s < SEQS; s++)
        for (int32_t i = cu[s]; i < cu[s + 1]; i++) {
            b->ids[i] = (int32_t)s2s_rng_below(4, (uint64_t)i, VOCAB);
            b->labels[i] = i % 4 ? (int32_t)s2s_rng_below(5, (uint64_t)i, VOCAB) : -100;
            b->positions[i] = i - cu[s];
        }
    b->batch = (struct s2s_batch){.n_tokens = TOKENS,
                                  .n_seqs = SEQS,
                                  .input_ids = b->ids,
                                  .labels = b->labels,
                                  .position_ids = b->positions,
                                  .cu_seqlens = cu,
                                  .max_seqlen = 580,
                                  .draws = b->draws,
                                  .draw = 7};
}

/* A clip in every sequence, which fills three quarters of it. */
static void fill_sound(struct bench *b, const struct s2s_model *ears)
{
    const size_t n = 8 * (size_t)TOKENS * MELS;
    int32_t longest = 0;
    b->mel = s2s_xcalloc(n, sizeof *b->mel);
    s2s_rng_fill_normal(b->mel, n, 3, 0, 0, 1);
    b->target = s2s_xcalloc((size_t)TOKENS * WIDTH, sizeof *b->target);
    for (int s = 0; s < SEQS; s++) {
        const int32_t mel = (cu[s + 1] - cu[s]) * 6;
        longest = mel > longest ? mel : longest;
        b->cu_mel[s + 1] = b->cu_mel[s] + mel;
        b->rows[s] = (int32_t)s2s_model_frames(ears, mel);
    }
    s2s_media_slots(b->slot_of_row, cu, b->rows, SEQS);
    b->batch.n_media = 1;
    b->batch.media[0] = (struct s2s_media){.n = SEQS,
                                           .rows = b->rows,
                                           .slot_of_row = b->slot_of_row,
                                           .data = b->mel,
                                           .cu = b->cu_mel,
                                           .width = MELS,
                                           .draws = b->draws,
                                           .padded = longest};
    b->batch.target = b->target;
}

static int open_bench(struct bench *b, const struct model *m, struct s2s_error *err)
{
    struct s2s_layout_spec alone = S2S_LAYOUT_SPEC_INIT;
    struct s2s_adamw_options adamw = S2S_ADAMW_OPTIONS_DEFAULT;
    adamw.clip_norm = 1;
    int rc = s2s_mesh_open(&b->mesh, NULL, err);
    if (rc < 0 || (rc = open_model(b, m, err)) < 0 ||
        (rc = s2s_params_finish(b->model->params, err)) < 0)
        return rc;
    s2s_params_init(b->model->params, 1);
    if ((rc = s2s_optim_new(&b->optim, b->model->params, &adamw, 0, b->model->params->n_trained,
                            err)) < 0 ||
        (rc = s2s_layout_init(&b->layout, b->mesh, &alone, b->device, err)) < 0)
        return rc;
    const struct s2s_side_options side = {
        .layout = &b->layout,
        .balance = {.balance = 1e-2, .square = 1e-3, .over_step = true},
        .bias_rate = 1e-3,
        .batch_norm_batch = true};
    s2s_side_init(&b->side, b->mesh, b->model, b->optim, &side);
    for (int s = 0; s < SEQS; s++)
        b->draws[s] = (uint64_t)s + 1;
    fill_text(b);
    if (m->encoder)
        fill_sound(b, m->llm ? s2s_salm_encoder(b->model) : b->model);
    return s2s_model_check(b->model, &b->batch, err);
}

static void close_bench(struct bench *b)
{
    s2s_side_release(&b->side);
    s2s_optim_free(b->optim);
    s2s_model_free(b->model);
    s2s_mesh_close(b->mesh);
    free(b->mel);
    free(b->target);
}

static int step(struct bench *b, int number, bool hears_alone, struct s2s_error *err)
{
    char place[] = "the bench";
    struct s2s_pack pack = {.batch = b->batch,
                            .n_labels = hears_alone ? 1 : s2s_batch_n_labels(&b->batch),
                            .n_real = TOKENS,
                            .place = place};
    const struct s2s_feed_step data = {(struct s2s_pack *[]){&pack}, 1, 1};
    const struct s2s_step_options options = {.number = number, .lr = 1e-5};
    struct s2s_step_result result;
    return s2s_train_step(&b->side, &data, &options, &result, err);
}

/* ---- sums ---- */

static double ideal(struct s2s_cost cost)
{
    return fmax(cost.flops / limit_flops, (cost.read_bytes + cost.written_bytes) / limit_bytes);
}

static void add(struct line *line, struct s2s_cost cost, double seconds)
{
    line->calls++;
    line->seconds += seconds;
    line->ideal += ideal(cost);
    line->flops += cost.flops;
    line->bytes += cost.read_bytes + cost.written_bytes;
}

static void add_step(struct line best[S2S_ENTRIES], const struct s2s_profile_step *seen)
{
    struct line now[S2S_ENTRIES] = {{0}};
    for (size_t i = 0; i < seen->n; i++)
        add(&now[seen->events[i].entry], seen->events[i].cost, seen->events[i].seconds);
    for (int e = 0; e < S2S_ENTRIES; e++)
        if (now[e].calls > 0 && (best[e].calls == 0 || now[e].seconds < best[e].seconds))
            best[e] = now[e];
}

static void take(const struct line best[S2S_ENTRIES])
{
    for (int e = 0; e < S2S_ENTRIES; e++) {
        lines[e].calls += best[e].calls;
        lines[e].seconds += best[e].seconds;
        lines[e].ideal += best[e].ideal;
        lines[e].flops += best[e].flops;
        lines[e].bytes += best[e].bytes;
    }
}

static int run_model(struct s2s_device *device, const struct model *m, struct s2s_error *err)
{
    struct bench *b = s2s_xcalloc(1, sizeof *b);
    struct line best[S2S_ENTRIES] = {{0}};
    b->device = device;
    int rc = open_bench(b, m, err);
    for (int i = -1; rc == 0 && i < ROUNDS; i++) {
        struct s2s_profile *profile = s2s_profile_new(device->kernels, &device->queue);
        device->kernels = s2s_profile_table(profile);
        s2s_profile_step(profile, 1);
        rc = step(b, i + 2, !m->llm, err);
        s2s_profile_step_end(profile);
        if (i >= 0) /* the first one touches fresh memory */
            add_step(best, s2s_profile_kept(profile, 0));
        device->kernels = s2s_profile_free(profile);
    }
    close_bench(b);
    free(b);
    take(best);
    return rc;
}

/* ---- what these steps do not call ---- */

static struct s2s_mat mat(int64_t rows, int64_t cols, enum s2s_dtype dtype)
{
    const size_t n = (size_t)(rows * cols);
    float *wide = s2s_xalloc_aligned(n * sizeof *wide);
    s2s_rng_fill_normal(wide, n, 1, 0, 0, 1);
    for (size_t i = 0; dtype == S2S_BF16 && i < n; i++)
        ((uint16_t *)wide)[i] = s2s_f32_to_bf16(wide[i]);
    return (struct s2s_mat){wide, cols, dtype};
}

#define TIME(name, args) \
    do { \
        double best_ = INFINITY; \
        for (int i_ = 0; i_ < ROUNDS; i_++) { \
            const double start_ = s2s_now_s(); \
            device->kernels->name(&device->queue, args); \
            best_ = fmin(best_, s2s_now_s() - start_); \
        } \
        if (lines[S2S_ENTRY_##name].calls == 0) \
            add(&lines[S2S_ENTRY_##name], s2s_cost_##name(args, NULL), best_); \
    } while (0)

static void run_merge(struct s2s_device *device)
{
    const int64_t heads = 8, dim = 64;
    const struct s2s_k_attention_merge merge = {
        .o = mat(TOKENS, heads * dim, device->dtype),
        .part = mat(TOKENS, heads * dim, device->dtype),
        .lse = mat(TOKENS, heads, S2S_F32).data,
        .part_lse = mat(TOKENS, heads, S2S_F32).data,
        .n_q = TOKENS,
        .n_heads = heads,
        .dim = dim,
    };
    TIME(attention_merge, &merge);
    free(merge.o.data);
    free(merge.part.data);
    free(merge.lse);
    free((void *)merge.part_lse);
}

static void run_factor(struct s2s_device *device)
{
    double squares[64], factor;
    for (int i = 0; i < 64; i++)
        squares[i] = i;
    const struct s2s_k_clip_factor args = {
        .sumsq = squares, .factor = &factor, .n = 64, .scale = 1, .max_norm = 1};
    TIME(clip_factor, &args);
}

/* ---- limits and the table ---- */

static double sum_speed(struct s2s_device *device)
{
    const int64_t cols = 4096;
    const struct s2s_k_axpby args = {.x = mat(SUM_ROWS, cols, device->dtype),
                                     .z = mat(SUM_ROWS, cols, device->dtype),
                                     .y = mat(SUM_ROWS, cols, device->dtype),
                                     .rows = SUM_ROWS,
                                     .cols = cols,
                                     .alpha = 1,
                                     .beta = 1};
    double best = INFINITY;
    for (int i = 0; i < 15; i++) {
        const double start = s2s_now_s();
        device->kernels->axpby(&device->queue, &args);
        best = fmin(best, s2s_now_s() - start);
    }
    free(args.x.data);
    free(args.z.data);
    free(args.y.data);
    return 3 * SUM_ROWS * (double)(cols * (int64_t)s2s_dtype_size(device->dtype)) / best;
}

/* Gives the number of kernels without a line. */
static int print(const char *precision)
{
    int absent = 0;
    for (int e = 0; e < S2S_ENTRY_zero; e++) {
        const struct line *l = &lines[e];
        if (l->calls == 0) {
            printf("  %-24s is not called\n", s2s_entry_name((enum s2s_entry)e));
            absent++;
            continue;
        }
        printf("  %-24s %-10s %4lld calls %10.1f us %8.1f GFLOP/s %7.1f GB/s  share %.2f\n",
               s2s_entry_name((enum s2s_entry)e), precision, (long long)l->calls,
               1e6 * l->seconds / (double)l->calls, 1e-9 * l->flops / l->seconds,
               1e-9 * l->bytes / l->seconds, l->ideal / l->seconds);
    }
    return absent;
}

/* Gives the number of kernels without a line, or an error. */
static int run(enum s2s_dtype dtype, const char *precision, struct s2s_error *err)
{
    struct s2s_device *device;
    int rc = s2s_device_open(&device, "cpu", err);
    if (rc < 0)
        return rc;
    if ((rc = s2s_device_work_in(device, dtype, err)) < 0)
        goto out;
    memset(lines, 0, sizeof lines);
    limit_flops = 1e9 * product_speed(device).wall;
    limit_bytes = sum_speed(device);
    for (int m = 0; m < N_MODELS; m++)
        if ((rc = run_model(device, &models[m], err)) < 0)
            goto out;
    run_merge(device);
    run_factor(device);
    printf("%s: %d threads, products %.0f GFLOP/s, sums %.1f GB/s\n", precision,
           device->queue.lanes, 1e-9 * limit_flops, 1e-9 * limit_bytes);
    rc = print(precision);
out:
    s2s_device_close(device);
    return rc;
}

int main(int argc, char **argv)
{
    static const enum s2s_dtype dtypes[] = {S2S_F32, S2S_BF16};
    static const char *const precisions[] = {"fp32", "bf16-mixed"};
    struct s2s_error err = S2S_ERROR_INIT;
    int absent = 0;
    for (int i = 0; i < 2; i++) {
        if (argc > 1 && strcmp(argv[1], precisions[i]) != 0)
            continue;
        const int rc = run(dtypes[i], precisions[i], &err);
        if (rc < 0) {
            fprintf(stderr, "kernels_bench: %s\n", err.text);
            return 1;
        }
        absent += rc;
    }
    return absent > 0;
}
