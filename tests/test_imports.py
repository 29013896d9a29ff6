"""What `import tilec` loads: it decides how soon a program with cached kernels starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def loaded_by(names: str) -> set[str]:
    """The modules that a new process holds after `import names`."""
    script = f"import sys, {names}; print(*sys.modules)"
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_importing_tilec_loads_neither_torch_nor_a_driver_nor_llvm() -> None:
    loaded = {m.split(".")[0] for m in loaded_by("tilec, tilec.language")}
    assert "tilec" in loaded and loaded.isdisjoint({"torch", "cuda", "hip", "llvmlite"})


def test_what_only_compiling_needs_is_loaded_by_the_first_compilation() -> None:
    loaded = loaded_by("tilec")
    late = ("numpy", "tilec.ir.ops", "tilec.ir.core", "tilec.ir.plan", "tilec.ir.layout")
    late += ("tilec.frontend", "tilec.passes", "tilec.codegen", "tilec.tune", "tilec.language")
    late += ("tilec.sim", "tilec.jit.simulate")
    assert "tilec.kernel" in loaded and loaded.isdisjoint(late)
