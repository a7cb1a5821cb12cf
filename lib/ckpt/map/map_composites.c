/* The name tables of models of several parts: vision, sound and language. */
#include "lib/ckpt/map/map.h"

/* Composite models, and the parts that only they have. Sources: Megatron-Core's RADIOViTModel,
 * LLaVAModel and MimoModel with their converters; Megatron-Bridge's Nemotron-VL and Nemotron-Omni;
 * NVIDIA's RADIO (H is timm's ViT; g is DINOv2's, with everything nested in "inner.");
 * transformers' Parakeet; NeMo's SALM. */

/* alternative names that identify a part, see map_tables.c; CLIP's tower has such a token, too */
#define EYE "{position_embeddings,class_token}"
#define CLIP "{position_embeddings,conv1}.weight"
#define WORDS \
    "{embedding.word_embeddings,output_layer,decoder.final_layernorm,decoder.final_norm}.weight"

/* transformers 5.24 has the norm of the vision tower's end in what follows it */
#define OMNI_NORM "rename vision_projector.vision_final_layernorm.{*} vision_final_layernorm.{*}\n"

/* the language models of a SALM, under Hugging Face's names on both sides */
#define SALM_WORDS "=nemotron_h|=qwen_moe|=mixtral|=gemma2|=llama|=nemotron|as_is"

