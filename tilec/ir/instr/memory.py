"""Instructions that move data: 8x8 matrices, asynchronous copies, TMA boxes, vectors.

PTX ISA 8.0, sections "Warp-level matrix load instruction: ldmatrix", "stmatrix", "Data Movement and
Conversion Instructions: Asynchronous copy", "… Tensor copy". Addresses in shared memory are i32,
global ones i64 or pointers.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from tilec.ir.errors import InternalError
from tilec.ir.instr.instruction import PTX_TYPES, Array, Instruction, Operands, row
from tilec.ir.instr.machine import Machine, acting, nothing
from tilec.ir.instr.semantics import Word
from tilec.ir.layout import Digit, Layout
from tilec.ir.types import BFLOAT16, FLOAT16, FLOAT32, INT32, INT64, TFLOAT32, UINT32, UINT64, DType

MATRIX_COUNTS = (1, 2, 4)


@functools.cache
def _fragment(count: int, transposed: bool) -> Layout:
    pair, quad, group = (0, 1), ((0, 2), (0, 4)), ((1, 0), (2, 0), (4, 0))
    flip = (lambda s: (s[1], s[0])) if transposed else (lambda s: s)
    digits = [Digit("reg", 2, flip(pair))]
    digits += [Digit("reg", count, (8, 0))]
    digits += [Digit("lane", 2, flip(s)) for s in (*quad, *group)]
    return Layout((8 * count, 8), tuple(digits))


@dataclass(frozen=True)
class MatrixMove(Instruction):
    """ldmatrix or stmatrix of `count` matrices of 8x8 16-bit elements.

    `fragment`: the layout of the registers over (8 * count, 8), matrices one below the other; a
    register of the instruction holds two elements. Lane l gives the address of row l % 8 of matrix
    l / 8.
    """

    count: int = 1
    transposed: bool = False

    @property
    def fragment(self) -> Layout:
        """Who holds which element: element (8 * i + r, c) of matrix i."""
        return _fragment(self.count, self.transposed)

    def semantics(self, rows: Array) -> Array:
        """What ldmatrix gives: from rows (8 * count, 8) as addressed by the lanes, to registers (2
        * count, 32)."""
        return rows.ravel()[self.fragment.flat("reg", "lane")]

    def inverse(self, registers: Array) -> Array:
        """What stmatrix writes: from registers (2 * count, 32) to rows (8 * count, 8)."""
        rows = np.zeros(64 * self.count, registers.dtype)
        rows[self.fragment.flat("reg", "lane").ravel()] = registers.ravel()
        return rows.reshape(-1, 8)


def _matrix_move(word: str, count: int, transposed: bool) -> MatrixMove:
    x = Operands()
    fragment = _fragment(count, transposed)
    mode = f"sync.aligned.m8n8.x{count}{'.trans' if transposed else ''}.shared.b16"
    if word == "ldmatrix":
        values = ", ".join(x.outputs("r", count))
        asm = x.asm(
            f"ldmatrix.{mode} {{{values}}}, [{x.input('r')}];",
            lambda m, address: m.ldmatrix(fragment, address),
        )
    else:
        address = x.input("r")
        values = ", ".join(x.inputs("r", count))
        asm = x.asm(
            f"stmatrix.{mode} [{address}], {{{values}}};",
            lambda m, address, *words: m.stmatrix(fragment, address, words),
        )
    name = f"{word}.x{count}{'.trans' if transposed else ''}"
    return MatrixMove(name, word, asm, 16, count, transposed)


@functools.cache
def ldmatrix(count: int, transposed: bool = False) -> MatrixMove:
    """Argument: address; results: `count` registers (i32)."""
    return _matrix_move("ldmatrix", count, transposed)


@functools.cache
def stmatrix(count: int, transposed: bool = False) -> MatrixMove:
    """Arguments: address, `count` registers (i32)."""
    return _matrix_move("stmatrix", count, transposed)


# --- what L2 is told ---


def _cached(instruction: str, policy: str) -> str:
    """`instruction`, in which {hint} and {policy} stand where PTX has a cache hint and its policy,
    by which L2 gives up the lines first, or last ("evict_first", "evict_last"; "": no hint). PTX
    ISA, `createpolicy`; ptxas makes a constant of it."""
    if not policy:
        return instruction.format(hint="", policy="")
    made = f"createpolicy.fractional.L2::{policy}.b64 policy, 1.0;"
    hinted = instruction.format(hint=".L2::cache_hint", policy=", policy")
    return f"{{ .reg .b64 policy; {made} {hinted} }}"


def _named(policy: str) -> str:
    return f".{policy}" if policy else ""


# --- loads on a condition ---

LOAD_BYTES = (1, 2, 4, 8, 16)


@functools.cache
def load_if(bytes: int) -> Instruction:
    """Arguments: address (i64), condition (i32); results: the `bytes` there where it is not 0, else
    zeros, in words, a word of 16 bits or less. From global memory that nothing changes while the
    kernel runs."""
    words = max(1, bytes // 4)
    outs = [f"${n}" for n in range(words)]
    at, cond = f"${words}", f"${words + 1}"
    kind = "h" if bytes < 4 else "r"
    width = 16 if bytes < 4 else 32
    vector = f".v{words}" if words > 1 else ""
    values = f"{{{', '.join(outs)}}}" if words > 1 else outs[0]
    zeros = " ".join(f"mov.b{width} {o}, 0;" for o in outs)
    load = f"@p ld.global.nc{vector}.b{min(bytes * 8, 32)} {values}, [{at}];"
    text = f"{{ .reg .pred p; setp.ne.b32 p, {cond}, 0; {zeros} {load} }}"
    x = Operands()
    x.outputs(kind, words, early=True)
    x.input("l")
    x.input("r")
    asm = x.asm(
        text,
        lambda m, at, cond: m.load_if(at, cond, bytes),
        memory=False,
        effects=False,
        convergent=False,
    )
    return Instruction(f"ld.if.{bytes}", "", asm)


# --- sums in global memory: PTX ISA 8.1, section "red" ---

RED_WIDTHS = {FLOAT32: (2, 4), FLOAT16: (2, 4, 8), BFLOAT16: (2, 4, 8)}


@functools.cache
def red_add(dtype: DType, width: int) -> Instruction:
    """Arguments: address (i64), and the values to add to the `width` elements from there on: each
    float32, or pairs of halves in words."""
    if width not in RED_WIDTHS.get(dtype, ()):
        raise InternalError(f"red of {width} elements of {dtype}; it adds {RED_WIDTHS}")
    words = width * dtype.bits // 32
    kind, register = (".f32", "f") if dtype is FLOAT32 else (f".{PTX_TYPES[dtype]}x2", "r")
    vector = f".v{words}" if words > 1 else ""
    rounding = "" if dtype is FLOAT32 else ".noftz"
    values = ", ".join(f"${1 + n}" for n in range(words))
    values = f"{{{values}}}" if words > 1 else values
    name = f"red.add{rounding}{vector}{kind}"
    text = f"red.relaxed.gpu.global.add{rounding}{vector}{kind} [$0], {values};"
    inputs = "l" + register * words
    return row(name, "red_vector", text, lambda m, at, *x: m.red_add(at, x, dtype), inputs)


# --- cp.async ---

CP_ASYNC_BYTES = (4, 8, 16)


@functools.cache
def cp_async(bytes: int, partial: bool = False, policy: str = "") -> Instruction:
    """Arguments: shared address, global address (i64); with `partial` the number of bytes to read
    (i32), after which zeros are written. 16 bytes pass by the L1 cache (`cg`), fewer cannot.
    `policy`: see `_cached`."""
    if bytes not in CP_ASYNC_BYTES:
        raise InternalError(f"cp.async of {bytes} bytes; it moves {CP_ASYNC_BYTES}")
    cache = "cg" if bytes == 16 else "ca"
    size = ", $2" if partial else ""

    def copy(m: Machine, dest: Word, source: Word, valid: Word | None = None) -> None:
        m.cp_async(dest, source, bytes, valid)

    text = f"cp.async.{cache}.shared.global{{hint}} [$0], [$1], {bytes}{size}{{policy}};"
    name = f"cp.async.{bytes}{'.partial' if partial else ''}{_named(policy)}"
    inputs = "rlr" if partial else "rl"
    return row(name, "cp_async", _cached(text, policy), copy, inputs, bits=8 * bytes)


CP_ASYNC_COMMIT = row(
    "cp.async.commit", "cp_async", "cp.async.commit_group;", lambda m: m.cp_async_commit()
)


@functools.cache
def cp_async_wait(pending: int) -> Instruction:
    """Wait until at most `pending` of this thread's groups are unfinished."""
    name, text = f"cp.async.wait.{pending}", f"cp.async.wait_group {pending};"
    return row(name, "cp_async", text, lambda m: m.cp_async_wait(pending))


