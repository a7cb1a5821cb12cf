/* Reports of s2s-pack, as text and as JSON. */
#include "tools/pack/report.h"

#include <stdlib.h>

#include "lib/io/printout.h"

static double share(int64_t part, int64_t whole)
{
    return whole > 0 ? (double)part / (double)whole : 0;
}

/* Slots that there are: packs times capacity, or what the packs take. */
static int64_t slots_of(const struct pack_totals *t, const struct pack_plan *plan)
{
    return plan->capacity > 0 ? t->n_packs * plan->capacity : t->n_slots;
}

static double hours_of(const struct pack_totals *t, const struct pack_loader *loader)
{
    return (double)t->n_audio_samples / loader->mel_config.rate_hz / 3600;
}

static json_t *named(const struct pack_bad *list, size_t n)
{
    json_t *names = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(names,
                              json_pack("{s:s?, s:s}", "id", list[i].id, "reason", list[i].text));
    return names;
}

static json_t *places(const struct pack_few *few)
{
    json_t *out = json_array();
    for (int i = 0; i < PACK_N_NAMED && i < few->n; i++)
        json_array_append_new(out, json_string(few->names[i]));
    return out;
}

/* How many samples were left out for each fault that there was. */
static json_t *count_faults(const struct pack_plan *plan)
{
    json_int_t n[PACK_N_FAULTS] = {0};
    json_t *counts = json_object();
    for (size_t i = 0; i < plan->n_bad; i++)
        n[pack_fault_of(plan->bad[i].code)]++;
    for (size_t k = 0; k < PACK_N_FAULTS; k++)
        if (n[k] > 0)
            json_object_set_new(counts, pack_fault_names[k], json_integer(n[k]));
    return counts;
}

static json_t *report_json(const struct pack_totals *t, const struct pack_plan *plan,
                           const struct pack_loader *loader)
{
    json_t *report = json_object();
    json_object_set_new(report, "samples", json_integer(t->n_samples));
    json_object_set_new(report, "samples_read", json_integer(plan->n_read));
    json_object_set_new(report, "packs", json_integer(t->n_packs));
    if (plan->n_bound > 0)
        json_object_set_new(report, "packs_bound", json_integer(plan->n_bound));
    json_object_set_new(report, "tokens", json_integer(plan->capacity));
    json_object_set_new(report, "real_tokens", json_integer(t->n_tokens));
    json_object_set_new(report, "padding_tokens", json_integer(t->n_slots - t->n_tokens));
    json_object_set_new(report, "padded_batch_tokens", json_integer(t->n_padded_batch_slots));
    json_object_set_new(report, "fill", json_real(share(t->n_tokens, slots_of(t, plan))));
    json_object_set_new(report, "hours", json_real(hours_of(t, loader)));
    json_object_set_new(report, "skipped", named(plan->bad, plan->n_bad));
    json_object_set_new(report, "bad", count_faults(plan));
    json_object_set_new(report, "truncated_without_label",
                        named(plan->unlabelled, plan->n_unlabelled));
    json_object_set_new(report, "marked_skipme", json_integer(plan->n_marked));
    json_t *filtered = json_object();
    for (int i = PACK_KEPT + 1; i < N_PACK_FILTERED; i++)
        json_object_set_new(filtered, pack_filtered_names[i], json_integer(plan->n_filtered[i]));
    json_object_set_new(report, "filtered", filtered);
    json_object_set_new(report, "too_long",
                        json_pack("{s:I, s:I}", "skipped", (json_int_t)plan->n_too_long,
                                  "truncated", (json_int_t)plan->n_truncated));
    json_object_set_new(report, "warnings",
                        json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "first_token_supervised",
                                  (json_int_t)t->counts.first_supervised, "pad_id_labels_dropped",
                                  (json_int_t)t->counts.pad_labels, "pad_id_leading_stripped",
                                  (json_int_t)t->counts.pad_stripped, "sp_misaligned_packs",
                                  (json_int_t)t->counts.sp_misaligned, "shorter_than_manifest",
                                  (json_int_t)plan->shorter.n, "longer_than_manifest",
                                  (json_int_t)plan->longer.n, "silent",
                                  (json_int_t)plan->silent.n));
    json_object_set_new(report, "first",
                        json_pack("{s:o, s:o, s:o}", "shorter_than_manifest",
                                  places(&plan->shorter), "longer_than_manifest",
                                  places(&plan->longer), "silent", places(&plan->silent)));
    if (loader->duplex.on)
        json_object_set_new(report, "turns",
                            json_pack("{s:I, s:I, s:I, s:I}", "late", (json_int_t)plan->turns.late,
                                      "cut", (json_int_t)plan->turns.cut, "overrun",
                                      (json_int_t)plan->turns.overrun, "unfinished",
                                      (json_int_t)plan->turns.unfinished));
    json_object_set_new(report, "seconds",
                        json_pack("{s:f, s:f}", "plan", t->plan_s, "pack", t->pack_s));
    return report;
}

