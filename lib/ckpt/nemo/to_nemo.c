/* Plans and writes a .nemo from a Parakeet folder or another .nemo. */
#include "lib/ckpt/nemo/to_nemo.h"

#include "lib/base/base.h"
#include "lib/ckpt/pickle/emit.h"
#include "lib/ckpt/read/read.h"
#include "lib/ckpt/write/common.h"
#include "lib/io/digest.h"
#include "lib/io/outfile.h"
#include "lib/io/tar.h"
#include "lib/io/zip.h"

/* ---- from NeMo's names ---- */

static bool is_harmless(const char *name)
{
    return *name && *name != '/' && strlen(name) <= CKPT_NEMO_MAX_NAME && strcmp(name, "..") != 0 &&
           !s2s_starts_with(name, "../") && !strstr(name, "/../") && !s2s_ends_with(name, "/..") &&
           !strchr(name, '\\');
}

/* Copies all members except weights and configuration, under their names. */
static int copy_members(struct s2s_nemo_output *out, struct s2s_ckpt *ckpt, bool with_config,
                        struct s2s_error *err)
{
    const char *root = ckpt->root ? ckpt->root : "";
    int rc = 0;
    for (size_t i = 0; i < ckpt->n_members && rc == 0; i++) {
        const struct ckpt_member *member = &ckpt->members[i];
        if (!s2s_starts_with(member->name, root))
            continue;
        const char *name = member->name + strlen(root);
        if (strcmp(name, CKPT_NEMO_WEIGHTS) == 0 ||
            (!with_config && strcmp(name, CKPT_NEMO_CONFIG) == 0))
            continue;
        if (!is_harmless(name))
            return s2s_error_set(err, S2S_E_UNSUPPORTED, "%s: member %s: its name is refused",
                                 ckpt->path, member->name);
        rc = ckpt_side_take_member(&out->files, ckpt, member, name, err);
    }
    return rc;
}

static int from_nemo(struct s2s_nemo_output *out, struct s2s_ckpt *ckpt,
                     const struct s2s_nemo_options *options, struct s2s_error *err)
{
    json_t *tree = NULL;
    int rc = 0;
    if (strcmp(ckpt->format, "mp_rank") == 0 || ckpt->inside)
        return s2s_error_set(err, S2S_E_UNSUPPORTED,
                             "%s: a .nemo is written of one model_weights.ckpt; these weights are "
                             "distributed",
                             ckpt->path);
    if (options->tokenizer || options->without_tokenizer)
        return s2s_error_set(err, S2S_E_ARG,
                             "%s: has NeMo's names, whose configuration says the tokenizer: it is "
                             "kept; leave out --tokenizer and --no-tokenizer",
                             ckpt->path);
    for (size_t i = 0; i < ckpt->n_tensors; i++)
        s2s_ckpt_plan_copy(&out->plan, ckpt->tensors[i].name, &ckpt->tensors[i]);
    for (size_t i = 0; i < ckpt->n_objects; i++)
        ckpt_map_add_name(&out->map.unused_objects, ckpt->objects[i].name);
    if (options->yaml) {
        ckpt_side_add_text(&out->files, CKPT_NEMO_CONFIG, options->yaml);
        rc = ckpt_nemo_parse_yaml(&tree, options->yaml, err);
    }
    if (rc == 0)
        rc = copy_members(out, ckpt, !options->yaml, err);
    if (rc == 0 && tree)
        rc = ckpt_nemo_add_named(out, ckpt, tree, err);
    if (rc == 0 && !ckpt_side_find(&out->files, CKPT_NEMO_CONFIG)) {
        rc = s2s_error_set(err, S2S_E_NOTFOUND, "%s: has no %s", ckpt->path, CKPT_NEMO_CONFIG);
        s2s_error_hint(err, rc, "give one with --config");
    }
    json_decref(tree);
    return rc;
}

/* A Lightning checkpoint of a NeMo model: takes its state_dict, without the trainer's state. */
static int take_state_dict(struct s2s_nemo_output *out, struct s2s_ckpt *ckpt,
                           struct s2s_error *err)
{
    out->map.is_left = s2s_ckpt_is_state;
    for (size_t i = 0; i < ckpt->n_tensors; i++) {
        const char *name = ckpt->tensors[i].name;
        if (s2s_ckpt_is_state(name))
            out->map.n_state++;
        else if (!s2s_starts_with(name, "state_dict."))
            ckpt_map_add_name(&out->map.unused, name);
    }
    return s2s_ckpt_select(ckpt, "state_dict", err);
}

/* ---- both ---- */

