/* The model of a recipe, of a directory, or of a checkpoint. */
#include <stdlib.h>
#include <string.h>

#include "lib/base/affix.h"
#include "lib/base/base.h"
#include "lib/ckpt/ckpt.h"
#include "lib/conf/conf.h"
#include "lib/model/adapter.h"
#include "lib/model/salm.h"
#include "lib/optim/groups.h"

#include "lib/train/trainer.h"

void s2s_bundle_free(struct s2s_bundle *bundle)
{
    s2s_stages_release(&bundle->stages);
    s2s_model_free(bundle->model);
    s2s_device_close(bundle->device);
    *bundle = (struct s2s_bundle){.model = NULL};
}

/* A path, the name of a config file, or the config's keys in place. */
static int part_from(struct s2s_salm_part *to, const struct s2s_recipe_part *from,
                     struct s2s_error *err)
{
    *to = (struct s2s_salm_part){.dir = from->path, .override = from->override};
    if (!from->config)
        return 0;
    if (from->config->kind == S2S_CONF_MAP) {
        to->conf = from->config;
        return 0;
    }
    return s2s_conf_as_str(&to->config, from->config, err);
}

static bool given(const struct s2s_recipe_part *part)
{
    return part->path || part->config;
}

/* The part alone; of parts what is said of any. */
static int open_bare(struct s2s_bundle *b, const struct s2s_par *par,
                     const struct s2s_salm_part *part, const struct s2s_salm_parts *parts,
                     struct s2s_error *err)
{
    struct s2s_model_options options = {.config = part->config,
                                        .conf = part->conf,
                                        .override = part->override,
                                        .batch_norm_batch = parts->batch_norm_batch,
                                        .head = parts->head,
                                        .free_steps = parts->free_steps,
                                        .lora = parts->lora,
                                        .dropout = parts->dropout};
    return s2s_model_open(&b->model, b->device, par, part->dir, &options, err);
}

static int open_model(struct s2s_bundle *b, const struct s2s_recipe *r, const struct s2s_par *par,
                      enum s2s_head head, struct s2s_error *err)
{
    struct s2s_salm_parts parts = {.batch_norm_batch = r->batch_norm_batch,
                                   .projection = r->projection.path,
                                   .vision_projection = r->vision_projection.path,
                                   .vision_spec = r->vision_spec,
                                   .head = head,
                                   .free_steps = !r->step_clamp,
                                   .lora = r->has_lora ? &r->lora : NULL,
                                   .dropout = &r->dropout};
    int rc;
    if (r->model_path) {
        struct s2s_salm_part whole = {.dir = r->model_path};
        rc = open_bare(b, par, &whole, &parts, err);
    } else if ((rc = part_from(&parts.encoder, &r->encoder, err)) < 0 ||
               (rc = part_from(&parts.vision, &r->vision, err)) < 0 ||
               (rc = part_from(&parts.llm, &r->llm, err)) < 0) {
        return rc;
    } else if (given(&r->llm) && (given(&r->encoder) || given(&r->vision))) {
        rc = s2s_salm_open(&b->model, b->device, par, &parts, err);
    } else {
        const struct s2s_salm_part *bare = given(&r->llm)       ? &parts.llm
                                           : given(&r->encoder) ? &parts.encoder
                                                                : &parts.vision;
        rc = open_bare(b, par, bare, &parts, err);
    }
    b->composite = rc == 0 && b->model->kind == &s2s_model_salm;
    return rc;
}

/* Of a decoder with adapters nothing else is trained, unless a pattern says so. */
static int freeze_around_adapters(struct s2s_bundle *b, const struct s2s_recipe *r,
                                  struct s2s_error *err)
{
    int rc = s2s_lora_check(&r->lora, s2s_conf_find(r->conf, "model.lora"), err);
    if (rc < 0)
        return rc;
    s2s_params_freeze(b->model->params, b->composite ? "llm." : "");
    s2s_params_unfreeze_match(b->model->params, "*." S2S_LORA_A);
    s2s_params_unfreeze_match(b->model->params, "*." S2S_LORA_B);
    return 0;
}

/* Files that a part of the model is read from; NULL: it begins with initial values. */
static const char *source_of(const struct s2s_bundle *b, const struct s2s_recipe *r,
                             const char *name)
{
    if (r->model_path)
        return r->model_path;
    if (!b->composite)
        return b->model->dir;
    return s2s_starts_with(name, "encoder.")       ? r->encoder.path
           : s2s_starts_with(name, "vision.")      ? r->vision.path
           : s2s_starts_with(name, "vision_proj.") ? r->vision_projection.path
           : s2s_starts_with(name, "llm.")         ? r->llm.path
                                                   : r->projection.path;
}

