"""Sequences of uneven lengths, packed one behind the other: Q (all queries, heads, dim), K and V
(all keys, groups, dim). `q_ends` and `k_ends` say where each sequence begins, and the end.

`longest` is at least the most queries of one sequence. A sequence may be empty, on either side: its
queries see nothing then, and give 0.
"""

import functools
from typing import Any

import numpy as np
from attention_support import (
    LOG2_E,
    WHERE,
    attend,
    check_lse,
    check_rows,
    empty,
    float64,
    integers,
    random,
    visible,
)  # fmt: skip

import tilec
import tilec.language as T

M, N, H, G, B = T.dynamic("M, N, H, G, B")


@functools.cache
def varlen(dim: int, causal: bool = False) -> Any:
    scale = dim**-0.5 * LOG2_E

    @tilec.kernel
    def varlen_fwd(
        Q: T.Tensor((M, H, dim), "float16"),
        K: T.Tensor((N, G, dim), "float16"),
        V: T.Tensor((N, G, dim), "float16"),
        q_ends: T.Tensor((B + 1,), "int32"),
        k_ends: T.Tensor((B + 1,), "int32"),
        O: T.Tensor((M, H, dim), "float16"),
        Lse: T.Tensor((H, M), "float32"),
        longest: T.int32,
        BM: T.constexpr = T.auto(32, 64, 128, 192, 256),
        BN: T.constexpr = T.auto(32, 64, 112, 128),
    ):
        with T.Kernel(T.ceildiv(longest, BM), H, B) as (bx, h, b):
            q = T.alloc_shared((BM, dim), "float16")
            k, v = T.alloc_shared((BN, dim), "float16"), T.alloc_shared((BN, dim), "float16")
            s, p = T.alloc_fragment((BM, BN), "float32"), T.alloc_fragment((BM, BN), "float16")
            o = T.alloc_fragment((BM, dim), "float32")
            high, before, shrink, total, more = (
                T.alloc_fragment((BM,), "float32") for _ in range(5)
            )
            g = h // (H // G)
            row, last = q_ends[b] + bx * BM, q_ends[b + 1]
            key, keys = k_ends[b], k_ends[b + 1] - k_ends[b]
            T.copy(Q[row : row + BM, h, :], q)
            T.clear(o)
            T.clear(total)
            T.fill(high, -1e30)
            place = row + keys - last  # of the first query among the keys
            end = T.min(keys, T.max(place + BM, 0)) if causal else keys
            trips = T.if_then_else(row < last, T.ceildiv(end, BN), 0)
            for n in T.Pipelined(trips, num_stages=2):
                T.copy(K[key + n * BN : key + (n + 1) * BN, g, :], k)
                for i, j in T.Parallel(BM, BN):
                    seen = n * BN + j < keys
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
                T.copy(V[key + n * BN : key + (n + 1) * BN, g, :], v)
                T.gemm(p, v, o, policy=T.GemmWarpPolicy.FullRow)
            for i in T.Parallel(BM):
                shrink[i] = T.if_then_else(total[i] > 0, 1 / total[i], 0.0)
                if row + i < last:
                    Lse[h, row + i] = (high[i] * scale + T.log2(total[i])) / LOG2_E
            for i, j in T.Parallel(BM, dim):
                if row + i < last:
                    O[row + i, h, j] = o[i, j] * shrink[i]

    return varlen_fwd


def specs(dim: int) -> list[Any]:
    q, kv = tilec.spec((9000, 16, dim), "float16"), tilec.spec((9000, 4, dim), "float16")
    ends = tilec.spec((9,), "int32")
    return [q, kv, kv, ends, ends, q, tilec.spec((16, 9000), "float32"), 4096]


SPECS = [(varlen(dim, dim != 96), specs(dim), {}) for dim in (64, 96, 128, 192, 256)]
CASES = [  # queries and keys of each sequence; causal
    ([70, 0, 1, 33], [90, 5, 1, 0], False),
    ([40, 70], [100, 30], True),
]


def main(cases: list[tuple[list[int], list[int], bool]] = CASES) -> None:
    worst, h, g, dim = 0.0, 2, 1, 64
    for queries, keys, causal in cases:
        q_ends, k_ends = (np.cumsum([0, *n]).tolist() for n in (queries, keys))
        q = random((q_ends[-1], h, dim), "float16", 1)
        k, v = (random((k_ends[-1], g, dim), "float16", i) for i in (2, 3))
        o, lse = empty((q_ends[-1], h, dim), "float16"), empty((h, q_ends[-1]), "float32")
        varlen(dim, causal)(
            q, k, v, integers(q_ends), integers(k_ends), o, lse, max(queries, default=0)
        )
        for b, (s, n) in enumerate(zip(queries, keys)):
            rows, at = slice(q_ends[b], q_ends[b + 1]), slice(k_ends[b], k_ends[b + 1])
            seen = visible(s, n, causal)
            for i in range(h):
                kv = (float64(x)[at, i // (h // g)] for x in (k, v))
                want, sums = attend(float64(q)[rows, i], *kv, seen)
                worst = max(worst, check_rows(f"sequence {b}", o[rows, i], want))
                check_lse(f"sequence {b}", lse[i, rows], sums)
    print(f"varlen_fwd on {WHERE}: {len(cases)} cases, largest relative error {worst:.1e}")


if __name__ == "__main__":
    main()
