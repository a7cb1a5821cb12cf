#!/bin/bash
# What a machine can check of the house style. Prints what it finds; silent and 0 when there is nothing.
set -u
cd "$(dirname "$0")/.."
bad=0
complain() {
    [ -n "$2" ] || return 0
    printf '%s\n%s\n\n' "$1" "$2"
    bad=1
}
c_files=$(git ls-files '*.c' '*.h')

complain 'calls that cannot be used safely:' \
    "$(git grep -nE '\b(strcpy|strcat|sprintf|vsprintf|gets|atoi|atof|strtok)\(' -- '*.c' '*.h')"
complain 'the library prints or exits (only lib/base may):' \
    "$(git grep -nE '(^|[^a-z_])(exit|printf|perror|puts|fputs)\(' -- 'lib/*.c' 'kernels/*.c' | grep -vE '^lib/base/|[^:]*:[0-9]+: *(/?\*|//)')"
complain 'includes of .c files:' "$(git grep -nE '#include ".*\.c"' -- '*.c' '*.h')"
complain 'unfinished work:' "$(git grep -nE '\b(TODO|FIXME|XXX|HACK)\b' -- '*.c' '*.h' '*.sh' '*.bats' Makefile | grep -v '^tests/style.sh')"
# bash goes on after `! a` that fails and after `a` of `a && b`; two commands that fail print the same nothing
complain 'lines of a test that cannot fail (use not, says_not, alike, a line each):' \
    "$(git grep -nE '^ +(! |(\[|says|says_not|same|alike|cmp|diff|grep|exits) .* && |(cmp|diff) .*<\()' -- 'tests/tools/*.bats' 'tests/tools/*.bash' |
        grep -vE ' \|\| |&& (break|continue)$|\| head')"
complain 'trailing white space or tabs in C:' "$(git grep -nE '[[:space:]]+$|	' -- '*.c' '*.h')"
# in the comment that a file begins with, behind #! and before any other line
complain 'files that do not begin with a sentence on what they are:' "$(awk '
    function judge() { if (name != "" && text !~ /[A-Za-z].*[.?:][)"]*( |\$)/) print name }
    FNR == 1 { judge(); name = FILENAME; text = ""; ended = 0; if (/^#!/) next }
    ended { next }
    /^ *$/ { ended = text != ""; next }
    !/^("""|#( |$)|\/\*|\/\/| \*)/ && !open { ended = 1; next }
    { text = text " " $0 " " }
    /^"""/ && !/^""".*"""/ { open = 1 }
    /\*\/|"""$/ { open = 0; ended = 1; sub(/ *(\*\/|""") *$/, " ", text) }
    END { judge() }' $c_files $(git ls-files '*.cu' '*.cc' '*.sh' '*.bash' '*.bats' '*.py'))"
# a file that a comment of a header names is there: by its path, or the end of it; some are others'
complain 'a comment of a header names a file that is not there:' "$(awk '
    FILENAME == "-" {
        for (path = $0; (is_there[path] = 1) && sub("^[^/]*/", "", path);) {}
        for (path = $0; sub("/[^/]*$", "", path);) is_there[path] = 1
        next
    }
    match($0, /^ *\*|\/\*|\/\//) {
        text = substr($0, RSTART)
        while (match(text, /[A-Za-z0-9_][A-Za-z0-9_.\/-]*[A-Za-z0-9_]/)) {
            word = substr(text, RSTART, RLENGTH)
            text = substr(text, RSTART + RLENGTH)
            if (word ~ /[^.][.](h|c|cc|cu|sh|py|bash|bats|md|scd)$|^(lib|kernels|tests|tools|doc|demo)\// && !(word in is_there) &&
                word !~ /^(nccl|cublasLt)[.]h$|^(tensorflow|nemo_rl|Lib|docs[.]nvidia[.]com)\//)
                print FILENAME ":" FNR ": " word
        }
    }' - $(git ls-files '*.h') < <(git ls-files))"
# what a test left behind is soon committed with the rest
complain 'a file in no room of the tree:' "$(git ls-files | grep -vE '^(\.ci|bin|demo|doc|kernels|lib|tests|tools)/|^(\.(clang-format|gitignore|pre-commit-hooks\.yaml)|LICENSE|Makefile|NEWS\.md|README\.md|packages\.txt)$')"
complain 'files past 1000 lines:' "$(for f in $c_files; do n=$(wc -l <"$f"); [ "$n" -le 1000 ] || echo "$f: $n lines"; done)"
complain 'a lib file includes a tool:' "$(git grep -nE '#include "tools/' -- 'lib/*' 'kernels/*')"
complain 'a room of lib/ckpt knows one above it:' \
    "$(git grep -nE '#include "lib/ckpt/(read|merge|config|map|write|nemo)/' -- ':(glob)lib/ckpt/*.[ch]' 'lib/ckpt/pickle/*'
    git grep -nE '#include "lib/ckpt/(merge|map|write|nemo)/' -- 'lib/ckpt/read/*' 'lib/ckpt/config/*'
    git grep -nE '#include "lib/ckpt/(write|nemo)/' -- 'lib/ckpt/map/*' 'lib/ckpt/merge/*')"
complain 'kernels know a layer above them:' "$(git grep -nE '#include "lib/' -- 'kernels/*' | grep -v '"lib/base/')"
# external functions are s2s_<room>_<verb> or, shared inside a room, <room>_<verb>; main and the fuzz entry are others'
lib=build/release/libs2s.a
if [ -e "$lib" ] && command -v nm >/dev/null; then
    rooms=$(ls -d lib/*/ kernels/ kernels/*/ | xargs -n1 basename | paste -sd'|')
    complain 'external names without s2s_ or the name of a room:' \
        "$(nm -g --defined-only "$lib" 2>/dev/null | awk '$2 ~ /[TDBR]/ {print $3}' | sort -u | grep -vE "^(s2s_|($rooms)_)" | grep -vE '^(__|_)')"
fi
# as others read them in git log: "room: do this"; older ones stay as they are
subjects=$(git log -30 --no-merges --format=%s 2>/dev/null)
complain 'subjects of new commits past 72 characters:' "$(grep -E '^.{73}' <<<"$subjects")"
complain 'subjects of new commits that are not in the imperative:' \
    "$(grep -E '^([^ ]+: )?[A-Za-z]+(ed|ing) ' <<<"$subjects" | grep -vE '^([^ ]+: )?(feed|need|seed|speed|embed|bring) ')"
if command -v clang-format >/dev/null; then
    complain 'not as clang-format writes it (run: clang-format -i FILE):' \
        "$(clang-format --dry-run -Werror $c_files 2>&1 | sed -nE 's/^([^ :]+):[0-9]+:.*/\1/p' | sort -u)"
fi
exit $bad
