"""T.vectorized in the code of threads: accesses as wide as layout and alignment let them, and the
results of iterations that follow one another."""

import re

import numpy as np
import pytest
from simulated import run

import tilec
import tilec.language as T
from tilec.layout import make_swizzled_layout

pytestmark = pytest.mark.turns

TARGETS = ("cpu", "cuda:sm_80", "cuda:sm_90a", "hip:gfx942")


def through_shared(columns, skip, swizzled):
    """Eight threads a row take 8 neighbours each, from `skip` on, to shared memory and back."""

    @tilec.kernel
    def kernel(A: T.Tensor((16, columns), "float16"), C: T.Tensor((16, 64), "float16")):
        with T.Kernel(1, threads=128):
            S = T.alloc_shared((16, 64), "float16")
            a = T.alloc_local((8,), "float16")
            b = T.alloc_local((8,), "float16")
            if swizzled:
                T.annotate_layout({S: make_swizzled_layout(S)})
            tx = T.get_thread_binding()
            row, column = tx // 8, tx % 8 * 8
            for v in T.vectorized(8):
                a[v] = A[row, column + v + skip]
            for v in T.vectorized(8):
                S[row, column + v] = a[v] * T.float16(2)
            T.sync_threads()
            for v in T.vectorized(8):
                b[v] = S[15 - row, column + v]
            for v in T.vectorized(8):
                C[row, column + v] = b[v]

    return kernel


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "columns, skip, swizzled", [(64, 0, False), (64, 0, True), (72, 4, True), (66, 1, True)]
)
def test_through_shared_memory(columns, skip, swizzled, target, rng):
    a, c = rng.standard_normal((16, columns)).astype("f2"), np.zeros((16, 64), "f2")
    kernel = through_shared(columns, skip, swizzled)
    run(kernel, target, a, c)
    np.testing.assert_array_equal(c, 2 * a[::-1, skip : skip + 64])
    if not target.startswith("cuda"):
        return
    asm = kernel.compile(a, c, target=target).asm
    assert "ld.shared.v4" in asm and "st.global.v4" in asm
    assert not re.search(r"ld\.shared\.(b|u)16", asm)
    wide = {0: r"ld.global.nc.v4.b32", 4: r"ld.global.nc.v2.b32", 1: r"ld.global.nc.b16"}
    assert re.search(wide[skip], asm)


@tilec.kernel
def in_turn(A: T.Tensor((64, 8), "int32"), C: T.Tensor((64, 16), "int32")):
    """What one iteration writes the next one reads, or writes again."""
    with T.Kernel(1, threads=64):
        S = T.alloc_shared((64, 16), "int32")
        tx = T.get_thread_binding()
        for v in T.vectorized(16):
            S[tx, v] = 0
        S[tx, 0] = A[tx, 0]
        for v in T.vectorized(8):
            S[tx, v + 1] = S[tx, v] * 3 + v
        for v in T.vectorized(7):
            C[tx, v] = A[tx, v]
            C[tx, v + 1] = A[tx, v + 1] + 1
        for v in T.vectorized(8):
            C[tx, v + 8] = S[tx, v + 1]


@pytest.mark.parametrize("target", TARGETS)
def test_iterations_follow_one_another(target, rng):
    a, c = rng.integers(-9, 9, (64, 8), dtype="i4"), np.zeros((64, 16), "i4")
    run(in_turn, target, a, c)
    want = np.zeros_like(c)
    want[:, :8] = a
    want[:, 7] += 1
    x = a[:, 0]
    for v in range(8):
        x = x * 3 + v
        want[:, v + 8] = x
    np.testing.assert_array_equal(c, want)


@pytest.mark.gpu
def test_on_a_gpu(rng):
    torch = pytest.importorskip("torch")
    a = torch.randn(16, 72, device="cuda").half()
    c = torch.zeros(16, 64, device="cuda").half()
    through_shared(72, 4, True)(a, c)
    assert torch.equal(c, 2 * a.flip(0)[:, 4:68])
