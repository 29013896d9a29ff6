"""MFMA by hand: MatrixCoreIntrinEmitter, T.tvm_mfma, the fine-grained GEMM listing with them."""

import re

import ml_dtypes
import numpy as np
import pytest

import tilec
import tilec.language as T
from tilec.intrinsics import MatrixCoreIntrinEmitter, make_mfma_swizzle_layout

KINDS = {"bfloat16": ml_dtypes.bfloat16, "float8_e4m3": ml_dtypes.float8_e4m3fnuz,
         "float8_e5m2": ml_dtypes.float8_e5m2fnuz}  # fmt: skip


def random(*shape, dtype="float16", target="hip:gfx942"):
    kind = KINDS.get(dtype, dtype)
    if target == "hip:gfx950" and dtype == "float8_e4m3":
        kind = ml_dtypes.float8_e4m3fn
    return np.random.default_rng(14).integers(-4, 5, shape).astype(kind)


def simulated(kernel, target, *arrays):
    report = tilec.simulate(kernel, *arrays, target=target)
    assert report.ok, report


def fine_grained(
    M, N, K, in_dtype, out_dtype, accum_dtype,
    a_transposed=False, b_transposed=True, k_pack=1, mfma_shape=None, cache_write_shared=False,
    is_m_first=False,
):  # fmt: skip
    """The listing of the GEMM README with matrix cores for tensor cores."""
    block_row_warps, block_col_warps, warp_row_tiles, warp_col_tiles = 2, 1, 32, 32
    depth = mfma_shape[2] if mfma_shape else 32 if "8" in in_dtype else 16
    chunk = 2 * depth * k_pack
    block_M, block_N, block_K = block_row_warps * warp_row_tiles, warp_col_tiles, chunk
    emitter = MatrixCoreIntrinEmitter(
        a_dtype=in_dtype,
        b_dtype=in_dtype,
        accum_dtype=accum_dtype,
        a_transposed=a_transposed,
        b_transposed=b_transposed,
        block_row_warps=block_row_warps,
        block_col_warps=block_col_warps,
        warp_row_tiles=warp_row_tiles,
        warp_col_tiles=warp_col_tiles,
        chunk=chunk,
        k_pack=k_pack,
        is_m_first=is_m_first,
        mfma_shape=mfma_shape,
        target="hip",
    )
    x, y = emitter.micro_size_x, emitter.micro_size_y

    @tilec.kernel
    def main(
        A: T.Tensor((K, M) if a_transposed else (M, K), in_dtype),
        B: T.Tensor((N, K) if b_transposed else (K, N), in_dtype),
        C: T.Tensor((M, N), out_dtype),
    ):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=emitter.threads) as (
            bx,
            by,
        ):
            A_shared = T.alloc_shared(
                (block_K, block_M) if a_transposed else (block_M, block_K), in_dtype
            )
            B_shared = T.alloc_shared(
                (block_N, block_K) if b_transposed else (block_K, block_N), in_dtype
            )
            C_shared = T.alloc_shared((block_M // x, block_N // y, x, y), out_dtype)
            A_local = T.alloc_local((emitter.warp_rows * k_pack * emitter.local_size_a,), in_dtype)
            B_local = T.alloc_local((emitter.warp_cols * k_pack * emitter.local_size_b,), in_dtype)
            C_local = T.alloc_local(
                (emitter.warp_rows * emitter.warp_cols * emitter.local_size_out,), accum_dtype
            )
            T.annotate_layout(
                {
                    A_shared: make_mfma_swizzle_layout(A_shared),
                    B_shared: make_mfma_swizzle_layout(B_shared),
                }
            )
            T.clear(C_local)
            for ko in T.Pipelined(K // block_K, num_stages=0):
                if a_transposed:
                    T.copy(A[ko * block_K, by * block_M], A_shared)
                else:
                    T.copy(A[by * block_M, ko * block_K], A_shared)
                if b_transposed:
                    T.copy(B[bx * block_N, ko * block_K], B_shared)
                else:
                    T.copy(B[ko * block_K, bx * block_N], B_shared)
                for ki in T.serial(0, block_K // (k_pack * emitter.micro_size_k)):
                    emitter.ldmatrix_a(A_local, A_shared, ki)
                    emitter.ldmatrix_b(B_local, B_shared, ki)
                    emitter.mfma(A_local, B_local, C_local)
            if cache_write_shared:
                emitter.stmatrix(C_local, C_shared)
                for i, j in T.Parallel(block_M, block_N):
                    C[by * block_M + i, bx * block_N + j] = C_shared[i // x, j // y, i % x, j % y]
            else:
                emitter.stmatrix(C_local, C, pid_m=by, pid_n=bx)

    return main


FORMS = {
    "fp16": (("float16", "float32", "float32"), {}, "f32_16x16x16_f16", "ds_read2?(st64)?_b64"),
    "fp16 stored": (
        ("float16", "float16", "float32"), {"cache_write_shared": True}, "f32_16x16x16_f16", "",
    ),
    "bf16 TN": (
        ("bfloat16", "float32", "float32"),
        {"a_transposed": True, "b_transposed": False},
        "f32_16x16x16_bf16", "",
    ),
    "int8": (("int8", "int32", "int32"), {}, "i32_16x16x32_i8", "ds_read2?(st64)?_b64"),
    "int8 NN": (
        ("int8", "int32", "int32"), {"b_transposed": False, "is_m_first": True}, "i32_16x16x32_i8",
        "",
    ),
    "two steps": (
        ("float16", "float32", "float32"), {"k_pack": 2}, "f32_16x16x16_f16",
        "ds_read2?(st64)?_b(128|64)",
    ),
    "32x32": (
        ("float16", "float32", "float32"), {"mfma_shape": (32, 32, 8)}, "f32_32x32x8_f16", "",
    ),
    "int8 32x32": (
        ("int8", "int32", "int32"), {"mfma_shape": (32, 32, 16)}, "i32_32x32x16_i8", "",
    ),
    "fp8": (("float8_e4m3", "float32", "float32"), {}, "f32_16x16x32_fp8_fp8", ""),
    "fp32": (
        ("float32", "float32", "float32"), {"mfma_shape": (16, 16, 4)}, "f32_16x16x4_f32", "",
    ),
    "fp64": (
        ("float64", "float64", "float64"), {"mfma_shape": (16, 16, 4)}, "f64_16x16x4_f64", "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_the_fine_grained_listing(form):
    dtypes, given, instruction, loads = FORMS[form]
    m, n, k = 64, 32, 128 if "8" in dtypes[0] else 64
    kernel = fine_grained(m, n, k, *dtypes, **given)
    ta, tb = given.get("a_transposed", False), given.get("b_transposed", True)
    a = random(*((k, m) if ta else (m, k)), dtype=dtypes[0])
    b = random(*((n, k) if tb else (k, n)), dtype=dtypes[0])
    c = np.full((m, n), 77, dtypes[1])
    simulated(kernel, "hip:gfx942", a, b, c)
    left, right = (a.T if ta else a).astype("f8"), (b.T if tb else b).astype("f8")
    np.testing.assert_array_equal(c, left @ right)
    made = kernel.compile(a, b, c, target="hip:gfx942")
    found = re.findall(r"v_mfma_(\w+)", made.stages["gcn"])
    tiles = 1 if "32x32" in instruction else 4
    assert set(found) == {instruction} and len(found) % tiles == 0
    assert len(found) in (tiles * given.get("k_pack", 1), 2 * tiles * given.get("k_pack", 1))
    assert re.search(loads, made.stages["gcn"])
    assert not loads or not re.search("ds_read_u(8|16)", made.stages["gcn"])
    assert made.resources.spilled_bytes == 0


def test_ragged_tensors():
    """Tiles at the edges: what is not there counts as 0."""
    m, n, k = 70, 33, 64

    kernel = fine_grained(m, n, k, "float16", "float32", "float32", cache_write_shared=True)
    a, b = random(m, k), random(n, k)
    c = np.full((m, n), 77, "float32")
    simulated(kernel, "hip:gfx942", a, b, c)
    np.testing.assert_array_equal(c, a.astype("f8") @ b.T.astype("f8"))


@pytest.mark.parametrize(
    "dtype, accum, shape, instruction",
    [
        ("float16", "float32", (16, 16, 32), "f32_16x16x32_f16"),
        ("bfloat16", "float32", (32, 32, 16), "f32_32x32x16_bf16"),
        ("int8", "int32", (16, 16, 64), "i32_16x16x64_i8"),
        ("float16", "float32", None, "f32_16x16x16_f16"),
    ],
)
def test_cdna4(dtype, accum, shape, instruction):
    kernel = fine_grained(64, 32, 128, dtype, accum, accum, mfma_shape=shape)
    a, b = random(64, 128, dtype=dtype), random(32, 128, dtype=dtype)
    c = np.full((64, 32), 77, accum)
    simulated(kernel, "hip:gfx950", a, b, c)
    np.testing.assert_array_equal(c, a.astype("f8") @ b.T.astype("f8"))
    asm = kernel.compile(a, b, c, target="hip:gfx950").asm
    assert set(re.findall(r"v_mfma_(\w+)", asm)) == {instruction}


@tilec.kernel
def alone(
    A: T.Tensor((16, 4), "float32"),
    B: T.Tensor((4, 16), "float32"),
    C: T.Tensor((16, 16), "float32"),
):
    """Without an emitter: A and B as they are, so that a lane has a column of C."""
    with T.Kernel(1, threads=64):
        tx = T.get_thread_binding()
        a = T.alloc_local((2,), "float32")
        b = T.alloc_local((1,), "float32")
        c = T.alloc_local((4,), "float32")
        a[1] = A[tx % 16, tx // 16]
        b[0] = B[tx // 16, tx % 16]
        for e in T.serial(4):
            c[e] = e
        T.tvm_mfma("f32_16x16x4f32", "row", "row", "float32", "float32", "float32x4",
                   a, 1, b, 0, c, 0, dtype="float32x4")  # fmt: skip
        for e in T.serial(4):
            C[tx // 16 * 4 + e, tx % 16] = c[e]


def test_the_instruction_alone():
    a, b = random(16, 4, dtype="float32"), random(4, 16, dtype="float32")
    c = np.zeros((16, 16), "float32")
    simulated(alone, "hip:gfx942", a, b, c)
    np.testing.assert_array_equal(c, a @ b + np.arange(16)[:, None] % 4)


@pytest.mark.parametrize("given", [{}, {"k_pack": 2, "chunk": 32}, {"mfma_shape": (32, 32, 8),
                         "warp_row_tiles": 32, "warp_col_tiles": 32},
                         {"a_dtype": "int8", "b_dtype": "int8", "accum_dtype": "int32",
                          "chunk": 32}])  # fmt: skip
def test_index_maps(given):
    """Each element is one lane's, and the way back is one."""
    emitter = MatrixCoreIntrinEmitter(**given, b_transposed=True)
    size, depth = emitter.M_DIM, emitter.k_dim * emitter.k_pack
    for is_b in (False, True):
        place, element = emitter.get_ldmatrix_index_map(is_b)
        held = [place(i, k) for i in range(size) for k in range(depth)]
        assert sorted(held) == [(t, e) for t in range(64) for e in range(size * depth // 64)]
        assert [element(*at) for at in held] == [(i, k) for i in range(size) for k in range(depth)]
    element, place = emitter.get_store_index_map(), emitter.get_store_index_map(inverse=True)
    held = [(t, e) for t in range(64) for e in range(emitter.local_size_out)]
    assert sorted(element(*at) for at in held) == [(i, j) for i in range(size) for j in range(size)]
    assert [place(*element(*at)) for at in held] == held


def test_the_usual_maps():
    """TileLang's shared_16x16_to_local_64x4_layout_A and mfma_store_index_map."""
    emitter = MatrixCoreIntrinEmitter()
    place, element = emitter.get_ldmatrix_index_map()
    assert place(5, 9) == (5 + 16 * 2, 1) and element(37, 1) == (5, 9)
    assert emitter.get_store_index_map()(37, 3) == (5, 11)
    assert (emitter.local_size_a, emitter.local_size_out, emitter.mfma_suffix) == (
        4, 4, "f32_16x16x16f16",
    )  # fmt: skip


WRONG = {
    "dtypes": ({"accum_dtype": "float16"}, "no mfma of float16, float16, float16 .A, B, sums"),
    "mixed": ({"b_dtype": "int8"}, "no mfma of float16, int8, float32"),
    "shape": ({"mfma_shape": (32, 32, 16), "a_dtype": "float32", "b_dtype": "float32"},
              "no mfma of float32 of the shape .32, 32, 16."),
    "rows": ({"warp_row_tiles": 24}, "warp_row_tiles is 24, not a multiple of 16"),
    "columns": ({"warp_col_tiles": 8}, "warp_col_tiles is 8, not a multiple of 16"),
    "chunk": ({"k_pack": 2}, "chunk is 16, not a multiple of 32"),
    "k_pack": ({"k_pack": 0}, "k_pack is 0, not a multiple of 1"),
    "warps": ({"block_row_warps": 0}, "block_row_warps is 0"),
    "packed": ({"num_elems_per_byte": 2}, "num_elems_per_byte=2"),
    "shuffled": ({"b_preshuffle": True}, "b_preshuffle=True"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", WRONG)
def test_wrong_emitters(mistake):
    given, says = WRONG[mistake]
    with pytest.raises(tilec.CompileError, match=says) as caught:
        MatrixCoreIntrinEmitter(**given)
    assert caught.value.loc.file == __file__ and caught.value.hint


CALL = 'T.tvm_mfma("{}", "row", "row", "float16x4", "float16x4", "float32x4", {}, 0, {}, 0, {}, 0)'
USES = {
    "no local buffer": (CALL.format("f32_16x16x16f16", "s", "a", "c"), "hip:gfx942",
                        "multiplicand_a of T.tvm_mfma is s .*, not a local buffer"),
    "name": (CALL.format("f32_16x16x16bf16_1k", "a", "a", "c"), "hip:gfx942",
             "no mfma f32_16x16x16bf16_1k of float16, float16, float32 .*f32_16x16x16f16"),
    "sums": (CALL.format("f32_16x16x16f16", "a", "a", "a"), "hip:gfx942", "there are: none"),
    "nvidia": (CALL.format("f32_16x16x16f16", "a", "a", "c"), "cuda:sm_90a",
               "cuda:sm_90a has no v_mfma_f32_16x16x16f16, which is of waves of 64 lanes"),
    "cpu": (CALL.format("f32_16x16x16f16", "a", "a", "c"), "cpu", "cpu has no v_mfma"),
    "cdna4": (CALL.format("f32_16x16x32_f16", "a", "a", "c"), "hip:gfx942",
              "hip:gfx942 has no v_mfma_f32_16x16x32_f16"),
    "divergence": ("if T.get_thread_binding() < 7:\n            "
                   + CALL.format("f32_16x16x16f16", "a", "a", "c"), "hip:gfx942", "T.tvm_mfma"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", USES)
def test_wrong_products(mistake, tmp_path):
    line, target, says = USES[mistake]
    text = f"""
import tilec, tilec.language as T
@tilec.kernel
def wrong(A: T.Tensor((8, 8), "float32")):
    with T.Kernel(1, threads=64):
        s = T.alloc_shared((64,), "float16")
        a = T.alloc_local((16,), "float16")
        c = T.alloc_local((16,), "float32")
        T.clear(a); T.clear(c)
        {line}
        A[0, 0] = c[0]
"""
    file = tmp_path / "wrong.py"
    file.write_text(text)
    names = {}
    exec(compile(text, str(file), "exec"), names)
    with pytest.raises(tilec.CompileError, match=says) as caught:
        names["wrong"].compile(np.zeros((8, 8), "float32"), target=target)
    assert caught.value.loc.line in (10, 11)


def test_another_target_s_emitter():
    kernel = fine_grained(64, 32, 64, "float16", "float32", "float32")
    specs = [tilec.spec(s, "float16") for s in ((64, 64), (32, 64))]
    with pytest.raises(tilec.CompileError, match="waves of 64 lanes") as caught:
        kernel.compile(*specs, tilec.spec((64, 32), "float32"), target="cuda:sm_90a")
    assert "TensorCoreIntrinEmitter" in caught.value.hint
