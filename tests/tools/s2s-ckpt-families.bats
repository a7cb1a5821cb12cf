#!/usr/bin/env bats
# Models that lack a tensor, or have one of another shape: each is missed by its name, and what is left is taken for no other model.
load common
load tensors

setup_tool() {
    DATA=$ROOT/tests/oracle/ckpt/data
}

# what families are known by, all layers in one tensor: to lose one is to lose it of every layer
write_families() {
    local ends="'embedding.word_embeddings.weight': (20, 8), 'decoder.final_layernorm.weight': (8,)"
    local attention="'self_attention.linear_qkv.weight': (2, 16, 8), 'self_attention.linear_proj.weight': (2, 8, 8),
        'self_attention.linear_qkv.layer_norm_weight': (2, 8)"
    local mlp="'mlp.linear_fc1.layer_norm_weight': (2, 8), 'mlp.linear_fc1.weight': (2, 6, 8), 'mlp.linear_fc2.weight': (2, 8, 3)"
    local moe="'pre_mlp_layernorm.weight': (2, 8), 'mlp.router.weight': (2, 3, 8), 'mlp.experts.experts.linear_fc1.weight': (2, 3, 4, 8),
        'mlp.experts.experts.linear_fc2.weight': (2, 3, 8, 2)"
    local gemma="'mlp.linear_fc2.post_layernorm.weight': (2, 8), 'self_attention.linear_proj.post_layernorm.weight': (2, 8)"
    local shared="'mlp.shared_experts.linear_fc1.weight': (2, 4, 8), 'mlp.shared_experts.linear_fc2.weight': (2, 8, 2), 'mlp.shared_experts.gate_weight': (2, 1, 8)"
    llama="dict({$ends}, **{'decoder.layers.' + k: v for k, v in {$attention, $mlp}.items()})"
    write llama.safetensors "$llama"
    write gemma2.safetensors "dict({$ends}, **{'decoder.layers.' + k: v for k, v in {$attention, $mlp, $gemma}.items()})"
    mixtral="dict({$ends}, **{'decoder.layers.' + k: v for k, v in {$attention, $moe}.items()})"
    write mixtral.safetensors "$mixtral"
    qwen2_moe="dict({$ends}, **{'decoder.layers.' + k: v for k, v in {$attention, $moe, $shared}.items()})"
    write qwen2_moe.safetensors "$qwen2_moe"
    write_lose
    echo '{"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4}' >config.json
}

@test "long: a tensor that all layers have lost is missed by its name: the model is taken for no other family" {
    local typed=$((FIRST % 2)) # whether the configuration names the family: both ways of each, or (S2S_LONG is empty) by turns
    write_families
    for family in llama gemma2 mixtral qwen2_moe; do
        exits 0 s2s-ckpt convert -q --strict --to hf --config config.json $family.safetensors $family
        for lost in $(s2s-ckpt ls $family.safetensors | awk '$1 ~ /weight$/ {print $1}'); do
            python3 lose.py $family.safetensors less.safetensors $lost
            echo '{"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "model_type": "'$family'"}' >typed.json
            typed=$((1 - typed))
            # a gate of the shared expert is not in every mixture: only the configuration says that it is in this one
            if [ $typed = 1 ] || [ -n "$S2S_LONG" ] || [ $lost = decoder.layers.mlp.shared_experts.gate_weight ]; then
                exits 1 s2s-ckpt convert --to hf --config typed.json less.safetensors out
                says "${lost#decoder.layers.}"
                [ -n "$S2S_LONG" ] || continue
            fi
            [ $lost != decoder.layers.mlp.shared_experts.gate_weight ] || continue
            exits 1 s2s-ckpt convert --to hf --config config.json less.safetensors out
            says "${lost#decoder.layers.}"
        done
    done
    # a model inside of another is known by what it has not too
    write inside.safetensors "{'language_model.' + k: v for k, v in $qwen2_moe.items()}"
    exits 0 s2s-ckpt convert -q --strict --to hf --config config.json inside.safetensors inside
    # nor a model of several parts for one of fewer
    exits 0 s2s-ckpt convert -q --to safetensors "$DATA/mcore015_vlm_tp2" vlm.safetensors
    echo '{"num_attention_heads": 4, "num_key_value_heads": 2, "vision_config": {"num_attention_heads": 2}}' >config.json
    for lost in vision_model.position_embeddings language_model.embedding.word_embeddings.weight; do
        python3 lose.py vlm.safetensors less.safetensors $lost
        exits 1 s2s-ckpt convert --to hf --config config.json less.safetensors out
        says "(of $lost)"
    done
}

