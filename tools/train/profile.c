/* --profile of a run: the table at its end and the trace of its last steps. */
#include "tools/train/profile.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "kernels/profile/profile.h"
#include "lib/base/base.h"
#include "lib/io/outfile.h"
#include "tools/train/memory.h"

struct train_profile {
    struct s2s_outfile *out;
    struct s2s_trainer *trainer;
    struct s2s_profile *profile;
    struct s2s_train_memory memory; /* after the newest step */
    int64_t *sent_before;           /* [n_sent] bytes, by communicator */
    int64_t *sent;                  /* [n_sent] in the newest step */
    size_t n_sent;
};

/* ---- around the steps ---- */

static void look_at_sent(struct train_profile *p, bool begins)
{
    struct s2s_mesh_sent now;
    for (size_t i = 0; s2s_mesh_sent_bytes(&now, p->trainer->mesh, i); i++) {
        if (i == p->n_sent) {
            p->sent = s2s_xrealloc(p->sent, i + 1, sizeof *p->sent);
            p->sent_before = s2s_xrealloc(p->sent_before, i + 1, sizeof *p->sent_before);
            p->sent_before[i] = 0;
            p->n_sent++;
        }
        p->sent[i] = now.sent_bytes - p->sent_before[i];
        if (begins)
            p->sent_before[i] = now.sent_bytes;
    }
}

static void watch(void *ctx, const struct s2s_trainer *t, int64_t step, bool begins)
{
    struct train_profile *p = ctx;
    if (begins) {
        look_at_sent(p, true);
        s2s_profile_step(p->profile, step);
        return;
    }
    s2s_profile_step_end(p->profile);
    look_at_sent(p, false);
    s2s_train_memory_of(&p->memory, &t->side);
}

/* "trace.json" of rank 2 is "trace.rank2.json". */
static char *path_of(const char *path, const struct s2s_mesh *mesh)
{
    if (s2s_mesh_size(mesh) == 1)
        return s2s_xstrdup(path);
    const char *slash = strrchr(path, '/'), *dot = strrchr(path, '.');
    if (!dot || (slash && dot < slash))
        dot = path + strlen(path);
    return s2s_xasprintf("%.*s.rank%d%s", (int)(dot - path), path, s2s_mesh_rank(mesh), dot);
}

int train_profile_open(struct train_profile **profile, const char *path,
                       struct s2s_trainer *trainer, struct s2s_error *err)
{
    struct train_profile *p = s2s_xcalloc(1, sizeof *p);
    struct s2s_device *device = trainer->bundle.device;
    char *own = path_of(path, trainer->mesh);
    int rc = s2s_outfile_open(&p->out, own, err);
    free(own);
    if (rc < 0) {
        free(p);
        return rc;
    }
    p->trainer = trainer;
    p->profile = s2s_profile_new(device->kernels, &device->queue);
    device->kernels = s2s_profile_table(p->profile);
    trainer->watch = watch;
    trainer->watch_ctx = p;
    *profile = p;
    return 0;
}

void train_profile_free(struct train_profile *p)
{
    if (!p)
        return;
    if (p->out)
        s2s_outfile_abort(p->out);
    p->trainer->watch = NULL;
    p->trainer->bundle.device->kernels = s2s_profile_free(p->profile);
    free(p->sent);
    free(p->sent_before);
    free(p);
}

/* ---- the trace ---- */

/* Quotes, back slashes and control characters as JSON wants them. */
static void add_string(struct s2s_buf *buf, const char *text)
{
    s2s_buf_putc(buf, '"');
    for (; *text; text++)
        if (*text == '"' || *text == '\\')
            s2s_buf_printf(buf, "\\%c", *text);
        else if ((unsigned char)*text < ' ')
            s2s_buf_printf(buf, "\\u%04x", *text);
        else
            s2s_buf_putc(buf, *text);
    s2s_buf_putc(buf, '"');
}

/* One slice. Begin and length in microseconds; slices inside of it are shown below it. */
static void add_slice(struct s2s_buf *buf, const char *name, double begin_s, double seconds,
                      int rank)
{
    s2s_buf_puts(buf, ",\n{\"name\": ");
    add_string(buf, name);
    s2s_buf_printf(buf, ", \"ph\": \"X\", \"ts\": %.3f, \"dur\": %.3f, \"pid\": %d, \"tid\": 0",
                   1e6 * begin_s, 1e6 * seconds, rank);
}

static void add_step(struct s2s_buf *buf, const struct s2s_profile_step *step, int rank)
{
    char name[32];
    snprintf(name, sizeof name, "step %lld", (long long)step->number);
    add_slice(buf, name, step->begin_s, step->seconds, rank);
    s2s_buf_puts(buf, "}");
    for (size_t i = 0; i < step->n; i++) {
        const struct s2s_profile_event *e = &step->events[i];
        add_slice(buf, s2s_entry_name(e->entry), e->begin_s, e->seconds, rank);
        s2s_buf_puts(buf, ", \"args\": {\"layer\": ");
        add_string(buf, e->layer);
        s2s_buf_printf(buf, ", \"flop\": %.0f, \"bytes\": %.0f}}", e->cost.flops,
                       e->cost.read_bytes + e->cost.written_bytes);
    }
}

/* What a plan of this run would say. */
static void add_other_data(struct s2s_buf *buf, const struct train_profile *p)
{
    struct s2s_mesh_sent sent;
    json_t *by_group = json_object();
    for (size_t i = 0; i < p->n_sent && s2s_mesh_sent_bytes(&sent, p->trainer->mesh, i); i++)
        json_object_set_new(by_group, sent.name, json_integer(p->sent[i]));
    json_t *json =
        json_pack("{s:o, s:o}", "memory", train_memory_json(&p->memory), "sent", by_group);
    char *text = json_dumps(json, 0);
    s2s_buf_printf(buf, "\n], \"displayTimeUnit\": \"ms\", \"otherData\": %s}\n", text);
    free(text);
    json_decref(json);
}

