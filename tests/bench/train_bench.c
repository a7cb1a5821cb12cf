/*
 * The training step of s2s-train (forward, backward, norm, AdamW) of a decoder on packed
 * utterances: real tokens a second, and the share of this machine's own product speed in the same
 * precision, measured in the same run.
 *
 *   train_bench [SHAPE] [STEPS] [PRECISION]     SHAPE is llama50, llama125, nemotron53 (a hybrid
 *                                               of Mamba2, attention and MLPs) or salm77 (llama50
 *                                               behind a FastConformer, which hears the clips),
 *                                               PRECISION fp32 or bf16-mixed (default: all but
 *                                               llama125, each in both)
 *   mpirun -n 2 train_bench ..      data parallelism: tokens of all ranks, the rest of the first
 *
 * Lengths are those of speech data: half a second to 30 s at 12.5 frames a second, and the text.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <omp.h>

#include "lib/base/base.h"
#include "lib/base/rng.h"
#include "lib/conf/conf.h"
#include "lib/model/model.h"
#include "lib/model/salm.h"
#include "lib/train/step.h"
#include "tests/bench/fastconformer.h"
#include "tests/bench/product.h"

enum { VOCAB = 32000 };

static const struct shape {
    const char *name;
    int width, layers, heads, inner, tokens;
    const char *mixers; /* of a NemotronH: a letter a layer; NULL: a Llama */
    bool hears;
} shapes[] = {{"llama50", 512, 10, 8, 1536, 2048, NULL, false},
              {"llama125", 768, 12, 12, 2560, 900, NULL, false},
              {"nemotron53", 512, 11, 8, 2048, 2048, "M-M-M*-M-M-", false},
              {"salm77", 512, 10, 8, 1536, 2048, NULL, true}};

/* Of its Mamba2 layers. */
enum { MAMBA_HEADS = 16, MAMBA_DIM = 64, MAMBA_GROUPS = 2, MAMBA_STATE = 64, MAMBA_KERNEL = 4 };

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* ---- the batch ---- */

static double duration_s(uint64_t i)
{
    double kind = s2s_rng_uniform_f64(1, i), z;
    float normal;
    s2s_rng_fill_normal(&normal, 1, 2, i, 0, 1);
    z = normal;
    double d = kind < .25 ? exp(.5 + .5 * z) : kind < .7 ? exp(1.8 + .6 * z) : 14 + 2.5 * z;
    return d < .5 ? .5 : (d > 30 ? 30 : d);
}

/* The packs of a step in host memory; hears: clips too, of which the first slots are. */
struct pack {
    const struct s2s_model *encoder; /* NULL: none, and frames are slots like others */
    int32_t *ids, *labels, *positions, *cu, *slots, *rows, *slot_of_row;
    int64_t *mel;
    float *sound;
};

static int64_t frames_of(const struct pack *p, double seconds)
{
    const int64_t frames = (int64_t)ceil(seconds * 12.5);
    return p->encoder ? s2s_model_frames(p->encoder, (int64_t)ceil(100 * seconds)) : frames;
}

/* Utterances until the next would not fit. Gives their number. */
static int64_t draw(struct pack *p, int64_t max_tokens, uint64_t *at)
{
    int64_t n = 0;
    for (p->cu[0] = 0, p->mel[0] = 0;; n++) {
        double d = duration_s(*at);
        const int64_t frames = frames_of(p, d);
        int64_t len =
            frames + (int64_t)ceil(d * 3.6 * (.7 + .6 * s2s_rng_uniform_f64(3, *at))) + 16;
        if (p->cu[n] + len > max_tokens)
            return n;
        p->slots[n] = p->cu[n];
        p->rows[n] = (int32_t)frames;
        p->mel[n + 1] = p->mel[n] + (int64_t)ceil(100 * d);
        p->cu[n + 1] = (int32_t)(p->cu[n] + len);
        ++*at;
    }
}

