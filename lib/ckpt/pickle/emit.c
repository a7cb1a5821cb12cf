/* Writes pickles of protocol 2: the few forms that checkpoints need. */
#include "lib/ckpt/pickle/emit.h"

#include <math.h>

#include "lib/base/dtype.h"
#include "lib/ckpt/box.h"
#include "lib/ckpt/file.h"
#include "lib/ckpt/pickle/pickle.h"
#include "lib/ckpt/pickle/torch_dtype.h"
#include "lib/io/safetensors.h"

void ckpt_emit_op(struct ckpt_emitter *out, const char *ops)
{
    s2s_buf_puts(&out->buf, ops);
}

void ckpt_emit_begin(struct ckpt_emitter *out)
{
    *out = (struct ckpt_emitter){.buf = S2S_BUF_INIT};
    ckpt_emit_op(out, "\x80\x02");
}

void ckpt_emit_end(struct ckpt_emitter *out)
{
    ckpt_emit_op(out, ".");
}

int ckpt_emit_drain(struct ckpt_emitter *out, struct s2s_error *err)
{
    enum { LARGE = 64 << 10 };
    if (!out->file || out->buf.len < LARGE)
        return 0;
    int rc = ckpt_file_write(out->file, out->buf.data, out->buf.len, err);
    s2s_buf_clear(&out->buf);
    return rc;
}

void ckpt_emit_release(struct ckpt_emitter *out)
{
    for (size_t i = 0; i < out->n_memo; i++)
        free(out->memo[i]);
    free(out->memo);
    s2s_buf_release(&out->buf);
    *out = (struct ckpt_emitter){.buf = S2S_BUF_INIT};
}

void ckpt_emit_int(struct ckpt_emitter *out, int64_t value)
{
    if (value >= 0 && value < 256) {
        s2s_buf_putc(&out->buf, 'K');
        s2s_buf_put_le(&out->buf, (uint64_t)value, 1);
    } else if (value >= INT32_MIN && value <= INT32_MAX) {
        s2s_buf_putc(&out->buf, 'J');
        s2s_buf_put_le(&out->buf, (uint64_t)value, 4);
    } else {
        /* LONG1: two's complement */
        int n = 5;
        while (n < 8 && (value >> (8 * n - 1)) != 0 && (value >> (8 * n - 1)) != -1)
            n++;
        s2s_buf_putc(&out->buf, '\x8a');
        s2s_buf_put_le(&out->buf, (uint64_t)n, 1);
        s2s_buf_put_le(&out->buf, (uint64_t)value, n);
    }
}

void ckpt_emit_strn(struct ckpt_emitter *out, const char *s, size_t len)
{
    s2s_buf_putc(&out->buf, 'X');
    s2s_buf_put_le(&out->buf, len, 4);
    s2s_buf_add(&out->buf, s, len);
}

void ckpt_emit_str(struct ckpt_emitter *out, const char *s)
{
    ckpt_emit_strn(out, s, strlen(s));
}

static void emit_reference(struct ckpt_emitter *out, size_t i)
{
    s2s_buf_putc(&out->buf, i < 256 ? 'h' : 'j');
    s2s_buf_put_le(&out->buf, i, i < 256 ? 1 : 4);
}

bool ckpt_emit_recall(struct ckpt_emitter *out, const char *key)
{
    for (size_t i = 0; i < out->n_memo; i++)
        if (strcmp(out->memo[i], key) == 0) {
            emit_reference(out, i);
            return true;
        }
    return false;
}

void ckpt_emit_remember(struct ckpt_emitter *out, const char *key)
{
    size_t i = out->n_memo;
    s2s_grow(&out->memo, i, &out->cap_memo, sizeof *out->memo);
    out->memo[out->n_memo++] = s2s_xstrdup(key);
    s2s_buf_putc(&out->buf, i < 256 ? 'q' : 'r');
    s2s_buf_put_le(&out->buf, i, i < 256 ? 1 : 4);
}

void ckpt_emit_global(struct ckpt_emitter *out, const char *module, const char *name)
{
    const size_t module_len = strlen(module);
    for (size_t i = 0; i < out->n_memo; i++) { /* the key is not made: this is for each tensor */
        const char *key = out->memo[i];
        if (strncmp(key, module, module_len) == 0 && key[module_len] == ' ' &&
            strcmp(key + module_len + 1, name) == 0) {
            emit_reference(out, i);
            return;
        }
    }
    s2s_buf_printf(&out->buf, "c%s\n%s\n", module, name);
    char *key = s2s_xasprintf("%s %s", module, name);
    ckpt_emit_remember(out, key);
    free(key);
}

void ckpt_emit_ints(struct ckpt_emitter *out, const int64_t *v, int n)
{
    ckpt_emit_op(out, "(");
    for (int i = 0; i < n; i++)
        ckpt_emit_int(out, v[i]);
    ckpt_emit_op(out, "t");
}

static void emit_real(struct ckpt_emitter *out, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, 8);
    bits = __builtin_bswap64(bits); /* BINFLOAT is big-endian */
    s2s_buf_putc(&out->buf, 'G');
    s2s_buf_put_le(&out->buf, bits, 8);
}

