"""Attention over some blocks of keys: Blocks[b, h, i, n] says whether the queries of row block i
see the keys of block n, so far as they are not later ones. A row without a block gives 0.

(batch, sequence, heads, dim); blocks are BM queries and BN keys.
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
    random,
    table,
    visible,
)  # fmt: skip

import tilec
import tilec.language as T

B, S, H, I, J = T.dynamic("B, S, H, I, J")


@functools.cache
def block_sparse(dim: int, causal: bool = True) -> Any:
    scale = dim**-0.5 * LOG2_E

    @tilec.kernel(pdl=True)
    def block_sparse_attention(
        Q: T.Tensor((B, S, H, dim), "float16"),
        K: T.Tensor((B, S, H, dim), "float16"),
        V: T.Tensor((B, S, H, dim), "float16"),
        Blocks: T.Tensor((B, H, I, J), "int8"),
        O: T.Tensor((B, S, H, dim), "float16"),
        Lse: T.Tensor((B, H, S), "float32"),
        BM: T.constexpr = 64,
        BN: T.constexpr = 64,
    ):
        with T.Kernel(T.ceildiv(S, BM), H, B, threads=128) as (bx, h, b):
            q = T.alloc_shared((BM, dim), "float16")
            k, v = T.alloc_shared((BN, dim), "float16"), T.alloc_shared((BN, dim), "float16")
            s, p = T.alloc_fragment((BM, BN), "float32"), T.alloc_fragment((BM, BN), "float16")
            o = T.alloc_fragment((BM, dim), "float32")
            high, before, shrink, total, more = (
                T.alloc_fragment((BM,), "float32") for _ in range(5)
            )
            # Read once, so that keys and values stay in the L2 cache.
            T.copy(Q[b, bx * BM : (bx + 1) * BM, h, :], q, eviction_policy="evict_first")
            T.clear(o)
            T.clear(total)
            T.fill(high, -1e30)
            end = T.min(S, (bx + 1) * BM) if causal else S
            for n in T.Pipelined(T.ceildiv(end, BN), num_stages=2):
                if Blocks[b, h, bx, n] != 0:
                    T.copy(K[b, n * BN : (n + 1) * BN, h, :], k)
                    for i, j in T.Parallel(BM, BN):
                        seen = n * BN + j < S
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
                    T.copy(V[b, n * BN : (n + 1) * BN, h, :], v)
                    T.gemm(p, v, o, policy=T.GemmWarpPolicy.FullRow)
            for i in T.Parallel(BM):
                shrink[i] = T.if_then_else(total[i] > 0, 1 / total[i], 0.0)
                if bx * BM + i < S:
                    Lse[b, h, bx * BM + i] = (high[i] * scale + T.log2(total[i])) / LOG2_E
            for i, j in T.Parallel(BM, dim):
                o[i, j] *= shrink[i]
            T.copy(o, O[b, bx * BM : (bx + 1) * BM, h, :])

    return block_sparse_attention


def specs(dim: int, bm: int, bn: int) -> list[Any]:
    x = tilec.spec((8, 8192, 32, dim), "float16")
    blocks = tilec.spec((8, 32, 8192 // bm, 8192 // bn), "int8")
    return [x, x, x, blocks, x, tilec.spec((8, 32, 8192), "float32")]


SPECS = [
    (block_sparse(128, causal), specs(128, *tile), {"BM": tile[0], "BN": tile[1]})
    for causal in (True, False)
    for tile in ((64, 64), (64, 32))
]
SPECS += [(block_sparse(64), specs(64, 64, 64), {"BM": 64, "BN": 64})]
CASES = [((1, 150, 2), True, 0.5), ((1, 100, 1), False, 0.4), ((1, 70, 1), True, 0.0)]


def main(cases: list[tuple[tuple[int, ...], bool, float]] = CASES) -> None:
    bm, bn = 64, 32
    worst = 0.0
    for (b, s, h), causal, density in cases:
        q, k, v = (random((b, s, h, 64), "float16", i) for i in range(3))
        shape = (b, h, -(-s // bm), -(-s // bn))
        chosen = np.random.default_rng(5).random(shape) < density
        o, lse = empty((b, s, h, 64), "float16"), empty((b, h, s), "float32")
        block_sparse(64, causal)(q, k, v, table(chosen, "int8"), o, lse, BM=bm, BN=bn)
        for i, j in np.ndindex(b, h):
            seen = np.kron(chosen[i, j], np.ones((bm, bn), bool))[:s, :s] & visible(s, s, causal)
            want, sums = attend(*(float64(x)[i, :, j] for x in (q, k, v)), seen)
            worst = max(worst, check_rows(f"{density=}", o[i, :, j], want))
            check_lse(f"{density=}", lse[i, j], sums)
    print(f"block_sparse on {WHERE}: {len(cases)} cases, largest relative error {worst:.1e}")


if __name__ == "__main__":
    main()