static void fill(struct s2s_batch *b, struct pack *p, int64_t max_tokens, uint64_t *at)
{
    *b = (struct s2s_batch){.input_ids = p->ids,
                            .labels = p->labels,
                            .position_ids = p->positions,
                            .cu_seqlens = p->cu};
    b->n_seqs = draw(p, max_tokens, at);
    b->n_tokens = p->cu[b->n_seqs];
    for (int64_t s = 0; s < b->n_seqs; s++)
        for (int64_t i = p->cu[s]; i < p->cu[s + 1]; i++) {
            p->positions[i] = (int32_t)(i - p->cu[s]);
            p->ids[i] = (int32_t)s2s_rng_below(4 + *at, (uint64_t)i, VOCAB);
            p->labels[i] = i + 1 < p->cu[s + 1]
                               ? (int32_t)s2s_rng_below(4 + *at, (uint64_t)i + 1, VOCAB)
                               : -100;
            if (p->cu[s + 1] - p->cu[s] > b->max_seqlen)
                b->max_seqlen = p->cu[s + 1] - p->cu[s];
        }
    if (!p->encoder)
        return;
    s2s_media_slots(p->slot_of_row, p->slots, p->rows, b->n_seqs);
    b->n_media = 1;
    b->media[0] = (struct s2s_media){.kind = S2S_MEDIA_AUDIO,
                                     .n = b->n_seqs,
                                     .rows = p->rows,
                                     .slot_of_row = p->slot_of_row,
                                     .data = p->sound,
                                     .cu = p->mel,
                                     .width = N_MELS};
}

/* A slot is 80 ms of sound or less. */
static void new_pack(struct pack *p, const struct shape *s)
{
    const size_t n = (size_t)s->tokens + 1, mel = s->hears ? 9 * n : 1;
    int32_t **const arrays[] = {&p->ids,   &p->labels, &p->positions,  &p->cu,
                                &p->slots, &p->rows,   &p->slot_of_row};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        *arrays[i] = s2s_xcalloc(n, sizeof **arrays[i]);
    p->mel = s2s_xcalloc(n, sizeof *p->mel);
    p->sound = s2s_xcalloc(mel * N_MELS, sizeof *p->sound);
    s2s_rng_fill_normal(p->sound, mel * N_MELS, 3, 0, 0, 1);
}

static void free_pack(struct pack *p)
{
    int32_t *const arrays[] = {p->ids,   p->labels, p->positions,  p->cu,
                               p->slots, p->rows,   p->slot_of_row};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        free(arrays[i]);
    free(p->mel);
    free(p->sound);
}

static int count(const char *mixers, char letter)
{
    int n = 0;
    for (; *mixers; mixers++)
        n += *mixers == letter;
    return n;
}

/* Multiplications and additions of a step that the mathematics asks for: six a weight and token
 * (labelled ones in the output layer), attention over half a square, and of a state-space model
 * what a token adds to its states and reads of them. */
static double step_flops(const struct shape *s, const struct s2s_batch *b)
{
    const double width = s->width, attention = 4 * width * width, scanned = MAMBA_HEADS * MAMBA_DIM,
                 pairs = MAMBA_GROUPS * MAMBA_STATE;
    int n_attention = s->layers;
    double weights = s->layers * (attention + 3 * width * s->inner), states = 0;
    if (s->mixers) {
        const int n_mamba = count(s->mixers, 'M');
        n_attention = count(s->mixers, '*');
        weights = n_attention * attention + count(s->mixers, '-') * 2 * width * s->inner +
                  n_mamba * (width * (3 * scanned + 2 * pairs + MAMBA_HEADS) +
                             MAMBA_KERNEL * (scanned + 2 * pairs));
        states = n_mamba * scanned * MAMBA_STATE;
    }
    double flops = (6 * weights + 12 * states) * (double)b->n_tokens +
                   6.0 * VOCAB * width * (double)s2s_batch_n_labels(b);
    if (b->n_media)
        flops += encoder_flops(b->media[0].cu, b->media[0].n) +
                 6.0 * ENCODER_WIDTH * width * (double)s2s_media_n_rows(&b->media[0]);
    for (int64_t i = 0; i < b->n_seqs; i++) {
        double len = b->cu_seqlens[i + 1] - b->cu_seqlens[i];
        flops += 12.0 * n_attention * width * len * len / 2;
    }
    return flops;
}

/* ---- the run ---- */

struct bench {
    struct s2s_mesh *mesh; /* all ranks have other packs */
    struct s2s_layout layout;
    struct s2s_device *device;
    struct s2s_model *model;
    struct s2s_optim *optim;
    struct s2s_side side;
};

