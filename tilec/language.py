"""The builtins of a kernel: `import tilec.language as T`.

Everything here is a name with a signature and a meaning. What a builtin compiles to is decided by
`tilec.frontend`, which recognises these very objects (under any name they were imported by); called
outside a kernel, a builtin raises CompileError, except those that make sense on plain numbers
(`ceildiv`, `exp`, `max`, …), which compute.

Tiles ("region" below) are named in three ways. A bare buffer is the whole of it. `A[i, j]` is where
a tile starts; its extents are those of the other side of the copy. `A[i:i + m, j:j + n]` names the
extents, which must be compile-time ints (`copy` takes others). Indices given beside slices, and
leading indices, drop. Out of a global tensor's bounds, reads give its safe value (0 unless
annotated), writes do nothing.

Arithmetic. A Python literal takes the other operand's dtype; int with float gives the float; of two
floats or two ints the wider; of two ints of one width, one of them unsigned, the unsigned one;
float16 with bfloat16 must be cast. `/` of two ints is float32. `//` and `%` round to minus
infinity, as Python's do; integer divisions by zero give 0. docs/language.md has the result of every
op for all operands. A Python float that a run-time loop changes is float32, an int an index.
"""

# ruff: noqa: F403 (a module of builtins says by `__all__` what is the language's)
from __future__ import annotations

import enum
from builtins import bool as _Bool
from builtins import float as _Float
from builtins import int as _Int
from dataclasses import dataclass
from types import FunctionType as _FunctionType
from typing import TYPE_CHECKING, Any, NoReturn

from tilec.builtins import foreign as _foreign
from tilec.builtins.allreduce import *
from tilec.builtins.annotations import *
from tilec.builtins.annotations import dtype_of as _dtype_of
from tilec.builtins.annotations import only_inside
from tilec.builtins.atomics import *
from tilec.builtins.barriers import *
from tilec.builtins.choices import *
from tilec.builtins.elementwise import *
from tilec.builtins.externs import *
from tilec.builtins.fast import *
from tilec.builtins.formulas import *
from tilec.builtins.ieee import *
from tilec.builtins.integers import *
from tilec.builtins.lanes import *
from tilec.builtins.lanes import find_vector as _find_vector
from tilec.builtins.layouts import *
from tilec.builtins.loops import *
from tilec.builtins.matrices import *
from tilec.builtins.moves import *
from tilec.builtins.pointers import *
from tilec.builtins.random import *
from tilec.builtins.reductions import *
from tilec.builtins.statements import *
from tilec.builtins.threads import *
from tilec.builtins.views import *
from tilec.builtins.votes import *
from tilec.ir import types as _types
from tilec.ir.caller import caller_loc as _caller_loc
from tilec.ir.caller import for_users as _for_users
from tilec.ir.errors import CompileError, did_you_mean
from tilec.ir.types import DType as DType

if TYPE_CHECKING:  # as functions, with docstrings that editors show
    from tilec.builtins.elementwise_words import *
    from tilec.builtins.maths import infinity as infinity
    from tilec.builtins.maths import max_value as max_value
    from tilec.builtins.maths import min_value as min_value
else:
    from tilec.builtins.maths import *

# --- dtypes: `T.float16` is a dtype, the annotation of a scalar parameter, and a cast -------------

bool = _types.BOOL
int4, int8, int16 = _types.INT4, _types.INT8, _types.INT16
int32, int64 = _types.INT32, _types.INT64
uint4, uint8, uint16 = _types.UINT4, _types.UINT8, _types.UINT16
uint32, uint64 = _types.UINT32, _types.UINT64
float16, bfloat16, tfloat32 = _types.FLOAT16, _types.BFLOAT16, _types.TFLOAT32
float32, float64 = _types.FLOAT32, _types.FLOAT64
float8_e4m3, float8_e5m2, float8_e8m0 = _types.FLOAT8_E4M3, _types.FLOAT8_E5M2, _types.FLOAT8_E8M0
float4_e2m1 = _types.FLOAT4_E2M1
half, float, double, int, uint = float16, float32, float64, int32, uint32

