#!/usr/bin/env python3
"""Writes lib/text/unicode_tables.c: classes of characters as Hugging Face tokenizers know them, and where it knows another Unicode than
PCRE2 and utf8proc.

Needs tokenizers, libpcre2-8 and libutf8proc. The library asks several tables of its own: its patterns (Oniguruma) know newer characters than an
older PCRE2, its Digits, \\w and lower case (Rust) still newer ones, its punctuation and normal forms are years older than utf8proc's. Each is asked
for every code point; normal forms for every combining character (does it change places with one of another class?) and every
decomposition of utf8proc's. Run it again when a peer is updated.
"""
import ctypes, os
from tokenizers import Regex, normalizers, pre_tokenizers

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cf".split()


def unassigned_in_pcre2():
    lib = ctypes.CDLL("libpcre2-8.so.0")
    for name in "pcre2_compile_8", "pcre2_match_data_create_8", "pcre2_get_ovector_pointer_8":
        getattr(lib, name).restype = ctypes.c_void_p
    lib.pcre2_get_ovector_pointer_8.restype = ctypes.POINTER(ctypes.c_size_t)
    code, offset, text = ctypes.c_int(), ctypes.c_size_t(), "".join(map(chr, POINTS)).encode()
    pattern = lib.pcre2_compile_8(b"\\p{Cn}+", ctypes.c_size_t(7), ctypes.c_uint32(0x80000 | 0x20000), ctypes.byref(code), ctypes.byref(offset), None)
    data, at, found = ctypes.c_void_p(lib.pcre2_match_data_create_8(1, None)), 0, set()
    while lib.pcre2_match_8(ctypes.c_void_p(pattern), text, ctypes.c_size_t(len(text)), ctypes.c_size_t(at), ctypes.c_uint32(0x40000000), data, None) > 0:
        begin, at = lib.pcre2_get_ovector_pointer_8(data)[:2]
        found |= set(map(ord, text[begin:at].decode()))
    return found


def in_oniguruma():
    text = "".join(map(chr, POINTS))
    for category in CATEGORIES:
        split = pre_tokenizers.Split(Regex("\\p{%s}" % category), "removed", invert=True)
        for piece, _ in split.pre_tokenize_str(text):
            for c in piece:
                yield ord(c), category


def cut_out_by(split):
    for i in range(0, len(POINTS), 100000):
        for piece, _ in split.pre_tokenize_str("".join("a" + chr(c) for c in POINTS[i:i + 100000])):
            if len(piece) == 1 and piece != "a":
                yield ord(piece)
        if split.pre_tokenize_str("aa")[0][0] == "a":
            yield ord("a")


def in_words():
    split = pre_tokenizers.Whitespace()
    for c in POINTS:
        if split.pre_tokenize_str("a" + chr(c))[0][0] != "a":
            yield c


def taken_away_by(normalizer):
    for c in POINTS:
        if normalizer.normalize_str("a" + chr(c)) == "a":
            yield c


def bert(**parts):
    return normalizers.BertNormalizer(**{"clean_text": False, "handle_chinese_chars": False, "strip_accents": False, "lowercase": False, **parts})


def lower_case():
    """Where the library's lower case is not utf8proc's: the character, and what it becomes."""
    lib, lower = ctypes.CDLL("libutf8proc.so.2"), normalizers.Lowercase().normalize_str
    for c in POINTS:
        if lower(chr(c)) != chr(lib.utf8proc_tolower(c)):
            yield c, lower(chr(c))


def unknown_to_forms():
    """Characters that the library's normal forms leave whole and in their place."""
    lib = ctypes.CDLL("libutf8proc.so.2")
    forms = [(n().normalize_str, options) for n, options in
             ((normalizers.NFC, 1 << 3), (normalizers.NFD, 1 << 4), (normalizers.NFKC, 1 << 3 | 1 << 2), (normalizers.NFKD, 1 << 4 | 1 << 2))]
    nfc = forms[0][0]
    lib.utf8proc_get_property.restype = ctypes.POINTER(ctypes.c_int16)
    for c in POINTS:
        ccc = lib.utf8proc_get_property(c)[1]
        text = "a\u0345" + chr(c) if ccc < 240 else "a" + chr(c) + "\u0334"
        if ccc and c not in (0x345, 0x334) and nfc(text) == text:
            yield c
        whole = (ctypes.c_int32 * 32)()
        n = lib.utf8proc_decompose_char(c, whole, 32, 1 << 4, ctypes.byref(ctypes.c_int()))
        parts = "".join(map(chr, whole[:n]))
        if n > 1 and nfc(chr(c)) != nfc(parts):
            yield c
            yield ord(parts[-1])
        for form, options in forms:
            into = ctypes.c_void_p()
            text = chr(c).encode()
            n = lib.utf8proc_map(text, len(text), ctypes.byref(into), options | 1 << 1)
            ours = ctypes.string_at(into, n).decode()
            if form(chr(c)) != ours:
                if form(chr(c)) != chr(c):
                    raise SystemExit(f"U+{c:04X}: the library makes {form(chr(c))!a} of it, utf8proc {ours!a}")
                yield c


def ranges(points):
    out = []
    for c, tag in sorted(points):
        if out and out[-1][1] == c - 1 and out[-1][2] == tag:
            out[-1][1] = c
        else:
            out.append([c, c, tag])
    return out


def table(name, what, item):
    found = ranges(what)
    return ["", f"const struct {item} {name}[] = {{", *(("    {0x%x, 0x%x, \"%s\"}," if found[0][2] else "    {0x%x, 0x%x},") % tuple(r[:3 if r[2] else 2]) for r in found),
            "};", f"const size_t text_n_{name[5:]} = {len(found)};"]


new = unassigned_in_pcre2()
onig = dict(in_oniguruma())
lines = ["/* Classes of characters. Made by tests/oracle/tokenizer/make_unicode_tables.py. */", '#include "lib/text/text_internal.h"']
lines += table("text_new_characters", [(c, t) for c, t in onig.items() if c in new], "text_range")
plain = {"words": in_words(), "numbers": cut_out_by(pre_tokenizers.Digits(individual_digits=True)), "punctuation": cut_out_by(pre_tokenizers.Punctuation()),
         "marks": taken_away_by(normalizers.StripAccents()), "nonspacing": taken_away_by(bert(strip_accents=True)),
         "others": taken_away_by(bert(clean_text=True)), "not_in_forms": unknown_to_forms()}
for name, points in plain.items():
    lines += table("text_" + name, [(c, "") for c in set(points)], "text_span32")
lower = sorted(lower_case())
lines += ["", "const struct text_lower text_lower_cases[] = {"]
lines += ['    {0x%x, {%s}},' % (c, ", ".join("0x%x" % ord(x) for x in to)) for c, to in lower]
lines += ["};", f"const size_t text_n_lower_cases = {len(lower)};"]
with open(os.path.join(ROOT, "lib/text/unicode_tables.c"), "w") as f:
    f.write("\n".join(lines) + "\n")
