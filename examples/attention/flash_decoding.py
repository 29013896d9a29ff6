"""One query a sequence over a long cache of keys: the keys are shared out to blocks, whose parts a
second kernel puts together.

Q (batch, heads, dim), K and V (batch, keys, groups, dim), `lengths` (batch,) the keys of each
sequence. The heads that share keys are the rows of one product. Each of `splits` blocks takes a run
of key blocks and leaves its result and the logarithm of its sum; one without any leaves 0 and -inf.
"""

import functools
from typing import Any

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
)

import tilec
import tilec.language as T

B, N, H, G, P = T.dynamic("B, N, H, G, P")


@functools.cache
def decode(dim: int, kind: str = "float32") -> Any:
    """`kind`: of the parts, of which one alone is the result."""
    scale = dim**-0.5 * LOG2_E

    @tilec.kernel(pdl=True)  # begins while the launch before it ends
    def flash_decode(
        Q: T.Tensor((B, H, dim), "float16"),
        K: T.Tensor((B, N, G, dim), "float16"),
        V: T.Tensor((B, N, G, dim), "float16"),
        lengths: T.Tensor((B,), "int32"),
        Parts: T.Tensor((B, P, H, dim), kind),
        Sums: T.Tensor((B, P, H), "float32"),
        BM: T.constexpr = T.auto(16, 32, 64),
        BN: T.constexpr = T.auto(32, 64, 128),
    ):
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
            keys = T.min(lengths[b], N)
            blocks = T.ceildiv(keys, BN)
            each = T.ceildiv(blocks, P)
            first, end = part * each, T.min(part * each + each, blocks)
            for n in T.Pipelined(first, end, num_stages=2):
                T.copy(K[b, n * BN : (n + 1) * BN, g, :], k)
                for i, j in T.Parallel(BM, BN):
                    s[i, j] = T.if_then_else(n * BN + j < keys, 0, -T.infinity("float32"))
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
                if head + i < last:
                    Sums[b, part, head + i] = high[i] * scale + T.log2(total[i])
            for i, j in T.Parallel(BM, dim):
                if head + i < last:
                    Parts[b, part, head + i, j] = o[i, j] * shrink[i]

    return flash_decode


@functools.cache
def combine(dim: int, kind: str = "float32", splits: int = 8) -> Any:
    """The parts of each row, weighted by the powers of two that are their sums, BP at a time. Of
    `splits`, as many as there are up to 32: many parts mean few rows, and loads to wait for."""
    at_once = next((n for n in (8, 16) if n >= splits), 32)
    columns = max(n for n in range(1, 257) if dim % n == 0) if splits > 8 else dim  # of a block

    @tilec.kernel(pdl=True)  # begins while the launch before it ends
    def combine_parts(
        Parts: T.Tensor((B, P, H, dim), kind),
        Sums: T.Tensor((B, P, H), "float32"),
        O: T.Tensor((B, H, dim), "float16"),
        Lse: T.Tensor((B, H), "float32"),
        BP: T.constexpr = at_once,
    ):
        with T.Kernel(dim // columns, H, B, threads=128) as (bx, h, b):
            part = T.alloc_fragment((BP, columns), "float32")
            weight = T.alloc_fragment((BP,), "float32")
            o = T.alloc_fragment((columns,), "float32")
            high, before, total = (T.alloc_fragment((1,), "float32") for _ in range(3))
            first = bx * columns
            T.clear(o)
            T.clear(total)
            T.fill(high, -1e30)
            for n in T.serial(T.ceildiv(P, BP)):
                T.copy(Parts[b, n * BP : (n + 1) * BP, h, first : first + columns], part)
                for i in T.Parallel(BP):
                    weight[i] = T.if_then_else(
                        n * BP + i < P, Sums[b, n * BP + i, h], -T.infinity("float32")
                    )
                T.copy(high, before)
                T.reduce_max(weight, high, dim=0, clear=False)
                for i in T.Parallel(BP):
                    weight[i] = T.exp2(weight[i] - high[0])
                for i in T.Parallel(1):
                    total[i] *= T.exp2(before[i] - high[i])
                for j in T.Parallel(columns):
                    o[j] *= T.exp2(before[0] - high[0])
                for i, j in T.Parallel(BP, columns):
                    part[i, j] *= weight[i]
                T.reduce_sum(weight, total, dim=0, clear=False)
                T.reduce_sum(part, o, dim=0, clear=False)
            for j in T.Parallel(columns):
                O[b, h, first + j] = T.if_then_else(total[0] > 0, o[j] / total[0], 0.0)
            if bx == 0:
                Lse[b, h] = (high[0] + T.log2(total[0])) / LOG2_E

    return combine_parts


def combine_specs(
    dim: int, batch: int, heads: int, splits: int, kind: str = "float32"
) -> list[Any]:
    parts = tilec.spec((batch, splits, heads, dim), kind)
    sums, lse = (tilec.spec(shape, "float32") for shape in ((batch, splits, heads), (batch, heads)))
    return [parts, sums, tilec.spec((batch, heads, dim), "float16"), lse]


def specs(
    dim: int,
    batch: int = 4,
    keys: int = 32768,
    splits: int = 8,
    kind: str = "float32",
    heads: int = 64,
    groups: int = 8,
) -> list[Any]:
    parts, sums, o, _ = combine_specs(dim, batch, heads, splits, kind)
    kv = tilec.spec((batch, keys, groups, dim), "float16")
    return [o, kv, kv, tilec.spec((batch,), "int32"), parts, sums]


SPECS: list[tuple[Any, list[Any], dict[str, Any]]] = []
for _dim in (64, 96, 128, 192, 256):
    SPECS += [(decode(_dim), specs(_dim), {}), (combine(_dim), combine_specs(_dim, 4, 64, 8), {})]
CASES = [([100, 0, 17], 4, 2, 3), ([65], 40, 2, 1)]  # keys, heads, groups, splits


def main(cases: list[tuple[list[int], int, int, int]] = CASES, dim: int = 64) -> None:
    worst = 0.0
    for lengths, h, g, splits in cases:
        b, most = len(lengths), max(lengths, default=0)
        q = random((b, h, dim), "float16", 1)
        k, v = (random((b, most, g, dim), "float16", i) for i in (2, 3))
        parts, sums = empty((b, splits, h, dim), "float32"), empty((b, splits, h), "float32")
        o, lse = empty((b, h, dim), "float16"), empty((b, h), "float32")
        decode(dim)(q, k, v, integers(lengths), parts, sums)
        combine(dim, splits=splits)(parts, sums, o, lse)
        for i, n in enumerate(lengths):
            for j in range(g):
                rows = slice(j * (h // g), (j + 1) * (h // g))
                kv = (float64(x)[i, :n, j] for x in (k, v))
                want, want_sums = attend(float64(q)[i, rows], *kv)
                worst = max(worst, check_rows(f"{lengths} {splits=}", o[i, rows], want))
                check_lse(f"{lengths} {splits=}", lse[i, rows], want_sums)
    print(f"flash_decoding on {WHERE}: {len(cases)} cases, largest relative error {worst:.1e}")


if __name__ == "__main__":
    main()
