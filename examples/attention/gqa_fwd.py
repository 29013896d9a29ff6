"""Grouped queries: each of G heads of keys and values serves H / G heads of queries (G = 1: all).

(batch, sequence, heads, dim); the last query is at the last key where `causal`.
"""

import functools
from typing import Any

from attention_support import LOG2_E, WHERE, check_heads, empty, random

import tilec
import tilec.language as T

B, S, N, H, G = T.dynamic("B, S, N, H, G")


@functools.cache
def gqa(dim: int, causal: bool = False, dtype: str = "float16") -> Any:
    scale = dim**-0.5 * LOG2_E

    @tilec.kernel
    def gqa_fwd(
        Q: T.Tensor((B, S, H, dim), dtype),
        K: T.Tensor((B, N, G, dim), dtype),
        V: T.Tensor((B, N, G, dim), dtype),
        O: T.Tensor((B, S, H, dim), dtype),
        Lse: T.Tensor((B, H, S), "float32"),
        BM: T.constexpr = T.auto(32, 64, 128, 192, 256),
        BN: T.constexpr = T.auto(32, 64, 112, 128),
    ):
        with T.Kernel(T.ceildiv(S, BM), H, B) as (bx, h, b):
            q = T.alloc_shared((BM, dim), dtype)
            k, v = T.alloc_shared((BN, dim), dtype), T.alloc_shared((BN, dim), dtype)
            s, p = T.alloc_fragment((BM, BN), "float32"), T.alloc_fragment((BM, BN), dtype)
            o = T.alloc_fragment((BM, dim), "float32")
            high, before, shrink, total, more = (
                T.alloc_fragment((BM,), "float32") for _ in range(5)
            )
            g = h // (H // G)
            T.copy(Q[b, bx * BM : (bx + 1) * BM, h, :], q)
            T.clear(o)
            T.clear(total)
            T.fill(high, -1e30)
            place = bx * BM + N - S  # of the first query among the keys
            end = T.min(N, T.max(place + BM, 0)) if causal else N
            for n in T.Pipelined(T.ceildiv(end, BN), num_stages=2):
                T.copy(K[b, n * BN : (n + 1) * BN, g, :], k)
                for i, j in T.Parallel(BM, BN):
                    seen = n * BN + j < N
                    if causal:
                        seen = seen and n * BN + j <= place + i
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
                shrink[i] = T.if_then_else(total[i] > 0, 1 / total[i], 0.0)
                if bx * BM + i < S:
                    Lse[b, h, bx * BM + i] = (high[i] * scale + T.log2(total[i])) / LOG2_E
            for i, j in T.Parallel(BM, dim):
                o[i, j] *= shrink[i]
            T.copy(o, O[b, bx * BM : (bx + 1) * BM, h, :])

    return gqa_fwd


def specs(dim: int, dtype: str = "float16") -> list[Any]:
    q, kv = tilec.spec((4, 4096, 64, dim), dtype), tilec.spec((4, 4096, 8, dim), dtype)
    return [q, kv, kv, q, tilec.spec((4, 64, 4096), "float32")]


SPECS = [(gqa(dim), specs(dim), {}) for dim in (64, 96, 128, 192, 256)]
SPECS += [(gqa(128, True, "bfloat16"), specs(128, "bfloat16"), {})]
CASES = [  # batch, queries, keys, heads of queries, of keys; causal
    ((1, 40, 90, 6, 3), False),
    ((2, 70, 50, 2, 1), True),
]


def main(cases: list[tuple[tuple[int, ...], bool]] = CASES) -> None:
    worst = 0.0
    for (b, s, n, h, g), causal in cases:
        q = random((b, s, h, 64), "float16", 1)
        k, v = (random((b, n, g, 64), "float16", i) for i in (2, 3))
        o, lse = empty((b, s, h, 64), "float16"), empty((b, h, s), "float32")
        gqa(64, causal)(q, k, v, o, lse)
        worst = max(worst, check_heads(f"gqa {causal=}", o, lse, q, k, v, causal))
    print(f"gqa_fwd on {WHERE}: {len(cases)} cases, largest relative error {worst:.1e}")


if __name__ == "__main__":
    main()