# --- TMA ---

TMA_DIMS = (1, 2, 3, 4, 5)


@functools.cache
def tma_load(dims: int, multicast: bool = False, policy: str = "") -> Instruction:
    """One box to shared memory. Arguments: shared address, descriptor (ptr), `dims` coordinates
    (i32, innermost first), address of the mbarrier that counts the bytes; with `multicast` a mask
    (i32) of the blocks in the cluster that receive the box, at the same place each. `policy`: see
    `_cached`."""
    x = Operands()
    dest, source = x.input("r"), x.input("p")
    at = ", ".join(x.inputs("r", _tma_dims(dims)))
    barrier = x.input("r")

    def fetch(m: Machine, dest: Word, map: Word, *words: Word) -> None:
        m.tma_load(dest, map, words[:dims], words[dims], words[dims + 1] if multicast else None)

    load = f"cp.async.bulk.tensor.{dims}d.shared::cluster.global.mbarrier::complete_tx::bytes"
    place = f"[{dest}], [{source}, {{{{{at}}}}}], [{barrier}]"
    name = f"tma.load.{dims}d{'.multicast' if multicast else ''}{_named(policy)}"
    if not multicast:
        return Instruction(
            name, "tma", x.asm(_cached(f"{load}{{hint}} {place}{{policy}};", policy), fetch)
        )
    mask = f"cvt.u16.u32 mask, {x.input('r')};"
    started = _cached(f"{load}.multicast::cluster{{hint}} {place}, mask{{policy}};", policy)
    return Instruction(name, "cluster", x.asm(f"{{ .reg .b16 mask; {mask} {started} }}", fetch))