_Number = _Int | _Float | _Bool  # Python's own; `int`, `float` and `bool` are dtypes here


# --- the grid and its blocks ----------------------------------------------------------------------


def Kernel(*grid: Any, threads: Any = None, cluster_dims: Any = None, prelude: Any = None) -> Any:
    """`with T.Kernel(gx, gy, threads=128) as (bx, by):` the body of one block, and the grid.

    Up to three extents, computed from sizes and scalar parameters; none if the launch gives the
    grid (`kernel[grid](…)`). `threads`: how many threads compute, up to 1024, or how many along
    each of up to three dimensions (default: tilec's choice). Where they are no whole warps the
    rest of the last warp helps with tiles and does nothing else.

    `cluster_dims`: how many neighbours along each dimension of the grid form a cluster, an int or
    up to three of them, at most 8 blocks in all; the grid must be a multiple of it. What several
    blocks of a cluster load is brought from global memory once, where TMA brings it. Targets
    without clusters (all but cuda:sm_90a) take the grid as it is: every block is alone.

    `prelude`: a source text, as `import_source` takes it.
    """


ClusterKernel = Kernel


def program_id(axis: _Int = 0) -> Any:
    """Index of this block along `axis` (0, 1 or 2) of the grid, an int32. Raises CompileError for
    another axis."""


def num_programs(axis: _Int = 0) -> Any:
    """Number of blocks along `axis` (0, 1 or 2) of the grid, an int32. Raises CompileError for
    another axis."""


def get_block_binding(dim: _Int = 0) -> Any:
    """The same as `program_id`."""


def get_thread_binding(dim: _Int = 0) -> Any:
    """Index of this thread along a dimension of its block; those of dimension 0 are neighbours."""


def thread_binding(start: Any, stop: Any = None, thread: str = "threadIdx.x") -> Any:
    """This thread's index in `range(start, stop)`, which must be as long as the block has
    threads; in `T.thread_binding(stop, "threadIdx.x")` it begins at 0."""


def alloc_global(*extents: Any, shape: Any = None, dtype: object = "float32") -> Any:
    """`W = T.alloc_global((M, N), dtype)`, above T.Kernel: memory of the device for the time of a
    call, which all blocks see. Its content is undefined at first. Otherwise as `empty`; it is not
    returned."""


def empty(*extents: Any, shape: Any = None, dtype: object = "float32") -> Any:
    """A tensor allocated by the call, to be returned: `C = T.empty((M, N), "float16")`, or with
    extents as arguments of their own, `T.empty(M, N, dtype="float16")`.

    Extents are ints, sizes, and arithmetic on these and on integer parameters. The array is of the
    kind and on the device of the call's first array. Raises CompileError below T.Kernel."""


# --- placement ------------------------------------------------------------------------------------


def alloc_shared(shape: Any, dtype: object, scope: str = "shared.dyn") -> Any:
    """A tile in the block's shared memory, of any rank and dtype. Extents are compile-time ints,
    from 1. How it is laid out, and in how many stages it is kept, tilec chooses; `scope` is
    accepted ("shared", "shared.dyn").

    Raises CompileError for extents that only a call gives, for what is no dtype, and in
    `T.Parallel`; ResourceError, when the kernel is compiled, where shared memory does not hold it.
    """


def alloc_fragment(shape: Any, dtype: object, scope: str = "local.fragment") -> Any:
    """A tile spread over the registers of the block's threads, of any rank and dtype. Which thread
    has which elements tilec chooses, by what is done with it (`annotate_layout` fixes it).

    Raises CompileError as `alloc_shared`; ResourceError where it takes more registers than a thread
    has and something else could be chosen."""


def alloc_local(shape: Any, dtype: object, scope: str = "local") -> Any:
    """An array that every thread has for itself, of any rank and dtype. Extents are compile-time
    ints; 0 alone is one element, as TileLang's programs write it. Where all indices are known at
    compile time it is in registers. Raises CompileError as `alloc_shared`."""


