#!/usr/bin/env python3
"""Makes good/ and bad/ beside this file, from doc/FORMAT.md alone (numpy, and the zstd program for .zst).

A file in bad/ has exactly one thing wrong: digests and counts are made to fit where they are not the point. bad/expected.json says
what part of the message must name it.
"""
import json
import os
import shutil
import struct
import subprocess
import sys

import numpy as np

sys.dont_write_bytecode = True
from reader import tar_header
from xxh3 import xxh3_64, xxh3_128

HERE = os.path.dirname(os.path.abspath(__file__))
NAMES = {"int32": "I32", "int64": "I64", "uint64": "U64", "int16": "I16", "uint8": "U8", "float32": "F32"}


def compact(value):
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def safetensors(tensors, meta=None, edit=None):
    """Canonical bytes; tensors: name -> array or (dtype, array). edit changes the header's dict before it is written."""
    header, data = {}, b""
    if meta:
        header["__metadata__"] = dict(sorted(meta.items()))
    for name, x in sorted(tensors.items()):
        dtype, x = x if isinstance(x, tuple) else (NAMES[np.asarray(x).dtype.name], x)
        raw = np.asarray(x).tobytes()
        header[name] = {"dtype": dtype, "shape": list(np.asarray(x).shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    if edit:
        header = edit(header) or header
    text = header if isinstance(header, bytes) else compact(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def member(name, body, head=None):
    return (head or tar_header(name, len(body))) + body + bytes(-len(body) % 512)


class Stream:
    """Parts of a stream that a test may change before bytes() joins them."""

    def __init__(self, header, records):
        self.header, self.records = header, [r if isinstance(r, bytes) else safetensors(*r) for r in records]
        self.end_edit = self.end_meta = self.head_edit = self.names = None
        self.tail = bytes(1024)
        self.with_end = True

    def parts(self):
        text = (compact(dict(sorted(self.header.items()))) + "\n").encode() if isinstance(self.header, dict) else self.header
        parts = [member("header.json", text)]
        at, offsets = len(parts[0]), []
        for i, body in enumerate(self.records):
            name = self.names[i] if self.names else "%08d.safetensors" % i
            head = tar_header(name, len(body))
            if self.head_edit:
                head = self.head_edit(i, head)
            offsets.append(at + 512)
            parts.append(member(name, body, head))
            at += len(parts[-1])
        if self.with_end:
            steps = self.header["provenance"] if isinstance(self.header, dict) else [0]
            lists = {"offset": np.array(offsets, "u8"), "size": np.array([len(r) for r in self.records], "u8"),
                     "xxh3": np.array([xxh3_64(r) for r in self.records], "u8"), "self": np.zeros(1, "u8")}
            if self.end_edit:
                self.end_edit(lists)
            meta = {"records": str(len(lists["offset"])), "header": xxh3_128(text), "inputs": compact([["0" * 32]] * len(steps))}
            meta.update(self.end_meta or {})
            body = safetensors(lists, meta)
            header_len = struct.unpack_from("<Q", body)[0]
            at = 8 + header_len + json.loads(body[8:8 + header_len])["self"]["data_offsets"][0]
            digest = struct.pack("<Q", xxh3_64(body)) if lists["self"][0] == 0 else body[at:at + 8]
            parts.append(member("end.safetensors", body[:at] + digest + body[at + 8:]))
        return parts

    def bytes(self):
        return b"".join(self.parts()) + self.tail


def zstd(content):
    return subprocess.run(["zstd", "-qc", "-3", "--check", "--stream-size=%d" % len(content)], input=content, capture_output=True,
                          check=True).stdout


def zst(frames, edit=None):
    packed = [zstd(f) for f in frames]
    digests = [xxh3_64(p) for p in packed]
    assert None not in digests, "frames of 240 bytes and fewer have no digest here"
    tail = struct.pack("<II", 0x184D2A50, 8 * len(packed)) + struct.pack("<%dQ" % len(packed), *digests)
    tail += struct.pack("<II", 0x184D2A5E, 8 * len(packed) + 9)
    for p, f in zip(packed, frames):
        tail += struct.pack("<II", len(p), len(f))
    tail += struct.pack("<IBI", len(packed), 0, 0x8F92EAB1)
    return edit(packed, tail) if edit else b"".join(packed) + tail


def zst_of(stream, edit=None):
    parts = stream.parts()
    return zst([parts[0]] + [b"".join(parts[1:-1])] * (len(parts) > 2) + [parts[-1] + bytes(1024)], edit)


# ---- content: two utterances of 11 and 5 tokens, three clips of 4, 3, 2 frames, cp 2 ----

RNG = np.random.default_rng(7)
I32 = lambda *x: np.array(x, "i4")
NOISE = RNG.integers(0, 256, 600, "u1")


def pack(k=0):
    return {"input_ids": RNG.integers(1, 100, 20).astype("i4"), "labels": I32(*[-100, 5] * 10), "seq_lens": I32(11, 5),
            "position_ids": np.concatenate([np.arange(12), np.arange(8)]).astype("i4"), "seq_lens_padded": I32(12, 8),
            "cu_seqlens": I32(0, 12, 20), "max_seqlen": np.array(12, "i4"), "num_tokens": np.array(16, "i8"),
            "num_examples": np.array(2, "i8"), "audio_slot": I32(1, 7, 13), "audio_frames": I32(4, 3, 2)}


META = {"qkv_format": "thd", "ids": '["u%d","ü\\"1"]' % 0, "audio": '[{"source":"a.wav"},{},{}]'}
SIZES = {"input_ids": ["T"], "labels": ["T"], "position_ids": ["T"], "seq_lens": ["B"], "seq_lens_padded": ["B"], "cu_seqlens": ["B+1"],
         "max_seqlen": [], "num_tokens": [], "num_examples": [], "audio_slot": ["K"], "audio_frames": ["K"]}


def schema(tensors, sizes=SIZES, **more):
    out = {}
    for name, shape in {**sizes, **more}.items():
        x = tensors[name]
        out[name] = {"dtype": x[0] if isinstance(x, tuple) else NAMES[np.asarray(x).dtype.name], "shape": shape}
    return out


def header(kind="pack", tensors=None, **more):
    tensors = tensors or pack()
    base = {"format": "s2s", "version": 1, "kind": kind, "config": {"cp": 2, "note": "n" * 120}, "audio": "none", "schema": schema(tensors),
            "provenance": [{"program": "make_corpus", "version": "1", "args": ["--x=ü"]}]}
    if kind in ("pack", "embed", "cpshard"):
        base["layout"] = "salm"
    base.update(more)
    return base


def packs(n=2, **more):
    return Stream(header(**more), [(pack(), META) for _ in range(n)])


def with_pcm():
    t = {**pack(), "audio_pcm": RNG.integers(-99, 99, 1000).astype("i2"), "audio_cu_samples": np.array([0, 300, 700, 1000], "i8")}
    return Stream(header(audio="pcm", schema=schema(t, audio_pcm=["n"], audio_cu_samples=["K+1"])), [(t, META)])


def embed(dtype="F32", rows=9, width=4):
    x = RNG.standard_normal((rows, width)).astype("f4")
    x.flat[:3] = np.inf, -np.inf, np.nan
    t = {**pack(), "audio_embeds": x if dtype == "F32" else ("BF16", (x.view("u4") >> 16).astype("u2"))}
    return Stream(header("embed", schema=schema(t, audio_embeds=["n", 4]),
                         embed={"hidden": 4, "dtype": dtype, "encoder": "0" * 32, "projection": None}), [(t, META)])


def cpshard(rank=0):
    t = pack()
    keep = [0, 1, 2, 9, 10, 11, 12, 13, 18, 19] if rank == 0 else list(range(3, 9)) + list(range(14, 18))
    for name in ("input_ids", "labels", "position_ids"):
        t[name] = t[name][keep]
    return Stream(header("cpshard", tensors=t, cp={"size": 2, "rank": rank}, parent="a" * 32), [(t, {**META, "parent": "b" * 16})])


def clips():
    t = {"pcm": RNG.integers(-9, 9, 500).astype("i2")}
    return Stream(header("audio", audio="pcm", schema=schema(t, {"pcm": ["n"]})),
                  [(t, {"id": "a", "text": "né\n\u0001", "duration": "0.03125", "sampling_rate": "16000"})])


def duplex():
    t = {"source_pcm": RNG.standard_normal(400).astype("f4"), "target_pcm": RNG.standard_normal(500).astype("f4"),
         "source_tokens": I32(1, 2, 3), "target_tokens": I32(4, 5, 6)}
    h = header("duplex", schema=schema(t, {"source_pcm": ["n"], "target_pcm": ["m"], "source_tokens": ["F"], "target_tokens": ["F"]}))
    del h["audio"]
    return Stream(h, [(t, {"id": "c"})])


def rl():
    t = {**pack(), "cu_seqlens": I32(0, 11, 16), "cu_seqlens_padded": I32(0, 12, 20), "loss_mask": np.ones(20, "u1")}
    return Stream(header(layout="rl", schema=schema(t, cu_seqlens_padded=["B+1"], loss_mask=["T"])), [(t, META)])


def unknown():
    t = {**pack(), "my_scores": np.arange(3, dtype="f4"), "my_text": NOISE[:7]}
    s = Stream(header(schema=schema(t, my_scores=["S"])), [(t, {**META, "my_key": "kept"})])
    s.header["my_header"] = {"kept": True}
    return s


def not_canonical():
    """Another library's order and spacing: data in reverse order of names, spaces, escapes."""
    body, at, data, entries = pack(), 0, b"", []
    for name, x in sorted(body.items(), reverse=True):
        raw = x.tobytes()
        entries.append('"%s" : {"data_offsets": [%d, %d], "shape":%s,\n"dtype":"%s"}' % (
            name, at, at + len(raw), json.dumps(list(x.shape)), NAMES[x.dtype.name]))
        at, data = at + len(raw), data + raw
    text = ('{%s,\t"__metadata__":%s}' % (", ".join(entries), json.dumps({**META, "x": "\U0001f600"}))).encode()
    return Stream(header(), [struct.pack("<Q", len(text)) + text + data])


GOOD = {"pack.s2s": lambda: packs().bytes(), "none.s2s": lambda: packs(0).bytes(), "pack.s2s.zst": lambda: zst_of(packs()),
        "none.s2s.zst": lambda: zst_of(packs(0)), "pcm.s2s": lambda: with_pcm().bytes(), "embed_f32.s2s": lambda: embed().bytes(),
        "embed_bf16.s2s": lambda: embed("BF16").bytes(), "cpshard0.s2s": lambda: cpshard(0).bytes(),
        "cpshard1.s2s": lambda: cpshard(1).bytes(), "audio.s2s": lambda: clips().bytes(), "duplex.s2s": lambda: duplex().bytes(),
        "rl.s2s": lambda: rl().bytes(), "unknown.s2s": lambda: unknown().bytes(), "not_canonical.s2s": lambda: not_canonical().bytes()}

BAD = {}


def bad(name, says):
    def add(make):
        made = make()
        BAD[name] = (made.bytes() if isinstance(made, Stream) else made, says)
    return add


def bad_header(name, says, **changes):
    h = header()
    for key, value in changes.items():
        h[key] = value
        if value is None:
            del h[key]
    BAD["header_" + name] = (Stream(h, [(pack(), META)]).bytes(), says)


def bad_record(name, says, base=packs, meta=None, drop=None, **changes):
    stream = base()
    kind = stream.header["kind"]
    body = stream.records[0]
    n = struct.unpack_from("<Q", body)[0]
    head = json.loads(body[8:8 + n])
    raw, tensors = body[8 + n:], {}
    old_meta = head.pop("__metadata__")
    back = {v: k for k, v in NAMES.items()}
    for key, t in head.items():
        if key != drop:
            begin, end = t["data_offsets"]
            tensors[key] = (t["dtype"], np.frombuffer(raw[begin:end], back.get(t["dtype"], "u2")).reshape(t["shape"]))
    for key, x in changes.items():
        tensors[key] = x
    new_meta = {**old_meta, **(meta or {})}
    stream.records[0] = safetensors(tensors, {k: v for k, v in new_meta.items() if v is not None})
    BAD["record_" + name] = (stream.bytes(), says)
    assert kind


def bad_json(name, says, edit):
    BAD["safetensors_" + name] = (Stream(header(), [safetensors(pack(), META, edit)]).bytes(), says)


def set_key(path, value):
    def edit(head):
        *parents, last = path
        at = head
        for key in parents:
            at = at[key]
        at[last] = value
    return edit


def text_edit(old, new):
    return lambda head: compact(head).encode().replace(old, new, 1)


def make_bad():
    whole = packs().bytes()
    # cuts and things behind
    BAD["no_bytes"] = (b"", "header.json")
    BAD["cut_in_header"] = (whole[:700], "header.json")
    BAD["cut_in_record"] = (whole[:5000], "record 1")
    BAD["cut_between_records"] = (b"".join(packs().parts()[:2]), "record 1")
    BAD["cut_before_end"] = (b"".join(packs().parts()[:3]), "end.safetensors")
    BAD["cut_in_end"] = (whole[:-1030], "end.safetensors")
    BAD["cut_zero_blocks"] = (whole[:-512], "end.safetensors")
    BAD["something_behind"] = (whole + bytes(512), "follows")

    @bad("no_end", "without end.safetensors")
    def _():
        s = packs()
        s.with_end = False
        return s

    # members
    for name, names, says in (("of_another_name", ["00000000.safetensors", "extra.txt"], "extra.txt"),
                              ("out_of_order", ["00000001.safetensors", "00000000.safetensors"], "00000001"),
                              ("absolute", ["/etc/00000000.safetensors", "00000001.safetensors"], "/etc"),
                              ("parent_folder", ["../00000000.safetensors", "00000001.safetensors"], "..")):
        s = packs()
        s.names = names
        BAD["member_" + name] = (s.bytes(), says)

    def retar(at, new):
        def edit(i, head):
            if i != 1:
                return head
            head = head[:at] + new + head[at + len(new):]
            blank = head[:148] + b" " * 8 + head[156:]
            return head[:148] + b"%06o\0 " % sum(blank) + head[156:]
        return edit

    for name, edit, says in (("mtime", retar(136, b"00000000001"), "tar header"), ("symlink", retar(156, b"2"), "tar header"),
                             ("mode", retar(100, b"0000755"), "tar header"), ("user", retar(265, b"root"), "tar header"),
                             ("size_huge", retar(124, b"77777777777"), "record 1"), ("size_not_octal", retar(124, b"0000000xxxx"), "tar"),
                             ("gnu", retar(257, b"ustar  \0"), "tar header"),
                             ("sum", lambda i, h: h if i != 1 else h[:148] + b"000000\0 " + h[156:], "tar header")):
        s = packs()
        s.head_edit = edit
        BAD["tar_" + name] = (s.bytes(), says)
    s = packs()
    parts = s.parts()
    parts[1] = parts[1][:-1] + b"x"
    BAD["padding"] = (b"".join(parts) + bytes(1024), "padding")
    BAD["zero_blocks"] = (whole[:-1] + b"\1", "zero")

    # header
    bad_header("format", "format", format="wav")
    bad_header("version", "version", version=2)
    bad_header("kind", "kind", kind="film")
    bad_header("no_layout", "layout", layout=None)
    bad_header("audio", "audio", audio="mp3")
    bad_header("no_config", "config", config=None)
    bad_header("no_provenance", "provenance", provenance=[])
    bad_header("schema_lacks", "num_tokens", schema={k: v for k, v in schema(pack()).items() if k != "num_tokens"})
    bad_header("schema_dtype", "labels", schema={**schema(pack()), "labels": {"dtype": "I64", "shape": ["T"]}})
    bad_header("schema_size", "labels", schema={**schema(pack()), "labels": {"dtype": "I32", "shape": ["T-1"]}})
    bad_header("salm_padded", "cu_seqlens_padded", schema={**schema(pack()), "cu_seqlens_padded": {"dtype": "I32", "shape": ["B+1"]}})
    for name, text, says in (("not_json", b"{" * 300, "header.json"), ("twice", b'{"format":"s2s","format":"s2s"}' + b" " * 300, "header.json"),
                             ("deep", b"[" * 20000, "header.json"), ("list", b"[1]" + b" " * 300, "object"),
                             ("not_utf8", b'{"format":"\xff"}' + b" " * 300, "header.json")):
        BAD["header_" + name] = (Stream(text, []).bytes(), says)

    # records
    bad_record("no_labels", "labels", drop="labels")
    bad_record("dtype", "labels", labels=np.zeros(20, "i8"))
    bad_record("shape", "labels", labels=np.zeros(19, "i4"))
    bad_record("cu_down", "cu_seqlens[1]", cu_seqlens=I32(0, 20, 12))
    bad_record("cu_first", "cu_seqlens[0]", cu_seqlens=I32(1, 12, 20))
    bad_record("cu_end", "cu_seqlens[2]", cu_seqlens=I32(0, 12, 16))
    bad_record("padded_less", "seq_lens", seq_lens=I32(13, 5))
    bad_record("negative", "seq_lens", seq_lens=I32(-1, 5))
    bad_record("max_seqlen", "max_seqlen", max_seqlen=np.array(11, "i4"))
    bad_record("num_tokens", "num_tokens", num_tokens=np.array(20, "i8"))
    bad_record("num_examples", "num_examples", num_examples=np.array(3, "i8"))
    bad_record("position", "position_ids", position_ids=np.arange(20).astype("i4"))
    bad_record("clips_overlap", "audio_slot[1]", audio_slot=I32(1, 4, 13))
    bad_record("clip_leaves", "utterance", audio_frames=I32(4, 5, 2))
    bad_record("clip_outside", "audio_slot[2]", audio_slot=I32(1, 7, 19))
    bad_record("ids", "ids", meta={"ids": '["u0"]'})
    bad_record("ids_behind", "ids", meta={"ids": META["ids"] + "x"})
    bad_record("no_ids", "ids", meta={"ids": None})
    bad_record("qkv", "qkv_format", meta={"qkv_format": "bshd"})
    bad_record("cu_samples", "audio_cu_samples", base=with_pcm, audio_cu_samples=np.array([0, 700, 300, 1000], "i8"))
    bad_record("cu_samples_end", "audio_cu_samples", base=with_pcm, audio_cu_samples=np.array([0, 300, 700, 999], "i8"))
    bad_record("embed_rows", "audio_embeds", base=embed, audio_embeds=np.zeros((8, 4), "f4"))
    bad_record("cp_parent", "parent", base=cpshard, meta={"parent": "no"})
    bad_record("cp_slots", "slots", base=lambda: cpshard(0), input_ids=np.zeros(8, "i4"), labels=np.zeros(8, "i4"),
               position_ids=np.zeros(8, "i4"))

    # safetensors
    bad_json("overlap", "overlap", set_key(["labels", "data_offsets"], [0, 80]))
    bad_json("hole", "data_offsets", set_key(["seq_lens", "data_offsets"], [10000, 10010]))
    bad_json("product_wraps", "overflows", set_key(["labels", "shape"], [1 << 32, 1 << 32]))
    bad_json("negative", "whole number", text_edit(b'"data_offsets":[0,', b'"data_offsets":[-0,'))
    bad_json("reversed", "data_offsets", set_key(["labels", "data_offsets"], [160, 80]))
    bad_json("dtype", "dtype", set_key(["labels", "dtype"], "I33"))
    bad_json("twice", "twice", text_edit(b'"labels":', b'"input_ids":'))
    bad_json("meta_number", "string", set_key(["__metadata__", "n"], 1))
    bad_json("unknown_key", "key", set_key(["labels", "more"], [1]))
    bad_json("not_utf8", "UTF-8", text_edit(b'"thd"', b'"t\xffd"'))
    bad_json("nul", "NUL", text_edit(b'"thd"', b'"t\\u0000d"'))
    bad_json("half_pair", "surrogate", text_edit(b'"thd"', b'"\\ud800x"'))
    bad_json("deep", "string", lambda head: b'{"__metadata__":' + b'{"a":' * 5000)
    bad_json("no_brace", "expected", lambda head: b"[]")
    bad_json("behind", "after", lambda head: compact(head).encode() + b"{}")
    BAD["safetensors_header_huge"] = (Stream(header(), [struct.pack("<Q", 100_000_001) + NOISE.tobytes()]).bytes(), "100000001")
    BAD["safetensors_header_past"] = (Stream(header(), [struct.pack("<Q", 601) + NOISE.tobytes()]).bytes(), "601")

    # end
    for name, edit, says in (("self", lambda t: t.update(self=np.array([5], "u8")), "self"),
                             ("digest", lambda t: t["xxh3"].__setitem__(1, 5), "record 1"),
                             ("offset", lambda t: t["offset"].__setitem__(1, 5), "record 1"),
                             ("size", lambda t: t["size"].__setitem__(0, 5), "record"),
                             ("too_few", lambda t: t.update({k: t[k][:1] for k in ("offset", "size", "xxh3")}), "records"),
                             ("lengths", lambda t: t.update(size=t["size"][:1]), "size")):
        s = packs()
        s.end_edit = edit
        BAD["end_" + name] = (s.bytes(), says)
    for name, meta, says in (("records", {"records": "3"}, "records"), ("header", {"header": "0" * 32}, "header.json"),
                             ("inputs", {"inputs": "[]"}, "inputs"), ("inputs_json", {"inputs": "[["}, "inputs")):
        s = packs()
        s.end_meta = meta
        BAD["end_meta_" + name] = (s.bytes(), says)

    # compressed
    parts = packs().parts()
    frames = [parts[0], parts[1] + parts[2], parts[3] + bytes(1024)]
    flip = lambda data, at: data[:at] + bytes([data[at] ^ 1]) + data[at + 1:]
    BAD["zst_no_tail.zst"] = (zst(frames, lambda p, t: b"".join(p)), "seek table")
    BAD["zst_cut_tail.zst"] = (zst(frames)[:-3], "seek table")
    BAD["zst_digest.zst"] = (zst(frames, lambda p, t: b"".join(p) + flip(t, 17)), "frame")
    BAD["zst_table.zst"] = (zst(frames, lambda p, t: b"".join(p) + flip(t, len(t) - 14)), "zstd")
    BAD["zst_behind.zst"] = (zst(frames) + b"x", "seek table")
    BAD["zst_header_not_alone.zst"] = (zst([parts[0] + parts[1] + parts[2], frames[2]]), "frame")
    BAD["zst_end_not_alone.zst"] = (zst([parts[0], frames[1] + frames[2]]), "frame")
    BAD["zst_member_cut_in_two.zst"] = (zst([parts[0], frames[1][:900], frames[1][900:], frames[2]]), "frame")
    BAD["zst_cut_in_frame.zst"] = (zst(frames)[:900], "cut")
    BAD["zst_bomb.zst"] = (zst([parts[0], bytes(1 << 26), frames[2]]), "tar")


def write(folder, files):
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    for name, data in files.items():
        with open(os.path.join(folder, name), "wb") as file:
            file.write(data)


if __name__ == "__main__":
    make_bad()
    write(os.path.join(HERE, "good"), {name: make() for name, make in GOOD.items()})
    write(os.path.join(HERE, "bad"), {n if n.endswith(".zst") else n + ".s2s": data for n, (data, _) in BAD.items()})
    with open(os.path.join(HERE, "bad", "expected.json"), "w") as file:
        json.dump({n if n.endswith(".zst") else n + ".s2s": says for n, (_, says) in sorted(BAD.items())}, file, indent=0)
        file.write("\n")
    print(len(GOOD), "good,", len(BAD), "bad")
