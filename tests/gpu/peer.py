#!/usr/bin/env python3
"""Times of torch's kernels beside gpu_bench's, under the same names: name, milliseconds, rate."""
import time
import torch
import torch.nn.functional as F

dev = "cuda"
t, d, inner, vocab = 8192, 2048, 8192, 128256


def measure(name, call, amount, unit):
    try:
        for _ in range(3):
            call()
        torch.cuda.synchronize()
        begin, n = time.perf_counter(), 0
        while time.perf_counter() - begin < 0.15 or n < 3:
            call()
            n += 1
            if n % 8 == 0:
                torch.cuda.synchronize()
        torch.cuda.synchronize()
        best = 1e9
        for _ in range(3):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(max(3, n // 8)):
                call()
            torch.cuda.synchronize()
            best = min(best, (time.perf_counter() - begin) / max(3, n // 8))
        print(f"{name:<40} {best * 1e3:9.3f} ms {amount / best:9.1f} {unit}", flush=True)
    except Exception as e:
        print(f"{name:<40} failed: {str(e).splitlines()[0][:90]}", flush=True)


def randn(*shape, dtype=torch.float32, grad=False):
    return torch.randn(*shape, device=dev, dtype=dtype).requires_grad_(grad)


def optimizer():
    n = 1 << 28
    p = randn(n, grad=True)
    p.grad = randn(n)
    opt = torch.optim.AdamW([p], lr=1e-4, fused=True)
    measure("adamw 268M f32", opt.step, 28e-9 * n, "GB/s")
    a, b = randn(n), randn(n)
    measure("sum of squares 268M f32", lambda: torch.linalg.vector_norm(a), 4e-9 * n, "GB/s")
    measure("copy 1 GiB f32", lambda: b.copy_(a), 8e-9 * n, "GB/s")


def products(dtype, name):
    for tf32 in ((False,) if dtype == torch.bfloat16 else (False, True)):
        torch.backends.cuda.matmul.allow_tf32 = tf32
        kind = "tf32" if tf32 else name
        for label, m, n, k in (("gemm 8192^3", 8192, 8192, 8192), ("gemm forward 8192x8192x2048", 8192, 8192, 2048),
                               ("gemm dx 8192x2048x8192", 8192, 2048, 8192), ("gemm dw 8192x2048x8192", 8192, 2048, 8192)):
            a, b = randn(m, k, dtype=dtype), randn(n, k, dtype=dtype)
            measure(f"{label} {kind}", lambda: a @ b.T, 2e-12 * m * n * k, "TFLOP/s")
    torch.backends.cuda.matmul.allow_tf32 = False


def pointwise(dtype, name):
    size = torch.finfo(dtype).bits // 8
    x, r, g = randn(t, d, dtype=dtype), randn(t, d, dtype=dtype), randn(d, dtype=dtype)

    def norm(x, r, g):
        h = x + r
        return h, F.rms_norm(h, (d,), g, 1e-5)
    measure(f"rmsnorm + residual {name}", lambda: norm(x, r, g), 4e-9 * size * t * d, "GB/s")
    h = randn(t, d, dtype=dtype, grad=True)
    gain = randn(d, dtype=dtype, grad=True)
    y, dy = F.rms_norm(h, (d,), gain, 1e-5), randn(t, d, dtype=dtype)
    measure(f"rmsnorm backward {name}", lambda: torch.autograd.grad(y, (h, gain), dy, retain_graph=True),
            4e-9 * size * t * d, "GB/s")
    a, b = randn(t, inner, dtype=dtype), randn(t, inner, dtype=dtype)
    measure(f"swiglu {name}", lambda: F.silu(a) * b, 3e-9 * size * t * inner, "GB/s")
    measure(f"sum over rows {name}", lambda: a.sum(0), 1e-9 * size * t * inner, "GB/s")
    logits = randn(2048, vocab, dtype=dtype, grad=True)
    labels = torch.arange(2048, device=dev) * 7919 % vocab
    loss = F.cross_entropy(logits, labels)
    measure(f"cross entropy 2048 x 128256 {name}", lambda: F.cross_entropy(logits.detach(), labels),
            1e-9 * size * 2048 * vocab, "GB/s")
    measure(f"cross entropy gradient {name}", lambda: torch.autograd.grad(loss, logits, retain_graph=True),
            2e-9 * size * 2048 * vocab, "GB/s")


def experts(dtype, name):
    product = getattr(F, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)
    if product is None or dtype != torch.bfloat16:
        return
    for rows, n, inp, out in ((65536, 128, 2048, 768), (16384, 8, 2048, 8192)):
        share = torch.tensor([n - 1 + 2 * (e * 7 % n) for e in range(n)], dtype=torch.float64)
        ends = (share.cumsum(0) / share.sum() * rows).round().to(torch.int32).to(dev)
        x, w, dy = randn(rows, inp, dtype=dtype), randn(n, out, inp, dtype=dtype), randn(rows, out, dtype=dtype)
        label, flop = f"experts {n}, {rows}x{out}x{inp} {name}", 2e-12 * rows * inp * out
        measure(label, lambda: product(x, w.transpose(1, 2), offs=ends), flop, "TFLOP/s")
        measure("dx of " + label, lambda: product(dy, w, offs=ends), flop, "TFLOP/s")
        measure("dw of " + label, lambda: product(dy.T, x, offs=ends), flop, "TFLOP/s")


def attention(dtype, name):
    from torch.nn.attention import SDPBackend, sdpa_kernel
    backends = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
    if dtype == torch.float32:
        backends = {"efficient": SDPBackend.EFFICIENT_ATTENTION}
    for label, heads, kv, dim in (("attention 1 x 8192, 32/8 x 64", 32, 8, 64), ("attention 1 x 8192, 16/16 x 128", 16, 16, 128)):
        flop = 4e-12 * .5 * t * t * heads * dim
        for kind, backend in backends.items():
            q = randn(1, heads, t, dim, dtype=dtype, grad=True)
            k, v = (randn(1, kv, t, dim, dtype=dtype, grad=True) for _ in range(2))

            def forward():
                with sdpa_kernel(backend):
                    if kind == "efficient" and kv != heads:
                        return F.scaled_dot_product_attention(q, k.repeat_interleave(heads // kv, 1), v.repeat_interleave(heads // kv, 1), is_causal=True)
                    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=kv != heads)
            measure(f"{label} {name} {kind}", lambda: forward(), flop, "TFLOP/s")
            try:
                o = forward()
                do = torch.randn_like(o)
                measure(f"{label} backward {name} {kind}", lambda: torch.autograd.grad(o, (q, k, v), do, retain_graph=True),
                        2.5 * flop, "TFLOP/s")
            except Exception as e:
                print(f"{label} backward {name} {kind}: failed: {str(e).splitlines()[0][:80]}", flush=True)
    if dtype == torch.float32:
        return
    try:
        from torch.nn.attention.varlen import varlen_attn
        heads, dim, length = 32, 64, 600
        ends = list(range(0, t, length)) + [t]
        cu = torch.tensor(ends, dtype=torch.int32, device=dev)
        q, k, v = (randn(t, heads, dim, dtype=dtype, grad=True) for _ in range(3))
        pairs = sum(.5 * (b - a) ** 2 for a, b in zip(ends, ends[1:]))

        def forward():
            try:
                return varlen_attn(q, k, v, cu, cu, length, length, window_size=(-1, 0))
            except TypeError:
                return varlen_attn(q, k, v, cu, cu, length, length, is_causal=True)
        flop = 4e-12 * pairs * heads * dim
        measure(f"attention 14 x 600, 32/32 x 64 {name} varlen", lambda: forward(), flop, "TFLOP/s")
        o = forward()
        do = torch.randn_like(o)
        measure(f"attention 14 x 600, 32/32 x 64 backward {name} varlen",
                lambda: torch.autograd.grad(o, (q, k, v), do, retain_graph=True), 2.5 * flop, "TFLOP/s")
    except Exception as e:
        print(f"varlen_attn: {str(e).splitlines()[0][:100]}", flush=True)


print(torch.__version__, torch.cuda.get_device_name(0), flush=True)
optimizer()
torch.cuda.empty_cache()
for dtype, name in ((torch.bfloat16, "bf16"), (torch.float32, "f32")):
    products(dtype, name)
    pointwise(dtype, name)
    experts(dtype, name)
    attention(dtype, name)
    torch.cuda.empty_cache()
