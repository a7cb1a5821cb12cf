# s2s-ckpt and an output matrix of its own that config.json ties to the embedding: transformers keeps both, and so do we.
load common
load own_head

setup_tool() {
    MODELS=$ROOT/tests/oracle/models
}

OWN="lm_head.weight differs from model.embed_tokens.weight, though config.json ties them (tie_word_embeddings)"

# head_of FOLDER [PREFIX]: the bytes of its output matrix
head_of() {
    s2s-ckpt cat "$1" "${2:-}lm_head.weight" -o head && sha256sum head
}

@test "verify warns of a head of its own that config.json ties, by its class too, and of no other" {
    exits 0 s2s-ckpt verify "$MODELS/llama_own_head"
    says "warning: $MODELS/llama_own_head: $OWN: transformers keeps both"
    says "complete and consistent"
    exits 0 s2s-ckpt verify "$MODELS/gemma1_own_head"
    says "$OWN"
    exits 0 s2s-ckpt verify --json "$MODELS/llama_own_head"
    [ "$(grep '^{' <<<"$output" | jq '[.warnings[] | select(contains("differs from"))] | length')" = 1 ]
    for model in llama_gqa_tied llama_gqa_untied qwen2 qwen3 gemma1 salm_llama; do
        turn || continue
        exits 0 s2s-ckpt verify "$MODELS/$model"
        says_not "differs"
    done
    # the same numbers twice are tied
    cp -r "$MODELS/llama_gqa_tied" twice
    own_head twice equal
    exits 0 s2s-ckpt verify twice
    says_not "differs"
    # no class is named, as in what s2s-train keeps
    cp -r "$MODELS/llama_own_head" classless
    jq 'del(.architectures)' "$MODELS/llama_own_head/config.json" >classless/config.json
    exits 0 s2s-ckpt verify classless
    says "$OWN"
    # a class without an output matrix makes no use of it
    jq '.architectures = ["LlamaModel"]' "$MODELS/llama_own_head/config.json" >classless/config.json
    exits 0 s2s-ckpt verify classless
    says_not "differs"
}

@test "convert --to hf writes a head of its own and tie_word_embeddings false, from any format" {
    M=$MODELS/llama_own_head
    exits 0 s2s-ckpt convert --to hf "$M" hf
    says "$OWN: it is kept, and the config.json that is written says false"
    says_tie hf/config.json false
    jq -S 'del(.tie_word_embeddings)' "$M/config.json" >a
    jq -S 'del(.tie_word_embeddings)' hf/config.json >b
    same a b
    exits 0 s2s-ckpt diff "$M" hf
    exits 0 s2s-ckpt verify hf
    says_not "warning"
    # where nothing is said and the class ties
    exits 0 s2s-ckpt convert -q --to hf "$MODELS/gemma1_own_head" gemma
    says_tie gemma/config.json false
    # through torch_dist, under Hugging Face's names and Megatron's, whoever gives the config
    exits 0 s2s-ckpt convert --to torch_dist "$M" dist
    says "$OWN"
    exits 0 s2s-ckpt convert --to hf dist back
    says_not "warning"
    says_tie back/config.json false
    exits 0 s2s-ckpt convert --to torch_dist --map llama "$M" megatron
    says "lm_head.weight differs from model.embed_tokens.weight"
    s2s-ckpt ls megatron | grep -q '^output_layer.weight'
    exits 0 s2s-ckpt convert -q --to hf megatron again
    says_tie again/config.json false
    exits 0 s2s-ckpt convert --to hf --config "$M/config.json" "$M/model.safetensors" given
    says "$OWN"
    says_tie given/config.json false
    for folder in back again given; do
        alike "$(head_of "$M")" "$(head_of $folder)"
    done
    # rounded to the same numbers it stays what it is
    exits 0 s2s-ckpt convert -q --to hf --dtype bf16 "$M" half
    says_tie half/config.json false
    # one that equals the embedding is copied, and what is said of it
    cp -r "$MODELS/llama_gqa_tied" twice
    own_head twice equal
    exits 0 s2s-ckpt convert --to hf twice same
    says_not "differs"
    says_tie same/config.json true
}

@test "a head of its own in a part of a model is found, and every config that ties it is put right" {
    # s2s-train's composite: folders of their own
    cp -r "$MODELS/salm_llama" salm
    own_head salm/llm other
    exits 0 s2s-ckpt verify salm
    says "llm.lm_head.weight differs from llm.model.embed_tokens.weight, though llm/config.json ties them"
    exits 0 s2s-ckpt convert -q --to hf salm hf
    says_tie hf/llm/config.json false
    says_tie hf/config.json null
    exits 0 s2s-ckpt convert -q --to torch_dist salm dist
    exits 0 s2s-ckpt convert --to hf dist back
    says_not "warning"
    says_tie back/llm/config.json false
    alike "$(head_of salm llm.)" "$(head_of back llm.)"
    # transformers' composites: names behind a prefix, sections of one config.json; either may tie
    mkdir whole
    python3 - "$MODELS/llama_own_head" <<'PY'
import json, struct, sys
raw = open(sys.argv[1] + "/model.safetensors", "rb").read()
n = struct.unpack("<Q", raw[:8])[0]
head = json.dumps({"language_model." + k: v for k, v in json.loads(raw[8:8 + n]).items() if k != "__metadata__"}).encode()
open("whole/model.safetensors", "wb").write(struct.pack("<Q", len(head)) + head + raw[8 + n:])
PY
    for tie in '.tie_word_embeddings = true' '.text_config.tie_word_embeddings = true' \
        '.tie_word_embeddings = true | .text_config.tie_word_embeddings = true'; do
        jq '{architectures: ["LlavaForConditionalGeneration"], model_type: "llava", text_config: (. | del(.tie_word_embeddings, .architectures))} | '"$tie" \
            "$MODELS/llama_own_head/config.json" >whole/config.json
        exits 0 s2s-ckpt verify whole
        says "language_model.lm_head.weight differs from language_model.model.embed_tokens.weight, though config.json ties them"
        rm -rf out
        exits 0 s2s-ckpt convert -q --to hf whole out
        [ "$(jq -c '[.tie_word_embeddings, .text_config.tie_word_embeddings]' out/config.json)" = "[false,false]" ]
        exits 0 s2s-ckpt verify out
        says_not "warning"
        # one part alone is a model of which the same holds
        rm -rf part
        exits 0 s2s-ckpt convert -q --to hf --part language_model whole part
        exits 0 s2s-ckpt verify part
        says_not "warning"
        [ "$(jq .tie_word_embeddings part/config.json)" != true ]
    done
    jq '.tie_word_embeddings = false | .text_config.tie_word_embeddings = false' whole/config.json >honest.json
    cp honest.json whole/config.json
    exits 0 s2s-ckpt verify whole
    says_not "warning"
}
