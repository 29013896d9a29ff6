"""CDNA4 (gfx950): what it has that CDNA3 has not: instructions of twice the depth, OCP's float8,
160 KB of LDS; and what it lacks, TF32. Compiled to a code object and run in the simulator, before
and after LLVM's optimiser, against float64."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from test_row_products import E4, E5, Product

import tilec
import tilec.language as T

GFX942, GFX950 = "hip:gfx942", "hip:gfx950"
OCP = {E4: ml_dtypes.float8_e4m3fn, E5: ml_dtypes.float8_e5m2, "bfloat16": ml_dtypes.bfloat16}
F32 = ("float32",) * 4
M, N, K = T.dynamic("M, N, K")


def quarters(shape: tuple[int, int], dtype: str) -> np.ndarray:
    """Numbers of which every product and sum is exact."""
    kind = np.dtype(OCP.get(dtype, dtype))
    whole = np.random.default_rng(sum(shape)).integers(-8 if kind.kind != "u" else 0, 8, shape)
    return (whole if kind.kind in "iu" else whole / 4).astype(kind)


PRODUCTS = [
    (Product("float16", "float16", "float32", "float32"), "v_mfma_f32_32x32x16_f16"),
    (Product("float16", "float16", "float16", "float32", (64, 64, 24)), "v_mfma_f32_32x32x16_f16"),
    (Product("bfloat16", "bfloat16", "float32", "float32", (16, 64, 32)),
     "v_mfma_f32_16x16x32_bf16"),
    (Product("bfloat16", "bfloat16", "float32", "float32", (64, 64, 32), True, False),
     "v_mfma_f32_32x32x16_bf16"),
    (Product("float16", "float16", "float32", "float32", (16, 64, 32)), "v_mfma_f32_16x16x32_f16"),
    (Product("int8", "int8", "int32", "int32"), "v_mfma_i32_32x32x32_i8"),
    (Product("int8", "int8", "int32", "int32", (16, 64, 64)), "v_mfma_i32_16x16x64_i8"),
    (Product(E4, E4, "float32", "float32", (16, 64, 64)), "v_mfma_f32_16x16x32_fp8_fp8"),
    (Product(E5, E4, "float32", "float32"), "v_mfma_f32_32x32x16_bf8_fp8"),
    (Product(*F32, (64, 64, 32), tf32=True), "v_mfma_f32_32x32x2_f32"),
    (Product("float64", "float64", "float64", "float64", (32, 32, 16)), "v_mfma_f64_16x16x4_f64"),
]  # fmt: skip


def product_of(p: Product, target: str, optimised: bool) -> tilec.CompiledKernel:
    """`p` compiled, after its numbers were right, as LLVM's optimiser leaves it or before."""
    kernel = tilec.kernel(p.kernel())
    depth = 2 * p.tile[2]
    a = quarters((depth, 40) if p.transpose_a else (40, depth), p.a)
    b = quarters((48, depth) if p.transpose_b else (depth, 48), p.b)
    want = (a.T if p.transpose_a else a).astype(float) @ (b.T if p.transpose_b else b).astype(float)
    c = np.zeros((40, 48), p.out)
    report = tilec.simulate(kernel, a, b, c, target=target, optimised=optimised)
    assert not report.findings
    np.testing.assert_array_equal(c, want)
    return kernel.compile(a, b, c, target=target)


@pytest.mark.parametrize("number", range(len(PRODUCTS)), ids=[row for _, row in PRODUCTS])
def test_products(number: int) -> None:
    """What LLVM's optimiser leaves of every other one: that does not know products apart."""
    p, row = PRODUCTS[number]
    made = product_of(p, GFX950, bool(number % 2))
    assert set(re.findall(r"v_mfma\w+", made.asm)) == {row}
    assert made.resources.spilled_bytes == 0
    assert made.binary[48] == 0x4F, "EF_AMDGPU_MACH_AMDGCN_GFX950"


