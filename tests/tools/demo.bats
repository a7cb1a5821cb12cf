# The demo's table of words: what it counts, and what it does not accept.
load common

setup_tool() {
    python3 - <<'PY'
import json
words = [f"w{i}" for i in range(20)]
def line(i, text):
    return json.dumps({"audio_filepath": f"/s/{i}.wav", "duration": 1, "text": text}) + "\n"
open("words.jsonl", "w").writelines(line(i, w) for i, w in enumerate(words))
open("swapped.jsonl", "w").writelines(line((i + 3) % 20, w) for i, w in enumerate(words))
def texts(name, heard):
    return f"{name}: loss 0.1, token accuracy 9 % (20 utterances, 9 tokens)\n" + "".join(f"  said:  {w}\n  heard: {heard(i)}\n" for i, w in enumerate(words))
def write(name, right, follows):
    with open(name, "w") as f:
        f.write(texts("as recorded", lambda i: words[i] if i < right else "no"))
        f.write(texts("pitch", lambda i: words[i] if i < right else ""))
        f.write(texts("swapped", lambda i: words[(i + 3) % 20] if i < follows else words[i]))
write("good", 17, 18)
write("deaf", 10, 20)
write("reader", 20, 5)
PY
}

@test "the demo counts the words it heard, and those that follow another sound" {
    cp good words.txt
    exits 0 "$ROOT/demo/words.sh" .
    says "not seen in training: 17 of 20 words right"
    says "a semitone lower and higher, as fast as recorded:      17 of 20"
    says "2 of 20, and 18 are the word of that sound"
    [[ $output =~ w0\ +w0\ +w3\ +w3 ]]
}

@test "the demo refuses a model that hears too little, or writes without listening" {
    for bad in deaf reader; do
        cp $bad words.txt
        exits 1 "$ROOT/demo/words.sh" .
        says "the model did not learn to hear words"
    done
    : >words.txt
    exits 1 "$ROOT/demo/words.sh" .
}
