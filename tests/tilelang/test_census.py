"""The census: what it says of a program of our own, and that the kernels of TileLang's that are
listed as compiling (programs.json) still do, where TILELANG_SOURCE is a checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
LISTED = HERE / "programs.json"

PROGRAM = """
import torch
import tilelang
import tilelang.language as T

def scale(n, word):
    @T.prim_func
    def main(A: T.Tensor((n,), "float32"), B: T.Tensor((n,), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(n):
                B[i] = A[i] * 2
    return main

def wrong(n):
    @T.prim_func
    def main(A: T.Tensor((n,), "float32")):
        with T.Kernel(1, threads=32):
            T.no_such_word(A)
    return main

def test_scale():
    kernel = tilelang.compile(scale(100, 1), out_idx=[1])
    a = torch.randn(100, device="cuda")
    torch.testing.assert_close(kernel(a), a * 2)
    tilelang.compile(wrong(100))

@tilelang.jit
def nobody_asks(A):
    A: T.Tensor((8,), "float32")
    with T.Kernel(1, threads=32):
        T.fill(A, 0)

def nobody_makes(n):
    @T.prim_func
    def main(A: T.Tensor((n,), "float32")):
        with T.Kernel(1, threads=32):
            T.fill(A, 0)
    return main
"""


def run(source: Path, files: list[Path], scratch: Path) -> list[dict[str, str]]:
    out = scratch / "census.json"
    command = [sys.executable, str(HERE / "census.py"), "--scratch", str(scratch / "parts")]
    done = subprocess.run(
        [*command, "--out", str(out), *map(str, files)],
        env=os.environ | {"TILELANG_SOURCE": str(source)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: list[dict[str, str]] = json.loads(out.read_text())
    return found


@pytest.mark.torch
def test_kernels_that_compile_are_told_from_others(tmp_path: Path) -> None:
    file = tmp_path / "examples" / "test_own.py"
    file.parent.mkdir()
    file.write_text(PROGRAM)
    found = {int(e["line"]): (e["status"], e["said"]) for e in run(tmp_path, [file], tmp_path)}
    first, second, third, fourth = (found[line] for line in sorted(found))
    assert first == ("compiles", "")
    assert second[0] == "refused" and "no attribute 'no_such_word'" in second[1]
    assert third == ("compiles", "")
    assert fourth == ("not reached", "nothing of the file asks for it")


@pytest.mark.skipif("TILELANG_SOURCE" not in os.environ, reason="TILELANG_SOURCE is not set")
def test_what_compiled_still_does(tmp_path: Path) -> None:
    source = Path(os.environ["TILELANG_SOURCE"]).resolve()
    listed = json.loads(LISTED.read_text())
    found = run(source, [source / path for path in sorted(listed)], tmp_path)
    wanted = {(path, kernel) for path, kernels in listed.items() for kernel in kernels}
    lost = [e for e in found if (e["path"], e["kernel"]) in wanted and e["status"] != "compiles"]
    assert lost == []
    assert wanted <= {(e["path"], e["kernel"]) for e in found}
