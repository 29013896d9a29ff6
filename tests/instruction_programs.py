"""One small LOWERED function for every group of NVIDIA rows, with random operands and what NumPy
makes of them.

Operands are laid out on the host: fragments as arrays (thread, register), shared tiles as images of
memory. So a kernel only moves them, runs the instruction and stores what came out; where elements
belong is said by the layouts, or by formulas of the PTX ISA written out here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from instruction_rows import registers_of
from lowered import Kernel

from tilec.ir import ops
from tilec.ir import semantics as num
from tilec.ir.core import Func, Param, Value
from tilec.ir.instr import (
    MatrixInstruction,
    MmaInstruction,
    WgmmaInstruction,
    find_instruction,
    instructions_of,
)
from tilec.ir.instr.nvidia import MMA_INSTRUCTIONS
from tilec.ir.intervals import dtype_range
from tilec.ir.layout import Layout, swizzled, wgmma_operand
from tilec.ir.types import (
    BFLOAT16,
    FLOAT8_E4M3,
    FLOAT8_E5M2,
    FLOAT16,
    FLOAT32,
    INT8,
    INT32,
    TFLOAT32,
    UINT8,
    BufferType,
    DType,
    TensorMapType,
)

Arrays = dict[str, np.ndarray]


@dataclass
class Program:
    """A function of one block, its arrays, and what some of them hold afterwards."""

    func: Func
    arrays: Arrays
    want: Arrays
    tolerance: float = 0.0


class RowKernel(Kernel):
    """A kernel whose tensors are arrays at hand."""

    def __init__(self, threads: int, shared_bytes: int = 0) -> None:
        super().__init__(threads, shared_bytes=shared_bytes)
        self.arrays: Arrays = {}
        self.want: Arrays = {}

    def given(self, name: str, array: np.ndarray, dtype: DType) -> Value:
        self.arrays[name] = np.ascontiguousarray(array).reshape(-1)
        return self.tensor(name, dtype)

    def out(self, name: str, want: np.ndarray, dtype: DType) -> Value:
        """A tensor that shall hold `want` in the end; before, it holds something else."""
        self.want[name] = want
        return self.given(name, np.full(want.size, 77).astype(num.numpy_dtype(dtype)), dtype)

    def at_thread(self, each: int) -> Value:
        """Offset of this thread's first of `each` elements."""
        return self.binary("mul", self.tid(), self.i64(each))

    def plus(self, base: Value, n: int) -> Value:
        return self.binary("add", base, self.i64(n)) if n else base

    def to_fragment(self, v: Value, count: int, dtype: DType, packed: int) -> Value:
        """This thread's `count` elements of a tensor (thread, register)."""
        f, at = self.fragment(count, dtype, packed), self.at_thread(count)
        for r in range(count):
            value = self.op(ops.MemLoad, v, self.plus(at, r))
            self.op(ops.RegWrite, f, self.i32(r), value)
        return f

    def from_fragment(self, v: Value, f: Value, count: int) -> None:
        at = self.at_thread(count)
        for r in range(count):
            value = self.op(ops.RegRead, f, self.i32(r))
            self.op(ops.MemStore, v, self.plus(at, r), value)

    def image(self, v: Value, shared: Value, size: int, out: bool = False) -> None:
        """Copy `size` elements between a tensor and shared memory, 16 bytes a time."""
        lanes = 128 // v.dtype.bits
        threads = int(self.attrs["threads"])
        chunks = size // lanes
        assert size % lanes == 0

        def step(i: Value) -> None:
            chunk = self.binary(
                "add", self.binary("mul", i, self.i32(threads)), self.op(ops.ThreadIndex)
            )
            at = self.binary("mul", chunk, self.i32(lanes))
            inside = self.op(ops.Compare, "lt", chunk, self.i32(chunks))
            if out:
                value = self.op(ops.MemLoad, shared, at, lanes, 16, inside)
                self.op(ops.MemStore, v, self.wide(at), value, 16, inside)
            else:
                value = self.op(ops.MemLoad, v, self.wide(at), lanes, 16, inside)
                self.op(ops.MemStore, shared, at, value, 16, inside)

        self.loop(-(-chunks // threads), step)

    def program(self, tolerance: float = 0.0) -> Program:
        return Program(replace(self.func(), name="rows"), self.arrays, self.want, tolerance)


def random(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    if dtype.is_float:
        return rng.standard_normal(shape).astype(num.numpy_dtype(dtype))
    low, high = dtype_range(dtype)
    return rng.integers(low, high, shape, endpoint=True).astype(num.numpy_dtype(dtype))


def held(layout: Layout, tile: np.ndarray) -> np.ndarray:
    """A tile as an array (warp, lane, register)."""
    return registers_of(layout, tile).transpose(2, 1, 0)


# --- mma ----------------------------------------------------------------------------------------

MMA_WARPS = 4  # each has a tile of its own


def mma_program(name: str, rng: np.random.Generator) -> Program:
    row = find_instruction(name)
    assert isinstance(row, MmaInstruction)
    k = RowKernel(32 * MMA_WARPS)
    parts: dict[str, list[np.ndarray]] = {"a": [], "b": [], "c": [], "d": []}
    for _ in range(MMA_WARPS):
        a, b, c = operands(rng, row, row.k)
        d = exact_product(a, b, c)
        for key, layout, tile in zip("abcd", (row.a, row.b, row.c, row.c), (a, b, c, d)):
            parts[key].append(held(layout, tile)[0])
    values = {key: np.stack(tiles) for key, tiles in parts.items()}
    frags = []
    for key, layout, dtype, pack in zip(
        "abc", (row.a, row.b, row.c), (row.a_dtype, row.b_dtype, row.c_dtype), row.packs
    ):
        v = k.given(key, values[key], dtype)
        frags.append(k.to_fragment(v, layout.size("reg"), dtype, pack))
    zero = k.i32(0)
    k.op(ops.Mma, name, frags[2], zero, frags[0], zero, frags[1], zero)
    d = k.out("d", values["d"].astype(num.numpy_dtype(row.c_dtype)), row.c_dtype)
    k.from_fragment(d, frags[2], row.c.size("reg"))
    return k.program(tolerance(row.c_dtype))


def operands(
    rng: np.random.Generator, row: MatrixInstruction, depth: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Random A (m, depth), B (depth, n) and C (m, n) of a row's dtypes."""
    a = random(rng, (row.m, depth), row.a_dtype)
    b = random(rng, (depth, row.n), row.b_dtype)
    c = random(rng, (row.m, row.n), row.c_dtype)
    if row.c_dtype.is_int:
        c //= 2
    if row.a_dtype == TFLOAT32:  # the instruction reads the upper 19 bits
        a, b = ((x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32) for x in (a, b))
    return a, b, c


def tolerance(c: DType, coarse: bool = False) -> float:
    """Of a product's relative error; `coarse`: the sum keeps about 14 bits."""
    if c.is_int:
        return 0.0
    return 4e-3 if c == FLOAT16 else 1e-3 if coarse else 1e-5


def exact_product(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    if a.dtype.kind in "iu":
        return a.astype(np.int64) @ b.astype(np.int64) + c
    return a.astype(np.float64) @ b.astype(np.float64) + c


# --- wgmma --------------------------------------------------------------------------------------


def wgmma_program(dtypes: Dtypes, a_from: str, b_from: str, rng: np.random.Generator) -> Program:
    """Every N once (of the less usual dtypes: every third and the last). Each operand is "k" or
    "mn", as it lies in shared memory, or A comes from registers ("r"); the swizzle and the number
    of steps change with N."""
    k = RowKernel(128, 1024 * 96)
    rows = [r for r in instructions_of(*dtypes) if isinstance(r, WgmmaInstruction)]
    if dtypes not in WGMMA_DTYPES[:1]:
        rows = [*rows[:-1:3], rows[-1]]
    for at, row in enumerate(rows):
        n, bits, count = row.n, row.a_dtype.bits, row.registers[2] * row.packs[2]
        width = (32, 64, 128)[at % 3] * 8 // bits  # elements of a swizzled row
        depth = row.k * (1 + at % 3) if "k" not in (a_from, b_from) else width
        a, b, c = operands(rng, row, depth)
        sides, address = [], 0
        for which, x, place in (
            ("a", a.T if a_from == "mn" else a, a_from),
            ("b", b if b_from == "mn" else b.T, b_from),
        ):
            dtype = row.a_dtype if which == "a" else row.b_dtype
            if place == "r":
                steps = [a[:, s : s + row.k] for s in range(0, depth, row.k)]
                registers = np.concatenate([held(row.a, step) for step in steps], -1)
                v = k.given(f"a{n}", registers, dtype)
                sides.append((k.to_fragment(v, registers.shape[-1], dtype, row.packs[0]), 0, ()))
                continue
            # A row of an MN-major operand is made of whole swizzled rows.
            x = np.pad(x, ((0, 0), (0, -x.shape[1] % width)))
            layout = swizzled(x.shape, bits, width * bits // 8)
            found = wgmma_operand(layout, bits, place)
            assert found is not None
            image = np.zeros(layout.span(), x.dtype)
            image[layout.offsets()] = x
            t = BufferType(layout.shape, dtype, "shared", layout=layout)
            shared = k.alloc(t, f"s{which}{n}", address=address)
            address += -(-image.nbytes // 1024) * 1024
            k.image(k.given(f"{which}{n}", image, dtype), shared, image.size)
            sides.append((shared, found.fields, tuple(found.k_steps[: depth // row.k])))
        k.op(ops.ProxyFence)
        k.op(ops.Barrier)
        c_given = k.given(f"c{n}", held(row.c, c), row.c_dtype)
        acc = k.to_fragment(c_given, count, row.c_dtype, row.packs[2])
        zero, (left, right) = k.i32(0), sides
        k.op(
            ops.Wgmma, row.name, acc, left[0], zero, right[0], zero, 1,
            left[1], right[1], left[2], right[2], a_from == "mn", b_from == "mn",
        )  # fmt: skip
        k.op(ops.WgmmaWait, 0, (acc, left[0]) if a_from == "r" else (acc,))
        want = held(row.c, exact_product(a, b, c)).astype(num.numpy_dtype(row.c_dtype))
        k.from_fragment(k.out(f"d{n}", want, row.c_dtype), acc, count)
        k.op(ops.Barrier)  # the next product overwrites the operands
    return k.program(tolerance(row.c_dtype, row.coarse_sum))


Dtypes = tuple[DType, DType, DType]
FLOAT8 = (FLOAT8_E4M3, FLOAT8_E5M2)
WGMMA_DTYPES: tuple[Dtypes, ...] = (
    (FLOAT16, FLOAT16, FLOAT32),
    (FLOAT16, FLOAT16, FLOAT16),
    (BFLOAT16, BFLOAT16, FLOAT32),
    (TFLOAT32, TFLOAT32, FLOAT32),
    *((a, b, c) for a in FLOAT8 for b in FLOAT8 for c in (FLOAT32, FLOAT16)),
    *((a, b, INT32) for a in (INT8, UINT8) for b in (INT8, UINT8)),
)
WGMMA_PROGRAMS = {
    f"wgmma.{'.'.join(map(str, dtypes))}.{a}.{b}": (dtypes, a, b)
    for dtypes in WGMMA_DTYPES
    for a in (("k", "mn", "r") if dtypes[0].bits == 16 else ("k", "r"))
    for b in (("k", "mn") if dtypes[0].bits == 16 else ("k",))
}


# --- ldmatrix, stmatrix -------------------------------------------------------------------------


def matrix_element(count: int, transposed: bool) -> tuple[np.ndarray, np.ndarray]:
    """(row, column) that register pair element e of matrix q of lane l holds: arrays (lane, q, e)
    of rows 0 to 8 * count. PTX ISA, figure "mma .8x8 fragment"."""
    lane, q, e = np.indices((32, count, 2))
    row, column = lane // 4, 2 * (lane % 4) + e
    if transposed:
        row, column = column, row
    return 8 * q + row, column


def matrix_moves_program(rng: np.random.Generator) -> Program:
    """ldmatrix and stmatrix of 1, 2 and 4 matrices, plain and transposed, at scattered rows."""
    k = RowKernel(32, 8192)
    lines = 64
    s = k.shared(lines * 8, FLOAT16, 0)
    for word in ("ld", "st"):
        for count in (1, 2, 4):
            for transposed in (False, True):
                name = f"{word}{count}{'t' if transposed else ''}"
                where = rng.permutation(lines)[:32].astype(np.int32) * 8
                r, c = matrix_element(count, transposed)
                at = k.given(f"{name}_at", where, INT32)
                offset = k.op(ops.MemLoad, at, k.tid())
                stored = random(rng, (lines * 8,), FLOAT16)
                k.image(k.given(f"{name}_in", stored, FLOAT16), s, stored.size)
                k.op(ops.Barrier)
                if word == "ld":
                    f = k.fragment(2 * count, FLOAT16, 2)
                    k.op(ops.Ldmatrix, f, k.i32(0), s, offset, count, transposed)
                    want = stored[where[r] + c]
                    k.from_fragment(k.out(name, want.reshape(-1), FLOAT16), f, 2 * count)
                else:
                    registers = random(rng, (32, count, 2), FLOAT16)
                    v, base = k.given(f"{name}_r", registers, FLOAT16), k.at_thread(2 * count)
                    values = tuple(
                        k.op(ops.MemLoad, v, k.plus(base, 2 * q), 2, 4) for q in range(count)
                    )
                    k.op(ops.Stmatrix, s, offset, values, transposed)
                    k.op(ops.Barrier)
                    want = stored.copy()
                    want[where[r] + c] = registers
                    k.image(k.out(name, want, FLOAT16), s, want.size, out=True)
                k.op(ops.Barrier)
    return k.program()


# --- cp.async -----------------------------------------------------------------------------------


def cp_async_program(rng: np.random.Generator) -> Program:
    """Every size, whole and with 0 to all bytes valid, from shuffled places."""
    threads = 64
    k = RowKernel(threads, 2048)
    for size in (4, 8, 16):
        for partial in (False, True):
            name = f"c{size}{'p' if partial else ''}"
            source = random(rng, (threads * size,), INT8)
            where = (rng.permutation(threads) * size).astype(np.int32)
            valid = (np.arange(threads) % (size + 1)).astype(np.int32)
            want = source.reshape(threads, size)[where // size].copy()
            if partial:
                want[np.arange(size)[None] >= valid[:, None]] = 0
            s = k.shared(threads * size, INT8, 0, f"s_{name}")
            at = k.op(ops.MemLoad, k.given(f"{name}_at", where, INT32), k.tid())
            v = k.given(f"{name}_in", source, INT8)
            dest = k.binary("mul", k.op(ops.ThreadIndex), k.i32(size))
            inside = k.op(ops.MemLoad, k.given(f"{name}_valid", valid, INT32), k.tid())
            k.op(ops.CpAsync, s, dest, v, k.wide(at), size, inside if partial else None)
            k.op(ops.CpAsyncCommit)
            k.op(ops.CpAsyncWait, 0)
            k.op(ops.Barrier)
            k.image(k.out(name, want.reshape(-1), INT8), s, threads * size, out=True)
            k.op(ops.Barrier)
    return k.program()


# --- TMA ----------------------------------------------------------------------------------------

SIZES = (96, 12, 5, 4, 3)  # of the tensors, innermost first
TILES = (32, 8, 3, 2, 2)
CORNERS = ((0, 0, 0, 0, 0), (-8, -3, 4, -1, 2), (80, 9, 1, 3, -1))


def tma_program(dims: int, rng: np.random.Generator) -> Program:
    """For every swizzle: a box that crosses the tensor's edges comes in, is copied out as memory
    has it, and leaves again for another place of another tensor."""
    k = RowKernel(64, 65536)
    sizes = SIZES[:dims]
    bar = k.barriers(1, 65000 // 8 * 8)
    first = k.op(ops.Compare, "eq", k.op(ops.ThreadIndex), k.i32(0))

    def init() -> None:
        k.op(ops.MbarrierInit, bar, 1)
        k.op(ops.MbarrierInitFence)

    k.when(first, init)
    k.op(ops.Barrier)
    phase = 0
    for swizzle in (0, 32, 64, 128):
        box = (swizzle // 2 or TILES[0], *TILES[1:dims])
        count = int(np.prod(box))
        for number, corner in enumerate(CORNERS):
            name = f"s{swizzle}_{number}"
            a = random(rng, sizes[::-1], FLOAT16)
            tile = box_of(a, corner[:dims], box)
            linear = np.arange(count) * 2
            if swizzle:
                linear ^= ((linear >> 7) & (swizzle // 16 - 1)) << 4
            image = np.zeros(count, np.float16)
            image[linear // 2] = tile.reshape(-1)
            source = tensor_map(k, f"{name}_a", a, box, swizzle)
            s = k.shared(count, FLOAT16, 0, f"{name}_s")
            zero, at = k.i32(0), tuple(k.i32(c) for c in corner[:dims])

            def load(s: Value = s, source: Value = source, at: Any = at, n: int = count) -> None:
                k.op(ops.MbarrierExpect, bar, k.i32(0), 2 * n)
                k.op(ops.TmaLoad, s, k.i32(0), source, at, bar, k.i32(0))

            k.when(first, load)
            k.op(ops.MbarrierWait, bar, zero, k.i32(phase))
            phase ^= 1
            k.image(k.out(f"{name}_image", image, FLOAT16), s, count, out=True)
            elsewhere = CORNERS[(number + 1) % 3][:dims]
            before = random(rng, sizes[::-1], FLOAT16)
            target = tensor_map(k, f"{name}_b", before, box, swizzle)
            k.want[f"{name}_b"] = with_box(before, elsewhere, tile)
            there = tuple(k.i32(c) for c in elsewhere)

            def store(s: Value = s, target: Value = target, there: Any = there) -> None:
                k.op(ops.TmaStore, target, there, s, k.i32(0))
                k.op(ops.TmaStoreCommit)
                k.op(ops.TmaStoreWait, 0, False)

            k.op(ops.ProxyFence)
            k.op(ops.Barrier)
            k.when(first, store)
            k.op(ops.Barrier)
    return k.program()


def tensor_map(k: RowKernel, name: str, a: np.ndarray, box: tuple[int, ...], swizzle: int) -> Value:
    k.arrays[name] = a.copy()
    t = TensorMapType(name, tuple(reversed(range(a.ndim))), box, swizzle, FLOAT16)
    v = Value(t, f"{name}_map")
    k.params.append(Param(v, "tensor_map", name))
    return v


def _overlap(
    shape: tuple[int, ...], corner: tuple[int, ...], box: tuple[int, ...]
) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """The part of a box inside a tensor, in the tensor and in the box: outermost first."""
    inside, part = [], []
    for size, at, extent in zip(shape, reversed(corner), reversed(box)):
        low, high = max(at, 0), min(at + extent, size)
        inside.append(slice(low, max(high, low)))
        part.append(slice(low - at, max(high, low) - at))
    return tuple(inside), tuple(part)


def box_of(a: np.ndarray, corner: tuple[int, ...], box: tuple[int, ...]) -> np.ndarray:
    tile = np.zeros(box[::-1], a.dtype)
    inside, part = _overlap(a.shape, corner, box)
    tile[part] = a[inside]
    return tile


def with_box(a: np.ndarray, corner: tuple[int, ...], tile: np.ndarray) -> np.ndarray:
    a = a.copy()
    inside, part = _overlap(a.shape, corner, tile.shape[::-1])
    a[inside] = tile[part]
    return a


PROGRAMS: dict[str, Callable[[np.random.Generator], Program]] = {
    **{row.name: lambda rng, name=row.name: mma_program(name, rng) for row in MMA_INSTRUCTIONS},
    **{name: lambda rng, of=of: wgmma_program(*of, rng) for name, of in WGMMA_PROGRAMS.items()},
    "ldmatrix, stmatrix": matrix_moves_program,
    "cp.async": cp_async_program,
    **{f"tma {d}d": lambda rng, d=d: tma_program(d, rng) for d in (1, 2, 3, 4, 5)},
}
