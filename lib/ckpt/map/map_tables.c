/* The name tables of models of one part: decoders, encoders, heads. */
#include "lib/ckpt/map/map.h"

/* Sources: Megatron-Core's sharded_state_dict of GPTModel, MambaModel, TransformerLayer and
 * MoELayer; the parameter names of transformers' Llama, Qwen2, Qwen3, Gemma, NemotronH, Parakeet
 * and of NeMo's ConformerEncoder. Models of several parts: map_composites.c. */

/* A family is detected by any of several names: if one tensor is lost, perhaps in all layers, it is
 * reported as missing, and the source is not mistaken for another family. */
#define EXPERTS \
    "decoder.layers.{N}.mlp.{router,experts.experts.linear_fc1,experts.experts.linear_fc2}.weight"
/* multi-latent attention (DeepSeek) has linear_proj, too */
#define ATTENTION \
    "decoder.layers.{N}.self_attention.linear_{qkv,proj}.weight " \
    "!decoder.layers.{N}.self_attention.linear_kv_{down,up}_proj.weight "

/* layers after the first of the prediction network */
#define LSTM(N) \
    "decoder.prediction.dec_rnn.lstm." \
    "{weight_ih_l" N ",weight_hh_l" N ",bias_ih_l" N ",bias_hh_l" N "} decoder.lstm." \
    "{weight_ih_l" N ",weight_hh_l" N ",bias_ih_l" N ",bias_hh_l" N "} copy " \
    "[R+R+R+R,R|R+R+R+R,R|R+R+R+R|R+R+R+R] ?\n"
#define LSTM_LAYERS LSTM("1") LSTM("2") LSTM("3") LSTM("4") LSTM("5") LSTM("6") LSTM("7")

#define BACKBONE(IN) \
    "where " IN "model.layers.{N}.mixer.{dt_bias,_fp32_params.dt_bias,o_proj.weight," \
    "down_proj.weight,gate.weight}\n" \
    "rename " IN "model.embed_tokens.weight " IN "backbone.embeddings.weight\n" \
    "rename " IN "model.norm.weight " IN "backbone.norm_f.weight\n" \
    "rename " IN "model.layers.{N}.mixer._fp32_params.{*} " IN "backbone.layers.{N}.mixer.{*}\n" \
    "rename " IN "model.{*} " IN "backbone.{*}\n"
/* NeMo takes the words out of it, and of DuplexSTT the head and the name of the rest */
#define SALM_BACKBONES \
    "where llm.{model,backbone}.layers.{N}.mixer.dt_bias\n" \
    "rename embed_tokens.weight llm.backbone.embeddings.weight\n" \
    "where llm.layers.{N}.mixer.dt_bias\n" \
    "rename embed_tokens.weight llm.backbone.embeddings.weight\n" \
    "rename lm_head.weight llm.lm_head.weight\n" \
    "rename llm.norm_f.weight llm.backbone.norm_f.weight\n" \
    "rename llm.layers.{*} llm.backbone.layers.{*}\n"
#define BACKBONES SALM_BACKBONES BACKBONE("") BACKBONE("{1}.") BACKBONE("{1}.{2}.")

