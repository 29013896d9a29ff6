"""check_registers: fragments and local arrays that no thread can hold are refused before any code
is made.

Before and after: LAID_OUT; nothing is changed. Raises ResourceError where one fragment alone, or
those of the accumulators and register operands of one loop's products that are live at once, take
more registers than a thread has, less what addresses and loops need, and where the local arrays
take more than its memory; and says what would fit. With the attribute "may_spill" (the author has
fixed all sizes) fragments of up to `MOST_HELD` registers pass, those of products up to
`MOST_OF_PRODUCTS`: the assembler keeps what is too much in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tilec.ir.clusters import all_threads_of, groups_of, residents_of
from tilec.ir.core import Func, Value, walk
from tilec.ir.errors import ResourceError
from tilec.ir.ops import Alloc, For, Gemm, Scope, SetRegisters, While
from tilec.passes.utils.dependence import live_at_once, modref
from tilec.passes.utils.registers import OTHER_REGISTERS, RESERVED, at_launch, budget
from tilec.target import Target

GROUP_HINT = "use a smaller tile, or let a group of more threads work on it"
MOST_HELD = 1024
MOST_OF_PRODUCTS = 512
"""Registers' worth of fragments in one thread: with more, assemblers take minutes (LLVM's for AMD
eight for products with accumulators of 1024)."""


def check_registers(func: Func, target: Target) -> Func:
    _check_local(func, target)
    groups, threads = groups_of(func), all_threads_of(func)
    specialised = bool(func.attrs.get("specialise"))
    given = budget(threads, specialised, target, residents_of(func))
    own = _asked_for(func)
    of_products = {v for o in func.body.every(Gemm) for v in _operands(o)}
    for held in _held_sets(func):
        needed = _taken(held)
        limit = min((own.get(o.result, given) for o in held), default=given)
        products = any(o.result in of_products for o in held)
        most = MOST_OF_PRODUCTS if products else MOST_HELD
        if needed > (most if func.attrs.get("may_spill") else limit):
            holding = threads_holding(func, held, target)
            hint = _hint(held, threads, specialised, target, groups)
            error = ResourceError(
                f"{said_of(held, holding)}; on {target} {limit} are left for "
                f"{'it' if len(held) == 1 else 'them'}",
                held[0].loc,
                GROUP_HINT if holding < threads else hint,
            )
            error.may_spill = needed <= most
            raise error
    return func


def most_held(func: Func) -> list[Alloc]:
    """Of a LAID_OUT function the fragments that take the most registers at once: one, or those of
    one loop's products."""
    return max(_held_sets(func), key=_taken, default=[])


def threads_holding(func: Func, held: list[Alloc], target: Target) -> int:
    """The threads that hold these fragments: those of the group that works on them, or all."""
    block = all_threads_of(func)
    own = (
        o.warps * target.warp_size
        for o in func.body.every(Scope)
        if any(held[0].result in inside.operands for inside in walk(o.body))
    )
    return min(own, default=block)


def said_of(held: list[Alloc], threads: int) -> str:
    """How many registers they take: "acc takes 128 registers of each of 256 threads"."""
    return f"{_named(held)} {_taken(held)} registers of each of {threads} threads"


def _taken(held: Iterable[Alloc]) -> int:
    return sum(o.type.registers for o in held)


def _held_sets(func: Func) -> list[list[Alloc]]:
    fragments = _fragments(func)
    sets = [[o] for o in fragments.values()]
    registers = {v: o.type.registers for v, o in fragments.items()}
    for loop in walk(func.body):
        if isinstance(loop, (For, While)):
            held = held_at_once(func, loop, registers)
            sets += [[fragments[v] for v in held]] if held else []
    return sets


def fragment_registers(func: Func) -> int:
    """Registers of a thread that all fragments of a LAID_OUT function take."""
    return _taken(_fragments(func).values())


def registers_left(func: Func, target: Target) -> int:
    """Registers that a thread of a LAID_OUT function has at launch beside its fragments and what a
    loop with a product takes."""
    launched = at_launch(int(func.attrs["launch_threads"]), target)
    return launched - OTHER_REGISTERS - fragment_registers(func)


def room_of_products(func: Func, target: Target) -> int:
    """The same beside what a loop's products hold at once, or else one fragment: others live
    elsewhere."""
    launched = at_launch(int(func.attrs["launch_threads"]), target)
    return launched - OTHER_REGISTERS - _taken(most_held(func))


def is_roomy(func: Func) -> bool:
    """Whether a thread has registers for loads in flight beside its fragments, where some of these
    would do without (measured: attention backward with heads of 192 spills)."""
    return fragment_registers(func) <= 96


def _fragments(func: Func) -> dict[Value, Alloc]:
    return {
        o.result: o
        for o in func.body.every(Alloc)
        if o.type.space == "fragment" and o.type.layout is not None
    }


