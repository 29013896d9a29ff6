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

# ruff: noqa: I001 (`as` makes a name public; sorted, each would be an import of its own)
from __future__ import annotations

import enum
from builtins import bool as _Bool
from builtins import float as _Float
from builtins import int as _Int
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from tilec.builtins import foreign as _foreign
from tilec.builtins.formulas import (
    copysign as copysign,
    nearbyint as nearbyint,
    fmod as fmod,
    ldexp as ldexp,
    expm1 as expm1,
    sinh as sinh,
    cosh as cosh,
    asinh as asinh,
    acosh as acosh,
    atanh as atanh,
    atan as atan,
    asin as asin,
    acos as acos,
    hypot as hypot,
    cbrt as cbrt,
)
from tilec.builtins.ieee import (
    ieee_add as ieee_add,
    ieee_sub as ieee_sub,
    ieee_mul as ieee_mul,
    ieee_fmaf as ieee_fmaf,
    ieee_fdiv as ieee_fdiv,
    ieee_frcp as ieee_frcp,
    ieee_fsqrt as ieee_fsqrt,
    ieee_frsqrt as ieee_frsqrt,
)
from tilec.builtins.allreduce import (
    attr as attr,
    comm_reducer as comm_reducer,
    tvm_thread_allreduce as tvm_thread_allreduce,
)
from tilec.builtins.annotations import (
    Buffer as Buffer,
    FragmentBuffer as FragmentBuffer,
    LocalBuffer as LocalBuffer,
    Macro as Macro,
    Ref as Ref,
    SharedBuffer as SharedBuffer,
    Size as Size,
    StridedTensor as StridedTensor,
    Tensor as Tensor,
    const as const,
    constexpr as constexpr,
    dtype as dtype,
    dynamic as dynamic,
    macro as macro,
    symbolic as symbolic,
    only_inside,
)
from tilec.builtins.atomics import (
    atomic_add as atomic_add,
    atomic_max as atomic_max,
    atomic_min as atomic_min,
    atomic_and as atomic_and,
    atomic_or as atomic_or,
    atomic_xor as atomic_xor,
    atomic_cas as atomic_cas,
    atomic_exchange as atomic_exchange,
    atomic_addx2 as atomic_addx2,
    atomic_addx4 as atomic_addx4,
    atomic_load as atomic_load,
    atomic_store as atomic_store,
)
from tilec.builtins.clusters import (
    alloc_cluster_barrier as alloc_cluster_barrier,
    block_rank_in_cluster as block_rank_in_cluster,
    cluster_arrive as cluster_arrive,
    cluster_sync as cluster_sync,
    cluster_wait as cluster_wait,
)
from tilec.builtins.barriers import (
    WarpSpecialize as WarpSpecialize,
    alloc_barrier as alloc_barrier,
    annotate_consumer_reg_alloc as annotate_consumer_reg_alloc,
    annotate_producer_reg_dealloc as annotate_producer_reg_dealloc,
    async_copy as async_copy,
    barrier_arrive as barrier_arrive,
    barrier_wait as barrier_wait,
    dec_max_nreg as dec_max_nreg,
    disable_warp_group_reg_alloc as disable_warp_group_reg_alloc,
    fence_proxy_async as fence_proxy_async,
    inc_max_nreg as inc_max_nreg,
    mbarrier_arrive as mbarrier_arrive,
    mbarrier_arrive_expect_tx as mbarrier_arrive_expect_tx,
    mbarrier_expect_tx as mbarrier_expect_tx,
    mbarrier_wait_parity as mbarrier_wait_parity,
    named_barrier_arrive as named_barrier_arrive,
    no_set_max_nreg as no_set_max_nreg,
    ptx_commit_group as ptx_commit_group,
    ptx_fence_barrier_init as ptx_fence_barrier_init,
    ptx_wait_group as ptx_wait_group,
    set_max_nreg as set_max_nreg,
    tma_copy as tma_copy,
    tma_store_arrive as tma_store_arrive,
    tma_store_wait as tma_store_wait,
    wait_wgmma as wait_wgmma,
    warpgroup_arrive as warpgroup_arrive,
    warpgroup_commit_batch as warpgroup_commit_batch,
    warpgroup_fence_operand as warpgroup_fence_operand,
    warpgroup_wait as warpgroup_wait,
    ws as ws,
)
from tilec.builtins.choices import (
    Auto as Auto,
    annotate_schedule as annotate_schedule,
    auto as auto,
)
from tilec.builtins.elementwise import Elementwise as Elementwise
from tilec.builtins.externs import (
    asm as asm,
    call_extern as call_extern,
    call_intrin as call_intrin,
    call_llvm_intrin as call_llvm_intrin,
    call_llvm_pure_intrin as call_llvm_pure_intrin,
    call_pure_extern as call_pure_extern,
    import_source as import_source,
)
from tilec.builtins.integers import byte_perm as byte_perm, ffs as ffs, mulhi as mulhi
from tilec.builtins.lanes import (
    Broadcast as Broadcast,
    Ramp as Ramp,
    VectorDType as VectorDType,
    abs2 as abs2,
    add2 as add2,
    extract_lane as extract_lane,
    fma2 as fma2,
    max2 as max2,
    min2 as min2,
    mul2 as mul2,
    sub2 as sub2,
    find_vector as _find_vector,
)
from tilec.builtins.layouts import (
    Fragment as Fragment,
    Layout as Layout,
    annotate_layout as annotate_layout,
)
from tilec.builtins.matrices import ldmatrix as ldmatrix
from tilec.builtins.matrices import ptx_mma as ptx_mma
from tilec.builtins.maths import (
    exp as exp,
    exp2 as exp2,
    exp10 as exp10,
    log as log,
    log2 as log2,
    log10 as log10,
    log1p as log1p,
    sqrt as sqrt,
    rsqrt as rsqrt,
    sin as sin,
    cos as cos,
    tan as tan,
    tanh as tanh,
    sigmoid as sigmoid,
    erf as erf,
    floor as floor,
    ceil as ceil,
    round as round,
    trunc as trunc,
    isnan as isnan,
    isinf as isinf,
    abs as abs,
    popcount as popcount,
    clz as clz,
    ctz as ctz,
    brev as brev,
    bitwise_not as bitwise_not,
    max as max,
    min as min,
    pow as pow,
    atan2 as atan2,
    ceildiv as ceildiv,
    cdiv as cdiv,
    floordiv as floordiv,
    floormod as floormod,
    truncdiv as truncdiv,
    truncmod as truncmod,
    bitwise_and as bitwise_and,
    bitwise_or as bitwise_or,
    bitwise_xor as bitwise_xor,
    shift_left as shift_left,
    shift_right as shift_right,
    infinity as infinity,
    max_value as max_value,
    min_value as min_value,
)
from tilec.builtins.moves import dp4a as dp4a, im2col as im2col, transpose as transpose
from tilec.builtins.pointers import (
    access_ptr as access_ptr,
    address_of as address_of,
    ldg128 as ldg128,
    ldg256 as ldg256,
    ldg32 as ldg32,
    ldg64 as ldg64,
    lds128 as lds128,
    lds32 as lds32,
    lds64 as lds64,
    make_tensor as make_tensor,
    make_tensor_from_addr as make_tensor_from_addr,
    ptr as ptr,
    ptx_cp_async as ptx_cp_async,
    stg128 as stg128,
    stg256 as stg256,
    stg32 as stg32,
    stg64 as stg64,
    sts128 as sts128,
    sts32 as sts32,
    sts64 as sts64,
)
from tilec.builtins.random import (
    rng_init as rng_init,
    rng_rand as rng_rand,
    rng_rand_float as rng_rand_float,
)
from tilec.builtins.reductions import (
    all_of as all_of,
    alloc_reducer as alloc_reducer,
    any_of as any_of,
    cummax as cummax,
    cumsum as cumsum,
    finalize_reducer as finalize_reducer,
    reducer_init as reducer_init,
    reducer_update as reducer_update,
    reduce as reduce,
    reduce_absmax as reduce_absmax,
    reduce_abssum as reduce_abssum,
    reduce_bitand as reduce_bitand,
    reduce_bitor as reduce_bitor,
    reduce_bitxor as reduce_bitxor,
    reduce_max as reduce_max,
    reduce_min as reduce_min,
    reduce_sum as reduce_sum,
)
from tilec.builtins.statements import (
    annotate_l2_hit_ratio as annotate_l2_hit_ratio,
    annotate_min_blocks_per_sm as annotate_min_blocks_per_sm,
    annotate_restrict_buffers as annotate_restrict_buffers,
    assume as assume,
    clamp as clamp,
    device_assert as device_assert,
    evaluate as evaluate,
    grid as grid,
)
from tilec.builtins.threads import (
    get_thread_bindings as get_thread_bindings,
    get_block_bindings as get_block_bindings,
    get_lane_idx as get_lane_idx,
    get_warp_idx as get_warp_idx,
    get_warp_idx_sync as get_warp_idx_sync,
    get_warp_group_idx as get_warp_group_idx,
    sync_threads as sync_threads,
    sync_grid as sync_grid,
    sync_warp as sync_warp,
    shfl_sync as shfl_sync,
    shfl_xor as shfl_xor,
    shfl_up as shfl_up,
    shfl_down as shfl_down,
    warp_reduce_sum as warp_reduce_sum,
    warp_reduce_max as warp_reduce_max,
    warp_reduce_min as warp_reduce_min,
    warp_reduce_bitand as warp_reduce_bitand,
    warp_reduce_bitor as warp_reduce_bitor,
)
from tilec.builtins.views import (
    reshape as reshape,
    view as view,
)
from tilec.builtins.votes import (
    activemask as activemask,
    all_sync as all_sync,
    any_sync as any_sync,
    ballot as ballot,
    ballot_sync as ballot_sync,
    get_block_extent as get_block_extent,
    get_block_extents as get_block_extents,
    get_thread_extent as get_thread_extent,
    get_thread_extents as get_thread_extents,
    match_all_sync as match_all_sync,
    match_any_sync as match_any_sync,
    shuffle_elect as shuffle_elect,
    syncthreads_and as syncthreads_and,
    syncthreads_count as syncthreads_count,
    syncthreads_or as syncthreads_or,
)
from tilec.ir.caller import caller_loc as _caller_loc
from tilec.ir.errors import CompileError, did_you_mean
from tilec.ir.types import (
    BFLOAT16,
    BOOL,
    FLOAT4_E2M1,
    FLOAT8_E8M0,
    FLOAT8_E4M3,
    FLOAT8_E5M2,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT4,
    INT8,
    INT16,
    INT32,
    INT64,
    TFLOAT32,
    UINT4,
    UINT8,
    UINT16,
    UINT32,
    UINT64,
    DType as DType,
)

