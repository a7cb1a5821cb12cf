/* Writes the logs of a run, and cuts them back on resume. */
#include "lib/train/runlog.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "lib/base/base.h"
#include "lib/base/utf8.h"
#include "lib/io/outfile.h"
#include "lib/train/blame.h"
#include "lib/train/events.h"

struct s2s_runlog {
    char *path, *eval_path;
    FILE *file, *eval;
    struct s2s_events *events;
};

/* The step of a line; -1 when it is none (the torn last line of a killed run). */
static int64_t line_step(const char *line)
{
    json_t *value = json_loads(line, 0, NULL);
    const json_t *step = json_object_get(value, "step");
    int64_t n = json_is_integer(step) ? json_integer_value(step) : -1;
    json_decref(value);
    return n;
}

/* Keeps the lines up to `step`, and counts those of that step; the file is replaced only when
 * something goes. */
static int truncate_log(const char *path, int64_t step, size_t *n_last, struct s2s_error *err)
{
    FILE *in = fopen(path, "re");
    *n_last = 0;
    if (!in)
        return errno == ENOENT ? 0 : s2s_error_errno(err, S2S_E_OPEN, "%s", path);
    struct s2s_buf keep = S2S_BUF_INIT;
    char *line = NULL;
    size_t cap = 0;
    ssize_t len;
    bool dropped = false;
    while ((len = s2s_xgetline(&line, &cap, in)) > 0) {
        int64_t at = line[len - 1] == '\n' ? line_step(line) : -1;
        if (at >= 0 && at <= step)
            s2s_buf_add(&keep, line, (size_t)len);
        else
            dropped = true;
        *n_last += at == step;
    }
    free(line);
    fclose(in);
    int rc = 0;
    if (dropped) {
        struct s2s_outfile *out = NULL;
        rc = s2s_outfile_open(&out, path, err);
        if (rc == 0 && keep.len > 0 &&
            (rc = s2s_outfile_write(out, keep.data, keep.len, err)) < 0) {
            s2s_outfile_abort(out);
            out = NULL;
        }
        if (rc == 0)
            rc = s2s_outfile_commit(out, err);
    }
    s2s_buf_release(&keep);
    return rc;
}

static int open_append(FILE **file, const char *path, struct s2s_error *err)
{
    *file = fopen(path, "ae");
    return *file ? 0 : s2s_error_errno(err, S2S_E_OPEN, "%s", path);
}

int s2s_runlog_open(struct s2s_runlog **out, const char *dir, int64_t step, size_t n_sets,
                    bool *evaluated, struct s2s_error *err)
{
    size_t n = 0;
    struct s2s_runlog *log = s2s_xcalloc(1, sizeof *log);
    log->path = s2s_xasprintf("%s/log.jsonl", dir);
    log->eval_path = s2s_xasprintf("%s/eval.jsonl", dir);
    int rc = truncate_log(log->path, step, &n, err);
    if (rc == 0)
        rc = truncate_log(log->eval_path, step, &n, err);
    *evaluated = n >= n_sets;
    if (rc == 0 && !*evaluated && n > 0) /* some of the sets: all are done again */
        rc = truncate_log(log->eval_path, step - 1, &n, err);
    if (rc == 0)
        rc = open_append(&log->file, log->path, err);
    if (rc == 0)
        rc = s2s_events_open(&log->events, dir, step + 1, err);
    if (rc < 0) {
        s2s_runlog_close(log, NULL);
        return rc;
    }
    *out = log;
    return 0;
}

static int finish_line(FILE *file, const char *path, struct s2s_error *err)
{
    return ferror(file) || fflush(file) != 0 ? s2s_error_errno(err, S2S_E_IO, "%s", path) : 0;
}

/* JSON has no NaN. */
static void put_number(FILE *to, const char *key, double value)
{
    if (isfinite(value))
        fprintf(to, ", \"%s\": %.9g", key, value);
    else
        fprintf(to, ", \"%s\": null", key);
}

static json_t *suspect_json(const struct s2s_suspect *one)
{
    const double loss = one->loss / (double)one->n_labels;
    char *id = s2s_utf8_mend(one->id), *place = s2s_utf8_mend(one->place); /* cut at some byte */
    json_t *json = json_pack("{s:s, s:s, s:o, s:I}", "id", id, "record", place, "loss",
                             isfinite(loss) ? json_real(loss) : json_null(), "labels",
                             (json_int_t)one->n_labels);
    free(id);
    free(place);
    return json;
}

