"""What is legal in a kernel and slow, as warnings at the user's line.

Only what its author will hardly have meant, and can mend in a line: a fragment that registers
cannot hold, a loop that every thread does from its beginning to its end, threads without work of
their own. What merely could be faster is for `explain` and the simulator's counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from tilec.ir import ops
from tilec.ir.analysis import facts_of
from tilec.ir.clusters import all_threads_of
from tilec.ir.core import Block, Func, Op, Value, walk
from tilec.ir.errors import PerformanceWarning, warn
from tilec.ir.loc import Loc
from tilec.ir.uniformity import Level, uniformity_of
from tilec.jit.repeated import repeated_sums, warn_of_repeated_atomics
from tilec.passes.check_registers import GROUP_HINT, most_held, said_of, threads_holding
from tilec.passes.demote_fragments import demoted
from tilec.passes.expand_pipeline import UNEVEN
from tilec.passes.plan_pipeline import copies_of
from tilec.passes.select_gemm import THREADS, nearest_tile
from tilec.passes.utils.distribution import idle
from tilec.passes.utils.groups import warps_of
from tilec.target import Target

FEW_TRIPS = 32
"""Iterations that every thread may do by itself without a word."""
FEW_REPEATED = 16
"""Iterations of a parallel loop that a thread may repeat without a word. Loops over the rows of a
tile, as softmax has, are left out: what they compute is needed by all that hold the row."""
MOST_LARGER = 2
"""Times as large as a product is may a tile be that its author is advised to take."""
FEW_OF_THREADS = 4
"""So many times fewer elements than threads may a block's largest tile not have without a word."""
OWN_TILES_HINT = "fold less in one loop, or write its tiles with T.Kernel"
FEW_ELEMENTS = 32
"""Of a fragment that may be in shared memory without a word: a sum or a maximum that all need."""


class Watch:
    """What passes decide on the way, noted from what they show: of the last plan that was tried."""

    def __init__(self) -> None:
        self._before: Func | None = None
        self._moved: dict[Value, Op] = {}
        self._laid_out: Func | None = None

    def see(self, name: str, after: Func) -> None:
        """The function as the pass called `name` leaves it."""
        match name:
            case "demote_fragments":
                same = self._before is None or after.body is self._before.body
                self._moved = {} if same or self._before is None else demoted(self._before)
            case "check_registers":
                self._laid_out = after
        self._before = after

    def warn(self, func: Func, final: Func, target: Target) -> None:
        """Warn of what is slow in `func`, as it was traced, which became `final`."""
        warn_of_repeated_atomics(func)
        _warn_of_serial(func, final)
        _warn_of_stages(func, final)
        _warn_of_atomics(func, final)
        if target.kind == "cpu":  # threads are loops there, and registers memory
            return
        self._warn_of_moved(func)
        threads = func.attrs.get("threads")  # the author's, not ours
        for loop, trips in _repeated_loops(func):
            does = f"does {f'all {trips}' if trips else 'all'} iterations of this loop"
            shared = "loop with T.Parallel, which shares the iterations out"
            if threads == 1:
                _warn(f"the block's one thread {does}", loop.loc, f"ask for more, and {shared}")
                continue
            _warn(
                f"each thread of the block {does}, so that all write the same elements",
                loop.loc,
                f"{shared}, or let each thread begin at T.get_thread_binding(0)",
            )
        if threads:
            told = _warn_of_sums(func, threads, target)
            _warn_of_small_tiles(func, threads, target)
            if self._laid_out is not None:
                _warn_of_idle(self._laid_out, target, told)
        if self._laid_out is not None:
            _warn_of_threads(self._laid_out, target)
            _warn_of_bytes(self._laid_out)

    def warn_of_spills(self, spilled: int, target: Target, own_tiles: bool = False) -> None:
        """Warn that each thread keeps so many bytes of its registers in memory; `own_tiles`: of
        tiles that its author has not written."""
        held = [] if self._laid_out is None else most_held(self._laid_out)
        if self._laid_out is None or not held:
            return
        threads = all_threads_of(self._laid_out)
        holding = threads_holding(self._laid_out, held, target)
        message = (
            f"{said_of(held, holding)}: {spilled} bytes of what a thread has are kept in memory, "
            "which is slow"
        )
        hint = "use a smaller tile"
        if 2 * threads <= target.max_threads:
            hint = f"write threads={2 * threads}, or {hint}"
        hint = GROUP_HINT if holding < threads else hint
        _warn(message, held[0].loc, OWN_TILES_HINT if own_tiles else hint)

    def _warn_of_moved(self, func: Func) -> None:
        """Of fragments that are kept in shared memory; those that passes have made are theirs."""
        made = func.body.every(ops.Alloc)
        fragment = {o.result.name for o in made if o.type.space == "fragment"}
        for buffer, o in self._moved.items():
            t = buffer.buffer
            if buffer.name not in fragment or prod(t.static_shape) <= FEW_ELEMENTS:
                continue
            shown = f"{buffer.name} (fragment {t.static_shape} {t.dtype.name})"
            message = f"{shown} is kept in shared memory: registers cannot be indexed as it is here"
            hint = (
                "index it by the indices of the T.Parallel around it, over its whole shape, or "
                f'say so: {buffer.name} = T.alloc_shared({t.static_shape}, "{t.dtype.name}")'
            )
            _warn(message, o.loc, hint)