def _asked_for(func: Func) -> dict[Value, int]:
    """What is left for the fragments of groups whose threads ask for registers of their own."""
    found: dict[Value, int] = {}
    for scope in func.body.every(Scope):
        inside = list(walk(scope.body))
        counts = [o.registers for o in inside if isinstance(o, SetRegisters)]
        if counts:
            limit = max(counts) - RESERVED
            for v in (v for o in inside for v in o.operands):
                found[v] = min(limit, found.get(v, limit))
    return found


def _check_local(func: Func, target: Target) -> None:
    arrays = [o for o in func.body.every(Alloc) if o.type.space == "local"]
    arrays.sort(key=_local_bytes, reverse=True)
    total = sum(map(_local_bytes, arrays))
    if not target.local_bytes or total <= target.local_bytes:
        return
    largest = arrays[0]
    room = target.local_bytes - (total - _local_bytes(largest))
    name, shape = largest.result.name, list(largest.type.static_shape)
    hint = f"keep {name} in shared memory or in a tensor"
    if room > 0:
        shape[0] = room * 8 // (largest.type.dtype.bits * (largest.type.size // shape[0]))
        if shape[0]:
            hint += f"; {name} of ({', '.join(map(str, shape))}{',' * (len(shape) == 1)}) fits"
    raise ResourceError(
        f"the local arrays take {total:,} bytes of each thread, {target} has {target.local_bytes:,}"
        f": {name} is local {tuple(largest.type.static_shape)} {largest.type.dtype.name}",
        largest.loc,
        hint,
    )


def _local_bytes(o: Alloc) -> int:
    return o.type.size * max(8, o.type.dtype.bits) // 8


def _operands(o: Gemm) -> tuple[Value, Value, Value]:
    return o.c, o.a.buffer, o.b.buffer


def held_at_once(func: Func, loop: For | While, registers: Mapping[Value, int]) -> list[Value]:
    """Of these fragments, with their `registers`, those that a loop's products keep there and that
    are live at the place where they take the most: what nothing outside of the loop touches lives
    from its writer to its last reader. (What one loop inside alone touches is that loop's.)"""
    uses = [modref(o) for o in loop.body.ops]
    inner = [u for o, u in zip(loop.body.ops, uses) if isinstance(o, (For, While))]
    alone = {v for u in inner for v in u if sum(v in other for other in uses) == 1}
    of_products = dict.fromkeys(v for o in loop.every(Gemm) for v in _operands(o))
    mine = [v for v in of_products if v in registers and v not in alone]
    inside = {*walk(loop.body)}
    outside = (o for o in walk(func.body) if o not in inside and not o.region_fields)
    lasting = {v for o in outside if not isinstance(o, Alloc) for v in o.operands}
    reads = [{v for v in mine if v in u and not u[v].whole} for u in uses]
    kills = [{v for v in mine if v in u and u[v].whole} for u in uses]
    found = live_at_once(reads, kills, lasting.intersection(mine), registers.__getitem__)
    return [v for v in mine if v in found]


def _named(held: list[Alloc]) -> str:
    if len(held) == 1:
        (o,) = held
        shape = "x".join(map(str, o.type.shape))
        return f"the {shape} {o.type.dtype.name} fragment {o.result.name} takes"
    parts = [f"{o.result.name} ({o.type.registers})" for o in held]
    return f"the products of one loop hold {', '.join(parts)}, together"


def _hint(held: list[Alloc], threads: int, specialised: bool, target: Target, groups: int) -> str:
    """More threads, if they would hold the fragments; else a smaller tile that does."""
    bits = sum(o.type.size * o.type.dtype.bits for o in held)
    if groups > 1:
        each = bits // (threads // groups) // 32
        fits = [t for t in (128, 256) if bits // t <= 32 * budget(t, specialised, target)]
        other = f'consumers="cooperative" and threads={fits[-1]}' if fits else "a smaller tile"
        return f"each of {groups} groups holds a tile of its own in {each} registers: {other} fits"
    if bits // threads <= 32 * budget(threads, specialised, target):
        most = max(held, key=lambda o: o.type.registers / (o.type.size * o.type.dtype.bits))
        if any(e % 16 for e in most.type.static_shape):
            return "most threads can hold no part of it: make its extents multiples of 16"
        name = most.result.name
        return f"every warp that multiplies by {name} holds it: let T.alloc_shared do so"
    more = 2 * threads
    while more <= target.max_threads:
        if bits // more <= 32 * budget(more, specialised, target):
            return f"threads={more} fits"
        more *= 2
    shape = held[0].type.static_shape
    rows, columns = shape[0], shape[-1]
    limit = 32 * budget(threads, specialised, target)
    parts = 2
    while bits // threads // parts > limit:
        parts *= 2
    if len(shape) == 1:
        return f"a tile of {rows // parts} fits"
    if parts == 2:
        return f"halve the tile: {rows // 2}x{columns} or {rows}x{columns // 2}"
    if parts == 4:
        return f"a tile of {rows // 2}x{columns // 2} fits"
    return (
        f"a tile of {rows // 2}x{columns * 2 // parts} or {rows * 2 // parts}x{columns // 2} fits"
    )
