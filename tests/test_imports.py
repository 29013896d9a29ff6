"""What `import tilec` loads: it decides how soon a program with cached kernels starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
IMPORTED = "tilec, tilec.language"


def loaded_by(names: str) -> set[str]:
    """The modules that a new process holds after `import names`."""
    script = f"import sys, {names}; print(*sys.modules)"
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_importing_tilec_loads_neither_torch_nor_a_driver_nor_llvm() -> None:
    loaded = {m.split(".")[0] for m in loaded_by(IMPORTED)}
    assert "tilec" in loaded and loaded.isdisjoint({"torch", "cuda", "hip", "llvmlite"})


def test_what_only_compiling_needs_is_loaded_by_the_first_compilation() -> None:
    loaded = loaded_by("tilec")
    late = ("numpy", "tilec.ir.ops", "tilec.ir.core", "tilec.ir.layout")
    late += ("tilec.frontend", "tilec.passes", "tilec.codegen", "tilec.tune", "tilec.language")
    late += ("tilec.sim", "tilec.jit.simulate")
    assert "tilec.kernel" in loaded and loaded.isdisjoint(late)


KERNELS = """
import sys
import tilec, tilec.language as T

M, N, K = T.dynamic("M, N, K")
@tilec.kernel
def add(A: T.Tensor((M,), "float32"), B: T.Tensor((M,), "float32"), n: int, f: T.float32 = 1.0):
    with T.Kernel(T.ceildiv(M, 128), threads=128) as b:
        for i in T.Parallel(128):
            B[b * 128 + i] = A[b * 128 + i] * f + n

@tilec.kernel
def product(A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"), BM: T.constexpr=T.auto):
    C = T.empty((M, N), "float16")
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, BM), threads=128) as (bx, by):
        A_s, B_s = T.alloc_shared((BM, 64), "float16"), T.alloc_shared((64, 64), "float16")
        acc = T.alloc_fragment((BM, 64), "float32")
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(K, 64)):
            T.copy(A[by * BM, k * 64], A_s)
            T.copy(B[k * 64, bx * 64], B_s)
            T.gemm(A_s, B_s, acc)
        T.copy(acc, C[by * BM, bx * 64])
    return C

vector, matrix = tilec.spec((1000,), "float32"), tilec.spec((256, 256), "float16")
made = [
    add.compile(vector, vector, target="cuda:sm_90a"),
    product.compile(matrix, matrix, target="cuda:sm_90a"),
]
print(*sys.modules)
print([(variant.plan and variant.plan.describe(), len(variant.binary)) for variant in made])
"""


def test_kernels_from_the_disk_cache_load_nothing_of_the_compiler(tmp_path: Path) -> None:
    script = tmp_path / "kernels.py"
    script.write_text(KERNELS)
    environment = {
        **{k: v for k, v in os.environ.items() if k != "TILEC_DISABLE_CACHE"},
        "TILEC_CACHE_DIR": str(tmp_path / "cache"),
        "PYTHONPATH": str(ROOT),
    }
    said = []
    for _ in range(2):
        command = [sys.executable, str(script)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        said.append(done.stdout.splitlines())
    assert said[0][1] == said[1][1], "the same code"
    compiling, cached = (set(lines[0].split()) for lines in said)
    assert {"llvmlite", "tilec.ir.ops", "tilec.frontend.calls", "tilec.tune.plans"} <= compiling
    loaded = {m for m in cached - loaded_by(IMPORTED) if m.startswith("tilec.")}
    assert "llvmlite" not in cached and loaded == {
        "tilec.frontend", "tilec.frontend.body", "tilec.frontend.generators",
        "tilec.frontend.plain_syntax", "tilec.frontend.signature", "tilec.frontend.source",
        "tilec.ir.schedule",
    }  # fmt: skip
