/* Reads the rotary positions of a config, and makes the table of a batch. */
#include "lib/model/rope.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/error.h"
#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "lib/conf/conf.h"
#include "lib/model/keys.h"
#include "lib/tensor/tensor_internal.h"

enum type { DEFAULT, LINEAR, LLAMA3, YARN, DYNAMIC, LONGROPE };
static const char *const types[] = {"default", "linear",   "llama3", "yarn",
                                    "dynamic", "longrope", NULL};

enum { ALL = 63, SCALED = ALL & ~(1 << DEFAULT), YARN_LONG = 1 << YARN | 1 << LONGROPE };
/* Inside of rope_parameters or rope_scaling, by type. What another type reads this one ignores, as
 * transformers does. */
static const struct model_key keys[] = {
    {"rope_type", MODEL_KEY_READ, ALL, NULL, NULL},
    {"type", MODEL_KEY_READ, ALL, NULL, NULL},
    {"rope_theta", MODEL_KEY_READ, ALL, NULL, NULL},
    {"partial_rotary_factor", MODEL_KEY_READ, ALL, NULL, NULL},
    {"factor", MODEL_KEY_READ, SCALED, NULL, NULL},
    {"original_max_position_embeddings", MODEL_KEY_READ, 1 << LLAMA3 | YARN_LONG, NULL, NULL},
    {"low_freq_factor", MODEL_KEY_NEEDED, 1 << LLAMA3, NULL, NULL},
    {"high_freq_factor", MODEL_KEY_NEEDED, 1 << LLAMA3, NULL, NULL},
    {"attention_factor", MODEL_KEY_READ, YARN_LONG, NULL, NULL},
    {"beta_fast", MODEL_KEY_READ, 1 << YARN, NULL, NULL},
    {"beta_slow", MODEL_KEY_READ, 1 << YARN, NULL, NULL},
    {"mscale", MODEL_KEY_READ, 1 << YARN, NULL, NULL},
    {"mscale_all_dim", MODEL_KEY_READ, 1 << YARN, NULL, NULL},
    {"truncate", MODEL_KEY_READ, 1 << YARN, NULL, NULL},
    {"short_factor", MODEL_KEY_NEEDED, 1 << LONGROPE, NULL, NULL},
    {"long_factor", MODEL_KEY_NEEDED, 1 << LONGROPE, NULL, NULL},
};

struct source {
    const struct s2s_conf *conf, *rope; /* rope NULL: nothing but rope_theta */
    const struct model_rope_defaults *defaults;
    int64_t max_positions;
};

/* ---- values ---- */

/* A number above 0; `other` where it is not given, or not a number above 0 either. */
static int get_factor(double *out, const struct s2s_conf *map, const char *key, double other,
                      struct s2s_error *err)
{
    int rc = s2s_conf_get_f64_or(out, map, key, other, err);
    if (rc < 0 || (*out > 0 && isfinite(*out)))
        return rc;
    const struct s2s_conf *node = s2s_conf_key(map, key);
    if (!node)
        return s2s_conf_error(err, S2S_E_NOTFOUND, map, "no %s", key);
    return s2s_conf_error(err, S2S_E_RANGE, node, "expected a number above 0, found %g", *out);
}

/* The positions before the scaling: Phi-3 has it outside, where it counts more. */
static int get_original(double *out, const struct source *src, struct s2s_error *err)
{
    static const char key[] = "original_max_position_embeddings";
    const bool outside = !s2s_conf_is_unset(src->conf, key);
    return get_factor(out, outside ? src->conf : src->rope, key, (double)src->max_positions, err);
}

/* partial_rotary_factor and rope_theta stand inside, or outside. */
static int get_shared(double *out, const struct source *src, const char *key, double other,
                      struct s2s_error *err)
{
    const bool inside = src->rope && !s2s_conf_is_unset(src->rope, key);
    return get_factor(out, inside ? src->rope : src->conf, key, other, err);
}

/* ---- types ---- */

