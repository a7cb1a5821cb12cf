# s2s-ckpt where a call of the system fails, the 1st, 2nd, 3rd..: what comes of it is right, or refused with a word.
load common
load ckpt_faults
load tensors

@test "what a disk does not tell counts neither as absent nor as empty" {
    inject_or_skip
    for call in faccessat openat fstatat scandirat; do
        right_or_refused $call:EIO s2s-ckpt convert -q --to torch_dist "$DATA/hf_sharded" out
        right_or_refused $call:EIO s2s-ckpt verify "$DATA/dcp_hf"
    done
    right_or_refused faccessat:EIO s2s-ckpt prune -q "$DATA/mcore016_gated_pp2dp2_dpreshardable" out
    right_or_refused scandirat:ENOMEM s2s-ckpt convert -q --to hf "$DATA/hf_sharded" out
}

@test "nothing that is there for --resume comes into OUT, whatever fails" {
    inject_or_skip
    right_or_refused readdir:EIO s2s-ckpt convert -q --to torch_dist --files 3 "$DATA/hf_sharded" out
    # what cannot be removed is left where it is
    for ((n = 1; n <= 50; n++)); do
        rm -rf out out.s2s-partial
        with_fault unlink:$n:EIO s2s-ckpt convert -q --to torch_dist --files 3 "$DATA/hf_sharded" out
        [ $fired = 1 ] || break
        if [ -e out ]; then diff -r want out; else [ "$status" -eq 1 ]; fi
    done
    [ "$n" -gt 4 ]
}

@test "a folder that nobody of us made is not emptied because it could not be read" {
    inject_or_skip
    for n in 1 2 3 4; do
        mkdir -p out.s2s-partial && echo precious >out.s2s-partial/file
        with_fault readdir:$n:EIO s2s-ckpt convert -q --to torch_dist "$DATA/zip.pt" out
        [ "$status" -ne 0 ]
        [ "$(cat out.s2s-partial/file)" = precious ]
        [ ! -e out ]
    done
}

@test "an output whose folder cannot be synced is named as there" {
    inject_or_skip
    for to in hf torch_dist safetensors; do
        rm -rf out
        S2S_INJECT_TRACE=$PWD/trace LD_PRELOAD=$INJECT s2s-ckpt convert -q --resume --to $to "$DATA/hf_sharded" out
        # the first behind its name
        last=$(awk '/^fsync/ {n++} /^name.* out$/ {print n + 1; exit}' trace)
        for ((n = FIRST; n < last; n += STEP)); do
            rm -rf out out.s2s-partial
            with_fault fsync:$n:EIO s2s-ckpt convert -q --resume --to $to "$DATA/hf_sharded" out
            [ $fired = 1 ]
            [ "$status" -eq 1 ]
            [ ! -e out ]
        done
        rm -rf out out.s2s-partial trace
        with_fault fsync:$last:EIO s2s-ckpt convert -q --resume --to $to "$DATA/hf_sharded" out
        [ $fired = 1 ]
        [ "$status" -eq 1 ]
        [ -e out ]
        [ "$output" = "s2s-ckpt: out: is there, but its folder cannot be synced: Input/output error" ]
    done
}

@test "a journal of many small files is not synced for each, nor is their folder" {
    inject_or_skip
    write in.safetensors '{"t%d" % i: (1, 256) for i in range(60)}'
    for to in "hf --max-shard-size 1k" "torch_dist --files 60"; do
        rm -rf out
        with_fault fsync:140:EIO s2s-ckpt convert -q --to $to in.safetensors out
        [ $fired = 0 ]
        [ "$status" -eq 0 ]
        [ "$(find out -name '*.safetensors' -o -name '*.distcp' | wc -l)" -eq 60 ]
    done
}

@test "memory that is not there ends a run with a word, and leaves nothing out" {
    inject_or_skip
    s2s-ckpt ls --json --sha256 "$DATA/zip.pt" >want
    for ((n = 1; n <= 2000; n += n > 1 && STEP > 1 ? 13 : FIRST)); do
        with_fault malloc:$n:ENOMEM s2s-ckpt ls --json --sha256 "$DATA/zip.pt"
        [ $fired = 1 ] || break
        [ "$status" -le 2 ]
        if [ "$status" -eq 0 ]; then diff want - <<<"$output"; else [ -n "$output" ]; fi
    done
    [ "$n" -gt 10 ]
    s2s-ckpt convert -q --to hf "$DATA/hf_sharded" whole
    for ((n = 1; n <= 5000; n += 37 * STEP)); do
        [ ! -e out ] || rm -r out
        with_fault malloc:$n:ENOMEM s2s-ckpt convert -q --to hf "$DATA/hf_sharded" out
        [ $fired = 1 ] || break
        [ "$status" -le 2 ]
        if [ "$status" -eq 0 ] || [ -e out ]; then diff -r whole out; fi # behind the rename, too
    done
}

