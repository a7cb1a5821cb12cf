"""Packing, layout and partition once more, written plainly from the public descriptions: what the programs are held
against. Nothing here is fast, and nothing is shared with them."""

IGN = -100


def up(x, m):
    return (x + m - 1) // m * m


# ---- bin packing (NeMo-RL's sequence packing) ----

def concatenative(lens, cap):
    bins, load = [], None
    for i, n in enumerate(lens):
        if load is None or load + n > cap:
            bins.append([])
            load = 0
        bins[-1].append(i)
        load += n
    return bins


def first_fit(order, lens, cap):
    bins, room = [], []
    for i in order:
        for b in range(len(bins)):
            if room[b] >= lens[i]:
                break
        else:
            bins.append([])
            room.append(cap)
            b = len(bins) - 1
        bins[b].append(i)
        room[b] -= lens[i]
    return bins


def ffd(lens, cap):
    return first_fit(sorted(range(len(lens)), key=lambda i: (lens[i], i), reverse=True), lens, cap)


def bfd(lens, cap):
    bins, room, since = [], [], []
    for moment, i in enumerate(sorted(range(len(lens)), key=lambda i: (lens[i], i), reverse=True)):
        fits = [b for b in range(len(bins)) if room[b] >= lens[i]]
        if not fits:
            fits = [len(bins)]
            bins.append([])
            room.append(cap)
            since.append(0)
        b = min(fits, key=lambda b: (room[b], since[b]))  # the fullest; of equal ones the first to have become so
        bins[b].append(i)
        room[b] -= lens[i]
        since[b] = moment
    return bins


def mffd(lens, cap):
    large, medium, small, tiny = [], [], [], []
    for i, n in enumerate(lens):
        (large if 2 * n > cap else medium if 3 * n > cap else small if 6 * n > cap else tiny).append((n, i))
    large.sort(key=lambda x: x[0], reverse=True)
    medium.sort(key=lambda x: x[0], reverse=True)
    small.sort(key=lambda x: x[0])
    tiny.sort(key=lambda x: x[0])
    bins = [[item] for item in large]
    medium_in = [False] * len(bins)
    room = lambda b: cap - sum(n for n, _ in b)
    for k, b in enumerate(bins):
        for pos, item in enumerate(medium):
            if item[0] <= room(b):
                b.append(medium.pop(pos))
                medium_in[k] = True
                break
    for k in reversed(range(len(bins))):
        b = bins[k]
        if medium_in[k] or len(small) < 2:
            continue
        if small[0][0] + small[1][0] > room(b):
            continue
        first = small.pop(0)
        for pos in reversed(range(len(small))):
            if small[pos][0] <= room(b) - first[0]:
                b.extend([first, small.pop(pos)])
                break
    rest = sorted(medium + small + tiny, key=lambda x: x[0], reverse=True)
    for b in bins:
        while rest and rest[-1][0] <= room(b):
            for pos, item in enumerate(rest):
                if item[0] <= room(b):
                    b.append(rest.pop(pos))
                    break
    tail = []  # (load, items), by load; equal loads in the order in which they were reached
    for item in rest:
        if tail and tail[0][0] + item[0] <= cap:
            load, items = tail.pop(0)
        else:
            load, items = 0, []
        load, items = load + item[0], items + [item]
        at = len(tail)
        while at > 0 and tail[at - 1][0] > load:
            at -= 1
        tail.insert(at, (load, items))
    return [[i for _, i in b] for b in bins + [items for _, items in tail] if b]


def constrain(bins, min_bins, multiple):
    want = up(max(len(bins), min_bins), multiple)
    if want > sum(map(len, bins)):
        return None
    bins = [list(b) for b in bins]
    donors = sorted(range(len(bins)), key=lambda b: (len(bins[b]), b), reverse=True)
    new = []
    while len(bins) + len(new) < want:
        while len(bins[donors[0]]) <= 1:
            donors.pop(0)
        new.append([bins[donors[0]].pop()])
    return bins + new


