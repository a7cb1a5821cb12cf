/* Several streams as one, and the features of what they hold. */
#include <stdlib.h>
#include <string.h>

#include "lib/base/base.h"
#include "lib/base/utf8.h"
#include "lib/io/digest.h"
#include "lib/train/feed_internal.h"

static int check_kind(const struct s2s_stream *in, const char *path, bool is_part,
                      struct s2s_error *err)
{
    enum s2s_kind kind = s2s_stream_kind(in);
    if (is_part && kind != S2S_KIND_CPSHARD)
        return s2s_error_set(err, S2S_E_UNSUPPORTED,
                             "%s: a name with %%r is that of a part of a stream, of kind cpshard; "
                             "found %s",
                             path, s2s_kind_name(kind));
    if (is_part || kind == S2S_KIND_PACK || kind == S2S_KIND_EMBED)
        return 0;
    int rc = s2s_error_set(err, S2S_E_UNSUPPORTED,
                           "%s: training reads streams of kind pack or embed, found %s", path,
                           s2s_kind_name(kind));
    return kind == S2S_KIND_CPSHARD
               ? s2s_error_hint(err, rc,
                                "name the files of all ranks by one name with %%r for the rank, as "
                                "for s2s-cpshard -o, or join them with s2s-cpshard --join")
               : s2s_error_hint(err, rc, "make packs with s2s-pack");
}

/* The embeddings of another encoder mean something else. A header that names none is believed. */
static bool same_makers(const struct train_streams *s, size_t a, size_t b)
{
    static const char *const makers[] = {"encoder", "projection"};
    const json_t *x = json_object_get(s2s_stream_header(s->in[a]), "embed");
    const json_t *y = json_object_get(s2s_stream_header(s->in[b]), "embed");
    for (size_t i = 0; i < 2; i++) {
        const char *of_x = json_string_value(json_object_get(x, makers[i]));
        const char *of_y = json_string_value(json_object_get(y, makers[i]));
        if (of_x && of_y && strcmp(of_x, of_y) != 0)
            return false;
    }
    return true;
}

/* Packs of several streams share a forward pass: their sound is of one form, or absent. */
static int check_same_form(const struct train_streams *s, size_t i, struct s2s_error *err)
{
    const struct s2s_schema *a = NULL, *b = &s->schema[i];
    for (size_t j = 0; j < i && !a; j++)
        if (s->schema[j].has_embed || s->schema[j].audio != S2S_AUDIO_NONE)
            a = &s->schema[j];
    if (!a || (!b->has_embed && b->audio == S2S_AUDIO_NONE) ||
        (a->has_embed == b->has_embed && a->hidden == b->hidden && a->projected == b->projected &&
         same_makers(s, (size_t)(a - s->schema), i)))
        return 0;
    int rc = s2s_error_set(err, S2S_E_SHAPE, "%s: its sound is of another form than that of %s",
                           s->paths[i], s->paths[a - s->schema]);
    return s2s_error_hint(err, rc,
                          "read streams of sound, or embeddings of one encoder and "
                          "projection, not both");
}

/* The part must be that of this rank, and have what a rank can do with alone. */
static int check_part(const struct s2s_schema *schema, const char *path,
                      const struct train_part *part, struct s2s_error *err)
{
    if (schema->cp_size != part->cp_size || schema->cp_rank != part->cp_rank) {
        int rc = s2s_error_set(err, S2S_E_SHAPE,
                               "%s: the part of rank %lld of cp %lld; this is rank %d of cp %d",
                               path, (long long)schema->cp_rank, (long long)schema->cp_size,
                               part->cp_rank, part->cp_size);
        return s2s_error_hint(err, rc, "cut the stream with s2s-cpshard --cp %d -o NAME-%%r.s2s",
                              part->cp_size);
    }
    if (schema->layout == S2S_LAYOUT_RL) {
        int rc = s2s_error_set(err, S2S_E_UNSUPPORTED,
                               "%s: labels of layout rl are those of their own slots, and the next "
                               "one may be in another part",
                               path);
        return s2s_error_hint(err, rc,
                              "read the whole stream: it is cut for mesh.cp as it is read");
    }
    return 0;
}

static int open_one(struct train_streams *s, size_t i, const struct train_part *part,
                    struct s2s_error *err)
{
    int rc = s2s_stream_open(&s->in[i], s->paths[i], err);
    if (rc < 0 || (rc = check_kind(s->in[i], s->paths[i], part != NULL, err)) < 0)
        return rc;
    rc = s2s_schema_compile(&s->schema[i], s2s_stream_header(s->in[i]), err);
    if (rc < 0)
        return s2s_error_add(err, rc, "%s", s->paths[i]);
    s->n++;
    if (part && (rc = check_part(&s->schema[i], s->paths[i], part, err)) < 0)
        return rc;
    if ((rc = check_same_form(s, i, err)) < 0)
        return rc;
    if (s->pipe)
        return 0;
    int64_t n = s2s_stream_n_records(s->in[i], err);
    if (n < 0)
        return (int)n;
    s->first[i + 1] = s->first[i] + n;
    return 0;
}

