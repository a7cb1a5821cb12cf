#!/bin/bash
# s2s-pack tokenize on one thread, reading and writing included, beside the tokenizers library on one thread where PYTHON has it.
set -eu
export RAYON_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false
exec "${PYTHON:-python3}" tests/bench/tokenize_peer.py
