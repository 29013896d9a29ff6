"""Triton's element-wise sum, as its first tutorial writes it."""

# mypy: disable-error-code="valid-type,assignment,no-untyped-def,no-untyped-call,untyped-decorator"
# (the annotations of a kernel are its own)
from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 256


@triton.jit
def _add(a_ptr, b_ptr, c_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    tl.store(c_ptr + at, tl.load(a_ptr + at, mask=mask) + tl.load(b_ptr + at, mask=mask), mask=mask)


def add(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
    """c = a + b; the three are contiguous."""
    n = c.numel()
    _add[(triton.cdiv(n, BLOCK),)](a, b, c, n, BLOCK=BLOCK)
