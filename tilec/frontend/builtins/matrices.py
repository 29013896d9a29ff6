"""Builtins for matrix instructions by hand, and for products with a compressed A (2:4 sparsity)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tilec import language as T
from tilec.frontend.arithmetic import static_int
from tilec.frontend.builtins.pointers import place_of
from tilec.frontend.builtins.scalar import index_of_thread
from tilec.frontend.builtins.table import Call, builtin
from tilec.frontend.builtins.tile import accumulator, check_dtypes, factor, multiply, put_back
from tilec.frontend.expressions import Expressions
from tilec.frontend.values import Buffer, Number, Region, Tile, describe
from tilec.ir.ops import LoadMatrices, WarpMma
from tilec.ir.sparse import METADATA_DTYPES, SPARSE_DTYPES, covered
from tilec.ir.types import FLOAT32, TFLOAT32, DType
from tilec.support.lazy import Lazy

if TYPE_CHECKING:
    from tilec.ir import instr as instructions
else:  # loaded by kernels that ask for it
    instructions = Lazy("tilec.ir.instr")

_LANES = 32


@builtin(T.ptx_mma, of="threads")
def ptx_mma(t: Expressions, c: Call) -> None:
    if c.flag("saturate"):
        raise c.wrong("saturate", "is True: the sums of ints wrap around here", "leave it out")
    buffers = [_local(t, c, n) for n in ("multiplicand_a", "multiplicand_b", "accumulator")]
    first = [c.number(n) for n in ("a_index", "b_index", "c_index")]
    if (c["A_layout"], c["B_layout"]) != ("row", "col"):
        message = f"T.ptx_mma of layouts {describe(c['A_layout'])} and {describe(c['B_layout'])}"
        hint = 'write "row", "col": what each lane holds does not depend on how memory is laid out'
        raise t.error(message, hint)
    dtypes = [b.type.dtype for b in buffers]
    taken = [TFLOAT32 if d is FLOAT32 else d for d in dtypes[:2]]
    found = instructions.instructions_of(taken[0], taken[1], dtypes[2])
    mma = (i for i in found if isinstance(i, instructions.MmaInstruction))
    hint = (
        'write "m16n8k16" of float16 or bfloat16 with float32, "m16n8k8" of float32, '
        '"m16n8k32" of float8 with float32 or of int8 with int32, "m8n8k4" of float64'
    )
    instr = _instruction(c, "shape", "mma", {f"m{i.m}n{i.n}k{i.k}": i for i in mma}, dtypes, hint)
    _multiply(t, instr, buffers, first)


@builtin(T.tvm_mfma, of="threads")
def tvm_mfma(t: Expressions, c: Call) -> None:
    buffers = [_local(t, c, n) for n in ("multiplicand_a", "multiplicand_b", "accumulator")]
    dtypes = [b.type.dtype for b in buffers]
    found = instructions.instructions_of(dtypes[0], dtypes[1], dtypes[2])
    known = {i.word: i for i in found if isinstance(i, instructions.MfmaInstruction)}
    hint = (
        "sums of float16, bfloat16, float8 and float32 are float32, of int8 int32, of float64 "
        "float64"
    )
    instr = _instruction(c, "dtype_prefix", "mfma", known, dtypes, hint)
    counts = [n * pack for n, pack in zip(instr.registers, instr.packs)]
    first = [
        t.binary("mul", c.number(name), count)
        for name, count in zip(("a_index", "b_index", "c_index"), counts)
    ]
    _multiply(t, instr, buffers, first)


def _instruction(
    c: Call, name: str, kind: str, known: Mapping[str, instructions.MatrixInstruction],
    dtypes: Sequence[DType], hint: str,
) -> instructions.MatrixInstruction:  # fmt: skip
    """The one of the instructions `known` that an argument names."""
    if c[name] not in known:
        names, there = ", ".join(d.name for d in dtypes), ", ".join(known) or "none"
        message = f"there is no {kind} {c[name]} of {names} (A, B, C); there are: {there}"
        raise c.t.error(message, hint, c.place(name))
    return known[c[name]]


def _multiply(
    t: Expressions,
    instr: instructions.MatrixInstruction,
    buffers: Sequence[Buffer],
    first: Sequence[Number],
) -> None:
    """C += A B of what a thread has in `buffers` from the elements number `first` on."""
    counts = [n * pack for n, pack in zip(instr.registers, instr.packs)]
    operands = [
        [t.convert(t.load(_element(t, b, at, k)), dtype).value for k in range(count)]
        for b, at, count, dtype in zip(
            buffers, first, counts, (instr.a_dtype, instr.b_dtype, instr.c_dtype)
        )
    ]
    made = t.emit(WarpMma, instr.name, *map(tuple, operands))
    for k, result in enumerate(made.results):
        t.store(_element(t, buffers[2], first[2], k), t.scalar(result))


@builtin(T.ldmatrix, of="threads")
def ldmatrix(t: Expressions, c: Call) -> None:
    dst, first = _local(t, c, "dst"), c.number("dst_index")
    src = place_of(t, c["src"], "src of T.ldmatrix", c.place("src"))
    stored, dtype = src.buffer.type, dst.type.dtype
    if stored.space != "shared" or stored.rank < 2:
        hint = "name an element of a shared buffer of two dimensions"
        raise c.wrong("src", f"is in {describe(src.buffer)}", hint)
    transposed = c.flag("transposed")
    if dtype.bits not in ((16,) if transposed else (8, 16, 32)):
        message = f"T.ldmatrix{' transposed' if transposed else ''} into {describe(dst)}"
        hint = "elements have 8, 16 or 32 bits (transposed 16); load others one by one"
        raise t.error(message, hint, c.place("dst"))
    rows, columns = (_places(t, c, n) for n in ("rows", "columns"))
    if len(rows) != len(columns) or (
        len(rows) == 4 and any(x[0] + x[3] != x[1] + x[2] for x in (rows, columns))
    ):
        hint = (
            "give one, two or four of both, of four the last as far from the second as the third "
            "from the first"
        )
        raise t.error(f"rows {rows} and columns {columns} of T.ldmatrix", hint, c.place("rows"))
    per = 32 // dtype.bits
    t.check_element(src)
    t.check_element(_behind(t, src, max(rows) + 7, max(columns) + 4 * per - 1))
    if stored.dtype is dtype:
        made = t.emit(LoadMatrices, src.buffer.value, t.indices_at(src), rows, columns, transposed)
        loaded = [t.scalar(r) for r in made.results]
    else:  # to convert: element by element
        lane = t.binary("mod", index_of_thread(t, c), _LANES)
        row, quarter = t.binary("floordiv", lane, 4), t.binary("mod", lane, 4)
        loaded = []
        for down, right in zip(rows, columns):
            for e in range(per):
                along = t.binary("add", t.binary("mul", quarter, per), e)
                by = (along, row) if transposed else (row, along)
                there = (t.binary("add", x, n) for x, n in zip(by, (down, right)))
                loaded.append(t.load(_behind(t, src, *there)))
    for k, value in enumerate(loaded):
        t.store(_element(t, dst, first, k), value)


def _behind(t: Expressions, element: Region, down: Number, right: Number) -> Region:
    *outer, row, column = element.offsets
    at = (t.binary("add", row, down), t.binary("add", column, right))
    return t.element(element.buffer, (*outer, *at), element.loc)


def _places(t: Expressions, c: Call, name: str) -> tuple[int, ...]:
    given = c.several(name)
    found = tuple(x for x in map(static_int, given) if x is not None and x >= 0)
    if len(found) != len(given) or len(found) not in (1, 2, 4):
        hint = "write one, two or four ints: (0, 8, 0, 8)"
        raise c.wrong(name, f"is {describe(c[name])}", hint)
    return found


def _local(t: Expressions, c: Call, name: str) -> Buffer:
    found = c[name]
    if not isinstance(found, Buffer) or found.type.space != "local" or found.type.rank != 1:
        hint = 'allocate one: T.alloc_local((8,), "float16")'
        raise c.wrong(name, f"is {describe(found)}, not a local buffer of one dimension", hint)
    return found


def _element(t: Expressions, buffer: Buffer, first: Number, k: int) -> Region:
    return t.element(buffer, [t.binary("add", first, k)])


# --- products with a compressed A -----------------------------------------------------------------

_COMPRESS = "tilec.sparse.compress makes values and metadata of a matrix"


@builtin(T.gemm_sp, of="tiles")
def gemm_sp(t: Expressions, c: Call) -> None:
    a, b = factor(t, c, "A_sparse"), factor(t, c, "B")
    acc, place = accumulator(t, c)
    dtype = a.buffer.type.dtype
    if dtype not in SPARSE_DTYPES:
        message = f"2:4 products of {dtype.name} are not supported: A_sparse is {t.tile_text(a)}"
        hint = f"inputs can be {', '.join(d.name for d in SPARSE_DTYPES)}"
        raise t.error(message, hint, c.place("A_sparse"))
    check_dtypes(t, dtype, b.buffer.type.dtype, acc, (a, b))
    e = _metadata(t, c)
    transposed = [c.flag(f"transpose_{x}") for x in "AEB"]
    (m, kept), (rows, words), (n, k) = (
        x.extents[-2:][:: -1 if swapped else 1]
        for x, swapped in zip((a, e, b), (transposed[0], transposed[1], not transposed[2]))
    )
    if k != 2 * kept:
        raise t.error(
            f"gemm_sp sums over K, of which A_sparse keeps half: {t.tile_text(a)} are {kept} for "
            f"K = {2 * kept}, but B has K = {k}: {t.tile_text(b)}",
            f"A_sparse is {_form('M', 'K / 2', transposed[0])}, "
            f"B {_form('K', 'N', transposed[2])} here",
            c.place("A_sparse"),
        )
    _check_metadata(t, c, e, dtype, (m, k), (rows, words), transposed[1])
    if acc.type.static_shape != (m, n):
        hint = f'allocate C with T.alloc_fragment(({m}, {n}), "{acc.type.dtype.name}")'
        raise t.error(f"gemm_sp gives a ({m}, {n}) tile, but C is {describe(acc)}", hint)
    ta, te, tb = transposed
    multiply(t, c, a, b, acc, e, transpose_a=ta, transpose_metadata=te, transpose_b=tb)
    put_back(t, acc, place)


def _metadata(t: Expressions, c: Call) -> Tile:
    e = factor(t, c, "E")
    names = ", ".join(d.name for d in METADATA_DTYPES)
    if e.buffer.type.space != "shared":
        hint = "copy it into one first: T.copy(…, E_shared)"
        raise c.wrong("E", f"is {describe(e.buffer)}; metadata must be a shared tile", hint)
    if e.buffer.type.dtype not in METADATA_DTYPES:
        raise c.wrong("E", f"is {t.tile_text(e)}; metadata can be {names}", _COMPRESS)
    return e


def _check_metadata(
    t: Expressions,
    c: Call,
    e: Tile,
    dtype: DType,
    dense: tuple[int, int],
    given: tuple[int, int],
    transposed: bool,
) -> None:
    """Raise CompileError unless `e`, `given` words of so many rows, describe A (M, K) of `dtype`,
    `dense`."""
    m, k = dense
    own = e.buffer.type.dtype
    per = covered(dtype.bits, own.bits)
    if k % per:
        smaller = [d.name for d in METADATA_DTYPES if k % covered(dtype.bits, d.bits) == 0]
        raise t.error(
            f"one {own.name} of E describes {per} elements of a row of {dtype.name}, which do not "
            f"divide K = {k}",
            f"make E of {' or '.join(smaller)}" if smaller else f"let K be a multiple of {per}",
            c.place("E"),
        )
    if given != (m, k // per):
        shape = (k // per, m) if transposed else (m, k // per)
        raise t.error(
            f"E of T.gemm_sp is {t.tile_text(e)}; the metadata of A ({m}, {k}) of {dtype.name} are "
            f"{shape} in {own.name}",
            f'allocate E with T.alloc_shared({shape}, "{own.name}")',
            c.place("E"),
        )


def _form(rows: str, columns: str, swapped: bool) -> str:
    return f"({columns}, {rows})" if swapped else f"({rows}, {columns})"
