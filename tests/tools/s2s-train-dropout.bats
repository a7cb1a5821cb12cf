# Dropout, and what is done to sound: what is drawn belongs to a sample and its epoch, whatever pack, microbatch or run it comes in.
load common
load train

setup_tool() {
    tiny_model 'seen: t.s2s' 6 0 1
    sed -i 's/eps: 1.0e-8/eps: 1.0e-3/; s/warmup_steps: 2/warmup_steps: 0/' r.yaml
}

speech() {
    eval "$(sed -n '/^make_speech()/,/^}/p' "$ROOT/tests/tools/s2s-train.bats")"
    make_speech
    sed -i 's/weight_decay: 0.1/&, eps: 1.0e-3/; s/warmup_steps: 10/warmup_steps: 0/; s/{steps: 150/{steps: 3/; s/eval: {[^}]*}, //' s.yaml
}

n_records() { s2s-shard ls --json "$1" | jq '.files[0].records | length'; }

@test "drawn: the same samples in other packs and microbatches learn the same" {
    speech
    heard='train.dither=1.0e-3 train.spec_augment={"freq_width":9,"form":"legacy"}'
    for tokens in 61 200; do
        s2s-pack -q --ids ids.jsonl --tokens $tokens -o ids$tokens.s2s
        s2s-pack -q --manifest m.jsonl --tokenizer tokenizer.json --prompt plain --audio pcm --tokens $((tokens / 2 + 40)) -o sound$tokens.s2s
    done
    for of in ids:r.yaml sound:s.yaml; do
        for tokens in 61 200; do
            n=$(n_records "${of%%:*}$tokens.s2s")
            s2s-train -q -j1 "${of#*:}" run=${of%%:*}$tokens data.train=["${of%%:*}$tokens.s2s"] data.eval={} train.packs_per_step="$n" train.steps=3 \
                train.dropout=0.2 'model.lora={dropout: 0.3}' "model.unfreeze=['*']" $heard
        done
        n=$(n_records "${of%%:*}61.s2s")
        [ "$n" -ne "$(n_records "${of%%:*}200.s2s")" ]
        s2s-train -q -j2 "${of#*:}" run=${of%%:*}joined data.train=["${of%%:*}61.s2s"] data.eval={} train.packs_per_step="$n" train.steps=3 \
            train.packs_per_microbatch="$n" train.dropout=0.2 'model.lora={dropout: 0.3}' "model.unfreeze=['*']" $heard
        python3 "$ROOT/tests/tools/mesh_equal.py" ${of%%:*}61 ${of%%:*}200
        python3 "$ROOT/tests/tools/mesh_equal.py" ${of%%:*}61 ${of%%:*}joined
    done
}

@test "dropout: each epoch draws anew, a resumed run draws what an unbroken one does, and shares of 0 change no bit" {
    n=$(n_records t.s2s)
    s2s-train -q -j1 r.yaml run=all train.dropout=0.3
    s2s-train -q -j1 r.yaml run=part train.dropout=0.3 train.steps=3
    s2s-train -q -j1 r.yaml run=part train.dropout=0.3
    alike "$(log all)" "$(log part)"
    alike "$(bits all 6)" "$(bits part 6)"
    # nothing is learned: losses differ by what is left out alone
    s2s-train -q -j1 r.yaml run=still train.dropout=0.3 optimizer.lr=1.0e-30 schedule.min_lr=0 train.packs_per_step="$n" optimizer.weight_decay=0
    [ "$(jq .loss still/log.jsonl | sort -u | wc -l)" -eq 6 ]
    s2s-train -q -j1 r.yaml run=none
    s2s-train -q -j1 r.yaml run=zero train.dropout=0
    alike "$(bits none 6)" "$(bits zero 6)"
    not alike "$(bits none 6)" "$(bits all 6)"
}

@test "dropout: an evaluation leaves nothing out" {
    for share in 0 0.5; do
        s2s-train -q -j1 r.yaml run=eval$share train.dropout=$share optimizer.lr=1.0e-30 schedule.min_lr=0 optimizer.weight_decay=0 train.steps=2 train.eval_every=2
    done
    alike "$(jq -c .loss eval0/eval.jsonl)" "$(jq -c .loss eval0.5/eval.jsonl)"
    not alike "$(jq .loss eval0/log.jsonl)" "$(jq .loss eval0.5/log.jsonl)"
}

@test "dropout: what is no share, and what has no place, is refused with its own" {
    exits 1 s2s-train r.yaml run=no train.dropout=1
    says "train.dropout" "expected a share of at least 0 and below 1, found 1"
    exits 1 s2s-train r.yaml run=no 'train.dropout={hiden: 0.1}'
    says "hiden" "hidden"
    exits 1 s2s-train r.yaml run=no 'model.lora={dropout: -0.1}'
    says "model.lora.dropout" "expected a share"
    [ ! -e no ]
}
