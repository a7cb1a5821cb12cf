#!/usr/bin/env python3
"""make_images.py OUT.s2s [PACKS] [SIDE] [SEED]: packs of images and of what they show, from doc/FORMAT.md alone (numpy).

An utterance is an image of a colour, of any size, and two tokens that name the colour: ids 1, then for each line of the image its rows (placeholder
63) and an id 2 for the end of the line, then 10 + colour, 20 + colour. So the rows of an image do not follow each other. Every fourth utterance is text
alone, every fifth has two images. SIDE is that of a patch in pixels; 2 x 2 patches are a row. Pixels are bytes, in a file whose name has "wide" in it numbers from 0 to 1; in one with
"grey" all images are grey.
"""
import sys

import numpy as np

sys.dont_write_bytecode = True
from make_corpus import Stream, schema

SIZES = {"input_ids": ["T"], "labels": ["T"], "position_ids": ["T"], "seq_lens": ["B"], "seq_lens_padded": ["B"], "cu_seqlens": ["B+1"], "max_seqlen": [],
         "num_tokens": [], "num_examples": [], "audio_slot": ["K"], "audio_frames": ["K"], "image_slot": ["R"], "image_rows": ["I"], "image_grid": ["I", 2],
         "image_patches": ["P", "S"]}
COLOURS = np.array([[230, 30, 40], [20, 200, 60], [40, 60, 220], [220, 210, 30]])
PLACEHOLDER, LINE = 63, 2


def image(rng, side, colour):
    """Grid, patches of bytes."""
    h, w = 2 * rng.integers(1, 4), 2 * rng.integers(1, 4)
    pixels = np.clip(COLOURS[colour][:, None, None] + rng.normal(0, 25, (3, h * side, w * side)), 0, 255).astype("u1")
    return (h, w), pixels.reshape(3, h, side, w, side).transpose(1, 3, 0, 2, 4).reshape(h * w, 3 * side * side)


def utterance(rng, side, k):
    """Ids, labels (not shifted), and images: grid, patches, places of their rows among the ids."""
    ids, images, colour = [1], [], int(rng.integers(0, len(COLOURS)))
    for _ in range(0 if k % 4 == 3 else 2 if k % 5 == 4 else 1):
        (h, w), patches = image(rng, side, colour)
        places = []
        for _ in range(h // 2):
            places += range(len(ids), len(ids) + w // 2)
            ids += [PLACEHOLDER] * (w // 2) + [LINE]
        images.append(((h, w), patches, places))
    answer = [10 + colour, 20 + colour]
    return ids + answer, [-100] * len(ids) + answer, images


def pack(rng, side, n, first, wide):
    ids, labels, positions, lens, cu, slot, rows, grid, patches = [], [], [], [], [0], [], [], [], []
    for k in range(first, first + n):
        i, target, images = utterance(rng, side, k)
        for g, p, places in images:
            slot += [len(ids) + at for at in places]
            rows.append(len(places))
            grid.append(g)
            patches.append(p)
        positions += range(len(i) + 1)
        labels += target[1:] + [-100, -100]  # and a slot of padding
        ids += i + [0]
        lens.append(len(i))
        cu.append(len(ids))
    pixels = np.concatenate(patches) if patches else np.zeros((0, 3 * side * side), "u1")
    arrays = dict(input_ids=ids, labels=labels, position_ids=positions, seq_lens=lens, seq_lens_padded=np.diff(cu), cu_seqlens=cu, max_seqlen=max(np.diff(cu)),
                  audio_slot=[], audio_frames=[], image_slot=slot, image_rows=rows, image_grid=np.array(grid).reshape(-1, 2))
    out = {name: np.array(x, "i4") for name, x in arrays.items()}
    out.update(num_tokens=np.array(sum(lens), "i8"), num_examples=np.array(n, "i8"), image_patches=(pixels / np.float32(255)).astype("f4") if wide else pixels)
    meta = {"qkv_format": "thd", "ids": "[%s]" % ",".join('"i%d"' % k for k in range(first, first + n)), "audio": "[]"}
    return out, meta


def main():
    out, n, side, seed = sys.argv[1], *(int(v) for v in (sys.argv[2:] + ["8", "4", "1"][len(sys.argv) - 2:]))
    rng, wide = np.random.default_rng(seed), "wide" in out
    if "grey" in out:
        COLOURS[:] = 128
    records = [pack(rng, side, 4, 4 * k, wide) for k in range(n)]
    head = {"format": "s2s", "version": 1, "kind": "pack", "layout": "salm", "audio": "none", "config": {"note": "images of colours"},
            "schema": schema(records[0][0], SIZES), "provenance": [{"program": "make_images", "version": "1", "args": []}]}
    with open(out, "wb") as f:
        f.write(Stream(head, records).bytes())


if __name__ == "__main__":
    main()
