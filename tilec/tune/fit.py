"""The first of a kernel's plans that fits: each is taken through the passes, which raise
ResourceError where the target lacks shared memory or registers for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from tilec import passes
from tilec.ir.clusters import SINGLE
from tilec.ir.core import Func
from tilec.ir.errors import CompileError, InternalError, ResourceError
from tilec.ir.ops import For
from tilec.ir.schedule import Plan
from tilec.ir.uniformity import asks_for_threads
from tilec.passes.arrange import asks_to_overlap
from tilec.passes.join_blocks import to_join
from tilec.passes.utils.plans import Wanted, is_open, pipelined, stages_of, take_wanted, with_plan
from tilec.target import Target
from tilec.tune.plans import plans

OnPlan = Callable[[Plan, ResourceError | None], None]
Accept = Callable[[Plan, Func, Callable[[], None]], None]
Made = TypeVar("Made")


def first_fit(
    func: Func,
    target: Target,
    on_stage: passes.OnStage | None = None,
    ranked: Sequence[Plan] = (),
    on_plan: OnPlan | None = None,
    accept: Accept | None = None,
    only_ranked: bool = False,
    refuse: Callable[[Plan, Func], None] | None = None,
) -> Func:
    """Take a TILE function to what the target's code generator reads: TILE for the CPU, LOWERED
    for GPUs.

    `ranked` are plans to try before the safe ones, or alone, best first, which join the same
    blocks. `on_stage(name, func)` is called after every pass of the plan that was kept,
    `on_plan(plan, error)` for each plan that was tried (None: it was kept), `accept(plan, func,
    verify)` for each whose resources fit, where `verify` begins to verify it, if there is something
    to wait for, and `refuse(plan, func)` for each before that, to raise ResourceError for what
    needs no attempt. Raises CompileError and its kinds; the first plan is taken for which `accept`
    raises no ResourceError.
    """
    func, wanted = take_wanted(func)
    joined = ranked[0].joined if ranked else SINGLE
    func = passes.apply(passes.NORMALISE, to_join(func, joined), target, on_stage)
    if target.kind == "cpu":
        sync = passes.THREADS if asks_for_threads(func) else ()
        return passes.apply((*sync, *passes.HOST), func, target, on_stage)
    kept: dict[str, Func] = {}

    def attempt(plan: Plan) -> Func:
        kept.clear()
        if refuse is not None:
            refuse(plan, func)
        chosen = with_plan(func, plan)
        later = passes.Unverified()
        each = (*passes.DECIDE, *passes.EXPAND)
        done = passes.apply(each, chosen, target, kept.__setitem__, later)
        if accept is not None:
            try:
                accept(plan, done, later.begin)
            except InternalError:
                later.verify()  # which pass it was
                raise
        later.verify()
        check_kept(func, done, wanted)
        return done

    safe = () if only_ranked else plans(func, target, wanted)
    pending = (*ranked, *(replace(plan, joined=joined) for plan in safe))
    asked = any(asks_to_overlap(o) for o in func.body.every(For))
    beside = [plan for plan in pending if plan.overlap and asked]  # the author's stages hold
    try:
        done = _first(attempt, beside or pending, func, wanted, on_plan)
    except ResourceError:
        others = [plan for plan in pending if plan not in beside]
        if not beside or not others:
            raise
        done = _first(attempt, others, func, wanted, on_plan)
    if on_stage is not None:
        for name, stage in kept.items():
            on_stage(name, stage)
    return done


def resources(func: Func, target: Target, plan: Plan | None) -> passes.Resources:
    """What a TILE function will take on a GPU under `plan` (None: the first of the safe ones that
    fits), as the passes decide it. Raises ResourceError if they refuse it."""
    func, wanted = take_wanted(func)
    for one, _ in passes.NORMALISE:
        func = one(func, target)
    pending = plans(func, target, wanted) if plan is None else (plan,)
    return _first(
        lambda plan: passes.resources(with_plan(func, plan), target), pending, func, wanted
    )


def _first(
    attempt: Callable[[Plan], Made],
    plans: Iterable[Plan],
    func: Func,
    wanted: Wanted,
    on_plan: OnPlan | None = None,
) -> Made:
    """What the first attempt gives that raises no ResourceError; one that says how many stages fit
    is made again with these."""
    first: ResourceError | None = None
    tried: set[Plan] = set()
    pending = deque(plans)
    try:
        while pending:
            plan = pending.popleft()
            if plan in tried:
                continue
            tried.add(plan)
            try:
                done = attempt(plan)
            except ResourceError as error:
                if error.loc == func.loc and wanted.loc is not None:
                    error.loc = wanted.loc  # what the user fixed does not fit
                first = first or error
                if on_plan is not None:
                    on_plan(plan, error)
                if _fewer_stages_help(func, plan, wanted, error):
                    pending.appendleft(replace(plan, stages=error.stages))
                continue
            if on_plan is not None:
                on_plan(plan, None)
            return done
        assert first is not None
        raise first
    finally:
        first = None  # it holds this frame, and all that the attempt had made


def _fewer_stages_help(func: Func, plan: Plan, wanted: Wanted, error: ResourceError) -> bool:
    return (
        1 <= error.stages < plan.stages
        and "stages" not in wanted.fields
        and any(
            stages_of(o, error.stages) < stages_of(o, plan.stages) for o in pipelined(func.body)
        )
    )


def check_kept(source: Func, func: Func, wanted: Wanted) -> None:
    """Raise CompileError where a pass could not give the user the schedule he asked for."""
    loops = pipelined(source.body)
    reasons = {
        "persistent": ("it has no T.Pipelined loop, or walks over the grid by itself", ""),
        "specialise": (
            "no copy of a T.Pipelined loop can be brought by TMA",
            ", or copy tiles whose first columns, and whose tensor's rows, are known to begin at "
            "multiples of 16 bytes",
        ),
    }
    if loops and all(not is_open(o) and o.num_stages <= 1 for o in loops):
        reasons["specialise"] = (
            f"num_stages={loops[0].num_stages} of T.Pipelined (line {loops[0].loc.line}) lets "
            "nothing run ahead of its iteration",
            ", or write num_stages=2 or more",
        )
    for name, (reason, more) in reasons.items():
        if wanted.fields.get(name) and not func.attrs.get(name):
            raise CompileError(
                f"T.annotate_schedule({name}=True) cannot hold for {func.name}: {reason}",
                wanted.loc,
                f"leave {name} out{more}",
            )
