/* The report at the end of a job: what was written, how fast, and what was left out. */
#include <limits.h>

#include "lib/base/utf8.h"
#include "tools/ckpt/job_internal.h"

const char *const ckpt_output_names[] = {"hf", "torch_dist", "safetensors", "nemo", NULL};

/* Name of the output format: "hf". */
static const char *format_of(const struct job *job)
{
    return job->how.dcp ? "dcp" : ckpt_output_names[job->to - TO_HF];
}

/* "; left out: ..", or "". Gives: free. */
static char *left_out_text(const struct ckpt_left_out *left)
{
    struct s2s_buf text = S2S_BUF_INIT;
    if (left->n_unused)
        s2s_buf_printf(&text, ", %zu unused tensor%s", left->n_unused, s2s_plural(left->n_unused));
    if (left->n_dropped)
        s2s_buf_printf(&text, ", %zu dropped by the name map", left->n_dropped);
    if (left->n_state)
        s2s_buf_printf(&text, ", %zu tensor%s of optimizer and other state", left->n_state,
                       s2s_plural(left->n_state));
    if (left->n_objects)
        s2s_buf_printf(&text, ", %zu byte object%s", left->n_objects, s2s_plural(left->n_objects));
    if (left->n_unread)
        s2s_buf_printf(&text, ", the unread tensors of %zu object%s", left->n_unread,
                       s2s_plural(left->n_unread));
    if (left->n_ranks)
        s2s_buf_printf(&text, ", the optimizer of %zu rank folder%s", left->n_ranks,
                       s2s_plural(left->n_ranks));
    if (left->n_values)
        s2s_buf_printf(&text, ", %zu value%s of rank folders", left->n_values,
                       s2s_plural(left->n_values));
    if (left->rows_cut)
        s2s_buf_printf(&text, ", %lld row%s past the vocabulary", (long long)left->rows_cut,
                       s2s_plural((size_t)left->rows_cut));
    if (left->common)
        s2s_buf_puts(&text, ", the common state");
    char *out = s2s_xasprintf("%s%s", text.len ? "; left out: " : "",
                              text.len ? text.data + strlen(", ") : "");
    s2s_buf_release(&text);
    return out;
}

/* The format, and the name map, which is detected if it is not given. */
static void print_form(const struct job *job, const char *separator)
{
    printf("%s\"format\": \"%s\"%s\"map\": ", separator, format_of(job), separator);
    if (*job->family)
        ckpt_print_json_text(job->family);
    else
        fputs("null", stdout);
}

static void print_left_out(const struct ckpt_left_out *left)
{
    printf("{\"unused_tensors\": %zu, \"dropped_tensors\": %zu, \"state_tensors\": %zu, "
           "\"objects\": %zu, \"objects_with_unread_tensors\": %zu, \"rank_optimizers\": %zu, "
           "\"rank_values\": %zu, \"vocabulary_rows\": %lld, \"common_state\": %s, \"names\": {",
           left->n_unused, left->n_dropped, left->n_state, left->n_objects, left->n_unread,
           left->n_ranks, left->n_values, (long long)left->rows_cut,
           left->common ? "true" : "false");
    for (size_t i = 0; i < left->n_kinds; i++) {
        printf("%s", i ? ", " : "");
        ckpt_print_json_text(left->kinds[i].name);
        printf(": %zu", left->kinds[i].n);
    }
    printf("}, \"more_names\": %zu}", left->n_of_others);
}

static void print_done(const struct job *job, const struct ckpt_left_out *left, double seconds)
{
    printf("{\"out\": ");
    ckpt_print_json_text(job->opt->out);
    print_form(job, ", ");
    printf(", \"tensors\": %zu, \"bytes\": %lld, \"seconds\": %.3f, "
           "\"peak_memory_bytes\": %lld, \"infinite_values\": %lld, \"left_out\": ",
           job->n_tensors, (long long)job->bytes, seconds, (long long)s2s_peak_memory_bytes(),
           (long long)job->n_infinite);
    print_left_out(left);
    fputs(", ", stdout);
    ckpt_print_warnings();
    puts("}");
}