/* Long wavelengths are slowed by `factor`, short ones stay, between them a ramp. */
static int scale_llama3(struct model_rope *rope, const struct source *src, struct s2s_error *err)
{
    double factor, low, high, original;
    int rc;
    if ((rc = get_factor(&factor, src->rope, "factor", -1, err)) < 0 ||
        (rc = get_factor(&low, src->rope, "low_freq_factor", -1, err)) < 0 ||
        (rc = get_factor(&high, src->rope, "high_freq_factor", -1, err)) < 0 ||
        (rc = get_original(&original, src, err)) < 0)
        return rc;
    for (int64_t i = 0; i < rope->dim / 2; i++) {
        double w = rope->inv_freq[i], wavelength = 2 * M_PI / w;
        if (wavelength > original / low) {
            rope->inv_freq[i] = w / factor;
        } else if (wavelength >= original / high) {
            double s = (original / wavelength - low) / (high - low);
            rope->inv_freq[i] = (1 - s) * w / factor + s * w;
        }
    }
    return 0;
}

static int scale_linear(struct model_rope *rope, const struct source *src, struct s2s_error *err)
{
    double factor;
    int rc = get_factor(&factor, src->rope, "factor", -1, err);
    for (int64_t i = 0; rc == 0 && i < rope->dim / 2; i++)
        rope->inv_freq[i] /= factor;
    return rc;
}

/* Yarn's logarithm of the factor. */
static double magnitude(double factor, double by)
{
    return factor <= 1 ? 1 : 0.1 * by * log(factor) + 1;
}

/* Given, or from the two that DeepSeek's models have, or from the factor. */
static int read_yarn_factor(struct model_rope *rope, const struct source *src, double factor,
                            struct s2s_error *err)
{
    double own, all;
    int rc;
    if (!s2s_conf_is_unset(src->rope, "attention_factor"))
        return get_factor(&rope->factor, src->rope, "attention_factor", 1, err);
    if ((rc = s2s_conf_get_f64_or(&own, src->rope, "mscale", 0, err)) < 0 ||
        (rc = s2s_conf_get_f64_or(&all, src->rope, "mscale_all_dim", 0, err)) < 0)
        return rc;
    rope->factor = own != 0 && all != 0 ? magnitude(factor, own) / magnitude(factor, all)
                                        : magnitude(factor, 1);
    return 0;
}

/* The component that turns so many times over the original positions. */
static double component_of(double turns, const struct model_rope *rope, double original)
{
    return (double)rope->dim * log(original / (turns * 2 * M_PI)) / (2 * log(rope->theta));
}

/* Components that turn often stay, slow ones are slowed by `factor`, between them a ramp. */
static int scale_yarn(struct model_rope *rope, const struct source *src, struct s2s_error *err)
{
    double factor, original, fast, slow;
    bool truncate;
    int rc;
    if ((rc = get_original(&original, src, err)) < 0 ||
        (rc = get_factor(&factor, src->rope, "factor", (double)src->max_positions / original,
                         err)) < 0 ||
        (rc = read_yarn_factor(rope, src, factor, err)) < 0 ||
        (rc = s2s_conf_get_f64_or(&fast, src->rope, "beta_fast", 0, err)) < 0 ||
        (rc = s2s_conf_get_f64_or(&slow, src->rope, "beta_slow", 0, err)) < 0 ||
        (rc = s2s_conf_get_bool_or(&truncate, src->rope, "truncate", true, err)) < 0)
        return rc;
    double low = component_of(fast != 0 ? fast : 32, rope, original);
    double high = component_of(slow != 0 ? slow : 1, rope, original);
    low = fmax(truncate ? floor(low) : low, 0);
    high = fmin(truncate ? ceil(high) : high, (double)rope->dim - 1);
    if (low == high)
        high += 0.001;
    for (int64_t i = 0; i < rope->dim / 2; i++) {
        const double w = rope->inv_freq[i],
                     ramp = fmin(fmax(((double)i - low) / (high - low), 0), 1);
        rope->inv_freq[i] = w / factor * ramp + w * (1 - ramp);
    }
    return 0;
}

/* Longer sequences than the model was trained for have a larger base (model_rope_table). */
static int scale_dynamic(struct model_rope *rope, const struct source *src, struct s2s_error *err)
{
    if (rope->dim < 4)
        return s2s_conf_error(err, S2S_E_RANGE, src->rope,
                              "rope_type dynamic wants 4 components of a head or more, found %lld",
                              (long long)rope->dim);
    rope->limit = src->max_positions;
    return get_factor(&rope->stretch, src->rope, "factor", -1, err);
}