def dynamic(lens, tokens, dp, rounded, width):
    """Microbatches of one global batch as NeMo-RL cuts them: (length, indices of each rank); None: one is too long."""
    order = sorted(range(len(lens)), key=lambda i: lens[i])
    ranks = [order[r::dp] for r in range(dp)]
    micro = []
    for j in range(len(lens) // dp):
        n = up(max(lens[r[j]] for r in ranks), rounded)
        n = min(n, width) if width else n
        if n > tokens:
            return None
        if micro and (len(micro[-1][1][0]) + 1) * max(micro[-1][0], n) <= tokens:
            micro[-1] = (max(micro[-1][0], n), [have + [r[j]] for have, r in zip(micro[-1][1], ranks)])
        else:
            micro.append((n, [[r[j]] for r in ranks]))
    return micro


# ---- the salm layout ----

class Reject(Exception):
    pass


def salm(rows, pad, cp, tp, strict=False, keep=False):
    """rows: (ids, mask, [(pos, frames)]). keep: an id equal to pad keeps its label. Returns the tensors of a pack as lists."""
    if not rows:
        raise Reject("E_EMPTY_BATCH")
    spliced = []
    for ids, mask, clips in rows:
        if not ids:
            raise Reject("E_EMPTY_ROW")
        frames = dict(clips)
        start = next((t for t, i in enumerate(ids) if i != pad or t in frames), len(ids) - 1)
        if len(frames) != len(clips) or any(not start <= p < len(ids) for p in frames):
            raise Reject("E_AUDIO_COUNT")
        slots, spans = [], []
        for t in range(start, len(ids)):
            if t in frames:
                spans.append((len(slots), frames[t]))
                slots += [(ids[t], IGN)] * frames[t]
            else:
                slots.append((ids[t], ids[t] if mask[t] and (keep or ids[t] != pad) else IGN))
        if not slots:
            raise Reject("E_EMPTY_UTT")
        spliced.append((slots, spans))
    lens = [len(s) for s, _ in spliced]
    padded = [up(n, 2 * cp) if cp > 1 else n for n in lens]
    unit = cp * tp if strict else tp
    while tp > 1 and sum(padded) % unit:
        padded[-1] += 2 * cp if cp > 1 else 1
    out = dict(input_ids=[], labels=[], position_ids=[], seq_lens=lens, seq_lens_padded=padded, cu_seqlens=[0],
               audio_slot=[], audio_frames=[], max_seqlen=[max(padded)], num_tokens=[sum(lens)],
               num_examples=[len(rows)])
    for (slots, spans), p in zip(spliced, padded):
        begin = len(out["input_ids"])
        out["input_ids"] += [i for i, _ in slots] + [pad] * (p - len(slots))
        out["labels"] += [l for _, l in slots[1:]] + [IGN] * (p - len(slots) + 1)
        out["position_ids"] += range(p)
        out["audio_slot"] += [begin + s for s, _ in spans]
        out["audio_frames"] += [n for _, n in spans]
        out["cu_seqlens"].append(begin + p)
    return out


# ---- the other layouts ----

def spliced(row, pad):
    """(ids, mask, spans) of a row with its clips' frames in the places of their placeholders."""
    ids, mask, clips = row
    if not ids:
        raise Reject("E_EMPTY_ROW")
    frames = dict(clips)
    start = next((t for t, i in enumerate(ids) if i != pad or t in frames), len(ids) - 1)
    if len(frames) != len(clips) or any(not start <= p < len(ids) for p in frames):
        raise Reject("E_AUDIO_COUNT")
    out, predict, spans = [], [], []
    for t in range(start, len(ids)):
        n = frames.get(t, 1)
        if t in frames:
            spans.append((len(out), n))
        out += [ids[t]] * n
        predict += [int(t not in frames and mask[t])] * n
    if not out:
        raise Reject("E_EMPTY_UTT")
    return out, predict, spans


def pack_of(parts, lens, padded, pad):
    """What the layouts share; parts: (ids, labels, mask or None, positions or None, spans) of real slots."""
    cu, cup = [0], [0]
    for n, p in zip(lens, padded):
        cu.append(cu[-1] + n)
        cup.append(cup[-1] + p)
    out = dict(input_ids=[], labels=[], seq_lens=lens, seq_lens_padded=padded, cu_seqlens=cu, cu_seqlens_padded=cup,
               max_seqlen=[max(padded)], num_tokens=[sum(lens)], num_examples=[len(lens)], audio_slot=[], audio_frames=[])
    for (ids, labels, spans), n, p, begin in zip(parts, lens, padded, cup):
        out["input_ids"] += ids[:n] + [pad] * (p - n)
        out["labels"] += labels[:n] + [IGN] * (p - n)
        out["audio_slot"] += [begin + s for s, _ in spans]
        out["audio_frames"] += [f for _, f in spans]
    return out


def rl(rows, pad, cp, min_seq_len):
    rows = [spliced(r, pad) for r in rows]
    lens = [len(r[0]) for r in rows]
    own = [up(n, 2 * cp) if cp > 1 else n for n in lens]
    total = max(min_seq_len, sum(own))
    padded = own[:-1] + [own[-1] + total - sum(own)]
    out = pack_of([(i, [x if m else IGN for x, m in zip(i, k)], s) for i, k, s in rows], lens, padded, pad)
    out["loss_mask"] = sum(([*k] + [0] * (p - len(k)) for (_, k, _), p in zip(rows, padded)), [])
    out["position_ids"] = sum((list(range(p)) for p in own), []) + [0] * (total - sum(own))
    if out["cu_seqlens"][:-1] == out["cu_seqlens_padded"][:-1]:
        out["cu_seqlens"] = out["cu_seqlens_padded"]
    return out


def mcore(rows, pad, each, multiple, fixed):
    rows = [spliced(r, pad) for r in rows]
    lens = [len(r[0]) for r in rows]
    padded = [up(n, each) for n in lens]
    total = fixed or up(sum(padded), multiple or 1)
    if total < sum(padded):
        raise Reject("E_TOO_SHORT")
    padded[-1] += total - sum(padded)
    labels = [[x if m else IGN for x, m in zip(i[1:], k[1:])] + [IGN] for i, k, _ in rows]
    return pack_of([(i, l, s) for (i, _, s), l in zip(rows, labels)], lens, padded, 0)


def sft(rows, pad, cp, fixed):
    lens = []
    for r in rows:
        lens.append(len(spliced(r, pad)[0]) - 1)
        if r[2] and r[2][-1][0] == len(r[0]) - 1:
            raise Reject("E_AUDIO_LAST")
        if lens[-1] == 0:
            raise Reject("E_EMPTY_UTT")
    rows = [(spliced(r, pad), r) for r in rows]
    padded = [up(n, 2 * cp) if cp > 1 else n for n in lens]
    total = fixed or sum(padded)
    if total < sum(padded):
        raise Reject("E_TOO_SHORT")
    padded[-1] += total - sum(padded)
    out = pack_of([(i, i[1:], s) for (i, _, s), _ in rows], lens, padded, pad)
    out["loss_mask"] = sum((k[1:] + [0] * (p - len(k) + 1) for ((_, k, _), _), p in zip(rows, padded)), [])
    out["position_ids"] = sum((list(range(p)) for p in padded), [])
    return out


# ---- the context-parallel partition ----

def cp_index(cu, cp, rank):
    if cp == 1:
        return list(range(cu[-1]))
    out = []
    for s, e in zip(cu, cu[1:]):
        c = (e - s) // (2 * cp)
        out += range(s + rank * c, s + (rank + 1) * c)
        out += range(s + (2 * cp - 1 - rank) * c, s + (2 * cp - rank) * c)
    return out


# ---- a reader of streams ----

def read_stream(path):
    """header, [(tensors as flat lists, metadata)] of an uncompressed stream."""
    import json
    import struct
    import tarfile

    codes = {"I32": "i", "I64": "q", "U64": "Q", "F32": "f", "I16": "h", "U8": "B"}
    header, records = None, []
    with tarfile.open(path) as tar:
        for member in tar:
            data = tar.extractfile(member).read()
            if member.name == "header.json":
                header = json.loads(data)
                continue
            if member.name == "end.safetensors":
                break
            n = struct.unpack("<Q", data[:8])[0]
            index = json.loads(data[8:8 + n])
            meta = index.pop("__metadata__", {})
            tensors = {}
            for name, t in index.items():
                begin, end = t["data_offsets"]
                code = codes[t["dtype"]]
                tensors[name] = list(struct.unpack(f"<{(end - begin) // struct.calcsize(code)}{code}",
                                                   data[8 + n + begin:8 + n + end]))
            records.append((tensors, meta))
    return header, records
