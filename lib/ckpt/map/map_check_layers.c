/* Do the layers in the source agree with the configuration, in number and in kind? */
#include "lib/base/base.h"
#include "lib/ckpt/config/args_config.h"
#include "lib/ckpt/map/map_internal.h"
#include "lib/ckpt/names.h"

/* The number of layers that a config.json gives, as a count or as letters; 0: neither. */
static int64_t layers_of(const json_t *config)
{
    const json_t *words = ckpt_text_config(config);
    const json_int_t said = json_integer_value(json_object_get(words, "num_hidden_layers"));
    char *letters = ckpt_config_letters(words);
    const int64_t n = said ? said : letters ? (int64_t)strlen(letters) : 0;
    free(letters);
    return n;
}

/* The number of layers by the configuration, else by the arguments, else by the language model's
 * own configuration; 0: unknown */
int64_t ckpt_map_config_layers(const struct ckpt_map_engine *e)
{
    int64_t said = layers_of(e->config);
    said = said ? said : ckpt_map_number(e, "num_hidden_layers", "num_layers");
    said = said ? said : layers_of(e->own_config);
    return said > 0 && said < CKPT_MAX_LAYERS ? said : 0;
}

/* Has this layer of the stack a section with this name? */
static bool has_section(const struct ckpt_map_engine *e, const char *stack, const char *section,
                        int64_t layer)
{
    const size_t len = strlen(stack);
    for (size_t s = 0; s < e->map.n_sections; s++) {
        const char *name = e->map.sections[s];
        if (strncmp(name, stack, len) == 0 && s2s_starts_with(name + len, "{N}.") &&
            strcmp(name + len + 4, section) == 0 && ckpt_map_in_section(e, (int)s, layer))
            return true;
    }
    return false;
}

static const char router[] = "mlp.router.weight";

/* The kind of a layer in a hybrid stack; 0: another stack, or unknown. */
static char letter_of_layer(const struct ckpt_map_engine *e, const char *stack, int64_t layer)
{
    static const struct {
        const char *name;
        char letter;
    } kinds[] = {{"mixer.in_proj.weight.z", 'M'},
                 {"self_attention.linear_qkv.weight", '*'},
                 {"mlp.linear_fc1.weight", '-'},
                 {router, 'E'}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (has_section(e, stack, kinds[i].name, layer))
            return kinds[i].letter;
    return 0;
}

/* Checks that the layers of a hybrid stack have the kinds of the configuration's pattern. */
static int check_letters(struct ckpt_map_engine *e)
{
    char *letters = ckpt_config_letters(ckpt_text_config(e->config));
    int rc = 0;
    for (size_t k = 0; letters && k < e->map.n_stacks && rc == 0; k++) {
        const char *stack = e->map.stacks[k].prefix;
        char *name = ckpt_map_stack_name(e, k);
        const int64_t n = (int64_t)strlen(letters);
        for (int64_t i = 0; !ckpt_map_is_tower(e, stack) && i < e->n_layers[k] && i < n; i++) {
            const char letter = letter_of_layer(e, stack, i);
            if (rc == 0 && letter && letter != letters[i])
                rc = s2s_error_set(e->err, S2S_E_SHAPE,
                                   "%s%lld: the configuration says kind %c (%s), its tensors are "
                                   "those of %c",
                                   name, (long long)i, letters[i], letters, letter);
        }
        free(name);
    }
    free(letters);
    return rc;
}

static int refuse_experts(struct ckpt_map_engine *e, size_t stack, int64_t layer, bool said)
{
    char *name = ckpt_map_stack_name(e, stack);
    int rc = s2s_error_set(e->err, S2S_E_SHAPE,
                           "%s%lld: the configuration says that it has %s experts "
                           "(mlp_only_layers, decoder_sparse_step), its tensors are those of a "
                           "layer with %s",
                           name, (long long)layer, said ? "some" : "no", said ? "none" : "some");
    free(name);
    return rc;
}

/* Checks that exactly those layers have experts for which the configuration says so. */
static int check_experts(struct ckpt_map_engine *e)
{
    const json_t *config = ckpt_text_config(e->config);
    for (size_t k = 0; k < e->map.n_stacks; k++) {
        const char *stack = e->map.stacks[k].prefix;
        const bool words = s2s_ends_with(stack, "decoder.layers.") && !ckpt_map_is_tower(e, stack);
        for (int64_t i = 0; words && i < e->n_layers[k]; i++) {
            const int said = ckpt_config_has_experts(config, i);
            const char *other = said ? "mlp.linear_fc2.weight" : router;
            if (said >= 0 && has_section(e, stack, other, i))
                return refuse_experts(e, k, i, said);
        }
    }
    return 0;
}

/* More layers than the configuration says: names that are kept lose none by it. */
static int refuse_layers(struct ckpt_map_engine *e, size_t stack, int64_t said)
{
    char *prefix = ckpt_map_stack_name(e, stack);
    const int64_t n = e->n_layers[stack];
    int rc = 0;
    if (e->request->is_exact)
        s2s_warn(
            "ckpt",
            "%s%lld: the configuration says %lld layers, the checkpoint has %lld: transformers "
            "ignores the others",
            prefix, (long long)said, (long long)said, (long long)n);
    else
        rc = s2s_error_set(e->err, S2S_E_SHAPE,
                           "%s%lld: the configuration says %lld layers, the checkpoint has %lld",
                           prefix, (long long)said, (long long)said, (long long)n);
    free(prefix);
    return rc;
}

int ckpt_map_check_layers(struct ckpt_map_engine *e)
{
    const int64_t said = ckpt_map_config_layers(e);
    int rc = 0;
    for (size_t k = 0; k < e->map.n_stacks && said && rc == 0; k++)
        if (!ckpt_map_is_tower(e, e->map.stacks[k].prefix) && e->n_layers[k] > said)
            rc = refuse_layers(e, k, said);
    if (rc == 0)
        rc = check_letters(e);
    return rc < 0 ? rc : check_experts(e);
}
