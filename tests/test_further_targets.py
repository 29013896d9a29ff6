"""Machines beside those that are measured: what Ampere's and Ada's small chips (sm_86, sm_89) have
that A100 has not and the other way round, CDNA2 (gfx90a), and RDNA3 (gfx1100), whose waves have 32
lanes. Compiled to machine code and run in the simulator, before and after LLVM's optimiser, against
float64."""

from __future__ import annotations

import re

import numpy as np
import pytest
from test_gfx950 import F32, OCP, product_of, through_float8
from test_row_products import E4, E5, Product

import tilec
import tilec.language as T
from tilec.fuzz.waits import unfinished_at_barriers
from tilec.target import cuda_target, find_target

SM86, SM89, GFX90A, GFX1100 = "cuda:sm_86", "cuda:sm_89", "hip:gfx90a", "hip:gfx1100"
TARGETS = (SM86, SM89, GFX90A, GFX1100)
MACHINES = {GFX90A: 0x3F, GFX1100: 0x41}  # EF_AMDGPU_MACH_AMDGCN_…
HALF = ("float16", "float16", "float32", "float32")
PRODUCTS = [
    (SM86, Product(*HALF), "m16n8k16.row.col.f32.f16.f16.f32"),
    (SM86, Product(E4, E4, "float32", "float32"), "m16n8k16.row.col.f32.f16.f16.f32"),
    (SM89, Product(E4, E4, "float32", "float32"), "m16n8k32.row.col.f32.e4m3.e4m3.f32"),
    (SM89, Product(E5, E4, "float32", "float32"), "m16n8k32.row.col.f32.e5m2.e4m3.f32"),
    (SM89, Product("int8", "int8", "int32", "int32"), "m16n8k32.row.col.s32.s8.s8.s32"),
    (SM89, Product(*F32, (64, 64, 32), tf32=True), "m16n8k8.row.col.f32.tf32.tf32.f32"),
    (GFX90A, Product(*HALF), "v_mfma_f32_32x32x8f16"),
    (GFX90A, Product(*HALF, (16, 64, 32)), "v_mfma_f32_16x16x16f16"),
    (GFX90A, Product("bfloat16", "bfloat16", "float32", "float32"), "v_mfma_f32_32x32x8bf16_1k"),
    (GFX90A, Product(E4, E5, "float32", "float32"), "v_mfma_f32_32x32x8f16"),
    (GFX90A, Product("int8", "int8", "int32", "int32"), "v_mfma_i32_32x32x8i8"),
    (GFX90A, Product("int8", "int8", "int32", "int32", (16, 64, 64)), "v_mfma_i32_16x16x16i8"),
    (GFX90A, Product(*F32, (64, 64, 32), tf32=True), "v_mfma_f32_32x32x2f32"),
    (GFX90A, Product(*("float64",) * 4, (32, 32, 16)), "v_mfma_f64_16x16x4f64"),
    (GFX1100, Product(*HALF), "v_wmma_f32_16x16x16_f16"),
    (GFX1100, Product(*HALF, (64, 64, 32), True, False), "v_wmma_f32_16x16x16_f16"),
    (GFX1100, Product(*HALF, (128, 128, 32), False, True), "v_wmma_f32_16x16x16_f16"),
    (GFX1100, Product("bfloat16", "bfloat16", "float32", "float32"), "v_wmma_f32_16x16x16_bf16"),
    (GFX1100, Product(E4, E4, "float32", "float32"), "v_wmma_f32_16x16x16_f16"),
    (GFX1100, Product("int8", "int8", "int32", "int32"), "v_wmma_i32_16x16x16_iu8"),
    (GFX1100, Product("uint8", "int8", "int32", "int32"), "v_wmma_i32_16x16x16_iu8"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(PRODUCTS)))
def test_products(number: int) -> None:
    """What LLVM's optimiser leaves of every other one: that does not know products apart."""
    target, p, row = PRODUCTS[number]
    made = product_of(p, target, bool(number % 2))
    used = {*re.findall(r"v_w?mf?ma\w+|mma\.sync\S+", made.asm)}
    assert {name.removeprefix("mma.sync.aligned.") for name in used} == {row}
    assert not made.resources.spilled_bytes
    if target in MACHINES:
        assert made.binary[48] == MACHINES[target]


