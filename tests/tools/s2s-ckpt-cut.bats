# s2s-ckpt beside files that somebody cuts while they are read: a message, never a signal.
load common
load inject

setup_file() {
    inject_build
}

setup_tool() {
    DATA=$ROOT/tests/oracle/ckpt/data
}

# cut_anywhere STEP CHECKPOINT: cuts the file at its 1st, 1+STEP-th, .. read; each time ls ends in a message
cut_anywhere() {
    local step=$1 of=$DATA/$2 n cuts=0
    for ((n = 1; n <= 2000; n += step)); do
        rm -rf in
        cp -R "$of" in && chmod -R u+w in
        with_fault "pread:$n:CUT" s2s-ckpt ls --sha256 in
        [ $fired = 1 ] || break
        [ "$status" -eq 1 ] && [ -n "$output" ] || { echo "$2: read $n: exit $status: $output" >&2; return 1; }
        [ "${#lines[@]}" -lt 100 ] && says "in"
        cuts=$((cuts + 1))
    done
    [ "$cuts" -gt 2 ] || { echo "$2: $cuts cuts" >&2; return 1; }
}

@test "a file that is cut while it is read is said to end too early, whatever its format" {
    inject_or_skip
    cut_anywhere 1 hf_sharded/model-00001-of-00003.safetensors
    cut_anywhere 3 hf_sharded
    cut_anywhere 3 dcp_hf
    cut_anywhere 3 zip.pt
    cut_anywhere 1 legacy.pt
    cut_anywhere 1 legacy_protocol4.pt
    cut_anywhere 3 pytorch_model.bin
    cut_anywhere 5 tiny.nemo
    cut_anywhere 29 dcp_plain
    cut_anywhere 7 mp_rank
    cut_anywhere 61 mcore016_hybrid_tp2pp2ep2
}

@test "pickles of a legacy file are read to their end, however long, and no further" {
    python3 - <<'PY'
import pickle
with open("long.pt", "wb") as f:
    for value in (0x1950A86A20F9469CFC6C, 1001, {"protocol_version": 1001, "little_endian": True, "type_sizes": {}},
                  {"text": "x" * 5_000_000, "number": 7}, []):
        pickle.dump(value, f, protocol=2)
    end = f.tell()
    f.write(b"more")
for name, n in (("whole.pt", end), ("cut.pt", end - 9)):
    open(name, "wb").write(open("long.pt", "rb").read()[:n])
PY
    exits 0 s2s-ckpt ls whole.pt
    says "number	object"
    exits 1 s2s-ckpt ls cut.pt
    says "cut.pt: at "
    exits 1 s2s-ckpt ls long.pt
    says "4 bytes behind the last storage"
}
