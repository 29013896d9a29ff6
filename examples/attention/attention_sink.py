"""Attention with a sink: each head has one more score, learned, whose value is 0. Grouped queries,
causal, with a window of the last keys or none.

(batch, sequence, heads, dim); the last query is at the last key.
"""

import functools
from typing import Any

from attention_support import LOG2_E, WHERE, check_heads, empty, random

import tilec
import tilec.language as T

B, S, N, H, G = T.dynamic("B, S, N, H, G")


@functools.cache
def sink(dim: int, window: int = 0) -> Any:
    scale = dim**-0.5 * LOG2_E

    @tilec.kernel
    def attention_sink(
        Q: T.Tensor((B, S, H, dim), "float16"),
        K: T.Tensor((B, N, G, dim), "float16"),
        V: T.Tensor((B, N, G, dim), "float16"),
        Sinks: T.Tensor((H,), "float32"),
        O: T.Tensor((B, S, H, dim), "float16"),
        Lse: T.Tensor((B, H, S), "float32"),
        BM: T.constexpr = T.auto(32, 64, 128, 192, 256),
        BN: T.constexpr = T.auto(32, 64, 112, 128),
    ):
        with T.Kernel(T.ceildiv(S, BM), H, B) as (bx, h, b):
            q = T.alloc_shared((BM, dim), "float16")
            k, v = T.alloc_shared((BN, dim), "float16"), T.alloc_shared((BN, dim), "float16")
            s, p = T.alloc_fragment((BM, BN), "float32"), T.alloc_fragment((BM, BN), "float16")
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
            first = T.max(place - window + 1, 0) // BN if window else 0
            end = T.min(N, T.max(place + BM, 0))
            for n in T.Pipelined(first, T.ceildiv(end, BN), num_stages=2):
                T.copy(K[b, n * BN : (n + 1) * BN, g, :], k)
                for i, j in T.Parallel(BM, BN):
                    seen = n * BN + j <= place + i
                    if window:
                        seen = seen and n * BN + j > place + i - window
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
            for i in T.Parallel(BM):  # the sink, as one more step
                top = T.max(high[i] * scale, Sinks[h] * LOG2_E)
                old = T.exp2(high[i] * scale - top)
                sum_ = total[i] * old + T.exp2(Sinks[h] * LOG2_E - top)
                shrink[i] = old / sum_
                if bx * BM + i < S:
                    Lse[b, h, bx * BM + i] = (top + T.log2(sum_)) / LOG2_E
            for i, j in T.Parallel(BM, dim):
                o[i, j] *= shrink[i]
            T.copy(o, O[b, bx * BM : (bx + 1) * BM, h, :])

    return attention_sink


def specs(dim: int) -> list[Any]:
    q, kv = tilec.spec((1, 4096, 64, dim), "float16"), tilec.spec((1, 4096, 8, dim), "float16")
    return [q, kv, kv, tilec.spec((64,), "float32"), q, tilec.spec((1, 64, 4096), "float32")]


SPECS = [(sink(64), specs(64), {}), (sink(64, 128), specs(64), {}), (sink(128), specs(128), {})]
CASES = [((1, 70, 70, 4, 2), 0), ((1, 40, 90, 2, 1), 20), ((1, 40, 30, 1, 1), 0)]


def main(cases: list[tuple[tuple[int, ...], int]] = CASES) -> None:
    worst = 0.0
    for (b, s, n, h, g), window in cases:
        q = random((b, s, h, 64), "float16", 1)
        k, v = (random((b, n, g, 64), "float16", i) for i in (2, 3))
        sinks = random((h,), "float32", 4)
        o, lse = empty((b, s, h, 64), "float16"), empty((b, h, s), "float32")
        sink(64, window)(q, k, v, sinks, o, lse)
        error = check_heads(f"{window=}", o, lse, q, k, v, True, window, sinks=sinks)
        worst = max(worst, error)
    print(f"attention_sink on {WHERE}: {len(cases)} cases, largest relative error {worst:.1e}")


if __name__ == "__main__":
    main()
