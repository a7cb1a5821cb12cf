#!/usr/bin/env bats
# The emulator of GPU blocks (kernels/cuda/emu) finds what it is for: each bug of tests/gpu/bugs.cu and tests/gpu/sm90.cu, with a sanitizer or without.
load common

setup_file() {
    local root flags
    root=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)
    cd "$BATS_FILE_TMPDIR" || return 1
    for kind in plain asan tsan; do
        case $kind in
        plain) flags=() define=NONE ;;
        asan) flags=(-fsanitize=address,undefined -fno-sanitize-recover=all) define=EMU_ASAN ;;
        tsan) flags=(-fsanitize=thread) define=EMU_TSAN ;;
        esac
        g++ -O1 -g -std=c++17 -I"$root" -D$define -c "$root/kernels/cuda/emu/emu.cc" -o emu.o &&
            g++ -O1 -g -std=c++17 -Wno-psabi -pthread -I"$root" "${flags[@]}" -c "$root/kernels/cuda/emu/rt.cc" -o rt.o || return 1
        for name in bugs sm90; do
            g++ -O1 -g -std=c++17 -Wno-psabi -Wno-unknown-pragmas -pthread -I"$root" "${flags[@]}" -x c++ "$root/tests/gpu/$name.cu" -x none {rt,emu}.o \
                -o $name-$kind || return 1
        done
    done
}

# bug STATUS KIND NUMBER [PROGRAM]: TSan wants its part of the address space, which a random layout may have taken
bug() {
    local fixed=()
    setarch -R true 2>/dev/null && fixed=(setarch -R)
    exits "$1" env TSAN_OPTIONS=report_signal_unsafe=0 "${fixed[@]}" "$BATS_FILE_TMPDIR/${4:-bugs}-$2" "$3"
}

@test "without a bug nothing is found, in any order of threads" {
    for S2S_EMU_SEED in 1 2 3; do
        export S2S_EMU_SEED
        for kind in plain asan tsan; do
            bug 0 $kind 0
            says error
            bug 0 $kind 0 sm90
            says error
        done
    done
}

@test "a barrier that is missing is a race, and wrong numbers" {
    for number in 1 2; do
        bug 1 plain $number
        bug 66 tsan $number
        says "data race"
        says ldmatrix
        says cp_async
    done
}

@test "a copy that is not waited for leaves NaN" {
    bug 1 plain 3
    says "error nan"
}

@test "threads that meet in different barriers are named" {
    bug 134 plain 4
    says "threads of a block meet at different barriers"
    says "bugs.cu:59"
}

@test "lanes that meet in different operations are named" {
    bug 134 plain 5
    says "lanes of a warp meet in different operations or masks"
    says mma.bf16
}

@test "a store past the end of memory is named" {
    bug 1 asan 6
    says heap-buffer-overflow
    says "bugs.cu"
}

@test "rows of a fragment that are swapped are wrong numbers" {
    bug 1 plain 7
}

@test "a shuffle from a lane outside its mask is named" {
    bug 134 plain 8
    says "a shuffle from a lane outside the mask"
}

@test "a store past the end of shared memory is named" {
    bug 1 asan 9
    says heap-buffer-overflow
}

@test "a copy from where it may not begin is named" {
    bug 134 plain 10
    says "cp.async: an address is no multiple of the size"
}

@test "a product that does not wait for its copies is a race, as are copies that do not wait for room" {
    bug 66 tsan 1 sm90
    says "data race"
    says operand_at
    says run_box_copy
    bug 134 plain 2 sm90
    says "more threads arrive at an mbarrier than it waits for"
    # room that is given before the wait for the product, or by one warp for all of them
    for number in 10 11; do
        bug 66 tsan $number sm90
        says "data race"
        says run_box_copy
    done
}

@test "a wrong parity, and bytes that were not expected, end in threads that wait for ever" {
    for number in 3 4; do
        bug 134 plain $number sm90
        says "threads wait for each other for ever"
        says "waits at mbarrier_wait"
    done
}

@test "fences that are missing are named" {
    bug 134 plain 5 sm90
    says "a copy to an mbarrier that no mbarrier_fence showed it"
    bug 134 plain 6 sm90
    says "wgmma reads what was written to shared memory without a fence_async"
    bug 134 plain 7 sm90
    says "wgmma: registers without a wgmma_fence before"
}

@test "accumulators that are read before the wait are NaN, and that are written then are named" {
    bug 1 plain 8 sm90
    says "error nan"
    bug 134 plain 9 sm90
    says "accumulators of a product under way were written"
    bug 134 plain 14 sm90
    says "a product that nobody waits for"
}

@test "an operand with another swizzle is wrong numbers" {
    bug 1 plain 12 sm90
}

@test "warps of a warpgroup in different products are named" {
    bug 134 plain 13 sm90
    says "warps of a warpgroup issue different products"
}

@test "the instructions give the same in any order of threads" {
    cd "$BATS_FILE_TMPDIR" || return 1
    g++ -O1 -std=c++17 -Wno-psabi -Wno-unknown-pragmas -pthread -I"$ROOT" -x c++ "$ROOT/tests/gpu/isa_test.cu" "$ROOT"/kernels/cuda/emu/{rt,emu}.cc -o isa
    exits 0 ./isa write golden
    S2S_EMU_SEED=5 exits 0 ./isa check golden
    printf x | dd of=golden bs=1 seek=20 conv=notrunc status=none
    exits 1 ./isa check golden
    says "not ok - ldmatrix x1"
}
