"""make_fsdp_ranks.py OUT: the model of check_fsdp_ranks.py as three FSDP ranks save it, in OUT/fsdp_rank, and OUT/fsdp_rank.expected.tsv: what
torch puts together of it, as `s2s-ckpt ls --sha256` prints it. Needs torch."""
import hashlib
import os
import sys

import check_fsdp_ranks as check
import torch

NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.int64: "I64"}
folder = os.path.join(sys.argv[1], "fsdp_rank")
check.ranks.together(check.work, 3, [("fsdp2", folder)])
truth = torch.load(folder + ".truth.pt")
os.remove(folder + ".truth.pt")
with open(folder + ".expected.tsv", "w", encoding="utf-8") as f:
    for name, t in sorted(truth.items()):
        data = t.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        print(name, NAMES[t.dtype], list(t.shape), len(data), hashlib.sha256(data).hexdigest(), sep="\t", file=f)
