"""`python -m tilec.tilelang program.py …`: run a program of TileLang's with tilec."""

import runpy
import sys
from pathlib import Path

from tilec.tilelang.hook import install

if __name__ == "__main__":
    usage = "usage: python -m tilec.tilelang program.py [argument …]"
    if sys.argv[1:] in (["-h"], ["--help"]):
        print(usage)
        sys.exit()
    if len(sys.argv) < 2 or not Path(sys.argv[1]).is_file():
        missing = [f"there is no file {name!r}" for name in sys.argv[1:2]]
        sys.exit("\n".join([*missing, usage]))
    install()
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)  # as `python program.py` has it
    runpy.run_path(sys.argv[0], run_name="__main__")
