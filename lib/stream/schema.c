/* The tables of tensors that records of each kind hold. */
#include "lib/stream/schema.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/base.h"

enum {
    A = 1u << S2S_KIND_AUDIO,
    P = 1u << S2S_KIND_PACK,
    E = 1u << S2S_KIND_EMBED,
    C = 1u << S2S_KIND_CPSHARD,
    D = 1u << S2S_KIND_DUPLEX,
    PEC = P | E | C,

    NO_LAYOUT = 1u << S2S_LAYOUT_NONE,
    SALM = 1u << S2S_LAYOUT_SALM,
    RL = 1u << S2S_LAYOUT_RL,
    MCORE = 1u << S2S_LAYOUT_MCORE,
    SFT = 1u << S2S_LAYOUT_SFT,
    ALL = SALM | RL | MCORE | SFT,

    PCM = 1u << S2S_AUDIO_PCM,
    FLAC = 1u << S2S_AUDIO_FLAC,
    MEL = 1u << S2S_AUDIO_MEL,
    ANY = 1u << S2S_AUDIO_NONE | 1u << S2S_AUDIO_PATH | PCM | FLAC | MEL
};

/* T slots (in a cpshard this rank's), B utterances, K clips, H width, M mel bands, n a sum over
 * clips, F frames of 80 ms. */
static const struct s2s_schema_field fields[] = {
    {"input_ids", "I32", "T", PEC, ALL, ANY, true,
     "text slot: its id; audio slot: the placeholder's id; pad slot: pad_id"},
    {"labels", "I32", "T", PEC, ALL, ANY, true, "token to predict; -100 where there is none"},
    {"position_ids", "I32", "T", PEC, SALM | RL | SFT, ANY, true, "restart in every utterance"},
    {"loss_mask", "U8", "T", PEC, RL | SFT, ANY, false, "1 where the label is trained on"},
    {"seq_lens", "I32", "B", PEC, ALL, ANY, true, "real lengths"},
    {"seq_lens_padded", "I32", "B", PEC, ALL, ANY, true, "rounded lengths"},
    {"cu_seqlens", "I32", "B+1", PEC, ALL, ANY, true,
     "sums of the padded lengths in salm, of the real ones elsewhere"},
    {"cu_seqlens_padded", "I32", "B+1", PEC, RL | MCORE | SFT, ANY, false,
     "sums of the padded lengths"},
    {"max_seqlen", "I32", "", PEC, ALL, ANY, true,
     "largest difference of the vector that bounds slots"},
    {"num_tokens", "I64", "", PEC, ALL, ANY, true, "sum of seq_lens"},
    {"num_examples", "I64", "", PEC, ALL, ANY, true, "B"},
    {"audio_slot", "I32", "K", PEC, ALL, ANY, true, "first slot of each clip, ascending"},
    {"audio_frames", "I32", "K", PEC, ALL, ANY, true, "frames of each clip"},
    {"audio_pcm", "I16|F32", "n", P | C, ALL, PCM, true, "waveforms, clip after clip"},
    {"audio_cu_samples", "I64", "K+1", P | C, ALL, PCM, true, "bounds of the clips in audio_pcm"},
    {"audio_bytes", "U8", "n", P | C, ALL, FLAC, true, "FLAC files, clip after clip"},
    {"audio_cu_bytes", "I64", "K+1", P | C, ALL, FLAC, true, "bounds of the clips in audio_bytes"},
    {"audio_mel", "F32", "n,M", P | C, ALL, MEL, true, "log-mel features, valid frames only"},
    {"audio_cu_mel", "I64", "K+1", P | C, ALL, MEL, true, "bounds of the clips in audio_mel"},
    {"audio_embeds", "F32|BF16", "n,H", E | C, ALL, ANY, true,
     "encoder output, clip after clip; in a cpshard the rows of this rank's slots"},
    {"image_slot", "I32", "R", PEC, ALL, ANY, false, "slot of each row of the images, ascending"},
    {"image_rows", "I32", "I", PEC, ALL, ANY, false, "rows of each image"},
    {"image_grid", "I32", "I,2", PEC, ALL, ANY, false, "height and width of each image in patches"},
    {"image_patches", "U8|F32", "P,S", PEC, ALL, ANY, false,
     "patches of the images, row by row, [3, side, side] each"},
    {"pcm", "I16|F32", "n", A, NO_LAYOUT, PCM, true, "waveform, one channel"},
    {"bytes", "U8", "n", A, NO_LAYOUT, FLAC, true, "FLAC file"},
    {"mel", "F32", "F,M", A, NO_LAYOUT, MEL, true, "log-mel features, valid frames only"},
    {"embeds", "F32|BF16", "G,H", A, NO_LAYOUT, ANY, false, "encoder output"},
    {"source_pcm", "I16|F32", "n", D, NO_LAYOUT, ANY, true, "what the user says"},
    {"target_pcm", "I16|F32", "m", D, NO_LAYOUT, ANY, true, "what the agent says"},
    {"source_tokens", "I32", "F", D, NO_LAYOUT, ANY, true, "text of the user on 80 ms frames"},
    {"target_tokens", "I32", "F", D, NO_LAYOUT, ANY, true, "text of the agent on 80 ms frames"},
    {"target_codes", "I32", "G,Q", D, NO_LAYOUT, ANY, false, "codec codes of the agent"},
};

