"""The gradients of attention: dQ, dK and dV from dO, the result O and its lse.

`by_keys` has a block for some keys. It gives dK and dV, and adds its share to a sum (float32, which
`deltas` cleared) by atomics, from shared memory, where TMA can do it: five products a step, sums
whose last bits may differ from run to run; `rounded` makes dQ of it. `by_rows` has a block for some
queries and gives dQ in the same bits each time, at two products more. Tensors are (batch, sequence,
heads, dim); the last query is at the last key where `causal`. Rows that see nothing have gradients
of 0.

What each element of the scores would pay for is done once for a row or a result: `deltas` gives the
lse in base 2, the scale of dS multiplies dK and dQ at their ends, and queries past the end need no
mask, since they are read as zeros, as are their dO, lse and delta: they add 0 to all sums.
"""

import functools
from typing import Any

import numpy as np
from attention_support import (
    LOG2_E,
    WHERE,
    check_rows,
    empty,
    float64,
    gradients,
    random,
    visible,
)
from mha_fwd import mha

import tilec
import tilec.language as T

B, S, N, H = T.dynamic("B, S, N, H")
Policy = T.GemmWarpPolicy.FullRow


def tensors(dim: int) -> tuple[Any, Any]:
    """Queries and what is as they are; keys and values."""
    return T.Tensor((B, S, H, dim), "float16"), T.Tensor((B, N, H, dim), "float16")


@functools.cache
def deltas(dim: int, clears: bool = False) -> Any:
    """Delta = the sum of O dO over each row, and the lse in base 2; `clears` the sum of dQ."""
    rows, _ = tensors(dim)

    @tilec.kernel
    def mha_deltas(
        O: rows,
        dO: rows,
        Lse: T.Tensor((B, H, S), "float32"),
        Delta: T.Tensor((B, H, S), "float32"),
        Log: T.Tensor((B, H, S), "float32"),
        Sum: T.Tensor((B, S, H, dim) if clears else (1, 1, 1, 1), "float32"),
        BM: T.constexpr = 32,
    ):
        with T.Kernel(T.ceildiv(S, BM), H, B, threads=128) as (bx, h, b):
            o, do = T.alloc_fragment((BM, dim), "float32"), T.alloc_fragment((BM, dim), "float32")
            total, log = T.alloc_fragment((BM,), "float32"), T.alloc_fragment((BM,), "float32")
            T.copy(O[b, bx * BM : (bx + 1) * BM, h, :], o)
            T.copy(dO[b, bx * BM : (bx + 1) * BM, h, :], do)
            for i, j in T.Parallel(BM, dim):
                o[i, j] *= do[i, j]
            T.reduce_sum(o, total, dim=1)
            T.copy(total, Delta[b, h, bx * BM : (bx + 1) * BM])
            T.copy(Lse[b, h, bx * BM : (bx + 1) * BM], log)
            for i in T.Parallel(BM):
                log[i] *= LOG2_E
            T.copy(log, Log[b, h, bx * BM : (bx + 1) * BM])
            if clears:
                T.fill(Sum[b, bx * BM : (bx + 1) * BM, h, :], 0)

    return mha_deltas


@functools.cache
def rounded(dim: int) -> Any:
    """dQ in float16, from the sum that the kernel by keys has left."""

    @tilec.kernel
    def mha_rounded(
        Sum: T.Tensor((B, S, H, dim), "float32"),
        dQ: T.Tensor((B, S, H, dim), "float16"),
        BM: T.constexpr = 32,
    ):
        with T.Kernel(T.ceildiv(S, BM), H, B, threads=128) as (bx, h, b):
            dq = T.alloc_fragment((BM, dim), "float32")
            T.copy(Sum[b, bx * BM : (bx + 1) * BM, h, :], dq)
            for i, j in T.Parallel(BM, dim):
                dq[i, j] *= dim**-0.5
            T.copy(dq, dQ[b, bx * BM : (bx + 1) * BM, h, :])

    return mha_rounded