void ckpt_emit_json(struct ckpt_emitter *out, const json_t *value)
{
    const char *key;
    json_t *item;
    size_t i;
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        ckpt_emit_op(out, "}(");
        json_object_foreach((json_t *)value, key, item)
        {
            ckpt_emit_str(out, key);
            ckpt_emit_json(out, item);
        }
        ckpt_emit_op(out, "u");
        break;
    case JSON_ARRAY:
        ckpt_emit_op(out, "](");
        json_array_foreach(value, i, item) ckpt_emit_json(out, item);
        ckpt_emit_op(out, "e");
        break;
    case JSON_STRING:
        ckpt_emit_strn(out, json_string_value(value), json_string_length(value));
        break;
    case JSON_INTEGER:
        ckpt_emit_int(out, json_integer_value(value));
        break;
    case JSON_REAL:
        emit_real(out, json_real_value(value));
        break;
    case JSON_TRUE:
    case JSON_FALSE:
        ckpt_emit_op(out, json_is_true(value) ? "\x88" : "\x89");
        break;
    case JSON_NULL:
        ckpt_emit_op(out, "N");
        break;
    }
}

static bool has_bytes(const struct ckpt_node *node)
{
    return node->kind == CKPT_BYTES && (node->text || node->len == 0);
}

/* Protocol 2 has no bytes opcode: bytes are a call that encodes a Latin-1 string. */
static void emit_bytes(struct ckpt_emitter *out, const struct ckpt_node *node)
{
    struct s2s_buf text = S2S_BUF_INIT;
    for (uint32_t i = 0; i < node->len; i++) {
        const unsigned char byte = (unsigned char)node->text[i];
        if (byte >= 0x80)
            s2s_buf_putc(&text, (char)(0xC0 | byte >> 6));
        s2s_buf_putc(&text, (char)(byte < 0x80 ? byte : 0x80 | (byte & 0x3F)));
    }
    ckpt_emit_global(out, node->n ? "__builtin__" : "_codecs", node->n ? "bytearray" : "encode");
    ckpt_emit_strn(out, text.data ? text.data : "", text.len);
    ckpt_emit_str(out, "latin1");
    ckpt_emit_op(out, "\x86R");
    s2s_buf_release(&text);
}

/* The state of a BytesIO is (bytes, position, attributes). */
static bool emit_bytes_io(struct ckpt_emitter *out, const struct ckpt_node *node)
{
    const struct ckpt_node *state = node->items[2];
    if (!ckpt_is(node, "_io", "BytesIO") || node->items[1]->n || !state ||
        state->kind != CKPT_TUPLE || state->n != 3 || !has_bytes(state->items[0]) ||
        state->items[1]->kind != CKPT_INT || state->items[2]->kind != CKPT_NONE)
        return false;
    ckpt_emit_global(out, "_io", "BytesIO");
    ckpt_emit_op(out, ")\x81(");
    emit_bytes(out, state->items[0]);
    ckpt_emit_int(out, state->items[1]->i);
    ckpt_emit_op(out, "Ntb");
    return true;
}

bool ckpt_emit_node(struct ckpt_emitter *out, const struct ckpt_node *node)
{
    switch ((enum ckpt_kind)node->kind) {
    case CKPT_BYTES:
        if (has_bytes(node))
            emit_bytes(out, node);
        return has_bytes(node);
    case CKPT_RECORD:
        return emit_bytes_io(out, node);
    case CKPT_FLOAT:
        if (!isfinite(node->f))
            emit_real(out, node->f);
        return !isfinite(node->f);
    case CKPT_BIGINT:
        if (node->len > UINT8_MAX)
            return false;
        ckpt_emit_op(out, "\x8a"); /* LONG1 */
        s2s_buf_put_le(&out->buf, node->len, 1);
        s2s_buf_add(&out->buf, node->text, node->len);
        return true;
    case CKPT_GLOBAL: {
        const enum s2s_dtype dtype = ckpt_dtype_of_global(node);
        if (dtype != S2S_DTYPE_NONE)
            ckpt_emit_global(out, "torch", ckpt_torch_dtype(dtype));
        return dtype != S2S_DTYPE_NONE;
    }
    default:
        return false;
    }
}

void ckpt_emit_namespace(struct ckpt_emitter *out, const json_t *value)
{
    ckpt_emit_global(out, "argparse", "Namespace");
    ckpt_emit_op(out, ")\x81");
    ckpt_emit_json(out, value);
    ckpt_emit_op(out, "b");
}

void ckpt_emit_tensor(struct ckpt_emitter *out, const char *key, enum s2s_dtype dtype, int n_dims,
                      const int64_t *size)
{
    int64_t stride[S2S_MAX_DIMS];
    const int64_t numel = ckpt_box_numel(size, n_dims);
    const char *storage = ckpt_torch_storage(dtype);
    ckpt_box_strides(stride, size, n_dims);
    ckpt_emit_global(out, "torch._utils", storage ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3");
    ckpt_emit_op(out, "((");
    ckpt_emit_str(out, "storage");
    ckpt_emit_global(out, storage ? "torch" : "torch.storage",
                     storage ? storage : "UntypedStorage");
    ckpt_emit_str(out, key);
    ckpt_emit_str(out, "cpu");
    ckpt_emit_int(out, storage ? numel : numel * (int64_t)s2s_dtype_size(dtype));
    ckpt_emit_op(out, "tQ");
    ckpt_emit_int(out, 0);
    ckpt_emit_ints(out, size, n_dims);
    ckpt_emit_ints(out, stride, n_dims);
    ckpt_emit_op(out, "\x89");
    ckpt_emit_global(out, "collections", "OrderedDict");
    ckpt_emit_op(out, ")R");
    if (!storage)
        ckpt_emit_global(out, "torch", ckpt_torch_dtype(dtype));
    ckpt_emit_op(out, "tR");
}