static int read_factors(double *freq, const struct model_rope *rope, const struct source *src,
                        const char *key, struct s2s_error *err)
{
    const struct s2s_conf *list;
    int rc = s2s_conf_get_list(&list, src->rope, key, err);
    if (rc < 0)
        return rc;
    if ((int64_t)list->n_items != rope->dim / 2)
        return s2s_conf_error(err, S2S_E_SHAPE, list, "%zu factors for %lld frequencies",
                              list->n_items, (long long)rope->dim / 2);
    for (int64_t i = 0; i < rope->dim / 2; i++) {
        double factor;
        if ((rc = s2s_conf_as_f64(&factor, list->items[i], err)) < 0)
            return rc;
        if (!(factor > 0))
            return s2s_conf_error(err, S2S_E_RANGE, list->items[i],
                                  "expected a number above 0, found %g", factor);
        freq[i] = rope->inv_freq[i] / factor;
    }
    return 0;
}

/* Every frequency has its factor, and another one in long sequences. */
static int scale_longrope(struct model_rope *rope, const struct source *src, struct s2s_error *err)
{
    double original, factor;
    int rc;
    rope->long_freq = s2s_xcalloc((size_t)rope->dim / 2, sizeof *rope->long_freq);
    if ((rc = get_original(&original, src, err)) < 0 ||
        (rc = read_factors(rope->long_freq, rope, src, "long_factor", err)) < 0 ||
        (rc = read_factors(rope->inv_freq, rope, src, "short_factor", err)) < 0 ||
        (rc = get_factor(&factor, src->rope, "factor", (double)src->max_positions / original,
                         err)) < 0)
        return rc;
    rope->limit = (int64_t)original;
    return get_factor(&rope->factor, src->rope, "attention_factor",
                      factor > 1 ? sqrt(1 + log(factor) / log(original)) : 1, err);
}

/* ---- the config ---- */

static int find_source(struct source *src, const struct s2s_conf *conf, struct s2s_error *err)
{
    const struct s2s_conf *scaling, *parameters;
    int rc;
    if ((rc = s2s_conf_get_map(&scaling, conf, "rope_scaling", err)) < 0 ||
        (rc = s2s_conf_get_map(&parameters, conf, "rope_parameters", err)) < 0)
        return rc;
    src->conf = conf;
    src->rope = scaling && scaling->n_items > 0 ? scaling : parameters;
    return s2s_conf_get_i64_or(&src->max_positions, conf, "max_position_embeddings", 1, INT32_MAX,
                               src->defaults->max_position_embeddings, err);
}

static int read_type(int *type, const struct source *src, struct s2s_error *err)
{
    const char *key = s2s_conf_is_unset(src->rope, "rope_type") ? "type" : "rope_type";
    int rc = s2s_conf_get_choice_or(type, src->rope, key, types, DEFAULT, err);
    if (rc < 0)
        return rc;
    const struct model_keys known = {keys, sizeof keys / sizeof *keys, 1u << *type, types[*type]};
    return model_check_keys(src->rope, &known, err);
}

/* Far above those of any model: a table of them is made before sizes meet what memory there is. */
#define MAX_HEAD_DIM 65536

/* How much of each head is rotated. Of these families transformers' own classes know no part: newer
 * ones and vLLM do as is done here. */
static int read_part(struct model_rope *rope, const struct source *src, int64_t head_dim,
                     struct s2s_error *err)
{
    static const char key[] = "partial_rotary_factor";
    double part;
    int rc = get_shared(&part, src, key, 1, err);
    if (rc < 0)
        return rc;
    rope->dim = (int64_t)((double)head_dim * part);
    if (head_dim > MAX_HEAD_DIM)
        return s2s_conf_error(err, S2S_E_RANGE, src->conf,
                              "head_dim %lld is above %d, which no "
                              "model comes near; check the sizes",
                              (long long)head_dim, MAX_HEAD_DIM);
    if (part > 1 || rope->dim % 2 || rope->dim < 2) {
        const struct s2s_conf *node = src->rope ? s2s_conf_key(src->rope, key) : NULL;
        node = node ? node : s2s_conf_key(src->conf, key);
        return s2s_conf_error(err, S2S_E_RANGE, node ? node : src->conf,
                              "%g of head_dim %lld are %lld components; rotation needs an even "
                              "number of them",
                              part, (long long)head_dim, (long long)rope->dim);
    }
    if (part < 1)
        s2s_warn("model",
                 "partial_rotary_factor %g: %lld of %lld components of a head are rotated; "
                 "transformers' class of %s rotates all",
                 part, (long long)rope->dim, (long long)head_dim, src->defaults->family);
    return 0;
}