static int by_name(const void *a, const void *b)
{
    const struct ckpt_side_file *x = a, *y = b;
    const bool x_first = strcmp(x->path, CKPT_NEMO_CONFIG) == 0,
               y_first = strcmp(y->path, CKPT_NEMO_CONFIG) == 0;
    return x_first != y_first ? (x_first ? -1 : 1) : strcmp(x->path, y->path);
}

int s2s_nemo_prepare(struct s2s_nemo_output *out, struct s2s_ckpt *ckpt,
                     const struct s2s_nemo_options *options, struct s2s_error *err)
{
    int rc;
    *out = (struct s2s_nemo_output){.plan = {.source = ckpt}};
    if (s2s_ckpt_find(ckpt, "state_dict.encoder.pre_encode.conv.0.weight") &&
        (rc = take_state_dict(out, ckpt, err)) < 0)
        return rc;
    if (ckpt->n_members || s2s_ckpt_find(ckpt, "encoder.pre_encode.conv.0.weight"))
        rc = from_nemo(out, ckpt, options, err);
    else if (s2s_ckpt_find(ckpt, "encoder.subsampling.layers.0.weight") ||
             s2s_ckpt_find(ckpt, "subsampling.layers.0.weight"))
        rc = ckpt_nemo_from_parakeet(out, ckpt, options, err);
    else
        rc = s2s_error_set(err, S2S_E_UNSUPPORTED,
                           "%s: --to nemo takes transformers' Parakeet or a .nemo; these names are "
                           "neither's",
                           ckpt->path);
    if (rc == 0 && options->dtype)
        s2s_ckpt_plan_cast(&out->plan, options->dtype);
    if (rc == 0)
        rc = s2s_ckpt_plan_seal(&out->plan, err);
    if (rc == 0 && out->plan.n_targets == 0)
        rc = s2s_error_set(err, S2S_E_NOTFOUND, "no weights");
    if (out->files.n)
        qsort(out->files.v, out->files.n, sizeof *out->files.v, by_name);
    return rc;
}

/* ---- a state dict in torch.save's format: a zip of data.pkl and a storage per tensor ---- */

struct member {
    struct s2s_zip_writer *zip;
    int64_t left;
};

static int member_sink(void *ctx, const void *bytes, size_t len, struct s2s_error *err)
{
    struct member *member = ctx;
    member->left -= (int64_t)len;
    return s2s_zip_write(member->zip, bytes, len, err);
}

/* An OrderedDict of names and tensors; storages are numbered in this order. */
static void make_pickle(struct ckpt_emitter *pickle, const struct s2s_nemo_output *out)
{
    char key[24];
    size_t n = 0;
    ckpt_emit_begin(pickle);
    ckpt_emit_global(pickle, "collections", "OrderedDict");
    ckpt_emit_op(pickle, ")R(");
    for (size_t i = 0; i < out->n_made; i++) {
        const struct ckpt_made *made = &out->made[i];
        snprintf(key, sizeof key, "%zu", n++);
        ckpt_emit_str(pickle, made->name);
        ckpt_emit_tensor(pickle, key, made->dtype, made->n_dims, made->shape);
    }
    for (size_t i = 0; i < out->plan.n_targets; i++) {
        const struct s2s_ckpt_target *target = &out->plan.targets[i];
        snprintf(key, sizeof key, "%zu", n++);
        ckpt_emit_str(pickle, s2s_ckpt_target_name(target));
        ckpt_emit_tensor(pickle, key, target->dtype, target->n_dims, s2s_ckpt_target_shape(target));
    }
    ckpt_emit_op(pickle, "u");
    ckpt_emit_end(pickle);
}

static int write_storage(struct s2s_zip_writer *zip, struct s2s_nemo_output *out, size_t i,
                         const struct s2s_ckpt_write *how, struct s2s_error *err)
{
    const struct s2s_ckpt_target *target = &out->plan.targets[i];
    struct member member = {zip, s2s_ckpt_target_bytes(target)};
    int rc = ckpt_torch_begin_storage(zip, out->n_made + i, err);
    if (rc == 0 && !how)
        s2s_zip_skip(zip, member.left);
    else if (rc == 0)
        rc = s2s_ckpt_target_stream(&out->plan, target, how, member_sink, &member, err);
    if (rc == 0 && how && member.left)
        S2S_BUG("%s: %lld bytes too few", s2s_ckpt_target_name(target), (long long)member.left);
    return rc < 0 ? rc : s2s_zip_end(zip, err);
}

/* Writes the dict as a torch.save archive to sink; *len_bytes: its length. how NULL: only computes
 * that length; then no tensor is read, and the sink gets meaningless bytes. */
