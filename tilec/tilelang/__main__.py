"""`python -m tilec.tilelang program.py …`: run a program of TileLang's with tilec."""

import runpy
import sys
from pathlib import Path

from tilec.tilelang.hook import install

if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: python -m tilec.tilelang program.py [argument …]")
    install()
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)  # as `python program.py` has it
    runpy.run_path(sys.argv[0], run_name="__main__")