def _warn(message: str, place: Loc, hint: str) -> None:
    warn(PerformanceWarning, message, place, hint)


def _repeated_loops(func: Func) -> Iterator[tuple[ops.For, int]]:
    """The outermost loops that all threads of a block do alike, that do nothing but move elements
    and write another one in each iteration; with how many iterations they are known to have."""
    constants = ops.constants(func.body)

    def trips(loop: ops.For) -> int:
        own = len(loop.indices(constants.get) or ())
        inner = [trips(o) for o in loop.body.ops if isinstance(o, ops.For)]
        return own * max(inner, default=1)

    def visit(block: Block) -> Iterator[tuple[ops.For, int]]:
        for o in block.ops:
            match o:
                case ops.For() if _moves_elements(o):
                    found = trips(o)
                    if (not found or found >= FEW_TRIPS) and _writes_alike(func, o):
                        yield o, found
                case ops.For() | ops.While():
                    for region in o.regions:
                        yield from visit(region)
                case ops.If() if uniformity_of(func).level(o.cond) is Level.BLOCK:
                    for region in o.regions:
                        yield from visit(region)

    yield from visit(func.body)


def _moves_elements(loop: ops.For) -> bool:
    """Whether nothing stands in `loop` but arithmetic on elements, and some are written."""
    inside = list(walk(loop.body))
    allowed = (ops.Load, ops.Store, ops.For, ops.If)
    stores = loop.body.every(ops.Store)
    return any(o.dest.space in ("shared", "global") for o in stores) and all(
        o.pure or o.opname == "yield" or isinstance(o, allowed) for o in inside
    )


def _writes_alike(func: Func, loop: ops.For) -> bool:
    """Whether all threads write the same elements in `loop`, another one in each iteration."""
    levels, origins = uniformity_of(func), facts_of(func).origins
    stores = [*loop.body.every(ops.Store)]
    used = [v for o in stores for v in (*o.indices, o.value)]
    used += [v for o in walk(loop) for v in ops.decides(o)]
    if any(levels.level(v) is not Level.BLOCK for v in used):
        return False
    index = loop.body.args[0]
    return any(index in origins.of(v) for o in stores for v in o.indices)


