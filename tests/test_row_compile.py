"""Products in every dtype as machine code: no spills, no advisories of ptxas (C75xx: products that
wait for one another), on every GPU target. Nothing is launched."""

import re
from typing import Any

import pytest
from test_row_products import E4, E5, M, N, Product, from_registers, read_back

import tilec
import tilec.language as T
from tilec.codegen.ptxas import run_ptxas
from tilec.jit.compiled import FEW_SPILLED
from tilec.support.tools import find_ptxas
from tilec.target import find_target

HOPPER, AMPERE, MI300, MI355 = "cuda:sm_90a", "cuda:sm_80", "hip:gfx942", "hip:gfx950"


def compiled(kernel: Any, target: str, *specs: Any) -> str:
    """The text of the machine code; it has no spills, but for a few bytes where the parts of a sum
    are added up, once for each tile, and no advisories."""
    made = tilec.kernel(kernel).compile(*specs, target=target)
    assert made.binary
    ptxas = find_ptxas()
    few = FEW_SPILLED if made.plan is not None and made.plan.parts > 1 else 0
    if target.startswith("hip") or ptxas is not None:
        assert made.resources.spilled_bytes <= few
    if target.startswith("cuda") and ptxas is not None:
        arch = find_target(target).arch
        advisories = run_ptxas(ptxas, made.asm, arch).advisories
        assert not [a for a in advisories if not (few and "spilled" in a)]
    return made.asm


def product(p: Product, target: str, size: int = 1024) -> str:
    specs = [tilec.spec((size, size), d) for d in (p.a, p.b, p.out)]
    return compiled(p.kernel(), target, *specs)


F32, TF32 = ("float32",) * 4, {"tf32": True}
WIDE = [
    (Product("float16", "float16", "float16", "float16", (128, 256, 64), threads=256),
     "m64n256k16.f16.f16.f16"),
    (Product(E4, E4, "float32", "bfloat16", (128, 256, 128), threads=256),
     "m64n256k32.f32.e4m3.e4m3"),
    (Product(E5, E4, "float16", "float16", (128, 256, 128), threads=256),
     "m64n256k32.f16.e5m2.e4m3"),
    (Product("int8", "uint8", "int32", "int32", (128, 256, 128), threads=256),
     "m64n256k32.s32.s8.u8"),
    (Product(*F32, (128, 256, 32), threads=256, **TF32), "m64n256k8.f32.tf32.tf32"),
    (Product(*F32, (64, 8, 32), **TF32), "m64n8k8.f32.tf32.tf32"),
    (Product("uint8", "uint8", "int32", "int32", (128, 24, 64), threads=256),
     "m64n24k32.s32.u8.u8"),
    (Product(*F32, (128, 256, 32), transpose_b=False, threads=256, **TF32),
     "m64n128k8.f32.tf32.tf32"),
    (Product("int8", "int8", "int32", "int32", (128, 256, 128), transpose_b=False, threads=256),
     "m64n128k32.s32.s8.s8"),
    (Product(*F32, (128, 128, 32), True, True, threads=256, **TF32), "m64n128k8.f32.tf32.tf32"),
    (Product(E4, E5, "float32", "float32", (128, 128, 128), threads=256, fast=False),
     "m64n128k32.f32.e4m3.e5m2"),
]  # fmt: skip


@pytest.mark.parametrize(("p", "row"), WIDE, ids=[row for _, row in WIDE])
def test_wide_products_on_hopper(p, row):
    text = product(p, HOPPER)
    assert f"wgmma.mma_async.sync.aligned.{row}" in text


NARROW = [
    (Product("float64", "float64", "float64", "float64", (64, 64, 16)), AMPERE,
     "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64"),
    (Product("float64", "float64", "float64", "float64", (64, 64, 16)), HOPPER,
     "mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64"),
    (Product("float64", "float64", "float64", "float64", (64, 64, 12)), HOPPER,
     "mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64"),
    (Product("int8", "uint8", "int32", "int32", (128, 128, 64), threads=256), AMPERE,
     "mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32"),
    (Product(*F32, (128, 128, 32), threads=256, **TF32), AMPERE,
     "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32"),
    (Product(E4, E5, "float32", "float16", (128, 128, 32), threads=256), AMPERE,
     "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"),
    (Product(E4, E5, "float32", "float16", (64, 64, 64), True, False), HOPPER,
     "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e5m2.f32"),
    (Product("int8", "int8", "int32", "int32", (64, 64, 64), True, False), HOPPER,
     "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32"),
    (Product(*F32, (64, 64, 32), True, False, **TF32), HOPPER,
     "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32"),
    (Product(E4, E5, "float32", "float16", (128, 128, 64), threads=256), MI300,
     "v_mfma_f32_32x32x16_fp8_bf8"),
    (Product("int8", "int8", "int32", "int32", (128, 128, 64), threads=256), MI300,
     "v_mfma_i32_32x32x16_i8"),
    (Product(*F32, (128, 128, 32), threads=256, **TF32), MI300, "v_mfma_f32_32x32x4_xf32"),
    (Product(*F32, (64, 64, 16), threads=256), MI300, "v_mfma_f32_32x32x2_f32"),
    (Product("float64", "float64", "float64", "float64", (64, 64, 16), threads=256), MI300,
     "v_mfma_f64_16x16x4_f64"),
    (Product("float16", "float16", "float32", "float16", (128, 128, 64), threads=256), MI355,
     "v_mfma_f32_32x32x16_f16"),
    (Product("bfloat16", "bfloat16", "float32", "bfloat16", (16, 64, 32)), MI355,
     "v_mfma_f32_16x16x32_bf16"),
    (Product("int8", "int8", "int32", "int32", (128, 128, 64), threads=256), MI355,
     "v_mfma_i32_32x32x32_i8"),
    (Product(E5, E4, "float32", "float16", (128, 128, 64), threads=256), MI355,
     "v_mfma_f32_32x32x16_bf8_fp8"),
    (Product(*F32, (128, 128, 32), threads=256, **TF32), MI355, "v_mfma_f32_32x32x2_f32"),
]  # fmt: skip


