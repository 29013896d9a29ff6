"""Tiles that several copies fill side by side, as multi-head latent attention puts keys and their
positions together: each part runs ahead of the products that read it."""

from __future__ import annotations

import re
import warnings
from typing import Any

import numpy as np
import pytest

import tilec
import tilec.language as T

H, S = T.dynamic("H, S")
D, BH, BN = 64, 64, 64
TARGETS = ("cuda:sm_90a", "cuda:sm_80", "hip:gfx942")


def latent(pe: int = 32, threads: int = 128, read: str = "", by_rows: bool = False) -> Any:
    """softmax(Q [C, P]ᵀ) C, with keys of `pe` positions behind `D` others in one tile. `read`: what
    else reads the tile. `by_rows`: the values lie in a tile of two halves, one above the other."""
    whole, half = D + pe, BN // 2

    @tilec.kernel
    def main(
        Q: T.Tensor((H, whole), "float16"),
        C: T.Tensor((S, D), "float16"),
        P: T.Tensor((S, pe), "float16"),
        O: T.Tensor((H, D), "float32"),
    ):
        with T.Kernel(T.ceildiv(H, BH), threads=threads) as bx:
            q, k = T.alloc_shared((BH, whole), "float16"), T.alloc_shared((BN, whole), "float16")
            v, p_s = T.alloc_shared((BN, D), "float16"), T.alloc_shared((BH, BN), "float16")
            s, p = T.alloc_fragment((BH, BN), "float32"), T.alloc_fragment((BH, BN), "float16")
            o = T.alloc_fragment((BH, D), "float32")
            more, total = T.alloc_fragment((BH,), "float32"), T.alloc_fragment((BH,), "float32")
            T.copy(Q[bx * BH, 0], q)
            T.clear(o)
            T.clear(total)
            for n in T.Pipelined(T.ceildiv(S, BN), num_stages=2):
                T.copy(C[n * BN : (n + 1) * BN, :], k[:, 0:D])
                T.copy(P[n * BN : (n + 1) * BN, :], k[:, D:whole])
                T.gemm(q, k, s, transpose_B=True, clear_accum=True)
                for i, j in T.Parallel(BH, BN):
                    x = T.exp(s[i, j] * 0.1)
                    if read == "element":
                        x *= T.exp(k[j, D + 1] * 0.1)
                    s[i, j] = T.if_then_else(n * BN + j < S, x, 0.0)
                T.reduce_sum(s, more, dim=1)
                for i in T.Parallel(BH):
                    total[i] += more[i]
                T.copy(s, p)
                if by_rows:
                    T.copy(C[n * BN : n * BN + half, :], v[0:half, :])
                    T.copy(C[n * BN + half : (n + 1) * BN, :], v[half:BN, :])
                    T.copy(p, p_s)
                    T.gemm(p_s, v, o)
                else:
                    T.gemm(p, k[:, 0:D], o)
            for i, j in T.Parallel(BH, D):
                o[i, j] /= total[i]
            T.copy(o, O[bx * BH, 0])

    return main


def arrays(pe: int = 32, read: str = "") -> tuple[list[Any], np.ndarray]:
    rng = np.random.default_rng(pe)
    shapes = ((70, D + pe), (150, D), (150, pe))
    q, c, p = (rng.standard_normal(x).astype(np.float16) for x in shapes)
    keys = np.concatenate([c, p], 1).astype(float)
    e = np.exp(q.astype(float) @ keys.T * 0.1)
    if read:
        e = e * np.exp(p[:, 1].astype(float) * 0.1)
    want = e / e.sum(1, keepdims=True) @ c.astype(float)
    return [q, c, p, np.full((70, D), np.nan, np.float32)], want


def check(kernel: Any, given: list[Any], want: np.ndarray, target: str) -> None:
    report = tilec.simulate(kernel, *given, target=target)
    assert report.ok, report
    np.testing.assert_allclose(given[3], want, atol=5e-3)


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("how", [{}, {"pe": 16}, {"threads": 256}, {"by_rows": True}], ids=str)
def test_parts_run_ahead(how: dict[str, Any], target: str) -> None:
    given, want = arrays(how.get("pe", 32))
    made = latent(**how).compile(*given, target=target)
    assert all(f"ahead: {x}" in made.stages["plan"] for x in ("k_0", "k_1"))
    text = made.stages["split_tiles"]
    products = re.findall(r"gemm %(\w+).*, %([kv]_\d)\[.*\), %([so])\b", text)
    behind = [("p_s", "v_0", "o"), ("p_s", "v_1", "o")] if "by_rows" in how else [("p", "k_0", "o")]
    assert products == [("q", "k_0", "s"), ("q", "k_1", "s"), *behind]
    assert text.count("clear=true") == 1
    if target == "cuda:sm_90a":
        assert "ahead: k_0, by tma" in made.stages["plan"]
    check(latent(**how), given, want, target)


def test_on_the_cpu() -> None:
    given, want = arrays()
    latent()(*given)
    np.testing.assert_allclose(given[3], want, atol=5e-3)


@pytest.mark.parametrize("how", [{"read": "element"}, {"pe": 8}], ids=str)
def test_what_stays_one_tile_is_said(how: dict[str, Any]) -> None:
    """Elements of it are read, or a part is less than an instruction takes."""
    given, want = arrays(how.get("pe", 32), how.get("read", ""))
    with pytest.warns(tilec.PerformanceWarning, match="a part of k"):
        made = latent(**how).compile(*given, target="cuda:sm_90a")
    assert "k_0" not in made.stages["split_tiles"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(latent(**how), given, want, "cuda:sm_90a")
