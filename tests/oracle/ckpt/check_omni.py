"""transformers' own Nemotron Omni, with further tokens, with sound and without either, written by save_pretrained: to Megatron and back every
tensor is the same, but for what transformers makes anew from the configuration, and transformers loads it with nothing missing. Exit 0 ok,
1 different, 77 transformers has no such model."""
import os
import sys
import tempfile

from tool import bad, compare, need, need_ok

need("torch", "transformers", "safetensors")
import torch  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from transformers import AutoConfig  # noqa: E402

try:
    from transformers.models.nemotron_h_omni.modeling_nemotron_h_omni import NemotronH_Omni_Reasoning_V3 as Omni
except ImportError as e:
    print(e)
    sys.exit(77)

WORDS = dict(model_type="nemotron_h", vocab_size=50, hidden_size=32, intermediate_size=48, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
             ssm_state_size=8, n_groups=2, mamba_num_heads=4, mamba_head_dim=8, conv_kernel=4, chunk_size=8,
             layers_block_type=["mamba", "attention", "moe"], n_routed_experts=4, moe_intermediate_size=16, moe_shared_expert_intermediate_size=24,
             n_shared_experts=1, num_experts_per_tok=2)
EYE = dict(model_type="radio", hidden_size=16, num_hidden_layers=2, num_attention_heads=4, patch_size=4, max_img_size=16, image_size=16,
           video_temporal_patch_size=2)
EAR = dict(model_type="parakeet_encoder", hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, num_mel_bins=16,
           subsampling_conv_channels=8, projection_hidden_size=24, projection_bias=False, conv_kernel_size=3)
FURTHER = dict(num_nextn_predict_layers=1, mtp_layers_block_type=["attention", "moe"])
# Megatron's RADIO has no scales of layers, which are 1 here unless somebody trains them
ANEW = ("summary_idxs", "input_conditioner.norm_mean", "input_conditioner.norm_std", ".layer_scale1.lambda1", ".layer_scale2.lambda1")


def tensors_of(folder):
    out = {}
    for name in os.listdir(folder):
        if name.endswith(".safetensors"):
            out.update(load_file(os.path.join(folder, name)))
    # transformers 5.24 writes the norm as a part of what follows it, and reads both names
    return {k.replace("vision_projector.vision_final_", "vision_final_"): t for k, t in out.items() if not k.endswith(ANEW)}


def check(what, folder, words, ear):
    torch.manual_seed(0)
    config = AutoConfig.for_model("nemotron_h_omni", text_config={**WORDS, **words}, vision_config=EYE, audio_config=ear, projector_hidden_size=24,
                                  vision_hidden_size=16)
    model = Omni(config)
    with torch.no_grad():
        for name, t in model.named_parameters():
            if "layer_scale" not in name:
                t.copy_(torch.randn(t.shape))
    hf, megatron, back = (os.path.join(folder, name) for name in ("hf", "megatron", "back"))
    model.save_pretrained(hf, max_shard_size="20KB")
    if not need_ok(what, "convert", "--to", "torch_dist", "--map", "nemotron_vlm", hf, megatron) or \
            not need_ok(what, "convert", "--strict", "--to", "hf", megatron, back):
        return 0
    want = tensors_of(hf)
    compare(what, tensors_of(back), want)
    said = Omni.from_pretrained(back, output_loading_info=True)[1]
    bad.extend("%s: transformers misses %s" % (what, k) for k in said["missing_keys"] if not k.endswith(ANEW))
    bad.extend("%s: transformers knows no %s" % (what, k) for k in said["unexpected_keys"])
    return len(want)


def main():
    n = 0
    for what, words, ear in (("sound", {}, EAR), ("further tokens", FURTHER, EAR), ("neither", {}, None)):
        with tempfile.TemporaryDirectory() as folder:
            n += check(what, folder, words, ear)
    print("\n".join(bad[:40]) if bad else "%d tensors of transformers' Nemotron Omni, to Megatron and back" % n)
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
