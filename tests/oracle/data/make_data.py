"""Makes small data sets of every kind in the current folder, the same each time: texts, manifests, conversations, tars, sound."""
import io
import json
import os
import tarfile
import wave


def sound(samples, k):
    out = io.BytesIO()
    with wave.open(out, "wb") as w:
        w.setnchannels(1)
        w.setsampwidth(2)
        w.setframerate(16000)
        w.writeframes(b"".join(((i * (k + 3)) % 2000 - 1000).to_bytes(2, "little", signed=True) for i in range(samples)))
    return out.getvalue()


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as f:
        f.write(text)


def lines(path, rows):
    write(path, "".join(json.dumps(r) + "\n" for r in rows))


def tar(path, members):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with tarfile.open(path, "w") as t:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            t.addfile(info, io.BytesIO(data))


def talk(name, clip, kind="audio"):
    return [{"from": "User", "type": kind, "value": clip, "duration": 0.3},
            {"from": "User", "type": "text", "value": "what was said"},
            {"from": "Assistant", "type": "text", "value": name}]


def main():
    for k in range(4):
        for n in range(3):
            write(f"txt/s{k}_{n}.txt", "".join(f"s{k} {n} {i}\n" for i in range(3 + k + 2 * n)))
            lines(f"txt/s{k}_{n}.jsonl", [{"text": f"s{k} {n} {i}"} for i in range(3 + k + 2 * n)])
    for n in range(3):
        lines(f"sft/c{n}.jsonl", [{"conversations": [{"from": "User", "value": "hi"}, {"from": "Assistant", "value": f"c{n} {i}"}]}
                                  for i in range(4 + n)])
    # single files of sound
    for k in range(6):
        write_bytes(f"wav/w{k}.wav", sound(4800, k))
    for n in range(3):
        rows = [{"audio_filepath": f"../wav/w{i % 6}.wav", "duration": 0.3, "text": f"u{n} {i}"} for i in range(5 + n)]
        rows[2]["_skipme"] = True
        lines(f"nemo/u{n}.json", rows)
    for n in range(2):
        rows = [{"id": f"t{n}-{i}", "conversations": talk(f"t{n} {i}", f"../wav/w{(n + i) % 6}.wav")} for i in range(6 + n)]
        rows[3]["custom"] = {"_skipme": 1}
        lines(f"talk/t{n}.jsonl", rows)
        lines(f"share/g{n}.jsonl", [{"id": f"g{n}-{i}", "sound": f"../wav/w{i % 6}.wav",
                                     "conversations": [{"from": "human", "value": "  <sound> hear this"}, {"from": "gpt", "value": f"g{n} {i}"}]}
                                    for i in range(5 + n)])
    # shards: manifests and tars with the same numbers
    for n in range(4):
        members, rows = [], []
        for i in range(4 + n):
            members.append((f"m{n}_{i}.wav", sound(4800, i)))
            if i == 1:  # parts of one member, not in their order
                for sub, offset in ((2, 0.2), (1, 0.05)):
                    rows.append({"audio_filepath": f"m{n}_{i}-sub{sub}.wav", "duration": 0.05, "offset": offset, "text": f"m{n} {i} sub{sub}", "shard_id": n})
            else:
                rows.append({"audio_filepath": f"m{n}_{i}.wav", "duration": 0.3, "text": f"m{n} {i}", "shard_id": n})
        rows[-1]["_skipme"] = n == 2
        for folder in ("tar", "tar2") if n < 2 else ("tar",):
            lines(f"{folder}/manifest_{n}.json", [{**r, "text": r["text"] + folder[3:]} for r in rows[::-1]])
            tar(f"{folder}/audio_{n}.tar", members)
        lines(f"talktar/talk_{n}.jsonl",
              [{"id": f"k{n}-{i}", "conversations": talk(f"k{n} {i}", f"k{n}_{i}.wav"), "custom": {"_skipme": i == 1}} for i in range(3 + n)])
        tar(f"talktar/audio_{n}.tar", [(f"k{n}_{i}.wav", sound(4800, i)) for i in range(3 + n)])
    # lines that are drawn for samples, and pairs of lines, of which some are empty
    write("ask/few.txt", "".join(f"  few {i}\u00a0\n" for i in range(7)))
    write("ask/many.txt", "".join(f"many {i}\n" for i in range(200)) + "last")
    for n in range(3):
        write(f"pair/q{n}.txt", "".join("\n" if i == 2 else f"q{n} {i}\n" for i in range(5 + n)) + "\n" * n)
        write(f"pair/a{n}.txt", "".join(" \n" if i == 4 else f" a{n} {i}\r\n" for i in range(6 + n)))
    whole = []
    for n in range(4):
        whole += [{"audio_filepath": f"m{n}_{i}.wav", "duration": 0.3, "text": f"one m{n} {i}", "shard_id": n} for i in range(4 + n)]
    lines("tar/all.json", whole)


def write_bytes(path, data):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as f:
        f.write(data)


if __name__ == "__main__":
    main()