def alloc_var(dtype: object, init: Any = None) -> Any:
    """A scalar variable of each thread: `x = T.alloc_var("int32", 0)`, then `x = x + 1`. `dtype`
    may be a short vector (`T.float32x2`). Without `init` its content is undefined. Raises
    CompileError for what is no dtype, and for an `init` that the dtype has not."""


# --- movement -------------------------------------------------------------------------------------


def copy(
    src: Any,
    dst: Any,
    coalesced_width: _Int | None = None,
    disable_tma: _Bool = False,
    eviction_policy: str | None = None,
    prefer_instruction: str | None = None,
    loop_layout: Any = None,
    annotations: dict[str, Any] | None = None,
) -> None:
    """Copy region `src` onto region `dst`, converting to its dtype (to nearest even).

    One side may be a start only (`A[i, j]`), and then has the other's extents; so has a slice whose
    extent is only known at run time (`A[i:i + n, 0:64]`): what is behind its end reads as zero and
    is not written. `coalesced_width`
    limits a thread's access, in elements. `eviction_policy` tells L2 which lines to give up first
    ("evict_first": what is used once) or last ("evict_last"), as far as what moves the tile can say
    it: TMA and cp.async both, a thread's loads and stores "evict_first" on AMD's GPUs; else it
    changes nothing, nor does "evict_normal". `prefer_instruction`: "tma" (tilec's own choice where
    TMA can do the copy), "cp_async" or "sync" (no TMA), "ldmatrix", "stmatrix", "ldst" (tilec's
    choice).
    `loop_layout`: a `T.Fragment`, the layout of the side that is a fragment; copies between
    memories are made as they are fastest. `annotations`: a dict of these keywords, which counts
    before them.
    """


def fill(buffer: Any, value: Any) -> None:
    """Set every element of a region to `value`: of a tensor, a shared tile or a fragment, of any
    dtype, to which a run-time number is converted. Out of a tensor's bounds nothing is written.

    Raises CompileError for a literal that the dtype does not hold, for a tile as `value`, and for a
    whole tensor whose extents only a call gives (name a tile of it)."""


def clear(buffer: Any) -> None:
    """Set every element of a region to zero, as `fill` does. Raises CompileError as `fill`."""


# --- compute --------------------------------------------------------------------------------------


class GemmWarpPolicy(enum.Enum):
    """How warps are spread over the result of a `gemm`: a preference, see `gemm`."""

    Square = "square"
    FullRow = "full_row"
    FullCol = "full_col"


def gemm(
    A: Any,
    B: Any,
    C: Any,
    transpose_A: _Bool = False,
    transpose_B: _Bool = False,
    policy: GemmWarpPolicy = GemmWarpPolicy.Square,
    clear_accum: _Bool = False,
    allow_tf32: _Bool = False,
    fast_accum: _Bool = True,
    k_pack: _Int = 1,
) -> None:
    """C += A @ B on tiles, with `clear_accum` C = A @ B.

    A is (M, K), or (K, M) with `transpose_A`; B is (K, N), or (N, K) with `transpose_B`; both are
    shared or fragment tiles. C is an (M, N) fragment of the accumulator's dtype, or a part of one
    (`acc[e, :, :]`), which is a fragment of its own meanwhile. `policy` is a preference: where it
    does not divide the tile, the nearest legal partition is used.

    Inputs and sums: float16 (float32 or float16), bfloat16 and float32 (float32), float64
    (float64), float8_e4m3 and float8_e5m2 in any mixture (float32 or float16), int8 and uint8 in
    any mixture (int32). float32 inputs are rounded to TF32 (11 bits of mantissa, nearest even)
    only with `allow_tf32`. Other ints, and other sums of ints (int32, uint32, int64, uint64, no
    narrower than the inputs), are multiplied by threads, modulo 2**bits of the sums.

    `fast_accum`: the sum may be as precise as the instruction makes it (float8 on Hopper keeps
    about 14 bits). False: partial sums over at most 128 of K are added to C, which must be float32
    then, by ordinary float32 additions (as `use_fast_accum=False` of `torch._scaled_mm`). It
    changes nothing where the instruction's sum is a float32 anyway.

    `k_pack` (1 or 2): how many steps of K a thread's operands were to lie side by side for on AMD
    GPUs; tilec packs them as its layouts do.
    """