/* The step of s2s-train, on one microbatch a rank. *tokens: of all ranks. */
static int step(struct bench *b, const struct s2s_batch *batch, double *tokens,
                struct s2s_error *err)
{
    char place[] = "the bench";
    struct s2s_pack pack = {.batch = *batch,
                            .n_labels = s2s_batch_n_labels(batch),
                            .n_real = batch->n_tokens,
                            .place = place};
    const struct s2s_feed_step data = {(struct s2s_pack *[]){&pack}, 1, 1};
    const struct s2s_step_options options = {.number = 1, .lr = 1e-4};
    struct s2s_step_result result;
    int rc = s2s_train_step(&b->side, &data, &options, &result, err);
    *tokens = (double)result.tokens;
    return rc;
}

/* The decoder of a shape, and what hears before it. */
static int build(struct bench *b, const struct shape *s, const char *llm, struct s2s_error *err)
{
    struct s2s_conf *conf = NULL;
    if (!s->hears) {
        const struct s2s_model_options options = {.config = llm};
        return s2s_model_open(&b->model, b->device, NULL, NULL, &options, err);
    }
    int rc = s2s_conf_parse(&conf, encoder_config, strlen(encoder_config), "encoder", S2S_CONF_JSON,
                            err);
    if (rc < 0)
        return rc;
    const struct s2s_salm_parts parts = {.encoder.conf = conf, .llm.config = llm};
    rc = s2s_salm_open(&b->model, b->device, NULL, &parts, err);
    s2s_conf_free(conf);
    return rc;
}

static int open_model(struct bench *b, const struct shape *s, struct s2s_error *err)
{
    char path[] = "/tmp/train_bench.XXXXXX.json";
    int fd = mkstemps(path, 5);
    if (fd < 0)
        return s2s_error_errno(err, S2S_E_IO, "%s", path);
    dprintf(fd,
            "{\"vocab_size\": %d, \"hidden_size\": %d, \"num_hidden_layers\": %d, "
            "\"num_attention_heads\": %d, \"num_key_value_heads\": %d, \"head_dim\": %d, "
            "\"intermediate_size\": %d, ",
            VOCAB, s->width, s->layers, s->heads, s->heads, s->width / s->heads, s->inner);
    if (s->mixers)
        dprintf(fd,
                "\"model_type\": \"nemotron_h\", \"hybrid_override_pattern\": \"%s\", "
                "\"mamba_num_heads\": %d, \"mamba_head_dim\": %d, \"n_groups\": %d, "
                "\"ssm_state_size\": %d, \"conv_kernel\": %d}",
                s->mixers, MAMBA_HEADS, MAMBA_DIM, MAMBA_GROUPS, MAMBA_STATE, MAMBA_KERNEL);
    else
        dprintf(fd, "\"model_type\": \"llama\", \"tie_word_embeddings\": true}");
    close(fd);
    int rc = build(b, s, path, err);
    unlink(path);
    if (rc < 0)
        return rc;
    struct s2s_params *params = b->model->params;
    if ((rc = s2s_params_finish(params, err)) < 0)
        return rc;
    s2s_params_init(params, 1);
    const struct s2s_adamw_options adamw = S2S_ADAMW_OPTIONS_DEFAULT;
    if ((rc = s2s_optim_new(&b->optim, params, &adamw, 0, params->n_trained, err)) < 0)
        return rc;
    struct s2s_layout_spec ranks = S2S_LAYOUT_SPEC_INIT;
    ranks.size[S2S_AXIS_DP] = s2s_mesh_size(b->mesh);
    if ((rc = s2s_layout_init(&b->layout, b->mesh, &ranks, b->device, err)) < 0)
        return rc;
    const struct s2s_buckets_options gradients = {.layout = &b->layout, .overlap = true};
    const struct s2s_side_options side = {.layout = &b->layout,
                                          .buckets = s2s_buckets_new(b->model, &gradients)};
    s2s_side_init(&b->side, b->mesh, b->model, b->optim, &side);
    return 0;
}