int model_read_rope(struct model_rope *rope, const struct s2s_conf *conf, int64_t head_dim,
                    const struct model_rope_defaults *defaults, struct s2s_error *err)
{
    static int (*const scale[])(struct model_rope * rope, const struct source *src,
                                struct s2s_error *err) = {
        [LINEAR] = scale_linear,   [LLAMA3] = scale_llama3,     [YARN] = scale_yarn,
        [DYNAMIC] = scale_dynamic, [LONGROPE] = scale_longrope,
    };
    struct source src = {.defaults = defaults};
    int type = DEFAULT, rc;
    *rope = (struct model_rope){.factor = 1};
    if ((rc = find_source(&src, conf, err)) < 0 ||
        (src.rope && (rc = read_type(&type, &src, err)) < 0) ||
        (rc = read_part(rope, &src, head_dim, err)) < 0 ||
        (rc = get_shared(&rope->theta, &src, "rope_theta", defaults->theta, err)) < 0)
        return rc;
    rope->inv_freq = s2s_xcalloc((size_t)rope->dim / 2, sizeof *rope->inv_freq);
    for (int64_t i = 0; i < rope->dim / 2; i++)
        rope->inv_freq[i] = pow(rope->theta, -2.0 * (double)i / (double)rope->dim);
    return type == DEFAULT ? 0 : scale[type](rope, &src, err);
}

void model_rope_release(struct model_rope *rope)
{
    free(rope->inv_freq);
    free(rope->long_freq);
}

/* ---- the table ---- */

/* Frequencies of a sequence of so many tokens, more than the limit. */
static void long_freq(double *freq, const struct model_rope *rope, int64_t len)
{
    const double dim = (double)rope->dim;
    const double over = rope->stretch * (double)len / (double)rope->limit - (rope->stretch - 1);
    for (int64_t i = 0; i < rope->dim / 2; i++)
        freq[i] = rope->long_freq
                      ? rope->long_freq[i]
                      : pow(rope->theta * pow(over, dim / (dim - 2)), -2.0 * (double)i / dim);
}

struct s2s_tensor *model_rope_table(const struct s2s_pass *pass, const struct model_rope *rope,
                                    int64_t n_rows)
{
    const struct s2s_batch *batch = pass->batch;
    struct s2s_tape *tape = pass->tape;
    int32_t *positions = s2s_xcalloc((size_t)n_rows + 1, sizeof *positions);
    if (batch->n_tokens > 0)
        memcpy(positions, batch->position_ids, (size_t)batch->n_tokens * sizeof *positions);
    struct s2s_tensor *rows = s2s_tape_upload_i32(tape, positions, n_rows);
    struct s2s_tensor *table =
        s2s_op_rope_table(tape, rows, rope->inv_freq, rope->dim, rope->factor);
    double *freq = s2s_xcalloc((size_t)rope->dim / 2, sizeof *freq);
    for (int64_t s = 0; rope->limit && s < batch->n_seqs; s++) {
        const int64_t begin = batch->cu_seqlens[s], n = batch->cu_seqlens[s + 1] - begin;
        const int64_t last = batch->seq_lens ? begin + batch->seq_lens[s] : begin + n;
        /* sequences may go on: their last position says how long they are */
        const int64_t len = last > begin ? positions[last - 1] + 1 : 0;
        if (len <= rope->limit)
            continue;
        long_freq(freq, rope, len);
        s2s_op_rope_rows(tape, table, rows, begin, n, freq, rope->factor);
    }
    free(freq);
    free(positions);
    return table;
}