# --- dtypes: `T.float16` is a dtype, the annotation of a scalar parameter, and a cast -------------

bool = BOOL
int4, int8, int16, int32, int64 = INT4, INT8, INT16, INT32, INT64
uint4, uint8, uint16, uint32, uint64 = UINT4, UINT8, UINT16, UINT32, UINT64
float16, bfloat16, float32, float64, tfloat32 = FLOAT16, BFLOAT16, FLOAT32, FLOAT64, TFLOAT32
float8_e4m3, float8_e5m2, float4_e2m1 = FLOAT8_E4M3, FLOAT8_E5M2, FLOAT4_E2M1
float8_e8m0 = FLOAT8_E8M0
half, float, double, int, uint = FLOAT16, FLOAT32, FLOAT64, INT32, UINT32

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
    only_inside("Kernel")


ClusterKernel = Kernel


def program_id(axis: _Int = 0) -> Any:
    """Index of this block along `axis` (0, 1 or 2) of the grid."""
    only_inside("program_id")


def num_programs(axis: _Int = 0) -> Any:
    """Number of blocks along `axis` of the grid."""
    only_inside("num_programs")


def get_block_binding(dim: _Int = 0) -> Any:
    """The same as `program_id`."""
    only_inside("get_block_binding")


def get_thread_binding(dim: _Int = 0) -> Any:
    """Index of this thread along a dimension of its block; those of dimension 0 are neighbours."""
    only_inside("get_thread_binding")


