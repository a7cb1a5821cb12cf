/*
 * Holds a model_config.yaml of the user's, of which --to nemo makes the archive's, against the
 * weights that go there: NeMo's restore_from would refuse other shapes, and take another function.
 */
#include "lib/base/base.h"
#include "lib/ckpt/nemo/from_nemo.h"
#include "lib/ckpt/nemo/to_nemo.h"
#include "lib/ckpt/read/read.h"

struct own {
    const struct s2s_ckpt_plan *plan;
    const json_t *config;
    struct s2s_error *err;
};

/* A setting of the encoder; NULL: none; a null: a reference that is not resolved. */
static const json_t *setting(const struct own *own, const char *key)
{
    char path[80];
    snprintf(path, sizeof path, "encoder.%s", key);
    const json_t *value = ckpt_nemo_setting(own->config, path);
    const char *text = json_string_value(value);
    return text && strstr(text, "${") ? json_null() : value;
}

static bool is_text(const struct own *own, const char *key, const char *text)
{
    const char *said = json_string_value(setting(own, key));
    return said && strcmp(said, text) == 0;
}

/* Size of an axis; 0: no such tensor. */
static int64_t size_of(const struct own *own, const char *name, int axis)
{
    const struct s2s_ckpt_target *t = s2s_ckpt_plan_find(own->plan, name);
    return t && t->n_dims > axis ? s2s_ckpt_target_shape(t)[axis] : 0;
}

static int64_t count_layers(const struct s2s_ckpt_plan *plan)
{
    int64_t n = 0;
    for (size_t i = 0; i < plan->n_targets; i++) {
        const char *name = s2s_ckpt_target_name(&plan->targets[i]);
        n += s2s_starts_with(name, "encoder.layers.") && s2s_ends_with(name, ".norm_out.weight");
    }
    return n;
}

/* The number of convolutions of stride 2 of dw_striding, or of striding, which have every second
 * place. */
static int64_t count_stages(const struct own *own, int step)
{
    char name[80];
    for (int64_t n = 0;; n++) {
        snprintf(name, sizeof name, "encoder.pre_encode.conv.%lld.weight", (long long)(n * step));
        if (!size_of(own, name, 0))
            return n;
    }
}

static int check_number(const struct own *own, const char *key, int64_t found)
{
    const json_t *said = setting(own, key);
    return !found || !json_is_integer(said) || json_integer_value(said) == found
               ? 0
               : s2s_error_set(own->err, S2S_E_SHAPE,
                               CKPT_NEMO_CONFIG ": encoder.%s is %lld, the weights have %lld", key,
                               (long long)json_integer_value(said), (long long)found);
}

static int check_numbers(const struct own *own)
{
    static const struct {
        const char *key, *name;
        int axis;
    } sizes[] = {
        {"d_model", "encoder.pre_encode.out.weight", 0},
        {"n_heads", "encoder.layers.0.self_attn.pos_bias_u", 0},
        {"conv_kernel_size", "encoder.layers.0.conv.depthwise_conv.weight", 2},
    };
    const int64_t width = size_of(own, "encoder.pre_encode.out.weight", 0),
                  wide = size_of(own, "encoder.layers.0.feed_forward1.linear1.weight", 0);
    int rc = check_number(own, "n_layers", count_layers(own->plan));
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes && rc == 0; i++)
        rc = check_number(own, sizes[i].key, size_of(own, sizes[i].name, sizes[i].axis));
    return rc < 0 ? rc : check_number(own, "ff_expansion_factor", width ? wide / width : 0);
}

/* Checks a choice that the weights show. */
static int check_choice(const struct own *own, const char *key, bool fits, const char *found)
{
    const json_t *said = setting(own, key);
    const char *text = json_string_value(said);
    return fits ? 0
                : s2s_error_set(own->err, S2S_E_SHAPE,
                                CKPT_NEMO_CONFIG ": encoder.%s is %s, the weights have %s", key,
                                text                 ? text
                                : json_is_true(said) ? "true"
                                : said               ? "false"
                                                     : "NeMo's default",
                                found);
}