def wgmma_gemm(
    A: Any,
    B: Any,
    C: Any,
    transpose_A: _Bool = False,
    transpose_B: _Bool = False,
    policy: GemmWarpPolicy = GemmWarpPolicy.Square,
    clear_accum: _Bool = False,
    allow_tf32: _Bool = False,
) -> None:
    """`gemm` without waiting for it: C, and A where it is a fragment, may be touched and shared
    operands written again after `wait_wgmma`. Where the target or the tiles do not suit wgmma it is
    `gemm`, which has ended when the next statement begins."""


def gemm_sp(
    A_sparse: Any,
    E: Any,
    B: Any,
    C: Any,
    transpose_A: _Bool = False,
    transpose_E: _Bool = False,
    transpose_B: _Bool = False,
    policy: GemmWarpPolicy = GemmWarpPolicy.Square,
    clear_accum: _Bool = False,
    k_pack: _Int = 1,
    allow_tf32: _Bool = False,
) -> None:
    """C += A @ B where of each four neighbours in a row of A two are kept (2:4 sparsity; of 32-bit
    elements one of two), with `clear_accum` C = A @ B.

    `A_sparse` is what is kept, (M, K / 2), or (K / 2, M) with `transpose_A`; `E` says where it
    belongs, (M, K / n) integers, or (K / n, M) with `transpose_E`. One of them describes n elements
    of a row: as many as it has bits, half as many of 32-bit elements. `tilec.sparse` has the format
    and makes both (`compress`). B, C, `policy` and `k_pack` are those of `gemm`; E is a shared tile
    of int8, int16, int32 or the unsigned ones.

    Inputs and sums: float16 (float32 or float16), bfloat16 (float32), float8_e4m3 and float8_e5m2
    in any mixture (float32 or float16), int8 and uint8 in any mixture (int32), float32 (float32;
    rounded to TF32 with `allow_tf32`). NVIDIA's GPUs multiply compressed tiles (wgmma.sp, mma.sp;
    K a multiple of 64 bytes) but for float32 without `allow_tf32`; elsewhere A is written out in
    shared memory first. float8 sums on Hopper are those of `gemm` with `fast_accum`. Raises
    CompileError for tiles that do not agree, and for other dtypes.
    """


def if_then_else(cond: Any, on_true: Any, on_false: Any) -> Any:
    """`on_true` where `cond` holds, else `on_false`; an element out of bounds in the other is not
    read. Both are numbers, or vectors of as many lanes; the result has the dtype of both together,
    as that of their sum."""


Select = if_then_else
where = if_then_else


def cast(
    value: Any, dtype: object, round: str = "", sat: _Bool | None = None, rbits: Any = None
) -> Any:
    """`value` as `dtype`: to nearest even; float to int truncates and saturates, to float8
    saturates.

    `round`: "rn" (to nearest even), "rz" (toward zero), "rm" (down), "rp" (up), or "rs": to one of
    both neighbours at random, the nearer the likelier, by `rbits`, 32 random bits. `sat`, of floats
    beyond the range: True, they become the largest number (the default of float8); False, infinity,
    or nan where there is none (the default of others). Modes are for floats, those but "rs" also
    for float to int. Raises CompileError for other dtypes.

    Outside of kernels, of a number of Python's: one that is of this dtype in them."""
    if round or sat is not None or rbits is not None:
        only_inside("cast with round, sat or rbits")
    return _dtype_of(dtype)(value)


def isfinite(x: Any) -> Any:
    """Whether x, a float, is neither infinite nor nan: a bool. Raises CompileError for ints."""


def reinterpret(value: Any, dtype: object) -> Any:
    """The bits of `value` as a number of `dtype`, which has as many; in either order.

    Raises CompileError where the widths differ.
    """


def Cast(dtype: object, value: Any) -> Any:
    """`cast` with its arguments the other way round."""
    return _dtype_of(dtype)(value)


