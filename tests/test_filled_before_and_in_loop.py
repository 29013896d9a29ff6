"""One tile for what comes before a loop and for what comes in it, both by TMA."""

from __future__ import annotations

import re

import numpy as np

import tilec
import tilec.language as T

SM90 = "cuda:sm_90a"
M = T.dynamic("M")


@tilec.kernel
def weighed(
    A: T.Tensor((M, 64), "float32"),
    B: T.Tensor((M, 64), "float32"),
    C: T.Tensor((M, 64), "float32"),
) -> None:
    """A's tiles times the sum of A's by B's."""
    with T.Kernel(T.ceildiv(M, 32), threads=128) as bx:
        T.annotate_schedule(specialise=True, persistent=True, stages=3, consumers="cooperative")
        x = T.alloc_shared((32, 64), "float32")
        w = T.alloc_shared((32, 64), "float32")
        own = T.alloc_fragment((32, 64), "float32")
        total = T.alloc_fragment((32, 64), "float32")
        T.copy(A[bx * 32, 0], x)
        T.copy(x, own)
        T.clear(total)
        for k in T.Pipelined(T.ceildiv(M, 32), num_stages=3):
            T.copy(B[k * 32, 0], x)
            T.copy(A[k * 32, 0], w)
            for i, j in T.Parallel(32, 64):
                total[i, j] += x[i, j] * w[i, j]
        for i, j in T.Parallel(32, 64):
            own[i, j] *= total[i, j]
        T.copy(own, C[bx * 32, 0])


def test_one_tile_for_both(rng: np.random.Generator) -> None:
    """The loop's stages were taken of the stage before it: bytes past the ring (a GPU's illegal
    address), and no fence in front of TMA's next copy."""
    a, b = (rng.standard_normal((96, 64)).astype(np.float32) for _ in range(2))
    c = np.empty_like(a)
    made = weighed.compile(a, b, c, target=SM90)
    assert made.stages["plan"].count("ahead: x, by tma, stages: 3") == 2
    stages = re.findall(r"= ring_stage (%\w+),", made.stages["insert_sync"])
    assert stages == ["%x", "%x", "%w"] * 2  # what consumers read, what producers fill
    report = tilec.simulate(weighed, a, b, c, target=SM90, resident_blocks=1)
    assert report.ok, report
    want = a.reshape(3, 32, 64) * (a * b).reshape(3, 32, 64).sum(0)
    np.testing.assert_allclose(c.reshape(3, 32, 64), want, rtol=1e-5, atol=1e-5)
