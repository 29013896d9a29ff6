"""What the attention examples share: attention in float64, checks of results with rows that see
nothing, and arrays of whole numbers where the examples run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

import example_support  # noqa: E402
from example_support import (  # noqa: E402
    WHERE,
    check,
    empty,
    float64,
    integers,
    random,
    zeros,
)

__all__ = [
    "LOG2_E", "WHERE", "attend", "check", "check_heads", "check_lse", "check_rows", "empty",
    "float64", "gradients", "integers", "random", "swapped", "table", "visible", "zeros",
]  # fmt: skip

LOG2_E = 1.4426950408889634  # exponentials are of base 2 on a GPU


def visible(queries: int, keys: int, causal: bool = False, window: int = 0) -> np.ndarray:
    """Which keys each query sees, (queries, keys): with `causal` those up to its own place, where
    the last query is at the last key; with `window` of these the last so many."""
    place = np.arange(queries)[:, None] + keys - queries
    key = np.arange(keys)[None, :]
    seen = np.ones((queries, keys), bool)
    if causal:
        seen &= key <= place
    if window:
        seen &= key > place - window
    return seen


def attend(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    seen: np.ndarray | bool = True,
    bias: np.ndarray | float = 0.0,
    cap: float = 0.0,
    sink: float | None = None,
    scale: float = 0.0,
) -> tuple[np.ndarray, np.ndarray]:
    """softmax(Q Kᵀ scale + bias) V of one head in float64, and each row's logarithm of the sum of
    exponentials: q (queries, dim), k (keys, dim), v (keys, value dim). `cap`: scores become
    cap tanh(score / cap); `sink` is one more score of each row, of a value 0. A row that sees
    nothing gives 0, and -inf."""
    s = q @ k.T * (scale or q.shape[1] ** -0.5)
    s = (np.tanh(s / cap) * cap if cap else s) + bias
    s = np.where(seen, s, -np.inf)
    if sink is not None:
        s = np.concatenate([s, np.full((len(s), 1), sink)], 1)
        v = np.concatenate([v, np.zeros((1, v.shape[1]))])
    high = s.max(1, keepdims=True, initial=-np.inf)
    e = np.exp(s - np.where(np.isfinite(high), high, 0.0))
    total = e.sum(1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = np.log(total) + high
    return e @ v / np.where(total > 0, total, 1.0), lse[:, 0]


def gradients(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, do: np.ndarray, seen: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """dQ, dK and dV of one head in float64."""
    scale = q.shape[1] ** -0.5
    o, lse = attend(q, k, v, seen)
    p = np.where(seen, np.exp(q @ k.T * scale - np.where(np.isfinite(lse), lse, 0.0)[:, None]), 0.0)
    ds = p * (do @ v.T - (o * do).sum(1, keepdims=True)) * scale
    return ds @ k, ds.T @ q, p.T @ do


def check_rows(name: str, got: Any, want: np.ndarray, limit: float = 0.0) -> float:
    """`check` of one head, which may be 0 everywhere, or of no rows. `limit`: the largest relative
    error, where the rounding of `got` is not the only one."""
    if want.size and want.any():
        if not limit:
            return check(name, got, want)
        error = float(np.abs(float64(got) - want).max() / np.abs(want).max())
        assert error <= limit, f"{name}: relative error {error:.1e}, more than {limit:.1e}"
        return error
    values = float64(got)
    assert values.shape == want.shape and not values.any(), f"{name}: not 0 where nothing is seen"
    return 0.0


def check_lse(name: str, got: Any, want: np.ndarray) -> None:
    """-inf where rows see nothing, elsewhere right to some units of float32's rounding."""
    values, nothing = float64(got), np.isneginf(want)
    assert (np.isneginf(values) == nothing).all(), f"{name}: -inf in the wrong rows"
    errors = np.abs(values[~nothing] - want[~nothing])
    assert not errors.size or errors.max() <= 2e-4, f"{name}: off by {errors.max():.1e}"


def check_heads(
    name: str,
    o: Any,
    lse: Any,
    q: Any,
    k: Any,
    v: Any,
    causal: bool = False,
    window: int = 0,
    bias: Any = None,
    cap: float = 0.0,
    sinks: Any = None,
) -> float:
    """The largest relative error of `o` (batch, queries, heads, value dim) over all heads; raises
    AssertionError where it, or `lse` (batch, heads, queries), is wrong. Heads of `k` and `v` serve
    as many of `q` as it takes; `bias` (heads, queries, keys), `sinks` (heads,)."""
    worst = 0.0
    (batch, queries, heads, _), (_, keys, groups, _) = q.shape, k.shape
    q, k, v = float64(q), float64(k), float64(v)
    seen = visible(queries, keys, causal, window)
    for b in range(batch):
        for h in range(heads):
            g = h // (heads // groups)
            want, sums = attend(
                q[b, :, h],
                k[b, :, g],
                v[b, :, g],
                seen,
                0.0 if bias is None else float64(bias)[h],
                cap,
                None if sinks is None else float64(sinks)[h],
            )
            worst = max(worst, check_rows(name, o[b, :, h], want))
            if lse is not None:
                check_lse(name, lse[b, h], sums)
    return worst


def swapped(array: Any) -> Any:
    """A view with the second and third dimension exchanged: (batch, heads, sequence, dim) of
    (batch, sequence, heads, dim)."""
    return array.transpose(1, 2) if example_support.ON_GPU else array.swapaxes(1, 2)


def table(values: np.ndarray, dtype: str = "int32") -> Any:
    """Whole numbers of any shape, where the examples run."""
    host = np.ascontiguousarray(values, dtype)
    if not example_support.ON_GPU:
        return host
    import torch

    return torch.from_numpy(host).cuda()
