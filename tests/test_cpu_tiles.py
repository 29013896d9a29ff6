"""Memory, tile ops, products and threads of the CPU target against the reference interpreter."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from cpu_helper import Compiled, check, machine_for, pack, same, sample
from cpu_programs import Program
from machine_speed import slower

from tilec.codegen.cpu_gemm import choose_block
from tilec.codegen.cpu_machine import machine_of
from tilec.ir import semantics as num
from tilec.ir import types as t
from tilec.ir.core import Func, walk
from tilec.ir.errors import CompileError
from tilec.ir.ops import (
    AnnotateSafeValue,
    Barrier,
    Copy,
    Fill,
    Gemm,
    Parallel,
    Print,
    ThreadIndex,
)
from tilec.passes.lower_prints import lower_prints
from tilec.passes.lower_tiles import lower_tiles
from tilec.target import TARGETS

ARCHES = ("host", "x86-64-v3", "x86-64")


# --- copies and guards --------------------------------------------------------------------------


def tile_copy(dtype: t.DType, out: t.DType, tile: tuple[int, int], strided: bool = False) -> Func:
    """Y = X by tiles through an on-chip buffer; blocks run over the edges on both sides."""
    p = Program()
    strides = ("S0", "S1") if strided else None
    x = p.tensor("X", ("M", "N"), dtype, strides)
    y = p.tensor("Y", ("M", "N"), out)
    p.emit(AnnotateSafeValue, x, p.const(3, dtype))
    row = p.add(p.mul(p.block(1), tile[0]), -2)
    column = p.add(p.mul(p.block(0), tile[1]), -3)
    buffer = p.alloc(tile, dtype)
    p.copy(x, (row, column), tile, buffer, (0, 0))
    p.copy(buffer, (0, 0), tile, y, (row, column))
    return p.func()


@pytest.mark.covering(1)
@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize(
    "dtype, out",
    [
        (t.FLOAT32, t.FLOAT32), (t.FLOAT16, t.FLOAT32), (t.FLOAT32, t.BFLOAT16),
        (t.INT8, t.INT8), (t.BOOL, t.BOOL), (t.FLOAT64, t.FLOAT64), (t.FLOAT8_E4M3, t.FLOAT16),
    ],
    ids=str,
)  # fmt: skip
def test_ragged_copies(dtype: t.DType, out: t.DType, arch: str, rng: np.random.Generator) -> None:
    func = tile_copy(dtype, out, (8, 24))
    for m, n in ((1, 1), (13, 57), (30, 24), (6, 21)):
        x = sample(rng, dtype, max(m * n, 16), mild=True)[: m * n].reshape(m, n)
        y = sample(rng, out, max(m * n, 16), mild=True)[: m * n].reshape(m, n)
        grid = (-(-(n + 3) // 24), -(-(m + 2) // 8))
        check(func, {"X": x, "Y": y}, grid, arch)


@pytest.mark.parametrize("dtype", [t.INT8, t.BFLOAT16, t.BOOL], ids=str)
def test_one_narrow_element_left_over(dtype: t.DType, rng: np.random.Generator) -> None:
    """17 elements are a vector and one: what lies behind that one stays."""
    p = Program()
    x, y = p.tensor("X", (17,), t.INT32), p.tensor("Y", (24,), dtype)
    p.copy(x, (0,), (17,), y, (2,))
    args = {"X": rng.integers(0, 2, 17).astype(np.int32), "Y": sample(rng, dtype, 24, mild=True)}
    for arch in ARCHES:
        check(p.func(), {k: v.copy() for k, v in args.items()}, (1,), arch)


@pytest.mark.parametrize("arch", ARCHES)
def test_any_strides(arch: str, rng: np.random.Generator) -> None:
    """Transposed, sliced, reversed and broadcast tensors; unit strides found at run time."""
    func = tile_copy(t.FLOAT32, t.FLOAT32, (8, 16), strided=True)
    base = sample(rng, t.FLOAT32, 60 * 70, mild=True).reshape(60, 70)
    views = [base, base.T, base[::2, 1::3], base[::-1, ::-1], np.broadcast_to(base[:1], (9, 70))]
    views += [np.broadcast_to(base[:, :1], (60, 33)), base[5:, 7:]]
    compiled = Compiled(func, arch)
    for x in views:
        y = np.full(x.shape, -1, np.float32)
        compiled({"X": x, "Y": y}, (-(-(x.shape[1] + 3) // 16), -(-(x.shape[0] + 2) // 8)))
        same(y, x)


def test_nothing_outside_of_a_tensor_is_touched(rng: np.random.Generator) -> None:
    """A tensor that ends at the end of a page, whose neighbours may not be read."""
    mmap = pytest.importorskip("mmap")
    ctypes = pytest.importorskip("ctypes")
    page, n = mmap.PAGESIZE, 45
    area = mmap.mmap(-1, 3 * page)
    start = np.frombuffer(area, np.uint8).ctypes.data
    libc = ctypes.CDLL(None)
    for edge in (start, start + 2 * page):
        if libc.mprotect(ctypes.c_void_p(edge), page, 0) != 0:
            pytest.skip("this system protects no pages")
    middle = np.frombuffer(area, np.float32, page // 4, page)
    func = tile_copy(t.FLOAT32, t.FLOAT32, (8, 16))
    for arch in ARCHES:
        compiled = Compiled(func, arch)
        for part in (middle[:n], middle[-n:]):
            part[:] = rng.standard_normal(n)
            y = np.zeros((5, 9), np.float32)
            compiled({"X": part.reshape(5, 9), "Y": y}, (1, 1))
            same(y, part.reshape(5, 9))
            compiled({"X": y, "Y": part.reshape(5, 9)}, (1, 1))
    for edge in (start, start + 2 * page):
        libc.mprotect(ctypes.c_void_p(edge), page, 3)


def test_empty_tensors(rng: np.random.Generator) -> None:
    func = tile_copy(t.FLOAT32, t.FLOAT32, (8, 16))
    empty = np.zeros((0, 9), np.float32)
    Compiled(func)({"X": empty, "Y": empty.copy()}, (1, 1))


@pytest.mark.parametrize("arch", ARCHES)
def test_regions_of_more_dimensions(arch: str, rng: np.random.Generator) -> None:
    p = Program()
    x = p.tensor("X", (3, "M", "N"), t.FLOAT16)
    y = p.tensor("Y", ("M", 2, "N"), t.FLOAT32)
    a = p.alloc((2, 7, 20), t.FLOAT32)
    p.fill(a, 0.5)
    p.copy(x, (2, 1, p.mul(p.block(0), 20)), (1, 7, 20), a, (1, 0, 0), (1, 7, 20))
    p.copy(a, (1, 0, 0), (1, 7, 20), y, (0, 1, p.mul(p.block(0), 20)), (7, 1, 20))
    p.copy(a, (0, 3, 1), (1, 1, 5), y, (1, 0, 2), (1, 1, 5))
    args = {"X": sample(rng, t.FLOAT16, 3 * 7 * 33, mild=True).reshape(3, 7, 33)}
    args["Y"] = sample(rng, t.FLOAT32, 7 * 2 * 33, mild=True).reshape(7, 2, 33)
    check(p.func(), args, (2,), arch)


@pytest.mark.parametrize("arch", ARCHES)
def test_transpose_and_gather(arch: str, rng: np.random.Generator) -> None:
    p = Program()
    x, y = p.tensor("X", ("M", "N"), t.FLOAT32), p.tensor("Y", ("N", "M"), t.FLOAT32)
    rows = p.tensor("R", ("M",), t.INT64)
    with p.parallel(20, 36) as (i, j):
        k = p.load(rows, i)
        p.store(y, j, i, p.load(x, k, p.cast(j, t.INT64)))
    args = {"X": sample(rng, t.FLOAT32, 19 * 35, mild=True).reshape(19, 35)}
    args["Y"] = sample(rng, t.FLOAT32, 19 * 35, mild=True).reshape(35, 19)
    args["R"] = rng.integers(-2, 22, 19).astype(np.int64)
    check(p.func(), args, (1,), arch)


@pytest.mark.parametrize("arch", ARCHES)
def test_stencil(arch: str, rng: np.random.Generator) -> None:
    p = Program()
    x, y = p.tensor("X", ("H", "W"), t.FLOAT32), p.tensor("Y", ("H", "W"), t.FLOAT32)
    row, column = p.mul(p.block(1), 8), p.mul(p.block(0), 32)
    with p.parallel(8, 32) as (i, j):
        r, c = p.add(row, i), p.add(column, j)

        def step(d: Any, total: Any) -> Any:
            here = p.add(total, p.load(x, p.add(r, d), c))
            return (p.add(here, p.load(x, r, p.add(c, p.mul(d, 2)))),)

        (total,) = p.loop(-1, 2, (p.const(0.0, t.FLOAT32),), step)
        p.store(y, r, c, total)
    for h, w in ((40, 100), (7, 33), (1, 1)):
        args = {"X": sample(rng, t.FLOAT32, max(h * w, 16), mild=True)[: h * w].reshape(h, w)}
        args["Y"] = np.zeros((h, w), np.float32)
        check(p.func(), args, (-(-w // 32), -(-h // 8)), arch, rtol=1e-6, atol=1e-6)


def test_the_inner_loop_has_no_guard_where_the_tile_is_inside() -> None:
    """A whole tile is moved by plain vector loads; masks are in the other branch only."""
    p = Program()
    x, y = p.tensor("X", ("N",), t.FLOAT32), p.tensor("Y", ("N",), t.FLOAT32)
    start = p.mul(p.block(0), 256)
    with p.parallel(256) as (i,):
        at = p.add(start, i)
        p.store(y, at, p.mul(p.load(x, at), p.const(2.0, t.FLOAT32)))
    text = Compiled(p.func(), "x86-64-v4").text
    fast, slow = text.split("\ninside:")[1].split("\nedge:")
    assert "load <16 x float>" in fast and "masked" not in fast
    assert "masked.load" in slow


@pytest.mark.parametrize("arch", ARCHES)
def test_tensors_that_may_overlap(arch: str, rng: np.random.Generator) -> None:
    """A sequential loop through two tensors that are one: a step sees what the last one wrote."""
    p = Program()
    p.attrs["may_alias"] = True
    x, y = p.tensor("X", ("N",), t.FLOAT32), p.tensor("Y", ("N",), t.FLOAT32)

    def step(i: Any) -> None:
        p.store(y, p.add(i, 1), p.add(p.load(x, i), p.const(1.0, t.FLOAT32)))

    p.loop(0, p.sizes["N"], (), step)
    one = np.full(50, 7, np.float32)
    Compiled(p.func(), arch)({"X": one, "Y": one}, (1,))
    np.testing.assert_array_equal(one, 7 + np.arange(50))


# --- products -----------------------------------------------------------------------------------


def product(
    tile: tuple[int, int, int],
    dtypes: tuple[t.DType, t.DType, t.DType],
    out: t.DType,
    transpose: tuple[bool, bool] = (False, False),
    tf32: bool = False,
) -> Func:
    """C = A @ B by tiles; the last of two products of a block clears its accumulator."""
    (bm, bn, bk), (ta, tb) = tile, transpose
    p = Program("product")
    a = p.tensor("A", ("K", "M") if ta else ("M", "K"), dtypes[0])
    b = p.tensor("B", ("N", "K") if tb else ("K", "N"), dtypes[1])
    c = p.tensor("C", ("M", "N"), out)
    a_tile = p.alloc((bk, bm) if ta else (bm, bk), dtypes[0])
    b_tile = p.alloc((bn, bk) if tb else (bk, bn), dtypes[1])
    sums = p.alloc((bm, bn), dtypes[2], "fragment")
    row, column = p.mul(p.block(1), bm), p.mul(p.block(0), bn)
    p.fill(sums, 0)

    def step(i: Any) -> None:
        at = p.mul(i, bk)
        p.copy(a, (at, row) if ta else (row, at), a_tile.buffer.static_shape, a_tile, (0, 0))
        p.copy(b, (column, at) if tb else (at, column), b_tile.buffer.static_shape, b_tile, (0, 0))
        p.gemm(a_tile, b_tile, sums, transpose_a=ta, transpose_b=tb, allow_tf32=tf32)

    steps = p.binary("floordiv", p.add(p.sizes["K"], bk - 1), bk)
    p.loop(0, steps, (), step)
    p.copy(sums, (0, 0), (bm, bn), c, (row, column))
    return p.func()


FLOAT_INPUTS = (t.FLOAT16, t.BFLOAT16, t.FLOAT32, t.FLOAT8_E4M3, t.FLOAT8_E5M2, t.FLOAT64)


@pytest.mark.covering(1)
@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("dtype", FLOAT_INPUTS, ids=str)
def test_products_of_floats(dtype: t.DType, arch: str, rng: np.random.Generator) -> None:
    total = t.FLOAT64 if dtype == t.FLOAT64 else t.FLOAT32
    func = product((24, 40, 12), (dtype, dtype, total), total)
    m, n, k = 50, 77, 31
    a = sample(rng, dtype, m * k, mild=True).reshape(m, k)
    b = sample(rng, dtype, k * n, mild=True).reshape(k, n)
    c = np.full((m, n), np.nan, num.numpy_dtype(total))
    Compiled(func, arch)({"A": a, "B": b, "C": c}, (2, 3))
    exact = a.astype(np.float64) @ b.astype(np.float64)
    size = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64))
    assert np.all(np.abs(c - exact) <= size * (1e-14 if total == t.FLOAT64 else 2e-6))


def test_the_operands_of_a_product_are_packed() -> None:
    """In float32 and untransposed, for a product in float16 whose B is stored by columns."""
    types = (t.FLOAT16, t.FLOAT16, t.FLOAT32)
    func = lower_tiles(product((24, 40, 12), types, t.FLOAT32, (False, True)), TARGETS["cpu"])
    (gemm,) = (o for o in walk(func.body) if isinstance(o, Gemm))
    assert [x.buffer.type for x in (gemm.a, gemm.b)] == [
        t.BufferType((24, 12), t.FLOAT32, "shared"), t.BufferType((12, 40), t.FLOAT32, "shared"),
    ]  # fmt: skip
    assert not gemm.transpose_b and not any(isinstance(o, (Copy, Fill)) for o in walk(func.body))


@pytest.mark.covering(2)
@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("transpose", [(False, True), (True, False), (True, True)])
@pytest.mark.parametrize("dtype", [t.FLOAT32, t.FLOAT16], ids=str)
def test_transposed_products(
    dtype: t.DType, transpose: tuple[bool, bool], arch: str, rng: np.random.Generator
) -> None:
    func = product((17, 33, 8), (dtype, dtype, t.FLOAT32), t.FLOAT32, transpose)
    m, n, k = 20, 50, 27
    a, b = (sample(rng, dtype, x * k, mild=True).reshape(x, k) for x in (m, n))
    b = b.T.copy()
    c = np.full((m, n), np.nan, np.float32)
    given = {"A": a.T.copy() if transpose[0] else a, "B": b.T.copy() if transpose[1] else b, "C": c}
    Compiled(func, arch)(given, (2, 2))
    np.testing.assert_allclose(c, a.astype(np.float64) @ b.astype(np.float64), rtol=1e-4, atol=1e-5)


@pytest.mark.covering(1)
@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize(
    "left, right, total",
    [
        (t.INT8, t.INT8, t.INT32), (t.UINT8, t.INT8, t.INT32), (t.INT16, t.INT16, t.INT64),
        (t.INT32, t.INT32, t.INT32), (t.UINT8, t.UINT8, t.UINT32),
    ],
    ids=str,
)  # fmt: skip
def test_products_of_integers(
    left: t.DType, right: t.DType, total: t.DType, arch: str, rng: np.random.Generator
) -> None:
    func = product((9, 20, 5), (left, right, total), total)
    a = sample(rng, left, 16 * 23).reshape(16, 23)
    b = sample(rng, right, 23 * 31).reshape(23, 31)
    c = sample(rng, total, 16 * 31).reshape(16, 31)
    Compiled(func, arch)({"A": a, "B": b, "C": c}, (2, 2))
    with np.errstate(all="ignore"):
        want = (a.astype(np.int64) @ b.astype(np.int64)).astype(c.dtype)
    np.testing.assert_array_equal(c, want)


@pytest.mark.parametrize("arch", ["host", "x86-64"])
@pytest.mark.parametrize("total", [t.FLOAT16, t.BFLOAT16], ids=str)
def test_narrow_accumulators(total: t.DType, arch: str, rng: np.random.Generator) -> None:
    func = product((8, 24, 16), (t.FLOAT16, t.FLOAT16, total), total)
    args = {"A": sample(rng, t.FLOAT16, 8 * 40, mild=True).reshape(8, 40)}
    args["B"] = sample(rng, t.FLOAT16, 40 * 24, mild=True).reshape(40, 24)
    args["C"] = sample(rng, total, 8 * 24, mild=True).reshape(8, 24)
    check(func, args, (1, 1), arch, rtol=2**-7 if total == t.BFLOAT16 else 2**-9, atol=0.02)


@pytest.mark.parametrize("arch", ["host", "x86-64"])
def test_tf32_rounds_its_inputs(arch: str, rng: np.random.Generator) -> None:
    a, b = (sample(rng, t.FLOAT32, 16 * 16, mild=True).reshape(16, 16) for _ in range(2))
    for tf32 in (True, False):
        func = product((16, 16, 16), (t.FLOAT32,) * 3, t.FLOAT32, tf32=tf32)
        c = np.zeros((16, 16), np.float32)
        Compiled(func, arch)({"A": a, "B": b, "C": c}, (1, 1))
        left, right = (num.round_tf32(a), num.round_tf32(b)) if tf32 else (a, b)
        exact = left.astype(np.float64) @ right.astype(np.float64)
        np.testing.assert_allclose(c, exact, rtol=0, atol=3e-6)


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 40, 3), (33, 1, 7), (5, 17, 1), (31, 100, 6)])
def test_odd_tiles(shape: tuple[int, int, int], rng: np.random.Generator) -> None:
    """Sums that start from what the accumulator holds, and sums that do not."""
    m, n, k = shape
    p = Program()
    tensors = [p.tensor(x, s, t.FLOAT32) for x, s in zip("ABC", ((m, k), (k, n), (m, n)))]
    a, b = p.alloc((m, k), t.FLOAT32), p.alloc((k, n), t.FLOAT32)
    c = p.alloc((m, n), t.FLOAT32, "fragment")
    for source, dest in zip(tensors, (a, b, c)):
        p.copy(source, (0, 0), source.buffer.static_shape, dest, (0, 0))
    p.gemm(a, b, c, clear=True)
    p.gemm(a, b, c)
    p.copy(c, (0, 0), (m, n), tensors[2], (0, 0))
    args = {
        x: rng.standard_normal(s).astype(np.float32)
        for x, s in (("A", (m, k)), ("B", (k, n)), ("C", (m, n)))
    }
    for arch in ARCHES:
        check(p.func(), {x: v.copy() for x, v in args.items()}, (1,), arch, rtol=1e-5, atol=1e-5)


def test_sums_run_in_the_order_of_k(rng: np.random.Generator) -> None:
    """Each element is one chain of multiply-adds: bit for bit what a scalar loop gives."""
    m, n, k = 11, 37, 19
    a, b = rng.standard_normal((m, k)).astype("f"), rng.standard_normal((k, n)).astype("f")
    c = np.zeros((m, n), np.float32)
    Compiled(product((m, n, k), (t.FLOAT32,) * 3, t.FLOAT32))({"A": a, "B": b, "C": c}, (1, 1))
    want = np.zeros((m, n))
    fused = machine_of(TARGETS["cpu"]).fma
    for i in range(k):
        term = a[:, i : i + 1].astype(np.float64) * b[i].astype(np.float64)
        want = (want + (term if fused else term.astype("f"))).astype("f").astype(np.float64)
    np.testing.assert_allclose(c, want, rtol=1e-7)


def test_the_register_block_fits_the_registers() -> None:
    for arch, limit in (("x86-64", 16), ("x86-64-v3", 16), ("x86-64-v4", 32)):
        machine = machine_of(TARGETS["cpu"].__class__("cpu", "cpu", arch))
        for m, n in ((128, 128), (1, 64), (64, 16), (7, 200)):
            rows, vectors = choose_block(m, n, machine.vector_bytes // 4, machine)
            assert rows * vectors + vectors < limit
    compiled = Compiled(product((128, 128, 32), (t.FLOAT32,) * 3, t.FLOAT32), "x86-64-v4")
    assembly = machine_for("x86-64-v4").emit_assembly(_parsed(compiled))
    loop = max(assembly.split("@function\n")[1:], key=lambda f: f.count("vfmadd"))
    spills = [x for x in loop.split("\n") if "zmm" in x and "(%rsp)" in x]
    assert loop.count("vfmadd") >= 64 and not spills


def _parsed(compiled: Compiled) -> Any:
    import llvmlite.binding as llvm

    module = llvm.parse_assembly(compiled.optimised, context=llvm.create_context())
    return module


def test_refuses_float_products_into_integers() -> None:
    with pytest.raises(CompileError, match="into the integer accumulator"):
        Compiled(product((8, 8, 8), (t.FLOAT32, t.FLOAT32, t.INT32), t.INT32))


# --- threads ------------------------------------------------------------------------------------


def thread_program(threads: int) -> Func:
    """Reverse and scale through shared memory; values and a local buffer live across the
    barrier."""
    p = Program(threads=threads)
    x, y = p.tensor("X", ("N",), t.FLOAT32), p.tensor("Y", ("N",), t.FLOAT32)
    tid = p.b.value(ThreadIndex)
    shared = p.alloc((threads,), t.FLOAT32)
    mine = p.alloc((3,), t.FLOAT32, "local")
    at = p.add(p.mul(p.block(0), threads), tid)
    v = p.load(x, at)
    scale = p.mul(v, p.const(0.5, t.FLOAT32))
    p.store(mine, 1, scale)
    p.store(mine, p.binary("mod", tid, 2), v)
    p.store(shared, tid, v)
    p.emit(Barrier)
    other = p.load(shared, p.binary("sub", threads - 1, tid))
    p.store(y, at, p.add(p.add(other, scale), p.load(mine, 1)))
    return p.func()


@pytest.mark.covering(1)
@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("threads", [1, 32, 100])
def test_thread_level_code(threads: int, arch: str, rng: np.random.Generator) -> None:
    n = threads * 2 + threads // 2
    x = sample(rng, t.FLOAT32, max(n, 16), mild=True)[:n]
    y = np.zeros(n, np.float32)
    Compiled(thread_program(threads), arch)({"X": x, "Y": y}, (3,))
    padded = np.concatenate([x, np.zeros(3 * threads - n, np.float32)]).reshape(3, threads)
    odd = np.arange(threads) % 2 == 1
    local = np.where(odd, padded, padded * np.float32(0.5))
    want = padded[:, ::-1] + padded * np.float32(0.5) + local
    np.testing.assert_allclose(y, want.reshape(-1)[:n], rtol=1e-6)


def test_thread_code_and_tile_ops_together(rng: np.random.Generator) -> None:
    """A loop that holds both: the tile copy is done once, the rest by every thread."""
    p = Program(threads=64)
    x, y = p.tensor("X", (5, 64), t.FLOAT32), p.tensor("Y", (64,), t.FLOAT32)
    tid = p.b.value(ThreadIndex)
    row = p.alloc((64,), t.FLOAT32)
    sums = p.alloc((1,), t.FLOAT32, "local")
    p.store(sums, 0, 0.0)

    def step(i: Any) -> None:
        p.copy(x, (i, 0), (1, 64), row, (0,), (64,))
        p.emit(Barrier)
        neighbour = p.load(row, p.binary("mod", p.add(tid, 1), 64))
        p.store(sums, 0, p.add(p.load(sums, 0), neighbour))
        p.emit(Barrier)

    p.loop(0, 5, (), step)
    p.store(y, tid, p.load(sums, 0))
    data = rng.standard_normal((5, 64)).astype(np.float32)
    out = np.zeros(64, np.float32)
    compiled = Compiled(p.func())
    compiled({"X": data, "Y": out}, (1,))
    np.testing.assert_allclose(out, np.roll(data.sum(0), -1), rtol=1e-5, atol=1e-5)
    loops = [o for o in walk(compiled.lowered.body) if isinstance(o, Parallel)]
    assert [o.extents for o in loops] == [(64,)] * 4  # a row's copy; before, in and behind the loop
    assert not any(isinstance(o, (Copy, ThreadIndex)) for o in walk(compiled.lowered.body))


def test_a_barrier_that_not_all_threads_reach_is_refused() -> None:
    p = Program(threads=32)
    y = p.tensor("Y", (32,), t.FLOAT32)
    tid = p.b.value(ThreadIndex)

    def inside() -> None:
        p.emit(Barrier)
        p.store(y, tid, 1.0)

    p.if_(p.compare("lt", tid, 7), inside)
    with pytest.raises(CompileError, match="depends on the thread index") as caught:
        Compiled(p.func())
    assert "kernel.py:1" in str(caught.value)


# --- the rest -----------------------------------------------------------------------------------


def test_print(capfd: pytest.CaptureFixture[str], rng: np.random.Generator) -> None:
    p = Program()
    x = p.tensor("X", (2, 3), t.FLOAT16)
    a = p.alloc((2, 3), t.FLOAT16)
    p.copy(x, (0, 0), (2, 3), a, (0, 0))
    p.emit(Print, "100% block {} has {}", (p.block(0), p.load(x, 1, 2)))
    p.emit(Print, "done: {}", (p.compare("gt", p.block(0), 0),))
    p.emit(Print, "tile", (), a)
    with p.parallel(2) as (i,):
        p.emit(Print, "i={}", (i,))
    data = np.array([[1, 2.5, -3], [0.1, 5, 60000]], np.float16)
    Compiled(lower_prints(p.func(), TARGETS["cpu"]))({"X": data}, (2,))
    lines = capfd.readouterr().out.splitlines()
    assert lines[:2] == ["100% block 0 has 60000", "done: False"]
    assert lines[2:6] == ["tile[0, 0] = 1", "tile[0, 1] = 2.5", "tile[0, 2] = -3",
                          "tile[1, 0] = 0.0999755859"]  # fmt: skip
    assert lines[8:10] == ["i=0", "i=1"]
    assert "done: True" in lines and len(lines) == 20


def test_narrow_integers_are_refused_at_the_line() -> None:
    p = Program()
    p.alloc((8,), t.INT4)
    with pytest.raises(CompileError, match="narrower than a byte") as caught:
        Compiled(p.func())
    assert "kernel.py:1" in str(caught.value) and "help:" in str(caught.value)


def test_ranges_of_blocks_from_several_threads(rng: np.random.Generator) -> None:
    """Two threads share the blocks of a grid of three dimensions; each block says where it ran."""
    p = Program()
    y = p.tensor("Y", (3, 4, 5), t.INT32)
    where = [p.block(d) for d in range(3)]
    code = p.add(p.mul(where[2], 100), p.add(p.mul(where[1], 10), where[0]))
    big = p.alloc((64, 64), t.INT32)
    p.fill(big, code)
    p.store(y, where[2], where[1], where[0], p.load(big, 63, 63))
    compiled = Compiled(p.func())
    out = np.full((3, 4, 5), -1, np.int32)
    block = pack(p.func(), {"Y": out})
    workers = [
        threading.Thread(target=compiled.entry, args=(block.pointer, begin, end, 5, 4, 3))
        for begin, end in ((0, 23), (23, 60))
    ]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    z, y_, x = np.indices((3, 4, 5))
    np.testing.assert_array_equal(out, z * 100 + y_ * 10 + x)


def test_a_product_compiles_fast() -> None:
    func = product((128, 128, 32), (t.FLOAT16, t.FLOAT16, t.FLOAT32), t.FLOAT16)
    best = min(sum(Compiled(func).seconds.values()) for _ in range(3))
    assert best < 0.2 * slower()  # seconds of this process; about 0.08 on a 4 GHz core
