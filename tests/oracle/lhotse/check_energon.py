"""Does s2s-pack read what Megatron-Energon prepares: its index of each tar, its split, what that excludes?

    check_energon.py    s2s-pack in S2S_BIN or PATH; needs megatron-energon, else it is skipped (77)

Tars of samples with folders in their names, long names (pax headers), folders and files that are no parts are prepared by Energon's own code. Its dataset and
s2s-pack must give the same keys and texts, with the index, with a walk of the tars, and where shards and samples are excluded.
"""
import io
import json
import os
import random
import subprocess
import sys
import tarfile
import tempfile
import wave

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "packing"))
import naive  # noqa: E402

try:
    from megatron.energon.epathlib import EPath
    from megatron.energon.flavors.webdataset.itar_reader import ShardInfosITarReader
    from megatron.energon.flavors.webdataset.metadata import WebdatasetMeta
    from megatron.energon.flavors.webdataset.prepare import WebdatasetPreparator
except ImportError as error:
    print(f"megatron-energon is not here: {error}")
    sys.exit(77)

TOKENIZER = os.path.join(HERE, "..", "..", "..", "demo", "tokenizer.json")


def sound():
    out = io.BytesIO()
    with wave.open(out, "wb") as w:
        w.setnchannels(1)
        w.setsampwidth(2)
        w.setframerate(16000)
        w.writeframes(bytes(3200))
    return out.getvalue()


def add(tar, name, data=None):
    info = tarfile.TarInfo(name)
    info.type = tarfile.REGTYPE if data is not None else tarfile.DIRTYPE
    info.size = len(data or b"")
    tar.addfile(info, io.BytesIO(data or b""))


def make(folder, rng):
    os.mkdir(folder)
    for shard in range(4):
        with tarfile.open(f"{folder}/s_{shard}.tar", "w", format=rng.choice((tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT))) as tar:
            if rng.random() < .5:
                add(tar, "__meta__/about.txt", b"x")
            for i in range(rng.randint(1, 6)):
                key = rng.choice(("", "in/", "a/b/")) + f"k{shard}-{i}" + ("" if tar.format == tarfile.USTAR_FORMAT else "x" * rng.choice((0, 0, 130)))
                if rng.random() < .3:
                    add(tar, "folder")
                parts = [("wav", sound()), ("txt", f"text {shard} {i}".encode())] + [("cls", b"1")] * rng.randint(0, 1)
                rng.shuffle(parts)
                for suffix, data in parts:
                    add(tar, f"{key}.{suffix}", data)
                if rng.random() < .2:
                    add(tar, "noparts", b"x")


def texts_of(folder):
    tool = os.path.join(os.environ["S2S_BIN"], "s2s-pack") if "S2S_BIN" in os.environ else "s2s-pack"
    out = folder + ".s2s"
    subprocess.run([tool, "-q", "--tar", folder, "--tokenizer", TOKENIZER, "--batch-size", "1", "-o", out], check=True)
    got = []
    for _, meta in naive.read_stream(out)[1]:
        ids, texts = (json.loads(meta[k]) if isinstance(meta[k], str) else meta[k] for k in ("ids", "texts"))
        got += zip(ids, texts)
    return got


def energon_of(folder):
    meta = WebdatasetMeta.from_config(EPath(folder), split_part="train")
    reader = ShardInfosITarReader(EPath(folder), meta.shards, sample_filter=lambda key: key not in meta.sample_excludes)
    samples = [reader[i] for i in range(len(reader))]
    return [(s["__key__"], s["txt"].decode()) for s in samples if s is not None]


def main():
    failed = 0
    with tempfile.TemporaryDirectory() as work:
        for n in range(20):
            rng, folder = random.Random(n), f"{work}/d{n}"
            make(folder, rng)
            shards = [f"s_{i}.tar" for i in range(4)]
            WebdatasetPreparator.prepare_dataset(EPath(folder), shards, split_parts_ratio=[("train", 1.0)], progress_fn=lambda x, n: x, tar_index_only=False,
                                                 shuffle_seed=None, workers=1)
            walked = {}
            for shard in shards:
                with tarfile.open(f"{folder}/{shard}") as tar:
                    walked[shard] = [m.name for m in tar]
            with open(f"{folder}/.nv-meta/dataset.yaml", "w") as f:
                f.write("__module__: megatron.energon\n__class__: CrudeWebdataset\n")
            yaml = f"{folder}/.nv-meta/split.yaml"
            if n % 2:
                key = [m for m in walked["s_2.tar"] if m.endswith(".wav")][0][:-4]
                text = open(yaml).read().replace("exclude: []", f"exclude: ['s_{{0,1}}.tar', 's_2.tar/{key}']")
                open(yaml, "w").write(text)
            with_index = texts_of(folder)
            want = energon_of(folder)
            for shard in shards:
                os.remove(f"{folder}/{shard}.idx")
            without = texts_of(folder)
            if with_index != want or with_index != without:
                failed += 1
                print(f"{n}: with the index {with_index}, walked {without}, Energon {want}")
    print(f"{20 - failed} of 20 folders equal")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
