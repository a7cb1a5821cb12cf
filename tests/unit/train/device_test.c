/*
 * What a model does to the memory of a device: nothing, but through the table of kernels. Whole
 * steps, evaluations and generations on tables that guard, measure and count.
 */
#include <dlfcn.h>
#include <omp.h>

#include "kernels/count/count.h"
#include "kernels/profile/profile.h"
#include "tests/unit/kernels/guard_table.h"
#include "tests/unit/train/step.h"

enum { N_STEPS = 3, N_NEW = 4 };

static struct s2s_device *device_over(const struct s2s_kernels *table)
{
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_device *device;
    if (s2s_device_new(&device, table, &err) < 0)
        fail_msg("%s", err.text);
    return device;
}

/* Everything that runs a model: what came out of it. */
struct seen {
    double steps[N_STEPS][2];
    double loss, hits; /* of an evaluation */
    int32_t *ids;      /* that were generated */
    size_t n_ids;
};

static void evaluate(struct step_run *run, struct seen *seen)
{
    struct s2s_tape *tape = s2s_tape_new(run->device, false);
    struct s2s_forward fwd = {.want_hits = true};
    s2s_model_forward(run->model, tape, &run->batch, &fwd);
    seen->loss = s2s_tensor_scalar(fwd.loss);
    seen->hits = s2s_tensor_scalar(fwd.hits);
    s2s_tape_free(tape);
}

static void generate(struct step_run *run, struct seen *seen)
{
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_generate_options options = {.max_new_tokens = N_NEW};
    struct s2s_batch prompt = run->batch;
    prompt.n_seqs = 1;
    prompt.n_tokens = prompt.max_seqlen = run->cu[1];
    prompt.labels = NULL;
    if (prompt.n_media)
        prompt.media[0].n = 1;
    struct s2s_generated out;
    if (s2s_generate(&out, run->model, &prompt, &options, &err) < 0)
        fail_msg("%s", err.text);
    seen->ids = out.ids;
    seen->n_ids = out.n;
}

static struct seen run_all(const struct step_case *how, const struct s2s_kernels *table)
{
    struct seen seen = {.loss = 0};
    struct step_run *run = step_open(how, device_over(table));
    for (int i = 0; i < N_STEPS; i++)
        step_do(run, seen.steps[i]);
    evaluate(run, &seen);
    generate(run, &seen);
    step_close(run);
    return seen;
}

static void only_kernels_touch_the_memory_of_a_device(void **state)
{
    for (int c = 0; c < STEP_CASES; c++) {
        struct seen plain = run_all(&step_cases[c], &s2s_kernels_cpu);
        struct seen guarded = run_all(&step_cases[c], &guard_table);
        assert_true(plain.steps[0][0] > 0 && plain.steps[0][1] > 0);
        assert_memory_equal(plain.steps, guarded.steps, sizeof plain.steps);
        assert_true(plain.loss > 0 && plain.loss == guarded.loss && plain.hits == guarded.hits);
        assert_int_equal(plain.n_ids, N_NEW);
        assert_int_equal(guarded.n_ids, N_NEW);
        assert_memory_equal(plain.ids, guarded.ids, N_NEW * sizeof *plain.ids);
        free(plain.ids);
        free(guarded.ids);
    }
}

/* ---- waits ---- */

static int64_t n_waits(const struct s2s_profile *profile)
{
    const struct s2s_tally *tally = s2s_profile_tally(profile);
    return s2s_tally_sum(tally, S2S_ENTRY_copy_out).calls +
           s2s_tally_sum(tally, S2S_ENTRY_sync).calls;
}

static struct s2s_profile *measure(struct step_run *run)
{
    struct s2s_profile *profile = s2s_profile_new(run->device->kernels, &run->device->queue);
    run->device->kernels = s2s_profile_table(profile);
    s2s_profile_step(profile, 1);
    return profile;
}

static void stop_measuring(struct step_run *run, struct s2s_profile *profile)
{
    s2s_profile_step_end(profile);
    run->device->kernels = s2s_profile_free(profile);
}

