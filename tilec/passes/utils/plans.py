"""A plan (`tilec.ir.schedule`) in the function that the passes get, and what the user fixed of it
by `T.annotate_schedule`."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tilec.ir.core import Block, Func, Op, walk
from tilec.ir.effects import effects_in
from tilec.ir.loc import Loc
from tilec.ir.ops import AnnotateSchedule, For, Gemm
from tilec.ir.schedule import Plan
from tilec.target import Target


def pipelined(of: Block | Op) -> list[For]:
    """The pipelined loops inside."""
    return [o for o in of.every(For) if o.kind == "pipelined"]


def is_mixed(loop: For) -> bool:
    """Whether a pipelined loop holds several tile products, and threads compute there with what one
    of them gives."""
    sums = {o.c for o in loop.body.ops if isinstance(o, Gemm)}
    if loop.kind != "pipelined" or sum(isinstance(o, Gemm) for o in loop.body.ops) < 2:
        return False
    others = Block((), tuple(o for o in loop.body.ops if not isinstance(o, Gemm)))
    return any(e.buffer in sums for _, e in effects_in(others))


def waits_for_products(loop: For) -> bool:
    """Whether threads wait for a loop's products, or for their operands, with nothing to do:
    several of a pipelined loop stand under a condition, or a loop that is not pipelined has one."""
    here = any(isinstance(o, Gemm) for o in loop.body.ops)
    if loop.kind == "serial":
        return here
    inside = sum(isinstance(o, Gemm) for o in walk(loop.body))
    return loop.kind == "pipelined" and inside > 1 and not here


def is_open(o: Op) -> bool:
    """Whether the plan says how many stages this loop has."""
    return isinstance(o, For) and o.kind == "pipelined" and o.num_stages < 0


def stages_of(o: For, chosen: int) -> int:
    """The stages of a pipelined loop under a plan with `chosen` ones: the author's number is the
    least, and a loop with a tile product in it may have more, unless he says in which stage each
    statement works."""
    if is_open(o):
        return chosen
    return max(o.num_stages, chosen) if _may_be_deeper(o) else o.num_stages


@functools.lru_cache(maxsize=64)  # each plan asks for each number of stages
def _may_be_deeper(o: For) -> bool:
    return o.num_stages > 1 and not o.stage and o.body.has(Gemm)


def shared_of(blocks: int, target: Target) -> int:
    """Bytes of shared memory that a block may have where a multiprocessor has so many."""
    if blocks == 1 or target.residency is None:
        return target.shared_bytes
    each = target.residency.shared_bytes // blocks - target.residency.reserved
    return min(each, target.shared_bytes)


def with_plan(func: Func, plan: Plan) -> Func:
    """`func` with the plan's choices as attributes and as the stages of its open loops."""
    chosen = asdict(plan)
    chosen["plan"] = chosen.pop("name")
    threads, _ = chosen.pop("threads"), chosen.pop("joined")  # (`join_blocks` has run)
    if threads is not None:
        chosen["threads"] = threads
    if (residents := chosen.pop("residents")) > 1:
        chosen["min_blocks"] = residents

    def visit(o: For) -> Op | None:
        if o.kind != "pipelined":
            return None
        return replace(o, num_stages=stages_of(o, plan.stages))

    return func.with_attrs(**chosen).rewrite(For, visit)


@dataclass(frozen=True)
class Wanted:
    """Fields of the plan that the user fixed, and where."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    loc: Loc | None = None


def take_wanted(func: Func) -> tuple[Func, Wanted]:
    """`func` without its `annotate_schedule`, and what that says. Stages that it fixes are those of
    every loop with stages: none has a number of its own any more."""
    found = [o for o in func.body.every(AnnotateSchedule)]
    if not found:
        return func, Wanted()
    fields = dict(found[0].choices)

    def visit(o: Op) -> None | Op | list[Op]:
        if "stages" in fields and isinstance(o, For) and o.kind == "pipelined" and o.num_stages > 1:
            return replace(o, num_stages=-1)
        return [] if isinstance(o, AnnotateSchedule) else None

    return func.rewrite(Op, visit), Wanted(fields, found[0].loc)