@functools.cache
def tma_store(
    dims: int, guarded: bool = False, policy: str = "", reduction: str = ""
) -> Instruction:
    """One box from shared memory; what lies outside of the tensor is dropped. Arguments: descriptor
    (ptr), `dims` coordinates (i32, innermost first), shared address; if `guarded` an i32: 0 for
    those who do not store (no branch). `policy`: see `_cached`. `reduction`: how each element is
    combined with the tensor's, of the descriptor's dtype (`tma_reduces`); PTX ISA,
    "cp.reduce.async.bulk.tensor"."""
    x = Operands()
    dest = x.input("p")

    def write(m: Machine, map: Word, *words: Word) -> None:
        where = acting(words[dims + 1]) if guarded else None
        m.tma_store(map, words[:dims], words[dims], where, reduction)

    at = ", ".join(x.inputs("r", _tma_dims(dims)))
    word, mode = ("cp.reduce", f".{reduction}.tile") if reduction else ("cp", "")
    store = f"{word}.async.bulk.tensor.{dims}d.global.shared::cta{mode}.bulk_group{{hint}} "
    store += f"[{dest}, {{{{{at}}}}}], [{x.input('r')}]{{policy}};"
    if guarded:
        store = f"{{{{ .reg .pred p; setp.ne.u32 p, {x.input('r')}, 0; @p {store} }}}}"
    name = f"tma.{reduction or 'store'}.{dims}d{'.if' if guarded else ''}{_named(policy)}"
    return Instruction(name, "tma", x.asm(_cached(store, policy), write))


TMA_CONVERSIONS = frozenset({(FLOAT32, TFLOAT32)})
"""Dtypes (of the tensor, of shared memory) between which a load converts. Found by trial on an
H200, with a descriptor whose data type is TFLOAT32: nearest even, subnormals exactly, the largest
values to infinity, every nan to 0x7fffe000."""


def tma_gives(tensor: DType, shared: DType) -> bool:
    """Whether a load brings a tensor's elements to shared memory as another dtype, or as they
    are."""
    return tensor == shared or (tensor, shared) in TMA_CONVERSIONS


_BITWISE = dict.fromkeys(("and", "or", "xor"), (INT32, UINT32))
TMA_REDUCTIONS = {
    "add": (INT32, UINT32, INT64, UINT64, FLOAT16, BFLOAT16, FLOAT32),
    "min": (INT32, UINT32, INT64, UINT64),
    "max": (INT32, UINT32, INT64, UINT64),
    **_BITWISE,
}
"""What a store by TMA can do with what is there, to which dtypes. Minima and maxima of half floats
are left out: PTX does not say what becomes of a nan. Bitwise forms of 64 bits are left out: PTX
has them, and an H100 stops with "illegal instruction"."""


def tma_reduces(kind: str, dtype: DType) -> DType | None:
    """The dtype of the descriptor by which TMA combines elements of `dtype`; None where it cannot.
    Sums of 64 bits are those of unsigned numbers."""
    if dtype not in TMA_REDUCTIONS.get(kind, ()):
        return None
    return UINT64 if dtype == INT64 and kind == "add" else dtype


def _tma_dims(dims: int) -> int:
    if dims not in TMA_DIMS:
        raise InternalError(f"TMA of {dims} dimensions; it has {TMA_DIMS[0]} to {TMA_DIMS[-1]}")
    return dims


TMA_STORE_COMMIT = row(
    "tma.store.commit", "tma", "cp.async.bulk.commit_group;", lambda m: m.tma_store_commit()
)


@functools.cache
def tma_store_wait(pending: int, read: bool) -> Instruction:
    """Wait until at most `pending` of this thread's groups of stores are unfinished (`read`: have
    not read)."""
    word = ".read" if read else ""
    name, text = f"tma.store.wait{word}.{pending}", f"cp.async.bulk.wait_group{word} {pending};"
    return row(name, "tma", text, lambda m: m.tma_store_wait(pending, read))


TMA_PREFETCH = row("tma.prefetch_map", "tma", "prefetch.tensormap [$0];", nothing, "p")
"""Bring a descriptor (ptr) into its cache."""


# --- vectors ---

VECTOR_BYTES = (1, 2, 4, 8, 16)
"""What one thread loads or stores at once, at an address that is a multiple of it (LLVM's load and
store)."""


def vector_bytes(limit: int) -> int:
    """The widest vector access of at most `limit` bytes."""
    return max(b for b in VECTOR_BYTES if b <= max(limit, 1))
