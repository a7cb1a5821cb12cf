#!/usr/bin/env python3
"""Ids and loss masks of conversations against transformers' apply_chat_template(return_assistant_tokens_mask=True).

    check_chat.py [CONVERSATIONS [SEED]]        default 300 for each template and tokenizer

Templates are the built-in ones (lib/text/chat) and those beside this file, which use the language in the ways of published ones: namespaces, macros, loops with
conditions and breaks, slices, white space control, trimmed and split texts. Tokenizers are of each kind of tests/oracle/tokenizer_*.
Exit 0 when nothing differs, 1 when something does, 77 without the library. With --golden FILE a sample for the unit test is written.
"""
import copy, json, os, random, subprocess, sys, tempfile

try:
    from transformers import PreTrainedTokenizerFast
    import jinja2  # noqa: F401
except ModuleNotFoundError as e:
    print(e)
    sys.exit(77)

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
PACK = os.path.join(os.environ.get("S2S_BIN", os.path.join(ROOT, "bin")), "s2s-pack")
TOKENS = ("<|im_start|> <|im_end|> <|start_header_id|> <|end_header_id|> <|eot_id|> <start_of_turn> <end_of_turn> <SPECIAL_10> <SPECIAL_11> "
          "<|startofcontext|> <|startoftranscript|> <|en|> <|de|> <|pnc|> <|noitn|> <|notimestamp|> <|nodiarize|> <|emo:undefined|>").split()
WORDS = ("hello there, what is 12+7? naïve café 中文 漢字 русский 😀 a\\nb   two  spaces <x> </x> </think> \u00a0 don't I'm (parens) \"quotes\" tab\there "
         "line\nfeed end. Yes! no? ﬁ e\u0301 the of and to \n\n x").split(" ")


def tokenizers():
    for kind, bos, eos in ("bytelevel_llama3", "<|begin_of_text|>", "<|end_of_text|>"), ("bytelevel_qwen", "<|endoftext|>", "<|im_end|>"), \
                          ("spbpe_llama2", "<s>", "</s>"), ("unigram", "</s>", "</s>"):
        with open(f"{ROOT}/tests/oracle/tokenizer_{kind}/tokenizer.json", encoding="utf-8") as f:
            tok = json.load(f)
        first = max([t["id"] for t in tok["added_tokens"]]) + 1
        for token in TOKENS:
            if not any(t["content"] == token for t in tok["added_tokens"]):
                tok["added_tokens"].append({"id": first, "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True})
                first += 1
        yield kind, tok, bos, eos
        if kind == "spbpe_llama2":  # as newer files of the family have it
            new = copy.deepcopy(tok)
            new["normalizer"] = None
            new["pre_tokenizer"] = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False}
            yield kind + " first", new, bos, eos
            new = copy.deepcopy(new)
            new["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Strip", "strip_left": False, "strip_right": True}]}
            yield kind + " nfkc", new, bos, eos


def conversation(rng, system):
    text = lambda: " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 12)))
    turns = [{"role": "system", "content": text()}] if system and rng.random() < 0.5 else []
    for _ in range(rng.randint(1, 4)):
        turns += [{"role": "user", "content": text()}, {"role": "assistant", "content": text()}]
    if rng.random() < 0.2:
        turns.pop()
    if rng.random() < 0.3:
        turns[-1]["source_lang"] = "de"
    return turns


def expected_of_turns(peer, turns):
    """The mask where a template has no {% generation %}: what an assistant's turn adds behind the opening of its turn."""
    text = peer.apply_chat_template(turns, tokenize=False)
    out = peer(text, add_special_tokens=False)
    mask = [0] * len(out.input_ids)
    for i, m in enumerate(turns):
        if m["role"] == "assistant":
            begin = len(peer.apply_chat_template(turns[:i], tokenize=False, add_generation_prompt=True))
            end = len(peer.apply_chat_template(turns[:i + 1], tokenize=False))
            a, b = out.char_to_token(begin), out.char_to_token(end - 1)
            if a is None or b is None:  # a character that the tokenizer drops: transformers has no place for it
                return out.input_ids, None
            mask[a:b + 1] = [1] * (b + 1 - a)
    return out.input_ids, mask