@pytest.mark.parametrize("target", TARGETS)
def test_float8_is_ocps(target: str) -> None:
    """By Ada's conversions, and by integer arithmetic where there are none."""
    x = (np.random.default_rng(0).standard_normal((8, 64)) * 100).astype(np.float32)
    x[0, :8] = [np.inf, -np.inf, np.nan, 1e9, -460, 300, 0.001, -0.0]
    y, z = np.zeros((8, 64), OCP[E4]), np.zeros((8, 64), OCP[E5])
    w = np.zeros((8, 64), np.float32)
    kernel = tilec.kernel(through_float8)
    assert tilec.simulate(kernel, x, y, z, w, target=target).ok
    for got, top in ((y, 448), (z, 57344)):
        want = np.clip(x, -top, top).astype(got.dtype).astype(np.float32)
        np.testing.assert_array_equal(got.astype(np.float32), want)
    asm = kernel.compile(x, y, z, w, target=target).asm
    assert ("e4m3x2" in asm) == (target == SM89) and "cvt_pk" not in asm


def test_a_device_runs_its_own_target() -> None:
    found = {cc: cuda_target(*cc) for cc in ((8, 0), (8, 6), (8, 7), (8, 9), (9, 0), (10, 0))}
    names = {cc: t and t.name.removeprefix("cuda:") for cc, t in found.items()}
    assert names == {
        (8, 0): "sm_80", (8, 6): "sm_86", (8, 7): "sm_80", (8, 9): "sm_89", (9, 0): "sm_90a",
        (10, 0): None,
    }  # fmt: skip


M, N, K, N1 = T.dynamic("M, N, K, N1")


@tilec.kernel
def matmul(
    A: T.Tensor((M, K), "float16"),
    B: T.Tensor((K, N), "float16"),
    C: T.Tensor((M, N), "float16"),
    BM: T.constexpr = T.auto(64, 128, 256),
    BN: T.constexpr = T.auto(64, 128, 256),
    BK: T.constexpr = T.auto(32, 64),
):
    with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM)) as (bx, by):
        a = T.alloc_shared((BM, BK), "float16")
        b = T.alloc_shared((BK, BN), "float16")
        c = T.alloc_fragment((BM, BN), "float32")
        T.clear(c)
        for k in T.Pipelined(T.ceildiv(K, BK)):
            T.copy(A[by * BM, k * BK], a)
            T.copy(B[k * BK, bx * BN], b)
            T.gemm(a, b, c)
        T.copy(c, C[by * BM, bx * BN])


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_chosen_fits_a_small_chip(target: str) -> None:
    """99 KB of shared memory a block, where A100 has 163; 64 KB of LDS."""
    made = matmul.compile(*[tilec.spec((4096, 4096), "float16")] * 3, target=target)
    assert 0 < made.resources.shared_bytes <= find_target(target).shared_bytes
    assert made.resources.spilled_bytes == 0


@tilec.kernel
def row_softmax(X: T.Tensor((M, N1), "float32"), Y: T.Tensor((M, N1), "float32")):
    with T.Kernel(M, threads=128) as row:
        x = T.alloc_fragment((512,), "float32")
        top, total = T.alloc_fragment((1,), "float32"), T.alloc_fragment((1,), "float32")
        for i in T.Parallel(512):
            x[i] = T.if_then_else(i < N1, X[row, i], -T.infinity("float32"))
        T.reduce_max(x, top)
        for i in T.Parallel(512):
            x[i] = T.exp(x[i] - top[0])
        T.reduce_sum(x, total)
        for i in T.Parallel(512):
            if i < N1:
                Y[row, i] = x[i] / total[0]


@pytest.mark.parametrize("target", TARGETS)
def test_lanes_exchange(target: str) -> None:
    """Reductions across the lanes of a wave, of 32 and of 64."""
    x = np.random.default_rng(1).standard_normal((3, 300)).astype(np.float32)
    want = np.exp(x - x.max(1, keepdims=True), dtype=np.float64)
    want /= want.sum(1, keepdims=True)
    for optimised in (False, True):
        y = np.zeros_like(x)
        report = tilec.simulate(row_softmax, x, y, target=target, optimised=optimised)
        assert report.ok, str(report)
        np.testing.assert_allclose(y, want, rtol=1e-5)


@tilec.kernel
def either(n: T.float32, B: T.Tensor((1,), "int32")):
    with T.Kernel(1, threads=128):
        s = T.alloc_shared((1,), "int32")
        t = T.alloc_shared((1,), "int32")
        s[0] = 1
        if n >= 1:
            T.clear(s)
        else:
            for i in T.Parallel(1):
                t[i] = T.atomic_cas(s[i], 1, 1)
        B[0] = s[0]


@pytest.mark.parametrize("target", [GFX90A, GFX1100])
def test_waits_are_followed_through_masks(target: str) -> None:
    """LLVM notes by a mask which way a wave has come; masks of 32 lanes are single registers."""
    asm = either.compile(0.0, np.zeros(1, np.int32), target=target).asm
    assert list(unfinished_at_barriers(asm)) == []
    without = "\n".join(line for line in asm.split("\n") if "s_waitcnt" not in line)
    assert list(unfinished_at_barriers(without))
