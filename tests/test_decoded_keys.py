"""Two products that overlap (attention's), of which one reads a tile that the threads of all
warpgroups decode in shared memory: they meet for it before one of them takes its turn."""

from __future__ import annotations

import re

import numpy as np
import pytest

import tilec
import tilec.language as T

pytestmark = pytest.mark.usefixtures("unassembled")

M, N = T.dynamic("M, N")
SM90 = "cuda:sm_90a"


@tilec.kernel
def decoded_keys(
    Q: T.Tensor((M, 64), "float16"), K: T.Tensor((N, 64), "int8"),
    V: T.Tensor((N, 64), "float16"), C: T.Tensor((M, 64), "float32"),
):  # fmt: skip
    with T.Kernel(T.ceildiv(M, 128), threads=256) as b:
        q, k = T.alloc_shared((128, 64), "float16"), T.alloc_shared((64, 64), "int8")
        decoded, v = T.alloc_shared((64, 64), "float16"), T.alloc_shared((64, 64), "float16")
        s, p = T.alloc_fragment((128, 64), "float32"), T.alloc_fragment((128, 64), "float16")
        o = T.alloc_fragment((128, 64), "float32")
        T.annotate_schedule(overlap=True)
        T.copy(Q[b * 128, 0], q)
        T.clear(o)
        for n in T.Pipelined(T.ceildiv(N, 64), num_stages=2):
            T.copy(K[n * 64, 0], k)
            T.copy(V[n * 64, 0], v)
            T.copy(k, decoded)
            T.gemm(q, decoded, s, transpose_B=True, clear_accum=True)
            for i, j in T.Parallel(128, 64):
                s[i, j] = T.exp(s[i, j] * 0.01)
            T.copy(s, p)
            T.gemm(p, v, o)
        T.copy(o, C[b * 128, 0])


def test_nobody_meets_while_it_has_the_turn(rng: np.random.Generator) -> None:
    """One warpgroup waited for the other at a barrier, which waited for its turn: a deadlock."""
    Q, V = (rng.standard_normal((n, 64)).astype(np.float16) for n in (100, 192))
    K = rng.integers(-9, 9, (192, 64)).astype(np.int8)
    C = np.zeros((100, 64), np.float32)
    compiled = decoded_keys.compile(Q, K, V, C, target=SM90)
    stage = compiled.stages["insert_sync"]
    (turn,) = re.findall(r"ordered_wait.*?\bordered_arrive", stage, re.S)
    assert turn.count("gemm") == 2 and "barrier id" not in turn
    assert re.search(r"barrier id=1, threads=256\n *ordered_wait 2, warpgroups=2\n", stage)
    report = tilec.simulate(decoded_keys, Q, K, V, C, target=SM90, schedules=2)
    assert report.ok, report
    right = np.exp(Q.astype(np.float64) @ K.T * 0.01) @ V.astype(np.float64)
    np.testing.assert_allclose(C, right, atol=2e-3 * abs(right).max())