def main():
    golden = sys.argv.pop(sys.argv.index("--golden") + 1) if "--golden" in sys.argv else None
    args = [a for a in sys.argv[1:] if a != "--golden"]
    n, seed = int(args[0]) if args else 300, int(args[1]) if len(args) > 1 else 1
    templates = {}
    for folder in "lib/text/chat", "tests/oracle/text":
        for name in sorted(x for x in os.listdir(f"{ROOT}/{folder}") if x.endswith(".jinja")):
            with open(f"{ROOT}/{folder}/{name}") as f:
                templates["chat:" + name[:-6] if folder[0] == "l" else f"{folder}/{name}"] = f.read()
    bad = total = 0
    samples = []
    for kind, tok, bos, eos in tokenizers():
        with tempfile.TemporaryDirectory() as folder:
            with open(f"{folder}/tokenizer.json", "w") as f:
                json.dump(tok, f)
            for name, template in templates.items():
                rng = random.Random(f"{seed} {kind} {name}")
                with open(f"{folder}/tokenizer_config.json", "w") as f:
                    json.dump({"bos_token": bos, "eos_token": {"content": eos}, "pad_token": eos, "chat_template": template}, f)
                peer = PreTrainedTokenizerFast(tokenizer_file=f"{folder}/tokenizer.json", bos_token=bos, eos_token=eos, chat_template=template)
                talks = [conversation(rng, "canary" not in name) for _ in range(n)]
                lines = "".join(json.dumps(t) + "\n" for t in talks)
                for generate in False, True:
                    prompt = name if name.startswith("chat:") else "chat"
                    out = subprocess.run([PACK, "tokenize", "--json", "--tokenizer", folder, "--prompt", prompt, *["--generate"] * generate],
                                         input=lines.encode(), capture_output=True)
                    if out.returncode:
                        sys.exit(f"{kind}, {name}: {out.stderr.decode()}")
                    ours = [json.loads(x) for x in out.stdout.decode().split("\n") if x]
                    differ = 0
                    for talk, have in zip(talks, ours):
                        if "generation %}" in template:
                            want = peer.apply_chat_template(talk, return_assistant_tokens_mask=True, return_dict=True, add_generation_prompt=generate)
                            ids, mask = want["input_ids"], want["assistant_masks"]
                        elif generate:
                            ids = peer.apply_chat_template(talk, add_generation_prompt=True, return_dict=True)["input_ids"]
                            mask = have["loss_mask"]
                        else:
                            ids, mask = expected_of_turns(peer, talk)
                        total += 1
                        if have["ids"] != ids or have["loss_mask"] != (have["loss_mask"] if mask is None else mask):
                            differ += 1
                            if differ < 3:
                                text = peer.apply_chat_template(talk, tokenize=False, add_generation_prompt=generate)
                                print("   ", ascii(text), *(["ids", ids, have["ids"]] if have["ids"] != ids else ["mask", mask, have["loss_mask"]]), sep="\n      ")
                        elif not generate and talk is talks[0] and kind in ("bytelevel_llama3", "spbpe_llama2"):
                            samples.append({"kind": kind, "prompt": name, "messages": talk, "ids": ids, "mask": mask})
                    bad += differ
                    print(f"{kind}, {name}{', to generate' * generate}: {n} conversations, {differ} differences", flush=True)
    if golden:
        with open(golden, "w") as f:
            json.dump({"tokens": TOKENS, "samples": samples}, f, separators=(",", ":"))
    print(f"{total} conversations, {bad} differences")
    return bad > 0


sys.exit(main())