const char ckpt_map_tables[] =
    /* Not models, only names: transformers' names in memory, renamed to those of save_pretrained.
     * Since transformers 4.52 a composite is one model, whose first part is
     * model.language_model.layers and so on. */
    "family saved_names\n"
    "where model.language_model.layers.{*}\n"
    "rename model.language_model.{*} language_model.model.{*}\n"
    "rename lm_head.{*} language_model.lm_head.{*}\n"
    "rename model.{*} {*}\n"
    /* the same in Idefics and SmolVLM */
    "where model.text_model.layers.{*}\n"
    "rename model.text_model.{*} text_model.model.{*}\n"
    "rename lm_head.{*} text_model.lm_head.{*}\n"
    "rename model.{*} {*}\n"
    /* a decoder without its head, such as transformers' Qwen3Model */
    "where layers.{N}.input_layernorm.{*}\n"
    "rename embed_tokens.{*} model.embed_tokens.{*}\n"
    "rename norm.{*} model.norm.{*}\n"
    "rename layers.{*} model.layers.{*}\n"
    "where layers.{N}.mixer.{*}\n"
    "rename embeddings.{*} backbone.embeddings.{*}\n"
    "rename norm_f.{*} backbone.norm_f.{*}\n"
    "rename layers.{*} backbone.layers.{*}\n"
    /* ..ForQuestionAnswering of Llama and Qwen */
    "where transformer.layers.{N}.input_layernorm.{*}\n"
    "rename transformer.{*} model.{*}\n"
    "include saved_nemotron_h \"\" \"\"\n"

    /* transformers 5 and NeMo Automodel, which names embedding and final norm as other decoders do;
     * alone or in a composite */
    "family saved_nemotron_h\n" BACKBONES

    "family nemotron_h\n"
    "detect decoder.layers.{N}.mixer.{A_log,D,dt_bias}\n"
    "model_type nemotron_h\n"
    "include nemotron_h_decoder \"\" \"\"\n"
    "include nemotron_h_mtp \"\" \"\"\n"

    /* without a Mamba layer: only Megatron's hybrid stack has this name for its final norm */
    "family nemotron_h\n"
    "detect decoder.final_norm.weight\n"

    "family nemotron_h_decoder\n"
    "detect part decoder.layers.{N}.mixer.{A_log,D,dt_bias}\n"
    "numbered decoder.layers.\n"
    "embedding.word_embeddings.weight   backbone.embeddings.weight   vocab [V,H]\n"
    "output_layer.weight                lm_head.weight               vocab [V,H] ?tied\n"
    "embedding.word_embeddings.weight   lm_head.weight               again ?\n"
    "decoder.final_norm.weight          backbone.norm_f.weight       copy [H]\n"
    "decoder.final_layernorm.weight     backbone.norm_f.weight       copy [H]\n"
    "include nemotron_h_layers decoder.layers.{N}. backbone.layers.{N}.\n"

    /* Multi-token prediction: a depth has one layer per letter of its pattern. Megatron numbers
     * depths and layers within a depth, Hugging Face and this table all layers consecutively
     * (map_mtp.c). What a depth starts with belongs to its first layer, its final norm to its last.
     */
    "family nemotron_h_mtp\n"
    "detect part mtp.layers.{N}.eh_proj.weight\n"
    "numbered mtp.layers.\n"
    "section mtp.layers.{N}.eh_proj.weight\n"
    "mtp.layers.{N}.eh_proj.weight          mtp.layers.{N}.eh_proj.weight          copy [H,H+H]\n"
    "mtp.layers.{N}.enorm.weight            mtp.layers.{N}.enorm.weight            copy [H]\n"
    "mtp.layers.{N}.hnorm.weight            mtp.layers.{N}.hnorm.weight            copy [H]\n"
    "section mtp.layers.{N}.final_layernorm.weight\n"
    "mtp.layers.{N}.final_layernorm.weight  mtp.layers.{N}.final_layernorm.weight  copy [H]\n"
    "include nemotron_h_layers mtp.layers.{N}.mtp_model_layer. mtp.layers.{N}.\n"

    "family nemotron_h_layers\n"
    "include nemotron_h_dense \"\" \"\"\n"
    "include nemotron_h_moe \"\" \"\"\n"

    "family nemotron_h_dense\n"
    "section mixer.in_proj.weight.z\n"
    "mixer.in_proj.layer_norm_weight norm.weight copy [H]\n"
    "norm.weight norm.weight copy [H]\n"
    "mixer.in_proj.weight.{z,x,B,C,dt} mixer.in_proj.weight concat [i+c+n,H]\n"
    "mixer.conv1d.weight.{x,B,C} mixer.conv1d.weight concat [c,1,K]\n"
    "mixer.conv1d.bias.{x,B,C} mixer.conv1d.bias concat [c] ?conv_bias\n"
    "mixer.in_proj.weight mixer.in_proj.weight mamba [i+c+n,H]\n"
    "mixer.conv1d.weight mixer.conv1d.weight mamba [c,1,K]\n"
    "mixer.conv1d.bias mixer.conv1d.bias mamba [c] ?conv_bias\n"
    "mixer.in_proj.bias mixer.in_proj.bias mamba [i+c+n] ?mixer_bias ?+mixer_biases\n"
    "mixer.out_proj.bias mixer.out_proj.bias copy [H] ?mixer_bias ?+mixer_biases\n"
    "mixer.A_log mixer.A_log copy [n]\n"
    "mixer.D mixer.D copy [n]\n"
    "mixer.dt_bias mixer.dt_bias copy [n]\n"
    "mixer.norm.weight mixer.norm.weight copy [i]\n"
    "mixer.out_proj.weight mixer.out_proj.weight copy [H,i]\n"
    "section self_attention.linear_qkv.weight\n"
    "self_attention.linear_qkv.layer_norm_weight norm.weight copy [H]\n"
    "input_layernorm.weight norm.weight copy [H]\n"
    "self_attention.linear_qkv.weight mixer.{q,k,v}_proj.weight qkv [q,H|k,H|k,H]\n"
    "self_attention.linear_qkv.bias mixer.{q,k,v}_proj.bias qkv [q|k|k] ?qkv_bias\n"
    "self_attention.linear_proj.weight mixer.o_proj.weight copy [H,q]\n"
    "self_attention.linear_proj.bias mixer.o_proj.bias copy [H] ?bias\n"
    "section mlp.linear_fc1.weight\n"
    "mlp.linear_fc1.layer_norm_weight norm.weight copy [H]\n"
    "pre_mlp_layernorm.weight norm.weight copy [H]\n"
    "mlp.linear_fc1.weight mixer.up_proj.weight copy [f,H]\n"
    "mlp.linear_fc2.weight mixer.down_proj.weight copy [H,f]\n"
    "mlp.linear_fc1.bias mixer.up_proj.bias copy [f] ?mlp_bias ?+biases\n"
    "mlp.linear_fc2.bias mixer.down_proj.bias copy [H] ?mlp_bias ?+biases\n"

    "family nemotron_h_moe\n"
    "section mlp.router.weight\n"
    "pre_mlp_layernorm.weight norm.weight copy [H]\n"
    "mlp.linear_fc1.layer_norm_weight norm.weight copy [H]\n"
    "mlp.router.weight mixer.gate.weight copy [e,H]\n"
    "mlp.router.expert_bias mixer.gate.e_score_correction_bias copy [e]\n"
    "mlp.experts.experts.linear_fc1.weight mixer.experts.{E}.up_proj.weight experts [m,x]\n"
    "mlp.experts.experts.linear_fc2.weight mixer.experts.{E}.down_proj.weight experts [x,m]\n"
    "mlp.experts.experts.{E}.linear_fc1.weight mixer.experts.{E}.up_proj.weight copy [m,x] ?\n"
    "mlp.experts.experts.{E}.linear_fc2.weight mixer.experts.{E}.down_proj.weight copy [x,m] ?\n"
    "mlp.shared_experts.linear_fc1.weight mixer.shared_experts.up_proj.weight copy [s,H] "
    "?shared ?+shared\n"
    "mlp.shared_experts.linear_fc2.weight mixer.shared_experts.down_proj.weight copy [H,s] "
    "?shared ?+shared\n"
    "mlp.shared_experts.linear_fc1.bias mixer.shared_experts.up_proj.bias copy [s] "
    "?+shared_biases\n"
    "mlp.shared_experts.linear_fc2.bias mixer.shared_experts.down_proj.bias copy [H] "
    "?+shared_biases\n"
    "mlp.fc1_latent_proj.weight mixer.fc1_latent_proj.weight copy [x,H] ?+latent\n"
    "mlp.fc2_latent_proj.weight mixer.fc2_latent_proj.weight copy [H,x] ?+latent\n"
    "mlp.fc1_latent_proj.bias mixer.fc1_latent_proj.bias copy [x] ?+latent_biases\n"
    "mlp.fc2_latent_proj.bias mixer.fc2_latent_proj.bias copy [H] ?+latent_biases\n"
    /* as transformers 5 has them in memory */
    "mlp.experts.experts.linear_fc1.weight mixer.experts.up_proj copy [e,m,x] ?\n"
    "mlp.experts.experts.linear_fc2.weight mixer.experts.down_proj copy [e,x,m] ?\n"
    /* as NeMo Automodel has them */
    "mlp.experts.experts.linear_fc1.weight mixer.experts.gate_and_up_projs copy [e,x,m] "
    "transposed ?\n"
    "mlp.experts.experts.linear_fc2.weight mixer.experts.down_projs copy [e,m,x] transposed ?\n"

    "family gemma2\n"
    "detect decoder.layers.{N}.mlp.linear_fc2.post_layernorm.weight\n"
    "model_type gemma2 gemma3 gemma3_text\n"
    "include decoder_attention decoder. model.\n"
    "include decoder_ends \"\" \"\"\n"
    "include gemma2_layers decoder.layers.{N}. model.layers.{N}.\n"

    "family gemma2_layers\n"
    "section mlp.linear_fc2.weight\n"
    "self_attention.linear_proj.post_layernorm.weight post_attention_layernorm.weight copy [H]\n"
    "mlp.linear_fc1.layer_norm_weight pre_feedforward_layernorm.weight copy [H]\n"
    "pre_mlp_layernorm.weight pre_feedforward_layernorm.weight copy [H]\n"
    "mlp.linear_fc2.post_layernorm.weight post_feedforward_layernorm.weight copy [H]\n"
    "mlp.linear_fc1.weight mlp.{gate,up}_proj.weight split [f,H]\n"
    "mlp.linear_fc1.weight_{w,v} mlp.{gate,up}_proj.weight copy [f,H]\n"
    "mlp.linear_fc2.weight mlp.down_proj.weight copy [H,f]\n"

    /* Megatron's name that no other family has; Hugging Face's counterpart is also Llama's */
    "family gemma2\n"
    "detect decoder.layers.{N}.self_attention.linear_proj.post_layernorm.weight\n"

    /* Megatron's names are those of qwen_moe; but every layer has experts, and none has what all
     * Qwens have: q and k norms, or biases and a shared expert */
    "family mixtral\n"
    "detect " EXPERTS " " ATTENTION "!decoder.layers.{N}.self_attention.linear_qkv.bias "
    "!decoder.layers.{N}.self_attention.{q,k}_layernorm.weight "
    "!decoder.layers.{N}.mlp.linear_{fc1,fc2}.weight "
    "!decoder.layers.{N}.mlp.shared_experts.{linear_fc1.weight,linear_fc2.weight,gate_weight} "
    "!decoder.layers.{N}.mixer.{A_log,D,dt_bias}\n"
    "model_type mixtral\n"
    "include decoder_attention decoder. model.\n"
    "include decoder_ends \"\" \"\"\n"
    "include mixtral_layers decoder.layers.{N}. model.layers.{N}.\n"

    "family mixtral_layers\n"
    "section mlp.router.weight\n"
    "pre_mlp_layernorm.weight post_attention_layernorm.weight copy [H]\n"
    "mlp.linear_fc1.layer_norm_weight post_attention_layernorm.weight copy [H]\n"
    "mlp.router.weight block_sparse_moe.gate.weight copy [e,H]\n"
    "mlp.experts.experts.linear_fc1.weight "
    "block_sparse_moe.experts.{E}.{w1,w3}.weight experts [m,H]\n"
    "mlp.experts.experts.linear_fc2.weight block_sparse_moe.experts.{E}.w2.weight experts [H,m]\n"
    "mlp.experts.experts.{E}.linear_fc1.weight "
    "block_sparse_moe.experts.{E}.{w1,w3}.weight split [m,H] ?\n"
    "mlp.experts.experts.{E}.linear_fc1.weight_{w,v} "
    "block_sparse_moe.experts.{E}.{w1,w3}.weight copy [m,H] ?\n"
    "mlp.experts.experts.{E}.linear_fc2.weight "
    "block_sparse_moe.experts.{E}.w2.weight copy [H,m] ?\n"
    /* as transformers 5 has them in memory */
    "mlp.router.weight mlp.gate.weight copy [e,H] ?\n"
    "mlp.experts.experts.linear_fc1.weight mlp.experts.gate_up_proj copy [e,m+m,H] ?\n"
    "mlp.experts.experts.linear_fc2.weight mlp.experts.down_proj copy [e,H,m] ?\n"

    "family qwen_moe\n"
    "detect " EXPERTS " " ATTENTION "!decoder.layers.{N}.mixer.{A_log,D,dt_bias}\n"
    "model_type qwen2_moe qwen3_moe\n"
    "include decoder_attention decoder. model.\n"
    "include decoder_ends \"\" \"\"\n"
    "include gated_mlp decoder. model.\n"
    "include qwen_moe_layers decoder.layers.{N}. model.layers.{N}.\n"

    "family qwen_moe_layers\n"
    "section mlp.router.weight\n"
    "pre_mlp_layernorm.weight post_attention_layernorm.weight copy [H]\n"
    "mlp.linear_fc1.layer_norm_weight post_attention_layernorm.weight copy [H]\n"
    "mlp.router.weight mlp.gate.weight copy [e,H]\n"
    "mlp.experts.experts.linear_fc1.weight mlp.experts.{E}.{gate,up}_proj.weight experts [m,H]\n"
    "mlp.experts.experts.linear_fc2.weight mlp.experts.{E}.down_proj.weight experts [H,m]\n"
    "mlp.experts.experts.{E}.linear_fc1.weight "
    "mlp.experts.{E}.{gate,up}_proj.weight split [m,H] ?\n"
    "mlp.experts.experts.{E}.linear_fc1.weight_{w,v} "
    "mlp.experts.{E}.{gate,up}_proj.weight copy [m,H] ?\n"
    "mlp.experts.experts.{E}.linear_fc2.weight mlp.experts.{E}.down_proj.weight copy [H,m] ?\n"
    /* as transformers 5 has them in memory */
    "mlp.experts.experts.linear_fc1.weight mlp.experts.gate_up_proj copy [e,m+m,H] ?\n"
    "mlp.experts.experts.linear_fc2.weight mlp.experts.down_proj copy [e,H,m] ?\n"
    /* as NeMo Automodel has them */
    "mlp.experts.experts.linear_fc1.weight "
    "mlp.experts.gate_and_up_projs copy [e,H,m+m] transposed ?\n"
    "mlp.experts.experts.linear_fc2.weight mlp.experts.down_projs copy [e,m,H] transposed ?\n"
    "mlp.shared_experts.linear_fc1.weight "
    "mlp.shared_expert.{gate,up}_proj.weight split [s,H] ?shared_gate ?+shared\n"
    "mlp.shared_experts.linear_fc1.weight_{w,v} "
    "mlp.shared_expert.{gate,up}_proj.weight copy [s,H] ?shared_gate ?+shared\n"
    "mlp.shared_experts.linear_fc2.weight mlp.shared_expert.down_proj.weight copy [H,s] "
    "?shared_gate ?+shared\n"
    "mlp.shared_experts.gate_weight mlp.shared_expert_gate.weight copy [1,H] ?shared_gate\n"

    "family llama\n"
    "detect " ATTENTION "!" EXPERTS " !decoder.layers.{N}.mixer.{A_log,D,dt_bias}\n"
    "model_type llama mistral qwen2 qwen3 gemma\n"
    "include decoder_attention decoder. model.\n"
    "include decoder_ends \"\" \"\"\n"
    "include gated_mlp decoder. model.\n"
    "include qwen_mtp \"\" \"\"\n"

    /* multi-token prediction with one layer, as Megatron-Bridge has it for Qwen3 */
    "family qwen_mtp\n"
    "numbered mtp.layers.\n"
    "section mtp.layers.{N}.transformer_layer.mlp.linear_fc2.weight\n"
    "mtp.layers.0.eh_proj.weight          mtp.fc.weight                     copy [H,H+H]\n"
    "mtp.layers.0.enorm.weight            mtp.pre_fc_norm_embedding.weight  copy [H]\n"
    "mtp.layers.0.hnorm.weight            mtp.pre_fc_norm_hidden.weight     copy [H]\n"
    "mtp.layers.0.final_layernorm.weight  mtp.norm.weight                   copy [H]\n"
    "mtp.layers.{N}.transformer_layer.mlp.linear_fc1.layer_norm_weight "
    "mtp.layers.{N}.post_attention_layernorm.weight copy [H]\n"
    "mtp.layers.{N}.transformer_layer.pre_mlp_layernorm.weight "
    "mtp.layers.{N}.post_attention_layernorm.weight copy [H]\n"
    "mtp.layers.{N}.transformer_layer.mlp.linear_fc1.weight "
    "mtp.layers.{N}.mlp.{gate,up}_proj.weight split [f,H]\n"
    "mtp.layers.{N}.transformer_layer.mlp.linear_fc1.weight_{w,v} "
    "mtp.layers.{N}.mlp.{gate,up}_proj.weight copy [f,H]\n"
    "mtp.layers.{N}.transformer_layer.mlp.linear_fc2.weight "
    "mtp.layers.{N}.mlp.down_proj.weight copy [H,f]\n"
    "include attention mtp.layers.{N}.transformer_layer. mtp.layers.{N}.\n"

    /* Nemotron-4 and Minitron: LayerNorm with biases, MLP without gate. Megatron's names are those
     * of llama, which comes first: so only by --map or the configuration */
    "family nemotron\n"
    "detect " ATTENTION "!" EXPERTS " !decoder.layers.{N}.mixer.{A_log,D,dt_bias}\n"
    "model_type nemotron\n"
    "include decoder_attention decoder. model.\n"
    "decoder.layers.{N}.self_attention.linear_qkv.layer_norm_bias "
    "model.layers.{N}.input_layernorm.bias copy [H]\n"
    "decoder.layers.{N}.input_layernorm.bias model.layers.{N}.input_layernorm.bias copy [H]\n"
    "include decoder_ends \"\" \"\"\n"
    "decoder.final_layernorm.bias model.norm.bias copy [H]\n"
    "section decoder.layers.{N}.mlp.linear_fc2.weight\n"
    "decoder.layers.{N}.mlp.linear_fc1.layer_norm_{weight,bias} "
    "model.layers.{N}.post_attention_layernorm.{weight,bias} copy [H]\n"
    "decoder.layers.{N}.pre_mlp_layernorm.{weight,bias} "
    "model.layers.{N}.post_attention_layernorm.{weight,bias} copy [H]\n"
    "decoder.layers.{N}.mlp.linear_fc1.weight model.layers.{N}.mlp.up_proj.weight copy [f,H]\n"
    "decoder.layers.{N}.mlp.linear_fc1.bias model.layers.{N}.mlp.up_proj.bias copy [f] ?mlp_bias "
    "?+biases\n"
    "decoder.layers.{N}.mlp.linear_fc2.weight model.layers.{N}.mlp.down_proj.weight copy [H,f]\n"
    "decoder.layers.{N}.mlp.linear_fc2.bias model.layers.{N}.mlp.down_proj.bias copy [H] ?mlp_bias "
    "?+biases\n"

    /* ---- NeMo Automodel's own names <-> Hugging Face's: all but the experts are the same ---- */
    "family automodel_qwen_moe\n"
    "detect model.layers.{N}.mlp.experts.gate_and_up_projs "
    "model.layers.{N}.self_attn.q_norm.weight "
    "!model.layers.{N}.mlp.gate.e_score_correction_bias "
    "!model.layers.{N}.mlp.shared_experts.down_proj.weight "
    "!model.layers.{N}.mlp.experts.gate_up_proj_bias\n"
    "trains\n"
    "numbered model.layers.\n"
    "include =decoder_attention model. model.\n"
    "include =decoder_ends \"\" \"\"\n"
    "include =gated_mlp model. model.\n"
    "include automodel_qwen_moe_layers model.layers.{N}. model.layers.{N}.\n"

    "family automodel_qwen_moe_layers\n"
    "section mlp.gate.weight\n"
    "post_attention_layernorm.weight post_attention_layernorm.weight copy [H]\n"
    "mlp.gate.weight mlp.gate.weight copy [e,H]\n"
    "mlp.experts.gate_and_up_projs mlp.experts.{E}.{gate,up}_proj.weight experts [m,H] transposed\n"
    "mlp.experts.down_projs mlp.experts.{E}.down_proj.weight experts [H,m] transposed\n"

    "family automodel_nemotron_h\n"
    "detect backbone.layers.{N}.mixer.experts.gate_and_up_projs\n"
    "trains\n"
    "backbone.embeddings.weight  backbone.embeddings.weight  copy [V,H]\n"
    "backbone.norm_f.weight      backbone.norm_f.weight      copy [H]\n"
    "lm_head.weight              lm_head.weight              copy [V,H]\n"
    "include automodel_nemotron_h_layers backbone.layers.{N}. backbone.layers.{N}.\n"
    "include automodel_nemotron_h_mtp mtp.layers.{N}. mtp.layers.{N}.\n"

    "family automodel_nemotron_h_mtp\n"
    "section eh_proj.weight\n"
    "eh_proj.weight          eh_proj.weight          copy [H,H+H]\n"
    "enorm.weight            enorm.weight            copy [H]\n"
    "hnorm.weight            hnorm.weight            copy [H]\n"
    "section final_layernorm.weight\n"
    "final_layernorm.weight  final_layernorm.weight  copy [H]\n"
    "include automodel_nemotron_h_layers \"\" \"\"\n"

    "family automodel_nemotron_h_layers\n"
    "include =nemotron_h_dense \"\" \"\"\n"
    "section mixer.gate.weight\n"
    "norm.weight                             norm.weight                             copy [H]\n"
    "mixer.gate.weight                       mixer.gate.weight                       copy [e,H]\n"
    "mixer.gate.e_score_correction_bias      mixer.gate.e_score_correction_bias      copy [e]\n"
    "mixer.experts.gate_and_up_projs         mixer.experts.{E}.up_proj.weight        experts [m,x] "
    "transposed\n"
    "mixer.experts.down_projs                mixer.experts.{E}.down_proj.weight      experts [x,m] "
    "transposed\n"
    "mixer.shared_experts.up_proj.weight     mixer.shared_experts.up_proj.weight     copy [s,H] "
    "?+shared\n"
    "mixer.shared_experts.down_proj.weight   mixer.shared_experts.down_proj.weight   copy [H,s] "
    "?+shared\n"
    "mixer.fc1_latent_proj.weight            mixer.fc1_latent_proj.weight            copy [x,H] "
    "?+latent\n"
    "mixer.fc2_latent_proj.weight            mixer.fc2_latent_proj.weight            copy [H,x] "
    "?+latent\n"

    "family decoder_ends\n"
    "embedding.word_embeddings.weight   model.embed_tokens.weight   vocab [V,H]\n"
    "output_layer.weight                lm_head.weight              vocab [V,H] ?tied\n"
    "decoder.final_layernorm.weight     model.norm.weight           copy [H]\n"
    "decoder.final_norm.weight          model.norm.weight           copy [H]\n"
    "drop rotary_pos_emb.inv_freq\n"
    /* transformers before 4.32 stored them */
    "drop_hf model.layers.{N}.self_attn.rotary_emb.inv_freq\n"

    "family decoder_attention\n"
    "include attention layers.{N}. layers.{N}.\n"

    "family attention\n"
    "section self_attention.linear_qkv.weight\n"
    "self_attention.linear_qkv.layer_norm_weight "
    "input_layernorm.weight copy [H]\n"
    "input_layernorm.weight input_layernorm.weight copy [H]\n"
    "self_attention.linear_qkv.weight "
    "self_attn.{q,k,v}_proj.weight qkv [q,H|k,H|k,H]\n"
    "self_attention.linear_qkv.bias "
    "self_attn.{q,k,v}_proj.bias qkv [q|k|k] ?qkv_bias\n"
    "self_attention.linear_proj.weight self_attn.o_proj.weight copy [H,q]\n"
    "self_attention.linear_proj.bias self_attn.o_proj.bias copy [H] ?bias\n"
    "self_attention.q_layernorm.weight self_attn.q_norm.weight copy [d] "
    "?qk_norm ?+norms\n"
    "self_attention.k_layernorm.weight self_attn.k_norm.weight copy [d] "
    "?qk_norm ?+norms\n"

    "family gated_mlp\n"
    "include gated_mlp_layers layers.{N}. layers.{N}.\n"

    "family gated_mlp_layers\n"
    "section mlp.linear_fc2.weight\n"
    "mlp.linear_fc1.layer_norm_weight post_attention_layernorm.weight copy [H]\n"
    "pre_mlp_layernorm.weight post_attention_layernorm.weight copy [H]\n"
    "mlp.linear_fc1.weight mlp.{gate,up}_proj.weight split [f,H]\n"
    "mlp.linear_fc1.weight_{w,v} mlp.{gate,up}_proj.weight copy [f,H]\n"
    "mlp.linear_fc2.weight mlp.down_proj.weight copy [H,f]\n"
    "mlp.linear_fc1.bias mlp.{gate,up}_proj.bias split [f] ?mlp_bias ?+biases\n"
    "mlp.linear_fc1.bias_{w,v} mlp.{gate,up}_proj.bias copy [f] ?mlp_bias ?+biases\n"
    "mlp.linear_fc2.bias mlp.down_proj.bias copy [H] ?mlp_bias ?+biases\n"

    "family fastconformer_ctc\n"
    "detect encoder.pre_encode.conv.{0,2,3}.weight decoder.decoder_layers.0.{weight,bias}\n"
    "model_type parakeet_ctc\n"
    "include fastconformer encoder. encoder.\n"
    "decoder.decoder_layers.0.{weight,bias} ctc_head.{weight,bias} copy [V,C,1|V]\n"
    "drop preprocessor.featurizer.{window,fb}\n"

    "family fastconformer_transducer\n"
    "detect encoder.pre_encode.conv.{0,2,3}.weight joint.{enc,pred}.weight\n"
    "model_type parakeet_tdt parakeet_rnnt\n"
    "include fastconformer encoder. encoder.\n"
    "decoder.prediction.embed.weight decoder.embedding.weight copy [*,P]\n"
    "decoder.prediction.dec_rnn.lstm.{weight_ih_l0,weight_hh_l0,bias_ih_l0,bias_hh_l0} "
    "decoder.lstm.{weight_ih_l0,weight_hh_l0,bias_ih_l0,bias_hh_l0} copy "
    "[R+R+R+R,P|R+R+R+R,R|R+R+R+R|R+R+R+R]\n" LSTM_LAYERS
    "joint.enc.{weight,bias}         encoder_projector.{weight,bias}         copy [J,C|J]\n"
    "joint.pred.{weight,bias}        decoder.decoder_projector.{weight,bias} copy [J,R|J]\n"
    "joint.joint_net.2.{weight,bias} joint.head.{weight,bias}                copy [T,J|T]\n"
    /* without dropout */
    "joint.joint_net.1.{weight,bias} joint.head.{weight,bias}                copy [T,J|T]\n"
    "drop preprocessor.featurizer.{window,fb}\n"

    "family fastconformer_hybrid_ctc\n"
    "include fastconformer encoder. encoder.\n"
    "ctc_decoder.decoder_layers.0.{weight,bias} ctc_head.{weight,bias} copy [V,C,1|V]\n"
    "drop preprocessor.featurizer.{window,fb}\n"

    "family fastconformer_encoder\n"
    "detect encoder.pre_encode.conv.{0,2,3}.weight "
    "!decoder.decoder_layers.0.{weight,bias} !joint.{enc,pred}.weight\n"
    "model_type parakeet_encoder\n"
    "include fastconformer encoder. \"\"\n"
    "drop preprocessor.featurizer.{window,fb}\n"

    "family fastconformer_perception\n"
    "detect perception.encoder.pre_encode.conv.{0,2,3}.weight\n"
    "include fastconformer perception.encoder. \"\"\n"
    "drop perception.preprocessor.featurizer.{window,fb}\n"

    "family fastconformer\n"
    "numbered layers.\n"
    "pre_encode.conv.0.{weight,bias}   subsampling.layers.0.{weight,bias} copy [S,1,A,A|S]\n"
    "pre_encode.conv.2.{weight,bias}   subsampling.layers.2.{weight,bias} copy [S,*,A,A|S] ?\n"
    "pre_encode.conv.3.{weight,bias}   subsampling.layers.3.{weight,bias} copy [S,S,1,1|S] ?\n"
    "pre_encode.conv.5.{weight,bias}   subsampling.layers.5.{weight,bias} copy [S,*,A,A|S] ?\n"
    "pre_encode.conv.6.{weight,bias}   subsampling.layers.6.{weight,bias} copy [S,S,1,1|S] ?\n"
    "pre_encode.conv.8.{weight,bias}   subsampling.layers.8.{weight,bias} copy [S,*,A,A|S] ?\n"
    "pre_encode.conv.9.{weight,bias}   subsampling.layers.9.{weight,bias} copy [S,S,1,1|S] ?\n"
    "pre_encode.conv.11.{weight,bias}  subsampling.layers.11.{weight,bias} copy [S,*,A,A|S] ?\n"
    "pre_encode.conv.12.{weight,bias}  subsampling.layers.12.{weight,bias} copy [S,S,1,1|S] ?\n"
    "pre_encode.out.{weight,bias}      subsampling.linear.{weight,bias}   copy [C,*|C]\n"
    "drop pos_enc.pe\n"
    "drop pos_bias_{u,v}\n"
    "include fastconformer_layers layers.{N}. layers.{N}.\n"

    "family fastconformer_layers\n"
    "section norm_out.weight\n"
    "norm_feed_forward1.{weight,bias} norm_feed_forward1.{weight,bias} copy [C]\n"
    "norm_self_att.{weight,bias} norm_self_att.{weight,bias} copy [C]\n"
    "norm_conv.{weight,bias} norm_conv.{weight,bias} copy [C]\n"
    "norm_feed_forward2.{weight,bias} norm_feed_forward2.{weight,bias} copy [C]\n"
    "norm_out.{weight,bias} norm_out.{weight,bias} copy [C]\n"
    "feed_forward1.linear{1,2}.weight feed_forward1.linear{1,2}.weight copy [f,C|C,f]\n"
    "feed_forward1.linear{1,2}.bias feed_forward1.linear{1,2}.bias copy [f|C] ?\n"
    "feed_forward2.linear{1,2}.weight feed_forward2.linear{1,2}.weight copy [g,C|C,g]\n"
    "feed_forward2.linear{1,2}.bias feed_forward2.linear{1,2}.bias copy [g|C] ?\n"
    "self_attn.linear_{q,k,v,out}.weight self_attn.{q,k,v,o}_proj.weight copy [C,C]\n"
    "self_attn.linear_{q,k,v,out}.bias self_attn.{q,k,v,o}_proj.bias copy [C] ?\n"
    "self_attn.linear_pos.weight self_attn.relative_k_proj.weight copy [C,C]\n"
    "self_attn.pos_bias_{u,v} self_attn.bias_{u,v} copy [h,d]\n"
    "conv.{pointwise_conv1,depthwise_conv,pointwise_conv2}.weight "
    "conv.{pointwise_conv1,depthwise_conv,pointwise_conv2}.weight copy [C+C,C,1|C,1,W|C,C,1]\n"
    "conv.{pointwise_conv1,depthwise_conv,pointwise_conv2}.bias "
    "conv.{pointwise_conv1,depthwise_conv,pointwise_conv2}.bias copy [C+C|C|C] ?\n"
    "conv.batch_norm.{weight,bias,running_mean,running_var} "
    "conv.norm.{weight,bias,running_mean,running_var} copy [C]\n"
    "conv.batch_norm.num_batches_tracked conv.norm.num_batches_tracked copy ?\n";
