#!/bin/sh
# Completion of a program for a shell, out of what its --help says: doc/completion.sh bash|zsh|fish PROGRAM >FILE.
# An option's metavariable tells what may follow: a|b|c are words, anything else may be a file.
set -eu
shell=$1 program=$2
name=${program##*/}
tab=$(printf '\t')

# short, long, metavariable, first sentence of the description; a line an option
options() {
    "$program" "$@" --help | awk -v OFS='\t' '
        function flush() {
            sub(/ \(.*|[.;:] .*/, "", text); sub(/\.$/, "", text); gsub(/[\[\]:'"'"'"$`\\]/, "", text)
            sub(/ +$/, "", text)
            if (long) print (short ? short : "."), long, (arg ? arg : "."), (text ? text : long)
            long = ""
        }
        /^ ? ? ? ? ? ?(-[A-Za-z], +)?--[a-z][a-z0-9-]*([ =[]|$)/ {
            flush()
            line = $0; short = arg = text = ""
            sub(/^ +/, "", line)
            if (line ~ /^-[A-Za-z],/) { short = substr(line, 2, 1); sub(/^-[A-Za-z], +/, "", line) }
            split(line, word, /[ =\[]/)
            long = substr(word[1], 3)
            rest = substr(line, length(word[1]) + 1)
            if (rest ~ /^\[?=/) { arg = rest; sub(/^\[?=/, "", arg); sub(/  .*/, "", arg); sub(/\]$/, "", arg) }
            if (match(rest, /  +/)) text = substr(rest, RSTART + RLENGTH)
            next
        }
        /^                    +[^ ]/ && long { line = $0; sub(/^ +/, "", line); text = text (text ? " " : "") line; next }
        { flush() }
        END { flush() }'
}

# "ls<tab>one line a record", a line a command
commands() {
    "$program" --help | sed '/^Examples:/,$d' | awk -v OFS='\t' '
        /^  [a-z][a-z0-9]*  +[A-Za-z]/ { name = $1; sub(/^  [a-z0-9]+ +/, ""); gsub(/[\[\]:'"'"'"$`\\]/, ""); print name, $0 }
        /^  or:  [^ ]+ \[OPTION...\] [a-z]/ { print $4, "" }'
}

# what may follow an option (metavariable, name): words, or nothing said. Those of FORMAT, HOW and D are named where another is refused.
values() {
    case $1 in
    *[A-Z]*'|'* | *'|'*[A-Z]*) ;;
    *'|'*) echo "$1" | tr '|' ' ' ;;
    FORMAT | HOW | D)
        for command in $verbs; do "$program" "$command" "--$2=?" 2>&1 </dev/null || :; done |
            sed -n "/.*--$2: '?' is not one of /{s///;s/,//g;p;q}"
        ;;
    ID) [ "$name" != s2s-check ] || "$program" --list | cut -d' ' -f1 | sort -u | tr '\n' ' ' ;;
    esac
}

list=$(mktemp)
trap 'rm -f "$list"' EXIT
{
    options
    for command in $(commands | cut -f1); do options "$command"; done
} | sort -t"$tab" -k2,2 -u >"$list"
verbs=$(commands | cut -f1 | tr '\n' ' ')

write_bash() {
    function=_$(echo "$name" | tr - _)
    words=$(while IFS=$tab read -r short long arg text; do
        [ "$short" = . ] || printf -- '-%s ' "$short"
        printf -- '--%s ' "$long"
    done <"$list")
    cat <<EOF
# completion of $name, out of its --help
$function() {
    local cur=\${COMP_WORDS[COMP_CWORD]} prev=\${COMP_WORDS[COMP_CWORD - 1]}
    [ "\$cur" != = ] || cur=
    [ "\$prev" != = ] || prev=\${COMP_WORDS[COMP_CWORD - 2]}
    COMPREPLY=()
    case \$prev in
EOF
    while IFS=$tab read -r short long arg text; do
        words_after=$(values "$arg" "$long")
        [ -z "$words_after" ] || printf '    --%s) mapfile -t COMPREPLY < <(compgen -W "%s" -- "$cur") && return ;;\n' "$long" "$words_after"
    done <"$list"
    cat <<EOF
    esac
    case \$cur in
    -*) mapfile -t COMPREPLY < <(compgen -W "$words" -- "\$cur") ;;
    *) [ "\$COMP_CWORD" -ne 1 ] || mapfile -t COMPREPLY < <(compgen -W "$verbs" -- "\$cur") ;;
    esac
}
complete -o default -F $function $name
EOF
}

write_zsh() {
    printf '#compdef %s\n# out of its --help\n_arguments -s \\\n' "$name"
    while IFS=$tab read -r short long arg text; do
        words_after=$(values "$arg" "$long")
        follow=
        [ "$arg" = . ] || follow=":$long:$([ -n "$words_after" ] && echo "($words_after)" || echo _files)"
        equals=$([ "$arg" = . ] || echo =)
        if [ "$short" = . ]; then
            printf "    '*--%s%s[%s]%s' \\\\\n" "$long" "$equals" "$text" "$follow"
        else
            plus=$([ "$arg" = . ] || echo +)
            printf "    '*-%s%s[%s]%s' '*--%s%s[%s]%s' \\\\\n" "$short" "$plus" "$text" "$follow" "$long" "$equals" "$text" "$follow"
        fi
    done <"$list"
    [ -z "$verbs" ] || printf "    '1:command:_alternative \"commands:command:(%s)\" \"files:file:_files\"' \\\\\n" "$verbs"
    printf "    '*:file:_files'\n"
}

write_fish() {
    echo "# completion of $name, out of its --help"
    while IFS=$tab read -r short long arg text; do
        words_after=$(values "$arg" "$long")
        printf "complete -c %s -l %s" "$name" "$long"
        [ "$short" = . ] || printf ' -s %s' "$short"
        if [ -n "$words_after" ]; then printf " -x -a '%s'" "$words_after"; elif [ "$arg" != . ]; then printf ' -r'; fi
        printf " -d '%s'\n" "$text"
    done <"$list"
    commands | while IFS=$tab read -r verb text; do
        printf "complete -c %s -n __fish_use_subcommand -a %s -d '%s'\n" "$name" "$verb" "$text"
    done
}

case $shell in
bash | zsh | fish) "write_$shell" ;;
*)
    echo "usage: completion.sh bash|zsh|fish PROGRAM" >&2
    exit 2
    ;;
esac
