"""One op that reads a fragment in several layouts: by rows beside columns, transposed, as both
operands of a product."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilec
import tilec.language as T
from tests.simulated import run_compiled

pytestmark = [pytest.mark.usefixtures("unassembled"), pytest.mark.turns]

TARGETS = ["cpu", "cuda:sm_80", "cuda:sm_90a", "hip:gfx942"]


@tilec.kernel
def outer(A: T.Tensor((24,), "int32"), C: T.Tensor((24, 24), "int32"), threads: T.constexpr):
    with T.Kernel(1, threads=threads) as _:
        f = T.alloc_fragment((24,), "int32")
        T.copy(A, f)
        for i, j in T.Parallel(24, 24):
            C[i, j] = f[i] * 100 + f[j]


@tilec.kernel
def transposed(
    A: T.Tensor((16, 16), "int32"), C: T.Tensor((16, 16), "int32"), threads: T.constexpr
):
    with T.Kernel(1, threads=threads) as _:
        f = T.alloc_fragment((16, 16), "int32")
        g = T.alloc_fragment((16, 16), "int32")
        T.copy(A, f)
        for i, j in T.Parallel(16, 16):
            g[i, j] = f[i, j] * 100 + f[j, i]
        T.copy(g, C)


@tilec.kernel
def upper_half(
    A: T.Tensor((16, 16), "int32"), C: T.Tensor((16, 16), "int32"), threads: T.constexpr
):
    with T.Kernel(1, threads=threads) as _:
        f = T.alloc_fragment((16, 16), "int32")
        T.copy(A, f)
        for i, j in T.Parallel(16, 16):
            if i < j:
                f[i, j] = f[i, j] * 100 + f[j, i]
        T.copy(f, C)


@tilec.kernel
def sums_apart(
    A: T.Tensor((16, 16), "int32"), C: T.Tensor((16, 16), "int32"), threads: T.constexpr
):
    with T.Kernel(1, threads=threads) as _:
        f = T.alloc_fragment((16, 16), "int32")
        g = T.alloc_fragment((16,), "int32")
        T.copy(A, f)
        T.reduce_sum(f, g, dim=1)
        for _step in range(3):
            for i, j in T.Parallel(16, 16):
                f[i, j] += g[i] - g[j]
        T.copy(f, C)


@tilec.kernel
def three_ways(A: T.Tensor((8,), "int32"), C: T.Tensor((8, 8, 8), "int32"), threads: T.constexpr):
    with T.Kernel(1, threads=threads) as _:
        f = T.alloc_fragment((8,), "int32")
        T.copy(A, f)
        for i, j, k in T.Parallel(8, 8, 8):
            C[i, j, k] = f[i] * 10000 + f[j] * 100 + f[k]


WANTED: list[tuple[Any, tuple[int, ...], Callable[[np.ndarray], np.ndarray]]] = [
    (outer, (24,), lambda a: a[:, None] * 100 + a),
    (transposed, (16, 16), lambda a: a * 100 + a.T),
    (upper_half, (16, 16), lambda a: a + np.triu(a * 99 + a.T, 1)),
    (sums_apart, (16, 16), lambda a: a + 3 * (a.sum(1)[:, None] - a.sum(1))),
    (three_ways, (8,), lambda a: a[:, None, None] * 10000 + a[:, None] * 100 + a),
]


@pytest.mark.parametrize("threads", [32, 128, 512])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("kernel", "shape", "wanted"), WANTED, ids=lambda x: getattr(x, "name", "")
)
def test_loops(kernel, shape, wanted, target, threads, rng) -> None:
    a = rng.integers(-40, 40, shape).astype(np.int32)
    want = wanted(a)
    c = np.full(want.shape, -7, np.int32)
    run_compiled(kernel, target, a, c, threads=threads)
    np.testing.assert_array_equal(c, want)


def test_each_access_has_a_fragment_of_its_layout() -> None:
    a, c = np.zeros(8, np.int32), np.zeros((8, 8, 8), np.int32)
    compiled = three_ways.compile(a, c, threads=128, target="cuda:sm_80")
    before, loop = compiled.stages["infer_layouts"].split("parallel (")
    read = set(re.findall(r"load %(f\w*)", loop))
    held = re.findall(r"%(f\w*) = alloc fragment<8xi32, layout=(.*)>", before)
    assert len(read) == 3
    assert len({layout for name, layout in held if name in read}) == 3


@tilec.kernel
def squared(
    A: T.Tensor((64, 64), "float16"),
    C: T.Tensor((64, 64), "float32"),
    transpose_a: T.constexpr,
    transpose_b: T.constexpr,
):
    with T.Kernel(1, threads=128) as _:
        f = T.alloc_fragment((64, 64), "float16")
        c = T.alloc_fragment((64, 64), "float32")
        T.copy(A, f)
        T.gemm(f, f, c, transpose_A=transpose_a, transpose_B=transpose_b, clear_accum=True)
        T.copy(c, C)


@pytest.mark.covering(1)
@pytest.mark.parametrize("transposed", [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("target", TARGETS)
def test_a_fragment_as_both_operands(target, transposed, rng) -> None:
    a = rng.integers(-4, 4, (64, 64)).astype(np.float16)
    c = np.full((64, 64), np.nan, np.float32)
    run_compiled(squared, target, a, c, transpose_a=transposed[0], transpose_b=transposed[1])
    wide = a.astype(np.float32)
    left, right = (wide.T if t else wide for t in transposed)
    np.testing.assert_array_equal(c, left @ right)
    if target != "cpu":
        compiled = squared.compile(a, c, transpose_a=0, transpose_b=0, target=target)
        ((a_name, b_name),) = re.findall(
            r"gemm\S* %(\w+)\S*, .*?%(f\w+)", compiled.stages["infer_layouts"]
        )
        assert a_name != b_name
