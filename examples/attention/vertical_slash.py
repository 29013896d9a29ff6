"""Causal attention along verticals and slashes: each head keeps some keys for all queries
(verticals), and some distances: every query sees the key so far before it (slashes).

`lists` turns the two into what a kernel wants, for each block of BM queries: the first keys of runs
of BN (the slashes, joined), in rising order, and the single keys outside of these. Runs come as
tiles, single keys are gathered row by row. Q, K, V and O are (batch, sequence, heads, dim); Lse is
the logarithm of each row's sum, -inf where a row sees no key.
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
)

import tilec
import tilec.language as T

B, S, H, I, NR, NS = T.dynamic("B, S, H, I, NR, NS")


@tilec.macro
def step(q, k, v, s, p, o, high, before, shrink, total, more, scale, all_seen=False):
    """One block of keys; if not all are seen, scores begin at 0, or -inf where one is not."""
    policy = T.GemmWarpPolicy.FullRow
    T.gemm(q, k, s, transpose_B=True, policy=policy, clear_accum=all_seen)
    T.copy(high, before)
    T.reduce_max(s, high, dim=1, clear=False)
    for i in T.Parallel(s.shape[0]):
        shrink[i] = T.exp2(before[i] * scale - high[i] * scale)
    for i, j in T.Parallel(*s.shape):
        s[i, j] = T.exp2(s[i, j] * scale - high[i] * scale)
    T.reduce_sum(s, more, dim=1)
    for i in T.Parallel(s.shape[0]):
        total[i] = total[i] * shrink[i] + more[i]
    T.copy(s, p)
    for i, j in T.Parallel(*o.shape):
        o[i, j] *= shrink[i]
    T.gemm(p, v, o, policy=policy)


@functools.cache
def vertical_slash(dim: int) -> Any:
    scale = dim**-0.5 * LOG2_E

    @tilec.kernel
    def vertical_slash_attention(
        Q: T.Tensor((B, S, H, dim), "float16"),
        K: T.Tensor((B, S, H, dim), "float16"),
        V: T.Tensor((B, S, H, dim), "float16"),
        run_count: T.Tensor((B, H, I), "int32"),
        runs: T.Tensor((B, H, I, NR), "int32"),
        single_count: T.Tensor((B, H, I), "int32"),
        singles: T.Tensor((B, H, I, NS), "int32"),
        O: T.Tensor((B, S, H, dim), "float16"),
        Lse: T.Tensor((B, H, S), "float32"),
        BM: T.constexpr = 64,
        BN: T.constexpr = 64,
    ):
        with T.Kernel(T.ceildiv(S, BM), H, B, threads=128) as (x, h, b):
            bx = T.ceildiv(S, BM) - 1 - x  # rows that see the most keys begin first
            q = T.alloc_shared((BM, dim), "float16")
            k, v, k_single, v_single = (T.alloc_shared((BN, dim), "float16") for _ in range(4))
            s, p = T.alloc_fragment((BM, BN), "float32"), T.alloc_fragment((BM, BN), "float16")
            o = T.alloc_fragment((BM, dim), "float32")
            high, before, shrink, total, more = (
                T.alloc_fragment((BM,), "float32") for _ in range(5)
            )
            T.copy(Q[b, bx * BM : (bx + 1) * BM, h, :], q)
            T.clear(o)
            T.clear(total)
            T.fill(high, -1e30)
            # So many runs at most, the last ones, have keys that not all rows see.
            masked = T.ceildiv(BM + BN - 2, BN)
            found = run_count[b, h, bx]
            seen_by_all = T.max(found - masked, 0)
            for n in T.Pipelined(seen_by_all, num_stages=2):
                key = runs[b, h, bx, n]
                T.copy(K[b, key : key + BN, h, :], k)
                T.copy(V[b, key : key + BN, h, :], v)
                step(q, k, v, s, p, o, high, before, shrink, total, more, scale, True)
            for n in T.Pipelined(seen_by_all, found, num_stages=2):
                key = runs[b, h, bx, n]
                T.copy(K[b, key : key + BN, h, :], k)
                T.copy(V[b, key : key + BN, h, :], v)
                for i, j in T.Parallel(BM, BN):
                    s[i, j] = T.if_then_else(key + j <= bx * BM + i, 0, -T.infinity("float32"))
                step(q, k, v, s, p, o, high, before, shrink, total, more, scale)
            count = single_count[b, h, bx]
            for n in T.serial(T.ceildiv(count, BN)):
                for i, j in T.Parallel(BN, dim):
                    key = T.if_then_else(n * BN + i < count, singles[b, h, bx, n * BN + i], 0)
                    key = T.clamp(key, 0, S - 1)  # rows there are: nobody waits to ask for the next
                    k_single[i, j] = K[b, key, h, j]
                    v_single[i, j] = V[b, key, h, j]
                for i, j in T.Parallel(BM, BN):
                    seen = n * BN + j < count
                    seen = seen and singles[b, h, bx, n * BN + j] <= bx * BM + i
                    s[i, j] = T.if_then_else(seen, 0, -T.infinity("float32"))
                step(q, k_single, v_single, s, p, o, high, before, shrink, total, more, scale)
            for i in T.Parallel(BM):
                shrink[i] = T.if_then_else(total[i] > 0, 1 / total[i], 0.0)
                if bx * BM + i < S:
                    Lse[b, h, bx * BM + i] = (high[i] * scale + T.log2(total[i])) / LOG2_E
            for i, j in T.Parallel(BM, dim):
                o[i, j] *= shrink[i]
            T.copy(o, O[b, bx * BM : (bx + 1) * BM, h, :])

    return vertical_slash_attention


def lists(
    length: int, verticals: list[int], slashes: list[int], bm: int, bn: int
) -> tuple[list[list[int]], list[list[int]]]:
    """For each block of queries of one head: first keys of runs, which do not overlap, and keys."""
    runs, singles = [], []
    keys = np.array(sorted(verticals), np.int64)
    for first in range(0, length, bm):
        last = min(first + bm, length) - 1
        found: list[int] = []
        for start in sorted(max(first - d, 0) for d in slashes if d <= last):
            for key in range(start, min(start + bm, last + 1), bn):
                at = max(key, found[-1] + bn) if found else key
                if at < min(start + bm, last + 1):
                    found.append(at)
        runs.append(found)
        starts = np.array([-bn, *found])
        behind = keys - starts[np.searchsorted(starts, keys, "right") - 1]  # its last run's start
        singles.append(keys[(keys <= last) & (behind >= bn)].tolist())
    return runs, singles


def padded(rows: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """How long each list is, and all of them in one array."""
    whole = np.zeros((len(rows), max([1, *map(len, rows)])), np.int64)
    for i, row in enumerate(rows):
        whole[i, : len(row)] = row
    return np.array([len(row) for row in rows]), whole


def specs(dim: int, length: int) -> list[Any]:
    x, count = tilec.spec((1, length, 8, dim), "float16"), (1, 8, -(-length // 64))
    counts, table = tilec.spec(count, "int32"), tilec.spec((*count, 1000), "int32")
    return [x, x, x, counts, table, counts, table, x, tilec.spec((1, 8, length), "float32")]


SPECS = [(vertical_slash(dim), specs(dim, 16384), {}) for dim in (64, 128)]
CASES = [(150, [0, 3, 70, 140], [0, 90]), (70, [5], []), (130, [], [0, 33])]  # keys, distances


def main(cases: list[tuple[int, list[int], list[int]]] = CASES, dim: int = 64) -> None:
    worst, bm, bn = 0.0, 64, 32
    for length, verticals, slashes in cases:
        runs, singles = lists(length, verticals, slashes, bm, bn)
        q, k, v = (random((1, length, 1, dim), "float16", i) for i in range(3))
        o, lse = empty((1, length, 1, dim), "float16"), empty((1, 1, length), "float32")
        tables = (table(x[None, None]) for rows in (runs, singles) for x in padded(rows))
        vertical_slash(dim)(q, k, v, *tables, o, lse, BM=bm, BN=bn)
        seen = np.zeros((length, length), bool)
        for i in range(length):
            seen[i, singles[i // bm]] = True
            for at in runs[i // bm]:
                seen[i, at : at + bn] = True
        place = np.arange(length)
        seen &= place[None, :] <= place[:, None]
        for key in verticals:
            assert seen[key:, key].all()
        for d in slashes:
            assert seen[place[d:], place[d:] - d].all()
        want, sums = attend(*(float64(x)[0, :, 0] for x in (q, k, v)), seen)
        worst = max(worst, check_rows(f"{verticals}, {slashes}", o[0, :, 0], want))
        check_lse(f"{verticals}, {slashes}", lse[0, 0], sums)
    print(f"vertical_slash on {WHERE}: {len(cases)} cases, largest relative error {worst:.1e}")


if __name__ == "__main__":
    main()