@pytest.mark.parametrize(("p", "target", "row"), NARROW, ids=[row for *_, row in NARROW])
def test_products_of_warps(p, target, row):
    assert row in product(p, target)


def chained(Q: T.Tensor((M, 128), "float16"), K: T.Tensor((N, 128), "float16"),
            V: T.Tensor((N, 128), "float16"), C: T.Tensor((M, 128), "float16")):  # fmt: skip
    """C = (relu(Q @ K^T)) @ V: the second product's A never leaves the registers."""
    with T.Kernel(T.ceildiv(M, 128), threads=256) as bx:
        T.annotate_schedule(overlap=False)  # each product behind the one before
        Q_s = T.alloc_shared((128, 128), "float16")
        K_s = T.alloc_shared((128, 128), "float16")
        V_s = T.alloc_shared((128, 128), "float16")
        scores = T.alloc_fragment((128, 128), "float32")
        weights = T.alloc_fragment((128, 128), "float16")
        acc = T.alloc_fragment((128, 128), "float32")
        T.copy(Q[bx * 128, 0], Q_s)
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(N, 128), num_stages=2):
            T.copy(K[k * 128, 0], K_s)
            T.copy(V[k * 128, 0], V_s)
            T.gemm(Q_s, K_s, scores, transpose_B=True, clear_accum=True)
            for i, j in T.Parallel(128, 128):
                weights[i, j] = T.max(scores[i, j], 0.0)
            T.gemm(weights, V_s, acc)
        T.copy(acc, C[bx * 128, 0])


def test_two_products_in_a_row():
    spec = tilec.spec((1024, 128), "float16")
    made = tilec.kernel(chained).compile(spec, spec, spec, spec, target=HOPPER)
    assert "exchange" not in made.stages["lower_gemm"]
    text = compiled(chained, HOPPER, spec, spec, spec, spec)
    assert "mma.sync" not in text and text.count("wgmma.commit_group") == 2
    assert "bar.sync" not in text.split("wgmma.commit_group", 1)[1].split("wgmma.commit_group")[0]


def test_swizzled_addresses_share_registers():
    """Elements that a thread reads one by one from a swizzled tile: far fewer addresses than
    loads."""
    p = Product("int8", "int8", "int32", "int32", (128, 256, 128), transpose_b=False, threads=256)
    loads = re.findall(r"ld\.shared\.b8\s+%\w+, \[(%\w+)", product(p, HOPPER))
    assert len(loads) == 128 and len(set(loads)) <= 32


@pytest.mark.parametrize(
    ("a", "tile", "b", "sums", "row"),
    [
        ("float16", "float16", "float16", "float32", "m64n64k16.f32.f16.f16"),
        ("int8", "bfloat16", "bfloat16", "float32", "m64n64k16.f32.bf16.bf16"),
        ("float16", "float16", "float16", "float16", "m64n64k16.f16.f16.f16"),
        ("float32", "float32", "float32", "float32", "m64n64k8.f32.tf32.tf32"),
        ("float16", E5, E4, "float32", "m64n64k32.f32.e5m2.e4m3"),
        ("int8", "int8", "uint8", "int32", "m64n64k32.s32.s8.u8"),
    ],
)
def test_a_in_registers(a, tile, b, sums, row):
    specs = [tilec.spec((512, 512), d) for d in (a, b, sums)]
    text = compiled(from_registers(a, tile, b, sums, a == "float32"), HOPPER, *specs)
    assert re.search(rf"{re.escape(row)} {{[^}}]*}}, {{", text), "A is a list of registers"


@pytest.mark.parametrize("target", [HOPPER, AMPERE])
def test_a_comes_by_ldmatrix(target):
    specs = [tilec.spec((512, 512), d) for d in ("float16", "float16", "float32")]
    assert "ldmatrix.sync.aligned.m8n8.x4.shared" in compiled(read_back, target, *specs)