def thread_binding(start: Any, stop: Any = None, thread: str = "threadIdx.x") -> Any:
    """This thread's index in `range(start, stop)`, which must be as long as the block has
    threads."""
    only_inside("thread_binding")


def alloc_global(shape: Any, dtype: object = "float32") -> Any:
    """`W = T.alloc_global((M, N), dtype)`, above T.Kernel: memory of the device for the time of a
    call, which all blocks see. Otherwise as `T.empty`; it is not returned."""
    only_inside("alloc_global")


def empty(shape: Any, dtype: object = "float32") -> Any:
    """A tensor allocated by the call, to be returned: `C = T.empty((M, N), "float16")`."""
    only_inside("empty")


# --- placement ------------------------------------------------------------------------------------


def alloc_shared(shape: Any, dtype: object, scope: str = "shared.dyn") -> Any:
    """A tile in the block's shared memory. Extents are compile-time ints, of any value."""
    only_inside("alloc_shared")


def alloc_fragment(shape: Any, dtype: object, scope: str = "local.fragment") -> Any:
    """A tile spread over the registers of the block's threads."""
    only_inside("alloc_fragment")


def alloc_local(shape: Any, dtype: object, scope: str = "local") -> Any:
    """An array that every thread has for itself."""
    only_inside("alloc_local")


