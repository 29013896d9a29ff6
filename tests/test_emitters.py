"""Matrix instructions by hand: TensorCoreIntrinEmitter, T.ptx_mma, the GEMM README's listing."""

import importlib.util
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from simulated import run_compiled

import tilec
import tilec.language as T
from tilec.intrinsics import TensorCoreIntrinEmitter

pytestmark = pytest.mark.filterwarnings("error::tilec.PerformanceWarning")

TARGETS = ("cpu", "cuda:sm_90a", "cuda:sm_80", "hip:gfx942")
SEED = Path(__file__).parent / "seeds" / "tilelang_gemm_fine_grained.py"


def listing():
    spec = importlib.util.spec_from_file_location(SEED.stem, SEED)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.tl_matmul


def random(*shape, dtype="float16"):
    rng = np.random.default_rng(14)
    return rng.integers(-4, 5, shape).astype(dtype)


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "dtypes", [("float16", "float16", "float32"), ("float16", "float32", "float32"),
               ("int8", "int32", "int32")]
)  # fmt: skip
def test_the_fine_grained_listing(target, dtypes):
    if not target.startswith("cuda") and dtypes[1] == "float32":
        pytest.skip("as with float16, which takes long enough")
    m, n, k = (64, 128, 96) if target.startswith("cuda") else (64, 64, 32)
    kernel = listing()(m, n, k, *dtypes)
    a, b = random(m, k, dtype=dtypes[0]), random(n, k, dtype=dtypes[0])
    c = np.full((m, n), 77, dtypes[1])
    run_compiled(kernel, target, a, b, c)
    np.testing.assert_array_equal(c, a.astype("f8") @ b.astype("f8").T)


def test_the_listing_uses_the_instruction():
    specs = [tilec.spec(s, "float16") for s in ((64, 64), (64, 64), (64, 64))]
    made = listing()(64, 64, 64, "float16", "float16", "float32").compile(
        *specs, target="cuda:sm_90a"
    )
    assert made.asm.count("mma.sync.aligned.m16n8k16") >= 8
    assert made.asm.count("ldmatrix.sync.aligned.m8n8.x4.shared.b16") >= 4
    assert "ld.shared" not in made.asm.split("mma.sync")[0]
    assert made.resources.spilled_bytes in (0, None)
    specs = [tilec.spec((64, 64), d) for d in ("int8", "int8", "int32")]
    made = listing()(64, 64, 64, "int8", "int32", "int32").compile(*specs, target="cuda:sm_80")
    assert "m16n8k32" in made.asm
    assert "ldmatrix.sync.aligned.m8n8.x4.shared.b16" in made.asm


def test_few_steps_are_written_out():
    """The matrices of the second step are asked for while the first multiplies: the numbers of such
    loops are above."""
    specs = [tilec.spec(s, "float16") for s in ((64, 64), (64, 64), (64, 64))]
    listed = listing()(64, 64, 64, "float16", "float16", "float32")
    made = listed.compile(*specs, target="cuda:sm_90a")
    for name, steps in ("lower_parallel", 1), ("unroll_loads", 2):
        stage = made.stages[name]
        assert (stage.count("= ldmatrix_values"), stage.count("= warp_mma")) == (2 * steps, steps)


def direct(in_dtype, accum, ta, tb, first):
    """Straight to the tensor, in every order of operands and warps."""
    emitter = TensorCoreIntrinEmitter(
        a_dtype=in_dtype,
        b_dtype=in_dtype,
        accum_dtype=accum,
        a_transposed=ta,
        b_transposed=tb,
        block_row_warps=1,
        block_col_warps=2,
        warp_row_tiles=32,
        warp_col_tiles=16,
        chunk=32,
        is_m_first=first,
    )
    a_shape, b_shape = (64, 64) if ta else (64, 64), (64, 64)
    steps = 32 // emitter.micro_size_k

    @tilec.kernel
    def matmul(
        A: T.Tensor(a_shape, in_dtype), B: T.Tensor(b_shape, in_dtype), C: T.Tensor((64, 64), accum)
    ):
        with T.Kernel(2, 2, threads=64) as (bx, by):
            A_s = T.alloc_shared((32, 32), in_dtype)
            B_s = T.alloc_shared((32, 32), in_dtype)
            A_l = T.alloc_local((emitter.warp_rows * emitter.local_size_a,), in_dtype)
            B_l = T.alloc_local((emitter.warp_cols * emitter.local_size_b,), in_dtype)
            C_l = T.alloc_local(
                (emitter.warp_rows * emitter.warp_cols * emitter.local_size_c,), accum
            )
            T.clear(C_l)
            for ko in T.serial(2):
                if ta:
                    T.copy(A[ko * 32, by * 32], A_s)
                else:
                    T.copy(A[by * 32, ko * 32], A_s)
                if tb:
                    T.copy(B[bx * 32, ko * 32], B_s)
                else:
                    T.copy(B[ko * 32, bx * 32], B_s)
                for ki in T.serial(steps):
                    emitter.ldmatrix_a(A_l, A_s, ki)
                    emitter.ldmatrix_b(B_l, B_s, ki)
                    emitter.mma(A_l, B_l, C_l)
            emitter.stmatrix(C_l, C, by, bx)

    return matmul


