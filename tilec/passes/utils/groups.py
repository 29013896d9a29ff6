"""Groups of threads that kernels part themselves into: which scope an op belongs to."""

from __future__ import annotations

from collections.abc import Callable

from tilec.ir.core import Block, Func, Op, Value
from tilec.ir.errors import CompileError
from tilec.ir.ops import Alloc, Scope
from tilec.target import Target


def warps_of(func: Func, target: Target) -> Callable[[Op], int]:
    """For each op of the function as it stands now: the warps of the scope that it is in."""
    whole = int(func.attrs["threads"]) // target.warp_size
    found: dict[Op, int] = {}

    def visit(block: Block, warps: int) -> None:
        for o in block.ops:
            if warps != whole:
                found[o] = warps
            inner = o.warps // o.consumer_groups if isinstance(o, Scope) else warps
            for region in o.regions:
                visit(region, inner)

    visit(func.body, whole)
    return lambda o: found.get(o, whole)


def fragment_warps(func: Func, target: Target) -> dict[Value, int]:
    """The warps that hold each fragment: of the scope that uses it. Raises CompileError where
    scopes of different sizes do."""
    warps = warps_of(func, target)
    found: dict[Value, tuple[int, Op]] = {}

    def visit(block: Block) -> None:
        for o in block.ops:
            for region in o.regions:
                visit(region)
            if isinstance(o, Alloc):
                continue
            for v in o.operands:
                if getattr(v.type, "space", "") != "fragment":
                    continue
                before, first = found.setdefault(v, (warps(o), o))
                if before != warps(o):
                    size = target.warp_size
                    raise CompileError(
                        f"{v.name} is a fragment of {before * size} threads on line "
                        f"{first.loc.line}, and of {warps(o) * size} threads here",
                        o.loc,
                        "use it in groups of one size only; hand it on through shared memory",
                    )

    visit(func.body)
    return {v: n for v, (n, _) in found.items()}
