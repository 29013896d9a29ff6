"""join_branches: a tile that both branches of an `if` fill is filled once, and ahead."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from form_help import SM90, tile_func
from simulated import run_compiled

import tilec
import tilec.language as T
from tilec.ir.core import Func
from tilec.ir.ops import Copy, If
from tilec.ir.verify import verify
from tilec.passes.join_branches import join_branches

pytestmark = pytest.mark.usefixtures("unassembled")

ROWS, N = T.dynamic("ROWS, N")
GPUS = ("cuda:sm_90a", "cuda:sm_80", "hip:gfx942")


def program(how: str) -> Any:
    """Products with the blocks up to `last`, then with that of the row's own, whose place is
    another: scores of packed queries have such masks."""

    def kernel(
        Q: T.Tensor((N, 64), "float16"),
        K: T.Tensor((ROWS, 64), "float16"),
        C: T.Tensor((N, 64), "float32"),
        last: T.int32,
        every: T.int32,
    ):
        with T.Kernel(T.ceildiv(N, 64), threads=128) as bx:
            q, k = T.alloc_shared((64, 64), "float16"), T.alloc_shared((64, 64), "float16")
            v = T.alloc_shared((64, 64), "float16")
            s, o = T.alloc_fragment((64, 64), "float32"), T.alloc_fragment((64, 64), "float32")
            p = T.alloc_shared((64, 64), "float16")
            T.copy(Q[bx * 64, 0], q)
            T.clear(o)
            steps = {"order": [0, 1, 2, 3], "stage": [0, 0, 0, 0]} if how == "ordered" else {}
            for n in T.Pipelined(last + 2, num_stages=2, **steps):
                if n > last:
                    if how == "divided":
                        T.copy(K[bx * 64 // every, 0], k)
                    elif how == "another":
                        T.copy(Q[bx * 64, 0], k)
                    else:
                        own = bx * 64
                        T.copy(K[own, 0], k)
                        T.copy(K[own + 64, 0], v)
                else:
                    first = every * 128 + n * 64
                    T.copy(K[first, 0], k)
                    if how in ("joined", "ordered"):
                        T.copy(K[first + 64, 0], v)
                T.gemm(q, k, s, transpose_B=True, clear_accum=True)
                T.copy(s, p)
                if how in ("joined", "ordered"):
                    T.gemm(p, v, o)
                else:
                    T.gemm(p, k, o)
            T.copy(o, C[bx * 64, 0])

    return kernel


def held(rng: np.random.Generator, last: int) -> dict[str, Any]:
    k = (rng.standard_normal((512, 64)) / 8).astype(np.float16)
    q = (rng.standard_normal((100, 64)) / 8).astype(np.float16)
    nothing = np.full((100, 64), np.nan, np.float32)
    return {"Q": q, "K": k, "C": nothing, "last": last, "every": 1}


def expected(a: dict[str, Any], how: str) -> np.ndarray:
    q, keys = (np.vstack([a[x], np.zeros((64, 64))]).astype(float) for x in "QK")
    out = np.zeros((100, 64))
    for bx in range(2):
        rows = q[bx * 64 : bx * 64 + 64]
        for n in range(a["last"] + 2):
            at = bx * 64 if n > a["last"] else 128 + n * 64
            k = rows if how == "another" and n > a["last"] else keys[at : at + 64]
            v = keys[at + 64 : at + 128] if how in ("joined", "ordered") else k
            out[bx * 64 : bx * 64 + 64] += ((rows @ k.T) @ v)[: 100 - bx * 64]
    return out


def joined(how: str, a: dict[str, Any]) -> tuple[Func, Func]:
    func = tile_func(program(how), a)
    after = join_branches(func, SM90)
    verify(after)
    return func, after


@pytest.mark.covering(1)
@pytest.mark.parametrize("last", [-1, 0, 3])
@pytest.mark.parametrize("target", [*GPUS, "cpu"])
def test_both_tiles_are_filled_once_and_ahead(
    target: str, last: int, rng: np.random.Generator
) -> None:
    a = held(rng, last)
    before, after = joined("joined", a)
    counts = [len([*f.body.every(Copy)]) for f in (before, after)]
    assert counts[0] - counts[1] == 2 and not after.body.has(If)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # "cannot run ahead"
        run_compiled(tilec.kernel(program("joined")), target, **a)
    want = expected(a, "joined")
    np.testing.assert_allclose(a["C"], want, rtol=1e-2, atol=3e-3)
    if target == "cuda:sm_90a":
        stages = tilec.kernel(program("joined")).compile(**a, target=target).stages
        assert str(stages["select_copies"]).count("ahead=true") == 3


@pytest.mark.parametrize("how", ["divided", "another", "one_more", "ordered"])
def test_what_differs_otherwise_stays(how: str, rng: np.random.Generator) -> None:
    """A division that only one branch may do, another tensor, a copy more, a list of the author's
    that counts statements."""
    a = held(rng, 1)
    before, after = joined(how, a)
    assert after is before and after.body.has(If)
    run_compiled(tilec.kernel(program(how)), "cpu", **a)
    np.testing.assert_allclose(a["C"], expected(a, how), rtol=1e-2, atol=3e-3)


def test_nobody_divides_by_zero(rng: np.random.Generator) -> None:
    """Where the branch is not taken: a processor would stop."""

    @tilec.kernel
    def kernel(X: T.Tensor((64,), "float32"), Y: T.Tensor((16,), "float32"), d: T.int32):
        with T.Kernel(1, threads=32):
            if d > 0:
                T.copy(X[32 // d], Y)
            else:
                T.copy(X[3], Y)

    x, y = rng.random(64, np.float32), np.zeros(16, np.float32)
    for target in (*GPUS, "cpu"):
        for d, first in ((0, 3), (2, 16)):
            run_compiled(kernel, target, x, y, d)
            np.testing.assert_array_equal(y, x[first : first + 16])
