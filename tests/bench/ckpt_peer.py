"""The usual ways from a torch_dist checkpoint to safetensors in Python: ckpt_peer.py WAY IN OUT.

load   torch.distributed.checkpoint loads all of it, safetensors saves it
save   dcp_to_torch_save, torch.load, save_file: what format_utils offers
"""
import os
import sys

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

way, source, out = sys.argv[1:]
os.mkdir(out)
if way == "load":
    reader = dcp.FileSystemReader(source)
    meta = reader.read_metadata().state_dict_metadata
    state = {name: torch.empty(m.size, dtype=m.properties.dtype) for name, m in meta.items() if hasattr(m, "size")}
    dcp.load(state, storage_reader=reader, no_dist=True)
else:
    dcp_to_torch_save(source, out + "/all.pt")
    state = torch.load(out + "/all.pt", weights_only=True)
save_file(state, out + "/model.safetensors")
