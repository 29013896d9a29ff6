"""Triton's matrix product: the kernel of its tutorial (grouped order of tiles, loads through
pointers, no masks along K where it divides), for every combination of operand orders."""

# mypy: disable-error-code="valid-type,assignment,no-untyped-def,no-untyped-call,untyped-decorator"
# (the annotations of a kernel are its own)
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

CONFIGS = tuple(
    {"BM": bm, "BN": bn, "BK": bk, "num_warps": warps, "num_stages": stages}
    for bm, bn, bk, warps, stages in (
        (128, 256, 64, 8, 3),
        (128, 256, 64, 8, 4),
        (128, 128, 64, 8, 4),
        (128, 128, 64, 4, 3),
        (128, 128, 64, 4, 4),
        (64, 256, 64, 4, 4),
        (64, 128, 64, 4, 4),
        (64, 64, 64, 4, 4),
    )
)
SKINNY = tuple(
    {"BM": bm, "BN": bn, "BK": bk, "num_warps": warps, "num_stages": stages}
    for bm, bn, bk, warps, stages in (
        (16, 64, 128, 4, 4),
        (16, 128, 128, 4, 4),
        (16, 64, 256, 4, 3),
        (64, 64, 128, 4, 4),
        (64, 128, 64, 4, 4),
        (64, 64, 64, 4, 4),
    )
)


@triton.jit
def _matmul(
    a_ptr, b_ptr, c_ptr, M, N, K,
    stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP_M: tl.constexpr,
    EVEN_K: tl.constexpr, ACC: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    tiles_m = tl.cdiv(M, BM)
    tiles_n = tl.cdiv(N, BN)
    in_group = GROUP_M * tiles_n
    group = pid // in_group
    first_m = group * GROUP_M
    group_m = min(tiles_m - first_m, GROUP_M)
    pid_m = first_m + (pid % in_group) % group_m
    pid_n = (pid % in_group) // group_m

    offs_m = (pid_m * BM + tl.arange(0, BM)) % M
    offs_n = (pid_n * BN + tl.arange(0, BN)) % N
    offs_k = tl.arange(0, BK)
    a_ptrs = a_ptr + (offs_m[:, None] * stride_am + offs_k[None, :] * stride_ak)
    b_ptrs = b_ptr + (offs_k[:, None] * stride_bk + offs_n[None, :] * stride_bn)
    acc = tl.zeros((BM, BN), dtype=ACC)
    for k in range(0, tl.cdiv(K, BK)):
        if EVEN_K:
            a = tl.load(a_ptrs)
            b = tl.load(b_ptrs)
        else:
            a = tl.load(a_ptrs, mask=offs_k[None, :] < K - k * BK, other=0.0)
            b = tl.load(b_ptrs, mask=offs_k[:, None] < K - k * BK, other=0.0)
        acc = tl.dot(a, b, acc, input_precision=PRECISION, out_dtype=ACC)
        a_ptrs += BK * stride_ak
        b_ptrs += BK * stride_bk
    offs_cm = pid_m * BM + tl.arange(0, BM)
    offs_cn = pid_n * BN + tl.arange(0, BN)
    c_ptrs = c_ptr + stride_cm * offs_cm[:, None] + stride_cn * offs_cn[None, :]
    mask = (offs_cm[:, None] < M) & (offs_cn[None, :] < N)
    tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), mask=mask)


def configs(m: int, element_size: int) -> tuple[dict[str, Any], ...]:
    """The list to choose from; tiles are as many bytes deep for every dtype."""
    found = SKINNY if m <= 64 else CONFIGS
    return tuple({**c, "BK": max(32, c["BK"] * 2 // element_size)} for c in found)


def bind(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, config: dict[str, Any]
) -> Callable[[], torch.Tensor]:
    """C = A B for A of (M, K), B of (K, N) in any strides; float32 in TF32."""
    (m, k), n = a.shape, b.shape[1]
    integers = a.dtype == torch.int8
    grid = (triton.cdiv(m, config["BM"]) * triton.cdiv(n, config["BN"]),)
    constants = {
        **config,
        "GROUP_M": 8,
        "EVEN_K": k % config["BK"] == 0,
        "ACC": tl.int32 if integers else tl.float32,
        "PRECISION": "tf32",
    }

    def call() -> torch.Tensor:
        _matmul[grid](a, b, c, m, n, k, *a.stride(), *b.stride(), *c.stride(), **constants)
        return c

    return call