def _warn_of_sums(func: Func, threads: int, target: Target) -> set[Loc]:
    """Of loops with fewer iterations than threads, each of which takes a sum by itself: of all of
    a kernel at once. Where these loops are."""

    def fitting(loop: ops.Parallel) -> int:
        return -(-prod(loop.extents) // target.warp_size) * target.warp_size

    repeated = repeated_sums(func, threads)
    found = [s for s in repeated if not s.open_extent or fitting(s.loop) < threads]
    if found:
        first, *more = found
        count = prod(first.loop.extents)
        many = "all" if first.trips is None else str(first.trips)
        lines = ", ".join(str(s.loc.line) for s in more)
        message = (
            f"each iteration of this T.Parallel ({count}) takes the {first.word} of {many} "
            f"elements by itself, and {threads} threads have {count} iterations: others repeat "
            "them, or wait"
        )
        _warn(
            f"{message} (so in line {lines})" if more else message,
            first.loc,
            f"threads={fitting(first.loop)} do as much where the loop is as short as here"
            if first.open_extent  # there is no tile of so many rows to reduce
            else f"T.reduce_{first.word}(x, s, dim=1), of a tile, shares the elements out\n"
            "among all threads; or go over them in T.Parallel",
        )
    return {s.loop.loc for s in found}


def _warn_of_small_tiles(func: Func, threads: int, target: Target) -> None:
    """Of blocks that combine elements and have tiles for a few of their threads only, where a
    launch has many of them."""
    reductions = [*func.body.every(ops.Reduce)]
    if not reductions or not any(p.role == "size" for p in func.params):
        return
    if any(func.body.every(ops.Gemm)) or any(func.body.every(ops.ThreadIndex)):
        return
    first = max(reductions, key=lambda o: prod(o.source.extents))
    boxes = [first.source.extents]
    boxes += [o.extents for o in func.body.every(ops.Parallel)]
    boxes += [o.dest.extents for o in func.body.every(ops.Copy)]
    most = max(map(prod, boxes))
    if most * FEW_OF_THREADS > threads or threads < FEW_OF_THREADS * target.warp_size:
        return
    shape = ", ".join(map(str, first.source.extents))
    rows = 8 * threads // most
    _warn(
        f"no tile of this kernel has more than {most} elements, and a block has {threads} threads: "
        "others repeat what these do",
        first.loc,
        f"let a block do several rows: tiles of ({rows}, {first.source.extents[-1]}) in place of "
        f"({shape}),\nand a grid of T.ceildiv(M, {rows}) blocks",
    )


def _warn_of_threads(func: Func, target: Target) -> None:
    """Warn of products that a somewhat larger tile would have a matrix instruction for."""
    for o in func.body.every(ops.Gemm):
        tile = nearest_tile(o, target)
        if tile is not None and prod(tile) <= MOST_LARGER * prod(o.shape):
            shown, wanted = (" x ".join(map(str, t)) for t in (o.shape, tile))
            message = (
                f"this product of {shown} elements (M, N, K) is done by threads: no matrix "
                f"instruction of {target} steps through it"
            )
            _warn(message, o.loc, f"use tiles for {wanted}")


def _warn_of_bytes(func: Func) -> None:
    """Of operands of a byte an element that lie side by side along M or N: no instruction turns
    them on their way to registers, as those of two bytes are, and no wgmma reads them."""
    laid_out = {o.dest for o in func.body.every(ops.AnnotateLayout)}
    for o in func.body.every(ops.Gemm):
        sides = (("A", o.a, o.transpose_a, "M"), ("B", o.b, not o.transpose_b, "N"))
        for name, x, across, along in sides:
            if not across or x.type.space != "shared" or x.dtype.bits != 8:
                continue
            if x.buffer in laid_out or o.instr.startswith(THREADS):
                continue
            _warn(
                f"{name} of this product, {x.buffer.name}, has its {x.dtype.name} elements side by "
                f"side along {along}: threads load them one by one, and put them together",
                o.loc,
                f"let them lie along K: a tile of ({along}, K), and transpose_{name}={name == 'B'}",
            )


def _warn_of_idle(func: Func, target: Target, told: set[Loc]) -> None:
    """Of products whose tile has no work for some of the warps, where no other product needs them,
    and of parallel loops over tiles whose threads do several times their share; not of those that
    were told of."""
    warps = warps_of(func, target)
    products = [o for o in func.body.every(ops.Gemm) if o.warps]
    busy = [prod(o.warps) for o in products]
    if products and max(busy) * 2 <= max(map(warps, products)):
        for o, used in zip(products, busy):
            m, n = o.c.buffer.static_shape
            message = (
                f"the {m} x {n} tile of this product has work for {used} of {warps(o)} warps: the "
                "others repeat it"
            )
            hint = f"write threads={max(busy) * target.warp_size}, or a larger tile"
            _warn(message, o.loc, hint)
        return
    for p in func.body.every(ops.Parallel):
        if p.layout and len(p.extents) > 1 and p.loc not in told:
            each, times = p.layout.size("reg"), idle(p.layout)
            share = -(-prod(p.extents) // (warps(p) * target.warp_size))
            if times >= 4 and each >= max(FEW_REPEATED, 4 * share):
                _warn(
                    f"each iteration of this loop is done by {times} threads: a thread does {each} "
                    f"of {prod(p.extents)}, where {share} would be its share",
                    p.loc,
                    "its fragments are held so: copy them to shared memory first, or give the loop "
                    "a layout, T.Parallel(…, loop_layout=…)",
                )


def _warn_of_stages(func: Func, final: Func) -> None:
    """Warn where the author put what a loop's threads do into stages, and they are not."""
    why = dict(final.attrs.get("not_held", ()))
    for loop in func.body.every(ops.For):
        if loop.kind == "pipelined" and loop.loc.line in why:
            message = (
                "stage puts what threads do into several stages, but each iteration of this loop "
                f"ends before the next one begins: {why[loop.loc.line]}"
            )
            hint = "leave stage out: tilec then overlaps what it finds to fit"
            _warn(message, loop.loc, hint)


def _warn_of_atomics(func: Func, final: Func) -> None:
    """Warn where the author asked for TMA, and threads do a tile's atomics."""
    why = dict(final.attrs.get("not_reduced", ()))
    for o in func.body.every(ops.AtomicTile):
        if o.engine and o.loc.line in why:
            _warn(
                f"use_tma=True, but threads do these atomics, one element after the other: TMA "
                f"cannot, {why[o.loc.line]}",
                o.loc,
                "leave use_tma out, or add a whole shared tile of C's dtype to a tensor that "
                "nothing else reads or writes",
            )


def _warn_of_serial(func: Func, final: Func) -> None:
    """Warn where the author of a loop asked for stages, and a copy in it cannot run ahead."""
    why = {(at, name): text for at, name, text in final.attrs.get("not_ahead", ())}
    for loop in func.body.every(ops.For):
        if loop.kind == "pipelined" and loop.num_stages > 1:
            for o in copies_of(loop):
                if (o.loc.line, o.dest.buffer.name) in why:
                    reason = why[o.loc.line, str(o.dest.buffer.name)]
                    hint = (
                        "fill a whole buffer once in each iteration, before it is read, from a "
                        "place that does not depend on the iteration before"
                    )
                    if reason == UNEVEN:
                        hint = "give the tile a power of two of rows, or of columns"
                    _warn(
                        f"num_stages={loop.num_stages}, but this copy cannot run ahead of its "
                        f"iteration: {reason}",
                        o.loc,
                        hint,
                    )
