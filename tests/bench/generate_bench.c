/*
 * Generation by a decoder of 50 million parameters: tokens a second of 1, 8 and 32 texts at once,
 * and the bytes of weights that a second goes through beside what this machine reads of memory in
 * the same run, which is the limit of one text.
 *
 *   generate_bench [PRECISION]     fp32 or bf16-mixed (default: one after the other)
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <omp.h>

#include "lib/base/base.h"
#include "lib/base/rng.h"
#include "lib/model/generate.h"
#include "tests/bench/product.h"

enum { VOCAB = 32000, PROMPT = 48, MAX_TEXTS = 32 };

static const char config[] =
    "{\"model_type\": \"llama\", \"vocab_size\": 32000, \"hidden_size\": 512,"
    " \"num_hidden_layers\": 10, \"num_attention_heads\": 8, \"intermediate_size\": 1536,"
    " \"tie_word_embeddings\": true}";

/* Bytes a second, and of one core, of sums over memory that no cache holds: the best of some. */
static struct speed read_speed(void)
{
    enum { N = 48 << 20 };
    float *x = s2s_xalloc_aligned((size_t)N * sizeof *x), sum = 0;
    double best = 1e30, best_cpu = 1e30;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < N; i++)
        x[i] = 1;
    for (int k = 0; k < 5; k++) {
        const double start = s2s_now_s(), start_cpu = cpu_s();
#pragma omp parallel for simd schedule(static) reduction(+ : sum)
        for (int64_t i = 0; i < N; i++)
            sum += x[i];
        best = fmin(best, s2s_now_s() - start);
        best_cpu = fmin(best_cpu, cpu_s() - start_cpu);
    }
    free(x);
    const double bytes = sum > 0 ? N * (double)sizeof *x : 0;
    return (struct speed){bytes / best, bytes / best_cpu};
}

static int open_model(struct s2s_model **model, struct s2s_device *device, struct s2s_error *err)
{
    char path[] = "/tmp/generate_bench.XXXXXX.json";
    const int fd = mkstemps(path, 5);
    if (fd < 0)
        return s2s_error_errno(err, S2S_E_IO, "%s", path);
    dprintf(fd, "%s", config);
    close(fd);
    const struct s2s_model_options options = {.config = path};
    int rc = s2s_model_open(model, device, NULL, NULL, &options, err);
    unlink(path);
    if (rc == 0 && (rc = s2s_params_finish((*model)->params, err)) == 0)
        s2s_params_init((*model)->params, 1);
    return rc;
}

/* Seconds, and those of all cores, that n_new tokens take after prompts of n texts. */
static int time_texts(double *seconds, double *cpu, struct s2s_model *model, int64_t n,
                      int64_t n_new, struct s2s_error *err)
{
    static int32_t ids[MAX_TEXTS * PROMPT], positions[MAX_TEXTS * PROMPT], cu[MAX_TEXTS + 1];
    struct s2s_generated out[MAX_TEXTS];
    for (int32_t i = 0; i < n * PROMPT; i++) {
        ids[i] = (int32_t)s2s_rng_below(1, (uint64_t)i, VOCAB);
        positions[i] = i % PROMPT;
        cu[i / PROMPT + 1] = (i / PROMPT + 1) * PROMPT;
    }
    const struct s2s_batch prompt = {.n_tokens = n * PROMPT,
                                     .n_seqs = n,
                                     .input_ids = ids,
                                     .position_ids = positions,
                                     .cu_seqlens = cu,
                                     .max_seqlen = PROMPT};
    const struct s2s_generate_options options = {.max_new_tokens = n_new};
    const double start = s2s_now_s(), start_cpu = cpu_s();
    const int rc = s2s_generate(out, model, &prompt, &options, err);
    *seconds = s2s_now_s() - start;
    *cpu = cpu_s() - start_cpu;
    s2s_generated_release(out, n);
    return rc;
}

static int run(enum s2s_dtype dtype, struct s2s_error *err)
{
    static const int64_t batches[] = {1, 8, MAX_TEXTS};
    enum { FEW = 4, MANY = 68 };
    struct s2s_device *device = NULL;
    struct s2s_model *model = NULL;
    const struct speed limit = read_speed();
    int rc = s2s_device_open(&device, "cpu", err);
    if (rc < 0 || (rc = s2s_device_work_in(device, dtype, err)) < 0 ||
        (rc = open_model(&model, device, err)) < 0)
        goto out;
    double bytes = 0; /* of weights that a token goes through: the embedding is the output layer */
    for (size_t i = 0; i < model->params->n; i++)
        bytes += (double)model->params->list[i]->numel * (double)s2s_dtype_size(dtype);
    for (size_t k = 0; k < sizeof batches / sizeof *batches; k++) {
        double few, many, few_cpu, many_cpu, best = 1e30, best_cpu = 1e30;
        for (int i = 0; i < 3; i++) {
            if ((rc = time_texts(&few, &few_cpu, model, batches[k], FEW, err)) < 0 ||
                (rc = time_texts(&many, &many_cpu, model, batches[k], MANY, err)) < 0)
                goto out;
            best = fmin(best, (many - few) / (MANY - FEW));
            best_cpu = fmin(best_cpu, (many_cpu - few_cpu) / (MANY - FEW));
        }
        printf("generate llama50 %s texts=%lld threads=%d tok/s=%.0f per_cpu_s=%.0f "
               "weights_GB/s=%.1f memory_GB/s=%.1f share=%.2f cpu_share=%.2f\n",
               dtype == S2S_BF16 ? "bf16-mixed" : "fp32", (long long)batches[k],
               omp_get_max_threads(), (double)batches[k] / best, (double)batches[k] / best_cpu,
               1e-9 * bytes / best, 1e-9 * limit.wall, bytes / best / limit.wall,
               bytes / best_cpu / limit.core);
    }
out:
    s2s_model_free(model);
    s2s_device_close(device);
    return rc;
}

int main(int argc, char **argv)
{
    static const enum s2s_dtype dtypes[] = {S2S_F32, S2S_BF16};
    static const char *const precisions[] = {"fp32", "bf16-mixed"};
    struct s2s_error err = S2S_ERROR_INIT;
    for (int i = 0; i < 2; i++)
        if ((argc < 2 || strcmp(argv[1], precisions[i]) == 0) && run(dtypes[i], &err) < 0) {
            fprintf(stderr, "generate_bench: %s\n", err.text);
            return 1;
        }
    return 0;
}