@test "no descriptor that is left: a word, and nothing stays" {
    inject_or_skip # the sanitizers take some themselves
    for ((n = 4; n <= 20; n += n > 12 ? STEP : 1)); do
        for to in "hf --max-shard-size 4k" "torch_dist --files 5"; do
            status=0
            # shellcheck disable=SC2086
            output=$(prlimit --nofile=$n s2s-ckpt convert -q --to $to "$DATA/hf_sharded" out 2>&1) || status=$?
            [ "$status" -ne 127 ] || continue # it does not even start
            [ ! -e out.s2s-partial ] || { echo "$n $to: $output" >&2; return 1; }
            [ "$status" -ne 0 ] || { rm -r out && continue; }
            [ "$status" -le 2 ]
            [ ! -e out ]
            says "Too many open files"
            says_not "integrity.json"
        done
    done
    [ "$status" -eq 0 ]
}

@test "a file that is replaced never lies beside the manifest of another" {
    inject_or_skip
    mkdir was
    (cd was && s2s-ckpt convert -q --to safetensors "$DATA/zip.pt" out)
    for how in KILL EIO; do
        for call in rename unlink fsync write; do
            for ((n = 1; n <= 50; n += n > 1 ? STEP : FIRST)); do
                rm -rf out* .out*
                cp was/* .
                with_fault $call:$n:$how s2s-ckpt convert -q --to safetensors "$DATA/hf_sharded" out
                [ $fired = 1 ] || break
                exits 0 s2s-ckpt verify out
            done
            [ "$n" -gt 1 ]
        done
    done
    # a manifest that cannot be written is a failure, and says that the file is there
    rm -rf out* .out*
    with_fault write:2:ENOSPC s2s-ckpt convert -q --to safetensors "$DATA/hf_sharded" out
    [ "$status" -eq 1 ]
    says "out.s2s-manifest.json: cannot write"
    says "out is there, whole"
    exits 0 s2s-ckpt verify out
    says "no manifest"
}

@test "a file that somebody removed while the others were written is missed before OUT has its name" {
    inject_or_skip
    for way in "hf --max-shard-size 4k" "torch_dist --files 5"; do
        case $way in
        hf*) export S2S_INJECT_LOSE=out.s2s-partial/model-00001-of-00003.safetensors ;;
        *) export S2S_INJECT_LOSE=out.s2s-partial/iter_0000001.tmp/__0_0.distcp ;;
        esac
        missed=0
        for ((n = 1; n <= 100; n += n > 1 ? STEP : FIRST)); do
            rm -rf out
            # shellcheck disable=SC2086
            with_fault write:$n:LOSE s2s-ckpt convert -q --to $way "$DATA/hf_sharded" out
            [ $fired = 1 ] || break
            if [ "$status" -eq 0 ]; then
                exits 0 s2s-ckpt verify out
                continue
            fi
            [ ! -e out ]
            [ ! -e out.s2s-partial ]
            [[ $output == *": was written, and is lost: No such file or directory" ]] && missed=$((missed + 1))
        done
        [ "$missed" -gt $((STEP > 1 ? 0 : 2)) ] || { echo "$way: $missed" >&2; return 1; }
    done
}

@test "memory that is not there is no fault of a YAML file" {
    inject_or_skip
    for ((n = 1; n <= 1000; n += 23 * STEP)); do
        with_fault malloc:$n:ENOMEM s2s-ckpt ls "$DATA/tiny.nemo"
        [ $fired = 1 ] || break
        says_not "not YAML"
    done
    [ "$n" -gt 100 ]
}

@test "a conversion whose memory is out says so and leaves nothing" {
    inject_or_skip
    local n=1 ended=0
    while :; do
        with_fault "malloc:$n:ENOMEM" s2s-ckpt convert -q --to torch_dist "$ROOT/tests/oracle/ckpt/data/mini_writer" out
        [ $fired = 1 ] || break
        # some can do without what they asked for
        if [ "$status" -ne 0 ]; then
            [ -n "$output" ]
            no_litter .
            ended=$((ended + 1))
        fi
        rm -rf out
        n=$((n + 23 * STEP))
    done
    [ $ended -ge 3 ]
}

@test "whichever rank runs out of memory, the folder goes" {
    inject_or_skip
    command -v mpirun || skip "no mpirun"
    # the second one does, while the first can clean up nothing: its sync hangs, until it is killed
    touch hold
    export S2S_INJECT_HOLD=hold S2S_INJECT_MARK=held first=fsync:2:HOLD second=aligned:1:ENOMEM
    exits 1 timeout 20 mpirun -n 2 sh -c 'export LD_PRELOAD=$INJECT; [ "${OMPI_COMM_WORLD_RANK-$PMI_RANK}" = 0 ] && export S2S_INJECT=$first || export S2S_INJECT=$second
        exec s2s-ckpt convert -q --to hf --max-shard-size 4k "$0" out' "$DATA/hf_sharded"
    says "out of memory"
    no_litter . hold held
}

@test "one core compares digests in a thread beside the writing, as several do" {
    inject_or_skip
    with_fault thread:1:EAGAIN taskset -c "$(taskset -cp $$ | grep -oE '[0-9]+' | tail -n 1)" s2s-ckpt convert -q --to hf "$DATA/hf_sharded" out
    [ "$status" = 0 ]
    [ $fired = 1 ]
}