static int check_layers(const struct own *own)
{
    const json_t *biased = setting(own, "use_bias"), *norm = setting(own, "conv_norm_type");
    const bool has_layers = size_of(own, "encoder.layers.0.self_attn.linear_q.weight", 0) > 0;
    const bool has_bias = size_of(own, "encoder.layers.0.self_attn.linear_q.bias", 0) > 0;
    const bool has_means = size_of(own, "encoder.layers.0.conv.batch_norm.running_mean", 0) > 0;
    const bool wants_means = !norm || is_text(own, "conv_norm_type", "batch_norm");
    int rc = 0;
    if (has_layers && json_is_boolean(biased))
        rc = check_choice(own, "use_bias", json_is_true(biased) == has_bias,
                          has_bias ? "biases" : "no biases");
    if (rc == 0 && has_layers && (!norm || json_is_string(norm)))
        rc = check_choice(own, "conv_norm_type", wants_means == has_means,
                          has_means ? "running means" : "no running means");
    return rc;
}

/* Convolutions in front: of dw_striding all but the first have a kernel for each channel. */
static int check_front(const struct own *own)
{
    const bool deep = is_text(own, "subsampling", "dw_striding"),
               flat = is_text(own, "subsampling", "striding") || !setting(own, "subsampling");
    const int64_t channels = size_of(own, "encoder.pre_encode.conv.0.weight", 0),
                  inputs = size_of(own, "encoder.pre_encode.conv.2.weight", 1),
                  columns = size_of(own, "encoder.pre_encode.out.weight", 1);
    const int64_t bins = json_integer_value(setting(own, "feat_in"));
    if (!(deep || flat) || channels < 2)
        return 0;
    int rc = !inputs ? 0
                     : check_choice(own, "subsampling", deep == (inputs == 1),
                                    inputs == 1 ? "dw_striding" : "striding");
    const int64_t n = count_stages(own, deep ? 3 : 2);
    if (rc == 0 && n < 32)
        rc = check_number(own, "subsampling_factor", (int64_t)1 << n);
    if (rc == 0)
        rc = check_number(own, "subsampling_conv_channels", channels);
    const json_t *causal = setting(own, "causal_downsampling");
    if (rc < 0 || bins < 1 || bins > 1 << 16 || !columns || (causal && !json_is_false(causal)))
        return rc;
    const int64_t want = channels * ckpt_nemo_bins_left(bins, n);
    return want == columns
               ? 0
               : s2s_error_set(own->err, S2S_E_SHAPE,
                               CKPT_NEMO_CONFIG ": encoder.feat_in is %lld, which wants %lld "
                                                "columns of pre_encode.out.weight; it has %lld",
                               (long long)bins, (long long)want, (long long)columns);
}

/* Do the features that the preprocessor makes go into the encoder? */
static int check_features(const struct own *own)
{
    const json_t *made = ckpt_nemo_setting(own->config, "preprocessor.features"),
                 *spliced = ckpt_nemo_setting(own->config, "preprocessor.frame_splicing"),
                 *taken = setting(own, "feat_in");
    const json_int_t times = json_is_integer(spliced) ? json_integer_value(spliced) : 1;
    return times != 1 || !json_is_integer(made) || !json_is_integer(taken) ||
                   json_equal(made, taken)
               ? 0
               : s2s_error_set(
                     own->err, S2S_E_SHAPE,
                     CKPT_NEMO_CONFIG ": preprocessor.features is %lld, encoder.feat_in %lld",
                     (long long)json_integer_value(made), (long long)json_integer_value(taken));
}

int ckpt_nemo_check_sizes(const struct s2s_ckpt_plan *plan, const json_t *config,
                          struct s2s_error *err)
{
    const struct own own = {.plan = plan, .config = config, .err = err};
    int rc = check_numbers(&own);
    if (rc == 0)
        rc = check_layers(&own);
    if (rc == 0)
        rc = check_front(&own);
    return rc == 0 ? check_features(&own) : rc;
}

void ckpt_nemo_compare(const json_t *config, const json_t *parakeet)
{
    struct s2s_error why = S2S_ERROR_INIT;
    const struct own own = {.config = config};
    const json_t *xscaling = setting(&own, "xscaling");
    const json_t *encoder = json_object_get(parakeet, "encoder_config");
    const json_t *scale = json_object_get(encoder ? encoder : parakeet, "scale_input");
    const bool scales = !xscaling || json_is_true(xscaling);
    if (ckpt_nemo_check_kind(config, &why) < 0)
        s2s_warn("convert", "%s: the archive's model computes something else", why.text);
    s2s_error_clear(&why);
    if (parakeet && (!xscaling || json_is_boolean(xscaling)) &&
        scales != (!scale || json_is_true(scale)))
        s2s_warn("convert",
                 CKPT_NEMO_CONFIG ": encoder.xscaling is %s, scale_input of config.json %s: the "
                                  "archive's model computes something else",
                 scales ? "true" : "false", scales ? "false" : "true");
}
