# What tests of s2s-ckpt under faults start with: `load common`, `load ckpt_faults`. DATA: the checkpoints.

load inject

setup_file() {
    inject_build
}

setup_tool() {
    DATA=$ROOT/tests/oracle/ckpt/data
}
