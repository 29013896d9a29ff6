"""Decoding over a cache in pages: Table[b, i] is the page with the keys of sequence b from i * page
on. Shares of the keys, and how they are put together, are as in flash_decoding.

Q (batch, heads, dim), K and V (pages, page, groups, dim). Entries of the table behind a sequence's
end are not read; one that names no page is found by `T.device_assert` (under TILEC_DEBUG=1, and by
the simulator).
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

B, R, H, G, P, I = T.dynamic("B, R, H, G, P, I")


@functools.cache
def paged(dim: int, page: int) -> Any:
    scale, block = dim**-0.5 * LOG2_E, min(page, 64)

    @tilec.kernel(pdl=True)  # begins while the launch before it ends
    def paged_decode(
        Q: T.Tensor((B, H, dim), "float16"),
        K: T.Tensor((R, page, G, dim), "float16"),
        V: T.Tensor((R, page, G, dim), "float16"),
        Table: T.Tensor((B, I), "int32"),
        lengths: T.Tensor((B,), "int32"),
        Parts: T.Tensor((B, P, H, dim), "float32"),
        Sums: T.Tensor((B, P, H), "float32"),
        BM: T.constexpr = T.auto(16, 32, 64),
        BN: T.constexpr = block,
    ):
        assert page % BN == 0, "a block of keys is in one page"
        with T.Kernel(P, G * T.ceildiv(H // G, BM), B) as (part, by, b):
            q = T.alloc_shared((BM, dim), "float16")
            k, v = T.alloc_shared((BN, dim), "float16"), T.alloc_shared((BN, dim), "float16")
            s, p = T.alloc_fragment((BM, BN), "float32"), T.alloc_fragment((BM, BN), "float16")
            o = T.alloc_fragment((BM, dim), "float32")
            high, before, shrink, total, more = (
                T.alloc_fragment((BM,), "float32") for _ in range(5)
            )
            across = T.ceildiv(H // G, BM)  # blocks of the queries that share keys
            g = by // across
            head, last = g * (H // G) + by % across * BM, (g + 1) * (H // G)
            T.copy(Q[b, head : head + BM, :], q)
            T.clear(o)
            T.clear(total)
            T.fill(high, -1e30)
            blocks = T.ceildiv(lengths[b], BN)
            each = T.ceildiv(blocks, P)
            first, end = part * each, T.min(part * each + each, blocks)
            for n in T.Pipelined(first, end, num_stages=2):
                at, row = Table[b, n * BN // page], n * BN % page
                T.device_assert(0 <= at and at < R, "the table names a page")
                T.copy(K[at, row : row + BN, g, :], k)
                for i, j in T.Parallel(BM, BN):
                    s[i, j] = T.if_then_else(n * BN + j < lengths[b], 0, -T.infinity("float32"))
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
                T.copy(V[at, row : row + BN, g, :], v)
                T.gemm(p, v, o, policy=T.GemmWarpPolicy.FullRow)
            for i in T.Parallel(BM):
                shrink[i] = T.if_then_else(total[i] > 0, 1 / total[i], 0.0)
                if head + i < last:
                    Sums[b, part, head + i] = high[i] * scale + T.log2(total[i])
            for i, j in T.Parallel(BM, dim):
                if head + i < last:
                    Parts[b, part, head + i, j] = o[i, j] * shrink[i]

    return paged_decode


def specs(dim: int, page: int) -> list[Any]:
    parts, sums, o, _ = combine_specs(dim, 4, 64, 8)
    kv = tilec.spec((2048, page, 8, dim), "float16")
    return [o, kv, kv, tilec.spec((4, 512), "int32"), tilec.spec((4,), "int32"), parts, sums]


SPECS = [(paged(*x), specs(*x), {}) for x in ((128, 64), (128, 256), (64, 16), (256, 64))]
CASES = [([100, 0, 17], 4, 2, 3, 32), ([150], 8, 1, 1, 128)]  # keys, heads, groups, splits, page


def main(cases: list[tuple[list[int], int, int, int, int]] = CASES, dim: int = 64) -> None:
    worst, rng = 0.0, np.random.default_rng(7)
    for lengths, h, g, splits, page in cases:
        b, most = len(lengths), -(-max(lengths, default=0) // page)
        pages = rng.permutation(b * most).reshape(b, most)
        for i, n in enumerate(lengths):
            pages[i, -(-n // page) :] = -1
        q = random((b, h, dim), "float16", 1)
        k, v = (random((b * most, page, g, dim), "float16", i) for i in (2, 3))
        parts, sums = empty((b, splits, h, dim), "float32"), empty((b, splits, h), "float32")
        o, lse = empty((b, h, dim), "float16"), empty((b, h), "float32")
        paged(dim, page)(q, k, v, table(pages), integers(lengths), parts, sums)
        combine(dim, splits=splits)(parts, sums, o, lse)
        for i, n in enumerate(lengths):
            for j in range(g):
                rows = slice(j * (h // g), (j + 1) * (h // g))
                kv = (float64(x)[pages[i]].reshape(-1, g, dim)[:n, j] for x in (k, v))
                want, want_sums = attend(float64(q)[i, rows], *kv)
                worst = max(worst, check_rows(f"{lengths} {page=}", o[i, rows], want))
                check_lse(f"{lengths} {page=}", lse[i, rows], want_sums)
    print(f"paged_decode on {WHERE}: {len(cases)} cases, largest relative error {worst:.1e}")


if __name__ == "__main__":
    main()
