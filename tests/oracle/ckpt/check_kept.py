"""Names that are kept: models of several parts, and decoders without their output matrix, tiny and random, as transformers' own classes save
them. Of a whole one that transformers loads nothing may be missed; of each of its tensors that is taken away and that transformers then
misses too, if it is of a part whose family s2s-ckpt knows, the name has to be said.

check_kept.py [MODEL_TYPE|CLASS..]. Exit 0 ok, 1 different, 77 a library is absent."""
import glob
import os
import shutil
import sys
import tempfile

from tool import bad, need, run

need("torch", "transformers", "safetensors")
import transformers as hf
from safetensors.torch import load_file, save_file
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

hf.logging.set_verbosity_error()
hf.logging.disable_progress_bar()

WORDS = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=4, vocab_size=120,
             pad_token_id=0, bos_token_id=1, eos_token_id=2, max_position_embeddings=64)
HYBRID = dict(WORDS, num_hidden_layers=4, hybrid_override_pattern="ME*-", mamba_num_heads=4, mamba_head_dim=4, ssm_state_size=4, n_groups=1,
              n_routed_experts=4, moe_intermediate_size=8, moe_shared_expert_intermediate_size=12, num_experts_per_tok=2)
TOWER = dict(hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4, image_size=28, patch_size=14, projection_dim=16,
             vision_output_dim=16, encoder_layers=2, d_model=32, encoder_attention_heads=4, encoder_ffn_dim=40, depth=2, num_heads=4, embed_dim=32,
             mlp_dim=40)
# the class, and what the names of parts that no table knows begin with
MODELS = {
    "audioflamingo3": ("AudioFlamingo3ForConditionalGeneration", "audio_tower. multi_modal_projector."),
    "cohere_asr": ("CohereAsrForConditionalGeneration", "model. log_softmax."),
    "deepseek_vl": ("DeepseekVLForConditionalGeneration", "model.aligner."),
    "gemma3": ("Gemma3ForConditionalGeneration", ""),
    "got_ocr2": ("GotOcr2ForConditionalGeneration", "vision_tower. multi_modal_projector."),
    "idefics2": ("Idefics2ForConditionalGeneration", "model.vision_model. model.connector."),
    "idefics3": ("Idefics3ForConditionalGeneration", "model.vision_model. model.connector."),
    "internvl": ("InternVLForConditionalGeneration", "vision_tower. multi_modal_projector."),
    "lighton_ocr": ("LightOnOcrForConditionalGeneration", "model.vision_encoder. model.vision_projection."),
    "llava": ("LlavaForConditionalGeneration", "vision_tower. multi_modal_projector."),
    "llava_onevision": ("LlavaOnevisionForConditionalGeneration", "multi_modal_projector. image_newline"),
    "mistral3": ("Mistral3ForConditionalGeneration", "vision_tower. multi_modal_projector."),
    "nemotron_h_omni": ("NemotronH_Omni_Reasoning_V3", "vision_model.radio_model.model.blocks. vision_model.radio_model.model.patch_generator.video_embedder. vision_model.radio_model.summary_idxs"),
    "paligemma": ("PaliGemmaForConditionalGeneration", "multi_modal_projector."),
    "parakeet_ctc": ("ParakeetForCTC", ""),
    "parakeet_tdt": ("ParakeetForTDT", "decoder. encoder_projector. joint."),
    "qwen2_audio": ("Qwen2AudioForConditionalGeneration", "audio_tower. multi_modal_projector."),
    "qwen2_vl": ("Qwen2VLForConditionalGeneration", "visual. model. lm_head."),
    "smolvlm": ("SmolVLMForConditionalGeneration", "model.vision_model. model.connector."),
    "voxtral": ("VoxtralForConditionalGeneration", "audio_tower. multi_modal_projector."),
}

# decoders alone, or with another head: all of their tensors are known
BODIES = ("LlamaModel", "Gemma3TextModel", "Qwen3MoeModel", "NemotronHModel", "MistralForSequenceClassification", "NemotronForTokenClassification")


def make_body(name):
    kind = getattr(hf, name)
    sizes = HYBRID if "NemotronH" in name else dict(WORDS, num_experts=2, num_experts_per_tok=1, moe_intermediate_size=8) if "Moe" in name else WORDS
    return kind(kind.config_class(**sizes))


def make(kind):
    config = CONFIG_MAPPING[kind]
    plain, parts = config(), {}
    for key in config.sub_configs:
        part = getattr(plain, key, None)
        if part is None:
            continue
        sizes = HYBRID if part.model_type == "nemotron_h" else WORDS if key == "text_config" else TOWER
        parts[key] = dict({k: v for k, v in sizes.items() if k in part.to_dict() or sizes is HYBRID}, model_type=part.model_type)
    parts.update((key, 100) for key in plain.to_dict() if key in ("image_token_id", "image_token_index", "video_token_id", "audio_token_id"))
    parts.update((key, 16) for key in plain.to_dict() if key == "decoder_hidden_size")
    if kind == "nemotron_h_omni":
        parts["vision_config"]["video_temporal_patch_size"] = 2
        parts.update(vision_hidden_size=32, projector_hidden_size=24, audio_config=dict(
            model_type="parakeet_encoder", hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4, projection_bias=False,
            subsampling_conv_channels=8, projection_hidden_size=24))
    return getattr(hf, MODELS[kind][0])(config(**parts))


def lacks(model, folder):
    _, info = type(model).from_pretrained(folder, output_loading_info=True)
    return bool(info["missing_keys"])


def check(kind, tmp):
    folder, less = os.path.join(tmp, "whole"), os.path.join(tmp, "less")
    model, unknown = (make_body(kind), ()) if kind in BODIES else (make(kind), tuple(MODELS[kind][1].split()))
    model.save_pretrained(folder)
    os.makedirs(less)
    shutil.copy(os.path.join(folder, "config.json"), less)
    (path,) = glob.glob(os.path.join(folder, "*.safetensors"))
    tensors = load_file(path)
    if lacks(model, folder):
        bad.append("%s: transformers itself misses something" % kind)
    said = run("verify", folder)
    if said.returncode or said.stderr:
        bad.append("%s: whole, and yet: %s" % (kind, said.stderr.strip()[:400]))
    n = 0
    for name in tensors:
        save_file({k: t for k, t in tensors.items() if k != name}, os.path.join(less, "model.safetensors"), {"format": "pt"})
        said = run("verify", less).stderr
        known = not name.startswith(unknown)
        n += known
        if known and "is not whole" not in said and lacks(model, less):
            bad.append("%s: %s is not missed" % (kind, name))
        if not known and said and not lacks(model, less):
            bad.append("%s: %s is missed: %s" % (kind, name, said.strip()[:300]))
    if n < 20 and kind not in ("cohere_asr", "qwen2_vl"):
        bad.append("%s: %d tensors of parts that are known" % (kind, n))


for kind in sys.argv[1:] or [*MODELS, *BODIES]:
    with tempfile.TemporaryDirectory() as tmp:
        check(kind, tmp)
print("\n".join(bad) or "check_kept: ok")
sys.exit(bool(bad))