#define N_FIELDS (sizeof fields / sizeof *fields)

const struct s2s_schema_field *s2s_schema_fields(size_t *n)
{
    *n = N_FIELDS;
    return fields;
}

static const char *const kind_names[] = {"audio", "pack", "embed", "cpshard", "duplex", NULL};
static const char *const layout_names[] = {"", "salm", "rl", "mcore", "sft", NULL};
static const char *const form_names[] = {"none", "path", "pcm", "flac", "mel", NULL};

const char *s2s_kind_name(enum s2s_kind kind)
{
    return (size_t)kind < 5 ? kind_names[kind] : "none";
}

/* ---- what the header says ---- */

static int bad_key(struct s2s_error *err, const char *key, const char *what)
{
    return s2s_error_set(err, S2S_E_FORMAT, "header.json: '%s' %s", key, what);
}

/* Index of a string value in a list of names. */
static int header_choice(int *value, const json_t *header, const char *key,
                         const char *const *names, struct s2s_error *err)
{
    const char *text = json_string_value(json_object_get(header, key));
    if (!text)
        return bad_key(err, key, "is missing or no string");
    for (int i = 0; names[i]; i++)
        if (*names[i] && !strcmp(names[i], text)) {
            *value = i;
            return 0;
        }
    return s2s_error_set(err, S2S_E_FORMAT, "header.json: '%s' is '%.40s', which is unknown", key,
                         text);
}

static bool is_hex(const char *text, size_t len)
{
    return text && strlen(text) == len && strspn(text, "0123456789abcdef") == len;
}

static int read_cp(struct s2s_schema *schema, const json_t *header, struct s2s_error *err)
{
    const json_t *cp = json_object_get(header, "cp");
    const json_t *size = json_object_get(cp, "size"), *rank = json_object_get(cp, "rank");
    if (!json_is_integer(size) || !json_is_integer(rank))
        return bad_key(err, "cp", "must hold the whole numbers size and rank");
    schema->cp_size = json_integer_value(size);
    schema->cp_rank = json_integer_value(rank);
    if (schema->cp_size < 1 || schema->cp_size > INT32_MAX || schema->cp_rank < 0 ||
        schema->cp_rank >= schema->cp_size)
        return bad_key(err, "cp", "has a rank that is not within its size");
    if (!is_hex(json_string_value(json_object_get(header, "parent")), 32))
        return bad_key(err, "parent", "must be 32 hex digits");
    return 0;
}