/* A run of adapters keeps what it trains; the rest stays where it came from. */
static void mark_base(struct s2s_bundle *b, const struct s2s_recipe *r)
{
    const struct s2s_params *params = b->model->params;
    for (size_t i = 0; i < params->n; i++) {
        struct s2s_param *p = params->list[i];
        const bool moves =
            p->flags & S2S_PARAM_BUFFER && (r->batch_norm_batch || p->flags & S2S_PARAM_ROUTER);
        if (p->flags & S2S_PARAM_FROZEN && !moves && source_of(b, r, p->name))
            p->flags |= S2S_PARAM_UNSAVED;
    }
}

/* A model of one part is frozen as that part. */
static void freeze_parts(struct s2s_bundle *b, const struct s2s_recipe *r)
{
    const struct {
        const char *prefix;
        const struct s2s_recipe_part *part;
        bool alone;
    } list[] = {{"encoder.", &r->encoder, b->model->n_mels > 0},
                {"proj.", &r->projection, false},
                {"vision.", &r->vision, b->model->patch_dim > 0},
                {"vision_proj.", &r->vision_projection, false},
                {"llm.", &r->llm, b->model->vocab_size > 0}};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        if (list[i].part->freeze && (b->composite || list[i].alone))
            s2s_params_freeze(b->model->params, b->composite ? list[i].prefix : "");
}

/* Parts and groups that are frozen, or learn at another rate. */
static int make_groups(struct s2s_bundle *b, const struct s2s_recipe *r, struct s2s_error *err)
{
    struct s2s_params *params = b->model->params;
    freeze_parts(b, r);
    int rc = r->has_lora ? freeze_around_adapters(b, r, err) : 0;
    if (rc == 0)
        rc = s2s_groups_freeze(params, s2s_conf_find(r->conf, "model.freeze"), err);
    if (rc == 0)
        rc = s2s_groups_unfreeze(params, s2s_conf_find(r->conf, "model.unfreeze"), err);
    if (rc == 0 && r->has_lora)
        mark_base(b, r);
    return rc < 0 ? rc
                  : s2s_groups_scale(params, s2s_conf_find(r->conf, "optimizer.groups"),
                                     r->adamw.lr, err);
}

int s2s_bundle_open(struct s2s_bundle *b, const struct s2s_recipe *r,
                    const struct s2s_layout *layout, enum s2s_sharding sharding, enum s2s_head head,
                    struct s2s_device *device, struct s2s_error *err)
{
    const struct s2s_comm *pp = layout->comms[S2S_AXIS_PP];
    *b = (struct s2s_bundle){.device = device};
    int rc = s2s_device_work_in(device, r->dtype, err);
    if (rc < 0)
        s2s_error_add(err, rc, "train.precision");
    if (rc == 0)
        rc = open_model(b, r, &layout->par, head, err);
    if (rc == 0)
        rc = make_groups(b, r, err);
    if (rc == 0)
        rc = s2s_stages_init(&b->stages, b->model, &r->stages, s2s_comm_size(pp), s2s_comm_rank(pp),
                             err);
    if (rc == 0) {
        s2s_buckets_lay_out(b->model, layout, sharding);
        rc = s2s_params_finish(b->model->params, err);
    }
    if (rc < 0)
        s2s_bundle_free(b);
    return rc;
}

int s2s_bundle_load(struct s2s_bundle *b, uint64_t seed, struct s2s_error *err)
{
    int rc = b->composite || b->model->dir ? s2s_model_load(b->model, err) : 0;
    if (rc == 0)
        rc = s2s_adapter_load(b->composite ? s2s_salm_llm(b->model) : b->model, err);
    if (rc == 0)
        s2s_params_init(b->model->params, seed);
    return rc;
}

static bool has_base(const struct s2s_params *params)
{
    for (size_t i = 0; i < params->n; i++)
        if (params->list[i]->flags & S2S_PARAM_UNSAVED)
            return true;
    return false;
}

int s2s_bundle_restore(struct s2s_bundle *b, uint64_t seed, const char *path,
                       struct s2s_optim *optim, struct s2s_run_state *state, struct s2s_error *err)
{
    int rc = has_base(b->model->params) ? s2s_bundle_load(b, seed, err) : 0;
    return rc < 0 ? rc : s2s_restore(path, b->model->params, optim, state, err);
}

/* ---- from a checkpoint ---- */

/* The config that common.pt holds under key; *conf NULL when there is none. */
static int stored_conf(struct s2s_conf **conf, const json_t *common, const char *key,
                       struct s2s_error *err)
{
    const json_t *text = json_object_get(common, key);
    *conf = NULL;
    return text ? s2s_conf_parse(conf, json_string_value(text), json_string_length(text), key,
                                 S2S_CONF_JSON, err)
                : 0;
}

/* What the checkpoint says of the projection of images. */
static int stored_spec(struct s2s_vision_spec *spec, const json_t *common, struct s2s_error *err)
{
    struct s2s_conf *whole;
    const struct s2s_conf *map = NULL;
    int rc = stored_conf(&whole, common, "config/composite", err);
    if (rc == 0 && whole)
        rc = s2s_conf_get_map(&map, whole, "vision_projection", err);
    if (rc == 0)
        rc = s2s_vision_spec_read(spec, map, err);
    s2s_conf_free(whole);
    return rc;
}

