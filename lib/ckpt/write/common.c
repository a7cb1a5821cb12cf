/* Writes common.pt: made from JSON, or copied with one value set, or extracted from the byte object
 * that replaces it in newer releases. All other bytes are copied unchanged. */
#include "lib/base/base.h"
#include "lib/ckpt/model.h"
#include "lib/ckpt/pickle/emit.h"
#include "lib/ckpt/pickle/pickle.h"
#include "lib/ckpt/read/torch_zip.h"
#include "lib/ckpt/write/common.h"
#include "lib/io/zip.h"

enum { ALIGN = 64, PIECE = 256 << 10 };

static int buf_sink(void *ctx, const void *bytes, size_t len, struct s2s_error *err)
{
    s2s_buf_add(ctx, bytes, len);
    return 0;
}

/* ---- optimizer: small tensors, and keys and values that JSON cannot represent ---- */

struct storages {
    struct s2s_buf *bytes;
    size_t n, cap;
};

/* Emits CKPT_SMALL_TENSOR as a tensor; false: value is an ordinary dict. */
static bool emit_small(struct ckpt_emitter *out, struct storages *storages, const json_t *value)
{
    static const char mark[] = CKPT_SMALL_TENSOR;
    const char *key = json_object_iter_key(json_object_iter((json_t *)value));
    if (json_object_size(value) != 1 || !s2s_starts_with(key, mark))
        return false;
    const enum s2s_dtype dtype = s2s_dtype_parse(key + strlen(mark));
    if (!ckpt_is_small_dtype(dtype))
        return false;
    const json_t *values = json_object_get(value, key);
    const bool list = json_is_array(values);
    const int64_t n = list ? (int64_t)json_array_size(values) : 1;
    char number[24];
    snprintf(number, sizeof number, "%zu", storages->n);
    s2s_grow(&storages->bytes, storages->n, &storages->cap, sizeof *storages->bytes);
    struct s2s_buf *bytes = &storages->bytes[storages->n++];
    *bytes = (struct s2s_buf)S2S_BUF_INIT;
    for (int64_t i = 0; i < n; i++) {
        const json_t *one = list ? json_array_get(values, (size_t)i) : values;
        const float real = (float)json_number_value(one);
        const int64_t whole = json_integer_value(one);
        s2s_buf_add(bytes, dtype == S2S_F32 ? (const void *)&real : &whole, s2s_dtype_size(dtype));
    }
    ckpt_emit_tensor(out, number, dtype, list ? 1 : 0, &n);
    return true;
}

/* Emits the optimizer's state: keys of digits, which number the optimizers of a chain, as int, and
 * Adam's betas as a tuple. */
static void emit_optimizer(struct ckpt_emitter *out, struct storages *storages, const json_t *value)
{
    const char *key;
    json_t *item, *one;
    size_t i;
    if (json_is_object(value) && !emit_small(out, storages, value)) {
        ckpt_emit_op(out, "}(");
        json_object_foreach((json_t *)value, key, item)
        {
            const bool pair = strcmp(key, "betas") == 0 && json_is_array(item);
            if (*key && strspn(key, "0123456789") == strlen(key) && strlen(key) < 9)
                ckpt_emit_int(out, strtol(key, NULL, 10));
            else
                ckpt_emit_str(out, key);
            if (!pair) {
                emit_optimizer(out, storages, item);
                continue;
            }
            ckpt_emit_op(out, "(");
            json_array_foreach(item, i, one) ckpt_emit_json(out, one);
            ckpt_emit_op(out, "t");
        }
        ckpt_emit_op(out, "u");
    } else if (json_is_array(value)) {
        ckpt_emit_op(out, "](");
        json_array_foreach(value, i, item) emit_optimizer(out, storages, item);
        ckpt_emit_op(out, "e");
    } else if (!json_is_object(value)) {
        ckpt_emit_json(out, value);
    }
}

int ckpt_torch_begin(struct s2s_zip_writer *zip, const struct s2s_buf *pickle,
                     struct s2s_error *err)
{
    int rc = s2s_zip_add(zip, "archive/data.pkl", ALIGN, pickle->data, pickle->len, err);
    return rc < 0 ? rc : s2s_zip_add(zip, "archive/byteorder", ALIGN, "little", 6, err);
}