static int write_trace(struct train_profile *p, struct s2s_error *err)
{
    const int rank = s2s_mesh_rank(p->trainer->mesh);
    const struct s2s_profile_step *step;
    struct s2s_buf buf = S2S_BUF_INIT;
    int rc = 0;
    s2s_buf_printf(&buf,
                   "{\"traceEvents\": [\n"
                   "{\"name\": \"process_name\", \"ph\": \"M\", \"pid\": %d, \"args\": {\"name\": "
                   "\"rank %d\"}},\n"
                   "{\"name\": \"thread_name\", \"ph\": \"M\", \"pid\": %d, \"tid\": 0, \"args\": "
                   "{\"name\": \"compute\"}}",
                   rank, rank, rank);
    for (size_t i = 0; rc == 0 && (step = s2s_profile_kept(p->profile, i)); i++) {
        add_step(&buf, step, rank);
        rc = s2s_outfile_write(p->out, buf.data, buf.len, err);
        buf.len = 0;
    }
    add_other_data(&buf, p);
    if (rc == 0)
        rc = s2s_outfile_write(p->out, buf.data, buf.len, err);
    if (rc == 0) {
        rc = s2s_outfile_commit(p->out, err);
        p->out = NULL;
    }
    s2s_buf_release(&buf);
    return rc;
}

/* ---- the table ---- */

struct line {
    char name[96];
    struct s2s_tally_row sum;
};

static int by_time(const void *a, const void *b)
{
    const double x = ((const struct line *)a)->sum.seconds,
                 y = ((const struct line *)b)->sum.seconds;
    return (x < y) - (x > y);
}

/* The kind of a layer: its name with * for numbers. */
static void kind_of(char out[96], const char *layer)
{
    size_t n = 0;
    for (; *layer && n < 95; layer++) {
        const bool digit = isdigit((unsigned char)*layer);
        if (!digit || n == 0 || out[n - 1] != '*')
            out[n++] = digit ? '*' : *layer;
    }
    out[n] = '\0';
}

static void add_line(struct line **lines, size_t *n, size_t *cap, const char *name,
                     const struct s2s_tally_row *row)
{
    size_t i = 0;
    while (i < *n && strcmp((*lines)[i].name, name) != 0)
        i++;
    if (i == *n) {
        s2s_grow(lines, *n, cap, sizeof **lines);
        (*lines)[i] = (struct line){.sum = {.calls = 0}};
        snprintf((*lines)[(*n)++].name, sizeof(*lines)->name, "%s", name);
    }
    struct s2s_tally_row *sum = &(*lines)[i].sum;
    sum->calls += row->calls;
    sum->seconds += row->seconds;
    sum->cost.flops += row->cost.flops;
    sum->cost.read_bytes += row->cost.read_bytes;
    sum->cost.written_bytes += row->cost.written_bytes;
}

/* Times are milliseconds a step. */
static void print_lines(const char *title, struct line *lines, size_t n, double all_s,
                        int64_t n_steps)
{
    const double ms = 1e3 / (double)n_steps;
    double rest_s = all_s;
    qsort(lines, n, sizeof *lines, by_time);
    fprintf(stderr, "%-40s %9s %6s %9s %8s %9s\n", title, "ms/step", "%", "GFLOP/s", "GB/s",
            "calls");
    for (size_t i = 0; i < n; i++) {
        const struct s2s_tally_row *sum = &lines[i].sum;
        const double s = sum->seconds > 0 ? sum->seconds : 1e-9;
        rest_s -= sum->seconds;
        fprintf(stderr, "%-40s %9.3f %6.1f %9.1f %8.1f %9lld\n", lines[i].name, ms * sum->seconds,
                100 * sum->seconds / all_s, sum->cost.flops / s / 1e9,
                (sum->cost.read_bytes + sum->cost.written_bytes) / s / 1e9, (long long)sum->calls);
    }
    fprintf(stderr, "%-40s %9.3f %6.1f\n", "between calls", ms * rest_s, 100 * rest_s / all_s);
}

static void print_table(const struct train_profile *p)
{
    double seconds;
    const int64_t n_steps = s2s_profile_n_steps(p->profile, &seconds);
    const struct s2s_tally *tally = s2s_profile_tally(p->profile);
    for (int by_layer = 0; by_layer < 2; by_layer++) {
        struct line *lines = NULL;
        size_t n = 0, cap = 0;
        for (size_t i = 0; i < tally->n; i++) {
            char kind[96];
            kind_of(kind, *tally->rows[i].layer ? tally->rows[i].layer : "(no layer)");
            add_line(&lines, &n, &cap, by_layer ? kind : s2s_entry_name(tally->rows[i].entry),
                     &tally->rows[i]);
        }
        char title[64];
        snprintf(title, sizeof title, "%lld step%s, by %s", (long long)n_steps,
                 s2s_plural((size_t)n_steps), by_layer ? "layer" : "operation");
        print_lines(title, lines, n, seconds, n_steps);
        free(lines);
    }
}

int train_profile_write(struct train_profile *p, struct s2s_error *err)
{
    double seconds;
    if (s2s_profile_n_steps(p->profile, &seconds) == 0)
        return 0;
    if (s2s_mesh_rank(p->trainer->mesh) == 0)
        print_table(p);
    return write_trace(p, err);
}