@pytest.mark.parametrize("target", ["cuda:sm_90a"])
@pytest.mark.parametrize("ta, tb, first", [(False, False, True), (True, True, False)])
@pytest.mark.parametrize(
    "in_dtype, accum", [("float16", "float16"), ("bfloat16", "float32"), ("int8", "int32")]
)
def test_operands_in_every_order(target, ta, tb, first, in_dtype, accum):
    kind = ml_dtypes.bfloat16 if in_dtype == "bfloat16" else in_dtype
    a, b = random(64, 64, dtype=kind), random(64, 64, dtype=kind)
    c = np.zeros((64, 64), accum)
    kernel = direct(in_dtype, accum, ta, tb, first)
    run_compiled(kernel, target, a, b, c)
    asm = kernel.compile(a, b, c, target=target).asm
    assert ("x4.shared.b16" in asm) == (tb or not ta)
    assert (".trans" in asm) == (in_dtype != "int8")
    left, right = (a.T if ta else a).astype("f8"), (b.T if tb else b).astype("f8")
    np.testing.assert_array_equal(c, left @ right)


ATOMS = [
    ("float16", "float16", 32, 16), ("float16", "float32", 8, 24), ("float32", "float32", 8, 16),
    ("float32", "float32", 4, 8), ("float64", "float64", 8, 24), ("int8", "int32", 16, 8),
    ("uint8", "int32", 32, 16), ("float8_e4m3", "float32", 32, 16),
]  # fmt: skip


