#!/usr/bin/env bats
# The tests of attention on Hopper find what kernels/cuda/attention_{dkv,dq}_sm90.h may be wrong in: each bug below is planted in a copy of the kernel, which
# the emulator then runs. Stages that are given back too early are races, which `tests/long.sh tsan` finds in these kernels.
load common

setup_tool() {
    case ${BUILD:=build/release} in /*) ;; *) BUILD=$ROOT/$BUILD ;; esac
    cp "$BUILD/tests/unit/kernels/attention_test" .
    mkdir -p kernels/cuda
}

# built FILE: the emulator with this kernel, out of the copy
built() {
    local source others=()
    for source in "$ROOT"/kernels/cuda/*.cu "$ROOT"/kernels/cuda/emu/*.cc; do
        case ${source##*/} in rt_cuda.cu | blas_lt.cu | $1.cu) continue ;; esac
        source=${source##*/}
        others+=("$BUILD/emu/${source%.c*}.o")
    done
    g++ -O1 -std=c++17 -fPIC -pthread -Wno-psabi -Wno-unknown-pragmas -I. -I"$ROOT" -x c++ -c "$ROOT/kernels/cuda/$1.cu" -o "$1.o" &&
        g++ -shared -pthread -o libs2s-emu.so "$1.o" "${others[@]}"
}

# finds FILE SCRIPT [TEXT]: with what sed's SCRIPT makes of it some test of it fails, and says TEXT
finds() {
    local file=kernels/cuda/attention_$1_sm90.h
    sed -E "$2" "$ROOT/$file" >"$file"
    if cmp -s "$file" "$ROOT/$file"; then
        echo "$2 changes nothing" >&2
        return 1
    fi
    built "attention_$1_sm90" || return 1
    run env S2S_LONG=1 S2S_TEST_TABLES=emu-sm90 timeout -k 5 120 ./attention_test
    if [ "$status" -eq 0 ] || [ "$status" -eq 124 ]; then
        printf 'exit %s with %s\n%s\n' "$status" "$2" "$output" >&2
        return 1
    fi
    says "${3:-}"
}

@test "long: of the gradients of keys, a wait, a fence, a phase or a row that is wrong is found" {
    finds dkv '/mbarrier_wait.*sh->full\[stage\]/d'
    finds dkv '/mbarrier_wait.*sh->keys_full/d'
    finds dkv '/mbarrier_wait.*sh->tail/d'
    finds dkv '/if \(round > 0\)/s/round > 0/round > 9/'
    finds dkv 's/\(round \+ 1\) & 1/round \& 1/' "more threads arrive"
    finds dkv 's/tails\+\+ & 1/0/'
    finds dkv '/^    mbarrier_fence\(\)/d' "no mbarrier_fence showed it"
    finds dkv '/^            fence_async\(\)/d' "without a fence_async"
    finds dkv '/sm90_clear<S::D>\(sh->q/d'
    finds dkv '/sm90_clear<S::D>\(sh->d_o/d'
    finds dkv '/^        __syncwarp\(\);/d'
    finds dkv '/wgmma_wait<1>\(s\)/d'
    finds dkv '/wgmma_wait<1>\(dp\)/d'
    finds dkv '/wgmma_fence\(dv, probs\)/d' "without a wgmma_fence"
    finds dkv '/^        if \(sees\(p, step, step->i, S::N/i sm90_release(\&sh->empty[stage]);' "more threads arrive"
    finds dkv '/^    wgmma_wait<0>\(dk, dv/i sm90_release(\&sh->empty[stage]);
               /^        sm90_release\(&sh->empty/d'
    finds dkv 's/sm90_times_columns\(dk, slopes/sm90_times_columns(dk, probs/'
}

@test "long: of the gradient of queries, a wait, a fence, a phase or a row that is wrong is found" {
    finds dq '/mbarrier_wait.*sh->full\[stage\]/d'
    finds dq '/mbarrier_wait.*sh->q_full/d'
    finds dq '/mbarrier_wait.*sh->tail/d'
    finds dq 's/if \(i >= S::STAGES\)/if (i > 99)/'
    finds dq 's/\(i \/ S::STAGES \+ 1\) & 1/(i \/ S::STAGES) \& 1/' "threads wait for each other for ever"
    finds dq '/^        fence_async\(\)/d' "without a fence_async"
    finds dq '/sm90_clear<S::D>\(sh->k/d'
    finds dq '/sm90_clear<S::D>\(sh->v/d'
    finds dq '/wgmma_wait<1>\(s\)/d'
    finds dq '/wgmma_wait<0>\(dp\)/d'
    finds dq 's/row = w.span.k0 \+ w.begin \+ \(w.n_tiles - 1 - i\)/row = w.span.k0 + w.begin + (i)/'
    finds dq 's/^    for \(int i = 1; lane == 0 &&/    for (int i = 1;/'
}