/* A warning, which it takes, and behind it where the first ones are. */
static void warn_few(const struct pack_few *few, char *what)
{
    struct s2s_buf text = S2S_BUF_INIT;
    s2s_buf_puts(&text, what);
    for (int i = 0; i < PACK_N_NAMED && i < few->n; i++)
        s2s_buf_printf(&text, "%s%s", i == 0 ? ": " : ", ", few->names[i]);
    s2s_warn("pack", "%s%s", text.data, few->n > PACK_N_NAMED ? ", .." : "");
    s2s_buf_release(&text);
    free(what);
}

/* Each kind of surprise once, with its number. */
static void warn_counts(const struct pack_totals *t, const struct pack_plan *plan,
                        const struct pack_options *opt)
{
    const struct s2s_salm_counts *c = &t->counts;
    if (c->first_supervised)
        s2s_warn("pack",
                 "%lld utterances begin with a token to be predicted: a padded batch would train "
                 "padding to predict it, a packed one does not",
                 (long long)c->first_supervised);
    if (c->pad_labels || c->pad_stripped)
        s2s_warn(
            "pack",
            "%lld tokens to be predicted are the padding's id and got no label, %lld more were "
            "stripped from the left; --pad-labels keep gives them labels, a --pad-id that is no "
            "eos or unk keeps them in front",
            (long long)c->pad_labels, (long long)c->pad_stripped);
    if (c->sp_misaligned)
        s2s_warn(
            "pack",
            "%lld packs have T / cp that is no multiple of tp = %d, which sequence parallelism "
            "needs: --strict-sp makes it one",
            (long long)c->sp_misaligned, opt->tp_size);
    if (plan->silent.n)
        warn_few(&plan->silent,
                 s2s_xasprintf("%lld clips are silent (--bad silent=skip leaves them out)",
                               (long long)plan->silent.n));
    if (plan->shorter.n)
        warn_few(
            &plan->shorter,
            s2s_xasprintf("%lld files are up to %g s shorter than their manifest says; what is "
                          "there is used (--duration-tolerance)",
                          (long long)plan->shorter.n, opt->tolerance_s));
    if (plan->n_unlabelled)
        s2s_warn("pack", "%zu samples are cut so that nothing in them is predicted",
                 plan->n_unlabelled);
    if (plan->turns.late)
        s2s_warn("pack", "%lld turns begin behind the end of their cut, and are left out",
                 (long long)plan->turns.late);
    if (plan->turns.cut)
        s2s_warn("pack", "%lld turns have more text than frames to the end of their cut: it is cut",
                 (long long)plan->turns.cut);
    if (plan->turns.overrun)
        s2s_warn("pack", "%lld turns have more text than frames: %s",
                 (long long)plan->turns.overrun,
                 opt->duplex.drop_overrun ? "they are left out"
                                          : "eos stands in it (--overrun drop leaves them out)");
    if (plan->longer.n)
        warn_few(
            &plan->longer,
            s2s_xasprintf("%lld files are longer than their manifest says; all of each is used",
                          (long long)plan->longer.n));
}

