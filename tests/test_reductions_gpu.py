"""Reductions on a GPU: against float64, and in every run the same bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from test_reductions import CASES, ROUNDING, attention, reducing, softmax

import tilec.language as T

pytestmark = pytest.mark.gpu
COMBINE = {"sum": "sum", "max": "amax", "min": "amin", "abssum": "sum", "absmax": "amax"}
RUNS = 50


def filled(torch: Any, shape: Any, dtype: str) -> Any:
    if dtype.startswith(("int", "uint")):
        return torch.randint(0, 100, shape, device="cuda").to(getattr(torch, dtype))
    return (torch.randn(shape, device="cuda") * 4).to(
        getattr(torch, dtype.replace("e4m3", "e4m3fn"))
    )


def same_in_every_run(torch: Any, run: Any, out: Any) -> Any:
    """The result of `run`, which fills `out`, poisoned before each time."""
    first = None
    for _ in range(RUNS):
        out.fill_(77)
        run()
        if first is None:
            first = out.clone()
        assert torch.equal(out, first)
    return first


def close(got: Any, want: Any, dtype: str, size: float = 0.0) -> None:
    """`size`: what a sum that cancels is a small part of."""
    limit = ROUNDING[dtype] * (1 + max(size, float(want.abs().max())))
    assert float((got.double() - want).abs().max()) <= limit


@pytest.mark.parametrize("name", [n for n, c in CASES.items() if c[2] in COMBINE])
def test_against_float64(torch: Any, name: str) -> None:
    shape, dim, kind, dtype, out, *_, clear, _ = CASES[name]
    kernel, left = reducing(*CASES[name])
    a = filled(torch, shape, dtype)
    b = torch.empty(left, device="cuda", dtype=getattr(torch, out))
    got = same_in_every_run(torch, lambda: kernel(a, b), b)
    wide = a.double().abs() if kind.startswith("abs") else a.double()
    want = getattr(torch, COMBINE[kind])(wide, dim)
    if not clear:
        both = torch.stack([want, torch.full_like(want, 3)])
        want = getattr(torch, COMBINE[kind])(both, 0)
    if out in ROUNDING:
        size = float(wide.norm(dim=dim).max()) if kind == "sum" else 0.0
        close(got, want.reshape(left), out, size)
    else:
        assert torch.equal(got, want.to(torch.int64).to(getattr(torch, out)).reshape(left))


@pytest.mark.parametrize("shape", [(4, 128), (5, 1), (333, 1000), (8, 4097), (1000, 8192)])
def test_softmax(torch: Any, shape: tuple[int, int]) -> None:
    a = filled(torch, shape, "float16")
    b = torch.empty_like(a)
    got = same_in_every_run(torch, lambda: softmax(a, b), b)
    close(got, torch.softmax(a.double(), 1), "float16")


@pytest.mark.parametrize("policy", [T.GemmWarpPolicy.FullRow, T.GemmWarpPolicy.FullCol])
@pytest.mark.parametrize("sizes", [(64, 32), (130, 95), (1000, 2048)])
@pytest.mark.parametrize("causal", [False, True])
def test_attention(torch: Any, sizes: tuple[int, int], policy: Any, causal: bool) -> None:
    q, k, v = (filled(torch, (n, 64), "float16") / 4 for n in (sizes[0], *sizes[1:] * 2))
    o = torch.empty_like(q)
    run = lambda: attention(q, k, v, o, policy=policy, causal=causal)  # noqa: E731
    got = same_in_every_run(torch, run, o)
    s = q.double() @ k.double().T / 8
    if causal:
        hidden = np.arange(sizes[0])[:, None] < np.arange(sizes[1])
        s[torch.from_numpy(hidden).cuda()] = -float("inf")
    close(got, torch.softmax(s, 1) @ v.double(), "float16")
