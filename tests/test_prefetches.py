"""Tiles that an author brings an iteration early, by copies in front of a loop and at its end, are
brought in the iterations that read them, so that tilec lets them run ahead."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from simulated import run

import tilec
import tilec.language as T

pytestmark = pytest.mark.turns

M, N, K = T.dynamic("M, N, K")
TARGETS = "cpu", "cuda:sm_80", "cuda:sm_90a", "hip:gfx942"


def product(how: str) -> Any:
    """C = A B in steps of 32, the tiles of which are brought an iteration early."""
    first, step = (2, 2) if how == "every other" else (0, 1)
    through = how == "registers"

    @tilec.kernel
    def kernel(A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"),
               C: T.Tensor((M, N), "float32")):  # fmt: skip
        with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
            a_s, b_s = T.alloc_shared((64, 32), "float16"), T.alloc_shared((32, 64), "float16")
            a_r, b_r = T.alloc_fragment((64, 32), "float16"), T.alloc_fragment((32, 64), "float16")
            a, b = (a_r, b_r) if through else (a_s, b_s)
            acc = T.alloc_fragment((64, 64), "float32")
            T.clear(acc)
            T.copy(A[by * 64, 32 if how == "another place" else 0], a)
            T.copy(B[0, bx * 64], b)
            n = T.ceildiv(K, 32)
            loop = T.serial if how == "serial" else T.Pipelined if how == "staged" else range
            for k in loop(first, n * step + first, step) if first else loop(n):
                if through:
                    T.copy(a, a_s)
                    T.copy(b, b_s)
                else:
                    T.gemm(a_s, b_s, acc)
                after = k // 2 if first else k + 1
                if how in ("condition", "another condition"):
                    if k + (1 if how == "condition" else 2) < n:
                        T.copy(A[by * 64, after * 32], a)
                        T.copy(B[after * 32, bx * 64], b)
                else:
                    T.copy(A[by * 64, after * 32], a)
                    T.copy(B[after * 32, bx * 64], b)
                if through:
                    T.gemm(a_s, b_s, acc)
                if how == "stored":
                    C[by * 64, bx * 64] = 0
            if how == "read behind":
                T.gemm(a_s, b_s, acc)
            T.copy(acc, C[by * 64, bx * 64])

    return kernel


def traced(how: str) -> str:
    specs = [tilec.spec(s, "float16") for s in ((128, 256), (256, 128))]
    made = product(how).compile(*specs, tilec.spec((128, 128), "float32"), target="cuda:sm_90a")
    return str(made.stages["tile"])


def loop_in(text: str) -> str:
    return text[text.index("for.") : text.index("yield", text.index("for."))]


@pytest.mark.usefixtures("unassembled")
@pytest.mark.parametrize("how", ["", "registers", "condition", "staged"])
def test_they_are_brought_where_they_are_read(how: str) -> None:
    text = traced(how)
    loop = loop_in(text)
    assert loop.startswith("for.pipelined") and "if " not in loop
    assert loop.index("copy %A") < loop.index("gemm") and loop.index("copy %B") < loop.index("gemm")
    assert text.count("copy %A") == text.count("copy %B") == 1
    assert "%a_r[" not in text, "nothing goes through registers"


@pytest.mark.usefixtures("unassembled")
@pytest.mark.parametrize(
    "how", ["serial", "another place", "another condition", "stored", "read behind"]
)
def test_what_stays(how: str) -> None:
    """The author's word, other tiles, and loops where another order would show."""
    text = traced(how)
    assert text.count("copy %A") == 2 and loop_in(text).startswith("for.serial")


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("how", ["", "registers", "condition", "staged", "every other"])
@pytest.mark.parametrize(("m", "n", "k"), [(70, 75, 104), (64, 64, 64), (1, 1, 1), (3, 5, 0)])
def test_numbers(how: str, m: int, n: int, k: int, target: str, rng: np.random.Generator) -> None:
    a, b = (rng.integers(-3, 4, s).astype(np.float16) for s in ((m, k), (k, n)))
    c = np.full((m, n), np.nan, np.float32)
    run(product(how), target, a, b, c)
    np.testing.assert_array_equal(c, a.astype(float) @ b.astype(float))


def test_what_threads_read(rng: np.random.Generator) -> None:
    """A row of weights for an iteration, which no product reads, beside tiles of a product."""

    @tilec.kernel
    def scaled(A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"),
               S: T.Tensor((K,), "float32"), C: T.Tensor((M, N), "float32")):  # fmt: skip
        with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
            a, b = T.alloc_shared((64, 32), "float16"), T.alloc_shared((32, 64), "float16")
            s, total = T.alloc_fragment((32,), "float32"), T.alloc_fragment((32,), "float32")
            acc, sums = T.alloc_fragment((64, 64), "float32"), T.alloc_fragment((1,), "float32")
            T.clear(acc)
            T.clear(total)
            T.copy(S[0], s)
            for k in range(T.ceildiv(K, 32)):
                T.copy(A[by * 64, k * 32], a)
                T.copy(B[k * 32, bx * 64], b)
                for i in T.Parallel(32):
                    total[i] += s[i]
                T.copy(S[k * 32 + 32], s)
                T.gemm(a, b, acc)
            T.reduce_sum(total, sums)
            for i, j in T.Parallel(64, 64):
                acc[i, j] *= sums[0]
            T.copy(acc, C[by * 64, bx * 64])

    a, b = (rng.integers(-3, 4, s).astype(np.float16) for s in ((70, 72), (72, 40)))
    s, c = rng.integers(0, 4, 72).astype(np.float32), np.zeros((70, 40), np.float32)
    run(scaled, "cuda:sm_90a", a, b, s, c)
    np.testing.assert_array_equal(c, a.astype(float) @ b.astype(float) * s.sum())