int ckpt_torch_begin_storage(struct s2s_zip_writer *zip, size_t number, struct s2s_error *err)
{
    char name[40];
    snprintf(name, sizeof name, "archive/data/%zu", number);
    return s2s_zip_begin(zip, name, ALIGN, err);
}

int ckpt_torch_end(struct s2s_zip_writer *zip, int64_t *len, struct s2s_error *err)
{
    int rc = s2s_zip_add(zip, "archive/version", ALIGN, "3\n", 2, err);
    return rc < 0 ? rc : s2s_zip_finish(zip, len, err);
}

static int write_archive(s2s_zip_sink *sink, void *ctx, const struct s2s_buf *pickle,
                         const struct storages *storages, int64_t *len, struct s2s_error *err)
{
    struct s2s_zip_writer *zip = s2s_zip_writer_new(sink, ctx);
    int rc = ckpt_torch_begin(zip, pickle, err);
    for (size_t i = 0; storages && rc == 0 && i < storages->n; i++) {
        rc = ckpt_torch_begin_storage(zip, i, err);
        if (rc == 0)
            rc = s2s_zip_write(zip, storages->bytes[i].data, storages->bytes[i].len, err);
        if (rc == 0)
            rc = s2s_zip_end(zip, err);
    }
    if (rc == 0)
        rc = ckpt_torch_end(zip, len, err);
    s2s_zip_writer_free(zip);
    return rc;
}

int ckpt_pickle_archive(s2s_zip_sink *sink, void *ctx, const struct s2s_buf *pickle, int64_t *len,
                        struct s2s_error *err)
{
    return write_archive(sink, ctx, pickle, NULL, len, err);
}

void ckpt_common_make(struct s2s_buf *file, const json_t *common)
{
    struct storages storages = {.n = 0};
    struct ckpt_emitter out;
    const char *key;
    json_t *value;
    int64_t len;
    ckpt_emit_begin(&out);
    ckpt_emit_op(&out, "}(");
    json_object_foreach((json_t *)common, key, value)
    {
        ckpt_emit_str(&out, key);
        if (strcmp(key, "args") == 0 && json_is_object(value))
            ckpt_emit_namespace(&out, value);
        else if (strcmp(key, "optimizer") == 0)
            emit_optimizer(&out, &storages, value);
        else
            ckpt_emit_json(&out, value);
    }
    ckpt_emit_op(&out, "u");
    ckpt_emit_end(&out);
    if (write_archive(buf_sink, file, &out.buf, &storages, &len, NULL) < 0)
        S2S_BUG("a write to memory failed");
    ckpt_emit_release(&out);
    for (size_t i = 0; i < storages.n; i++)
        s2s_buf_release(&storages.bytes[i]);
    free(storages.bytes);
}

/* ---- copying with changes, in pieces ---- */

struct change {
    const struct ckpt_common_change *how;
    const struct s2s_zip *zip;
    struct s2s_zip_writer *out;
    char piece[PIECE];
};

/* Copies bytes [pos, end) of the archive. */
static int copy_bytes(struct change *c, int64_t pos, int64_t end, struct s2s_error *err)
{
    int rc = 0;
    while (rc == 0 && pos < end) {
        const size_t n = end - pos < PIECE ? (size_t)(end - pos) : PIECE;
        rc = s2s_zip_read(c->zip, c->piece, pos, n, err);
        if (rc == 0)
            rc = s2s_zip_write(c->out, c->piece, n, err);
        pos += (int64_t)n;
    }
    return rc;
}

/* Ends the pickle. Its dict is on top of the stack; STOP is replaced by key, value, SETITEM and
 * STOP. Memo entries that the emitter overwrites are not read after this point. */
static int write_stop(struct change *c, struct s2s_error *err)
{
    struct ckpt_emitter item;
    if (!c->how->key)
        return s2s_zip_write(c->out, ".", 1, err);
    ckpt_emit_begin(&item);
    const size_t begin = item.buf.len; /* skips PROTO */
    ckpt_emit_str(&item, c->how->key);
    ckpt_emit_json(&item, c->how->value);
    ckpt_emit_op(&item, "s");
    ckpt_emit_end(&item);
    int rc = s2s_zip_write(c->out, item.buf.data + begin, item.buf.len - begin, err);
    ckpt_emit_release(&item);
    return rc;
}