def fma(a: Any, b: Any, c: Any) -> Any:
    """a * b + c of floats, rounded once. Raises CompileError for ints."""


# --- scheduling and annotations -------------------------------------------------------------------


def annotate_safe_value(values: dict[Any, Any]) -> None:
    """What reads out of a global tensor's bounds give: `{A: -T.infinity("float16")}` (default
    0). Raises CompileError for what is no tensor, and for what is no number."""


def use_swizzle(panel_size: _Int, order: str = "row", enable: _Bool = True) -> None:
    """Visit the grid's blocks in panels `panel_size` wide along `order` ("row" or "column"), so
    that blocks that run at once share tiles in the L2 cache. Raises CompileError for a width below
    1 and another order."""


def print(obj: Any, msg: str = "") -> None:
    """Print a scalar, an f-string of scalars, or a whole buffer, when the kernel runs, `msg` before
    it. On NVIDIA's GPUs by the device's printf, on the CPU to stdout; the simulator collects it
    (`report.printed`). AMD's GPUs cannot print: CompileError, but in the simulator."""


# --- builtins that are planned --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NotYet:
    """Stands for a builtin of the language that is not built yet."""

    name: str

    @_for_users
    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise CompileError(f"T.{self.name} is not supported yet", _caller_loc(), _foreign.LATER)


# --- what the names of this module are ------------------------------------------------------------

_NO_WORDS = {
    "Any", "Auto", "CompileError", "Elementwise", "Macro", "NoReturn", "NotYet", "Size",
    "TYPE_CHECKING", "VectorDType", "annotations", "dataclass", "did_you_mean", "enum",
    "only_inside",
}  # fmt: skip


def _is_word(name: str) -> _Bool:
    """Whether a user may write `T.<name>`: the IR's dtypes and what this file imports are none."""
    if name.startswith("_"):
        return name.startswith("__") and not name.endswith("__")  # T.__exp
    dtype = name.isupper() and isinstance(globals()[name], DType)
    return not dtype and name not in _NO_WORDS


def __dir__() -> list[str]:
    return sorted(name for name in globals() if _is_word(name))


def _nothing() -> None:
    """The body of a word that means something only inside of a kernel: a docstring."""


def _call_outside() -> None:
    """Let what a word raises outside of a kernel end at the line that calls it, and those without a
    body raise. Here, once, for all of them; an alias stays the object that it is an alias of."""
    made: dict[_FunctionType, Any] = {}
    for name in __dir__():
        word = globals()[name]
        if isinstance(word, _FunctionType) and not hasattr(word, "__wrapped__"):
            if word not in made:
                empty = word.__code__.co_code == _nothing.__code__.co_code
                made[word] = _for_users(word, only_inside if empty else None)
            globals()[name] = made[word]


_call_outside()


if TYPE_CHECKING:  # what type checkers know; a name that is none is their error
    from tilec.builtins.lanes import VectorDType as _Vector

    float16x2: _Vector
    float16x4: _Vector
    float16x8: _Vector
    bfloat16x2: _Vector
    bfloat16x4: _Vector
    bfloat16x8: _Vector
    float32x2: _Vector
    float32x4: _Vector
    float64x2: _Vector
    int32x2: _Vector
    int32x4: _Vector
    uint32x2: _Vector
    uint32x4: _Vector
    int8x4: _Vector
    int8x16: _Vector
    uint8x4: _Vector
    uint8x16: _Vector
else:

    def __getattr__(name: str) -> Any:
        if name in _foreign.PLANNED:
            return NotYet(name)
        if name.startswith("__"):  # Python itself asks for these, often
            raise AttributeError(name)
        vector = _find_vector(name)
        if vector is not None:
            return vector
        known = [n for n in __dir__() if not n.startswith("_")]
        instead = _foreign.advice(name)
        near = f"; {instead}" if instead else did_you_mean(name, [*known, *_foreign.PLANNED])
        raise AttributeError(f"tilec.language has no builtin {name!r}{near}", name=name)
