"""The attention kernels that are measured: plain sequential source, as users of TileLang write it.

Queries, keys, values and results are (batch, sequence, heads, dim).
"""

# mypy: ignore-errors
# (kernels: their annotations and arithmetic are not Python's)
from __future__ import annotations

import functools
from typing import Any

import tilec
import tilec.language as T

B, S, N, H, G = T.dynamic("B, S, N, H, G")
LOG2_E = 1.4426950408889634


@functools.cache
def forward(
    dim: int,
    causal: bool = False,
    threads: int | None = 256,
    schedule: tuple[tuple[str, Any], ...] = (),
) -> Any:
    """softmax(Q Kᵀ / sqrt(dim)) V for S queries and N keys; G heads of keys and values serve H of
    queries. `schedule`: keywords of T.annotate_schedule."""
    scale = dim**-0.5 * LOG2_E
    wish = dict(schedule)
    specialise, stages, consumers, overlap, persistent = (
        wish.get(k) for k in ("specialise", "stages", "consumers", "overlap", "persistent")
    )

    @tilec.kernel
    def attention(
        Q: T.Tensor((B, S, H, dim), "float16"),
        K: T.Tensor((B, N, G, dim), "float16"),
        V: T.Tensor((B, N, G, dim), "float16"),
        O: T.Tensor((B, S, H, dim), "float16"),  # noqa: E741
        BM: T.constexpr = 128,
        BN: T.constexpr = 128,
        depth: T.constexpr = 2,
    ):
        with T.Kernel(T.ceildiv(S, BM), H, B, threads=threads) as (bx, h, b):
            if schedule:
                T.annotate_schedule(
                    specialise=specialise,
                    stages=stages,
                    consumers=consumers,
                    overlap=overlap,
                    persistent=persistent,
                )
            q = T.alloc_shared((BM, dim), "float16")
            k = T.alloc_shared((BN, dim), "float16")
            v = T.alloc_shared((BN, dim), "float16")
            s = T.alloc_fragment((BM, BN), "float32")
            p = T.alloc_fragment((BM, BN), "float16")
            o = T.alloc_fragment((BM, dim), "float32")
            high, before, shrink, total, more = (
                T.alloc_fragment((BM,), "float32") for _ in range(5)
            )
            g = h // (H // G)
            T.copy(Q[b, bx * BM : (bx + 1) * BM, h, :], q)
            T.clear(o)
            T.clear(total)
            T.fill(high, -T.infinity("float32"))
            trips = T.ceildiv(N, BN)
            if causal:
                trips = T.min(trips, T.ceildiv((bx + 1) * BM, BN))
            for n in T.Pipelined(trips, num_stages=depth):
                T.copy(K[b, n * BN : (n + 1) * BN, g, :], k)
                for i, j in T.Parallel(BM, BN):
                    seen = n * BN + j < N
                    if causal:
                        seen = seen and n * BN + j <= bx * BM + i
                    s[i, j] = T.if_then_else(seen, 0, -T.infinity("float32"))
                T.gemm(q, k, s, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                T.copy(high, before)
                T.reduce_max(s, high, dim=1, clear=False)
                for i in T.Parallel(BM):
                    shrink[i] = T.exp2(before[i] * scale - high[i] * scale)
                for i, j in T.Parallel(BM, BN):
                    s[i, j] = T.exp2(s[i, j] * scale - high[i] * scale)
                T.reduce_sum(s, more, dim=1)
                for i in T.Parallel(BM):
                    total[i] = total[i] * shrink[i] + more[i]
                T.copy(s, p)
                for i, j in T.Parallel(BM, dim):
                    o[i, j] *= shrink[i]
                T.copy(V[b, n * BN : (n + 1) * BN, g, :], v)
                T.gemm(p, v, o, policy=T.GemmWarpPolicy.FullRow)
            for i in T.Parallel(BM):
                total[i] = 1 / total[i]
            for i, j in T.Parallel(BM, dim):
                o[i, j] *= total[i]
            T.copy(o, O[b, bx * BM : (bx + 1) * BM, h, :])

    return attention
