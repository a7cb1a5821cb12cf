"""XXH3 of more than 240 bytes (xxHash 0.8, seed 0, default secret), from its specification, for readers without a library."""
import numpy as np

SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e")
M64 = (1 << 64) - 1
P32 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
P64 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
SWAP = np.arange(8) ^ 1


def _words(data, at=0, n=8):
    return np.frombuffer(data, "<u8", n, at)


def _add(acc, lanes, keys):
    mixed = lanes ^ keys
    products = (mixed & np.uint64(0xFFFFFFFF)) * (mixed >> np.uint64(32))
    return acc + lanes[..., SWAP].reshape(-1, 8).sum(0, dtype="u8") + products.reshape(-1, 8).sum(0, dtype="u8")


def _merge(acc, at, start):
    key, total = [int(k) for k in _words(SECRET, at)], start & M64
    for i in range(4):
        product = (int(acc[2 * i]) ^ key[2 * i]) * (int(acc[2 * i + 1]) ^ key[2 * i + 1])
        total += (product & M64) ^ (product >> 64)
    total &= M64
    total = ((total ^ (total >> 37)) * 0x165667919E3779F9) & M64
    return total ^ (total >> 32)


def _accumulate(data):
    acc = np.array([P32[2], P64[0], P64[1], P64[2], P64[3], P32[1], P64[4], P32[0]], "u8")
    keys = np.stack([_words(SECRET, 8 * i) for i in range(16)])
    n_blocks = (len(data) - 1) // 1024
    for b in range(n_blocks):
        acc = _add(acc, _words(data, 1024 * b, 128).reshape(16, 8), keys)
        acc = ((acc ^ (acc >> np.uint64(47))) ^ _words(SECRET, 128)) * np.uint64(P32[0])
    n = (len(data) - 1 - 1024 * n_blocks) // 64
    if n:
        acc = _add(acc, _words(data, 1024 * n_blocks, 8 * n).reshape(n, 8), keys[:n])
    return _add(acc, _words(data, len(data) - 64).reshape(1, 8), _words(SECRET, 121).reshape(1, 8))


def xxh3_64(data):
    """An integer; None for 240 bytes and fewer."""
    return _merge(_accumulate(data), 11, len(data) * P64[0]) if len(data) > 240 else None


def xxh3_128(data):
    """32 hex digits; None for 240 bytes and fewer."""
    if len(data) <= 240:
        return None
    acc = _accumulate(data)
    return "%016x%016x" % (_merge(acc, 117, ~(len(data) * P64[1])), _merge(acc, 11, len(data) * P64[0]))
