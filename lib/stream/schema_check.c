/* One record against its stream's schema: shapes by letters, then what ties the tensors together.
 */
#include <stdlib.h>
#include <string.h>

#include "lib/base/base.h"
#include "lib/stream/schema.h"

/* Data of a record may be unaligned. */
static int32_t i32_at(const struct s2s_st_tensor *t, int64_t i)
{
    int32_t value;
    memcpy(&value, (const char *)t->data + 4 * i, sizeof value);
    return value;
}

static int64_t i64_at(const struct s2s_st_tensor *t, int64_t i)
{
    int64_t value;
    memcpy(&value, (const char *)t->data + 8 * i, sizeof value);
    return value;
}

/* ---- dtypes and shapes ---- */

struct letters {
    int n;
    struct {
        const char *name;
        int64_t value;
    } bound[64];
};

/* A letter means one size throughout a record. */
static bool bind(struct letters *letters, const char *name, int64_t value, int64_t *expected)
{
    for (int i = 0; i < letters->n; i++)
        if (letters->bound[i].name[0] == name[0] && !strcmp(letters->bound[i].name, name)) {
            *expected = letters->bound[i].value;
            return *expected == value;
        }
    if (letters->n < 64) {
        letters->bound[letters->n].name = name;
        letters->bound[letters->n++].value = value;
    }
    return true;
}

static int check_shape(const struct s2s_schema_tensor *want, const struct s2s_st_tensor *t,
                       struct letters *letters, struct s2s_error *err)
{
    if (t->n_dims != want->n_dims)
        return s2s_error_set(err, S2S_E_SHAPE, "tensor '%s' has %d sizes, %d expected", want->name,
                             t->n_dims, want->n_dims);
    for (int d = 0; d < t->n_dims; d++) {
        const struct s2s_schema_dim *dim = &want->dims[d];
        int64_t expected = 0;
        bool same = dim->letter[0] ? bind(letters, dim->letter, t->shape[d] - dim->plus, &expected)
                                   : t->shape[d] == dim->plus;
        if (!same || t->shape[d] < dim->plus)
            return s2s_error_set(err, S2S_E_SHAPE,
                                 "tensor '%s': size %d is %lld, %s%s%lld expected", want->name, d,
                                 (long long)t->shape[d], dim->letter, dim->letter[0] ? " = " : "",
                                 (long long)(expected + dim->plus));
    }
    return 0;
}

