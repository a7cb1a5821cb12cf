# The completion of every program in bash, zsh and fish offers what its --help says.
load common

setup_tool() { :; }

make_completion() {
    "$ROOT/doc/completion.sh" "$1" "$(command -v "$2")" >"$2.$1"
}

@test "every program has a completion that its shell can read" {
    for program in check ckpt cpshard encode pack shard train; do
        for shell in bash zsh fish; do
            make_completion $shell s2s-$program
            grep -q -- "help" s2s-$program.$shell
            if command -v $shell; then $shell -n s2s-$program.$shell; fi
        done
    done
    # what stands in front of a colon is all that is said of it
    grep -q -- "-l no-tokenizer -d 'Write --to nemo without a tokenizer" s2s-ckpt.fish
    exits 2 "$ROOT/doc/completion.sh" csh "$(command -v s2s-check)"
}

@test "completion in bash knows options, their values, rules and commands" {
    make_completion bash s2s-check
    make_completion bash s2s-shard
    source ./s2s-check.bash
    source ./s2s-shard.bash
    try() {
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
        "_${1//-/_}"
        echo "${COMPREPLY[*]}"
    }
    [ "$(try s2s-check --wor)" = "--world-size" ]
    [ "$(try s2s-check --format = j)" = "json junit" ]
    [ "$(try s2s-check --dialect "")" = "s2s slm rl am mlm het" ]
    alike "$(try s2s-check --explain S2S-WLD-00)" "$(s2s-check --list | grep -o '^S2S-WLD-00.' | sort -u | paste -sd' ')"
    [ "$(try s2s-shard ver)" = verify ]
    [ -z "$(try s2s-check a.ya)" ]
    make_completion bash s2s-ckpt
    source ./s2s-ckpt.bash
    [ "$(try s2s-ckpt convert --to "")" = "hf torch_dist safetensors nemo" ]
    [ "$(try s2s-ckpt prune --dtype = bf)" = bf16 ]
    [ "$(try s2s-ckpt convert --layers "")" = "auto stacked numbered" ]
    [[ "$(try s2s-ckpt convert --from mp)" = mp_rank ]]
    for command in $(try s2s-ckpt ""); do
        for option in $(s2s-ckpt "$command" --help | grep -oE '^ +(-[a-z], )?--[a-z0-9-]+' | grep -oE -- '--.*'); do
            [[ " $(try s2s-ckpt "$command" --) " == *" $option "* ]]
        done
    done
    # each option of the help is offered, and what is offered is taken
    options=$(s2s-check --help | grep -oE '^ +(-[a-z], )?--[a-z-]+' | grep -oE -- '--.*')
    for option in $options; do
        [[ " $(try s2s-check --) " == *" $option "* ]]
    done
    values=$(try s2s-check --upstream "")
    [ -n "$values" ]
    for value in $values; do
        s2s-check --upstream "$value" --list >/dev/null
    done
}

@test "completion in fish knows options and commands" {
    command -v fish >/dev/null || skip "fish is not installed"
    make_completion fish s2s-shard
    fish -c 'source s2s-shard.fish; complete -C "s2s-shard ver"' | grep -q '^verify'
}
