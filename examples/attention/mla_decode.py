"""Decoding of multi-head latent attention: all heads share a key of 512 + 64 numbers for each
token; the first 512 are its value, too.

Q (batch, heads, 512), Q_pe (batch, heads, 64); KV (pages, page, 512), K_pe (pages, page, 64), Table
(batch, pages of a sequence): a cache that is not paged is one of one page for each sequence.
`lengths` are as in flash_decoding, which combines the parts.
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
    table,
)
from flash_decoding import combine, combine_specs

import tilec
import tilec.language as T

B, R, H, P, I, S = T.dynamic("B, R, H, P, I, S")
Policy = T.GemmWarpPolicy.FullCol  # each warpgroup has half of the columns
# Powers of two that weights may reach before what has been summed up is scaled for a new maximum:
# few iterations scale it so, and float16 is as exact there as below 1.
LEAST_RISE = 8


@functools.cache
def mla(dim: int = 512, pe: int = 64, page: Any = 64, kind: str = "float32") -> Any:
    """`page`: tokens of a page, or S, known at a call, for a cache that is not paged; `kind`: of
    the parts, of which one alone is the result."""
    scale = (dim + pe) ** -0.5 * LOG2_E
    # Tokens of a tile lie in one page.
    tokens = [n for n in (32, 64) if not isinstance(page, int) or page % n == 0]

    @tilec.kernel
    def mla_decode(
        Q: T.Tensor((B, H, dim), "float16"),
        Q_pe: T.Tensor((B, H, pe), "float16"),
        KV: T.Tensor((R, page, dim), "float16"),
        K_pe: T.Tensor((R, page, pe), "float16"),
        Table: T.Tensor((B, I), "int32"),
        lengths: T.Tensor((B,), "int32"),
        Parts: T.Tensor((B, P, H, dim), kind),
        Sums: T.Tensor((B, P, H), "float32"),
        BM: T.constexpr = T.auto(16, 64),
        BN: T.constexpr = T.auto(*tokens),
    ):
        T.pdl_sync()  # begins when the launch before it ends, but the next one not before this ends
        with T.Kernel(P, T.ceildiv(H, BM), B) as (part, by, b):
            q, q_pe = T.alloc_shared((BM, dim), "float16"), T.alloc_shared((BM, pe), "float16")
            kv, k_pe = T.alloc_shared((BN, dim), "float16"), T.alloc_shared((BN, pe), "float16")
            p = T.alloc_shared((BM, BN), "float16")
            s = T.alloc_fragment((BM, BN), "float32")
            o = T.alloc_fragment((BM, dim), "float32")
            high, before, shrink, total, more = (
                T.alloc_fragment((BM,), "float32") for _ in range(5)
            )
            T.copy(Q[b, by * BM : (by + 1) * BM, :], q)
            T.copy(Q_pe[b, by * BM : (by + 1) * BM, :], q_pe)
            T.clear(o)
            T.clear(total)
            T.fill(high, -1e30)
            blocks = T.ceildiv(lengths[b], BN)
            each = T.ceildiv(blocks, P)
            first, end = part * each, T.min(part * each + each, blocks)
            for n in T.Pipelined(first, end, num_stages=2):
                at, row = Table[b, n * BN // page], n * BN % page
                T.device_assert(0 <= at and at < R, "the table names a page")
                # Read once: what other kernels leave and take, as Q, stays in the L2 cache.
                T.copy(KV[at, row : row + BN, :], kv, eviction_policy="evict_first")
                T.copy(K_pe[at, row : row + BN, :], k_pe, eviction_policy="evict_first")
                T.gemm(q, kv, s, transpose_B=True, policy=Policy, clear_accum=True)
                T.gemm(q_pe, k_pe, s, transpose_B=True, policy=Policy)
                for i, j in T.Parallel(BM, BN):
                    s[i, j] = T.if_then_else(
                        n * BN + j < lengths[b], s[i, j], -T.infinity("float32")
                    )
                T.copy(high, before)
                T.reduce_max(s, high, dim=1, clear=False)
                for i in T.Parallel(BM):
                    rise = (high[i] - before[i]) * scale
                    high[i] = T.if_then_else(rise > LEAST_RISE, high[i], before[i])
                for i in T.Parallel(BM):
                    shrink[i] = T.exp2(before[i] * scale - high[i] * scale)
                for i, j in T.Parallel(BM, BN):
                    s[i, j] = T.exp2(s[i, j] * scale - high[i] * scale)
                T.reduce_sum(s, more, dim=1)
                T.copy(s, p)
                for i in T.Parallel(BM):
                    total[i] = total[i] * shrink[i] + more[i]
                for i, j in T.Parallel(BM, dim):
                    o[i, j] *= shrink[i]
                T.gemm(p, kv, o, policy=Policy)
            for i in T.Parallel(BM):
                shrink[i] = T.if_then_else(total[i] > 0, 1 / total[i], 0.0)
                if by * BM + i < H:
                    Sums[b, part, by * BM + i] = high[i] * scale + T.log2(total[i])
            for i, j in T.Parallel(BM, dim):
                o[i, j] *= shrink[i]
            T.copy(o, Parts[b, part, by * BM : (by + 1) * BM, :])

    return mla_decode


def specs(
    batch: int,
    keys: int,
    page: int,
    splits: int,
    kind: str = "float32",
    dim: int = 512,
    pe: int = 64,
    heads: int = 128,
) -> list[Any]:
    parts, sums, o, _ = combine_specs(dim, batch, heads, splits, kind)
    pages = batch * keys // page
    cache = [tilec.spec((pages, page, d), "float16") for d in (dim, pe)]
    q_pe, lengths = tilec.spec((batch, heads, pe), "float16"), tilec.spec((batch,), "int32")
    return [o, q_pe, *cache, tilec.spec((batch, keys // page), "int32"), lengths, parts, sums]


SPECS = [
    (mla(page=S, kind="float16"), specs(64, 4096, 4096, 1, "float16"), {}),
    (mla(page=64, kind="float16"), specs(64, 4096, 64, 1, "float16"), {}),
    (mla(page=64), specs(1, 8192, 64, 16), {}),
    (combine(512, splits=16), combine_specs(512, 1, 128, 16), {}),
]
CASES = [([100, 0], 20, 2, 32), ([70], 3, 1, 0)]  # keys, heads, splits, page (0: not paged)


def main(cases: list[tuple[list[int], int, int, int]] = CASES, dim: int = 64, pe: int = 32) -> None:
    worst, rng = 0.0, np.random.default_rng(7)
    for lengths, h, splits, page in cases:
        b, size = len(lengths), page or max([1, *lengths])
        each = -(-max(lengths, default=0) // size)
        pages = rng.permutation(b * each).reshape(b, each)
        q, q_pe = random((b, h, dim), "float16", 1), random((b, h, pe), "float16", 2)
        kv, k_pe = (random((b * each, size, d), "float16", d) for d in (dim, pe))
        kind = "float32" if splits > 1 else "float16"
        parts, sums = empty((b, splits, h, dim), kind), empty((b, splits, h), "float32")
        o, lse = empty((b, h, dim), "float16"), empty((b, h), "float32")
        tensors = (q, q_pe, kv, k_pe, table(pages), integers(lengths), parts, sums)
        mla(dim, pe, page or S, kind)(*tensors)
        combine(dim, kind, splits)(parts, sums, o, lse)
        for i, n in enumerate(lengths):
            whole = (np.concatenate([float64(y) for y in x], 2) for x in ((q, q_pe), (kv, k_pe)))
            queries, keys = whole
            keys = keys[pages[i]].reshape(-1, dim + pe)[:n]
            want, want_sums = attend(queries[i], keys, keys[:, :dim])
            worst = max(worst, check_rows(f"{lengths} {page=}", o[i], want))
            check_lse(f"{lengths} {page=}", lse[i], want_sums)
    print(f"mla_decode on {WHERE}: {len(cases)} cases, largest relative error {worst:.1e}")


if __name__ == "__main__":
    main()