/* The rest of the --plan report, after the tensors, which were printed as they were planned. */
static void print_planned(const struct job *job, const struct ckpt_left_out *left)
{
    fputs(job->n_shown ? "\n  ]" : "{\n  \"tensors\": []", stdout);
    print_form(job, ",\n  ");
    fputs(",\n  \"out\": ", stdout);
    ckpt_print_json_text(job->opt->out);
    fputs(",\n  \"left_out\": ", stdout);
    print_left_out(left);
    fputs(",\n  ", stdout);
    ckpt_print_warnings();
    puts("\n}");
}

/* Prints the names behind the counts, except unused weights, about which there was a warning; all:
 * they were logged one by one. */
static void print_names(const struct ckpt_left_out *left, bool all)
{
    enum { N_SHOWN = 8 };
    char name[4 * sizeof left->kinds->name];
    size_t n_more = left->n_more_told;
    for (size_t i = 0; i < left->n_kinds_told; i++) {
        if (i >= N_SHOWN) {
            n_more += left->kinds[i].n;
            continue;
        }
        s2s_utf8_show_text(name, sizeof name, left->kinds[i].name);
        fprintf(stderr, "%s%s (%zu)", i ? ", " : "s2s-ckpt: left out: ", name, left->kinds[i].n);
    }
    if (n_more)
        fprintf(stderr, " and %zu more", n_more);
    if (left->n_kinds_told)
        fputs(all ? "\n" : " (-v: every name)\n", stderr);
}

/* Was a Hugging Face folder converted to torch_dist without --map? That is easily forgotten, and
 * the result looks like Megatron's. */
static bool kept_hf_names(const struct job *job)
{
    const struct ckpt_job_options *opt = job->opt;
    const bool is_convert = !opt->reshard && !opt->only_weights; /* the other commands have no --map
                                                                  */
    return job->to == TO_TORCH_DIST && is_convert && !opt->map &&
           s2s_starts_with(s2s_ckpt_format(job->ckpt), "hf");
}

void ckpt_job_say_done(const struct job *job, double start_s)
{
    char bytes[32], rate[32];
    double seconds = s2s_now_s() - start_s;
    ckpt_warnings_share();
    if (!ckpt_is_first())
        return;
    struct ckpt_left_out left;
    ckpt_job_left_out(&left, job);
    if (job->opt->common.json && job->opt->plan)
        print_planned(job, &left);
    else if (job->opt->common.json)
        print_done(job, &left, seconds);
    if (job->opt->common.verbosity < 0)
        return;
    print_names(&left, job->opt->common.verbosity > 0);
    char *rest = left_out_text(&left), out[PATH_MAX];
    s2s_utf8_show_text(out, sizeof out, job->opt->out);
    fprintf(stderr, "s2s-ckpt: %s: %zu tensor%s, %s", out, job->n_tensors,
            s2s_plural(job->n_tensors), ckpt_bytes_text(bytes, job->bytes));
    if (!job->opt->plan)
        fprintf(stderr, " in %.2f s (%s/s), peak memory %lld MiB", seconds,
                ckpt_bytes_text(rate, (int64_t)((double)job->bytes / (seconds > 0 ? seconds : 1))),
                (long long)s2s_peak_memory_bytes() >> 20);
    if (job->n_infinite)
        fprintf(stderr, "; %lld value%s became infinite", (long long)job->n_infinite,
                s2s_plural((size_t)job->n_infinite));
    fprintf(stderr, "%s%s%s\n", job->opt->plan ? " would be written" : "", rest,
            kept_hf_names(job) ? "; names kept as they are (--map NAME gives Megatron's)" : "");
    free(rest);
}