static void put_blame(FILE *to, const struct s2s_blame *blame, const char *answer)
{
    json_t *samples = json_array();
    for (int i = 0; i < blame->n && (blame->n_bad == 0 || i < blame->n_bad); i++)
        json_array_append_new(samples, suspect_json(&blame->list[i]));
    char *where = s2s_utf8_mend(blame->where);
    json_t *all =
        json_pack("{s:s, s:s, s:s?, s:I, s:o}", "kind",
                  blame->trouble == S2S_TROUBLE_NAN ? "nan" : "spike", "answer", answer, "where",
                  where, "bad_samples", (json_int_t)blame->n_bad, "samples", samples);
    char *text = json_dumps(all, JSON_REAL_PRECISION(9));
    fprintf(to, ", \"trouble\": %s", text ? text : "null");
    free(where);
    free(text);
    json_decref(all);
}

int s2s_runlog_add(struct s2s_runlog *log, const struct s2s_runlog_step *l, struct s2s_error *err)
{
    static const char *const tags[] = {"train/loss", "train/grad_norm", "train/lr",
                                       "train/tokens_per_s", "train/step_s"};
    const float values[] = {(float)l->loss, (float)l->grad_norm, (float)l->lr,
                            (float)l->tokens_per_s, (float)l->step_s};
    fprintf(log->file, "{\"step\": %lld, \"samples\": %lld, \"tokens\": %lld", (long long)l->step,
            (long long)l->samples, (long long)l->tokens);
    put_number(log->file, "loss", l->loss);
    put_number(log->file, "grad_norm", l->grad_norm);
    fprintf(log->file,
            ", \"lr\": %.9g, \"tokens_per_s\": %.6g, \"step_s\": %.6g, \"peak_bytes\": %lld", l->lr,
            l->tokens_per_s, l->step_s, (long long)l->peak_bytes);
    if (l->balanced)
        fprintf(log->file, ", \"moe_balance\": %.9g, \"moe_z\": %.9g", l->balance, l->square);
    if (l->blame)
        put_blame(log->file, l->blame, l->answer);
    fprintf(log->file, "}\n");
    int rc = finish_line(log->file, log->path, err);
    return rc < 0 ? rc
                  : s2s_events_add(log->events, l->step, tags, values,
                                   sizeof values / sizeof *values, err);
}

int s2s_runlog_eval(struct s2s_runlog *log, int64_t step, const char *name, double loss,
                    double token_accuracy, double wer, struct s2s_error *err)
{
    int rc = log->eval ? 0 : open_append(&log->eval, log->eval_path, err);
    if (rc < 0)
        return rc;
    json_t *text = json_string(name);
    char *quoted = text ? json_dumps(text, JSON_ENCODE_ANY) : NULL;
    fprintf(log->eval, "{\"step\": %lld, \"set\": %s, \"loss\": %.9g, \"token_accuracy\": %.9g",
            (long long)step, quoted ? quoted : "\"?\"", loss, token_accuracy);
    if (wer >= 0)
        fprintf(log->eval, ", \"wer\": %.9g", wer);
    fprintf(log->eval, "}\n");
    free(quoted);
    json_decref(text);
    if ((rc = finish_line(log->eval, log->eval_path, err)) < 0)
        return rc;
    char *tags[] = {s2s_xasprintf("eval/%s/loss", name),
                    s2s_xasprintf("eval/%s/token_accuracy", name),
                    s2s_xasprintf("eval/%s/wer", name)};
    const float values[] = {(float)loss, (float)token_accuracy, (float)wer};
    rc =
        s2s_events_add(log->events, step, (const char *const *)tags, values, wer >= 0 ? 3 : 2, err);
    for (int i = 0; i < 3; i++)
        free(tags[i]);
    return rc;
}

int s2s_runlog_close(struct s2s_runlog *log, struct s2s_error *err)
{
    if (!log)
        return 0;
    int rc = s2s_events_close(log->events, err);
    if (log->file && fclose(log->file) != 0 && rc == 0)
        rc = s2s_error_errno(err, S2S_E_IO, "%s", log->path);
    if (log->eval && fclose(log->eval) != 0 && rc == 0)
        rc = s2s_error_errno(err, S2S_E_IO, "%s", log->eval_path);
    free(log->path);
    free(log->eval_path);
    free(log);
    return rc;
}