int train_streams_open(struct train_streams *s, const char *const *paths, size_t n,
                       const struct train_part *part, struct s2s_error *err)
{
    *s = (struct train_streams){.paths = paths, .pipe = n == 1 && strcmp(paths[0], "-") == 0};
    s->in = s2s_xcalloc(n + 1, sizeof *s->in);
    s->schema = s2s_xcalloc(n + 1, sizeof *s->schema);
    s->first = s2s_xcalloc(n + 1, sizeof *s->first);
    for (size_t i = 0; i < n; i++) {
        int rc = open_one(s, i, part, err);
        if (rc < 0) {
            s2s_stream_close(s->in[s->n]);
            train_streams_close(s);
            return rc;
        }
    }
    return 0;
}

int train_streams_tokenizer(const struct train_streams *s, const char *tokenizer,
                            struct s2s_error *err)
{
    char digest[33] = "";
    const char *name = tokenizer;
    int rc = tokenizer ? s2s_digest_file(digest, tokenizer, err) : 0;
    for (size_t i = 0; rc == 0 && i < s->n; i++) {
        const json_t *config = json_object_get(s2s_stream_header(s->in[i]), "config");
        const char *own = json_string_value(json_object_get(config, "tokenizer"));
        if (own && !name) {
            snprintf(digest, sizeof digest, "%s", own);
            name = s->paths[i];
        } else if (own && strcmp(own, digest) != 0) {
            s2s_warn("train",
                     "%s: its ids are of another tokenizer.json than %s%s; where the two differ in "
                     "more than form, pack it anew",
                     s->pipe ? "stdin" : s->paths[i], tokenizer ? "" : "those of ", name);
        }
    }
    return rc;
}

void train_streams_close(struct train_streams *s)
{
    for (size_t i = 0; i < s->n; i++) {
        s2s_stream_close(s->in[i]);
        s2s_schema_release(&s->schema[i]);
    }
    free(s->in);
    free(s->schema);
    free(s->first);
    *s = (struct train_streams){.in = NULL};
}

json_t *train_streams_describe(const struct train_streams *s)
{
    json_t *list = json_array();
    for (size_t i = 0; i < s->n; i++) {
        struct s2s_error err = S2S_ERROR_INIT;
        char digest[33];
        char *path = s2s_utf8_mend(s->paths[i]);
        if (s2s_stream_end_digest(s->in[i], digest, &err) < 0)
            S2S_BUG("%s", err.text); /* its records were counted by its end */
        json_array_append_new(list, json_pack("{s:s, s:I, s:s}", "path", path, "packs",
                                              (json_int_t)(s->first[i + 1] - s->first[i]), "digest",
                                              digest));
        free(path);
    }
    return list;
}

int64_t train_streams_n_records(const struct train_streams *s)
{
    return s->first[s->n];
}

int train_streams_read(struct train_streams *s, int64_t idx, struct s2s_record *rec,
                       const struct s2s_schema **schema, char place[512], struct s2s_error *err)
{
    size_t i = 0;
    while (i + 1 < s->n && idx >= s->first[i + 1])
        i++;
    *schema = &s->schema[i];
    snprintf(place, 512, "%s: record %lld", s->paths[i], (long long)(idx - s->first[i]));
    return s2s_stream_read_at(s->in[i], idx - s->first[i], rec, err);
}

int train_reader_open(struct s2s_pack_reader *reader, const char *features, int n_mels,
                      struct s2s_error *err)
{
    struct s2s_mel_config config = S2S_MEL_CONFIG_DEFAULT;
    int rc = 0;
    *reader = (struct s2s_pack_reader){.need_audio = n_mels > 0};
    if (n_mels <= 0)
        return 0;
    if (features)
        rc = s2s_mel_config_open(&config, features, err);
    else
        config.n_mels = n_mels;
    if (rc < 0)
        return rc;
    if (config.n_mels != n_mels)
        return s2s_error_set(err, S2S_E_SHAPE, "%s: %d mel bins, but the encoder takes %d",
                             features, config.n_mels, n_mels);
    if ((rc = s2s_mel_new(&reader->mel, &config, err)) < 0)
        return rc;
    reader->work = s2s_mel_work_new(reader->mel);
    return 0;
}

int train_reader_fits(const struct s2s_pack_reader *reader, const json_t *header,
                      struct s2s_error *err)
{
    return reader->mel ? s2s_mel_config_fits(s2s_mel_config(reader->mel), header, err) : 0;
}

int train_reader_fits_all(const struct s2s_pack_reader *reader, const struct train_streams *s,
                          struct s2s_error *err)
{
    int rc = 0;
    for (size_t i = 0; i < s->n && rc == 0; i++)
        if ((rc = train_reader_fits(reader, s2s_stream_header(s->in[i]), err)) < 0)
            s2s_error_add(err, rc, "%s", s->paths[i]);
    return rc;
}

void train_reader_close(struct s2s_pack_reader *reader)
{
    s2s_mel_work_free(reader->work);
    s2s_mel_free(reader->mel);
    *reader = (struct s2s_pack_reader){.mel = NULL};
}