static int read_embed(struct s2s_schema *schema, const json_t *header, struct s2s_error *err)
{
    const json_t *embed = json_object_get(header, "embed");
    schema->has_embed = embed != NULL;
    if (!embed)
        return schema->kind == S2S_KIND_EMBED ? bad_key(err, "embed", "is missing") : 0;
    const json_t *hidden = json_object_get(embed, "hidden");
    const char *dtype = json_string_value(json_object_get(embed, "dtype"));
    schema->hidden = json_integer_value(hidden);
    schema->projected = json_is_string(json_object_get(embed, "projection"));
    schema->embed_dtype = dtype ? s2s_dtype_parse(dtype) : S2S_DTYPE_NONE;
    if (!json_is_integer(hidden) || schema->hidden < 1)
        return bad_key(err, "embed", "must hold a hidden of at least 1");
    if (schema->embed_dtype != S2S_F32 && schema->embed_dtype != S2S_BF16)
        return bad_key(err, "embed", "must hold a dtype, F32 or BF16");
    return 0;
}

/* Kind, layout, form, cp and embed: what decides which fields there are. */
static int read_traits(struct s2s_schema *schema, const json_t *header, struct s2s_error *err)
{
    int kind = 0, layout = S2S_LAYOUT_NONE, form = S2S_AUDIO_NONE;
    *schema = (struct s2s_schema){.cp_size = 1};
    int rc = header_choice(&kind, header, "kind", kind_names, err);
    if (rc < 0)
        return rc;
    schema->kind = (enum s2s_kind)kind;
    if (1u << kind & PEC)
        rc = header_choice(&layout, header, "layout", layout_names, err);
    else if (json_object_get(header, "layout"))
        rc = bad_key(err, "layout", "does not belong to this kind");
    if (rc == 0 && (kind != S2S_KIND_DUPLEX || json_object_get(header, "audio")))
        rc = header_choice(&form, header, "audio", form_names, err);
    schema->layout = (enum s2s_stream_layout)layout;
    schema->audio = (enum s2s_audio_form)form;
    if (rc == 0)
        rc = read_embed(schema, header, err);
    if (rc == 0 && kind == S2S_KIND_CPSHARD)
        rc = read_cp(schema, header, err);
    return rc;
}

static bool field_applies(const struct s2s_schema_field *f, const struct s2s_schema *s)
{
    if (!(f->kinds & 1u << s->kind) || !(f->layouts & 1u << s->layout) ||
        !(f->forms & 1u << s->audio))
        return false;
    /* a cpshard has either the clips of a pack or the rows of an embed */
    if (s->kind == S2S_KIND_CPSHARD)
        return !(f->kinds & P) ? s->has_embed : f->forms == ANY || !s->has_embed;
    return true;
}

static const struct s2s_schema_field *find_field(const char *name, const struct s2s_schema *s)
{
    for (size_t i = 0; i < N_FIELDS; i++)
        if (!strcmp(fields[i].name, name) && fields[i].kinds & 1u << s->kind)
            return &fields[i];
    return NULL;
}

/* ---- the default schema ---- */

static json_t *default_shape(const struct s2s_schema_field *f, const struct s2s_schema *s)
{
    json_t *shape = json_array();
    for (const char *p = f->shape; *p;) {
        size_t len = strcspn(p, ",");
        if (len == 1 && *p == 'H' && s->has_embed)
            json_array_append_new(shape, json_integer(s->hidden));
        else
            json_array_append_new(shape, json_stringn(p, len));
        p += len + (p[len] == ',');
    }
    return shape;
}

