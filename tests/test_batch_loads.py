"""Iterations that load elements and change registers only ask for what several of them need at
once: in the same order, whatever the number of iterations and the tensor's bounds."""

from __future__ import annotations

import re

import numpy as np
import pytest

import tilec
import tilec.language as T

pytestmark = pytest.mark.usefixtures("unassembled")

TARGETS = ("cuda:sm_80", "cuda:sm_90a", "hip:gfx942")
M, N = T.dynamic("M, N")


def parts(dtype: str, form: str = "loop", rows: int = 8, columns: int = 64, threads: int = 64):
    """Sums of every `columns`-th element of a row."""

    @tilec.kernel
    def kernel(A: T.Tensor((M, N), dtype), S: T.Tensor((M, columns), "float32")):
        with T.Kernel(T.ceildiv(M, rows), threads=threads) as by:
            part = T.alloc_fragment((rows, columns), "float32")
            tile = T.alloc_fragment((rows, columns), dtype)
            T.clear(part)
            for k in T.serial(T.ceildiv(N, columns)):
                if form == "tile":
                    T.copy(A[by * rows, k * columns], tile)
                    for i, j in T.Parallel(rows, columns):
                        part[i, j] += tile[i, j]
                else:
                    for i, j in T.Parallel(rows, columns):
                        part[i, j] += A[by * rows + i, k * columns + j]
            T.copy(part, S[by * rows, 0])

    return kernel


def batches(compiled: tilec.CompiledKernel) -> int:
    """Wide loads of a thread with no test between them, in the loop's fast form."""
    text = compiled.stages["lower_parallel"]
    number = {n: int(v) for n, v in re.findall(r"%(\w+) = const (\d+), i32", text)}
    fast = text[text.index("for.serial") :].split("orelse")[0]
    assert fast.count("if ") == 1
    loops = re.findall(r"for.unroll %\w+, %(\w+),(?:(?!for.unroll).)*?mem_load %A, ", fast, re.S)
    return sum(number[count] for count in loops)


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("form", ["loop", "tile"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_iterations_that_load_together(form: str, dtype: str, target: str):
    specs = tilec.spec((64, 4096), dtype), tilec.spec((64, 64), "float32")
    compiled = parts(dtype, form).compile(*specs, target=target)
    assert batches(compiled) == 8  # of 16 bytes
    if target.startswith("cuda"):
        ptx = compiled.stages["ptx"]
        blocks = re.split(r"\n\$L\w+:|\n\s+@?!?%?\w* ?bra", ptx)
        assert max(b.count("ld.global.nc.v4") for b in blocks) == 8


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("columns", [0, 1, 63, 64, 448, 512, 513, 1024, 1311])
def test_sums_are_in_order(columns: int, target: str):
    rng = np.random.default_rng(columns)
    a = rng.standard_normal((11, columns)).astype("float16")
    padded = np.zeros((11, -(-columns // 64) * 64), "float32")
    padded[:, :columns] = a
    want = np.zeros((11, 64), "float32")
    for k in range(padded.shape[1] // 64):
        want += padded[:, k * 64 : k * 64 + 64]
    for form in ("loop", "tile") if columns in (63, 513, 1311) else ("loop",):
        s = np.full((11, 64), np.nan, "float32")
        report = tilec.simulate(parts("float16", form), a, s, target=target)
        assert report.ok, report
        np.testing.assert_array_equal(s, want)


def test_few_iterations_and_what_changes_memory_are_left_alone():
    @tilec.kernel
    def moved(A: T.Tensor((M, N), "float16")):
        with T.Kernel(T.ceildiv(M, 8), threads=64) as by:
            for k in T.serial(T.ceildiv(N, 64) - 1):
                for i, j in T.Parallel(8, 64):
                    A[by * 8 + i, k * 64 + 64 + j] = A[by * 8 + i, k * 64 + j] + 1

    compiled = moved.compile(tilec.spec((64, 512), "float16"), target="cuda:sm_90a")
    assert compiled.stages["batch_loads"] == compiled.stages["lower_gemm"]
    a = np.zeros((9, 512), "float16")
    assert tilec.simulate(moved, a, target="cuda:sm_90a").ok
    np.testing.assert_array_equal(a, np.repeat(np.arange(8), 64)[None].repeat(9, 0))

    @tilec.kernel
    def two(A: T.Tensor((M, 128), "float16"), S: T.Tensor((M, 64), "float32")):
        with T.Kernel(T.ceildiv(M, 8), threads=64) as by:
            part = T.alloc_fragment((8, 64), "float32")
            T.clear(part)
            for k in T.serial(2):
                for i, j in T.Parallel(8, 64):
                    part[i, j] += A[by * 8 + i, k * 64 + j]
            T.copy(part, S[by * 8, 0])

    compiled = two.compile(
        tilec.spec((64, 128), "float16"), tilec.spec((64, 64), "float32"), target="cuda:sm_90a"
    )
    assert batches(compiled) == 2


@pytest.mark.gpu
@pytest.mark.parametrize("columns", [1, 448, 513, 4096, 8191])
def test_sums_on_the_gpu(columns: int):
    import torch

    a = torch.randn((300, columns), device="cuda").half()
    padded = torch.nn.functional.pad(a.float(), (0, -columns % 64))
    want = torch.zeros((300, 64), device="cuda")
    for part in padded.split(64, 1):
        want += part
    for form in ("loop", "tile"):
        s = torch.full((300, 64), float("nan"), device="cuda")
        parts("float16", form)(a, s)
        assert torch.equal(s, want)
