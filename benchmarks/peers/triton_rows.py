"""Triton's kernels of rows, one program for each as its tutorials write them, and a transpose."""

# mypy: disable-error-code="valid-type,assignment,no-untyped-def,no-untyped-call,untyped-decorator"
# (the annotations of a kernel are its own)
from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl

ROW_CONFIGS = tuple({"num_warps": n} for n in (2, 4, 8, 16, 32))
TRANSPOSE_CONFIGS = tuple(
    {"DOWN": down, "ACROSS": across, "num_warps": n}
    for down, across in ((64, 64), (64, 128), (128, 64), (128, 128))
    for n in (4, 8)
)


@triton.jit
def _softmax(a_ptr, b_ptr, n, BLOCK: tl.constexpr):
    row, at = tl.program_id(0).to(tl.int64) * n, tl.arange(0, BLOCK)
    x = tl.load(a_ptr + row + at, mask=at < n, other=-float("inf")).to(tl.float32)
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(b_ptr + row + at, e / tl.sum(e, axis=0), mask=at < n)


@triton.jit
def _rms_norm(a_ptr, b_ptr, n, eps, BLOCK: tl.constexpr):
    row, at = tl.program_id(0).to(tl.int64) * n, tl.arange(0, BLOCK)
    x = tl.load(a_ptr + row + at, mask=at < n, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / n + eps)
    tl.store(b_ptr + row + at, x * scale, mask=at < n)


@triton.jit
def _layer_norm(a_ptr, b_ptr, n, eps, BLOCK: tl.constexpr):
    row, at = tl.program_id(0).to(tl.int64) * n, tl.arange(0, BLOCK)
    x = tl.load(a_ptr + row + at, mask=at < n, other=0.0).to(tl.float32)
    x = tl.where(at < n, x - tl.sum(x, axis=0) / n, 0.0)
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / n + eps)
    tl.store(b_ptr + row + at, x * scale, mask=at < n)


@triton.jit
def _transpose(a_ptr, b_ptr, m, n, DOWN: tl.constexpr, ACROSS: tl.constexpr):
    i = tl.program_id(1) * DOWN + tl.arange(0, DOWN)
    j = tl.program_id(0) * ACROSS + tl.arange(0, ACROSS)
    inside = (i[:, None] < m) & (j[None, :] < n)
    x = tl.load(a_ptr + i[:, None].to(tl.int64) * n + j[None, :], mask=inside)
    inside = (j[:, None] < n) & (i[None, :] < m)
    tl.store(b_ptr + j[:, None].to(tl.int64) * m + i[None, :], tl.trans(x), mask=inside)


def softmax(a: torch.Tensor, b: torch.Tensor, **config: int) -> Callable[[], object]:
    m, n = a.shape
    block = triton.next_power_of_2(n)
    return lambda: _softmax[(m,)](a, b, n, BLOCK=block, **config)


def rms_norm(a: torch.Tensor, b: torch.Tensor, eps: float, **config: int) -> Callable[[], object]:
    m, n = a.shape
    block = triton.next_power_of_2(n)
    return lambda: _rms_norm[(m,)](a, b, n, eps, BLOCK=block, **config)


def layer_norm(a: torch.Tensor, b: torch.Tensor, eps: float, **config: int) -> Callable[[], object]:
    m, n = a.shape
    block = triton.next_power_of_2(n)
    return lambda: _layer_norm[(m,)](a, b, n, eps, BLOCK=block, **config)


def transpose(a: torch.Tensor, b: torch.Tensor, **config: int) -> Callable[[], object]:
    m, n = a.shape
    grid = (triton.cdiv(n, config["ACROSS"]), triton.cdiv(m, config["DOWN"]))
    return lambda: _transpose[grid](a, b, m, n, **config)
