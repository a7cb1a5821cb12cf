#!/usr/bin/env python3
"""Writes lib/text/unicode_tables.c: where Hugging Face tokenizers know another Unicode than PCRE2 and utf8proc.

Needs tokenizers, libpcre2-8 and libutf8proc. The library's patterns (Oniguruma) know newer characters than an older PCRE2, its Digits
(Rust) still newer ones, its NFC is years older than utf8proc's. The first two are asked for every code point, NFC for every combining
character (does it change places with one of another class?) and every decomposition of utf8proc's. Run it again when a peer is updated.
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


def in_rust_digits():
    split = pre_tokenizers.Digits(individual_digits=True)
    for i in range(0, len(POINTS), 100000):
        for piece, _ in split.pre_tokenize_str("".join("a" + chr(c) for c in POINTS[i:i + 100000])):
            if len(piece) == 1 and piece != "a":
                yield ord(piece)


def unknown_to_nfc():
    lib, nfc = ctypes.CDLL("libutf8proc.so.2"), normalizers.NFC().normalize_str
    lib.utf8proc_get_property.restype = ctypes.POINTER(ctypes.c_int16)
    for c in POINTS:
        ccc = lib.utf8proc_get_property(c)[1]
        text = "a\u0345" + chr(c) if ccc < 240 else "a" + chr(c) + "\u0334"
        if ccc and c not in (0x345, 0x334) and nfc(text) == text:
            yield c
        whole = (ctypes.c_int32 * 16)()
        n = lib.utf8proc_decompose_char(c, whole, 16, 1 << 4, ctypes.byref(ctypes.c_int()))
        parts = "".join(map(chr, whole[:n]))
        if n > 1 and nfc(chr(c)) != nfc(parts):
            yield c
            yield ord(parts[-1])


def ranges(points):
    out = []
    for c, tag in sorted(points):
        if out and out[-1][1] == c - 1 and out[-1][2] == tag:
            out[-1][1] = c
        else:
            out.append([c, c, tag])
    return out


new = unassigned_in_pcre2()
onig = dict(in_oniguruma())
lines = ["/* Made by tests/oracle/tokenizer/make_unicode_tables.py. */", '#include "lib/text/text_internal.h"', "",
         "const struct text_range text_new_characters[] = {"]
table = ranges([(c, t) for c, t in onig.items() if c in new])
lines += ['    {0x%x, 0x%x, "%s"},' % tuple(r) for r in table]
lines += ["};", f"const size_t text_n_new_characters = {len(table)};", "", "const struct text_range text_new_digits[] = {"]
table = ranges([(c, "N") for c in in_rust_digits() if onig.get(c, "")[:1] != "N"])
lines += ['    {0x%x, 0x%x, "%s"},' % tuple(r) for r in table]
lines += ["};", f"const size_t text_n_new_digits = {len(table)};", "", "const struct text_range text_not_in_nfc[] = {"]
table = ranges([(c, "") for c in set(unknown_to_nfc())])
lines += ['    {0x%x, 0x%x, "%s"},' % tuple(r) for r in table]
lines += ["};", f"const size_t text_n_not_in_nfc = {len(table)};"]
with open(os.path.join(ROOT, "lib/text/unicode_tables.c"), "w") as f:
    f.write("\n".join(lines) + "\n")
