"""TileLang's matrix product: its pipelined GEMM with swizzled blocks, the result through shared
memory, one kernel per shape."""

# mypy: disable-error-code="valid-type,no-untyped-def,untyped-decorator"
# Annotations are values here: no `from __future__ import annotations`.

import functools
import logging
import threading
from collections.abc import Callable
from typing import Any

import tilelang
import tilelang.language as T
import torch

logging.getLogger("tilelang").setLevel(logging.WARNING)

CONFIGS = tuple(
    {"BM": bm, "BN": bn, "BK": bk, "stages": stages, "threads": threads}
    for bm, bn, bk, stages, threads in (
        (128, 256, 64, 3, 256),
        (128, 256, 64, 4, 256),
        (128, 128, 64, 4, 256),
        (128, 128, 64, 3, 128),
        (64, 128, 64, 4, 128),
    )
)
SKINNY = tuple(
    {"BM": 64, "BN": bn, "BK": bk, "stages": stages, "threads": 128}
    for bn, bk, stages in ((64, 64, 4), (128, 64, 4), (64, 128, 4))
)
_TRACING = threading.Lock()  # compiling is for several threads at a time, tracing for one
_NAMES = {
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float32: "float32",
    torch.int8: "int8",
    torch.int32: "int32",
    torch.float8_e4m3fn: "float8_e4m3fn",
}


def configs(m: int, element_size: int) -> tuple[dict[str, Any], ...]:
    """The list to choose from; tiles are as many bytes deep for every dtype."""
    found = SKINNY if m <= 64 else CONFIGS
    return tuple({**c, "BK": c["BK"] * 2 // element_size} for c in found)


@functools.cache
def compiled_kernel(
    m: int, n: int, k: int, ta: bool, tb: bool, dtype: str, accumulate: str, result: str,
    BM: int, BN: int, BK: int, stages: int, threads: int,
) -> Any:  # fmt: skip
    """The kernel for one shape: A is stored as (K, M) if `ta`, B as (N, K) if `tb`."""
    with _TRACING:
        traced = _trace(m, n, k, ta, tb, dtype, accumulate, result, BM, BN, BK, stages, threads)
    return tilelang.compile(traced)


def _trace(
    m: int, n: int, k: int, ta: bool, tb: bool, dtype: str, accumulate: str, result: str,
    BM: int, BN: int, BK: int, stages: int, threads: int,
) -> Any:  # fmt: skip
    a_shape, b_shape = ((k, m) if ta else (m, k)), ((n, k) if tb else (k, n))
    a_tile, b_tile = ((BK, BM) if ta else (BM, BK)), ((BN, BK) if tb else (BK, BN))

    @T.prim_func
    def main(A: T.Tensor(a_shape, dtype), B: T.Tensor(b_shape, dtype), C: T.Tensor((m, n), result)):
        with T.Kernel(T.ceildiv(n, BN), T.ceildiv(m, BM), threads=threads) as (bx, by):
            A_s = T.alloc_shared(a_tile, dtype)
            B_s = T.alloc_shared(b_tile, dtype)
            acc = T.alloc_fragment((BM, BN), accumulate)
            C_s = T.alloc_shared((BM, BN), result)
            T.use_swizzle(panel_size=10)
            T.clear(acc)
            for ko in T.Pipelined(T.ceildiv(k, BK), num_stages=stages):
                if ta:
                    T.copy(A[ko * BK, by * BM], A_s)
                else:
                    T.copy(A[by * BM, ko * BK], A_s)
                if tb:
                    T.copy(B[bx * BN, ko * BK], B_s)
                else:
                    T.copy(B[ko * BK, bx * BN], B_s)
                T.gemm(A_s, B_s, acc, transpose_A=ta, transpose_B=tb)
            T.copy(acc, C_s)
            T.copy(C_s, C[by * BM, bx * BN])

    return main


def compiled(
    m: int, n: int, k: int, ta: bool, tb: bool, dtype: torch.dtype, result: torch.dtype,
    config: dict[str, Any],
) -> Any:  # fmt: skip
    """The kernel for torch's dtypes and a configuration."""
    accumulate = "int32" if dtype == torch.int8 else "float32"
    return compiled_kernel(m, n, k, ta, tb, _NAMES[dtype], accumulate, _NAMES[result], **config)


def bind(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, ta: bool, tb: bool, config: dict[str, Any]
) -> Callable[[], torch.Tensor]:
    """C = A B, A and B contiguous as they are stored."""
    (m, n), k = c.shape, a.shape[0 if ta else 1]
    run = compiled(m, n, k, ta, tb, a.dtype, c.dtype, config)

    def call() -> torch.Tensor:
        run(a, b, c)
        return c

    return call
