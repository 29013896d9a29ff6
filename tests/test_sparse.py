"""Products with a 2:4 compressed A (`T.gemm_sp`): numbers against float64, what they become on each
target, and what is said of mistakes."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from test_language_errors import fails

import tilec
import tilec.language as T
from tilec import sparse
from tilec.codegen.nvptx import NvptxEmitter
from tilec.ir import types as dt
from tilec.ir.ops import Wgmma, WgmmaWait
from tilec.ir.parser import parse_func
from tilec.ir.printer import print_func
from tilec.ir.sparse import covered, expand
from tilec.kernel import Kernel

SM80, SM90, GFX942 = "cuda:sm_80", "cuda:sm_90a", "hip:gfx942"
SIMULATED = (SM80, SM90, GFX942)
M, N, K, KEPT, WORDS = T.dynamic("M, N, K, KEPT, WORDS")
NUMPY = {
    "float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32,
    "float8_e4m3": ml_dtypes.float8_e4m3fn, "float8_e5m2": ml_dtypes.float8_e5m2,
    "int8": np.int8, "uint8": np.uint8, "int32": np.int32,
}  # fmt: skip
FNUZ = {"float8_e4m3": ml_dtypes.float8_e4m3fnuz, "float8_e5m2": ml_dtypes.float8_e5m2fnuz}
# Of the largest result: float32 sums, TF32 inputs, float16 sums and results.
TOLERANCE = {"float32": 1e-6, "tf32": 1e-3, "float16": 2e-3, "int32": 0.0}


def product(
    dtype: str = "float16",
    words: str = "int16",
    sums: str = "float32",
    orders: str = "NNN",
    tile: tuple[int, int, int] = (32, 32, 64),
    threads: int = 64,
    fragments: str = "",
    schedule: dict[str, Any] | None = None,
    **how: Any,
) -> Kernel:
    """C = A @ B in tiles; `orders`: which of A, E and B are stored transposed ("T"); `fragments`:
    which of A and B are brought to registers first."""
    BM, BN, BK = tile
    per = covered(getattr(dt, dtype.upper()).bits, getattr(dt, words.upper()).bits)
    swapped, plan = [order == "T" for order in orders], schedule or {}
    a_tile, e_tile, b_tile = (
        shape[:: -1 if s else 1]
        for shape, s in zip(((BM, BK // 2), (BM, BK // per), (BK, BN)), swapped)
    )
    a_all, e_all, b_all = (
        shape[:: -1 if s else 1] for shape, s in zip(((M, KEPT), (M, WORDS), (K, N)), swapped)
    )

    @tilec.kernel
    def sparse_product(
        A: T.Tensor(a_all, dtype),
        E: T.Tensor(e_all, words),
        B: T.Tensor(b_all, dtype),
        C: T.Tensor((M, N), sums),
    ):
        with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM), threads=threads) as (bx, by):
            A_s, B_s = T.alloc_shared(a_tile, dtype), T.alloc_shared(b_tile, dtype)
            E_s = T.alloc_shared(e_tile, words)
            acc = T.alloc_fragment((BM, BN), sums)
            T.clear(acc)
            if plan:
                T.annotate_schedule(**plan)
            for k in T.Pipelined(T.ceildiv(K, BK), num_stages=2):
                if swapped[0]:
                    T.copy(A[k * (BK // 2), by * BM], A_s)
                else:
                    T.copy(A[by * BM, k * (BK // 2)], A_s)
                if swapped[1]:
                    T.copy(E[k * (BK // per), by * BM], E_s)
                else:
                    T.copy(E[by * BM, k * (BK // per)], E_s)
                if swapped[2]:
                    T.copy(B[bx * BN, k * BK], B_s)
                else:
                    T.copy(B[k * BK, bx * BN], B_s)
                if "A" in fragments:
                    A_f = T.alloc_fragment(a_tile, dtype)
                    T.copy(A_s, A_f)
                if "B" in fragments:
                    B_f = T.alloc_fragment(b_tile, dtype)
                    T.copy(B_s, B_f)
                left = A_f if "A" in fragments else A_s
                right = B_f if "B" in fragments else B_s
                T.gemm_sp(left, E_s, right, acc, *swapped, **how)
            T.copy(acc, C[by * BM, bx * BN])

    return sparse_product


def draw(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, fnuz: bool) -> Any:
    kind = FNUZ[dtype] if fnuz and dtype in FNUZ else NUMPY[dtype]
    if "int" in dtype:
        return rng.integers(0 if dtype == "uint8" else -8, 8, shape).astype(kind)
    return rng.standard_normal(shape).astype(kind)


def run(
    target: str, size: tuple[int, int, int], dtype: str = "float16", words: str = "int16",
    sums: str = "float32", orders: str = "NNN", **rest: Any,
) -> None:  # fmt: skip
    """One product of random patterns on a target, compared with float64."""
    m, n, k = size
    rng = np.random.default_rng(m * n * k)
    fnuz = target == GFX942
    a, b = draw(rng, (m, k), dtype, False), draw(rng, (k, n), dtype, fnuz)
    values, metadata = sparse.compress(sparse.prune(a), words)
    if fnuz and dtype in FNUZ:
        values = values.astype(np.float32).astype(FNUZ[dtype])
    bits = getattr(dt, dtype.upper()).bits
    left = expand(values, metadata, bits).astype(np.float64)
    want = left @ b.astype(np.float64)
    given = [x.T.copy() if o == "T" else x for x, o in zip((values, metadata, b), orders)]
    empty = np.full((m, n), 99, NUMPY[sums])
    kernel = product(dtype, words, sums, orders, **rest)
    if target == "cpu":
        kernel(*given, empty)
    else:
        report = tilec.simulate(kernel, *given, empty, target=target)
        assert report.ok, report
    error = np.abs(empty.astype(np.float64) - want).max()
    kind = "tf32" if rest.get("allow_tf32") else sums
    assert error <= TOLERANCE[kind] * max(1.0, np.abs(want).max())


FORMS: dict[str, dict[str, Any]] = {
    "half": {},
    "columns": {"orders": "TTN"},
    "rows of B": {"orders": "NTT"},
    "half sums": {"sums": "float16"},
    "bfloat16": {"dtype": "bfloat16", "orders": "NNT"},
    "bytes": {"words": "int8"},
    "words": {"words": "uint32"},
    "odd steps": {"tile": (32, 32, 32)},
    "tf32": {"dtype": "float32", "allow_tf32": True, "tile": (32, 32, 32), "orders": "NNT"},
    "float32": {"dtype": "float32", "tile": (32, 32, 32)},
    "int8": {"dtype": "int8", "words": "int32", "sums": "int32", "orders": "NNT"},
    "uint8": {"dtype": "uint8", "words": "uint8", "sums": "int32", "orders": "TNN"},
    "e4m3": {"dtype": "float8_e4m3", "words": "int32", "orders": "NNT"},
    "e5m2 in half": {"dtype": "float8_e5m2", "words": "uint16", "sums": "float16"},
    "A in registers": {"fragments": "A"},
    "B in registers": {"fragments": "B", "orders": "NNT"},
    "both in registers": {"fragments": "AB"},
    "more warps than rows": {"tile": (16, 16, 64), "threads": 128},
    "no whole atoms": {"tile": (24, 20, 64)},
}


# Those that need no form of their own there: A is written out whatever it is stored like.
_WRITTEN_OUT = ("half", "columns", "tf32", "float32", "int8", "e4m3", "no whole atoms")


@pytest.mark.covering(1, axes=("form", "target"))
@pytest.mark.parametrize(
    ("form", "target"),
    [
        (form, target)
        for form in FORMS
        for target in ("cpu", *SIMULATED)
        if target != GFX942 or form in _WRITTEN_OUT
    ],
)
@pytest.mark.filterwarnings("ignore::tilec.CompileWarning")  # tiles that cannot run ahead
def test_numbers(form: str, target: str) -> None:
    run(target, (37, 35, 96), **FORMS[form])


# Warpgroups: of 64 rows, one behind another and side by side; operands however they are stored.
GROUPS: dict[str, dict[str, Any]] = {
    "one": {"tile": (64, 32, 64), "threads": 128},
    "two blocks of rows": {"tile": (128, 16, 64), "threads": 128, "orders": "NNT"},
    "two groups along M": {"tile": (128, 32, 64), "threads": 256, "orders": "TTN"},
    "two groups along N": {"tile": (64, 32, 128), "threads": 256, "orders": "NNT"},
    "an odd step": {"tile": (64, 16, 32), "threads": 128, "orders": "NNT"},
    "half sums": {"tile": (64, 16, 64), "threads": 128, "sums": "float16"},
    "words": {"tile": (64, 16, 64), "threads": 128, "words": "int32"},
    "A in registers": {"tile": (64, 16, 64), "threads": 128, "fragments": "A"},
    "tf32": {"tile": (64, 16, 64), "threads": 128, "dtype": "float32", "orders": "NNT",
             "allow_tf32": True},
    "int8": {"tile": (64, 16, 128), "threads": 128, "dtype": "int8", "words": "int32",
             "sums": "int32", "orders": "NNT"},
    "e4m3": {"tile": (64, 16, 128), "threads": 128, "dtype": "float8_e4m3", "words": "int32",
             "orders": "NNT"},
}  # fmt: skip


@pytest.mark.usefixtures("unassembled")
@pytest.mark.parametrize("form", GROUPS)
def test_warpgroups(form: str) -> None:
    how = GROUPS[form]
    assert "wgmma.mma_async.sp" in compiled(SM90, **how).stages["ptx"]
    run(SM90, (65, 35, 288), **how)


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", ["cpu", *SIMULATED])
@pytest.mark.parametrize("size", [(1, 1, 16), (32, 32, 128), (33, 1, 16)])
def test_sizes(size: tuple[int, int, int], target: str) -> None:
    run(target, size)


SCHEDULES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "metadata by TMA": ({"specialise": True}, {"tile": (64, 16, 128)}),
    "metadata by cp.async": ({"specialise": True}, {"tile": (64, 16, 64)}),
    "warps": ({"specialise": True}, {"tile": (32, 16, 128)}),
    "persistent": ({"specialise": True, "persistent": True}, {"tile": (64, 16, 128)}),
    "taking turns": ({"specialise": True, "persistent": True, "consumers": "pingpong"},
                     {"tile": (64, 16, 128)}),
    "cluster": ({"specialise": True, "cluster": (2, 1, 1)}, {"tile": (64, 16, 128)}),
    "shared sums": ({"specialise": True, "split": 2}, {"tile": (64, 16, 64)}),
}  # fmt: skip


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules(name: str) -> None:
    """Every plan of Hopper frees stages of metadata that all threads have read."""
    schedule, how = SCHEDULES[name]
    run(SM90, (128, 32, 896), threads=128, schedule=schedule, **how)


# --- what it becomes ---


def compiled(target: str, **how: Any) -> tilec.CompiledKernel:
    dtype, words = how.get("dtype", "float16"), how.get("words", "int16")
    per = covered(getattr(dt, dtype.upper()).bits, getattr(dt, words.upper()).bits)
    m = n = k = 1024
    swapped = [o == "T" for o in how.get("orders", "NNN")]
    shapes = [s[:: -1 if w else 1] for s, w in zip(((m, k // 2), (m, k // per), (k, n)), swapped)]
    specs = [tilec.spec(s, d) for s, d in zip(shapes, (dtype, words, dtype))]
    kernel = product(**{"tile": (128, 128, 64), "threads": 256, **how})
    return kernel.compile(*specs, tilec.spec((m, n), how.get("sums", "float32")), target=target)


INSTRUCTIONS = [
    ({}, "m16n8k32.row.col.f32.f16.f16.f32"),
    ({"dtype": "bfloat16"}, "m16n8k32.row.col.f32.bf16.bf16.f32"),
    ({"sums": "float16"}, "m16n8k32.row.col.f16.f16.f16.f16"),
    ({"dtype": "int8", "words": "int32", "sums": "int32", "orders": "NNT"},
     "m16n8k64.row.col.s32.s8.s8.s32"),
    ({"dtype": "float32", "tile": (64, 64, 32), "allow_tf32": True},
     "m16n8k16.row.col.f32.tf32.tf32.f32"),
]  # fmt: skip


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", [SM80, SM90])
@pytest.mark.parametrize(("how", "form"), INSTRUCTIONS)
def test_instructions(how: dict[str, Any], form: str, target: str) -> None:
    """A compressed tile is multiplied as it is, under asynchronous copies, without spills: by
    warpgroups on Hopper, where they can read the operands, else by warps."""
    made = compiled(target, **how)
    ptx = made.stages["ptx"]
    if target == SM90 and ("float32" not in how.values() or "NNT" in how.values()):
        depth, dtypes = form.partition("k")[2].split(".row.col.")
        sums, *inputs = dtypes.split(".")[:3]
        assert re.search(
            rf"wgmma\.mma_async\.sp\.sync\.aligned\.m64n\d+k{depth}\.{sums}\.{'.'.join(inputs)} ",
            ptx,
        )
        assert not made.resources.buffers.keys() & {"A_s_dense"} and "mma.sp::" not in ptx
    else:
        assert f"mma.sp::ordered_metadata.sync.aligned.{form}" in ptx
        assert "wgmma.mma" not in ptx
    assert not re.search(r"\bmma\.sync", ptx)
    assert not re.search(r"wgmma\.mma_async\.sync", ptx)
    assert re.search(r"cp\.async\.(c[ag]|bulk\.tensor\.2d)\.shared", ptx)
    assert not made.resources.spilled_bytes
    assert "A_s_dense" not in made.resources.buffers


def test_metadata_serve_two_instructions() -> None:
    """Each word has the metadata of two steps along K, which selectors 0 and 1 tell apart; an odd
    number of steps has one each."""
    for depth, selectors in ((64, {"0x0", "0x1"}), (32, {"0x0"})):
        ptx = compiled(SM80, tile=(128, 128, depth)).stages["ptx"]
        found = re.findall(r"mma\.sp::\S+ [^;]*, (0x\d);", ptx)
        assert set(found) == selectors
        words = len(re.findall(r"ld\.shared\.[bu]16", ptx))
        assert words == 2 * len(found) // len(selectors) // 8  # each warp has 8 atoms along N
    bytes_ = compiled(SM80, dtype="int8", words="int32", sums="int32", orders="NNT").stages["ptx"]
    assert set(re.findall(r"mma\.sp::\S+ [^;]*, (0x\d);", bytes_)) == {"0x0"}


@pytest.mark.parametrize("target", [SM80, SM90, GFX942])
def test_written_out(target: str) -> None:
    """Without an instruction for it A is written out in shared memory, and multiplied by what the
    target has for dense tiles."""
    made = compiled(target, dtype="float32", tile=(32, 64, 32))
    assert made.resources.buffers["A_s_dense"] >= 32 * 32 * 4
    assert "mma.sp" not in made.stages.get("ptx", "")
    if target == GFX942:
        assert "v_mfma_f32" in made.asm


WIDE: dict[str, Any] = {"tile": (128, 256, 128), "threads": 256}


def test_metadata_stay_in_their_registers_until_the_product_has_ended() -> None:
    """wgmma.sp reads them as it goes: its wait names them, and no product of the next iteration is
    started before (two at once gave other sums in every run on an H100)."""
    func = parse_func(compiled(SM90, **WIDE).stages["lower_gemm"])
    products = [*func.body.every(Wgmma)]
    waits = [*func.body.every(WgmmaWait)]
    assert products and len(waits) == len(products)
    for product_, wait in zip(products, waits):
        assert product_.metadata in wait.fragments and wait.pending == 0


def test_simulator_asks_for_the_registers_of_a_product(monkeypatch: pytest.MonkeyPatch) -> None:
    emit = NvptxEmitter.emit_wgmma_wait

    def forgetful(emitter: NvptxEmitter, o: WgmmaWait) -> None:
        emit(emitter, replace(o, fragments=o.fragments[:1]))

    monkeypatch.setattr(NvptxEmitter, "emit_wgmma_wait", forgetful)
    rng = np.random.default_rng(5)
    values, metadata = sparse.compress(sparse.prune(draw(rng, (64, 384), "float16", False)))
    b, c = draw(rng, (384, 24), "float16", False), np.zeros((64, 24), np.float32)
    kernel = product(tile=(64, 16, 128), threads=128)
    report = tilec.simulate(kernel, values, metadata, b, c, target=SM90)
    assert [f.kind for f in report.findings] == ["operand in flight"], report
    assert "names the registers that it reads" in str(report)


def test_ir() -> None:
    """The op, and that it reads back; written out it is one without metadata."""
    made = compiled(SM80)
    tile = made.stages["tile"]
    (line,) = [x for x in tile.splitlines() if "gemm" in x]
    assert re.search(r"metadata=%E_s\[.*\], \(128, 4\)", line)
    assert print_func(parse_func(tile)) == tile
    cpu = compiled("cpu").stages
    assert "metadata" not in cpu["expand_sparse"] and "A_s_dense" in cpu["expand_sparse"]


# --- mistakes ---

MISTAKES = {
    "dtypes": (
        "A_d = T.alloc_shared((16, 32), 'float64')\nT.gemm_sp(A_d, E_s, B_k, acc)  #!",
        "2:4 products of float64 are not supported",
        "inputs can be float16, bfloat16",
    ),
    "unlike dtypes": (
        "B_h = T.alloc_shared((64, 48), 'bfloat16')\nT.gemm_sp(A_s, E_s, B_h, acc)  #!",
        "gemm of float16 by bfloat16",
        "copy B_h into a float16 tile",
    ),
    "K": (
        "T.gemm_sp(A_s, E_s, B_s, acc)  #!",
        "are 32 for K = 64, but B has K = 32",
        "A_sparse is (M, K / 2), B (K, N) here",
    ),
    "transposed": (
        "T.gemm_sp(A_s, E_s, B_k, acc, transpose_A=True)  #!",
        "are 16 for K = 32, but B has K = 64",
        "A_sparse is (K / 2, M)",
    ),
    "result": (
        "T.gemm_sp(A_s, E_s, B_k, T.alloc_fragment((48, 16), 'float32'))  #!",
        "gemm_sp gives a (16, 48) tile, but C is",
        'T.alloc_fragment((16, 48), "float32")',
    ),
    "metadata of floats": (
        "E_f = T.alloc_shared((16, 4), 'float16')\nT.gemm_sp(A_s, E_f, B_k, acc)  #!",
        "metadata can be int8, uint8, int16",
        "tilec.sparse.compress",
    ),
    "metadata of 64 bits": (
        "E_l = T.alloc_shared((16, 1), 'int64')\nT.gemm_sp(A_s, E_l, B_k, acc)  #!",
        "E of T.gemm_sp is E_l (shared (16, 1) int64)",
        "",
    ),
    "metadata in registers": (
        "E_r = T.alloc_fragment((16, 4), 'int16')\nT.gemm_sp(A_s, E_r, B_k, acc)  #!",
        "metadata must be a shared tile",
        "copy it into one first",
    ),
    "shape of the metadata": (
        "E_8 = T.alloc_shared((16, 8), 'int16')\nT.gemm_sp(A_s, E_8, B_k, acc)  #!",
        "the metadata of A (16, 64) of float16 are (16, 4) in int16",
        'T.alloc_shared((16, 4), "int16")',
    ),
    "metadata not transposed": (
        "T.gemm_sp(A_s, E_s, B_k, acc, transpose_E=True)  #!",
        "the metadata of A (16, 64) of float16 are (4, 16) in int16",
        "",
    ),
    "metadata that do not divide K": (
        "A_q = T.alloc_shared((16, 8), 'float16')\nE_q = T.alloc_shared((16, 1), 'int32')\n"
        "B_q = T.alloc_shared((16, 48), 'float16')\nT.gemm_sp(A_q, E_q, B_q, acc)  #!",
        "one int32 of E describes 32 elements of a row of float16, which do not divide K = 16",
        "make E of int8 or uint8 or int16 or uint16",
    ),
    "A in global memory": (
        "T.gemm_sp(A[0:16, 0:32], E_s, B_k, acc)  #!",
        "A_sparse of T.gemm_sp is A (global (M, K) float16); it must be shared or a fragment",
        "copy it into a shared tile",
    ),
    "policy": (
        "T.gemm_sp(A_s, E_s, B_k, acc, policy='rows')  #!",
        "policy of T.gemm_sp is",
        "T.GemmWarpPolicy.Square",
    ),
    "in a loop over elements": (
        "for i in T.Parallel(16):\n    T.gemm_sp(A_s, E_s, B_k, acc)  #!",
        "T.gemm_sp works on whole tiles",
        "",
    ),
}
HEADER = """
def kernel(A: T.Tensor((M, K), "float16")):
    with T.Kernel(T.ceildiv(M, 16), threads=128) as bx:
        A_s = T.alloc_shared((16, 32), "float16")
        E_s = T.alloc_shared((16, 4), "int16")
        B_s = T.alloc_shared((32, 48), "float16")
        B_k = T.alloc_shared((64, 48), "float16")
        acc = T.alloc_fragment((16, 48), "float32")
