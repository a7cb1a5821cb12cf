"""The program under test, and the folder of these scripts."""
import os

here = os.path.dirname(os.path.abspath(__file__))
program = os.path.join(os.environ.get("S2S_BIN", os.path.join(here, "../../../bin")), "s2s-ckpt")