@test "CLIP's tower is not taken for RADIO's, nor latent attention for a Llama's that has lost its own" {
    write_families
    local clip="'vision_model.class_token': (1, 1, 4), 'vision_model.conv1.weight': (4, 3, 2, 2), 'vision_model.position_embeddings.weight': (5, 4),
        'vision_model.decoder.layers.self_attention.linear_qkv.weight': (2, 12, 4), 'vision_model.decoder.layers.self_attention.linear_proj.weight': (2, 4, 4)"
    write clip.safetensors "dict({'language_model.' + k: v for k, v in $llama.items()}, **{$clip})"
    exits 0 s2s-ckpt convert --to hf --config config.json clip.safetensors clip
    says "unused: vision_model.class_token"
    for family in llama mixtral qwen2_moe; do
        write latent.safetensors "{k.replace('linear_qkv.weight', 'linear_kv_up_proj.weight'): v for k, v in ${!family}.items()}"
        exits 1 s2s-ckpt convert --to hf --config config.json latent.safetensors out
        says "of no family known here"
    done
}

@test "a FastConformer that has lost a tensor, or has one of another shape, is refused both ways and by name" {
    write_families
    exits 0 s2s-ckpt convert -q --to safetensors "$DATA/tiny.nemo" nemo.safetensors
    exits 0 s2s-ckpt convert -q --to hf --map fastconformer_ctc nemo.safetensors hf
    cp hf/model.safetensors hf.safetensors
    for lost in encoder.pre_encode.{conv.0,conv.3,out}.weight decoder.decoder_layers.0.{weight,bias} encoder.layers.1.self_attn.pos_bias_u; do
        python3 lose.py nemo.safetensors less.safetensors $lost
        exits 1 s2s-ckpt convert --to hf less.safetensors out
        says "wanted but absent (1):"
        says "(of $lost)"
    done
    # NeMo's stacking has no convolutions there: not transformers' model, its names are kept
    python3 lose.py nemo.safetensors stacking.safetensors encoder.pre_encode.conv.{0,2,3,5,6}.{weight,bias}
    exits 0 s2s-ckpt convert -q --to hf stacking.safetensors stacking
    exits 0 s2s-ckpt ls stacking
    says encoder.pre_encode.out.weight
    # where dw_striding has only ReLU (1, 4, 7) another of NeMo's subsamplings has weights
    for at in 1 4 7; do
        sed "s/pre_encode.conv.3.weight/pre_encode.conv.$at.weight/" nemo.safetensors >other.safetensors
        exits 1 s2s-ckpt convert --to hf other.safetensors out
        says "a subsampling other than dw_striding"
        says "pre_encode.conv.$at.weight"
    done
    printf '%s\n' 'family mine' 'encoder.pre_encode.conv.7.weight conv.weight copy' >mine.map
    exits 0 s2s-ckpt convert --to hf --map mine.map other.safetensors mine
    write_turn
    for turned in ctc_head.weight encoder.subsampling.layers.{0,3}.weight encoder.layers.0.conv.{depthwise_conv,pointwise_conv1}.weight encoder.layers.1.self_attn.bias_v; do
        python3 turn.py hf.safetensors turned.safetensors $turned
        exits 1 s2s-ckpt convert --to torch_dist --map fastconformer_ctc turned.safetensors out
        says "$turned: shape"
    done
    python3 turn.py nemo.safetensors turned.safetensors encoder.layers.1.conv.pointwise_conv1.weight
    exits 1 s2s-ckpt convert --to hf turned.safetensors out
    says "encoder.layers.1.conv.pointwise_conv1.weight): shape [1, 16, 32], expected [32, 16, 1]"
}

@test "a Nemotron-H with no more than the ends of a layer that predicts a further token has lost that layer" {
    local model="{'embedding.word_embeddings.weight': (8, 4), 'output_layer.weight': (8, 4), 'decoder.final_norm.weight': (4,),
        'decoder.layers.0.mlp.linear_fc1.layer_norm_weight': (4,), 'decoder.layers.0.mlp.linear_fc1.weight': (6, 4), 'decoder.layers.0.mlp.linear_fc2.weight': (4, 6)}"
    write whole.safetensors "$model"
    exits 0 s2s-ckpt convert -q --strict --to hf --map nemotron_h whole.safetensors whole
    local ends="'mtp.layers.0.final_layernorm.weight': (4,)"
    write one.safetensors "dict($model, **{$ends})"
    exits 1 s2s-ckpt convert --to hf --map nemotron_h one.safetensors out
    says "mtp.layers.0.eh_proj.weight"
    write ends.safetensors "dict($model, **{$ends, 'mtp.layers.0.eh_proj.weight': (4, 8), 'mtp.layers.0.enorm.weight': (4,), 'mtp.layers.0.hnorm.weight': (4,)})"
    exits 1 s2s-ckpt convert --to hf --map nemotron_h ends.safetensors out
    says "all layers' tensors of mtp.layers.0"
    [ ! -e out ]
}