@functools.cache
def by_keys(dim: int, causal: bool = False, atomics: bool = True) -> Any:
    """dK and dV, and with `atomics` the sum of dQ, not yet scaled."""
    scale = dim**-0.5
    staged = atomics and dim <= 128  # of wider heads shared memory has no room for dQ
    rows, keys = tensors(dim)

    @tilec.kernel
    def mha_bwd_keys(
        Q: rows,
        K: keys,
        V: keys,
        dO: rows,
        Log: T.Tensor((B, H, S), "float32"),
        Delta: T.Tensor((B, H, S), "float32"),
        Sum: T.Tensor((B, S, H, dim) if atomics else (1, 1, 1, 1), "float32"),
        dK: keys,
        dV: keys,
        BM: T.constexpr = T.auto(16, 32, 64),
        BN: T.constexpr = T.auto(32, 64, 128),
    ):
        with T.Kernel(T.ceildiv(N, BN), H, B) as (bx, h, b):
            k, v = T.alloc_shared((BN, dim), "float16"), T.alloc_shared((BN, dim), "float16")
            q, do = T.alloc_shared((BM, dim), "float16"), T.alloc_shared((BM, dim), "float16")
            log, delta = T.alloc_shared((BM,), "float32"), T.alloc_shared((BM,), "float32")
            s, ds = T.alloc_fragment((BN, BM), "float32"), T.alloc_fragment((BN, BM), "float32")
            p, half = T.alloc_fragment((BN, BM), "float16"), T.alloc_fragment((BN, BM), "float16")
            ds_s = T.alloc_shared((BN, BM), "float16")
            dq = T.alloc_fragment((BM, dim), "float32")
            if staged:
                dq_s = T.alloc_shared((BM, dim), "float32")
            dk, dv = T.alloc_fragment((BN, dim), "float32"), T.alloc_fragment((BN, dim), "float32")
            T.copy(K[b, bx * BN : (bx + 1) * BN, h, :], k)
            T.copy(V[b, bx * BN : (bx + 1) * BN, h, :], v)
            T.clear(dk)
            T.clear(dv)
            first = T.max(bx * BN + S - N, 0) // BM if causal else 0
            for m in T.Pipelined(first, T.ceildiv(S, BM), num_stages=2):
                T.copy(Q[b, m * BM : (m + 1) * BM, h, :], q)
                T.copy(dO[b, m * BM : (m + 1) * BM, h, :], do)
                T.copy(Log[b, h, m * BM : (m + 1) * BM], log)
                T.copy(Delta[b, h, m * BM : (m + 1) * BM], delta)
                T.gemm(k, q, s, transpose_B=True, policy=Policy, clear_accum=True)
                T.gemm(v, do, ds, transpose_B=True, policy=Policy, clear_accum=True)
                for i, j in T.Parallel(BN, BM):
                    x = T.exp2(T.fma(s[i, j], scale * LOG2_E, -log[j]))
                    last = m * BM + j + N - S if causal else N - 1
                    s[i, j] = T.if_then_else(bx * BN + i <= last, x, 0.0)
                for i, j in T.Parallel(BN, BM):  # while these wait for the second product
                    ds[i, j] = s[i, j] * (ds[i, j] - delta[j])
                T.copy(s, p)
                T.gemm(p, do, dv, policy=Policy)
                T.copy(ds, half)
                T.gemm(half, q, dk, policy=Policy)
                if atomics:
                    T.copy(half, ds_s)
                    T.gemm(ds_s, k, dq, transpose_A=True, clear_accum=True)
                    if staged:
                        T.copy(dq, dq_s)
                        T.atomic_add(Sum[b, m * BM : (m + 1) * BM, h, :], dq_s, use_tma=True)
                    else:
                        T.atomic_add(Sum[b, m * BM : (m + 1) * BM, h, :], dq)
            for i, j in T.Parallel(BN, dim):
                dk[i, j] *= scale
            T.copy(dk, dK[b, bx * BN : (bx + 1) * BN, h, :])
            T.copy(dv, dV[b, bx * BN : (bx + 1) * BN, h, :])

    return mha_bwd_keys


@functools.cache
def by_rows(dim: int, causal: bool = False) -> Any:
    """dQ alone."""
    scale = dim**-0.5
    rows, keys = tensors(dim)

    @tilec.kernel
    def mha_bwd_rows(
        Q: rows,
        K: keys,
        V: keys,
        dO: rows,
        Log: T.Tensor((B, H, S), "float32"),
        Delta: T.Tensor((B, H, S), "float32"),
        dQ: rows,
        BM: T.constexpr = T.auto(32, 64, 128),
        BN: T.constexpr = T.auto(16, 32, 64),
    ):
        with T.Kernel(T.ceildiv(S, BM), H, B) as (bx, h, b):
            q, do = T.alloc_shared((BM, dim), "float16"), T.alloc_shared((BM, dim), "float16")
            k, v = T.alloc_shared((BN, dim), "float16"), T.alloc_shared((BN, dim), "float16")
            log, delta = T.alloc_fragment((BM,), "float32"), T.alloc_fragment((BM,), "float32")
            s, ds = T.alloc_fragment((BM, BN), "float32"), T.alloc_fragment((BM, BN), "float32")
            half = T.alloc_fragment((BM, BN), "float16")
            dq = T.alloc_fragment((BM, dim), "float32")
            T.copy(Q[b, bx * BM : (bx + 1) * BM, h, :], q)
            T.copy(dO[b, bx * BM : (bx + 1) * BM, h, :], do)
            T.copy(Log[b, h, bx * BM : (bx + 1) * BM], log)
            T.copy(Delta[b, h, bx * BM : (bx + 1) * BM], delta)
            T.clear(dq)
            place = bx * BM + N - S
            end = T.min(N, T.max(place + BM, 0)) if causal else N
            for n in T.Pipelined(T.ceildiv(end, BN), num_stages=2):
                T.copy(K[b, n * BN : (n + 1) * BN, h, :], k)
                T.copy(V[b, n * BN : (n + 1) * BN, h, :], v)
                T.gemm(q, k, s, transpose_B=True, policy=Policy, clear_accum=True)
                T.gemm(do, v, ds, transpose_B=True, policy=Policy, clear_accum=True)
                for i, j in T.Parallel(BM, BN):
                    seen = n * BN + j < N
                    if causal:
                        seen = seen and n * BN + j <= place + i
                    x = T.exp2(T.fma(s[i, j], scale * LOG2_E, -log[i]))
                    s[i, j] = T.if_then_else(seen, x, 0.0)
                for i, j in T.Parallel(BM, BN):
                    ds[i, j] = s[i, j] * (ds[i, j] - delta[i])
                T.copy(ds, half)
                T.gemm(half, k, dq, policy=Policy)
            for i, j in T.Parallel(BM, dim):
                dq[i, j] *= scale
            T.copy(dq, dQ[b, bx * BM : (bx + 1) * BM, h, :])

    return mha_bwd_rows