static int64_t filtered_of(const struct pack_plan *plan)
{
    int64_t n = 0;
    for (int i = PACK_KEPT + 1; i < N_PACK_FILTERED; i++)
        n += plan->n_filtered[i];
    return n;
}

static void say_last_line(const struct pack_totals *t, const struct pack_plan *plan,
                          const struct pack_loader *loader)
{
    fprintf(stderr,
            "s2s-pack: %lld samples (%.2f h) in %lld packs, %lld tokens, fill %.2f %%; padding "
            "%.2f %%, as padded batches %.2f %%; %zu bad, %lld too long, %lld truncated, %lld "
            "filtered; %.1f s, "
            "%lld MiB\n",
            (long long)t->n_samples, hours_of(t, loader), (long long)t->n_packs,
            (long long)t->n_tokens, 100 * share(t->n_tokens, slots_of(t, plan)),
            100 * share(t->n_slots - t->n_tokens, t->n_slots),
            100 * share(t->n_padded_batch_slots - t->n_tokens, t->n_padded_batch_slots),
            plan->n_bad, (long long)plan->n_too_long, (long long)plan->n_truncated,
            (long long)filtered_of(plan), t->plan_s + t->pack_s,
            (long long)s2s_peak_memory_bytes() >> 20);
}

static void print_text(const struct pack_totals *t, const struct pack_plan *plan,
                       const struct pack_loader *loader)
{
    printf("samples\t%lld\npacks\t%lld\nreal_tokens\t%lld\npadding_tokens\t%lld\n"
           "padded_batch_tokens\t%lld\nfill\t%.6f\nhours\t%.4f\nskipped\t%zu\ntoo_long\t%lld\n"
           "truncated\t%lld\nfiltered\t%lld\n",
           (long long)t->n_samples, (long long)t->n_packs, (long long)t->n_tokens,
           (long long)(t->n_slots - t->n_tokens), (long long)t->n_padded_batch_slots,
           share(t->n_tokens, slots_of(t, plan)), hours_of(t, loader), plan->n_bad,
           (long long)plan->n_too_long, (long long)plan->n_truncated, (long long)filtered_of(plan));
}

static int save(struct s2s_outfile *out, const char *text, struct s2s_error *err)
{
    int rc = s2s_outfile_write(out, text, strlen(text), err);
    if (rc == 0)
        rc = s2s_outfile_write(out, "\n", 1, err);
    if (rc == 0)
        return s2s_outfile_commit(out, err);
    s2s_outfile_abort(out);
    return rc;
}

int pack_report(const struct pack_totals *t, const struct pack_plan *plan,
                const struct pack_loader *loader, const struct pack_options *opt,
                struct s2s_outfile *report, struct s2s_error *err)
{
    json_t *json = report_json(t, plan, loader);
    char *text = json_dumps(json, JSON_INDENT(2) | JSON_REAL_PRECISION(12));
    const bool stdout_is_free = opt->plan || (opt->common.out && strcmp(opt->common.out, "-") != 0);
    struct s2s_printout to = {.out = NULL};
    int rc = report ? save(report, text, err) : 0;
    if (rc == 0 && opt->plan) /* else OUT is the stream */
        rc = s2s_printout_begin(&to, opt->common.out, err);
    if (rc == 0 && opt->common.json && stdout_is_free)
        puts(text);
    else if (rc == 0 && opt->plan)
        print_text(t, plan, loader);
    rc = s2s_printout_end(&to, rc, err);
    warn_counts(t, plan, opt);
    if (rc == 0 && opt->common.verbosity >= 0)
        say_last_line(t, plan, loader);
    free(text);
    json_decref(json);
    return rc;
}