static const char composites[] =
    /* ---- language, vision and (Omni) sound; to Hugging Face all of them are one folder ---- */
    "family nemotron_vlm\n" OMNI_NORM "detect vision_model." EYE " !vision_model." CLIP
    " language_model." WORDS "\n"
    "include vlm_parts \"\" \"\"\n"

    "family nemotron_vlm_bridge\n" OMNI_NORM "detect llava_model.vision_model." EYE
    " !llava_model.vision_model." CLIP " llava_model.language_model." WORDS "\n"
    "include vlm_parts llava_model. \"\"\n"

    /* Megatron-Core's MimoModel names modalities and encoders as its trainer does, and not all
     * trainers wrap RADIO in a module. The modality is the one whose encoder has RADIO's position
     * embedding. */
    "family nemotron_vlm_mimo\n" OMNI_NORM "where modality_submodules.{1}.encoders.{2}."
    "{position_embeddings,radio_model.position_embeddings}\n"
    "rename modality_submodules.{1}.encoders.{2}.radio_model.{*} "
    "modality_submodules.images.encoders.radio_encoder.radio_model.{*}\n"
    "rename modality_submodules.{1}.encoders.{2}.{*} "
    "modality_submodules.images.encoders.radio_encoder.radio_model.{*}\n"
    "rename modality_submodules.{1}.{*} modality_submodules.images.{*}\n"
    "detect modality_submodules.images.encoders.radio_encoder.radio_model." EYE
    " language_model." WORDS "\n"
    "part nemotron_h_decoder|mixtral|qwen_moe|gemma2|llama|nemotron language_model. "
    "language_model.\n"
    "part nemotron_h_mtp language_model. \"\" ?\n"
    "part radio_g|radio_g_flat|radio_h "
    "modality_submodules.images.encoders.radio_encoder.radio_model. "
    "vision_model.radio_model.model.\n"
    "part vlm_projection modality_submodules.images.input_projections.0. mlp1. ?\n"
    "include vlm_vision_norm modality_submodules.images.encoders.radio_encoder.radio_model. "
    "\"\"\n"
    "include vlm_left_out \"\" \"\"\n"

    /* Gemma 3 with vision, in Megatron-Bridge: transformers' own tower */
    "family gemma3_vl\n"
    "detect language_model." WORDS " multi_modal_projector.{mm_soft_embed_norm,proj}.weight\n"
    "model_type gemma3\n"
    "part gemma2 language_model. language_model.\n"
    "include gemma3_projection \"\" \"\"\n"
    "part siglip_inside|siglip vision_tower. vision_tower. ?\n"
    "vision_tower.{*}  vision_tower.{*}  copy\n" /* its head */

    "family gemma3_projection\n"
    "multi_modal_projector.mm_soft_embed_norm.weight "
    "multi_modal_projector.mm_soft_emb_norm.weight copy [v]\n"
    "multi_modal_projector.proj.weight "
    "multi_modal_projector.mm_input_projection_weight copy [v,H] transposed\n"

    /* transformers' own module: the same names on both sides; nested one level deeper before
     * transformers 5 */
    "family siglip_inside\n"
    "detect part vision_model.encoder.layers.{N}.layer_norm{1,2}.weight\n"
    "include siglip vision_model. vision_model.\n"

    "family siglip\n"
    "detect part encoder.layers.{N}.layer_norm{1,2}.weight\n"
    "model_type siglip_vision_model\n"
    "numbered encoder.layers.\n"
    "embeddings.patch_embedding.weight     embeddings.patch_embedding.weight     copy [D,*,P,P]\n"
    "embeddings.patch_embedding.bias       embeddings.patch_embedding.bias       copy [D]\n"
    "embeddings.position_embedding.weight  embeddings.position_embedding.weight  copy [*,D]\n"
    "post_layernorm.{weight,bias}          post_layernorm.{weight,bias}          copy [D]\n"
    "head.probe                            head.probe                            copy [1,1,D] "
    "?+head\n"
    "head.attention.in_proj_{weight,bias}  head.attention.in_proj_{weight,bias}  copy "
    "[D+D+D,D|D+D+D] ?+head\n"
    "head.attention.out_proj.{weight,bias} head.attention.out_proj.{weight,bias} copy [D,D|D] "
    "?+head\n"
    "head.layernorm.{weight,bias}          head.layernorm.{weight,bias}          copy [D] ?+head\n"
    "head.mlp.fc{1,2}.weight               head.mlp.fc{1,2}.weight               copy [f,D|D,f] "
    "?+head\n"
    "head.mlp.fc{1,2}.bias                 head.mlp.fc{1,2}.bias                 copy [f|D] "
    "?+head\n"
    "include siglip_layers encoder.layers.{N}. encoder.layers.{N}.\n"

    "family siglip_layers\n"
    "section layer_norm1.weight\n"
    "layer_norm1.{weight,bias}             layer_norm1.{weight,bias}             copy [D]\n"
    "layer_norm2.{weight,bias}             layer_norm2.{weight,bias}             copy [D]\n"
    "self_attn.{q,k,v,out}_proj.weight     self_attn.{q,k,v,out}_proj.weight     copy [D,D]\n"
    "self_attn.{q,k,v,out}_proj.bias       self_attn.{q,k,v,out}_proj.bias       copy [D]\n"
    "mlp.fc{1,2}.weight                    mlp.fc{1,2}.weight                    copy [f,D|D,f]\n"
    "mlp.fc{1,2}.bias                      mlp.fc{1,2}.bias                      copy [f|D]\n"

    /* the language model of a composite whose other parts no table knows: those are listed as
     * unused */
    "family language_model\n"
    "detect language_model." WORDS "\n"
    "part nemotron_h_decoder|mixtral|qwen_moe|gemma2|llama|nemotron language_model. "
    "language_model.\n"
    "part nemotron_h_mtp language_model. \"\" ?\n"

    "family vlm_parts\n"
    "part nemotron_h_decoder|mixtral|qwen_moe|gemma2|llama|nemotron language_model. "
    "language_model.\n"
    "part nemotron_h_mtp language_model. \"\" ?\n"
    "part radio_g|radio_g_flat|radio_h vision_model. vision_model.radio_model.model.\n"
    "part vlm_projection vision_projection. mlp1. ?\n"
    "include vlm_vision_norm vision_model. \"\"\n"
    "part =fastconformer sound_model.encoder. sound_encoder.encoder. ?\n"
    "part sound_projection sound_projection. sound_projection. ?\n"
    "include vlm_left_out \"\" \"\"\n"

    /* with multi-token prediction Megatron-Core gives each stack a final norm, RADIO's too;
     * transformers has it before the projection */
    "family vlm_vision_norm\n"
    "decoder.final_layernorm.{weight,bias}  vision_final_layernorm.{weight,bias}  copy [D] ? "
    "?+vision_norm\n"

    "family vlm_left_out\n"
    "include radio_left_out \"\" vision_model.radio_model.\n"
    "drop_hf sound_encoder.encoder.feature_extractor.featurizer.{fb,window}\n"

    "family nemotron_vlm_projection\n"
    "include vlm_projection vision_projection. mlp1.\n"

    "family vlm_projection\n"
    "encoder.linear_fc1.layer_norm_weight   0.weight   copy [a]\n"
    "encoder.linear_fc1.layer_norm_bias     0.bias     copy [a] ?\n"
    "encoder.linear_fc1.weight              1.weight   copy [b,a]\n"
    "encoder.linear_fc1.bias                1.bias     copy [b] ?\n"
    "encoder.linear_fc2.weight              3.weight   copy [H,b]\n"
    "encoder.linear_fc2.bias                3.bias     copy [H] ?\n"

    "family nemotron_sound_projection\n"
    "include sound_projection sound_projection. sound_projection.\n"

    "family sound_projection\n"
    "encoder.linear_fc1.layer_norm_weight   norm.weight      copy [a]\n"
    "encoder.linear_fc1.weight              linear1.weight   copy [b,a]\n"
    "encoder.linear_fc1.bias                linear1.bias     copy [b] ?\n"
    "encoder.linear_fc2.weight              linear2.weight   copy [H,b]\n"
    "encoder.linear_fc2.bias                linear2.bias     copy [H] ?\n"

    /* ---- the vision tower alone: Hugging Face's folder, torch.hub's file, bare names ---- */
    "family radio\n"
    "detect " EYE " !" CLIP " decoder.layers.{N}.{*}\n"
    "part radio_g|radio_g_flat|radio_h \"\" radio_model.model.\n"
    "include radio_left_out \"\" radio_model.\n"

    "family radio_hub\n"
    "part radio_g|radio_g_flat|radio_h \"\" model.\n"
    "include radio_left_out \"\" \"\"\n"

    "family radio_bare\n"
    "part radio_g|radio_g_flat|radio_h \"\" \"\"\n"

    /* transformers has pixel normalisation and summary tokens in the configuration */
    "family radio_left_out\n"
    "drop_hf input_conditioner.norm_{mean,std}\n"
    "drop_hf summary_idxs\n"

    "family radio_h\n"
    "detect part decoder.layers.{N}.mlp.linear_fc{1,2}.weight\n"
    "model_type radio\n"
    "include radio_ends \"\" \"\"\n"
    "ln_post.weight        inner.norm.weight                      copy [D] ?\n"
    "ln_post.bias          inner.norm.bias                        copy [D] ?\n"
    "include radio_layers decoder.layers.{N}. blocks.{N}.\n"
    "section decoder.layers.{N}.mlp.linear_fc2.weight\n"
    "decoder.layers.{N}.mlp.linear_fc1.weight  blocks.{N}.mlp.fc1.weight  copy [r,D]\n"
    "decoder.layers.{N}.mlp.linear_fc1.bias    blocks.{N}.mlp.fc1.bias    copy [r]\n"
    "decoder.layers.{N}.mlp.linear_fc2.weight  blocks.{N}.mlp.fc2.weight  copy [D,r]\n"
    "decoder.layers.{N}.mlp.linear_fc2.bias    blocks.{N}.mlp.fc2.bias    copy [D]\n"

    "family radio_g\n"
    "detect part decoder.layers.{N}.ls{1,2}\n"
    "model_type radio\n"
    "include radio_ends \"\" inner.\n"
    "include radio_g_norm \"\" \"\"\n"
    "include radio_g_layers \"\" inner.\n"

    /* the same with only the final norm in "inner." */
    "family radio_g_flat\n"
    "detect part decoder.layers.{N}.ls{1,2}\n"
    "model_type radio\n"
    "include radio_ends \"\" \"\"\n"
    "include radio_g_norm \"\" \"\"\n"
    "include radio_g_layers \"\" \"\"\n"

    "family radio_g_norm\n"
    "ln_post.weight        inner.norm.weight                      copy [D]\n"
    "ln_post.bias          inner.norm.bias                        copy [D]\n"

    "family radio_g_layers\n"
    "include radio_layers decoder.layers.{N}. blocks.{N}.\n"
    "section decoder.layers.{N}.mlp.linear_fc2.weight\n"
    "decoder.layers.{N}.mlp.linear_fc1.weight        blocks.{N}.mlp.w12.weight  copy [r+r,D]\n"
    "decoder.layers.{N}.mlp.linear_fc1.bias          blocks.{N}.mlp.w12.bias    copy [r+r]\n"
    "decoder.layers.{N}.mlp.linear_fc1.weight_{w,v}  blocks.{N}.mlp.w12.weight  concat [r+r,D]\n"
    "decoder.layers.{N}.mlp.linear_fc1.bias_{w,v}    blocks.{N}.mlp.w12.bias    concat [r+r]\n"
    "decoder.layers.{N}.mlp.linear_fc2.weight        blocks.{N}.mlp.w3.weight   copy [D,r]\n"
    "decoder.layers.{N}.mlp.linear_fc2.bias          blocks.{N}.mlp.w3.bias     copy [D]\n"
    "decoder.layers.{N}.ls1                          blocks.{N}.ls1.grandma     copy [D]\n"
    "decoder.layers.{N}.ls2                          blocks.{N}.ls2.grandma     copy [D]\n"

    "family radio_ends\n"
    "class_token           patch_generator.cls_token.token        copy [*,D]\n"
    "position_embeddings   patch_generator.pos_embed              copy\n"
    "embedder.weight       patch_generator.embedder.weight        copy [D,*]\n"
    "embedder.bias         patch_generator.embedder.bias          copy [D] ?\n"
    "video_embedder.weight patch_generator.video_embedder.weight  copy ?\n"
    "video_embedder.bias   patch_generator.video_embedder.bias    copy ?\n"
    "mask_token            mask_token                             copy ?\n"

    "family radio_layers\n"
    "section self_attention.linear_qkv.weight\n"
    "self_attention.linear_qkv.layer_norm_weight norm1.weight      copy [D]\n"
    "self_attention.linear_qkv.layer_norm_bias   norm1.bias        copy [D]\n"
    "input_layernorm.weight                      norm1.weight      copy [D]\n"
    "input_layernorm.bias                        norm1.bias        copy [D]\n"
    "self_attention.linear_qkv.weight            attn.qkv.weight   heads [D+D+D,D]\n"
    "self_attention.linear_qkv.bias              attn.qkv.bias     heads [D+D+D]\n"
    "self_attention.linear_proj.weight           attn.proj.weight  copy [D,D]\n"
    "self_attention.linear_proj.bias             attn.proj.bias    copy [D]\n"
    "mlp.linear_fc1.layer_norm_weight            norm2.weight      copy [D]\n"
    "mlp.linear_fc1.layer_norm_bias              norm2.bias        copy [D]\n"
    "pre_mlp_layernorm.weight                    norm2.weight      copy [D]\n"
    "pre_mlp_layernorm.bias                      norm2.bias        copy [D]\n"

    /* ---- NeMo's SALM <-> the folders encoder/, llm/ and projection.safetensors ---- */
    /* with Megatron's language model inside */
    "family salm_megatron\n"
    "detect perception.encoder.pre_encode.conv.{0,2,3}.weight llm." WORDS "\n"
    "include salm_perception \"\" \"\"\n"
    "part nemotron_h|mixtral|qwen_moe|gemma2|llama|nemotron llm. llm.\n"

    /* DuplexS2S: layers of the language model without "model.", embedding and head beside it */
    "family salm_duplex\n"
    "detect perception.encoder.pre_encode.conv.{0,2,3}.weight {embed_tokens,lm_head}.weight "
    "llm.layers.{N}.{*}\n"
    "include salm_perception \"\" \"\"\n"
    "embed_tokens.weight   llm.model.embed_tokens.weight   copy [*,H]\n"
    "lm_head.weight        llm.lm_head.weight              copy [*,H]\n"
    "llm.norm.weight       llm.model.norm.weight           copy [H]\n"
    "include =decoder_attention llm. llm.model.\n"
    "include =gated_mlp llm. llm.model.\n"
    "llm.{*}               llm.model.{*}                   copy\n"

    "family salm\n"
    "detect perception.encoder.pre_encode.conv.{0,2,3}.weight embed_tokens.weight llm.{*}\n"
    "embed_tokens.weight   llm.model.embed_tokens.weight   copy [*,H]\n"
    "include salm_perception \"\" \"\"\n"
    "part " SALM_WORDS " llm. llm.\n"

    /* with NeMo Automodel the embedding stays inside the language model, and experts are as it
     * trains them */
    "family salm_automodel\n"
    "detect perception.encoder.pre_encode.conv.{0,2,3}.weight llm.{*}\n"
    "include salm_perception \"\" \"\"\n"
    "part automodel_nemotron_h|automodel_qwen_moe|" SALM_WORDS " llm. llm.\n"

    "family salm_perception\n"
    "include fastconformer perception.encoder. encoder.\n"
    "include salm_projection \"\" \"\"\n"
    "drop perception.preprocessor.featurizer.{window,fb}\n"

    "family salm_projection\n"
    "perception.proj.weight   proj.weight   copy [H,C] ?projection\n" /* C: of fastconformer */
    "perception.proj.bias     proj.bias     copy [H] ?\n"

    /* no known family: names stay, completeness is not checked */
    "family as_is\n"
    "{*}   {*}   copy\n";

const char *const ckpt_map_texts[] = {composites, ckpt_map_tables, NULL};