static int write_torch(struct s2s_nemo_output *out, const struct s2s_ckpt_write *how,
                       s2s_zip_sink *sink, void *ctx, int64_t *len_bytes, struct s2s_error *err)
{
    struct s2s_zip_writer *zip = s2s_zip_writer_new(sink, ctx);
    struct ckpt_emitter pickle;
    make_pickle(&pickle, out);
    int rc = ckpt_torch_begin(zip, &pickle.buf, err);
    for (size_t i = 0; i < out->n_made && rc == 0; i++) {
        const struct ckpt_made *made = &out->made[i];
        rc = ckpt_torch_begin_storage(zip, i, err);
        if (rc == 0)
            rc = s2s_zip_write(zip, made->bytes, made->len, err);
        if (rc == 0)
            rc = s2s_zip_end(zip, err);
    }
    for (size_t i = 0; i < out->plan.n_targets && rc == 0; i++)
        rc = write_storage(zip, out, i, how, err);
    if (rc == 0)
        rc = ckpt_torch_end(zip, len_bytes, err);
    s2s_zip_writer_free(zip);
    ckpt_emit_release(&pickle);
    return rc;
}

/* ---- writing ---- */

struct archive {
    struct s2s_outfile *file;
    struct s2s_digest *digest; /* NULL: not requested */
};

static int put(void *ctx, const void *bytes, size_t len, struct s2s_error *err)
{
    const struct archive *archive = ctx;
    if (archive->digest)
        s2s_digest_update(archive->digest, bytes, len);
    return s2s_outfile_write(archive->file, bytes, len, err);
}

static int null_sink(void *ctx, const void *bytes, size_t len, struct s2s_error *err)
{
    return 0;
}

static int begin_member(struct archive *archive, const char *name, int64_t len,
                        struct s2s_error *err)
{
    unsigned char header[S2S_TAR_MAX_HEADER];
    char *dotted = s2s_xasprintf("./%s", name); /* as in NeMo's archives */
    size_t header_len = s2s_tar_header(header, dotted, (uint64_t)len);
    free(dotted);
    return put(archive, header, header_len, err);
}

static int end_member(struct archive *archive, int64_t len, struct s2s_error *err)
{
    static const char zeros[S2S_TAR_BLOCK];
    return put(archive, zeros, s2s_tar_padding((uint64_t)len), err);
}

static int write_weights(struct s2s_nemo_output *out, struct archive *archive,
                         const struct s2s_ckpt_write *how, struct s2s_error *err)
{
    int64_t len, written = 0;
    /* a tar header needs the length first */
    int rc = write_torch(out, NULL, null_sink, NULL, &len, err);
    if (rc == 0)
        rc = begin_member(archive, CKPT_NEMO_WEIGHTS, len, err);
    if (rc == 0)
        rc = write_torch(out, how, put, archive, &written, err);
    if (rc == 0 && written != len)
        S2S_BUG("measured %lld bytes, wrote %lld", (long long)len, (long long)written);
    return rc < 0 ? rc : end_member(archive, len, err);
}

int s2s_nemo_write(struct s2s_nemo_output *out, struct s2s_outfile *file,
                   const struct s2s_ckpt_write *how, char digest[33], struct s2s_error *err)
{
    static const char tail[S2S_TAR_TAIL];
    struct archive archive = {file, digest ? s2s_digest_new(128) : NULL};
    int rc = 0;
    for (size_t i = 0; i < out->files.n && rc == 0; i++) {
        const int64_t len = (int64_t)out->files.v[i].len;
        rc = begin_member(&archive, out->files.v[i].path, len, err);
        if (rc == 0)
            rc = put(&archive, out->files.v[i].bytes, out->files.v[i].len, err);
        if (rc == 0)
            rc = end_member(&archive, len, err);
    }
    if (rc == 0)
        rc = write_weights(out, &archive, how, err);
    if (rc == 0)
        rc = put(&archive, tail, sizeof tail, err);
    if (digest)
        s2s_digest_hex(archive.digest, digest);
    s2s_digest_free(archive.digest);
    return rc < 0 ? rc : s2s_ckpt_plan_verify(&out->plan, err);
}

void s2s_nemo_release(struct s2s_nemo_output *out)
{
    s2s_ckpt_plan_release(&out->plan);
    for (size_t i = 0; i < out->n_made; i++)
        free(out->made[i].bytes);
    ckpt_side_release(&out->files);
    ckpt_map_free_result(&out->map);
    *out = (struct s2s_nemo_output){.n_made = 0};
}