def test_operands_come_16_bytes_at_a_time() -> None:
    """A lane has 8 neighbours of K in one register operand, twice as many as on CDNA3."""
    specs = [tilec.spec((256, 256), "float16")] * 2 + [tilec.spec((256, 256), "float32")]
    kernel = tilec.kernel(PRODUCTS[0][0].kernel())
    text = {t: kernel.compile(*specs, target=t).asm for t in (GFX942, GFX950)}
    assert "ds_read_b128" in text[GFX950] and "ds_read_b64" not in text[GFX950]
    assert "ds_read_b128" not in text[GFX942]


def through_float8(X: T.Tensor((M, 64), "float32"), Y: T.Tensor((M, 64), E4),
                   Z: T.Tensor((M, 64), E5), W: T.Tensor((M, 64), "float32")):  # fmt: skip
    with T.Kernel(T.ceildiv(M, 4), threads=64) as bx:
        for i, j in T.Parallel(4, 64):
            Y[bx * 4 + i, j] = X[bx * 4 + i, j]
            Z[bx * 4 + i, j] = X[bx * 4 + i, j]
            low = T.cast(-0.0, E4) if j == 0 else T.cast(X[bx * 4 + i, j], E4)
            W[bx * 4 + i, j] = T.cast(low, "float32") + T.cast(T.cast(1.7, E5), "float32")


def test_float8_is_ocps() -> None:
    """Conversions saturate at 448 and 57344 (FNUZ: 240 and 57344) and keep nan; literals and the
    sign of zero are OCP's."""
    x = (np.random.default_rng(0).standard_normal((8, 64)) * 100).astype(np.float32)
    x[0, :8] = [np.inf, -np.inf, np.nan, 1e9, -460, 300, 0.001, -0.0]
    y, z = np.zeros((8, 64), OCP[E4]), np.zeros((8, 64), OCP[E5])
    w = np.zeros((8, 64), np.float32)
    for optimised in (False, True):
        kernel = tilec.kernel(through_float8)
        report = tilec.simulate(kernel, x, y, z, w, target=GFX950, optimised=optimised)
        assert not report.findings
        for got, top in ((y, 448), (z, 57344)):
            want = np.clip(x, -top, top).astype(got.dtype).astype(np.float32)
            np.testing.assert_array_equal(got.astype(np.float32), want)
        low = np.clip(x, -448, 448).astype(OCP[E4]).astype(np.float32)
        low[:, 0] = 0
        np.testing.assert_array_equal(w, low + np.float32(1.75))


def test_arrays_hold_the_targets_float8() -> None:
    kernel, fnuz = tilec.kernel(PRODUCTS[7][0].kernel()), ml_dtypes.float8_e4m3fnuz
    a, c = np.zeros((64, 64), fnuz), np.zeros((64, 64), np.float32)
    with pytest.raises(tilec.LaunchError, match="expected float8_e4m3, got float8_e4m3fnuz"):
        kernel.compile(a, a, c, target=GFX950)
    assert kernel.compile(a, a, c, target=GFX942).binary


def large(X: T.Tensor((M, 256), "float32"), Y: T.Tensor((M, 256), "float32")):
    """Y = each 128 rows of X upside down, through 128 KB of shared memory."""
    with T.Kernel(T.ceildiv(M, 128), threads=256) as bx:
        tile = T.alloc_shared((128, 256), "float32")
        T.copy(X[bx * 128, 0], tile)
        for i, j in T.Parallel(128, 256):
            Y[bx * 128 + i, j] = tile[127 - i, j]


def test_160_kilobytes_of_lds() -> None:
    kernel: Any = tilec.kernel(large)
    x = np.arange(128 * 256, dtype=np.float32).reshape(128, 256)
    y = np.zeros_like(x)
    made = kernel.compile(x, y, target=GFX950)
    assert made.resources.shared_bytes == 128 << 10
    assert not tilec.simulate(kernel, x, y, target=GFX950).findings
    np.testing.assert_array_equal(y, x[::-1])
    with pytest.raises(tilec.CompileError, match="shared memory"):
        kernel.compile(x, y, target=GFX942)
