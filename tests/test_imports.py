"""What `import tilec` loads: it decides how soon a program with cached kernels starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_importing_tilec_loads_neither_torch_nor_a_driver_nor_llvm() -> None:
    script = "import sys, tilec, tilec.language; print(*sorted(sys.modules))"
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    loaded = {m.split(".")[0] for m in done.stdout.split()}
    assert loaded.isdisjoint({"torch", "cuda", "hip", "llvmlite"})
