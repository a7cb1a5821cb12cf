/* Opens models by their config, and keeps the table of kinds. */
#include "lib/model/model.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/error.h"
#include "lib/base/mem.h"
#include "lib/conf/conf.h"
#include "lib/model/model_internal.h"

static const struct s2s_model_kind *const kinds[] = {&s2s_model_llama, &s2s_model_nemotron_h,
                                                     &s2s_model_fastconformer, &s2s_model_radio,
                                                     &s2s_model_salm};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

static const struct s2s_model_kind *find_kind(const char *model_type)
{
    for (size_t i = 0; i < N_KINDS; i++)
        for (const char *const *name = kinds[i]->model_types; *name; name++)
            if (strcmp(*name, model_type) == 0)
                return kinds[i];
    return NULL;
}

static int unknown_kind(const struct s2s_conf *conf, const char *model_type, struct s2s_error *err)
{
    struct s2s_buf known = S2S_BUF_INIT;
    for (size_t i = 0; i < N_KINDS; i++)
        for (const char *const *name = kinds[i]->model_types; *name; name++)
            s2s_buf_printf(&known, "%s%s", known.len ? ", " : "", *name);
    int rc = s2s_conf_error(err, S2S_E_UNSUPPORTED, s2s_conf_find(conf, "model_type"),
                            "model_type \"%s\" is not known here", model_type);
    s2s_error_hint(err, rc, "known are: %s", known.data);
    s2s_buf_release(&known);
    return rc;
}

/* From a file, or a copy of the keys that were given. */
static int read_config(struct s2s_model *model, const struct s2s_model_options *options,
                       struct s2s_error *err)
{
    if (options->conf) {
        struct s2s_buf place = S2S_BUF_INIT;
        s2s_conf_add_place(&place, &options->conf->place);
        model->config_path = s2s_xstrdup(place.data ? place.data : "config");
        s2s_buf_release(&place);
        model->conf = s2s_conf_new(S2S_CONF_FROM_DERIVED, model->config_path);
        return s2s_conf_merge(model->conf, options->conf, err);
    }
    model->config_path = options->config ? s2s_xstrdup(options->config)
                                         : s2s_xasprintf("%s/config.json", model->dir);
    int rc = s2s_conf_read(&model->conf, model->config_path, S2S_CONF_AUTO, err);
    return rc < 0 ? rc : s2s_conf_check_duplicates(model->conf, err);
}

/* Published recognisers have their encoder's config under a key, and its tensors behind a name. */
static int take_encoder(struct s2s_model *model, struct s2s_error *err)
{
    static const char *const recognisers[] = {"parakeet_ctc", "parakeet_rnnt", "parakeet_tdt"};
    const char *model_type = "";
    const struct s2s_conf *part = NULL;
    bool is_recogniser = false;
    int rc = s2s_conf_get_str_or(&model_type, model->conf, "model_type", "", err);
    for (size_t i = 0; rc == 0 && i < sizeof recognisers / sizeof *recognisers; i++)
        is_recogniser |= strcmp(model_type, recognisers[i]) == 0;
    if (rc == 0 && is_recogniser)
        rc = s2s_conf_get_map(&part, model->conf, "encoder_config", err);
    if (rc < 0 || !part)
        return rc; /* without it the model_type is refused */
    struct s2s_conf *conf = s2s_conf_new(S2S_CONF_FROM_DERIVED, model->config_path);
    rc = s2s_conf_merge(conf, part, err);
    s2s_conf_free(model->conf);
    model->conf = conf;
    model->stored_prefix = "encoder.";
    return rc;
}

