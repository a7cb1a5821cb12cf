/*
 * `s2s-pack npy`: packed SFT files of NeMo, arrays of numpy that hold a dict a pack, to streams of
 * layout sft and back. An array of objects is a pickle, which is read as data: nothing in it is
 * run, and classes that such a file has not are refused.
 */
#include "lib/ckpt/pickle/emit.h"
#include "lib/ckpt/pickle/pickle.h"
#include "lib/data/lines.h"
#include "lib/io/digest.h"
#include "lib/io/outfile.h"
#include "tools/pack/lengths.h"
#include "tools/pack/pack.h"
#include "tools/pack/record.h"

struct options {
    struct s2s_common common;
    const char *input;
    int64_t pad_id, pack_to;
    int cp_size;
    bool says_stream; /* an option of a stream that is written was given */
};

enum { KEY_PAD_ID = 0x100, KEY_PACK_TO, KEY_CP };

static const struct argp_option option_table[] = {
    {"pad-id", KEY_PAD_ID, "ID", 0, "To a stream: id of pad slots, NeMo's is eos (default 0)", 1},
    {"pack-to", KEY_PACK_TO, "N", 0, "To a stream: each pack has N slots", 1},
    {"cp", KEY_CP, "N", 0, "To a stream: lengths are multiples of 2 N (default 1)", 1},
    {0},
};

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    struct options *opt = state->input;
    opt->says_stream |= key == KEY_PAD_ID || key == KEY_PACK_TO || key == KEY_CP;
    switch (key) {
    case KEY_PAD_ID:
        opt->pad_id = s2s_arg_i64(state, "pad-id", arg, 0, INT32_MAX);
        return 0;
    case KEY_PACK_TO:
        opt->pack_to = s2s_arg_i64(state, "pack-to", arg, 1, INT32_MAX);
        return 0;
    case KEY_CP:
        opt->cp_size = (int)s2s_arg_i64(state, "cp", arg, 1, 1 << 20);
        return 0;
    case ARGP_KEY_ARG:
        if (opt->input)
            argp_error(state, "one input, found '%s' behind '%s'", arg, opt->input);
        opt->input = arg;
        return 0;
    case ARGP_KEY_END:
        if (!opt->input)
            argp_error(state, "name a .npy file or a stream");
        if (!s2s_ends_with(opt->input, ".npy") && !opt->common.out)
            argp_error(state, "-o is missing");
        if (!s2s_ends_with(opt->input, ".npy") && opt->says_stream)
            argp_error(state,
                       "--pad-id, --pack-to and --cp act on a stream that is written: %s is "
                       "to be a .npy",
                       opt->input);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp npy_argp = {
    .options = option_table,
    .parser = parse_option,
    .args_doc = "IN.npy\nIN.s2s -o OUT.npy",
    .doc = "Turn a packed SFT file of NeMo into a stream of layout sft, or such a stream into one."
           "\vExamples:\n"
           "  s2s-pack --ids rows.jsonl --tokens 64 --layout sft -o packs.s2s\n"
           "  s2s-pack npy -o packs.npy sft/packs.s2s\n"
           "  s2s-pack npy -o packs.s2s packs.npy\n\n"
           "Exit status: 0 done, 1 an input is bad or a write failed, 2 bad command line or an "
           "input that cannot be opened.\n"
           "See also: s2s-pack(1)",
};

/* ---- from numpy ---- */

/* Where the pickle begins behind the header of an array of objects with one axis. */
static int find_pickle(size_t *at, const char *data, size_t len, struct s2s_error *err)
{
    static const char magic[] = "\x93NUMPY";
    uint32_t header_len = 0;
    size_t fixed = 10;
    if (len < 12 || memcmp(data, magic, 6) != 0)
        return s2s_error_set(err, S2S_E_FORMAT, "not a .npy file");
    if (data[6] == 1) {
        header_len = (uint8_t)data[8] | (uint32_t)(uint8_t)data[9] << 8;
    } else {
        memcpy(&header_len, data + 8, sizeof header_len);
        fixed = 12;
    }
    if (data[6] < 1 || data[6] > 3 || header_len > len - fixed)
        return s2s_error_set(err, S2S_E_TRUNCATED, "the header of the .npy file is cut or unknown");
    char *header = s2s_xstrndup(data + fixed, header_len);
    const char *shape = strstr(header, "'shape': (");
    const bool is_objects = strstr(header, "'descr': '|O'") && shape;
    const bool one_axis = is_objects && strspn(shape + 10, "0123456789") > 0 &&
                          !strncmp(shape + 10 + strspn(shape + 10, "0123456789"), ",)", 2);
    free(header);
    if (!is_objects || !one_axis)
        return s2s_error_set(err, S2S_E_FORMAT,
                             "no array of objects with one axis, as packed SFT files are");
    *at = fixed + header_len;
    return 0;
}

/* Item i of a list of whole numbers, or of truth values. */
static bool int_at(const struct ckpt_node *list, uint32_t i, int64_t *value)
{
    const struct ckpt_node *node = list->items[i];
    if (node->kind == CKPT_FLOAT && (node->f == 0 || node->f == 1))
        *value = (int64_t)node->f;
    else if (node->kind == CKPT_INT || node->kind == CKPT_BOOL)
        *value = node->i;
    else
        return false;
    return true;
}

static const struct ckpt_node *list_of(const struct ckpt_node *pack, const char *key)
{
    const struct ckpt_node *list = ckpt_get(pack, key);
    return list && list->kind == CKPT_LIST ? list : NULL;
}

/* The samples of a pack as rows, in memory that is one block each for ids and masks. */
struct npy_pack {
    struct s2s_thd_row *rows;
    char **names;
    size_t n_rows;
    int32_t *ids;
    uint8_t *mask;
};

static void npy_pack_release(struct npy_pack *p)
{
    for (size_t i = 0; p->names && i < p->n_rows; i++)
        free(p->names[i]);
    free(p->names);
    free(p->rows);
    free(p->ids);
    free(p->mask);
    *p = (struct npy_pack){.rows = NULL};
}

/* loss_mask is rolled to the left by one: where it is 1 the label counts, which is the next id. */
static int take_values(struct npy_pack *p, const struct ckpt_node *ids,
                       const struct ckpt_node *mask, struct s2s_error *err)
{
    p->ids = s2s_xcalloc(ids->n + 1, sizeof *p->ids);
    p->mask = s2s_xcalloc(ids->n + 2, 1);
    for (uint32_t i = 0; i < ids->n; i++) {
        int64_t id, bit;
        if (!int_at(ids, i, &id) || id < 0 || id > INT32_MAX)
            return s2s_error_set(err, S2S_E_FORMAT, "input_ids[%u] is no id", i);
        if (!int_at(mask, i, &bit) || (bit & 1) != bit)
            return s2s_error_set(err, S2S_E_FORMAT, "loss_mask[%u] is not 0 or 1", i);
        p->ids[i] = (int32_t)id;
        p->mask[i + 1] = (uint8_t)bit;
    }
    return 0;
}

static int read_pack(struct npy_pack *p, const struct ckpt_node *node, size_t idx,
                     struct s2s_error *err)
{
    const struct ckpt_node *ids = list_of(node, "input_ids"), *mask = list_of(node, "loss_mask"),
                           *starts = list_of(node, "seq_start_id");
    *p = (struct npy_pack){.rows = NULL};
    if (!ids || !mask || !starts)
        return s2s_error_set(err, S2S_E_FORMAT,
                             "no dict with lists input_ids, loss_mask and seq_start_id");
    if (mask->n != ids->n || starts->n == 0)
        return s2s_error_set(err, S2S_E_SHAPE, "%u ids, %u entries of loss_mask, %u samples",
                             ids->n, mask->n, starts->n);
    int rc = take_values(p, ids, mask, err);
    p->rows = s2s_xcalloc(starts->n, sizeof *p->rows);
    p->names = s2s_xcalloc(starts->n, sizeof *p->names);
    for (uint32_t i = 0; rc == 0 && i < starts->n; i++) {
        int64_t begin, end = ids->n;
        if (!int_at(starts, i, &begin) || (i + 1 < starts->n && !int_at(starts, i + 1, &end)) ||
            begin < 0 || begin >= end || end > ids->n || (i == 0 && begin != 0))
            return s2s_error_set(err, S2S_E_RANGE, "seq_start_id[%u] is out of order", i);
        p->names[i] = s2s_xasprintf("%zu.%u", idx, i);
        p->rows[i] = (struct s2s_thd_row){.id = p->names[i],
                                          .ids = p->ids + begin,
                                          .loss_mask = p->mask + begin,
                                          .n_ids = (size_t)(end - begin)};
        p->n_rows++;
    }
    return rc;
}

static json_t *header_of(const struct options *opt)
{
    json_t *config = json_pack("{s:i, s:I}", "cp", opt->cp_size, "pad_id", (json_int_t)opt->pad_id);
    if (opt->pack_to > 0)
        json_object_set_new(config, "pack_to", json_integer(opt->pack_to));
    return json_pack("{s:s, s:s, s:s, s:o, s:{s:{s:s, s:[s]}, s:{s:s, s:[s]}}}", "kind", "pack",
                     "layout", "sft", "audio", "none", "config", config, "schema",
                     "cu_seqlens_padded", "dtype", "I32", "shape", "B+1", "loss_mask", "dtype",
                     "U8", "shape", "T");
}

static int write_packs(struct s2s_stream_writer *out, const struct ckpt_node *list,
                       const struct options *opt, struct s2s_error *err)
{
    struct pack_loader loader = {.kind = PACK_INPUT_IDS, .audio = S2S_AUDIO_NONE};
    int rc = 0;
    loader.salm = (struct s2s_salm_options)S2S_SALM_OPTIONS_DEFAULT;
    loader.salm.pad_id = (int32_t)opt->pad_id;
    loader.salm.cp_size = opt->cp_size;
    loader.salm.keep_pad_labels = loader.salm.no_left_padding = true;
    loader.layout = (struct s2s_layout){.kind = S2S_THD_SFT, .pack_to = opt->pack_to};
    if ((rc = s2s_layout_check(&loader.layout, &loader.salm, err)) < 0)
        return rc;
    for (uint32_t k = 0; rc == 0 && k < list->n; k++) {
        struct npy_pack pack;
        struct pack_record record = {.n_tensors = 0};
        rc = read_pack(&pack, list->items[k], k, err);
        if (rc == 0) {
            struct pack_row *rows = s2s_xcalloc(pack.n_rows, sizeof *rows);
            for (size_t i = 0; i < pack.n_rows; i++)
                rows[i].thd = pack.rows[i];
            rc = pack_record_make(&record, rows, pack.n_rows, &loader, true, err);
            free(rows);
        }
        if (rc == 0)
            rc = s2s_stream_write(out, record.tensors, record.n_tensors, record.meta, record.n_meta,
                                  err);
        if (rc < 0)
            s2s_error_add(err, rc, "pack %u", k);
        pack_record_release(&record);
        npy_pack_release(&pack);
    }
    return rc;
}

/* The list of packs in the pickle of an array. */
static const struct ckpt_node *packs_of(const struct ckpt_pickle *pickle)
{
    const struct ckpt_node *root = pickle->root;
    const struct ckpt_node *state =
        root->kind == CKPT_RECORD && root->n > 2 ? root->items[2] : NULL;
    const struct ckpt_node *list =
        state && state->kind == CKPT_TUPLE && state->n == 5 ? state->items[4] : NULL;
    return (ckpt_is(root, "numpy._core.multiarray", "_reconstruct") ||
            ckpt_is(root, "numpy.core.multiarray", "_reconstruct")) &&
                   list && list->kind == CKPT_LIST
               ? list
               : NULL;
}

static int from_numpy(const struct options *opt, struct s2s_error *err)
{
    static const struct s2s_args_rule rules[] = {{NULL, S2S_ARGS_DROP}};
    const struct s2s_stream_options how = {.jobs = opt->common.jobs};
    struct s2s_lines file = S2S_LINES_INIT;
    struct ckpt_pickle pickle = {.root = NULL};
    struct s2s_stream_writer *out = NULL;
    char digest[33], *digests[] = {digest};
    size_t at = 0, n_args = 0;
    int rc = s2s_lines_open(&file, opt->input, err);
    if (rc < 0)
        return rc;
    rc = find_pickle(&at, file.data, file.len, err);
    if (rc == 0)
        rc = ckpt_pickle_parse(&pickle, file.data + at, file.len - at, CKPT_STRICT, err);
    const struct ckpt_node *list = rc == 0 ? packs_of(&pickle) : NULL;
    if (rc == 0 && (!list || list->n == 0))
        rc = s2s_error_set(err, S2S_E_FORMAT, "%s",
                           list ? "E_EMPTY_BATCH: there is no pack" : "no list of packs in it");
    if (rc < 0) {
        s2s_error_add(err, rc, "%s", opt->input);
        goto out;
    }
    char **args = s2s_tool_args(rules, &n_args);
    json_t *header = header_of(opt);
    rc = s2s_outfile_spares(opt->common.out, opt->input, err);
    if (rc == 0)
        rc = s2s_stream_create(&out, opt->common.out, header, NULL, args, n_args, &how, err);
    json_decref(header);
    for (size_t i = 0; i < n_args; i++)
        free(args[i]);
    free(args);
    if (rc == 0 && (rc = write_packs(out, list, opt, err)) < 0)
        s2s_error_add(err, rc, "%s", opt->input);
    s2s_xxh3_128_hex(digest, file.data, file.len);
    if (rc == 0) {
        rc = s2s_stream_commit(out, NULL, digests, 1, err);
        out = NULL;
    }
out:
    s2s_stream_abort(out);
    if (pickle.root)
        ckpt_pickle_release(&pickle);
    s2s_lines_close(&file);
    return rc;
}

/* ---- to numpy ---- */

enum { NPY_ALIGN = 64, NPY_FIXED = 10 };

static void put_header(struct s2s_buf *to, int64_t n)
{
    struct s2s_buf text = S2S_BUF_INIT;
    s2s_buf_printf(&text, "{'descr': '|O', 'fortran_order': False, 'shape': (%lld,), }",
                   (long long)n);
    while ((NPY_FIXED + text.len + 1) % NPY_ALIGN)
        s2s_buf_putc(&text, ' ');
    s2s_buf_putc(&text, '\n');
    const unsigned char head[] = {0x93,           'N',          'U', 'M', 'P', 'Y', 1, 0,
                                  text.len & 255, text.len >> 8};
    s2s_buf_add(to, head, sizeof head);
    s2s_buf_add(to, text.data, text.len);
    s2s_buf_release(&text);
}

/* What numpy's own pickle of an array of n objects says before the list of them. */
static void begin_array(struct ckpt_emitter *e, int64_t n)
{
    ckpt_emit_global(e, "numpy.core.multiarray", "_reconstruct");
    ckpt_emit_op(e, "(");
    ckpt_emit_global(e, "numpy", "ndarray");
    ckpt_emit_int(e, 0);
    ckpt_emit_op(e, "\x85"); /* (0,) */
    ckpt_emit_str(e, "b");
    ckpt_emit_op(e, "tR(");
    ckpt_emit_int(e, 1);
    ckpt_emit_int(e, n);
    ckpt_emit_op(e, "\x85");
    ckpt_emit_global(e, "numpy", "dtype");
    ckpt_emit_op(e, "(");
    ckpt_emit_str(e, "O8");
    ckpt_emit_op(e, "\x89\x88tR("); /* False, True */
    ckpt_emit_int(e, 3);
    ckpt_emit_str(e, "|");
    ckpt_emit_op(e, "NNN");
    ckpt_emit_int(e, -1);
    ckpt_emit_int(e, -1);
    ckpt_emit_int(e, 63);
    ckpt_emit_op(e, "tb\x89]("); /* its state; not in Fortran's order; the list */
}

static int32_t i32_at(const struct s2s_st_tensor *t, int64_t i)
{
    int32_t value;
    memcpy(&value, (const char *)t->data + 4 * i, sizeof value);
    return value;
}

static void put_ints(struct ckpt_emitter *e, const char *key, const int32_t *values, size_t n)
{
    ckpt_emit_str(e, key);
    ckpt_emit_op(e, "](");
    for (size_t i = 0; i < n; i++)
        ckpt_emit_int(e, values[i]);
    ckpt_emit_op(e, "e");
}

/* Each sample with the last id back, which is a label alone in the stream. */
static void put_pack(struct ckpt_emitter *e, const struct s2s_safetensors *st)
{
    const struct s2s_st_tensor *ids = s2s_safetensors_find(st, "input_ids");
    const struct s2s_st_tensor *labels = s2s_safetensors_find(st, "labels");
    const struct s2s_st_tensor *mask = s2s_safetensors_find(st, "loss_mask");
    const struct s2s_st_tensor *lens = s2s_safetensors_find(st, "seq_lens");
    const struct s2s_st_tensor *bounds = s2s_safetensors_find(st, "cu_seqlens_padded");
    const size_t most = (size_t)(ids->shape[0] + lens->shape[0]);
    int32_t *values = s2s_xcalloc(most + 1, sizeof *values);
    int32_t *bits = s2s_xcalloc(most + 1, sizeof *bits);
    int32_t *starts = s2s_xcalloc((size_t)lens->shape[0] + 1, sizeof *starts);
    size_t n = 0;
    for (int64_t s = 0; s < lens->shape[0]; s++) {
        const int64_t begin = i32_at(bounds, s), end = begin + i32_at(lens, s);
        starts[s] = (int32_t)n;
        for (int64_t t = begin; t < end; t++) {
            values[n] = i32_at(ids, t);
            bits[n++] = ((const uint8_t *)mask->data)[t];
        }
        values[n++] = i32_at(labels, end - 1);
    }
    ckpt_emit_op(e, "}(");
    put_ints(e, "input_ids", values, n);
    put_ints(e, "loss_mask", bits, n);
    put_ints(e, "seq_start_id", starts, (size_t)lens->shape[0]);
    ckpt_emit_op(e, "u");
    free(values);
    free(bits);
    free(starts);
}

static int check_stream(const struct s2s_stream *in, const char *path, struct s2s_error *err)
{
    const json_t *header = s2s_stream_header(in);
    const char *layout = json_string_value(json_object_get(header, "layout"));
    const json_t *schema = json_object_get(header, "schema");
    if (s2s_stream_kind(in) == S2S_KIND_PACK && layout && !strcmp(layout, "sft") &&
        json_object_get(schema, "loss_mask") && json_object_get(schema, "cu_seqlens_padded"))
        return 0;
    int rc = s2s_error_set(err, S2S_E_UNSUPPORTED, "%s: no packs of layout sft", path);
    return s2s_error_hint(err, rc, "make them with s2s-pack --layout sft");
}

static int flush(struct s2s_outfile *out, struct s2s_buf *buf, struct s2s_error *err)
{
    int rc = s2s_outfile_write(out, buf->data, buf->len, err);
    buf->len = 0;
    return rc;
}

static int put_stream(struct s2s_outfile *out, struct s2s_stream *in, int64_t n,
                      struct s2s_error *err)
{
    struct ckpt_emitter e;
    struct s2s_buf head = S2S_BUF_INIT;
    struct s2s_record rec;
    int more = 0;
    put_header(&head, n);
    int rc = flush(out, &head, err);
    s2s_buf_release(&head);
    ckpt_emit_begin(&e);
    begin_array(&e, n);
    while (rc == 0 && (more = s2s_stream_next(in, &rec, err)) > 0) {
        if (s2s_safetensors_find(&rec.st, "audio_slot")->shape[0] > 0)
            rc = s2s_error_set(err, S2S_E_UNSUPPORTED,
                               "record %lld has clips, which a packed SFT "
                               "file cannot hold",
                               (long long)rec.idx);
        else
            put_pack(&e, &rec.st);
        if (rc == 0)
            rc = flush(out, &e.buf, err);
    }
    rc = rc < 0 ? rc : more;
    ckpt_emit_op(&e, "etb"); /* the list, the state, and it is the array's */
    ckpt_emit_end(&e);
    if (rc == 0)
        rc = flush(out, &e.buf, err);
    ckpt_emit_release(&e);
    return rc;
}

static int to_numpy(const struct options *opt, struct s2s_error *err)
{
    struct s2s_stream *in = NULL;
    struct s2s_outfile *out = NULL;
    int64_t n = 0;
    int rc = s2s_stream_open(&in, opt->input, err);
    if (rc < 0)
        return rc;
    rc = check_stream(in, opt->input, err);
    if (rc == 0)
        n = s2s_stream_n_records(in, err);
    rc = n < 0 ? (int)n : rc;
    if (rc == 0)
        rc = s2s_outfile_spares(opt->common.out, opt->input, err);
    if (rc == 0)
        rc = s2s_outfile_open(&out, opt->common.out, err);
    if (rc == 0 && (rc = put_stream(out, in, n, err)) < 0)
        s2s_error_add(err, rc, "%s", opt->input);
    if (rc == 0) {
        rc = s2s_outfile_commit(out, err);
        out = NULL;
    }
    s2s_outfile_abort(out);
    s2s_stream_close(in);
    return rc;
}

int pack_npy(int argc, char **argv, struct s2s_error *err)
{
    struct options opt = {.common = S2S_COMMON_DEFAULT, .cp_size = 1};
    s2s_tool_parse(&npy_argp, argc, argv, &opt);
    int rc = pack_refuse_seed(&opt.common, err);
    if (rc < 0)
        return rc;
    return s2s_ends_with(opt.input, ".npy") ? from_numpy(&opt, err) : to_numpy(&opt, err);
}