static void neither_forward_nor_backward_waits(void **state)
{
    for (int c = 0; c < STEP_CASES; c++) {
        struct step_run *run = step_open(&step_cases[c], device_over(&s2s_kernels_cpu));
        struct s2s_profile *profile = measure(run);
        struct s2s_forward fwd = {
            .seed = 1.0 / STEP_TOKENS, .recompute = run->how->recompute, .want_hits = true};
        struct s2s_tape *tape = s2s_tape_new(run->device, true);
        s2s_params_zero_grads(run->model->params);
        s2s_model_forward(run->model, tape, &run->batch, &fwd);
        assert_int_equal(n_waits(profile), 0);
        s2s_tape_backward(tape);
        assert_int_equal(n_waits(profile), 0);
        s2s_tensor_scalar(fwd.loss);
        assert_int_equal(n_waits(profile), 1);
        s2s_tape_free(tape);
        stop_measuring(run, profile);
        step_close(run);
    }
}

static void t3_a_step_of_any_microbatches_waits_once(void **state)
{
    for (int c = 0; c < STEP_CASES; c++) {
        struct step_run *run = step_open(&step_cases[c], device_over(&s2s_kernels_cpu));
        double out[2];
        step_do(run, out);
        struct s2s_profile *profile = measure(run);
        step_do(run, out);
        assert_int_equal(n_waits(profile), 1);
        stop_measuring(run, profile);
        step_close(run);
    }
}

/* What kernels/cuda/emu/rt.cc counts: calls of the runtime, under the GPU's table. */
struct emu_calls {
    uint64_t waits, allocs, host_allocs;
};

static void a_gpu_waits_once_a_step_and_allocates_in_the_first_two(void **state)
{
    static const int cases[] = {0, 5}; /* a language model, and a speech model */
    const struct s2s_kernels *table;
    struct s2s_error err = S2S_ERROR_INIT;
    setenv("S2S_CUDA", "libs2s-emu.so", 1);
    if (s2s_device_kernels(&table, "cuda", &err) < 0)
        fail_msg("%s", err.text);
    void *lib = dlopen("libs2s-emu.so", RTLD_NOW | RTLD_NOLOAD);
    assert_non_null(lib);
    void (*calls_so_far)(struct emu_calls *);
    *(void **)&calls_so_far = dlsym(lib, "emu_calls_so_far");
    assert_non_null(calls_so_far);
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct step_run *run = step_open(&step_cases[cases[c]], device_over(table));
        struct emu_calls before, after;
        double out[2];
        step_do(run, out);
        calls_so_far(&before);
        assert_true(before.allocs > 0 && before.host_allocs > 0);
        step_do(run, out);
        calls_so_far(&after);
        assert_int_equal(after.waits - before.waits, 1);
        step_do(run, out);
        calls_so_far(&before);
        assert_int_equal(before.waits - after.waits, 1);
        assert_int_equal(before.allocs, after.allocs);
        assert_int_equal(before.host_allocs, after.host_allocs);
        step_close(run);
    }
    dlclose(lib);
}

/* ---- counting ---- */

/* Bytes at most in use, part by part. */
static void copy_peaks(const struct step_run *run, size_t peaks[4])
{
    const struct s2s_device *device = run->device;
    peaks[0] = s2s_flow_peak_bytes(&run->side.flow);
    peaks[1] = device->pool.peak_bytes;
    peaks[2] = device->scratch.peak_bytes;
    peaks[3] = 0;
    for (int i = 0; i < device->n_children; i++)
        peaks[3] += s2s_tape_peak_bytes(device->children[i]);
}

static void same_tallies(const struct s2s_tally *real, const struct s2s_tally *counted)
{
    assert_int_equal(real->n, counted->n);
    for (size_t i = 0; i < real->n; i++) {
        const struct s2s_tally_row *a = &real->rows[i], *b = &counted->rows[i];
        assert_int_equal(a->entry, b->entry);
        assert_string_equal(a->layer, b->layer);
        if (a->calls != b->calls || memcmp(&a->cost, &b->cost, sizeof a->cost) != 0)
            fail_msg("%s of %s: %lld calls and %g operations, counted %lld and %g",
                     s2s_entry_name(a->entry), a->layer, (long long)a->calls, a->cost.flops,
                     (long long)b->calls, b->cost.flops);
    }
}

