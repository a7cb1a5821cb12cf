# An output layer of its own under a config that ties it: `load own_head` beside `load common`.

# own_head DIR HEAD: tie_word_embeddings is true in DIR/config.json, and in its model.safetensors lm_head.weight is the embedding's
# rows from the last to the first (other), the embedding (equal), the same as F64 (wide), or stands in its place (alone)
own_head() {
    rm -f "$1/s2s-manifest.json" # of the file that is replaced
    python3 - "$1" "$2" <<'PY'
import json, struct, sys
folder, head = sys.argv[1:]
path = folder + "/model.safetensors"
raw = open(path, "rb").read()
n = struct.unpack("<Q", raw[:8])[0]
old = json.loads(raw[8:8 + n])
old.pop("__metadata__", None)
tensors = {k: (v["dtype"], v["shape"], raw[8 + n:][slice(*v["data_offsets"])]) for k, v in old.items()}
dtype, shape, words = tensors["model.embed_tokens.weight"]
assert dtype == "F32"
row = len(words) // shape[0]
rows = [words[i:i + row] for i in range(0, len(words), row)]
tensors["lm_head.weight"] = {
    "other": ("F32", shape, b"".join(reversed(rows))),
    "wide": ("F64", shape, struct.pack("<%dd" % (len(words) // 4), *struct.unpack("<%df" % (len(words) // 4), words))),
}.get(head, (dtype, shape, words))
if head == "alone":
    del tensors["model.embed_tokens.weight"]
text, data = {}, b""
for k, (dtype, shape, b) in tensors.items():
    text[k] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(b)]}
    data += b
text = json.dumps(text).encode()
text += b" " * (-len(text) % 8)
open(path, "wb").write(struct.pack("<Q", len(text)) + text + data)
config = json.load(open(folder + "/config.json"))
config["tie_word_embeddings"] = True
json.dump(config, open(folder + "/config.json", "w"))
PY
}

# says_tie FILE VALUE: what that config.json says
says_tie() {
    [ "$(jq -c .tie_word_embeddings "$1")" = "$2" ]
}