def atoms(in_dtype, accum, chunk, columns, spare):
    """By the names of TileLang's emitter: atoms one by one, and a stored tile of two dimensions;
    A is in the ring's place `spare`."""
    emitter = TensorCoreIntrinEmitter(
        in_dtype, in_dtype, accum, False, True, 1, 2, 32, columns, chunk, is_m_first=None
    )
    m, n = 32, 2 * columns

    @tilec.kernel
    def matmul(
        A: T.Tensor((m, 2 * chunk), in_dtype),
        B: T.Tensor((n, 2 * chunk), in_dtype),
        C: T.Tensor((m, n), accum),
    ):
        with T.Kernel(1, threads=emitter.threads):
            A_s = T.alloc_shared((2, m, chunk), in_dtype)
            B_s = T.alloc_shared((n, chunk), in_dtype)
            C_s = T.alloc_shared((m, n), accum)
            A_l = T.alloc_local(emitter.warp_rows * emitter.local_size_a, in_dtype)
            B_l = T.alloc_local(emitter.warp_cols * emitter.local_size_b, in_dtype)
            size = emitter.warp_rows * emitter.warp_cols * emitter.local_size_out
            C_l = T.alloc_local(size, accum)
            T.clear(C_l)
            for ko in T.serial(2):
                T.copy(A[0, ko * chunk], A_s[spare, :, :])
                T.copy(B[0, ko * chunk], B_s)
                for ki in T.serial(chunk // emitter.micro_size_k):
                    emitter.ldmatrix_a(A_l, A_s[spare, 0:m, 0:chunk], ki)
                    emitter.ldmatrix_b(B_l, B_s, ki)
                    for i, j in T.grid(emitter.mma_num_inst_m, emitter.mma_num_inst_n):
                        emitter.mma_atom(A_l, B_l, C_l, i, j, ki)
            emitter.stmatrix(C_l, C_s)
            T.copy(C_s, C)

    return matmul


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("in_dtype, accum, chunk, columns", ATOMS)
def test_atoms_of_all_dtypes(target, in_dtype, accum, chunk, columns):
    if target == "hip:gfx942" and in_dtype != "float64":
        pytest.skip("as on the CPU, by shuffles")
    kind = ml_dtypes.float8_e4m3fn if in_dtype.startswith("float8") else in_dtype
    a = abs(random(32, 2 * chunk)).astype(kind)
    b = abs(random(2 * columns, 2 * chunk)).astype(kind)
    c = np.full((32, 2 * columns), 77, accum)
    kernel = atoms(in_dtype, accum, chunk, columns, 1)
    run_compiled(kernel, target, a, b, c)
    np.testing.assert_array_equal(c, a.astype("f8") @ b.astype("f8").T)
    if target == "cuda:sm_90a":
        emitted = kernel.compile(a, b, c, target=target).asm
        shape = (
            "m8n8k4" if in_dtype == "float64" else f"m16n8k{min(chunk, 256 // (8 * a.itemsize))}"
        )
        assert f"mma.sync.aligned.{shape}.row.col" in emitted


WRONG = {
    "no local buffer": ("s", "a", "c", "m16n8k16", "is s .*, not a local buffer"),
    "saturate": ("a", "a", "c, 0, True)  #", "m16n8k16", "saturate of T.ptx_mma is True"),
    "shape": ("a", "a", "c", "m16n8k32", "there is no mma m16n8k32"),
    "dtypes": ("a", "c", "c", "m16n8k16", "there are: none"),
}


@pytest.mark.parametrize("a, b, c, shape, says", WRONG.values(), ids=WRONG)
def test_wrong_products(a, b, c, shape, says, tmp_path):
    text = f"""
import tilec, tilec.language as T
@tilec.kernel
def wrong(A: T.Tensor((8, 8), "float32")):
    with T.Kernel(1, threads=64):
        s = T.alloc_shared((64,), "float16")
        a = T.alloc_local((16,), "float16")
        c = T.alloc_local((16,), "float32")
        T.ptx_mma("", "{shape}", "row", "col", "fp16", "fp16", "fp32", {a}, 0, {b}, 0, {c}, 0)
"""
    file = tmp_path / "wrong.py"
    file.write_text(text)
    names = {}
    exec(compile(text, str(file), "exec"), names)
    with pytest.raises(tilec.CompileError, match=says) as caught:
        names["wrong"].compile(np.zeros((8, 8), "float32"), target="cuda:sm_80")
    assert caught.value.loc.line == 9


@pytest.mark.parametrize(
    "given, says",
    [
        ({"warp_row_tiles": 24}, "warp_row_tiles is 24, not a multiple of 16"),
        ({"block_col_warps": 0}, "block_col_warps is 0, not a multiple of 1"),
        ({"a_dtype": "float32"}, "no mma.sync of float32, float16, float16"),
        ({"b_dtype": "int8"}, "no mma.sync of float16, int8, float16"),
        ({"num_elems_per_byte": 2}, "num_elems_per_byte=2"),
        ({"warp_col_tiles": 20}, "warp_col_tiles is 20, not a multiple of 8"),
        ({"chunk": 24}, "chunk is 24, not a multiple of 16"),
        ({"reduce_k": 0}, "reduce_k is 0"),
    ],
)
def test_wrong_emitters(given, says):
    with pytest.raises(tilec.CompileError, match=says) as caught:
        TensorCoreIntrinEmitter(**given)
    assert caught.value.loc.file == __file__


def test_more_warps_than_the_emitter_has():
    emitter = TensorCoreIntrinEmitter(
        accum_dtype="float32", block_row_warps=1, block_col_warps=1, chunk=16
    )

    @tilec.kernel
    def matmul(
        A: T.Tensor((16, 16), "float16"),
        B: T.Tensor((16, 16), "float16"),
        C: T.Tensor((16, 16), "float32"),
    ):
        with T.Kernel(1, threads=64):
            A_s = T.alloc_shared((16, 16), "float16")
            B_s = T.alloc_shared((16, 16), "float16")
            A_l = T.alloc_local((8,), "float16")
            B_l = T.alloc_local((8,), "float16")
            C_l = T.alloc_local((8,), "float32")
            T.clear(C_l)
            T.copy(A, A_s)
            T.copy(B, B_s)
            emitter.ldmatrix_a(A_l, A_s, 0)
            emitter.ldmatrix_b(B_l, B_s, 0)
            emitter.mma(A_l, B_l, C_l)
            if T.get_warp_idx() == 0:
                emitter.stmatrix(C_l, C, 0, 0)

    a, b, c = random(16, 16), random(16, 16), np.zeros((16, 16), "float32")
    run_compiled(matmul, "cuda:sm_90a", a, b, c)
    np.testing.assert_array_equal(c, a.astype("f8") @ b.astype("f8"))


@pytest.mark.gpu
@pytest.mark.parametrize("dtypes", [("float16", "float16", "float32"), ("int8", "int32", "int32")])
def test_the_listing_on_a_gpu(dtypes):
    torch = pytest.importorskip("torch")
    m, n, k = 512, 768, 640
    kernel = listing()(m, n, k, *dtypes)
    kind = getattr(torch, dtypes[0])
    a = torch.randint(-4, 5, (m, k), device="cuda").to(kind)
    b = torch.randint(-4, 5, (n, k), device="cuda").to(kind)
    c = torch.empty((m, n), device="cuda", dtype=getattr(torch, dtypes[1]))
    for _ in range(50):
        c.fill_(77)
        kernel(a, b, c)
        assert torch.equal(c.double(), a.double() @ b.double().T)


REGIONS = {
    "S[0, 0:8, 0:8][8, 0]": "index 8 in a slice of 8 of S",
    "S[0, 0:8, 0:8][0]": "cannot be indexed again",
    "S[0, 0, 0][0]": "cannot be indexed again",
}


@pytest.mark.parametrize("written", REGIONS)
def test_elements_of_regions_that_are_none(written, tmp_path):
    text = f"""
import tilec, tilec.language as T
@tilec.kernel
def wrong(A: T.Tensor((8, 8), "float32")):
    with T.Kernel(1, threads=64):
        S = T.alloc_shared((2, 16, 16), "float32")
        A[0, 0] = {written}
"""
    file = tmp_path / "wrong.py"
    file.write_text(text)
    names = {}
    exec(compile(text, str(file), "exec"), names)
    with pytest.raises(tilec.CompileError, match=REGIONS[written]) as caught:
        names["wrong"].compile(np.zeros((8, 8), "float32"), target="cuda:sm_80")
    assert caught.value.loc.line == 7