@test "Gemma 3's vision tower is whole, under transformers' names of today and of before" {
    local words="dict([('language_model.model.layers.0.%s.weight' % k, v) for k, v in {'input_layernorm': (6,), 'post_attention_layernorm': (6,),
        'pre_feedforward_layernorm': (6,), 'post_feedforward_layernorm': (6,), 'self_attn.q_proj': (6, 6), 'self_attn.k_proj': (3, 6), 'self_attn.v_proj': (3, 6),
        'self_attn.o_proj': (6, 6), 'self_attn.q_norm': (3,), 'self_attn.k_norm': (3,), 'mlp.gate_proj': (5, 6), 'mlp.up_proj': (5, 6),
        'mlp.down_proj': (6, 5)}.items()], **{'language_model.model.embed_tokens.weight': (10, 6), 'language_model.model.norm.weight': (6,),
        'multi_modal_projector.mm_soft_emb_norm.weight': (4,), 'multi_modal_projector.mm_input_projection_weight': (4, 6)})"
    local of_layer="{'layer_norm1': (4,), 'layer_norm2': (4,), 'mlp.fc1': (5, 4), 'mlp.fc2': (4, 5), **{'self_attn.%s_proj' % p: (4, 4) for p in ('q', 'k', 'v', 'out')}}"
    local tower="{'vision_tower.INSIDE' + k: v for k, v in dict([('embeddings.patch_embedding.weight', (4, 3, 2, 2)), ('embeddings.patch_embedding.bias', (4,)),
        ('embeddings.position_embedding.weight', (3, 4)), ('post_layernorm.weight', (4,)), ('post_layernorm.bias', (4,)), ('head.probe', (1, 1, 4)),
        ('head.attention.in_proj_weight', (12, 4)), ('head.attention.in_proj_bias', (12,)), ('head.attention.out_proj.weight', (4, 4)),
        ('head.attention.out_proj.bias', (4,)), ('head.layernorm.weight', (4,)), ('head.layernorm.bias', (4,)), ('head.mlp.fc1.weight', (5, 4)),
        ('head.mlp.fc1.bias', (5,)), ('head.mlp.fc2.weight', (4, 5)), ('head.mlp.fc2.bias', (4,))] +
        [('encoder.layers.%d.%s.%s' % (n, k, w), v if w == 'weight' else v[:1]) for n in range(2) for k, v in $of_layer.items() for w in ('weight', 'bias')]).items()}"
    write_lose
    write_turn
    echo '{"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 3, "hidden_size": 6, "vocab_size": 10}}' >config.json
    for inside in '' vision_model.; do
        write whole.safetensors "dict($words, **${tower//INSIDE/$inside})"
        rm -rf whole hf
        exits 0 s2s-ckpt convert -q --strict --to torch_dist --map gemma3 --config config.json whole.safetensors whole
        exits 0 s2s-ckpt convert -q --strict --to hf --config config.json whole hf
        exits 0 s2s-ckpt diff whole.safetensors hf
        s2s-ckpt convert -q --to safetensors whole megatron.safetensors
        for lost in embeddings.position_embedding.weight post_layernorm.bias head.mlp.fc1.bias encoder.layers.0.layer_norm1.weight encoder.layers.1.self_attn.out_proj.bias; do
            python3 lose.py whole.safetensors less.safetensors vision_tower.$inside$lost
            exits 1 s2s-ckpt convert --to torch_dist --map gemma3 --config config.json less.safetensors out
            says "vision_tower.$inside$lost"
            python3 lose.py megatron.safetensors less.safetensors vision_tower.$inside$lost
            exits 1 s2s-ckpt convert --to hf --config config.json less.safetensors out
            says "vision_tower.$inside$lost"
        done
        python3 turn.py whole.safetensors turned.safetensors vision_tower.${inside}encoder.layers.1.mlp.fc1.weight
        exits 1 s2s-ckpt convert --to torch_dist --map gemma3 --config config.json turned.safetensors out
        says "vision_tower.${inside}encoder.layers.1.mlp.fc1.weight: shape [4, 5], expected [5, 4]"
    done
    # what leads from it into the language model is as wide as that
    write narrow.safetensors "dict(${words/(4, 6)/(4, 5)}, **${tower//INSIDE/})"
    exits 1 s2s-ckpt convert --to torch_dist --map gemma3 --config config.json narrow.safetensors out
    says "multi_modal_projector.mm_input_projection_weight: shape [4, 5], expected [4, 6]"
}
