#!/bin/sh
# What the model of demo/words.yaml wrote down, as a table: words.sh FOLDER reads words.txt (s2s-train eval --show) and swapped.jsonl there.
#
# Fails where fewer than three in four words are right that were recorded as they are, or shifted in pitch; or where, with the sound of another
# word, the transcript does not follow the sound as often, or is right more than once in ten.
set -eu
awk '
    function text_of(line) {
        sub(/.*"text": "/, "", line)
        sub(/".*/, "", line)
        return line
    }
    function sound_of(line) {
        sub(/.*"audio_filepath": "/, "", line)
        sub(/".*/, "", line)
        return line
    }
    FILENAME ~ /words.jsonl$/ { word_of[sound_of($0)] = text_of($0); next }
    FILENAME ~ /swapped.jsonl$/ { sounds_like[text_of($0)] = word_of[sound_of($0)]; next }
    /: loss / { set = substr($0, 1, index($0, ":") - 1); next }
    /^  said: / { said = substr($0, 10); next }
    /^  heard: / {
        heard = substr($0, 10)
        n[set]++
        right[set] += heard == said
        if (set == "swapped") {
            follows += heard == sounds_like[said]
            swapped[said] = heard
        } else if (set == "as recorded") {
            list[++n_list] = said
            recorded[said] = heard
        }
    }
    END {
        printf "  %-11s %-13s %s\n", "word", "heard", "heard in its place, with the sound of"
        for (i = 1; i <= 14; i++) {
            word = list[int((i - 1) * n_list / 14) + 1]
            printf "  %-11s %-13s %-13s %s\n", word, recorded[word], swapped[word], sounds_like[word]
        }
        all = n["as recorded"]
        printf "\n  as recorded, a speed and pitch not seen in training: %d of %d words right\n", right["as recorded"], all
        printf "  a semitone lower and higher, as fast as recorded:      %d of %d\n", right["pitch"], n["pitch"]
        printf "  with the sound of another word:                        %d of %d, and %d are the word of that sound\n", right["swapped"], n["swapped"], follows
        if (!all || right["as recorded"] < 0.75 * all || right["pitch"] < 0.75 * n["pitch"] || follows < 0.75 * all || right["swapped"] > 0.1 * all) {
            print "the model did not learn to hear words" >"/dev/stderr"
            exit 1
        }
    }' "$1/words.jsonl" "$1/swapped.jsonl" "$1/words.txt"