/*
 * Copies the pickle with changes. Protocol 4 and later have frames, whose lengths would change;
 * torch.save writes protocol 2. A byte object is a list of one element. The list is the first
 * object of such a pickle, and the element the last that is added to it: without the opcodes that
 * create the list and append to it, the element remains on the stack.
 */
static int change_pickle(struct change *c, const struct s2s_zip_member *member,
                         struct s2s_error *err)
{
    enum { HEAD = 8 };
    unsigned char head[HEAD] = {0}, tail[2] = {0};
    const bool listed = c->how->listed;
    const int64_t len = member->len_bytes;
    int64_t begin = 2;
    int rc = s2s_zip_read(c->zip, head, member->pos, len < HEAD ? (size_t)len : HEAD, err);
    if (rc == 0 && len > 2)
        rc = s2s_zip_read(c->zip, tail, member->pos + len - 2, 2, err);
    if (rc < 0)
        return rc;
    if (head[0] != 0x80 || head[1] > 3 || tail[1] != '.')
        return s2s_error_set(err, S2S_E_UNSUPPORTED,
                             "common.pt: its data.pkl is not a pickle of protocol 2 or 3");
    if (listed && (len < HEAD || head[begin++] != ']'))
        return s2s_error_set(err, S2S_E_UNSUPPORTED,
                             "common state: its pickle does not begin with a list");
    if (listed && head[begin] == 'q')
        begin += 2;
    if (listed && head[begin] == '(' && tail[0] == 'e')
        begin++;
    rc = s2s_zip_write(c->out, head, 2, err);
    if (rc == 0)
        rc = copy_bytes(c, member->pos + begin, member->pos + len - (listed ? 2 : 1), err);
    return rc < 0 ? rc : write_stop(c, err);
}

static int change_member(struct change *c, const struct s2s_zip_member *member,
                         struct s2s_error *err)
{
    int rc = s2s_zip_check_member(c->zip, member, c->piece, PIECE, err);
    if (rc == 0)
        rc = s2s_zip_begin(c->out, member->name, ALIGN, err);
    if (rc < 0)
        return rc;
    rc = member == s2s_zip_find(c->zip, "data.pkl")
             ? change_pickle(c, member, err)
             : copy_bytes(c, member->pos, member->pos + member->len_bytes, err);
    return rc < 0 ? rc : s2s_zip_end(c->out, err);
}

int ckpt_common_change(s2s_zip_sink *sink, void *ctx, const struct s2s_zip_source *source,
                       const struct ckpt_common_change *how, struct s2s_error *err)
{
    struct s2s_zip zip;
    int64_t written;
    int rc = s2s_zip_open(&zip, source, err);
    if (rc < 0)
        return s2s_error_add(err, rc, "common.pt");
    struct change *c = s2s_xcalloc(1, sizeof *c);
    *c = (struct change){.how = how, .zip = &zip, .out = s2s_zip_writer_new(sink, ctx)};
    if (!s2s_zip_find(&zip, "data.pkl"))
        rc = s2s_error_set(err, S2S_E_FORMAT, "common.pt: has no data.pkl");
    for (size_t i = 0; i < zip.n_members && rc == 0; i++)
        rc = change_member(c, &zip.members[i], err);
    if (rc == 0)
        rc = s2s_zip_finish(c->out, &written, err);
    s2s_zip_writer_free(c->out);
    s2s_zip_release(&zip);
    free(c);
    return rc;
}

int ckpt_common_check(const struct s2s_zip_source *source, struct s2s_error *err)
{
    struct ckpt_archive archive;
    int rc = ckpt_archive_open(&archive, source, CKPT_CHECK, err);
    if (rc < 0)
        return s2s_error_add(err, rc, "common state without its list");
    if (archive.pickle.root->kind != CKPT_DICT)
        rc = s2s_error_set(err, S2S_E_UNSUPPORTED, "common state: it is not a dict in a list");
    ckpt_archive_release(&archive);
    return rc;
}
