/* Samples that are lines of text files: manifests, cuts, tokenized rows. */
#include <stdlib.h>

#include "lib/base/base.h"
#include "lib/data/lines.h"
#include "lib/data/manifest.h"
#include "lib/data/source.h"
#include "lib/data/spool.h"
#include "lib/io/digest.h"

struct lines_source {
    struct s2s_source base;
    enum s2s_lines_kind kind;
    struct s2s_lines *files; /* [n_files] */
    size_t n_files;
    struct s2s_source_options opt; /* its strings are owned */
    char *text_field, *lang_field;
    uint32_t part; /* where `next` is */
    struct s2s_line line;
};

static int next(struct s2s_source *base, struct s2s_place *place, struct s2s_error *err)
{
    struct lines_source *s = (struct lines_source *)base;
    for (; s->part < s->n_files; s->part++) {
        if (s2s_lines_next(&s->files[s->part], &s->line)) {
            *place =
                (struct s2s_place){.at = s->line.begin, .line = s->line.number, .part = s->part};
            return 1;
        }
        s->line = (struct s2s_line){.number = 0};
    }
    return 0;
}

static void rewind_lines(struct s2s_source *base)
{
    struct lines_source *s = (struct lines_source *)base;
    s->part = 0;
    s->line = (struct s2s_line){.number = 0};
}

static int load_ids(const struct lines_source *s, struct s2s_sample *sample,
                    const struct s2s_line *line, struct s2s_error *err)
{
    int rc = s2s_data_parse_ids(&sample->ids, line, s->opt.pad_id, err);
    if (rc < 0)
        return rc;
    sample->has_ids = true;
    sample->id = s2s_xstrdup(sample->ids.id);
    sample->text = sample->ids.text ? s2s_xstrdup(sample->ids.text) : NULL;
    return 1;
}

/* A transcript's sample: what is asked for stands in the line itself. */
static int with_prompt(struct s2s_sample *sample, int rc, struct s2s_error *err)
{
    if (rc > 0 && !sample->text)
        return s2s_error_set(err, S2S_E_FORMAT, "sample '%s' has no text", sample->id);
    if (rc > 0)
        s2s_sample_prompt(sample, sample->custom);
    return rc;
}

static int load(const struct s2s_source *base, struct s2s_sample *sample,
                const struct s2s_place *place, struct s2s_error *err)
{
    const struct lines_source *s = (const struct lines_source *)base;
    const struct s2s_lines *file = &s->files[place->part];
    const struct s2s_line line = s2s_lines_at(file, place->at, place->line);
    const struct s2s_manifest_options how = {s2s_spool_is_pipe(file->path) ? NULL : file->path,
                                             s->text_field, s->lang_field};
    switch (s->kind) {
    case S2S_LINES_NEMO:
        return with_prompt(sample, s2s_data_parse_nemo(sample, &line, place->variant, &how, err),
                           err);
    case S2S_LINES_CUTS:
        return with_prompt(sample, s2s_data_parse_cut(sample, &line, &how, err), err);
    case S2S_LINES_IDS:
        return load_ids(s, sample, &line, err);
    }
    S2S_BUG("kind %d of lines", (int)s->kind);
}

static char *where(const struct s2s_source *base, const struct s2s_place *place)
{
    const struct lines_source *s = (const struct lines_source *)base;
    return s2s_xasprintf("%s:%lld", s->files[place->part].path, (long long)place->line);
}

static bool digest(const struct s2s_source *base, size_t k, char hex[33])
{
    const struct lines_source *s = (const struct lines_source *)base;
    if (k >= s->n_files)
        return false;
    s2s_xxh3_128_hex(hex, s->files[k].data, s->files[k].len);
    return true;
}

static void close_lines(struct s2s_source *base)
{
    struct lines_source *s = (struct lines_source *)base;
    for (size_t i = 0; i < s->n_files; i++)
        s2s_lines_close(&s->files[i]);
    free(s->files);
    free(s->text_field);
    free(s->lang_field);
    free(s);
}

static const struct s2s_source_kind kind_of_lines = {next,  rewind_lines, load,
                                                     where, digest,       close_lines};

int s2s_source_open_lines(struct s2s_source **source, enum s2s_lines_kind kind,
                          const char *const *paths, size_t n_paths,
                          const struct s2s_source_options *opt, struct s2s_error *err)
{
    struct lines_source *s = s2s_xcalloc(1, sizeof *s);
    int rc = 0;
    s->base.kind = &kind_of_lines;
    s->kind = kind;
    s->opt = *opt;
    s->text_field = opt->text_field ? s2s_xstrdup(opt->text_field) : NULL;
    s->lang_field = opt->lang_field ? s2s_xstrdup(opt->lang_field) : NULL;
    s->files = s2s_xcalloc(n_paths + 1, sizeof *s->files);
    while (rc == 0 && s->n_files < n_paths) {
        rc = s2s_lines_open(&s->files[s->n_files], paths[s->n_files], err);
        s->n_files += rc == 0;
    }
    if (rc == 0)
        *source = &s->base;
    else
        close_lines(&s->base);
    return rc;
}
