"""TileLang's attention: its example's kernel for (batch, sequence, heads, dim), the mask before the
product, the result through shared memory, one kernel per shape."""

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

CONFIGS: tuple[dict[str, Any], ...] = (  # the first is the best one of 128 columns or fewer
    {"BM": 128, "BN": 128, "stages": 2, "threads": 256},
    {"BM": 128, "BN": 64, "stages": 2, "threads": 256},
    {"BM": 64, "BN": 64, "stages": 2, "threads": 128},
)
_TRACING = threading.Lock()  # compiling is for several threads at a time, tracing for one


def configs(dim: int) -> tuple[dict[str, Any], ...]:
    """The list to choose from."""
    return CONFIGS[:2] if dim <= 128 else CONFIGS[1:]


@functools.cache
def compiled(
    batch: int, length: int, heads: int, groups: int, dim: int, causal: bool,
    BM: int, BN: int, stages: int, threads: int,
) -> Any:  # fmt: skip
    """The kernel for one shape; `groups` heads of keys and values."""
    with _TRACING:
        traced = _trace(batch, length, heads, groups, dim, causal, BM, BN, stages, threads)
    fast = {tilelang.PassConfigKey.TL_ENABLE_FAST_MATH: True}
    return tilelang.compile(traced, pass_configs=fast)


def _trace(
    batch: int, length: int, heads: int, groups: int, dim: int, causal: bool,
    BM: int, BN: int, stages: int, threads: int,
) -> Any:  # fmt: skip
    scale = dim**-0.5 * 1.4426950408889634
    ratio = heads // groups
    q_shape, kv_shape = (batch, length, heads, dim), (batch, length, groups, dim)
    half, single = "float16", "float32"

    @T.prim_func
    def main(
        Q: T.Tensor(q_shape, half),
        K: T.Tensor(kv_shape, half),
        V: T.Tensor(kv_shape, half),
        Output: T.Tensor(q_shape, half),
    ):
        with T.Kernel(T.ceildiv(length, BM), heads, batch, threads=threads) as (bx, by, bz):
            Q_s = T.alloc_shared((BM, dim), half)
            K_s = T.alloc_shared((BN, dim), half)
            V_s = T.alloc_shared((BN, dim), half)
            O_s = T.alloc_shared((BM, dim), half)
            acc_s = T.alloc_fragment((BM, BN), single)
            acc_p = T.alloc_fragment((BM, BN), half)
            acc_o = T.alloc_fragment((BM, dim), single)
            high = T.alloc_fragment((BM,), single)
            before = T.alloc_fragment((BM,), single)
            shrink = T.alloc_fragment((BM,), single)
            more = T.alloc_fragment((BM,), single)
            total = T.alloc_fragment((BM,), single)
            T.copy(Q[bz, bx * BM : (bx + 1) * BM, by, :], Q_s)
            T.fill(acc_o, 0)
            T.fill(total, 0)
            T.fill(high, -T.infinity(single))
            trips = (
                T.min(T.ceildiv(length, BN), T.ceildiv((bx + 1) * BM, BN))
                if causal
                else T.ceildiv(length, BN)
            )
            for n in T.Pipelined(trips, num_stages=stages):
                T.copy(K[bz, n * BN : (n + 1) * BN, by // ratio, :], K_s)
                if causal:
                    for i, j in T.Parallel(BM, BN):
                        acc_s[i, j] = T.if_then_else(
                            bx * BM + i >= n * BN + j, 0, -T.infinity(single)
                        )
                else:
                    T.clear(acc_s)
                T.gemm(Q_s, K_s, acc_s, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                T.copy(high, before)
                T.fill(high, -T.infinity(single))
                T.reduce_max(acc_s, high, dim=1, clear=False)
                for i in T.Parallel(BM):
                    high[i] = T.max(high[i], before[i])
                for i in T.Parallel(BM):
                    shrink[i] = T.exp2(before[i] * scale - high[i] * scale)
                for i, j in T.Parallel(BM, BN):
                    acc_s[i, j] = T.exp2(acc_s[i, j] * scale - high[i] * scale)
                T.reduce_sum(acc_s, more, dim=1)
                for i in T.Parallel(BM):
                    total[i] = total[i] * shrink[i] + more[i]
                T.copy(acc_s, acc_p)
                for i, j in T.Parallel(BM, dim):
                    acc_o[i, j] *= shrink[i]
                T.copy(V[bz, n * BN : (n + 1) * BN, by // ratio, :], V_s)
                T.gemm(acc_p, V_s, acc_o, policy=T.GemmWarpPolicy.FullRow)
            for i, j in T.Parallel(BM, dim):
                acc_o[i, j] /= total[i]
            T.copy(acc_o, O_s)
            T.copy(O_s, Output[bz, bx * BM : (bx + 1) * BM, by, :])

    return main


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
    if length % config["BM"] or length % config["BN"]:
        raise ValueError("lengths are multiples of the blocks here")
    run = compiled(batch, length, heads, k.shape[2], dim, causal, **config)

    def call() -> torch.Tensor:
        run(q, k, v, o)
        return o

    return call