/* A config that ties the output layer is not believed where the checkpoint has one of its own: it
 * was converted by who believed it. */
static int untie(struct s2s_conf *llm, struct s2s_ckpt *ckpt, const char *prefix,
                 struct s2s_error *err)
{
    bool tied;
    int rc = s2s_restore_own_head(ckpt, prefix, err);
    if (rc <= 0)
        return rc;
    rc = s2s_conf_get_bool_or(&tied, llm, "tie_word_embeddings", false, err);
    if (rc < 0)
        return rc;
    if (tied)
        s2s_warn("train",
                 "%s: %slm_head.weight differs from the embedding, though its config ties them "
                 "(tie_word_embeddings): it stays a matrix of its own",
                 s2s_ckpt_path(ckpt), prefix);
    /* also where nothing is said: the class may tie */
    return s2s_conf_set_text(llm, "tie_word_embeddings", "false", S2S_CONF_FROM_DERIVED,
                             s2s_ckpt_path(ckpt), err);
}

static int open_stored(struct s2s_bundle *b, struct s2s_ckpt *ckpt, struct s2s_error *err)
{
    const json_t *common = s2s_ckpt_common(ckpt);
    struct s2s_conf *encoder = NULL, *vision = NULL, *llm = NULL;
    if (json_object_get(common, "base"))
        return s2s_error_hint(err,
                              s2s_error_set(err, S2S_E_UNSUPPORTED,
                                            "it holds what was trained beside adapters, not the "
                                            "whole model"),
                              "s2s-train export --merge makes a checkpoint of both");
    int rc = stored_conf(&encoder, common, "config/encoder", err);
    if (rc == 0)
        rc = stored_conf(&vision, common, "config/vision", err);
    if (rc == 0)
        rc = stored_conf(&llm, common, "config/llm", err);
    if (rc == 0 && llm)
        rc = untie(llm, ckpt, encoder || vision ? "llm." : "", err);
    if (rc == 0 && (encoder || vision) && llm) {
        struct s2s_salm_parts parts = {
            .encoder.conf = encoder, .vision.conf = vision, .llm.conf = llm};
        rc = stored_spec(&parts.vision_spec, common, err);
        if (rc == 0)
            rc = s2s_salm_open(&b->model, b->device, NULL, &parts, err);
        b->composite = true;
    } else if (rc == 0 && (encoder || llm)) {
        struct s2s_salm_part part = {.conf = llm ? llm : encoder};
        rc = open_bare(b, NULL, &part, &(struct s2s_salm_parts){.projection = NULL}, err);
    } else if (rc == 0) {
        rc = s2s_error_set(err, S2S_E_NOTFOUND, "it does not say which model it holds");
        s2s_error_hint(err, rc, "convert it with s2s-ckpt convert --to hf and use --model");
    }
    s2s_conf_free(encoder);
    s2s_conf_free(vision);
    s2s_conf_free(llm);
    return rc;
}

static int open_checkpoint(struct s2s_bundle *b, const char *path, struct s2s_error *err)
{
    struct s2s_ckpt *ckpt = NULL;
    int rc = s2s_ckpt_open(&ckpt, path, err);
    if (rc < 0)
        return rc;
    if ((rc = open_stored(b, ckpt, err)) < 0)
        s2s_error_add(err, rc, "%s", s2s_ckpt_path(ckpt));
    s2s_ckpt_close(ckpt);
    if (rc == 0)
        rc = s2s_params_finish(b->model->params, err);
    return rc < 0 ? rc : s2s_restore(path, b->model->params, NULL, NULL, err);
}

int s2s_bundle_open_dir(struct s2s_bundle *b, const char *dir, const char *ckpt,
                        struct s2s_error *err)
{
    *b = (struct s2s_bundle){.model = NULL};
    static const struct s2s_stages_spec one = S2S_STAGES_SPEC_INIT;
    int rc = s2s_device_open(&b->device, NULL, err);
    if (rc == 0 && ckpt) {
        rc = open_checkpoint(b, ckpt, err);
    } else if (rc == 0) {
        struct s2s_salm_part whole = {.dir = dir};
        rc = open_bare(b, NULL, &whole, &(struct s2s_salm_parts){.projection = NULL}, err);
        if (rc == 0)
            rc = s2s_params_finish(b->model->params, err);
        if (rc == 0) {
            b->composite = b->model->kind == &s2s_model_salm;
            rc = s2s_bundle_load(b, 0, err);
        }
    }
    if (rc == 0)
        rc = s2s_stages_init(&b->stages, b->model, &one, 1, 0, err);
    if (rc < 0)
        s2s_bundle_free(b);
    return rc;
}
