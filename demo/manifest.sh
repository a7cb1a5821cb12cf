#!/bin/sh
# Manifests (NeMo JSONL) of the Asterisk core sounds: manifest.sh FOLDER writes train.jsonl and heldout.jsonl there; words.jsonl, the numbers
# to twelve, letters, days, months and words of the spelling alphabet that are one word; and swapped.jsonl, the same texts, each with the
# sound of another of these words.
#
# Speech: recorded by Allison Smith for the Asterisk PBX, CC-BY-SA-3.0; Debian packages asterisk-core-sounds-en-wav (8 kHz wav) and
# asterisk-core-sounds-en (the transcripts, "name: text" a line). Prompts whose transcript describes a sound ("[tones]") are left out. The text
# is lower-cased to letters, apostrophes and spaces; digits, * and # become words, each on its own. About one prompt in ten is held out, chosen by a checksum of its name; a
# prompt whose text another one has too stays in the training set, so that nothing held out was read before.
set -eu
out=$1
sounds=/usr/share/asterisk/sounds/en_US_f_Allison
texts=/usr/share/doc/asterisk-core-sounds-en/core-sounds-en.txt.gz

fail() {
    echo "manifest.sh: $1" >&2
    exit 1
}
[ -d "$sounds" ] || fail "no folder $sounds; install the Debian package asterisk-core-sounds-en-wav"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ -r "$texts" ]; then
    zcat "$texts" >"$work/texts"
else
    # container images often leave out /usr/share/doc: take the page from the package itself
    (cd "$work" && apt-get download asterisk-core-sounds-en >/dev/null 2>&1 &&
        dpkg-deb --fsys-tarfile asterisk-core-sounds-en_*.deb | tar -xO ".$texts" | zcat >texts) ||
        fail "no $texts; install the Debian package asterisk-core-sounds-en"
fi

# 16-bit mono at 8 kHz behind a header of 44 bytes: 16,000 bytes a second
find "$sounds" -name '*.wav' -printf '%P %s\n' >"$work/sizes"
awk -v sounds="$sounds" -v out="$out" '
    function clean(text,    digit) {
        text = tolower(text)
        gsub(/\*/, " star ", text)
        gsub(/#/, " pound ", text)
        for (digit = 0; digit <= 9; digit++)
            gsub(digit, " " spoken[digit + 1] " ", text)
        gsub(/[^a-z\047 ]+/, " ", text)
        gsub(/  +/, " ", text)
        gsub(/^ | $/, "", text)
        return text
    }
    # a small checksum of a name, the same in every awk
    function checksum(name,    i, sum) {
        for (i = 1; i <= length(name); i++)
            sum = (sum * 31 + index(alphabet, substr(name, i, 1))) % 65521
        return sum
    }
    BEGIN { split("zero one two three four five six seven eight nine", spoken, " ") }
    BEGIN { alphabet = "abcdefghijklmnopqrstuvwxyz0123456789-_/ABCDEFGHIJKLMNOPQRSTUVWXYZ." }
    FILENAME ~ /sizes$/ { size[$1] = $2; next }
    /^[A-Za-z0-9_\/.-]+: / && !/[[(<]/ {
        name = substr($0, 1, index($0, ":") - 1)
        text = clean(substr($0, index($0, ":") + 1))
        seconds = (size[name ".wav"] - 44) / 16000
        # longer ones are speeches of the menu; shorter ones are clicks
        if (text == "" || seconds < 0.2 || seconds > 12 || name in seen)
            next
        seen[name] = 1
        names[++n] = name
        said[name] = text
        length_of[name] = seconds
        times[text]++
    }
    END {
        for (i = 1; i <= n; i++) {
            name = names[i]
            held = times[said[name]] == 1 && checksum(name) % 10 == 0
            printf "{\"audio_filepath\": \"%s/%s.wav\", \"duration\": %.6g, \"text\": \"%s\"}\n", sounds, name, length_of[name], said[name] \
                >(out (held ? "/heldout.jsonl" : "/train.jsonl"))
            if (name ~ /^(digits\/([0-9]|1[0-2]|day-[0-9]+|mon-[0-9]+)|letters\/[a-z]|phonetic\/[a-z]_p)$/ &&
                said[name] !~ / / && !(said[name] in is_word)) {
                is_word[said[name]] = 1
                word[n_words++] = name
            }
        }
        for (i = 0; i < n_words; i++) {
            name = word[i]
            other = word[(i + 30) % n_words]
            printf "{\"audio_filepath\": \"%s/%s.wav\", \"duration\": %.6g, \"text\": \"%s\"}\n", sounds, name, length_of[name], said[name] \
                >(out "/words.jsonl")
            printf "{\"audio_filepath\": \"%s/%s.wav\", \"duration\": %.6g, \"text\": \"%s\"}\n", sounds, other, length_of[other], said[name] \
                >(out "/swapped.jsonl")
        }
    }' "$work/sizes" "$work/texts"
