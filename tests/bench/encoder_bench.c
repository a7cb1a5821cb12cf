/*
 * A training step (forward, backward, AdamW) of a FastConformer on packed clips: seconds of sound a
 * second, and the share of this machine's own fp32 product speed, measured in the same run.
 *
 *   encoder_bench [STEPS]
 *
 * 26.1 million parameters (256 wide, 16 blocks, subsampling by 8), clips of 10 s and clips of mixed
 * lengths (half a second to 30 s), some 80 s a step.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include <omp.h>

#include "lib/base/base.h"
#include "lib/base/rng.h"
#include "lib/conf/conf.h"
#include "lib/model/model.h"
#include "lib/optim/optim.h"
#include "tests/bench/fastconformer.h"
#include "tests/bench/product.h"

enum { MAX_CLIPS = 256, STEP_SECONDS = 80 };

struct bench {
    struct s2s_device *device;
    struct s2s_model *model;
    struct s2s_tape *tape;
    struct s2s_optim *optim;
    float *mel, *target;
    int64_t cu[MAX_CLIPS + 1];
    double forward_s, backward_s, optimizer_s;
};

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double duration_s(uint64_t i)
{
    double kind = s2s_rng_uniform_f64(1, i);
    float z;
    s2s_rng_fill_normal(&z, 1, 2, i, 0, 1);
    double d = kind < .25 ? exp(.5 + .5 * z) : kind < .7 ? exp(1.8 + .6 * z) : 14 + 2.5 * z;
    return d < .5 ? .5 : (d > 30 ? 30 : d);
}

static void draw(struct s2s_batch *batch, struct bench *b, bool fixed, uint64_t *at)
{
    int64_t n = 0;
    for (b->cu[0] = 0; n < MAX_CLIPS; n++) {
        int64_t frames = fixed ? 1000 : (int64_t)(100 * duration_s(*at));
        if (b->cu[n] + frames > 100 * STEP_SECONDS)
            break;
        b->cu[n + 1] = b->cu[n] + frames;
        ++*at;
    }
    *batch = (struct s2s_batch){.media = {{.n = n, .data = b->mel, .cu = b->cu, .width = N_MELS}},
                                .n_media = 1,
                                .target = b->target};
}

static int step(struct bench *b, const struct s2s_batch *batch, struct s2s_error *err)
{
    struct s2s_params *params = b->model->params;
    struct s2s_forward fwd = {.seed = 1e-3};
    double t0 = s2s_now_s();
    s2s_tape_reset(b->tape);
    s2s_params_zero_grads(params);
    s2s_model_forward(b->model, b->tape, batch, &fwd);
    double t1 = s2s_now_s();
    s2s_tape_backward(b->tape);
    double t2 = s2s_now_s();
    s2s_optim_step(b->optim, 1e-5, 0, 1);
    b->forward_s += t1 - t0;
    b->backward_s += t2 - t1;
    b->optimizer_s += s2s_now_s() - t2;
    return s2s_device_sync(b->device, err);
}

static int open_model(struct bench *b, struct s2s_error *err)
{
    struct s2s_conf *conf = NULL;
    int rc = s2s_conf_parse(&conf, encoder_config, strlen(encoder_config), "encoder", S2S_CONF_JSON,
                            err);
    if (rc < 0)
        return rc;
    struct s2s_model_options options = {.conf = conf};
    rc = s2s_model_open(&b->model, b->device, NULL, NULL, &options, err);
    s2s_conf_free(conf);
    if (rc < 0)
        return rc;
    struct s2s_params *params = b->model->params;
    if ((rc = s2s_params_finish(params, err)) < 0)
        return rc;
    s2s_params_init(params, 1);
    b->tape = s2s_tape_new(b->device, true);
    b->mel = s2s_xcalloc((size_t)(100 * STEP_SECONDS * N_MELS), sizeof *b->mel);
    b->target = s2s_xcalloc((size_t)((13 * STEP_SECONDS + MAX_CLIPS) * 256), sizeof *b->target);
    s2s_rng_fill_normal(b->mel, (size_t)(100 * STEP_SECONDS * N_MELS), 3, 0, 0, 1);
    const struct s2s_adamw_options adamw = S2S_ADAMW_OPTIONS_DEFAULT;
    return s2s_optim_new(&b->optim, params, &adamw, 0, params->n_trained, err);
}

static int run(struct bench *b, bool fixed, int n_steps, struct s2s_error *err)
{
    double *rates = s2s_xcalloc((size_t)n_steps, sizeof *rates), flops = 0, seconds = 0, sound = 0;
    double cpu = 0;
    uint64_t at = 0;
    int rc = 0;
    for (int i = -1; rc == 0 && i < n_steps; i++) {
        struct s2s_batch batch;
        draw(&batch, b, fixed, &at);
        if (i == 0)
            b->forward_s = b->backward_s = b->optimizer_s = 0;
        double start = s2s_now_s(), cpu_start = cpu_s();
        rc = step(b, &batch, err);
        double t = s2s_now_s() - start, s = 0.01 * (double)b->cu[batch.media[0].n];
        if (i < 0) /* fresh memory */
            continue;
        rates[i] = s / t;
        flops += encoder_flops(b->cu, batch.media[0].n);
        seconds += t;
        cpu += cpu_s() - cpu_start;
        sound += s;
    }
    if (rc == 0) {
        double peak = product_speed(b->device).wall;
        qsort(rates, (size_t)n_steps, sizeof *rates, compare);
        printf("%-14s %6.1f audio s/s median, %.1f best; %.2f GFLOP/audio s, %.0f of %.0f GFLOP/s "
               "(%.0f %%), %.1f audio s a cpu-second; forward %.0f %%, backward %.0f %%, optimizer "
               "%.0f %%\n",
               fixed ? "10 s clips" : "mixed lengths", rates[n_steps / 2], rates[n_steps - 1],
               flops / sound * 1e-9, flops / seconds * 1e-9, peak, flops / seconds * 1e-7 / peak,
               sound / cpu, 100 * b->forward_s / seconds, 100 * b->backward_s / seconds,
               100 * b->optimizer_s / seconds);
    }
    free(rates);
    return rc;
}

