#!/bin/bash
# Gradients of kernels against formulas in double, on whatever GPU there is: gradients.sh FOLDER [NAME..], where FOLDER has the programs of tests/unit/kernels.
# Packed sequences, of which some are empty and one may be alone, tails full of NaN, heads of any width, rows that see nothing, in F32 and in BF16: what a GPU
# of a kind that no one has tried yet may get wrong while its losses look right. S2S_TEST_TABLES is cuda, or emu where there is no GPU. A line a program and
# type with the largest error of each result (of size 1; behind it the share of what is allowed); status 1 where a program fails or tells of nothing.
set -u
folder=$1
shift
names=${*:-attention relattention ssd conv1d rmsnorm gatednorm encoder_gradients glu moe loss}
export S2S_TEST_TABLES=${S2S_TEST_TABLES:-cuda} S2S_TEST_ERRORS=1
bad=0
for name in $names; do
    said=$(timeout "${GRADIENTS_SECONDS:-60}" "$folder/${name}_test" 2>&1)
    status=$?
    awk -v name="$name" '
        $1 == "error" { key = $2 " " $3; what = $6; for (i = 7; i <= NF; i++) what = what " " $i; all[key] = all[key] "  " what " " $4 " (" $5 ")" }
        END { for (key in all) { print name, key ":" all[key]; n++ } exit !n }' <<<"$said" | sort || status=1
    [ "${PIPESTATUS[0]}" -eq 0 ] || status=1
    [ $status -eq 0 ] || { bad=1 && echo "$name FAILED, status $status" && grep -E '\[  (ERROR|FAILED) |expected' <<<"$said" | head -n 12; }
done
[ $bad -eq 0 ] && echo "gradients: all programs passed"
exit $bad
