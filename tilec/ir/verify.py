"""Checks that a function keeps the rules of the IR; the pass runner calls it between passes.

`verify(func, contract)` checks what holds under every contract (structure), which ops may appear
under this one (`allowed`), and the contract's own rules (`RULES`). A breach is an `InternalError`:
a pass made it. The one exception is the uniformity rule, which the user can break, and which is a
`CompileError` at his line.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

from tilec.ir import ops
from tilec.ir.core import Block, Func, Op, Region, Value, walk
from tilec.ir.element_loops import ELEMENTWISE
from tilec.ir.errors import CompileError, InternalError
from tilec.ir.printer import print_op
from tilec.ir.types import BufferType
from tilec.ir.uniformity import Level, level_within

CONTRACTS = ("TILE", "LAID_OUT", "SCHEDULED", "LOWERED")

# Where the ops of each module of `tilec.ir.ops` may appear: from the first contract to the last.
MODULE_SPAN = {
    "scalar": ("TILE", "LOWERED"),
    "control": ("TILE", "LOWERED"),
    "tile": ("TILE", "SCHEDULED"),
    "scan": ("TILE", "SCHEDULED"),
    "gather": ("TILE", "SCHEDULED"),
    "schedule": ("SCHEDULED", "LOWERED"),
    "thread": ("SCHEDULED", "LOWERED"),
    "peers": ("SCHEDULED", "LOWERED"),
    "by_hand": ("TILE", "LOWERED"),
    "foreign": ("TILE", "LOWERED"),
}
# Ops that differ from their module: what users write themselves, and what does not survive to the
# end.
_WRITTEN = (
    "alloc", "load", "store", "print", "device_assert", "scope", "assume", "barrier", "pause",
    "warp_sync", "proxy_fence", "mbarrier_init", "mbarrier_expect", "mbarrier_arrive",
    "mbarrier_wait", "tma_store_wait", "cp_async_commit", "cp_async_wait", "wgmma_wait",
    "device_fence", "shuffle", "shuffle_xor", "warp_mma", "lane", "warp", "cluster_barrier",
    "cluster_index",
)  # fmt: skip
_EXPANDED = (
    "parallel", "grid_sync", "tma_copy", "cluster_copy", "atomic", "atomic_tile", "load_matrices",
    "cluster_sum", "combine_parts",
)  # fmt: skip
OP_SPAN = {
    **dict.fromkeys(_WRITTEN, ("TILE", "LOWERED")),
    **dict.fromkeys(_EXPANDED, ("TILE", "SCHEDULED")),
    "mem_atomic": ("SCHEDULED", "LOWERED"),
    "ldmatrix_values": ("LOWERED", "LOWERED"),
}


def span(cls: type[Op]) -> tuple[str, str]:
    """First and last contract an op may appear under."""
    found = OP_SPAN.get(cls.opname) or MODULE_SPAN.get(cls.__module__.rsplit(".", 1)[-1])
    return found or ("TILE", "LOWERED")


def allowed(cls: type[Op], contract: str) -> bool:
    """Whether ops of this class may appear under `contract`."""
    first, last = map(CONTRACTS.index, span(cls))
    return first <= CONTRACTS.index(contract) <= last


def verify(func: Func, contract: str = "TILE", checked: set[Op | Block] | None = None) -> None:
    """Raise InternalError (CompileError for the uniformity rule) if `func` breaks a rule. `checked`
    grows by its ops and blocks: what one says of itself, and what holds inside of one, is not asked
    again, for it cannot change."""
    _Structure(func, contract, set() if checked is None else checked).check()
    for rule in RULES[contract]:
        rule(func)


def _breach(o: Op, message: str) -> InternalError:
    text = print_op(o).split("\n", 1)[0]
    return InternalError(f"{message}\n  in: {text}", o.loc)


# --- structure ----------------------------------------------------------------------------------


class _Structure:
    """What holds under every contract: SSA, types, regions, what each op says of itself."""

    def __init__(self, func: Func, contract: str, checked: set[Op | Block]) -> None:
        self.func = func
        self.contract = contract
        self.checked = checked
        self.live: set[Value] = set()
        self.ever: set[Value] = set()

    def check(self) -> None:
        func = self.func
        for cls in func.grid.kinds | func.body.kinds:
            if not allowed(cls, self.contract):
                o = next(o for o in (*walk(func.grid), *walk(func.body)) if type(o) is cls)
                raise _breach(o, f"{o.opname} may not appear under contract {self.contract}")
        for p in func.params:
            self.define(p.value, None)
        self.params()
        params = set(self.live)
        self.block(func.grid, None)
        if not func.grid.ops or not isinstance(func.grid.ops[-1], ops.Yield):
            raise InternalError(f"the grid of {func.name} ends without a yield", func.loc)
        for v in ops.yielded(func.grid):
            if not v.is_integer:
                raise InternalError(f"a grid extent is {v.type}, not an integer", func.loc)
        self.live = params
        self.block(func.body, None)
        if ops.yielded(func.body):
            raise InternalError(f"the body of {func.name} yields values", func.loc)

    def params(self) -> None:
        func = self.func
        sizes = {p.value.name for p in func.params if p.value.is_integer}
        for p in func.params:
            t = p.value.type
            if p.role == "tensor" and not (isinstance(t, BufferType) and t.space == "global"):
                raise InternalError(f"tensor parameter %{p.value.name} is {t}", func.loc)
            if isinstance(t, BufferType):
                for extent in (*t.shape, *(t.strides or ())):
                    if isinstance(extent, str) and extent not in sizes:
                        raise InternalError(
                            f"%{p.value.name}: {t} names {extent}, which is no parameter", func.loc
                        )

    def define(self, value: Value, o: Op | None) -> None:
        if value in self.ever:
            message = f"{value} is defined twice"
            raise _breach(o, message) if o else InternalError(message, self.func.loc)
        self.ever.add(value)
        self.live.add(value)

    def block(self, block: Block, owner: Op | None) -> None:
        """Check a region; afterwards what it defined is dead."""
        live, ever, checked = self.live, self.ever, self.checked
        if block in checked and live >= block.outer and ever.isdisjoint(block.made):
            ever |= block.made
            return
        mine: list[Value] = []
        for arg in block.args:
            self.define(arg, owner)
            mine.append(arg)
        last = len(block.ops) - 1
        for n, o in enumerate(block.ops):
            operands, results = o.operands, o.results
            if operands and not live.issuperset(operands):
                v = next(v for v in operands if v not in live)
                why = "outside its region" if v in ever else "before its definition"
                raise _breach(o, f"{v} is used {why}")
            if isinstance(o, ops.Yield):
                if n != last:
                    raise _breach(o, "a yield is not the last op of its region")
                self.leaving(o, mine, block)
            if o not in checked:
                self.alone(o)
                checked.add(o)
            if o.region_fields:
                for region in o.regions:
                    self.block(region, o)
            for r in results:
                if r in ever:
                    self.define(r, o)  # which refuses it
                ever.add(r)
            live.update(results)
            mine += results
        live.difference_update(mine)
        checked.add(block)

    def leaving(self, o: ops.Yield, mine: list[Value], block: Block) -> None:
        """A buffer must not outlive the region it was allocated in."""
        for v in o.values:
            if isinstance(v.type, BufferType) and v in mine and v not in block.args:
                raise _breach(o, f"{v} leaves the region it lives in")

    def alone(self, o: Op) -> None:
        """What an op says of itself and of its operands."""
        try:
            regions = _regions(o)
            for r in regions:
                if len(r.offsets) != r.type.rank:
                    raise InternalError(f"{len(r.offsets)} indices into {r.type}", o.loc)
                if len(r.extents) != r.type.rank:
                    raise InternalError(f"extents {r.extents} of {r.type}", o.loc)
            types = tuple(o.infer())
            o.verify()
        except InternalError as error:
            raise _breach(o, error.message) from error
        except (AttributeError, ValueError, TypeError, IndexError) as error:
            raise _breach(o, f"malformed {o.opname}: {error}") from error
        if types != tuple([r.type for r in o.results]):
            raise _breach(
                o, f"results are {[str(r.type) for r in o.results]}, should be {[*map(str, types)]}"
            )
        for v in (v for r in regions for v in r.offsets):
            if not v.is_integer:
                raise _breach(o, f"index {v} is not an integer")


def _regions(o: Op) -> list[Region]:
    """The boxes, and the elements, that an op names."""
    found: list[Region] = []
    for name in o.operand_fields:
        x = getattr(o, name)
        if name == "indices" and x:
            found.append(Region(getattr(o, o.operand_fields[0]), x, (1,) * len(x)))
        elif isinstance(x, Region):
            found.append(x)
    return found


# --- rules of the contracts ---------------------------------------------------------------------


def no_layouts(func: Func) -> None:
    """TILE: nobody has decided a layout yet."""
    for o in walk(func.body):
        for r in o.results:
            if isinstance(r.type, BufferType) and r.type.layout is not None:
                raise _breach(o, f"{r} has a layout already")
        if isinstance(o, ops.Parallel) and o.layout is not None:
            raise _breach(o, "a parallel has a layout already")


def all_laid_out(func: Func) -> None:
    """LAID_OUT and later: every fragment and shared buffer has a layout."""
    for o in func.body.every(ops.Alloc):
        if o.type.space in ("fragment", "shared") and o.type.layout is None:
            raise _breach(o, f"{o.result} has no layout")


def rows_chosen(func: Func) -> None:
    """LAID_OUT and later: every product has its instruction row."""
    for o in func.body.every(ops.Gemm):
        if not o.instr:
            raise _breach(o, "no instruction was selected for this gemm")


def uniform_tile_ops(func: Func) -> None:
    """A tile op or barrier stands under conditions that are the same for all threads of its
    scope.
    """
    level_of = level_within(func)
    for o, condition, level in _under(func.body, level_of, None, Level.BLOCK, Level.BLOCK):
        needed = _needs(o)
        if needed is not None and level > needed:
            raise _divergent(o, condition, level)


def _under(
    block: Block,
    level_of: Callable[[Value], Level],
    cause: Op | None,
    level: Level,
    same: Level,
) -> Iterator[tuple[Op, Op | None, Level]]:
    """Each op with the op whose condition it stands under and that condition's level, but for
    regions in which no threads meet. `same`: the level that counts as uniform here (a scope of one
    warp is uniform over itself)."""
    for o in block.ops:
        yield o, cause, level
        if not any(map(_may_meet, o.regions)):
            continue
        match o:
            case ops.If() | ops.For() | ops.While():
                own = max(map(level_of, ops.decides(o)), default=Level.BLOCK)
                if any(_is_promised(x) for region in o.regions for x in region.ops):
                    own = min(own, Level.WARP)  # they come to it together
            case ops.Parallel():
                own = Level.THREAD
            case ops.Scope(body=body, warps=warps):
                one = Level.WARP if warps == 1 else Level.BLOCK
                yield from _under(body, level_of, None, Level.BLOCK, one)
                continue
            case _:
                continue
        own = Level.BLOCK if own <= same else own
        inner = (o, own) if own > level else (cause, level)
        for region in o.regions:
            yield from _under(region, level_of, *inner, same)


_FREE_TILE_OPS = (
    "alloc", "assume", "load", "store", "print", "device_assert", "annotate_layout",
    "annotate_safe_value", "use_swizzle",
)  # fmt: skip


def meets(block: Block) -> bool:
    """Whether all threads of a scope must come together to some op of `block`."""
    return any(needs_all(o) for o in walk(block))


def needs_all(o: Op) -> bool:
    """Whether all threads of a scope must come together to `o`."""
    return _needs(o) == Level.BLOCK


def needs_others(o: Op) -> bool:
    """Whether threads of a scope, or of a warp, must come together to `o`."""
    return _needs(o) is not None


_TOGETHER = ("barrier", "cluster_barrier", "cluster_copy", "grid_sync")
_BY_WARP = ("warp_sync", "shuffle", "shuffle_xor", "warp_mma", "load_matrices")


def _is_promised(o: Op) -> bool:
    return isinstance(o, ops.Shuffle | ops.ShuffleXor) and o.promised


@functools.cache
def _needed_by(cls: type[Op]) -> Level | None:
    """As `_needs`, of all ops of a class; THREAD where that depends on what they work on."""
    if cls.opname in _BY_WARP:
        return Level.WARP
    if (
        issubclass(cls, ops.Parallel | ops.TmaCopy | ops.SetRegisters | ops.WgmmaWait)
        or cls.opname in _TOGETHER
    ):
        return Level.BLOCK
    if cls not in ELEMENTWISE:
        if not cls.__module__.endswith((".tile", ".scan")) or cls.opname in _FREE_TILE_OPS:
            return None
    return Level.THREAD


def _may_meet(block: Block) -> bool:
    """Whether an op of a class of which some make threads meet is in a block."""
    return any(_needed_by(cls) is not None for cls in block.kinds)  # type: ignore[arg-type]


def _needs(o: Op) -> Level | None:
    """The level at which the threads that meet at `o` must agree; None where each may go its
    own way.
    """
    needed = _needed_by(type(o))  # type: ignore[arg-type]
    if _is_promised(o):
        return None
    if needed is not Level.THREAD:
        return needed
    spaces = {v.type.space for v in o.operands if isinstance(v.type, BufferType)}
    return None if spaces <= {"local", "global"} and "local" in spaces else Level.BLOCK


_SPELLED = {
    "parallel": "T.Parallel", "barrier": "T.sync_threads()", "cluster_barrier": "T.cluster_sync()",
    "cluster_copy": "T.copy_cluster", "grid_sync": "T.sync_grid()", "warp_sync": "T.sync_warp()",
    "shuffle": "a shuffle", "shuffle_xor": "a shuffle", "warp_mma": "T.ptx_mma (or T.tvm_mfma)",
    "load_matrices": "T.ldmatrix", "set_registers": "T.set_max_nreg", "wgmma_wait": "T.wait_wgmma",
}  # fmt: skip


def spelled(o: Op) -> str:
    """What the author of a kernel wrote for an op."""
    match o:
        case ops.Reduce():
            return f"T.reduce_{o.kind}"
        case ops.Scan():
            return f"T.cum{o.kind}"
        case ops.AtomicTile():
            return f"T.atomic_{o.kind}"
    return _SPELLED.get(o.opname, f"T.{o.opname}")


def _divergent(o: Op, condition: Op | None, level: Level) -> CompileError:
    who = "thread" if level == Level.THREAD else "warp"
    what = spelled(o)
    if isinstance(condition, ops.Parallel):
        return CompileError(
            f"{what} inside T.Parallel: it works on a whole tile, an iteration on one element",
            o.loc,
            "move it out of the T.Parallel loop, or write the element's own arithmetic there",
        )
    where = f" (line {condition.loc.line})" if condition is not None else ""
    alike = "the whole block (block indices, sizes, loop indices)"
    if _needs(o) == Level.WARP:
        alike = "a whole warp of the target (of the thread only T.get_warp_idx())"
    kind = "if" if isinstance(condition, ops.If) else "loop"
    return CompileError(
        f"{what} needs every thread of its scope, but stands under a condition{where} that differs "
        f"from {who} to {who}",
        o.loc,
        f"move it out of the {kind}, or make the condition the same for {alike}; choose elements "
        "with T.if_then_else",
    )


def only_local_elements(func: Func) -> None:
    """LOWERED: elements are a thread's own; memory is reached by `mem_load` and `mem_store`."""
    for o in walk(func.body):
        buffer = o.buffer if isinstance(o, ops.ElementAccess) else None
        if buffer is not None and buffer.space != "local":
            raise _breach(o, f"an element access to {buffer.type} is left")


RULES: dict[str, tuple[Callable[[Func], None], ...]] = {
    "TILE": (no_layouts, uniform_tile_ops),
    "LAID_OUT": (all_laid_out, rows_chosen, uniform_tile_ops),
    "SCHEDULED": (all_laid_out, rows_chosen),
    "LOWERED": (all_laid_out, only_local_elements),
}