/* As s2s-encode does it: clips of 10 s, each by itself on one thread. */
static int run_inference(struct bench *b, int n_clips, struct s2s_error *err)
{
    struct s2s_tape *tape = s2s_tape_new(b->device, false);
    const int64_t cu[] = {0, 1000};
    const struct s2s_batch batch = {.media = {{.n = 1, .data = b->mel, .cu = cu, .width = N_MELS}},
                                    .n_media = 1};
    const int threads = b->device->queue.lanes;
    double cpu = 0;
    int rc = 0;
    b->device->queue.lanes = 1;
    for (int i = -1; rc == 0 && i < n_clips; i++) {
        struct s2s_forward fwd = {.seed = 0};
        double start = cpu_s();
        s2s_tape_reset(tape);
        s2s_model_forward(b->model, tape, &batch, &fwd);
        cpu += i < 0 ? 0 : cpu_s() - start;
    }
    b->device->queue.lanes = threads;
    s2s_tape_free(tape);
    if (rc == 0)
        printf("encoding alone: %.0f audio s a cpu-second\n", 10 * n_clips / cpu);
    return rc;
}

int main(int argc, char **argv)
{
    struct s2s_error err = S2S_ERROR_INIT;
    struct bench b = {.device = NULL};
    struct rusage usage;
    int n_steps = argc > 1 ? (int)strtol(argv[1], NULL, 10) : 5;
    n_steps = n_steps > 0 ? n_steps : 1;
    int rc = s2s_device_open(&b.device, "cpu", &err);
    if (rc == 0)
        rc = open_model(&b, &err);
    if (rc == 0)
        printf("FastConformer of %.1f million parameters, %d threads\n",
               1e-6 * (double)b.model->params->n_trained, omp_get_max_threads());
    for (int fixed = 1; rc == 0 && fixed >= 0; fixed--)
        rc = run(&b, fixed, n_steps, &err);
    if (rc == 0)
        rc = run_inference(&b, 10, &err);
    if (rc < 0)
        fprintf(stderr, "encoder_bench: %s\n", err.text);
    getrusage(RUSAGE_SELF, &usage);
    printf("peak memory %ld MiB\n", usage.ru_maxrss / 1024);
    s2s_tape_free(b.tape);
    s2s_optim_free(b.optim);
    s2s_model_free(b.model);
    s2s_device_close(b.device);
    free(b.mel);
    free(b.target);
    return rc < 0;
}