json_t *s2s_schema_default(const json_t *header, struct s2s_error *err)
{
    struct s2s_schema traits;
    if (read_traits(&traits, header, err) < 0)
        return NULL;
    const json_t *given = json_object_get(header, "schema");
    json_t *schema = given ? json_deep_copy(given) : json_object();
    for (size_t i = 0; i < N_FIELDS; i++) {
        const struct s2s_schema_field *f = &fields[i];
        if (!f->required || !field_applies(f, &traits) || json_object_get(schema, f->name))
            continue;
        bool is_embeds = !strcmp(f->name, "audio_embeds");
        json_t *dtype = is_embeds ? json_string(s2s_dtype_name(traits.embed_dtype))
                                  : json_stringn(f->dtypes, strcspn(f->dtypes, "|"));
        json_object_set_new(
            schema, f->name,
            json_pack("{s:o, s:o}", "dtype", dtype, "shape", default_shape(f, &traits)));
    }
    return schema;
}

/* ---- compiling ---- */

/* "T", "B+1" */
static bool parse_dim(struct s2s_schema_dim *dim, const json_t *value)
{
    *dim = (struct s2s_schema_dim){"", 0};
    if (json_is_integer(value)) {
        dim->plus = json_integer_value(value);
        return dim->plus >= 0;
    }
    const char *text = json_string_value(value);
    size_t len = text ? strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz") : 0;
    if (len == 0 || len >= sizeof dim->letter)
        return false;
    memcpy(dim->letter, text, len);
    dim->letter[len] = 0;
    return text[len] == 0 ||
           (text[len] == '+' && s2s_parse_i64(&dim->plus, text + len + 1, 0, INT32_MAX, NULL) == 0);
}

static int compile_tensor(struct s2s_schema_tensor *t, const char *name, const json_t *entry,
                          struct s2s_error *err)
{
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    const json_t *shape = json_object_get(entry, "shape");
    t->dtype = dtype ? s2s_dtype_parse(dtype) : S2S_DTYPE_NONE;
    t->n_dims = (int)json_array_size(shape);
    if (t->dtype == S2S_DTYPE_NONE)
        return s2s_error_set(err, S2S_E_FORMAT, "header.json: schema: '%.200s' has no known dtype",
                             name);
    if (!json_is_array(shape) || json_array_size(shape) > S2S_MAX_DIMS)
        return s2s_error_set(err, S2S_E_FORMAT,
                             "header.json: schema: '%.200s' has no shape of at most %d sizes", name,
                             S2S_MAX_DIMS);
    for (int d = 0; d < t->n_dims; d++)
        if (!parse_dim(&t->dims[d], json_array_get(shape, (size_t)d)))
            return s2s_error_set(err, S2S_E_FORMAT,
                                 "header.json: schema: '%.200s': size %d is no number, letter or "
                                 "letter+number",
                                 name, d);
    t->name = s2s_xstrdup(name);
    return 0;
}

static bool dtype_allowed(const char *allowed, enum s2s_dtype dtype)
{
    const char *name = s2s_dtype_name(dtype);
    for (size_t len; *allowed; allowed += len + (allowed[len] == '|')) {
        len = strcspn(allowed, "|");
        if (strlen(name) == len && !strncmp(name, allowed, len))
            return true;
    }
    return false;
}

static int n_sizes(const char *shape)
{
    int n = *shape != 0;
    for (; *shape; shape++)
        n += *shape == ',';
    return n;
}

/* A tensor that the table knows must be what the table says. */
static int check_known(const struct s2s_schema *schema, const struct s2s_schema_tensor *t,
                       struct s2s_error *err)
{
    const struct s2s_schema_field *f = find_field(t->name, schema);
    if (!f)
        return 0; /* passed on as it is */
    if (!field_applies(f, schema))
        return s2s_error_set(err, S2S_E_FORMAT,
                             "header.json: schema: '%s' does not belong to a %s of this layout and "
                             "audio form",
                             t->name, s2s_kind_name(schema->kind));
    if (!dtype_allowed(f->dtypes, t->dtype))
        return s2s_error_set(err, S2S_E_DTYPE, "header.json: schema: '%s' is %s, %s expected",
                             t->name, s2s_dtype_name(t->dtype), f->dtypes);
    if (t->n_dims != n_sizes(f->shape))
        return s2s_error_set(err, S2S_E_SHAPE,
                             "header.json: schema: '%s' has %d sizes, %d expected", t->name,
                             t->n_dims, n_sizes(f->shape));
    return 0;
}

