"""Tiles of heads of 40, 72 or 80 numbers, whose pieces of 16 bytes do not divide among a block's
threads: they wait in registers in smaller pieces, and run ahead all the same. Where no matrix
instruction steps through so many, zeros follow them."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import tilec
import tilec.language as T

pytestmark = pytest.mark.usefixtures("unassembled")

M, N = T.dynamic("M, N")


def products(dim: int, rows: int = 64, threads: int = 128, given: str = "float16") -> Any:
    """The sum over blocks of keys of (Q Kᵀ) K."""

    @tilec.kernel
    def main(
        Q: T.Tensor((M, dim), "float16"),
        K: T.Tensor((N, dim), given),
        O: T.Tensor((M, dim), "float32"),
    ):
        with T.Kernel(T.ceildiv(M, 64), threads=threads) as by:
            q, k = T.alloc_shared((64, dim), "float16"), T.alloc_shared((rows, dim), "float16")
            s, p = T.alloc_fragment((64, rows), "float32"), T.alloc_fragment((64, rows), "float16")
            o = T.alloc_fragment((64, dim), "float32")
            T.copy(Q[by * 64, 0], q)
            T.clear(o)
            for n in T.Pipelined(T.ceildiv(N, rows), num_stages=2):
                T.copy(K[n * rows, 0], k)
                T.gemm(q, k, s, transpose_B=True, clear_accum=True)
                T.copy(s, p)
                T.gemm(p, k, o)
            T.copy(o, O[by * 64, 0])

    return main


CASES = [
    ("hip:gfx942", {"dim": 40}),
    ("hip:gfx942", {"dim": 72, "threads": 256}),
    ("hip:gfx942", {"dim": 80, "rows": 32}),
    ("hip:gfx942", {"dim": 72, "rows": 48}),
    ("hip:gfx1100", {"dim": 72, "threads": 256}),
    ("hip:gfx1100", {"dim": 40, "rows": 48, "threads": 64}),
    ("cuda:sm_80", {"dim": 72, "given": "float32"}),  # no cp.async converts
]


@pytest.mark.parametrize(("target", "how"), CASES, ids=str)
def test_they_run_ahead(target: str, how: dict[str, Any]) -> None:
    rng = np.random.default_rng(how["dim"])
    q = (rng.standard_normal((70, how["dim"])) * 0.25).astype(np.float16)
    k = (rng.standard_normal((150, how["dim"])) * 0.25).astype(how.get("given", "float16"))
    o = np.full(q.shape, np.nan, np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error", tilec.PerformanceWarning)
        made = products(**how).compile(q, k, o, target=target)
    assert "ahead: k" in made.stages["plan"] and "k_next" in made.stages["expand_pipeline"]
    text = made.stages["select_gemm"]
    assert text.count("gemm ") == 2 and "simt." not in text
    report = tilec.simulate(products(**how), q, k, o, target=target)
    assert report.ok, report
    wide = k.astype(np.float16).astype(float)
    want = (q.astype(float) @ wide.T).astype(np.float16).astype(float) @ wide
    np.testing.assert_allclose(o, want, atol=0.01 * np.abs(want).max())


def test_a_tile_that_no_pieces_divide_is_said() -> None:
    specs = [tilec.spec((512, 72), x) for x in ("float16", "float16", "float32")]
    with pytest.warns(
        tilec.PerformanceWarning, match="does not divide.*\n.*\n.*\n.*a power of two"
    ):
        made = products(72, rows=48, threads=256).compile(*specs, target="hip:gfx942")
    assert "ahead: k" not in made.stages["plan"]