"""


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name: str) -> None:
    body, message, hint = MISTAKES[name]
    error = fails(HEADER + "".join(f"        {line}\n" for line in body.splitlines()))
    assert message in error.message, error
    assert hint in error.hint, error


@pytest.mark.parametrize("target", [SM80, SM90])
def test_unordered_metadata(target: str) -> None:
    """The simulator reports patterns that the instruction's behaviour is undefined for; what nobody
    has written, beyond the tensors, is none."""
    rng = np.random.default_rng(0)
    a, b = sparse.prune(draw(rng, (8, 32), "float16", False)), draw(rng, (32, 8), "float16", False)
    values, metadata = sparse.compress(a)
    metadata[3, 1] = 0x4449  # 0b1001 is in order, 0b0100 too
    report = tilec.simulate(product(), values, metadata, b, np.empty((8, 8), np.float32),
                            target=target)  # fmt: skip
    assert report.ok, report
    metadata[3, 1] = 0x4446  # 0b0110: places 2 and 1
    report = tilec.simulate(product(), values, metadata, b, np.empty((8, 8), np.float32),
                            target=target)  # fmt: skip
    assert [f.kind for f in report.findings] == ["unordered metadata"]
    assert "T.gemm_sp" in report.findings[0].locations[0].excerpt()
    assert "tilec.sparse.compress" in str(report)


# --- host functions ---

ARRAYS = ("float16", "bfloat16", "float32", "int8", "uint8", "float8_e4m3", "float8_e5m2")
METADATA = ("int8", "int16", "int32", "uint8", "uint16", "uint32")


@pytest.mark.parametrize("dtype", ARRAYS)
def test_compress(dtype: str) -> None:
    """Back and forth, also of groups with fewer elements than are kept, and as the op has it."""
    rng = np.random.default_rng(1)
    bits = getattr(dt, dtype.upper()).bits
    a = draw(rng, (3, 5, 64), dtype, False)
    a[0, 0, :9] = [0, 0, 0, 0, 0, 0, 0, 1, 0]
    a[1, 2, 4:12] = [0, 1, 0, 0, 1, 0, 0, 0]
    size = 2 if bits == 32 else 4
    kept = np.argsort(-np.abs(a.astype(np.float32).reshape(-1, size)), 1, "stable")
    want = np.zeros((len(kept), size), a.dtype)
    for i, places in enumerate(kept[:, : size // 2]):
        want[i, places] = a.reshape(-1, size)[i, places]
    pruned = sparse.prune(a)
    assert (pruned == want.reshape(a.shape)).all() and pruned.dtype == a.dtype
    for words in METADATA:
        values, metadata = sparse.compress(pruned, words)
        assert values.shape == (3, 5, 32) and metadata.dtype == words
        assert (sparse.decompress(values, metadata) == pruned).all()
        assert (expand(values, metadata, bits) == pruned).all()
    assert sparse.compress(pruned)[1].dtype == sparse.default_metadata(dtype)


def test_format() -> None:
    """The patterns of `tilec.sparse`, the first ones in the low bits."""
    a = np.zeros((1, 16), np.float16)
    a[0, :12] = [1, 0, 0, 2, 0, 3, 0, 0, 0, 0, 0, 0]
    a[0, 12:] = [0, 0, 4, 5]
    values, metadata = sparse.compress(a)
    assert values.tolist() == [[1, 2, 0, 3, 0, 0, 4, 5]]
    assert metadata.view(np.uint16).tolist() == [[0b1110_0100_0100_1100]]
    pairs = np.array([[0, 7, 6, 0, 0, 0, 0, 1]], np.float32)
    values, metadata = sparse.compress(pairs, "int8")
    assert values.tolist() == [[7, 6, 0, 1]]
    assert metadata.view(np.uint8).tolist() == [[0b0100_1110, 0b1110_0100]]


@pytest.mark.torch
@pytest.mark.parametrize("dtype", ARRAYS)
def test_compress_tensors(dtype: str, torch: Any) -> None:
    """torch's tensors give what NumPy's arrays do."""
    a = draw(np.random.default_rng(2), (6, 64), dtype, False)
    bits = a.dtype.itemsize * 8
    name = {"float8_e4m3": "float8_e4m3fn"}.get(dtype, dtype)

    def tensor(x: np.ndarray) -> Any:
        return torch.from_numpy(x.view(f"int{bits}").copy()).view(getattr(torch, name))

    def array(x: Any) -> np.ndarray:
        return x.view(getattr(torch, f"int{bits}")).numpy().view(a.dtype)

    pruned = sparse.prune(a)
    assert array(sparse.prune(tensor(a))).tobytes() == pruned.tobytes()
    for words in METADATA:
        values, metadata = sparse.compress(pruned, words)
        v, m = sparse.compress(tensor(pruned), getattr(torch, words))
        assert v.dtype == getattr(torch, name) and m.dtype == getattr(torch, words)
        assert array(v).tobytes() == values.tobytes() and (m.numpy() == metadata).all()
        assert array(sparse.decompress(v, m)).tobytes() == pruned.tobytes()


HOST_MISTAKES = {
    "dense": (lambda: sparse.compress(np.ones((4, 64), np.float16)), "more than 2 of the 4"),
    "where": (lambda: sparse.compress(np.eye(4, 32, dtype=np.float32) + np.eye(4, 32, 1)
                                      .astype(np.float32)), "elements from [0, 0] on"),
    "columns": (lambda: sparse.compress(np.zeros((4, 24), np.float16)), "describes 16 columns"),
    "one dimension": (lambda: sparse.compress(np.zeros(16, np.float16)), "has no metadata"),
    "list": (lambda: sparse.compress([0, 1]), "this is list, not a matrix"),
    "float64": (lambda: sparse.compress(np.zeros((4, 64))), "float64 is not one of the dtypes"),
    "metadata": (lambda: sparse.compress(np.zeros((4, 64), np.int8), "float16"), "float16 is not"),
    "shapes": (lambda: sparse.decompress(np.zeros((4, 32), np.int8), np.zeros((4, 3), np.int32)),
               "do not belong together"),
    "groups": (lambda: sparse.prune(np.zeros((4, 6), np.int8)), "are not groups of 4"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOST_MISTAKES)
def test_host_mistakes(name: str) -> None:
    call, message = HOST_MISTAKES[name]
    with pytest.raises(tilec.TilecError) as caught:
        call()
    assert message in caught.value.message and caught.value.hint


# --- on a GPU ---

ON_GPU = {
    "wide": WIDE,
    **FORMS,
    **{f"groups: {name}": how for name, how in GROUPS.items()},
    **{f"plan: {n}": {"schedule": s, "threads": 128, **how} for n, (s, how) in SCHEDULES.items()},
}


@pytest.mark.gpu
@pytest.mark.torch
@pytest.mark.parametrize("form", ON_GPU)
def test_on_the_gpu(form: str, torch: Any) -> None:
    """As in the simulator, by torch's tensors, which stay on the device; every tile many times."""
    how = ON_GPU[form]
    dtype, words = how.get("dtype", "float16"), how.get("words", "int16")
    sums, orders = how.get("sums", "float32"), how.get("orders", "NNN")
    m, n, k = (1024, 1024, 2048) if form == "wide" else (200, 136, 896)
    rng = np.random.default_rng(3)
    name = {"float8_e4m3": "float8_e4m3fn"}.get(dtype, dtype)

    def tensor(shape: tuple[int, ...]) -> Any:
        x = draw(rng, shape, dtype, False)
        bits = x.dtype.itemsize * 8
        return torch.from_numpy(x.view(f"int{bits}")).cuda().view(getattr(torch, name))

    a, b = sparse.prune(tensor((m, k))), tensor((k, n))
    values, metadata = sparse.compress(a, words)
    wanted = a.double().cpu().numpy() @ b.double().cpu().numpy()
    given = [x.t().contiguous() if o == "T" else x for x, o in zip((values, metadata, b), orders)]
    kernel = product(**how)
    for _ in range(5):
        c = torch.full((m, n), 99, dtype=getattr(torch, sums), device="cuda")
        kernel(*given, c)
        error = np.abs(c.double().cpu().numpy() - wanted).max()
        kind = "tf32" if how.get("allow_tf32") else sums
        # Tensor cores cut their sums off; those of float8 on Hopper keep about 14 bits.
        kind = "float16" if dtype.startswith("float8") else kind
        assert error <= 16 * TOLERANCE[kind] * max(1.0, np.abs(wanted).max())