def alloc_var(dtype: object, init: Any = None) -> Any:
    """A scalar variable of each thread: `x = T.alloc_var("int32", 0)`, then `x = x + 1`."""
    only_inside("alloc_var")


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
    limits a thread's access, in elements. `eviction_policy`: "evict_first", "evict_last",
    "evict_normal". `prefer_instruction`: "tma" (tilec's own choice where TMA can do the copy),
    "cp_async" or "sync" (no TMA), "ldmatrix", "stmatrix", "ldst" (tilec's choice).
    `loop_layout`: a `T.Fragment`, the layout of the side that is a fragment; copies between
    memories are made as they are fastest. `annotations`: a dict of these keywords, which counts
    before them.
    """
    only_inside("copy")


def fill(buffer: Any, value: Any) -> None:
    """Set every element of a region to `value`."""
    only_inside("fill")


def clear(buffer: Any) -> None:
    """Set every element of a region to zero."""
    only_inside("clear")


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
    shared or fragment tiles. C is an (M, N) fragment of the accumulator's dtype. `policy` is a
    preference: where it does not divide the tile, the nearest legal partition is used.

    Inputs and sums: float16 (float32 or float16), bfloat16 and float32 (float32), float64
    (float64), float8_e4m3 and float8_e5m2 in any mixture (float32 or float16), int8 and uint8 in
    any mixture (int32). float32 inputs are rounded to TF32 (11 bits of mantissa, nearest even)
    only with `allow_tf32`.

    `fast_accum`: the sum may be as precise as the instruction makes it (float8 on Hopper keeps
    about 14 bits). False: partial sums over at most 128 of K are added to C, which must be float32
    then, by ordinary float32 additions (as `use_fast_accum=False` of `torch._scaled_mm`). It
    changes nothing where the instruction's sum is a float32 anyway.

    `k_pack` (1 or 2): how many steps of K a thread's operands were to lie side by side for on AMD
    GPUs; tilec packs them as its layouts do.
    """
    only_inside("gemm")


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
    only_inside("wgmma_gemm")


def if_then_else(cond: Any, on_true: Any, on_false: Any) -> Any:
    """`on_true` where `cond` holds, else `on_false`; an element out of bounds in the other is not
    read."""
    only_inside("if_then_else")


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
    for float to int. Raises CompileError for other dtypes."""
    only_inside("cast")


def isfinite(x: Any) -> Any:
    """Whether x, a float, is neither infinite nor nan."""
    only_inside("isfinite")


def reinterpret(value: Any, dtype: object) -> Any:
    """The bits of `value` as a number of `dtype`, which has as many; in either order.

    Raises CompileError where the widths differ.
    """
    only_inside("reinterpret")


def Cast(dtype: object, value: Any) -> Any:
    """`cast` with its arguments the other way round."""
    only_inside("Cast")


def fma(a: Any, b: Any, c: Any) -> Any:
    """a * b + c, rounded once."""
    only_inside("fma")


# --- loops ----------------------------------------------------------------------------------------


def Parallel(*extents: Any, coalesced_width: _Int | None = None, loop_layout: Any = None) -> Any:
    """`for i, j in T.Parallel(m, n):` iterations in any order, spread over the block's threads.

    Extents are compile-time ints. An iteration must not read what another one writes, nor update
    (`+=`) what another one updates: see docs/language.md. Raises CompileError where that is certain
    or the index of an update is read from memory; warns (CompileWarning) where it may be.

    `loop_layout`: a `T.Fragment` of the extents, which says which thread runs which iteration;
    targets without threads, and loops that each thread runs for itself, leave it out.
    """
    only_inside("Parallel")


def Pipelined(
    start: Any,
    stop: Any = None,
    num_stages: _Int | None = None,
    order: Sequence[_Int] | None = None,
    stage: Sequence[_Int] | None = None,
    reversible: _Bool = False,
) -> Any:
    """A loop whose copies run at least `num_stages` iterations ahead of its computation.

    0 or 1: nothing runs ahead. Without a number, and in a loop with a tile product where more than
    `num_stages` fit: as many as fit in shared memory, at most 8. `annotate_schedule(stages=)` fixes
    the number. A copy from global to shared memory runs ahead, at the top of the body or under a
    condition, where it fills its buffer whole before that is read; several loops may fill one
    buffer. Where producer warps bring tiles (TMA), so do copies in front of the loop or in loops
    inside. A CompileWarning says why another copy of a loop with `num_stages` does not, the stage
    `plan` what does.

    A `break` in it is allowed (the same in all threads of a block), but then nothing runs ahead.
    `order` and `stage` have one int per statement of the body that acts (a copy, a product, a loop
    over elements …): its place in the code, and in which stage of the pipeline it works. Copies of
    stage s run as many iterations ahead as the last stage is above s; those of the last stage do
    not. -1 leaves a statement to tilec. What one iteration computes stays as it is written: data
    that a later stage needs decide the order. `reversible`: the iterations may run in the opposite
    order.
    """
    only_inside("Pipelined")


def serial(start: Any, stop: Any = None, step: _Int = 1) -> Any:
    """An ordinary loop, the same as `range`."""
    only_inside("serial")


def unroll(start: Any, stop: Any = None, step: _Int = 1) -> Any:
    """A loop whose iterations are written out in the compiled code."""
    only_inside("unroll")


def vectorized(start: Any, stop: Any = None) -> Any:
    """A loop whose iterations become one vector instruction where that can be done."""
    only_inside("vectorized")


def Persistent(domain: Any, wave_size: Any = None, index: Any = None, group_size: _Int = 8) -> Any:
    """`for bx, by in T.Persistent([gx, gy], num_blocks, block):` the tiles that fall to this block.

    Tiles are dealt round robin to `wave_size` blocks (default: the whole grid), of which this is
    `index` (default: this block). Neighbouring tiles come in groups of `group_size` along the
    first dimension, which then varies fastest, for the L2 cache. Every tile is visited once.
    """
    only_inside("Persistent")


# --- scheduling and annotations -------------------------------------------------------------------


def annotate_safe_value(values: dict[Any, Any]) -> None:
    """What reads out of a global tensor's bounds give: `{A: -T.infinity("float16")}` (default
    0)."""
    only_inside("annotate_safe_value")


def use_swizzle(panel_size: _Int, order: str = "row", enable: _Bool = True) -> None:
    """Visit the grid's blocks in panels `panel_size` wide along `order` ("row" or "column")."""
    only_inside("use_swizzle")


def print(obj: Any, msg: str = "") -> None:
    """Print a scalar, an f-string of scalars, or a whole buffer, when the kernel runs."""
    only_inside("print")


# --- builtins that are planned --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NotYet:
    """Stands for a builtin of the language that is not built yet."""

    name: str

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise CompileError(
            f"T.{self.name} is not supported yet",
            _caller_loc(),
            _foreign.MEANWHILE.get(self.name, _foreign.LATER),
        )


def __getattr__(name: str) -> Any:
    if name in _foreign.PLANNED:
        return NotYet(name)
    if name.startswith("__"):  # Python itself asks for these, often
        raise AttributeError(name)
    vector = _find_vector(name)
    if vector is not None:
        return vector
    known = [n for n in globals() if not n.startswith("_")]
    instead = _foreign.advice(name)
    near = f"; {instead}" if instead else did_you_mean(name, [*known, *_foreign.PLANNED])
    raise AttributeError(f"tilec.language has no builtin {name!r}{near}", name=name)