def backward(
    q: Any, k: Any, v: Any, o: Any, do: Any, lse: Any, causal: bool, deterministic: bool,
    dq: Any, dk: Any, dv: Any, delta: Any, log: Any, total: Any,
) -> None:  # fmt: skip
    """Fills `dq`, `dk`, `dv` and, on the way, `delta` and `log` (batch, heads, queries) and, where
    it need not be `deterministic`, `total` (as `dq`, in float32; else one element in as many
    dimensions). No queries or no keys: 0 in what there is."""
    dim = q.shape[3]
    deltas(dim, not deterministic)(o, do, lse, delta, log, total)
    by_keys(dim, causal, not deterministic)(q, k, v, do, log, delta, total, dk, dv)
    if deterministic:
        by_rows(dim, causal)(q, k, v, do, log, delta, dq)
    else:
        rounded(dim)(total, dq)


def specs(dim: int) -> tuple[list[Any], list[Any]]:
    x, wide = (tilec.spec((4, 4096, 16, dim), f"float{bits}") for bits in (16, 32))
    sums = tilec.spec((4, 16, 4096), "float32")
    return [x, x, x, x, sums, sums, wide, x, x], [x, x, x, x, sums, sums, x]


SPECS: list[tuple[Any, list[Any], dict[str, Any]]] = []
for _dim in (64, 96, 128, 192, 256):
    _keys, _rows = specs(_dim)
    SPECS += [(by_keys(_dim, True), _keys, {}), (by_rows(_dim, True), _rows, {})]
_keys, _ = specs(128)
_keys[6] = tilec.spec((1, 1, 1, 1), "float32")
SPECS += [(by_keys(128, False, False), _keys, {})]
CASES = [((1, 40, 70, 2), False), ((1, 70, 40, 1), True)]  # batch, queries, keys, heads; causal


def main(cases: list[tuple[tuple[int, ...], bool]] = CASES, dim: int = 64) -> None:
    worst = 0.0
    for (b, s, n, h), causal in cases:
        q, do = (random((b, s, h, dim), "float16", i) for i in (1, 2))
        k, v = (random((b, n, h, dim), "float16", i) for i in (3, 4))
        o, lse = empty((b, s, h, dim), "float16"), empty((b, h, s), "float32")
        mha(dim, dim, causal)(q, k, v, random((1,), "float16"), o, lse)
        for deterministic in (False, True):
            dq = empty((b, s, h, dim), "float16")
            total = empty((1, 1, 1, 1) if deterministic else (b, s, h, dim), "float32")
            dk, dv = (empty((b, n, h, dim), "float16") for _ in range(2))
            delta, log = (empty((b, h, s), "float32") for _ in range(2))
            made = (dq, dk, dv, delta, log, total)
            backward(q, k, v, o, do, lse, causal, deterministic, *made)
            for i, j in np.ndindex(b, h):
                one = [float64(x)[i, :, j] for x in (q, k, v, do)]
                wanted = gradients(*one, visible(s, n, causal))
                for name, got, want in zip(("dQ", "dK", "dV"), (dq, dk, dv), wanted):
                    found = check_rows(name, got[i, :, j], want, 2.0**-9)
                    worst = max(worst, found)
    print(f"mha_bwd on {WHERE}: {len(cases)} cases, largest relative error {worst:.1e}")


if __name__ == "__main__":
    main()
