#!/usr/bin/env bats
# What a visit to a GPU runs, as far as it goes without one.
load common

@test "every line of the bench of kernels runs, at small sizes over the emulated GPU" {
    case $BUILD in /*) ;; *) BUILD=$ROOT/$BUILD ;; esac
    S2S_CUDA=$BUILD/libs2s-emu.so exits 0 "$BUILD/tests/gpu/gpu_bench" cuda 1024
    says_not failed
    [ "$(grep -c ' ms ' <<<"$output")" -ge 84 ]
}

@test "the bench of tiles of attention has none that are too large" {
    exits 0 g++ -std=c++17 -D_GNU_SOURCE -I"$ROOT" -O0 -fsyntax-only -Wno-unknown-pragmas -x c++ "$ROOT/tests/gpu/attention_bench.cu"
}

# a bundle whose programs take no time: bundle/
stub() {
    local name
    mkdir -p tree/bin tree/lib tree/data bundle
    for name in gpu_bench isa_test sm90 attention_bench gradients.sh {attention,collectives,far,gemm,list,rope}_test; do
        printf '#!/bin/sh\necho "[  PASSED  ] 1 test(s)."\n' >tree/bin/$name
    done
    cat >tree/bin/s2s-train <<'END'
#!/bin/sh
for a in "$@"; do case $a in run=*) mkdir -p "${a#run=}" && echo '{"loss": 1, "grad_norm": 1, "tokens_per_s": 9, "step_s": 1}' >"${a#run=}/log.jsonl" ;; esac; done
END
    chmod +x tree/bin/*
    touch tree/data/{small.json,small.yaml,salm.yaml}
    tar -C tree -cJf bundle/tree.tar.xz .
    cp "$ROOT"/tests/gpu/{visit.sh,report.py,peer.py,peer_model.py} bundle/
    export OUT=$PWD/out
}

@test "the limits of a visit's phases add up to less than ten minutes" {
    stub
    touch tree/libnccl.so.2
    for file in "$ROOT"/tests/unit/kernels/*_test.c; do touch "tree/bin/$(basename "$file" .c)"; done
    tar -C tree -cJf bundle/tree.tar.xz .
    VISIT_PLAN=1 exits 0 bash bundle/visit.sh bundle
    [ "$(wc -l <<<"$output")" -ge 45 ]
    awk '$3 == "s" && $1 != "all:" { sum += $2 } $1 == "all:" { exit !($2 == sum && sum > 400 && sum < 570) }' <<<"$output"
}

@test "a visit without a GPU runs what needs none, in order, and names what does" {
    stub
    VISIT_CUDA=tree/bin/rope_test exits 0 bash bundle/visit.sh bundle
    for name in isa isa-sm90 attention-tiles speech-bf16 long-bf16 peer san-racecheck-all; do says "$name: needs a GPU"; done
    # in the order of their worth: what is wrong shows before what is slow
    [ "$(sed -n '/^== phases/,/^== instr/p' out/table.txt | grep -oE '^(machine|isa|gradients|case-far_test|small-cpu|small-cuda|bench|part-bf16|profile)[: ]' | tr -d ': ' | paste -sd' ')" = \
        "machine isa gradients case-far_test small-cpu small-cuda bench part-bf16 profile" ]
    not grep -E 'status +[1-9]' out/table.txt
    grep -q 'small-cpu small-cuda .* ok' out/table.txt
    # what comes too late is named, and a pattern takes some phases alone
    VISIT_SECONDS=1 VISIT_CUDA=tree/bin/rope_test exits 0 bash bundle/visit.sh bundle
    says "gradients: no time left"
    VISIT_ONLY='^case' VISIT_CUDA=tree/bin/rope_test exits 0 bash bundle/visit.sh bundle
    says "case-rope_test"
    says_not "small-cpu  .*status"
    # torch's steps are no part of a usual visit
    not grep -q peer-steps out/table.txt
    VISIT_ONLY='^peer-steps' VISIT_CUDA=tree/bin/rope_test exits 0 bash bundle/visit.sh bundle
    says "peer-steps: needs a GPU"
}

@test "the table of a visit has speed, share and memory of steps beside torch's" {
    mkdir -p logs/speech-bf16
    for n in 1 2 3; do echo '{"loss": 1, "tokens_per_s": 50000, "step_s": 1, "peak_bytes": '"$n"'500000000}'; done >logs/speech-bf16/log.jsonl
    echo "torch eager, speech pack 14 steps 40000 tokens/s peak 30.0 GB" >logs/peer-steps.log
    exits 0 python3 "$ROOT/tests/gpu/report.py" logs
    says "speech-bf16  3 steps      50000 tokens/s"
    says "MFU  38.1 % of 989  peak 3.5 GB"
    says "torch eager, speech pack 14 steps"
}

gradients() {
    # all problems of a program take longer than it is given; the unit tests have them
    S2S_LONG= S2S_TEST_TABLES=emu "$ROOT/tests/gpu/gradients.sh" "$@"
}

@test "the check of gradients names what fails, and holds each type" {
    case $BUILD in /*) ;; *) BUILD=$ROOT/$BUILD ;; esac
    exits 0 gradients "$BUILD/tests/unit/kernels" rmsnorm loss
    says "gradients: all programs passed"
    [ "$(grep -cE '^(rmsnorm|loss) emu (f32|bf16):  .* [0-9.e-]+ \([0-9.]+\)' <<<"$output")" -eq 4 ]
    # one that fails, and one that tells of nothing
    printf '#!/bin/sh\necho "error emu f32 3.0e-1 9.90 dq"; echo "[  FAILED  ] dq"; exit 1\n' >wrong_test
    printf '#!/bin/sh\necho "error emu f32 3.0e-6 0.90 dk"\n' >right_test
    printf '#!/bin/sh\nexit 0\n' >silent_test
    chmod +x ./*_test
    exits 0 gradients . right
    exits 1 gradients . wrong right
    says "wrong FAILED, status 1"
    exits 1 gradients . silent
    says "silent FAILED"
}

@test "long: gradients of all kernels are those of their formulas" {
    case $BUILD in /*) ;; *) BUILD=$ROOT/$BUILD ;; esac
    exits 0 gradients "$BUILD/tests/unit/kernels"
    says "gradients: all programs passed"
}

@test "kernels that spill, lack their matrix instructions or have local memory are named" {
    judge() { python3 "$ROOT/tests/gpu/lint.py" judge "$@"; }
    printf '%s\n' '(a|b)_kernel<.*bf16.* HMMA.16816.F32.BF16 LDSM@sm_80' 'wide_kernel HGMMA@sm_90a' 'table local=40' 'gone.*' >table
    printf '%s\n' 'sm_80 99 0 0 0 HMMA.16816.F32.BF16:8,LDSM.16.M88.4:2 a_kernel<shape<bf16, 64> >' 'sm_90 40 40 0 5 - table' \
        'sm_90a 168 0 0 0 HGMMA.64x64x16.F32.BF16:4 wide_kernel' >good
    exits 0 judge table good
    says '3 kernels of 1 files and architectures, 0 faults'
    printf '%s\n' 'sm_80 255 16 24 6 HMMA.16816.F32.BF16:8,LDSM.16.M88.4:2 a_kernel<shape<bf16, 64> >' 'sm_90 9 0 0 0 HMMA.1688.F32.TF32:8 b_kernel<bf16>' \
        'sm_90a 9 0 0 0 - wide_kernel' 'sm_90 40 48 0 5 - table' 'sm_90 9 0 0 0 HMMA.1688.F32.TF32:1 new_kernel' >bad
    exits 1 judge table bad --all
    says 'sm_80: a_kernel<shape<bf16, 64> > spills 24 bytes'
    says 'sm_90: b_kernel<bf16> has no HMMA.16816.F32.BF16 (table:1)'
    says 'sm_90a: wide_kernel has no HGMMA (table:2)'
    says 'sm_90: table has 48 bytes of local memory, with 5 loads and stores of it'
    says 'sm_90: new_kernel has matrix instructions and no line in the table'
    says 'table:4: no kernel has such a name'
    : >empty
    exits 1 judge table empty
}