static int compile_tensors(struct s2s_schema *schema, const json_t *object, struct s2s_error *err)
{
    const char *name;
    json_t *entry;
    schema->tensors = s2s_xcalloc(json_object_size(object), sizeof *schema->tensors);
    json_object_foreach((json_t *)object, name, entry)
    {
        struct s2s_schema_tensor *t = &schema->tensors[schema->n_tensors];
        int rc = compile_tensor(t, name, entry, err);
        if (rc < 0)
            return rc;
        schema->n_tensors++;
        if ((rc = check_known(schema, t, err)) < 0)
            return rc;
    }
    for (size_t i = 0; i < N_FIELDS; i++)
        if (fields[i].required && field_applies(&fields[i], schema) &&
            !json_object_get(object, fields[i].name))
            return s2s_error_set(err, S2S_E_FORMAT, "header.json: schema: '%s' is missing",
                                 fields[i].name);
    return 0;
}

static int check_provenance(const json_t *header, struct s2s_error *err)
{
    const json_t *chain = json_object_get(header, "provenance");
    size_t i;
    json_t *step, *arg;
    if (!json_is_array(chain) || json_array_size(chain) == 0)
        return bad_key(err, "provenance", "must be a list of at least one step");
    json_array_foreach(chain, i, step)
    {
        size_t j;
        const json_t *args = json_object_get(step, "args");
        if (!json_is_string(json_object_get(step, "program")) ||
            !json_is_string(json_object_get(step, "version")) || !json_is_array(args))
            return bad_key(err, "provenance", "has a step without program, version and args");
        json_array_foreach(args, j, arg) if (!json_is_string(arg)) return bad_key(
            err, "provenance", "has an argument that is no string");
    }
    return 0;
}

static int check_format(const json_t *header, struct s2s_error *err)
{
    const char *format = json_string_value(json_object_get(header, "format"));
    const json_t *version = json_object_get(header, "version");
    if (!format || strcmp(format, "s2s") != 0)
        return s2s_error_set(err, S2S_E_FORMAT, "header.json: format is '%.40s', 's2s' expected",
                             format ? format : "");
    if (!json_is_integer(version) || json_integer_value(version) < 1)
        return bad_key(err, "version", "is missing or no number of at least 1");
    if (json_integer_value(version) > S2S_STREAM_VERSION) {
        int rc = s2s_error_set(err, S2S_E_VERSION,
                               "header.json: version is %lld, this program reads up to %d",
                               (long long)json_integer_value(version), S2S_STREAM_VERSION);
        return s2s_error_hint(err, rc, "use a newer release");
    }
    return 0;
}

int s2s_schema_compile(struct s2s_schema *schema, const json_t *header, struct s2s_error *err)
{
    *schema = (struct s2s_schema){.cp_size = 1};
    if (!json_is_object(header))
        return s2s_error_set(err, S2S_E_FORMAT, "header.json: is no object");
    int rc = check_format(header, err);
    if (rc == 0)
        rc = read_traits(schema, header, err);
    if (rc == 0 && !json_is_object(json_object_get(header, "config")))
        rc = bad_key(err, "config", "is missing or no object");
    if (rc == 0)
        rc = check_provenance(header, err);
    const json_t *object = json_object_get(header, "schema");
    if (rc == 0 && !json_is_object(object))
        rc = bad_key(err, "schema", "is missing or no object");
    if (rc == 0)
        rc = compile_tensors(schema, object, err);
    if (rc < 0)
        s2s_schema_release(schema);
    return rc;
}

void s2s_schema_release(struct s2s_schema *schema)
{
    if (!schema)
        return;
    for (size_t i = 0; i < schema->n_tensors; i++)
        free(schema->tensors[i].name);
    free(schema->tensors);
    schema->tensors = NULL;
    schema->n_tensors = 0;
}