/* A step that is measured on the CPU and one that is only counted. */
static void counts_as_measured(const struct step_case *how, int lanes)
{
    struct s2s_kernels table = s2s_count_over(&s2s_kernels_cpu);
    struct step_run *real = step_open(how, device_over(&s2s_kernels_cpu));
    struct step_run *counted = step_open(how, device_over(&table));
    struct s2s_count *count = s2s_count_of(&counted->device->queue);
    size_t real_peaks[4], counted_peaks[4];
    double out[2];
    real->device->queue.lanes = counted->device->queue.lanes = lanes;
    struct s2s_profile *profile = measure(real);
    s2s_tally_reset(&count->tally);
    step_do(real, out);
    assert_true(out[0] > 0 && out[1] > 0);
    step_do(counted, out);
    assert_true(out[0] == 0 && out[1] == 0);
    /* rows of what was loaded come first, with sums of 0 */
    struct s2s_tally called = {0};
    for (size_t i = 0; i < count->tally.n; i++)
        if (count->tally.rows[i].calls > 0) {
            const struct s2s_tally_row *row = &count->tally.rows[i];
            struct s2s_tally_row *to = s2s_tally_row(&called, row->entry, row->layer);
            to->calls = row->calls;
            to->cost = row->cost;
        }
    same_tallies(s2s_profile_tally(profile), &called);
    for (size_t i = 0; i < called.n; i++)
        if (called.rows[i].entry == S2S_ENTRY_adamw)
            assert_string_equal(called.rows[i].layer, "optimizer");
    s2s_tally_release(&called);
    copy_peaks(real, real_peaks);
    copy_peaks(counted, counted_peaks);
    assert_memory_equal(real_peaks, counted_peaks, sizeof real_peaks);
    assert_int_equal(real_peaks[3] > 0, how->recompute);
    stop_measuring(real, profile);
    step_close(real);
    step_close(counted);
}

static void a_counted_step_calls_and_needs_what_a_real_one_does(void **state)
{
    for (int c = 0; c < STEP_CASES; c++)
        for (int lanes = 1; lanes <= 3; lanes += 2)
            counts_as_measured(&step_cases[c], lanes);
}

/* The name of a layer is the tape's, which may have given its memory back. */
static void a_queue_forgets_the_layers_of_a_tape(void **state)
{
    struct step_run *run = step_open(&step_cases[0], device_over(&s2s_kernels_cpu));
    struct s2s_tape *tape = s2s_tape_new(run->device, true);
    struct s2s_forward fwd = {.seed = 1};
    s2s_model_forward(run->model, tape, &run->batch, &fwd);
    assert_string_equal(run->device->queue.layer, "lm_head");
    s2s_tape_free(tape);
    assert_null(run->device->queue.layer);
    step_close(run);
}

/* The products of a decoder: 6 operations a weight and token forward and backward, and 2 more where
 * layers run again. */
static void products_are_six_operations_a_weight_and_token(void **state)
{
    for (int again = 0; again < 2; again++) {
        const struct step_case how = {"tests/oracle/models/llama_gqa_untied", again == 1, false};
        struct s2s_kernels table = s2s_count_over(&s2s_kernels_cpu);
        struct step_run *run = step_open(&how, device_over(&table));
        struct s2s_count *count = s2s_count_of(&run->device->queue);
        double out[2], layers = 0, head = 0;
        int64_t n_labels = s2s_batch_n_labels(&run->batch);
        for (size_t i = 0; i < run->model->params->n; i++) {
            const struct s2s_param *p = run->model->params->list[i];
            if (strstr(p->name, ".layers.") && p->n_dims == 2)
                layers += (double)p->numel;
            if (strstr(p->name, "lm_head"))
                head += (double)p->numel;
        }
        s2s_tally_reset(&count->tally);
        step_do(run, out);
        const double want =
            2 * ((6 + 2 * again) * layers * STEP_TOKENS + 6 * head * (double)n_labels);
        assert_true(layers > 0 && head > 0);
        assert_true(s2s_tally_sum(&count->tally, S2S_ENTRY_gemm).cost.flops == want);
        step_close(run);
    }
}

int main(void)
{
    omp_set_num_threads(2);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_kernels_touch_the_memory_of_a_device),
        cmocka_unit_test(neither_forward_nor_backward_waits),
        cmocka_unit_test(t3_a_step_of_any_microbatches_waits_once),
        cmocka_unit_test(a_gpu_waits_once_a_step_and_allocates_in_the_first_two),
        cmocka_unit_test(a_counted_step_calls_and_needs_what_a_real_one_does),
        cmocka_unit_test(a_queue_forgets_the_layers_of_a_tape),
        cmocka_unit_test(products_are_six_operations_a_weight_and_token),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
