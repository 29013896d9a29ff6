"""O = softmax(Q Kᵀ / sqrt(dim)) V and the logarithm of each row's sum, in one pass over the keys.

Tensors are (batch, sequence, heads, dim) with any strides, so (batch, heads, sequence, dim) comes
as a view. `causal`: the last query is at the last key. `window`: a query sees its own key and so
many less one before it. `cap`: scores become cap tanh(score / cap). `biased`: Bias (heads, queries,
keys) is added to the scores. A row that sees no key gives 0, and lse -inf.
"""

import functools
from typing import Any

from attention_support import LOG2_E, WHERE, check_heads, empty, random, swapped

import tilec
import tilec.language as T

B, S, N, H = T.dynamic("B, S, N, H")


@functools.cache
def mha(dim: int, value_dim: int, causal=False, window=0, cap=0.0, biased=False) -> Any:
    scale = dim**-0.5
    unit = 1.0 if cap or biased else scale * LOG2_E  # of the scores that are exponentiated

    @tilec.kernel
    def mha_fwd(
        Q: T.Tensor((B, S, H, dim), "float16"),
        K: T.Tensor((B, N, H, dim), "float16"),
        V: T.Tensor((B, N, H, value_dim), "float16"),
        Bias: T.Tensor((H, S, N) if biased else (1,), "float16"),
        O: T.Tensor((B, S, H, value_dim), "float16"),
        Lse: T.Tensor((B, H, S), "float32"),
        BM: T.constexpr = T.auto(32, 64, 128, 192, 256),
        BN: T.constexpr = T.auto(32, 64, 112, 128, 160),
    ):
        with T.Kernel(T.ceildiv(S, BM), H, B) as (bx, h, b):
            q = T.alloc_shared((BM, dim), "float16")
            k = T.alloc_shared((BN, dim), "float16")
            v = T.alloc_shared((BN, value_dim), "float16")
            s = T.alloc_fragment((BM, BN), "float32")
            p = T.alloc_fragment((BM, BN), "float16")
            o = T.alloc_fragment((BM, value_dim), "float32")
            high, before, shrink, total, more = (
                T.alloc_fragment((BM,), "float32") for _ in range(5)
            )
            T.copy(Q[b, bx * BM : (bx + 1) * BM, h, :], q)
            T.clear(o)
            T.clear(total)
            T.fill(high, -1e30)  # no score is less; of a finite number exponents stay numbers
            place = bx * BM + N - S  # of the first query among the keys
            first = T.max(place - window + 1, 0) // BN if window else 0
            end = T.min(N, T.max(place + BM, 0)) if causal else N
            for n in T.Pipelined(first, T.ceildiv(end, BN), num_stages=2):
                T.copy(K[b, n * BN : (n + 1) * BN, h, :], k)
                T.gemm(q, k, s, transpose_B=True, policy=T.GemmWarpPolicy.FullRow, clear_accum=True)
                for i, j in T.Parallel(BM, BN):
                    seen = n * BN + j < N
                    if causal:
                        seen = seen and n * BN + j <= place + i
                    if window:
                        seen = seen and n * BN + j > place + i - window
                    x = s[i, j]
                    if cap:
                        x = cap * T.tanh(x * (scale / cap))
                    elif biased:
                        x *= scale
                    if biased:
                        x += Bias[h, bx * BM + i, n * BN + j]
                    if cap or biased:
                        x *= LOG2_E
                    s[i, j] = T.if_then_else(seen, x, -T.infinity("float32"))
                T.copy(high, before)
                T.reduce_max(s, high, dim=1, clear=False)
                for i in T.Parallel(BM):
                    shrink[i] = T.exp2(before[i] * unit - high[i] * unit)
                for i, j in T.Parallel(BM, BN):
                    s[i, j] = T.exp2(s[i, j] * unit - high[i] * unit)
                T.reduce_sum(s, more, dim=1)
                for i in T.Parallel(BM):
                    total[i] = total[i] * shrink[i] + more[i]
                T.copy(s, p)
                for i, j in T.Parallel(BM, value_dim):
                    o[i, j] *= shrink[i]
                T.copy(V[b, n * BN : (n + 1) * BN, h, :], v)
                T.gemm(p, v, o, policy=T.GemmWarpPolicy.FullRow)
            for i in T.Parallel(BM):
                shrink[i] = T.if_then_else(total[i] > 0, 1 / total[i], 0.0)
                if bx * BM + i < S:
                    Lse[b, h, bx * BM + i] = (high[i] * unit + T.log2(total[i])) / LOG2_E
            for i, j in T.Parallel(BM, value_dim):
                o[i, j] *= shrink[i]
            T.copy(o, O[b, bx * BM : (bx + 1) * BM, h, :])

    return mha_fwd


def specs(dim: int, value_dim: int, biased: bool = False) -> list[Any]:
    shapes = ((4, 4096, 16, dim), (4, 4096, 16, dim), (4, 4096, 16, value_dim))
    shapes += ((16, 4096, 4096) if biased else (1,), (4, 4096, 16, value_dim))
    return [*(tilec.spec(x, "float16") for x in shapes), tilec.spec((4, 16, 4096), "float32")]


FULL, WINDOW = mha(128, 128), mha(128, 128, causal=True, window=1024, cap=50.0)
DIMS = ((64, 64), (96, 96), (128, 128), (192, 192), (192, 128), (256, 256))
SPECS = [(mha(*dims, causal=True), specs(*dims), {}) for dims in DIMS]
SPECS += [(FULL, specs(128, 128), {}), (WINDOW, specs(128, 128), {})]
# registers hold a tile of the bias, too
SPECS += [(mha(128, 128, biased=True), specs(128, 128, biased=True), {"BN": 64})]
CASES: list[tuple[tuple[int, ...], dict[str, Any]]] = [  # batch, queries, keys, heads; options
    ((1, 70, 90, 2), {}),
    ((2, 70, 33, 1), {"causal": True}),  # the first rows see nothing
    ((1, 90, 200, 1), {"causal": True, "window": 33, "cap": 2.0, "biased": True}),
    ((1, 5, 0, 1), {}),
]


def main(
    cases: list[tuple[tuple[int, ...], dict[str, Any]]] = CASES, dims: tuple[int, int] = (64, 32)
) -> None:
    worst, (dim, value_dim) = 0.0, dims
    for number, ((b, s, n, h), options) in enumerate(cases):
        shapes = ((b, s, h, dim), (b, n, h, dim), (b, n, h, value_dim), (b, s, h, value_dim))
        if number % 2:  # (batch, heads, sequence, dim) in memory
            q, k, v, o = (swapped(random((x[0], x[2], x[1], x[3]), "float16", 1)) for x in shapes)
        else:
            q, k, v, o = (random(x, "float16", i) for i, x in enumerate(shapes))
        bias = random((h, s, n) if options.get("biased") else (1,), "float16", 5)
        lse = empty((b, h, s), "float32")
        mha(dim, value_dim, **options)(q, k, v, bias, o, lse)
        shown = {x: y for x, y in options.items() if x != "biased"}
        more = {"bias": bias} if "biased" in options else {}
        worst = max(worst, check_heads(f"mha {options}", o, lse, q, k, v, **shown, **more))
    print(f"mha_fwd on {WHERE}: {len(cases)} cases, largest relative error {worst:.1e}")


if __name__ == "__main__":
    main()