static int check_tensors(const struct s2s_schema *schema, const struct s2s_safetensors *st,
                         struct s2s_error *err)
{
    struct letters letters = {.n = 0};
    size_t next = 0; /* both are sorted as a rule: what is wanted is the next one */
    for (size_t i = 0; i < schema->n_tensors; i++) {
        const struct s2s_schema_tensor *want = &schema->tensors[i];
        const struct s2s_st_tensor *t =
            next < st->n_tensors && !strcmp(st->tensors[next].name, want->name)
                ? &st->tensors[next]
                : s2s_safetensors_find(st, want->name);
        next = t ? (size_t)(t - st->tensors) + 1 : next;
        if (!t)
            return s2s_error_set(err, S2S_E_NOTFOUND, "tensor '%s' is missing", want->name);
        if (t->dtype != want->dtype)
            return s2s_error_set(err, S2S_E_DTYPE, "tensor '%s' is %s, %s expected", want->name,
                                 s2s_dtype_name(t->dtype), s2s_dtype_name(want->dtype));
        int rc = check_shape(want, t, &letters, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* ---- metadata ---- */

/* Entries of a JSON list, or -1. Only the list's own commas are counted: a tree would cost more
 * than the record's digest. */
static int64_t count_json_list(const char *text)
{
    int64_t n = 0;
    int depth = 0;
    bool in_string = false, any = false;
    const char *p = text + strspn(text, " \t\r\n");
    if (*p != '[')
        return -1;
    for (; *p; p++) {
        if (in_string) {
            if (*p == '\\' && p[1])
                p++;
            else if (*p == '"')
                in_string = false;
            continue;
        }
        switch (*p) {
        case '"':
            in_string = any = true;
            break;
        case '[':
        case '{':
            any = any || depth > 0;
            depth++;
            break;
        case ']':
        case '}':
            if (--depth == 0)
                return p[1 + strspn(p + 1, " \t\r\n")] ? -1 : n + any;
            break;
        case ',':
            n += depth == 1;
            break;
        case ' ':
        case '\t':
        case '\r':
        case '\n':
            break;
        default:
            any = true;
        }
    }
    return -1;
}

static int check_list(const struct s2s_safetensors *st, const char *key, int64_t n,
                      struct s2s_error *err)
{
    const char *text = s2s_safetensors_meta(st, key);
    int64_t found = text ? count_json_list(text) : n;
    if (found != n)
        return s2s_error_set(err, S2S_E_FORMAT, "metadata '%s' is no JSON list of %lld entries",
                             key, (long long)n);
    return 0;
}

static int check_pack_meta(const struct s2s_schema *schema, const struct s2s_safetensors *st,
                           int64_t n_seqs, int64_t n_clips, struct s2s_error *err)
{
    const char *format = s2s_safetensors_meta(st, "qkv_format");
    if (!format || strcmp(format, "thd") != 0)
        return s2s_error_set(err, S2S_E_FORMAT, "metadata 'qkv_format' is '%.20s', 'thd' expected",
                             format ? format : "");
    if (!s2s_safetensors_meta(st, "ids"))
        return s2s_error_set(err, S2S_E_FORMAT, "metadata 'ids' is missing");
    const char *parent = s2s_safetensors_meta(st, "parent");
    if (schema->kind == S2S_KIND_CPSHARD &&
        (!parent || strlen(parent) != 16 || strspn(parent, "0123456789abcdef") != 16))
        return s2s_error_set(err, S2S_E_FORMAT, "metadata 'parent' is not 16 hex digits");
    int rc = check_list(st, "ids", n_seqs, err);
    if (rc == 0)
        rc = check_list(st, "texts", n_seqs, err);
    return rc < 0 ? rc : check_list(st, "audio", n_clips, err);
}

/* ---- packs ---- */

struct pack {
    const struct s2s_schema *schema;
    const struct s2s_safetensors *st;
    const struct s2s_st_tensor *seq_lens, *padded, *cu, *cu_padded, *bounds, *slot, *frames;
    int64_t n_seqs, n_clips;
    int64_t n_slots; /* T of the whole pack */
    int64_t n_local; /* slots stored here: T, or T / cp */
};

/* sums[0] = 0, sums[i + 1] = sums[i] + lens[i]; with free_last the last entry may also be n_slots
 * (a lone trailing fill is absorbed into it). */
static int check_sums(const struct s2s_st_tensor *sums, const struct s2s_st_tensor *lens, int64_t n,
                      int64_t free_last, struct s2s_error *err)
{
    int64_t at = 0;
    if (sums->shape[0] != n + 1)
        return s2s_error_set(err, S2S_E_SHAPE, "%s has %lld entries, %lld expected", sums->name,
                             (long long)sums->shape[0], (long long)n + 1);
    for (int64_t i = 0; i <= n; i++) {
        int32_t value = i32_at(sums, i);
        if (value != at && !(i == n && value == free_last))
            return s2s_error_set(err, S2S_E_RANGE, "%s[%lld] = %d, the sum of %s is %lld",
                                 sums->name, (long long)i, value, lens->name, (long long)at);
        if (i < n)
            at += i32_at(lens, i);
    }
    return 0;
}

static int check_lengths(struct pack *p, struct s2s_error *err)
{
    int64_t real = 0, longest = 0;
    if (p->n_seqs < 1 || p->padded->shape[0] != p->n_seqs)
        return s2s_error_set(err, S2S_E_SHAPE, "seq_lens has %lld entries, seq_lens_padded %lld",
                             (long long)p->n_seqs, (long long)p->padded->shape[0]);
    for (int64_t i = 0; i < p->n_seqs; i++) {
        int32_t len = i32_at(p->seq_lens, i), padded = i32_at(p->padded, i);
        if (len < 0 || padded < len)
            return s2s_error_set(err, S2S_E_RANGE,
                                 "seq_lens[%lld] = %d, seq_lens_padded[%lld] = %d", (long long)i,
                                 len, (long long)i, padded);
        if (p->schema->kind == S2S_KIND_CPSHARD && p->schema->cp_size > 1 &&
            padded % (2 * p->schema->cp_size) != 0)
            return s2s_error_set(err, S2S_E_RANGE,
                                 "seq_lens_padded[%lld] = %d is no multiple of 2 * cp = %lld",
                                 (long long)i, padded, (long long)(2 * p->schema->cp_size));
        real += len;
        longest = padded > longest ? padded : longest;
        p->n_slots += padded;
    }
    int64_t max_seqlen = i32_at(s2s_safetensors_find(p->st, "max_seqlen"), 0);
    int64_t num_tokens = i64_at(s2s_safetensors_find(p->st, "num_tokens"), 0);
    int64_t num_examples = i64_at(s2s_safetensors_find(p->st, "num_examples"), 0);
    if (max_seqlen != longest)
        return s2s_error_set(err, S2S_E_RANGE, "max_seqlen = %lld, the longest has %lld slots",
                             (long long)max_seqlen, (long long)longest);
    if (num_tokens != real)
        return s2s_error_set(err, S2S_E_RANGE, "num_tokens = %lld, the sum of seq_lens is %lld",
                             (long long)num_tokens, (long long)real);
    if (num_examples != p->n_seqs)
        return s2s_error_set(err, S2S_E_RANGE, "num_examples = %lld, seq_lens has %lld entries",
                             (long long)num_examples, (long long)p->n_seqs);
    return 0;
}

static int check_bounds(const struct pack *p, struct s2s_error *err)
{
    int rc = check_sums(p->bounds, p->padded, p->n_seqs, -1, err);
    if (rc == 0 && p->cu != p->bounds)
        rc = check_sums(p->cu, p->seq_lens, p->n_seqs, p->n_slots, err);
    return rc;
}

/* Every tensor of slots has as many as the bounds say; positions restart where an utterance does.
 */
static int check_slots(struct pack *p, struct s2s_error *err)
{
    static const char *const names[] = {"input_ids", "labels", "position_ids", "loss_mask"};
    int64_t cp_size = p->schema->kind == S2S_KIND_CPSHARD ? p->schema->cp_size : 1;
    p->n_local = p->n_slots / cp_size;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const struct s2s_st_tensor *t = s2s_safetensors_find(p->st, names[i]);
        if (t && (t->n_dims != 1 || t->shape[0] != p->n_local))
            return s2s_error_set(err, S2S_E_SHAPE, "%s has %lld slots, the bounds say %lld",
                                 names[i], (long long)(t->n_dims ? t->shape[0] : 1),
                                 (long long)p->n_local);
    }
    const struct s2s_st_tensor *position = s2s_safetensors_find(p->st, "position_ids");
    if (!position || position->dtype != S2S_I32 || p->schema->cp_rank > 0)
        return 0;
    for (int64_t i = 0; i < p->n_seqs; i++) {
        int64_t at = i32_at(p->bounds, i) / cp_size; /* rank 0 has the first chunk of each */
        if (i32_at(p->padded, i) > 0 && i32_at(position, at) != 0)
            return s2s_error_set(err, S2S_E_RANGE,
                                 "position_ids[%lld] = %d where utterance %lld "
                                 "begins, 0 expected",
                                 (long long)at, i32_at(position, at), (long long)i);
    }
    return 0;
}

/* Clips lie in slot order, apart from each other, each inside one utterance. */
static int check_clips(const struct pack *p, struct s2s_error *err)
{
    int64_t end = 0, seq = 0;
    if (p->frames->shape[0] != p->n_clips)
        return s2s_error_set(err, S2S_E_SHAPE, "audio_slot has %lld entries, audio_frames %lld",
                             (long long)p->n_clips, (long long)p->frames->shape[0]);
    for (int64_t k = 0; k < p->n_clips; k++) {
        int64_t slot = i32_at(p->slot, k), n = i32_at(p->frames, k);
        if (n < 0 || slot < end || slot > p->n_slots - n)
            return s2s_error_set(err, S2S_E_RANGE,
                                 "audio_slot[%lld] = %lld with %lld frames, expected from %lld on "
                                 "within %lld slots",
                                 (long long)k, (long long)slot, (long long)n, (long long)end,
                                 (long long)p->n_slots);
        end = slot + n;
        if (n == 0)
            continue;
        while (seq < p->n_seqs && i32_at(p->bounds, seq + 1) <= slot)
            seq++;
        if (seq == p->n_seqs || end > i32_at(p->bounds, seq) + i32_at(p->seq_lens, seq))
            return s2s_error_set(err, S2S_E_RANGE,
                                 "audio_slot[%lld] = %lld with %lld frames leaves its utterance",
                                 (long long)k, (long long)slot, (long long)n);
    }
    return 0;
}

/* How many slots of [begin, end) lie in [lo, hi). */
static int64_t overlap(int64_t begin, int64_t end, int64_t lo, int64_t hi)
{
    int64_t from = begin > lo ? begin : lo, to = end < hi ? end : hi;
    return to > from ? to - from : 0;
}

/* Rows of audio_embeds that this rank holds: those of its two chunks of each utterance. */
static int64_t local_frames(const struct pack *p)
{
    int64_t cp_size = p->schema->cp_size, rank = p->schema->cp_rank, total = 0, seq = 0;
    for (int64_t k = 0; k < p->n_clips; k++) {
        int64_t begin = i32_at(p->slot, k), end = begin + i32_at(p->frames, k);
        while (seq < p->n_seqs - 1 && i32_at(p->bounds, seq + 1) <= begin)
            seq++;
        if (cp_size == 1) {
            total += end - begin;
            continue;
        }
        int64_t first = i32_at(p->bounds, seq), chunk = i32_at(p->padded, seq) / (2 * cp_size);
        int64_t low = first + rank * chunk, high = first + (2 * cp_size - 1 - rank) * chunk;
        total += overlap(begin, end, low, low + chunk) + overlap(begin, end, high, high + chunk);
    }
    return total;
}

/* cu[0] = 0, never down, cu[K] = rows */
static int check_clip_bounds(const struct pack *p, const char *data_name, const char *cu_name,
                             struct s2s_error *err)
{
    const struct s2s_st_tensor *data = s2s_safetensors_find(p->st, data_name);
    const struct s2s_st_tensor *cu = s2s_safetensors_find(p->st, cu_name);
    if (!data || !cu || cu->dtype != S2S_I64 || cu->n_dims != 1 || data->n_dims < 1)
        return 0; /* a form that this stream does not have */
    int64_t last = 0;
    if (cu->shape[0] != p->n_clips + 1)
        return s2s_error_set(err, S2S_E_SHAPE, "%s has %lld entries, %lld expected", cu_name,
                             (long long)cu->shape[0], (long long)p->n_clips + 1);
    for (int64_t k = 0; k <= p->n_clips; k++) {
        int64_t value = i64_at(cu, k);
        if (k == 0 ? value != 0 : value < last)
            return s2s_error_set(err, S2S_E_RANGE, "%s[%lld] = %lld after %lld", cu_name,
                                 (long long)k, (long long)value, (long long)last);
        last = value;
    }
    if (last != data->shape[0])
        return s2s_error_set(err, S2S_E_RANGE, "%s ends at %lld, %s has %lld rows", cu_name,
                             (long long)last, data_name, (long long)data->shape[0]);
    return 0;
}

static int check_clip_data(const struct pack *p, struct s2s_error *err)
{
    int rc = check_clip_bounds(p, "audio_pcm", "audio_cu_samples", err);
    if (rc == 0)
        rc = check_clip_bounds(p, "audio_bytes", "audio_cu_bytes", err);
    if (rc == 0)
        rc = check_clip_bounds(p, "audio_mel", "audio_cu_mel", err);
    const struct s2s_st_tensor *embeds = s2s_safetensors_find(p->st, "audio_embeds");
    if (rc < 0 || !p->schema->has_embed || !embeds)
        return rc;
    int64_t rows = local_frames(p);
    if (embeds->shape[0] != rows)
        return s2s_error_set(err, S2S_E_SHAPE, "audio_embeds has %lld rows, the clips have %lld",
                             (long long)embeds->shape[0], (long long)rows);
    if (embeds->shape[1] != p->schema->hidden || embeds->dtype != p->schema->embed_dtype)
        return s2s_error_set(err, S2S_E_SHAPE,
                             "audio_embeds is %s of width %lld, the header's "
                             "embed says %s of width %lld",
                             s2s_dtype_name(embeds->dtype), (long long)embeds->shape[1],
                             s2s_dtype_name(p->schema->embed_dtype), (long long)p->schema->hidden);
    return 0;
}

static int check_pack(const struct s2s_schema *schema, const struct s2s_safetensors *st,
                      struct s2s_error *err)
{
    struct pack p = {.schema = schema,
                     .st = st,
                     .seq_lens = s2s_safetensors_find(st, "seq_lens"),
                     .padded = s2s_safetensors_find(st, "seq_lens_padded"),
                     .cu = s2s_safetensors_find(st, "cu_seqlens"),
                     .cu_padded = s2s_safetensors_find(st, "cu_seqlens_padded"),
                     .slot = s2s_safetensors_find(st, "audio_slot"),
                     .frames = s2s_safetensors_find(st, "audio_frames")};
    if (p.cu_padded && schema->layout == S2S_LAYOUT_SALM)
        return s2s_error_set(err, S2S_E_FORMAT, "cu_seqlens_padded does not belong to layout salm");
    if (p.cu_padded && (p.cu_padded->dtype != S2S_I32 || p.cu_padded->n_dims != 1))
        return s2s_error_set(err, S2S_E_DTYPE, "cu_seqlens_padded is not I32 [B+1]");
    p.bounds = p.cu_padded ? p.cu_padded : p.cu;
    p.n_seqs = p.seq_lens->shape[0];
    p.n_clips = p.slot->shape[0];
    int rc = check_lengths(&p, err);
    if (rc == 0)
        rc = check_bounds(&p, err);
    if (rc == 0)
        rc = check_slots(&p, err);
    if (rc == 0)
        rc = check_clips(&p, err);
    if (rc == 0)
        rc = check_clip_data(&p, err);
    return rc < 0 ? rc : check_pack_meta(schema, st, p.n_seqs, p.n_clips, err);
}

int s2s_schema_check(const struct s2s_schema *schema, const struct s2s_safetensors *st,
                     struct s2s_error *err)
{
    int rc = check_tensors(schema, st, err);
    if (rc < 0 || schema->kind == S2S_KIND_AUDIO || schema->kind == S2S_KIND_DUPLEX)
        return rc;
    return check_pack(schema, st, err);
}
