#!/usr/bin/env bats
# s2s-ckpt: what it lists, refuses and writes. tests/oracle/ckpt/data holds checkpoints made by the real libraries.
load common

setup_tool() {
    DATA=$ROOT/tests/oracle/ckpt/data
    COMPARE=$ROOT/tests/oracle/ckpt/compare_ls.py
}

listed() {
    run python3 "$COMPARE" s2s-ckpt "$DATA/$1" "$DATA/$1.expected.json"
    [ "$status" -eq 0 ] || { echo "$output" >&2; return 1; }
}

@test "--help shows the commands and exits 0" {
    exits 0 s2s-ckpt --help
    says "Usage: s2s-ckpt"
    says "ls "
    exits 0 s2s-ckpt ls --help
    says "--sha256"
    exits 0 s2s-ckpt --version
}

@test "an unknown option, command or a missing path is a bad command line" {
    exits 2 s2s-ckpt ls --nonsense x
    says "nonsense"
    exits 2 s2s-ckpt lst x
    says "ls"
    exits 2 s2s-ckpt ls
    exits 2 s2s-ckpt ls absent
    says "absent"
}

@test "ls gives every tensor of torch_dist folders exactly" {
    listed mini_writer
    listed mcore016_hybrid_tp2pp2ep2
    listed mcore016_gated_pp2dp2_dpreshardable
    listed mcore015_vlm_tp2
    listed mcore012_torch24_flattened_tp2
}

@test "ls gives every tensor of plain DCP folders exactly" {
    listed dcp_plain
    listed dcp_fsdp2
    listed dcp_hf
}

@test "ls gives every tensor of Hugging Face folders and safetensors exactly" {
    listed hf_sharded
}

@test "ls gives every tensor of torch.save files exactly, zip and legacy" {
    listed zip.pt
    listed legacy.pt
    listed pytorch_model.bin
    listed mp_rank
}

@test "ls takes a folder, the folder above it and a trailing slash" {
    s2s-ckpt ls "$DATA/mini_writer" >above
    s2s-ckpt ls "$DATA/mini_writer/iter_0000042/" >folder
    same above folder
    [ "$(wc -l <above)" -eq 4 ]
}

@test "ls of a full disk fails" {
    exits 1 bash -c "s2s-ckpt ls '$DATA/hf_sharded' >/dev/full"
}
