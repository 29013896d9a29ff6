"""What `right.py` says of tests of our own that are right, wrong, hang or take their process with
them, and how `sorts.py` sorts them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent

PROGRAM = """
import os
import signal
import pytest
import torch
import tilelang
import tilelang.testing
import tilelang.language as T
from tilelang import tvm

def scaled(n, by):
    @T.prim_func
    def main(A: T.Tensor((n,), "float32"), B: T.Tensor((n,), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(n):
                B[i] = A[i] * 2
    kernel = tilelang.compile(main, out_idx=[1], target="cuda")
    a = torch.randn(n, device="cuda")
    torch.testing.assert_close(kernel(a), a * by)
    assert "__global__" in kernel.get_kernel_source()

@tilelang.testing.requires_cuda
@pytest.mark.parametrize("n", [1, 100])
def test_scaled(n):
    scaled(n, 2)

def test_scaled_wrongly():
    scaled(5, 3)

def test_hangs():
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    while True:
        pass

def test_dies():
    os._exit(3)

@tilelang.testing.requires_cuda_compute_version_ge(10, 0)
def test_elsewhere():
    scaled(4, 2)

def test_source():
    @T.prim_func
    def main(A: T.Tensor((4,), "float32")):
        with T.Kernel(1, threads=32):
            A[0] = 1
    assert "atomicAdd" in tilelang.compile(main).get_kernel_source()

def test_exception():
    with pytest.raises(ValueError):
        scaled(4, 2)

def test_of_the_compiler():
    assert tvm.IRModule is not None

class TestNumbers:
    def test_shape(self):
        assert torch.zeros(3).shape == (3,)
"""

WANTED = {
    "test_scaled[1]": ("numbers", "right"),
    "test_scaled[100]": ("numbers", "right"),
    "test_scaled_wrongly": ("numbers", "wrong"),
    "test_hangs": ("outside", "failed"),
    "test_dies": ("outside", "failed"),
    "test_elsewhere": ("numbers", "skipped"),
    "test_source": ("source", "right"),
    "test_exception": ("raises", "failed"),
    "test_of_the_compiler": ("internals", "right"),
    "TestNumbers.test_shape": ("outside", "right"),
}


@pytest.mark.torch
def test_results_and_sorts(tmp_path: Path) -> None:
    path = tmp_path / "testing/python/language/test_own.py"
    path.parent.mkdir(parents=True)
    path.write_text(PROGRAM)
    out = tmp_path / "right.json"
    command = [sys.executable, str(HERE / "right.py"), "--each", "4", "--out", str(out), str(path)]
    surroundings = {**os.environ, "TILELANG_SOURCE": str(tmp_path)}
    surroundings["PYTHONPATH"] = os.pathsep.join([str(HERE.parents[1]), *sys.path])
    done = subprocess.run(command, env=surroundings, capture_output=True, text=True, check=True)
    (said,) = json.loads(out.read_text()).values()
    found = {n: (r["sort"], r["said"].partition(":")[0]) for n, r in said.items()}
    assert found == WANTED
    assert "it hangs" in said["test_hangs"]["said"]
    assert "ended with 3" in said["test_dies"]["said"]
    assert "of those that can run: 2 of 3 right, 66.7 %" in done.stdout
