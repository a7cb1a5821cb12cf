/* Refuses sources whose tensors need more than renaming, such as adapters and quantised weights. */
#include "lib/base/base.h"
#include "lib/ckpt/map/map.h"

struct kind {
    const char *what, *hint;
    const char *parts[12], *ends[10]; /* parts and ends of names */
    bool if_ours;                     /* refused only for built-in maps */
};

enum { ADAPTED, QUANTISED }; /* indices in this table */

static const struct kind kinds[] = {
    /* the weight is the sum of a base and an adapter */
    {"LoRA adapters or tensors under them",
     "merge them into the weights first (peft's merge_and_unload, Megatron-Bridge's "
     "merge_lora.py); "
     "--to torch_dist or safetensors without --map keeps them as they are",
     {".lora_A.", ".lora_B.", ".lora_embedding_", ".lora_magnitude", ".base_layer.",
      /* NeMo Automodel's, of all experts of a layer */
      ".lora_gate_and_up_", ".lora_down_",
      /* Megatron-Bridge's and NeMo 2's, also separate for q, k, v, gate and up */
      ".adapter.linear_in.", ".adapter.linear_out.", ".adapter.adapter_",
      ".adapter.weight_magnitude", ".to_wrap."},
     {NULL},
     false},
    /* numbers of few bits and their scales */
    {"quantised weights' scales or packed numbers",
     "dequantise them first (transformers: dequantize(), then save_pretrained); without --map they "
     "are kept as they are",
     {".quant_state."},
     {"weight_scale_inv", "weight_scale", "weight_scale_2", "weight_packed", ".qweight", ".qzeros",
      ".absmax", ".SCB", "_proj_scales", ".scales"},
     false},
    /* with NeMo's dw_striding, the only one that Parakeet has, these layers have no parameters */
    {"convolutions of a subsampling other than dw_striding, the only one that Parakeet has",
     "--to torch_dist or safetensors without --map keeps them as they are",
     {NULL},
     {".pre_encode.conv.1.weight", ".pre_encode.conv.4.weight", ".pre_encode.conv.7.weight"},
     true},
};

static bool is_of(const struct kind *kind, const char *name)
{
    for (size_t i = 0; i < sizeof kind->parts / sizeof *kind->parts && kind->parts[i]; i++)
        if (strstr(name, kind->parts[i]))
            return true;
    for (size_t i = 0; i < sizeof kind->ends / sizeof *kind->ends && kind->ends[i]; i++)
        if (s2s_ends_with(name, kind->ends[i]))
            return true;
    return false;
}

bool ckpt_map_is_adapted(const char *name)
{
    return is_of(&kinds[ADAPTED], name);
}

bool ckpt_map_is_quantised(const char *name)
{
    return is_of(&kinds[QUANTISED], name);
}

int ckpt_map_refuse(const struct s2s_ckpt *ckpt, bool ours, struct s2s_error *err)
{
    size_t n_tensors;
    const struct s2s_ckpt_tensor *tensors = s2s_ckpt_tensors(ckpt, &n_tensors);
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        const char *first = NULL;
        size_t n = 0;
        for (size_t i = 0; i < n_tensors && (ours || !kinds[k].if_ours); i++)
            if (is_of(&kinds[k], tensors[i].name) && !s2s_ckpt_is_state(tensors[i].name)) {
                first = first ? first : tensors[i].name;
                n++;
            }
        if (!n)
            continue;
        int rc =
            s2s_error_set(err, S2S_E_UNSUPPORTED, "%s (%zu), such as %s", kinds[k].what, n, first);
        return s2s_error_hint(err, rc, "%s", kinds[k].hint);
    }
    return 0;
}