static int run(const struct shape *s, int n_steps, enum s2s_dtype dtype, struct s2s_error *err)
{
    struct bench b = {0};
    struct s2s_batch batch;
    struct pack pack = {.encoder = NULL};
    new_pack(&pack, s);
    double *rates = s2s_xcalloc((size_t)n_steps, sizeof *rates);
    double flops = 0, wall = 0, cpu = 0, tokens = 0;
    int rc = s2s_mesh_open(&b.mesh, NULL, err);
    if (rc < 0)
        goto out;
    uint64_t at = 1000000 * (uint64_t)s2s_mesh_rank(b.mesh);
    if ((rc = s2s_device_open(&b.device, "cpu", err)) < 0 ||
        (rc = s2s_device_work_in(b.device, dtype, err)) < 0 || (rc = open_model(&b, s, err)) < 0)
        goto out;
    pack.encoder = s->hears ? s2s_salm_encoder(b.model) : NULL;
    struct speed peak = product_speed(b.device);
    for (int i = -1; i < n_steps; i++) {
        fill(&batch, &pack, s->tokens, &at);
        double start = s2s_now_s(), start_cpu = cpu_s();
        double all;
        if ((rc = step(&b, &batch, &all, err)) < 0)
            goto out;
        if (i < 0)
            continue; /* first touch of all memory */
        double t = s2s_now_s() - start;
        wall += t;
        cpu += cpu_s() - start_cpu;
        flops += step_flops(s, &batch);
        tokens += (double)batch.n_tokens;
        rates[i] = all / t;
    }
    struct rusage use; /* of the steps: the products below have operands of their own */
    getrusage(RUSAGE_SELF, &use);
    struct speed again = product_speed(b.device);
    peak = (struct speed){fmax(peak.wall, again.wall), fmax(peak.core, again.core)};
    qsort(rates, (size_t)n_steps, sizeof *rates, compare);
    if (s2s_mesh_rank(b.mesh) > 0)
        goto out;
    printf(
        "train %s %s params=%.1fM ranks=%d threads=%d tok/s median=%.0f best=%.0f per_cpu_s=%.0f "
        "gflops=%.0f product_gflops=%.0f share=%.2f cpu_share=%.2f "
        "tokens_per_step=%.0f tape_MiB=%.0f peakRSS_MiB=%.0f\n",
        s->name, dtype == S2S_BF16 ? "bf16-mixed" : "fp32",
        (double)b.model->params->n_trained / 1e6, s2s_mesh_size(b.mesh), omp_get_max_threads(),
        rates[n_steps / 2], rates[n_steps - 1], tokens / cpu, 1e-9 * flops / wall, peak.wall,
        1e-9 * flops / wall / peak.wall, 1e-9 * flops / cpu / peak.core, tokens / n_steps,
        (double)s2s_flow_peak_bytes(&b.side.flow) / 1048576, (double)use.ru_maxrss / 1024);
out:
    s2s_side_release(&b.side);
    s2s_optim_free(b.optim);
    s2s_model_free(b.model);
    s2s_device_close(b.device);
    s2s_mesh_close(b.mesh);
    free(rates);
    free_pack(&pack);
    return rc;
}

static const struct shape *find_shape(const char *name)
{
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        if (strcmp(shapes[i].name, name) == 0)
            return &shapes[i];
    return NULL;
}

int main(int argc, char **argv)
{
    struct s2s_error err = S2S_ERROR_INIT;
    static const enum s2s_dtype dtypes[] = {S2S_F32, S2S_BF16};
    static const char *const precisions[] = {"fp32", "bf16-mixed"};
    const char *wanted[] = {argc > 1 ? argv[1] : "llama50", argc > 1 ? NULL : "nemotron53",
                            argc > 1 ? NULL : "salm77"};
    int64_t n_steps = 4;
    if (argc > 2 && s2s_parse_i64(&n_steps, argv[2], 1, 1000, &err) < 0) {
        fprintf(stderr, "train_bench: %s\n", err.text);
        return 2;
    }
    for (int w = 0; w < 3 && wanted[w]; w++) {
        const struct shape *shape = find_shape(wanted[w]);
        if (!shape) {
            fprintf(stderr, "train_bench: no shape %s\n", wanted[w]);
            return 2;
        }
        for (int i = 0; i < 2; i++)
            if ((argc <= 3 || strcmp(argv[3], precisions[i]) == 0) &&
                run(shape, (int)n_steps, dtypes[i], &err) < 0) {
                fprintf(stderr, "train_bench: %s\n", err.text);
                return 1;
            }
    }
    return 0;
}
