"""The passes, in order: a table of contents.

Every pass is `name(func, target) -> func` in the file of its name, whose opening tells what it
does; it may expect valid IR of the contract before it and must leave valid IR of the contract after
it. The runner verifies, dumps and times between passes. What several of them use, or one calls for
a part of its work, is in `utils`."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from tilec.ir.core import Block, Func, Op
from tilec.ir.errors import CompileError
from tilec.ir.schedule import Plan
from tilec.ir.verify import verify
from tilec.passes.arrange import arrange
from tilec.passes.batch_conditions import batch_conditions
from tilec.passes.batch_loads import batch_loads
from tilec.passes.block_order import block_order
from tilec.passes.bring_tiles import bring_tiles
from tilec.passes.check_barriers import check_barriers
from tilec.passes.check_consumer_groups import check_consumer_groups
from tilec.passes.check_registers import check_registers, fragment_registers
from tilec.passes.check_schedule import check_schedule
from tilec.passes.claim_blocks import claim_blocks
from tilec.passes.cluster_split_k import cluster_split_k
from tilec.passes.collect_atomics import collect_atomics
from tilec.passes.combine_atomics import combine_atomics
from tilec.passes.convert_fragments import convert_fragments
from tilec.passes.demote_fragments import demote_fragments
from tilec.passes.early_loads import early_loads
from tilec.passes.exchange_partial_sums import exchange_partial_sums
from tilec.passes.expand_grid_sync import expand_grid_sync
from tilec.passes.expand_pipeline import expand_pipeline
from tilec.passes.expand_scopes import expand_scopes
from tilec.passes.expand_sparse import expand_sparse
from tilec.passes.find_products import find_products
from tilec.passes.flatten_rows import flatten_rows
from tilec.passes.floats_by_bits import floats_by_bits
from tilec.passes.fold_clears import fold_clears
from tilec.passes.forward_copies import forward_copies
from tilec.passes.fuse_exponents import fuse_exponents
from tilec.passes.fuse_multiply_adds import fuse_multiply_adds
from tilec.passes.group_threads import group_threads
from tilec.passes.hoist_accesses import hoist_accesses
from tilec.passes.hold_operands import hold_operands
from tilec.passes.infer_layouts import infer_layouts
from tilec.passes.insert_sync import insert_sync
from tilec.passes.invert_divisors import invert_divisors
from tilec.passes.join_atomics import join_atomics
from tilec.passes.join_blocks import join_blocks, to_join
from tilec.passes.join_branches import join_branches, join_stores
from tilec.passes.join_iterations import join_iterations
from tilec.passes.join_parts import join_parts
from tilec.passes.linearize_offsets import linearize_offsets
from tilec.passes.lower_barriers import lower_barriers
from tilec.passes.lower_copies import lower_copies
from tilec.passes.lower_gemm import lower_gemm
from tilec.passes.lower_parallel import lower_parallel
from tilec.passes.lower_prints import lower_prints
from tilec.passes.lower_reductions import lower_reductions
from tilec.passes.lower_scans import lower_scans
from tilec.passes.lower_shuffles import lower_shuffles
from tilec.passes.lower_stores import lower_stores
from tilec.passes.lower_threads import lower_threads
from tilec.passes.lower_tiles import lower_tiles
from tilec.passes.mask_warps import mask_warps
from tilec.passes.mem2reg import mem2reg
from tilec.passes.narrow_operands import narrow_operands
from tilec.passes.pad_tiles import pad_tiles
from tilec.passes.pair_halves import pair_halves
from tilec.passes.plain_products import plain_products
from tilec.passes.plan_pipeline import plan_pipeline
from tilec.passes.plan_shared import plan_shared
from tilec.passes.private_locals import private_locals
from tilec.passes.read_ahead import read_ahead
from tilec.passes.recognise_gathers import recognise_gathers
from tilec.passes.recognise_idioms import recognise_idioms
from tilec.passes.rename_changed import rename_changed
from tilec.passes.resolve_views import resolve_views
from tilec.passes.round_operands import round_operands
from tilec.passes.select_copies import select_copies
from tilec.passes.select_gemm import select_gemm
from tilec.passes.share_reciprocals import share_reciprocals
from tilec.passes.simplify import simplify
from tilec.passes.sink_reductions import sink_reductions
from tilec.passes.sink_scales import sink_scales
from tilec.passes.split_at_grid_sync import split_at_grid_sync
from tilec.passes.split_fragments import split_fragments
from tilec.passes.split_operands import split_operands
from tilec.passes.split_reductions import split_reductions
from tilec.passes.split_roles import split_roles
from tilec.passes.split_tiles import split_tiles
from tilec.passes.spread_loops import spread_loops
from tilec.passes.stage_reductions import stage_reductions
from tilec.passes.stage_stores import stage_stores
from tilec.passes.turn_tensors import turn_tensors
from tilec.passes.two_level_accumulation import two_level_accumulation
from tilec.passes.unroll_loads import unroll_loads
from tilec.passes.unswitch_loops import unswitch_loops
from tilec.passes.utils.plans import take_wanted, with_plan
from tilec.passes.version_loops import version_loops
from tilec.passes.widen_copies import widen_copies
from tilec.support.ahead import begun
from tilec.target import Target

Pass = Callable[[Func, Target], Func]
OnStage = Callable[[str, Func], None]

# As traced: what plans are chosen for, and what "tile" shows.
TRACED: tuple[Callable[[Func], Func], ...] = (  # of whatever target
    resolve_views,  # one buffer has one name from here on
    plain_products,
    unswitch_loops,  # what fills a tile in each iteration may run ahead
    split_at_grid_sync,
)

OPERANDS: tuple[Pass, ...] = (
    find_products,
    turn_tensors,
    narrow_operands,  # sees all products
    split_operands,  # those that are as wide as before
)

SIZED: tuple[Pass, ...] = (join_iterations,)  # where no size is left to tilec

NORMALISE: tuple[tuple[Pass, str], ...] = (
    (group_threads, "TILE"),  # what stands under a group's condition is uniform from here on
    (join_blocks, "TILE"),  # tiles are what the plan was chosen for from here on
    (private_locals, "TILE"),  # one in a loop may be a value
    (mem2reg, "TILE"),
    (join_branches, "TILE"),  # before `simplify`, which folds what it selects
    (simplify, "TILE"),  # folds what stood in variables
    (check_barriers, "TILE"),
    (combine_atomics, "TILE"),  # what comes of it are tiles, reductions and variables
    (spread_loops, "TILE"),  # what comes of it may be an idiom
    (split_fragments, "TILE"),  # its loops may be copies
    (sink_reductions, "TILE"),  # out of the loops that are left
    (sink_scales, "TILE"),  # makes products of what they are subtracted from
    (fuse_exponents, "TILE"),
    (flatten_rows, "TILE"),  # grid, tiles and guards are as the user wrote them
    (collect_atomics, "TILE"),  # guards are not split yet: a loop has its atomics once
    (version_loops, "TILE"),  # what is left without a condition may be a copy
    (recognise_idioms, "TILE"),
    (join_stores, "TILE"),
    (forward_copies, "TILE"),  # sees what has become a copy
    (split_tiles, "TILE"),  # a part that a loop over elements copied is a copy; none is padded
    (join_parts, "TILE"),  # what is left of parts
    (stage_reductions, "TILE"),
    (lower_scans, "TILE"),
    (pad_tiles, "TILE"),  # sees every copy and product
    (expand_sparse, "TILE"),  # extents are final; what comes of it is an ordinary product
    (rename_changed, "TILE"),
    (hold_operands, "TILE"),  # before plans are listed, as what follows: it takes registers
    (two_level_accumulation, "TILE"),  # its fragments take registers, too
    (lower_prints, "TILE"),
    (recognise_gathers, "TILE"),  # tiles have their final extents: what is behind them is not 0
    (bring_tiles, "TILE"),  # extents are final here, too
    (fuse_multiply_adds, "TILE"),  # all that looks for sums or products has found them
)

THREADS: tuple[tuple[Pass, str], ...] = ((insert_sync, "TILE"),)

HOST: tuple[tuple[Pass, str], ...] = (
    (lower_tiles, "TILE"),
    (mask_warps, "TILE"),
    (lower_shuffles, "TILE"),
    (lower_threads, "TILE"),  # code is cut at its barriers and around loops over tiles
    (expand_grid_sync, "TILE"),
)

DECIDE: tuple[tuple[Pass, str], ...] = (
    (block_order, "TILE"),  # the tile loop comes before the pipeline: rings live across tiles
    (check_consumer_groups, "TILE"),
    (cluster_split_k, "TILE"),  # the grid is settled: from here on each block has its own loop
    (split_roles, "TILE"),  # what it makes is a program by hand to all passes behind it
    (read_ahead, "TILE"),  # each block has its own iterations, and operands are held where they can
    (demote_fragments, "TILE"),
    (select_gemm, "TILE"),
    (fold_clears, "TILE"),  # needs to know the instruction
    (plan_pipeline, "TILE"),  # needs only the graph; expanded after the layouts are known
    (round_operands, "TILE"),  # knows who may bring each tile; layouts follow the dtypes
    (infer_layouts, "LAID_OUT"),
    (check_registers, "LAID_OUT"),
    (early_loads, "LAID_OUT"),
    (hoist_accesses, "LAID_OUT"),
    (select_copies, "LAID_OUT"),
)

EXPAND: tuple[tuple[Pass, str], ...] = (
    (stage_stores, "LAID_OUT"),
    (widen_copies, "LAID_OUT"),
    (split_reductions, "LAID_OUT"),  # its scratch is placed and ordered like any other
    (convert_fragments, "LAID_OUT"),
    (arrange, "LAID_OUT"),
    (expand_scopes, "SCHEDULED"),
    (claim_blocks, "SCHEDULED"),
    (exchange_partial_sums, "SCHEDULED"),
    (expand_pipeline, "SCHEDULED"),
    (plan_shared, "SCHEDULED"),  # before insert_sync: buffers in one place are a hazard too
    (insert_sync, "SCHEDULED"),
    (check_schedule, "SCHEDULED"),  # copies and products are whole yet
    (expand_grid_sync, "SCHEDULED"),
    (lower_barriers, "SCHEDULED"),  # what the author ordered is whole until it has been
    (batch_conditions, "SCHEDULED"),  # each role has its own loop by now
    (lower_stores, "SCHEDULED"),
    (lower_copies, "SCHEDULED"),
    (lower_gemm, "SCHEDULED"),
    (lower_reductions, "SCHEDULED"),
    (batch_loads, "SCHEDULED"),  # copies are loops by now
    (lower_parallel, "LOWERED"),
    (linearize_offsets, "LOWERED"),  # guards have asked for the parts
    (simplify, "LOWERED"),
    (invert_divisors, "LOWERED"),  # what is the same in all iterations stands before them
    (join_atomics, "LOWERED"),  # places are sums of numbers by now
    (share_reciprocals, "LOWERED"),  # sees which registers a loop divides by
    (unroll_loads, "LOWERED"),
    (floats_by_bits, "LOWERED"),
    (pair_halves, "LOWERED"),  # knows indices and constants as such
)


def stage_names() -> tuple[str, ...]:
    """The names under which passes show what they have made, in order: one that runs again behind
    another has a number."""
    gpu, host = (*NORMALISE, *DECIDE, *EXPAND), (*NORMALISE, *THREADS, *HOST)
    names: dict[str, None] = {}
    for passes in (gpu, host):
        runs: Counter[str] = Counter()
        for one, _ in passes:
            runs[one.__name__] += 1
            n = runs[one.__name__]
            names[f"{one.__name__}-{n}" if n > 1 else one.__name__] = None
    return tuple(names)


def run_plan(func: Func, target: Target, plan: Plan, on_stage: OnStage | None = None) -> Func:
    """All passes for a GPU target with one plan. Raises ResourceError if it does not fit."""
    func = apply(NORMALISE, to_join(take_wanted(func)[0], plan.joined), target, on_stage)
    return apply((*DECIDE, *EXPAND), with_plan(func, plan), target, on_stage)


@dataclass(frozen=True)
class Resources:
    """Bytes of shared memory of a block; registers of a thread for its fragments."""

    shared_bytes: int
    registers: int


def resources(func: Func, target: Target) -> Resources:
    """What a normalised function with a plan (`with_plan`) will take: as far as the pass that
    places its shared memory, unverified. Raises ResourceError if it does not fit."""
    registers = 0
    for one, _ in (*DECIDE, *EXPAND):
        func = one(func, target)
        if one is check_registers:
            registers = fragment_registers(func)
        if one is plan_shared:
            break
    return Resources(int(func.attrs["shared_bytes"]), registers)


class Unverified:
    """What passes have made under a plan, to be verified when it is known that the plan holds: of
    those that do not, nothing is left. `begin` does it beside other work, where a processor is
    idle; `verify` what has not been done, and raises what was found."""

    def __init__(self) -> None:
        self.made: list[tuple[Func, str]] = []
        self._begun: Callable[[], None] | None = None

    def begin(self) -> None:
        if self._begun is None:
            (self._begun,) = begun([functools.partial(_verify, self.made)])

    def verify(self) -> None:
        if self._begun is None:
            _verify(self.made)
        else:
            self._begun()


def _verify(made: list[tuple[Func, str]]) -> None:
    checked: set[Op | Block] = set()
    while made:
        func, contract = made.pop(0)
        verify(func, contract, checked)


def apply(
    passes: tuple[tuple[Pass, str], ...],
    func: Func,
    target: Target,
    on_stage: OnStage | None,
    later: Unverified | None = None,
) -> Func:
    """Some of the passes, shown one by one and verified: at once, or `later`, but before a fault of
    the next pass is told of."""
    verified: tuple[Func, str] | None = None
    checked: set[Op | Block] = set()
    for one, contract in passes:
        try:
            func = one(func, target)
        except CompileError:
            raise
        except Exception:
            if later is not None:
                later.verify()
            raise
        if verified != (func, contract):  # it is another function, or more is asked of it
            if later is None:
                verify(func, contract, checked)
            else:
                later.made.append((func, contract))
            verified = func, contract
        if on_stage is not None:
            on_stage(one.__name__, func)
    return func
