"""Triton's attention, as its tutorial has it: descriptors (TMA), the blocks on the diagonal in a
loop of their own, exponentials of base 2."""

# mypy: disable-error-code="valid-type,assignment,no-untyped-def,no-untyped-call,untyped-decorator"
# (the annotations of a kernel are its own)
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

CONFIGS = tuple(
    {"BM": bm, "BN": bn, "num_warps": warps, "num_stages": stages}
    for bm, bn, warps, stages in (
        (128, 128, 8, 2),
        (128, 128, 8, 3),
        (128, 64, 8, 3),
        (128, 64, 4, 3),
        (64, 64, 4, 3),
    )
)


@triton.jit
def _walk(
    o, total, high, q, k_rows, v_rows, first_row, column, lo, hi, at, scale,
    MASKED: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    for n in tl.range(lo, hi, BN):
        n = tl.multiple_of(n, BN)
        s = tl.dot(q, k_rows.load([first_row + n, column]).T)
        if MASKED:
            seen = at[:, None] >= n + tl.arange(0, BN)[None, :]
            s = s * scale + tl.where(seen, 0, -1.0e6)
            new = tl.maximum(high, tl.max(s, 1))
            s -= new[:, None]
        else:
            new = tl.maximum(high, tl.max(s, 1) * scale)
            s = s * scale - new[:, None]
        p = tl.math.exp2(s)
        shrink = tl.math.exp2(high - new)
        more = tl.sum(p, 1)
        o = o * shrink[:, None]
        v = v_rows.load([first_row + n, column])
        o = tl.dot(p.to(tl.float16), v, o)
        total = total * shrink + more
        high = new
    return o, total, high


@triton.jit
def _attention(
    q_rows, k_rows, v_rows, o_rows, S, HEADS, RATIO, scale,
    CAUSAL: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    head = tl.program_id(1) % HEADS
    first_row = tl.program_id(1) // HEADS * S
    column = head // RATIO * D
    at = block * BM + tl.arange(0, BM)
    high = tl.zeros([BM], tl.float32) - float("inf")
    total = tl.zeros([BM], tl.float32)
    o = tl.zeros([BM, D], tl.float32)
    q = q_rows.load([first_row + block * BM, head * D])
    if CAUSAL:
        o, total, high = _walk(
            o, total, high, q, k_rows, v_rows, first_row, column, 0, block * BM, at, scale,
            False, BN,
        )  # fmt: skip
        o, total, high = _walk(
            o, total, high, q, k_rows, v_rows, first_row, column, block * BM, (block + 1) * BM, at,
            scale, True, BN,
        )  # fmt: skip
    else:
        o, total, high = _walk(
            o, total, high, q, k_rows, v_rows, first_row, column, 0, S, at, scale, False, BN
        )
    o = o / total[:, None]
    o_rows.store([first_row + block * BM, head * D], o.to(tl.float16))


def configs(dim: int) -> tuple[dict[str, Any], ...]:
    """The list to choose from; empty where the kernel does not serve the head dimension."""
    if dim & (dim - 1):
        return ()
    return CONFIGS if dim <= 128 else CONFIGS[2:]


def bind(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    causal: bool,
    config: dict[str, Any],
) -> Callable[[], torch.Tensor]:
    """All are contiguous (batch, sequence, heads, dim) of one length, a multiple of the blocks."""
    batch, length, heads, dim = q.shape
    bm, bn = config["BM"], config["BN"]
    if length % bm or length % bn or k.shape[1] != length:
        raise ValueError("lengths are multiples of the blocks here")

    def rows(t: torch.Tensor, block: int) -> Any:
        flat = t.view(batch * length, -1)
        return TensorDescriptor(flat, [*flat.shape], [*flat.stride()], [block, dim])

    described = (rows(q, bm), rows(k, bn), rows(v, bn), rows(o, bm))
    grid = (length // bm, batch * heads, 1)
    scale = dim**-0.5 * 1.4426950408889634

    def call() -> torch.Tensor:
        _attention[grid](
            *described, length, heads, heads // k.shape[2], scale, CAUSAL=causal, D=dim, **config
        )
        return o

    return call