int s2s_model_open(struct s2s_model **out, struct s2s_device *device, const struct s2s_par *par,
                   const char *dir, const struct s2s_model_options *options, struct s2s_error *err)
{
    static const struct s2s_model_options no_options = {0};
    static const struct s2s_par alone = {0};
    const char *model_type;
    *out = NULL;
    if (!options)
        options = &no_options;
    struct s2s_model *model = s2s_xcalloc(1, sizeof *model);
    model->par = par ? par : &alone;
    model->dir = dir ? s2s_xstrdup(dir) : NULL;
    model->prefix = s2s_xstrdup(options->prefix ? options->prefix : "");
    model->options = *options;
    model->stored_prefix = "";
    model->pad_token_id = -1;
    int rc = read_config(model, options, err);
    if (rc == 0)
        rc = take_encoder(model, err);
    if (rc == 0 && options->override)
        rc = s2s_conf_merge(model->conf, options->override, err);
    if (rc < 0)
        goto out;
    if ((rc = s2s_conf_get_str(&model_type, model->conf, "model_type", err)) < 0)
        goto out;
    if (!(model->kind = find_kind(model_type))) {
        rc = unknown_kind(model->conf, model_type, err);
        goto out;
    }
    model->owns_params = !options->params;
    model->params = options->params ? options->params : s2s_params_new(device);
    rc = model->kind->build(model, err);
out:
    if (rc < 0) {
        s2s_model_free(model);
        return rc;
    }
    *out = model;
    return 0;
}

void s2s_model_free(struct s2s_model *model)
{
    if (!model)
        return;
    if (model->kind && model->impl)
        model->kind->free_impl(model->impl);
    model_free_blocks(model);
    if (model->owns_params)
        s2s_params_free(model->params);
    s2s_conf_free(model->conf);
    free(model->config_path);
    free(model->prefix);
    free(model->dir);
    free(model);
}

int s2s_model_load(struct s2s_model *model, struct s2s_error *err)
{
    if (model->kind->load)
        return model->kind->load(model, err); /* of parts, which may have directories */
    if (!model->dir)
        S2S_BUG("%s: a model without a directory has no weights to load", model->config_path);
    return model_load_dir(model, model->dir, err);
}

int s2s_model_check(const struct s2s_model *model, const struct s2s_batch *batch,
                    struct s2s_error *err)
{
    int rc = model_check_batch(batch, model->vocab_size, err);
    return rc < 0 ? rc : model->kind->check(model, batch, err);
}

int model_check_cuts(const struct s2s_model *model, const struct model_cut *cuts, size_t n,
                     struct s2s_error *err)
{
    for (size_t i = 0; i < n; i++) {
        const struct s2s_conf *node = s2s_conf_find(model->conf, cuts[i].key);
        if (!cuts[i].fits)
            return s2s_conf_error(err, S2S_E_RANGE, node ? node : model->conf,
                                  "%lld %s cannot be shared by %d ranks (mesh.tp)",
                                  (long long)cuts[i].size, cuts[i].what,
                                  s2s_group_size(model->par->tp));
    }
    return 0;
}

int64_t s2s_model_frames(const struct s2s_model *model, int64_t n_mel)
{
    return model->kind->frames ? model->kind->frames(model, n_mel) : 0;
}

const char *s2s_model_local_name(const struct s2s_model *model, const struct s2s_param *param)
{
    size_t len = strlen(model->prefix);
    return strncmp(param->name, model->prefix, len) == 0 ? param->name + len : NULL;
}

int *s2s_model_blocks_of_params(const struct s2s_model *model)
{
    int *blocks = s2s_xcalloc(model->params->n + 1, sizeof *blocks);
    for (int b = 0; b < model->n_blocks; b++)
        for (size_t i = model->blocks[b].param_begin; i < model->blocks[b].param_end; i++)
            blocks[i] = b;
    return blocks;
}

struct s2s_param *s2s_model_add(struct s2s_model *model, const struct s2s_param_spec *spec,
                                const char *fmt, ...)
{
    char name[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(name, sizeof name, fmt, ap);
    va_end(ap);
    char *full = s2s_xasprintf("%s%s", model->prefix, name);
    struct s2s_param_spec named = *spec;
    named.name = full;
    struct s2s_param *param = s2s_params_add(model->params, &named);
    free(full);
    return param;
}
