/* Removes prefixes and wrapper modules of trainers from names. */
#include "lib/base/base.h"
#include "lib/ckpt/map/map.h"
#include "lib/ckpt/model.h"
#include "lib/ckpt/write/to_hf_internal.h"

/* In Hugging Face's formats there are no wrapper modules in names. */
static bool is_hf(const struct s2s_ckpt *ckpt)
{
    return ckpt_has_word("hf hf_bin safetensors", ckpt->format);
}

/* The name without the wrapper modules of DDP, DeepSpeed, torch.compile and FSDP. Gives: free. */
static char *unwrapped(const struct s2s_ckpt *ckpt, const char *name)
{
    return is_hf(ckpt) ? s2s_xstrdup(name) : ckpt_map_unwrapped(name, false);
}

/* The prefix of the dict that contains the model, or "". A prefix counts if all weights have it.
 * The first two, which are never modules, also count if only some weights have them, unless another
 * prefix of the table occurs, too: then they may contain something else, and the model be beside
 * them. "model." is only in the table for that. */
static const char *dict_of(const struct s2s_ckpt *ckpt)
{
    static const char *const dicts[] = {"state_dict.", "model_state_dict.", "app.",
                                        "dcp.",        "module.",           "model."};
    enum { N = sizeof dicts / sizeof *dicts, MODEL = N - 1 };
    size_t n = 0, inside[N] = {0}, n_dicts = 0;
    for (size_t i = 0; i < ckpt->n_tensors && !is_hf(ckpt); i++) {
        if (s2s_ckpt_is_state(ckpt->tensors[i].name))
            continue;
        n++;
        for (size_t k = 0; k < N; k++)
            inside[k] += s2s_starts_with(ckpt->tensors[i].name, dicts[k]);
    }
    for (size_t k = 0; k < N; k++)
        n_dicts += inside[k] > 0;
    for (size_t k = 0; k < MODEL; k++)
        if (inside[k] && (inside[k] == n || (k < 2 && n_dicts == 1)))
            return dicts[k];
    return "";
}

static const char model[] = "model.";

char *ckpt_hf_name(const struct s2s_ckpt *ckpt, const struct ckpt_hf_wrapping *wrapping,
                   const char *name)
{
    if (s2s_ckpt_is_state(name) || !s2s_starts_with(name, wrapping->dict))
        return NULL;
    char *inner = unwrapped(ckpt, name + strlen(wrapping->dict));
    for (int i = 0; i < wrapping->n_models; i++) {
        char *outer = inner;
        inner = unwrapped(ckpt, outer + strlen(model));
        free(outer);
    }
    return inner;
}

/* Do all names have one more "model." that is a trainer's? */
static bool is_within_model(const struct s2s_ckpt *ckpt, const struct ckpt_hf_wrapping *wrapping)
{
    bool optimizer = false, doubled = false, outside = false, own = false, any = false;
    for (size_t i = 0; i < ckpt->n_tensors; i++) {
        if (s2s_ckpt_is_state(ckpt->tensors[i].name)) {
            optimizer = true;
            continue;
        }
        char *name = ckpt_hf_name(ckpt, wrapping, ckpt->tensors[i].name);
        if (!name)
            continue;
        any = true;
        if (s2s_starts_with(name, "model.model.") || s2s_starts_with(name, "model.lm_head.") ||
            (!is_hf(ckpt) && s2s_starts_with(name, "model.module.")))
            doubled = true;
        else if (!s2s_starts_with(name, model))
            outside = true;
        /* of a tied model that is stored beside its optimizer without a dict */
        own |=
            s2s_starts_with(name, "model.layers.") || s2s_starts_with(name, "model.embed_tokens.");
        free(name);
    }
    const bool beside_optimizer =
        optimizer && !own && wrapping->n_models == 0 && strcmp(ckpt->format, "dcp") == 0;
    return any && !outside && (doubled || beside_optimizer);
}

struct ckpt_hf_wrapping ckpt_hf_wrapping_of(const struct s2s_ckpt *ckpt)
{
    enum { MOST = 4 };
    struct ckpt_hf_wrapping wrapping = {.dict = dict_of(ckpt)};
    /* a folder's names are those of its class: ShieldGemma 2's begin with model.model. */
    const bool is_folder = ckpt_has_word("hf hf_bin", ckpt->format);
    while (!is_folder && wrapping.n_models < MOST && is_within_model(ckpt, &wrapping))
        wrapping.n_models++;
    return wrapping;
}

bool ckpt_hf_keeps_names(const struct s2s_ckpt *ckpt, const struct ckpt_hf_wrapping *wrapping)
{
    bool keeps = true;
    for (size_t i = 0; i < ckpt->n_tensors && keeps; i++) {
        const char *own = ckpt->tensors[i].name;
        char *name = ckpt_hf_name(ckpt, wrapping, own);
        keeps = s2s_ckpt_is_state(own) || (name && strcmp(name, own) == 0);
        free(name);
    }
    return keeps;
}
