"""Loops over Python's range that bring tiles and multiply by them are as good as T.Pipelined."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilec
import tilec.language as T

pytestmark = [pytest.mark.usefixtures("unassembled"), pytest.mark.turns]

M, N, K = T.dynamic("M, N, K")


def product(loop: Any = range, before: Any = None, behind: Any = None) -> Any:
    """`before` and `behind`: what else is done with a tile in an iteration."""

    @tilec.kernel
    def kernel(
        A: T.Tensor((M, K), "float16"),
        B: T.Tensor((K, N), "float16"),
        C: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
            a, b = T.alloc_shared((64, 32), "float16"), T.alloc_shared((32, 64), "float16")
            acc = T.alloc_fragment((64, 64), "float32")
            T.clear(acc)
            if before is not None:
                T.clear(a)
            for k in loop(T.ceildiv(K, 32)):
                if before is not None:
                    before(a)
                T.copy(A[by * 64, k * 32], a)
                T.copy(B[k * 32, bx * 64], b)
                T.gemm(a, b, acc)
                if behind is not None:
                    behind(a)
            T.copy(acc, C[by * 64, bx * 64])

    return kernel


def last(a: Any) -> None:
    T.print(a[0, 0])


@pytest.mark.parametrize("target", ["cuda:sm_90a", "cuda:sm_80", "hip:gfx942"])
def test_its_tiles_run_ahead(target: str, rng: np.random.Generator) -> None:
    a, b = (rng.standard_normal(s).astype(np.float16) for s in ((70, 100), (100, 66)))
    c = np.full((70, 66), np.nan, np.float32)
    kernel = product()
    report = tilec.simulate(kernel, a, b, c, target=target)
    assert report.ok, str(report)
    np.testing.assert_allclose(c, a.astype(np.float64) @ b.astype(np.float64), atol=1e-3)
    stages = kernel.compile(a, b, c, target=target).stages
    assert "for.pipelined" in stages["tile"]
    assert "ahead: a, by" in stages["plan"]


@pytest.mark.parametrize(
    "words",
    [
        {"loop": T.serial},  # whose author wants no overlap
        {"before": last},  # the tile of the iteration before
        {"behind": lambda a: T.sync_threads()},  # who orders by hand what threads do
    ],
    ids=["serial", "before", "barrier"],
)
def test_other_loops_stay(words: dict[str, Any]) -> None:
    specs = [tilec.spec(s, dtype) for s, dtype in (
        ((70, 100), "float16"), ((100, 66), "float16"), ((70, 66), "float32"),
    )]  # fmt: skip
    stages = product(**words).compile(*specs, target="cuda:sm_80").stages
    assert "for.serial" in stages["tile"] and "for.pipelined" not in stages["tile"]


def test_a_loop_without_a_product_stays() -> None:
    @tilec.kernel
    def kernel(X: T.Tensor((M, 64), "float32"), Y: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            x = T.alloc_shared((1, 64), "float32")
            total = T.alloc_fragment((64,), "float32")
            T.clear(total)
            for k in range(M):
                T.copy(X[k, 0], x)
                for j in T.Parallel(64):
                    total[j] += x[0, j]
            T.copy(total, Y)

    specs = tilec.spec((70, 64), "float32"), tilec.spec((64,), "float32")
    assert "for.pipelined" not in kernel.compile(*specs, target="cuda:sm_80").stages["tile"]
