/* Writes a state dict in torch.save's format: a zip of data.pkl and a storage per tensor. */
#include "lib/ckpt/pickle/emit.h"
#include "lib/base/base.h"
#include "lib/ckpt/nemo/to_nemo.h"
#include "lib/ckpt/write/common.h"
#include "lib/io/zip.h"

struct member {
    struct s2s_zip_writer *zip;
    int64_t left;
};

static int data_sink(void *ctx, const void *bytes, size_t len, struct s2s_error *err)
{
    struct member *member = ctx;
    member->left -= (int64_t)len;
    return s2s_zip_write(member->zip, bytes, len, err);
}

/* An OrderedDict of names and tensors; storages are numbered in this order. */
static void make_pickle(struct ckpt_emitter *out, const struct ckpt_torch_dict *dict)
{
    char key[24];
    size_t n = 0;
    ckpt_emit_begin(out);
    ckpt_emit_global(out, "collections", "OrderedDict");
    ckpt_emit_op(out, ")R(");
    for (size_t i = 0; i < dict->n_made; i++) {
        const struct ckpt_made *made = &dict->made[i];
        snprintf(key, sizeof key, "%zu", n++);
        ckpt_emit_str(out, made->name);
        ckpt_emit_tensor(out, key, made->dtype, made->n_dims, made->shape);
    }
    for (size_t i = 0; i < dict->plan->n_targets; i++) {
        const struct s2s_ckpt_target *target = &dict->plan->targets[i];
        snprintf(key, sizeof key, "%zu", n++);
        ckpt_emit_str(out, s2s_ckpt_target_name(target));
        ckpt_emit_tensor(out, key, target->dtype, target->n_dims, s2s_ckpt_target_shape(target));
    }
    ckpt_emit_op(out, "u");
    ckpt_emit_end(out);
}

static int write_target(struct s2s_zip_writer *zip, const struct ckpt_torch_dict *dict, size_t i,
                        const struct s2s_ckpt_write *how, struct s2s_error *err)
{
    const struct s2s_ckpt_target *target = &dict->plan->targets[i];
    struct member member = {zip, s2s_ckpt_target_bytes(target)};
    int rc = ckpt_torch_begin_storage(zip, dict->n_made + i, err);
    if (rc == 0 && !how)
        s2s_zip_skip(zip, member.left);
    else if (rc == 0)
        rc = s2s_ckpt_target_stream(dict->plan, target, how, data_sink, &member, err);
    if (rc == 0 && how && member.left)
        S2S_BUG("%s: %lld bytes too few", s2s_ckpt_target_name(target), (long long)member.left);
    return rc < 0 ? rc : s2s_zip_end(zip, err);
}

int ckpt_write_torch(const struct ckpt_torch_dict *dict, const struct s2s_ckpt_write *how,
                     s2s_zip_sink *sink, void *ctx, int64_t *len_bytes, struct s2s_error *err)
{
    struct s2s_zip_writer *zip = s2s_zip_writer_new(sink, ctx);
    struct ckpt_emitter pickle;
    make_pickle(&pickle, dict);
    int rc = ckpt_torch_begin(zip, &pickle.buf, err);
    for (size_t i = 0; i < dict->n_made && rc == 0; i++) {
        const struct ckpt_made *made = &dict->made[i];
        rc = ckpt_torch_begin_storage(zip, i, err);
        if (rc == 0)
            rc = s2s_zip_write(zip, made->bytes, made->len, err);
        if (rc == 0)
            rc = s2s_zip_end(zip, err);
    }
    for (size_t i = 0; i < dict->plan->n_targets && rc == 0; i++)
        rc = write_target(zip, dict, i, how, err);
    if (rc == 0)
        rc = ckpt_torch_end(zip, len_bytes, err);
    s2s_zip_writer_free(zip);
    ckpt_emit_release(&pickle);
    return rc;
}
