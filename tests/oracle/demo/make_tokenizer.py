#!/usr/bin/env python3
"""Makes demo/tokenizer.json: four special tokens, then one token a byte, no merges.

The model's alphabet is small, so bytes are all it needs; Hugging Face tokenizers reads the file too.
"""
import json
import os


def byte_alphabet():
    """The printable stand-ins of GPT-2's byte-level BPE, in the order of the bytes."""
    keep = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    out, extra = [], 0
    for byte in range(256):
        if byte in keep:
            out.append(chr(byte))
        else:
            out.append(chr(256 + extra))
            extra += 1
    return out


SPECIAL = ["<pad>", "<s>", "</s>", "<|audio|>"]
tokenizer = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [{"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False,
                      "normalized": False, "special": True} for i, t in enumerate(SPECIAL)],
    "normalizer": None,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    "post_processor": None,
    "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
              "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
              "vocab": {**{t: i for i, t in enumerate(SPECIAL)},
                        **{c: 4 + i for i, c in enumerate(byte_alphabet())}},
              "merges": []},
}
path = os.path.join(os.path.dirname(__file__), "..", "..", "..", "demo", "tokenizer.json")
with open(path, "w", encoding="utf-8") as f:
    json.dump(tokenizer, f, ensure_ascii=True, indent=1)
    f.write("\n")
