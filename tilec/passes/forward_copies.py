"""forward_copies: what is as well read where it was copied from is not copied.

Before: TILE; a condition around a copy of a loop with stages, or the place that it brings its tile
from, depends on an element of a shared buffer or a fragment that a copy has filled: a row of a
block mask, a page table, the indices of a gather. Or a kernel without products copies what all its
blocks read, the weights of a norm, to shared memory, and one loop reads each element there once.
Or a fragment that registers cannot be indexed as (`demote_fragments`) is a copy of a shared tile,
or an operand of a product is.
Threads may have computed such an element, too: a number of a table, divided, or another where there
is none.
After: such elements are loaded from the tensor itself, or computed where they are asked for: the
copy of a loop with stages may run ahead (`plan_pipeline`), by whichever warps; and the weights come
from the first level of the cache, where other blocks have left them, without a barrier. Only of
tensors that the kernel writes nowhere, where no two tensors may overlap; or from the shared tile,
as long as it is what was copied. A buffer that nobody reads any longer is gone. A copy of what its
buffer holds already, as another copy in front of it has left it, is left out: the first one may run
ahead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import TypeGuard

from tilec.ir import ops
from tilec.ir.analysis import facts_of
from tilec.ir.builder import Builder
from tilec.ir.core import Block, Func, Op, Region, Substitution, Value, upstream, walk, within
from tilec.ir.effects import buffers_written, changing_tensors, effects_in, is_clonable
from tilec.ir.element_loops import element_indices
from tilec.passes.demote_fragments import demoted
from tilec.passes.plan_pipeline import has_stages
from tilec.passes.utils.dce import sweep
from tilec.passes.utils.dependence import LiveRange, live_ranges
from tilec.passes.utils.rings import fills_tile
from tilec.target import Target

MOST_AGAIN = 16  # operations that are done for each element that is gathered


def forward_copies(func: Func, target: Target) -> Func:
    if func.attrs.get("may_alias"):
        return func
    func = _computed_again(read_in_place(_without_repeated(func)))
    made = func.body.defs
    behind = upstream(_asked(func.body), made)
    loads = {o for o in behind if isinstance(o, ops.Load) and o.source.space != "global"}
    staged: set[Value] = set()
    if not func.body.has(ops.Gemm, ops.WarpMma):  # loops follow memory
        staged = {o.dest.buffer for o in func.body.every(ops.Copy) if fills_tile(o)}
    in_shared = {*demoted(func)} if target.kind != "cpu" else set()
    if not loads and not staged and not in_shared:
        return func
    written = changing_tensors(func)
    sources: dict[ops.Load, Region] = {}
    for v, ranges in live_ranges(func.body, {o.source for o in loads} | staged | in_shared).items():
        for r in ranges if isinstance(ranges, list) else ():
            readers = {x for i in r.readers for x in walk(r.block.ops[i])}
            if v in in_shared and isinstance(r.fill, ops.Copy) and _is_kept(r, r.fill):
                own = (o for o in readers if isinstance(o, ops.Load) and o.source is v)
                sources |= dict.fromkeys(own, r.fill.source)
            elif _is_forwardable(r.fill, written):
                of_this = {o for o in loads & readers if o.source is r.fill.dest.buffer}
                if r.fill.dest.buffer in staged:
                    of_this |= _read_once(r, made)
                sources |= dict.fromkeys(of_this, r.fill.source)
    if not sources:
        return func

    def visit(o: ops.Load) -> None | list[Op]:
        if o not in sources:
            return None
        b = Builder(o.loc)
        shape = o.source.buffer.static_shape
        at = [v for v, n in zip(o.indices, shape) if n != 1] or o.indices[-1:]
        source = sources[o]
        element = b.value(ops.Load, source.buffer, element_indices(b, source, at))
        if element.dtype != o.result.dtype:
            b.emit(ops.Cast, element, o.result.dtype)
        *others, last = b.ops
        return [*others, replace(last, results=o.results)]

    return sweep(func.rewrite(ops.Load, visit))


def _computed_again(func: Func) -> Func:
    """`func` where what must be known ahead of time is no element that one loop has computed from
    tensors alone: it is computed where it is asked for."""
    asked = upstream(_asked(func.body), func.body.defs)
    loads = {o for o in asked if isinstance(o, ops.Load) and o.source.space != "global"}
    found: dict[Value, tuple[ops.Parallel, ops.Store]] = {}
    written, users = changing_tensors(func), func.body.users
    for block in (func.body, *(r for o in walk(func.body) for r in o.regions)) if loads else ():
        for i, o in enumerate(block.ops):
            if isinstance(o, ops.Parallel) and (store := _computes(o, written)) is not None:
                others = {*users[store.dest]} - {store}
                later = {x for y in block.ops[i + 1 :] for x in walk(y)}
                effects = [e for x in others for e in x.effects()]
                if others <= later and store.dest not in buffers_written(effects):
                    found |= {x.result: (o, store) for x in others & loads}
    subst: Substitution = {}

    def visit(o: ops.Load) -> None | list[Op]:
        if o.result not in found:
            return None
        loop, store = found[o.result]
        own = dict(zip(loop.body.args, o.indices))
        made = [x.clone(own) for x in loop.body.statements if x is not store]
        subst[o.result] = own.get(store.value, store.value)
        return made

    return sweep(func.rewrite(ops.Load, visit, subst)) if found else func


def _computes(loop: ops.Parallel, written: set[Value]) -> ops.Store | None:
    """The store of a loop that fills a buffer by it and does nothing else that could not be done
    again."""
    others = [o for o in loop.body.statements if not is_clonable(o, written)]
    store = others[0] if len(others) == 1 else None
    if not isinstance(store, ops.Store) or len(loop.body.ops) > MOST_AGAIN:
        return None
    whole = store.indices == loop.body.args and store.dest.buffer.shape == loop.extents
    return store if whole and store.dest.space in ("shared", "fragment") else None


def read_in_place(func: Func, fragments: AbstractSet[Value] = frozenset()) -> Func:
    """`func` where products read shared tiles, not copies of them in shared memory, or in any of
    `fragments`."""
    operands = {r.buffer for o in func.body.every(ops.Gemm) for r in (o.a, o.b)}
    operands = {v for v in operands if v.space == "shared" or v in fragments}
    into = {o.dest.buffer for o in func.body.every(ops.Copy) if o.source.buffer.space == "shared"}
    instead: dict[Value, Value] = {}
    for v, ranges in live_ranges(func.body, operands & into).items():
        for r in ranges if isinstance(ranges, list) else ():
            source = _whole_of(r, v)
            others = (x for i in r.readers for x in walk(r.block.ops[i]) if v in x.operands)
            if source is None or instead.setdefault(v, source) is not source:
                break
            if any(not isinstance(x, ops.Gemm) for x in others):
                break
        else:
            continue
        instead.pop(v, None)
    if not instead:
        return func

    def visit(o: ops.Gemm) -> Op:
        a, b = (replace(r, buffer=instead.get(r.buffer, r.buffer)) for r in (o.a, o.b))
        return replace(o, a=a, b=b)

    def is_gone(o: ops.Copy) -> list[Op] | None:
        return [] if o.dest.buffer in instead else None

    return sweep(func.rewrite(ops.Gemm, visit).rewrite(ops.Copy, is_gone))


def _whole_of(r: LiveRange, v: Value) -> Value | None:
    """The shared tile of the same shape and dtype that is copied to `v`, and there as long."""
    fill = r.fill
    if not isinstance(fill, ops.Copy) or not _is_kept(r, fill):
        return None
    w = fill.source.buffer
    alike = w.buffer.static_shape == v.buffer.static_shape == fill.source.extents
    return w if alike and w.dtype == v.dtype and fill.dest.buffer is v else None


def _without_repeated(func: Func) -> Func:
    """`func` without copies of what is there already."""
    into = [o.dest for o in func.body.every(ops.Copy) if o.dest.buffer.space != "global"]
    twice = {r.buffer for r in into if sum(x.buffer is r.buffer for x in into) > 1}
    by_number = any(o.order or o.stage for o in func.body.every(ops.For))
    if not twice or by_number or ops.is_by_hand(func.body):
        return func
    facts, written = facts_of(func), changing_tensors(func)

    def same(a: Region, b: Region) -> bool:
        apart = [facts.form(x) - facts.form(y) for x, y in zip(a.offsets, b.offsets)]
        alike = a.buffer is b.buffer and a.extents == b.extents
        return alike and all(d.constant == 0 for d in apart)

    repeated: set[Op] = set()
    for block in (func.body, *(r for o in walk(func.body) for r in o.regions)):
        held: dict[Value, ops.Copy] = {}
        for o in block.ops:
            before = held.get(o.dest.buffer) if isinstance(o, ops.Copy) else None
            if isinstance(o, ops.Copy) and before is not None:
                if same(o.source, before.source) and same(o.dest, before.dest):
                    repeated.add(o)
                    continue
            for v in buffers_written(e for _, e in effects_in(o)):
                held.pop(v, None)
            if (
                isinstance(o, ops.Copy)
                and o.dest.buffer in twice
                and o.source.buffer not in written
            ):
                if o.source.buffer.space == "global":
                    held[o.dest.buffer] = o
    return func.rewrite(ops.Copy, lambda o: [] if o in repeated else None) if repeated else func


def _asked(body: Block) -> Iterator[Value]:
    """What must be known ahead of time: of the copies of loops with stages, and of loops over
    elements that gather a tile, where they read, and all conditions around."""
    for o, around in within(body):
        if not any(isinstance(x, ops.For) and has_stages(x) for x in around):
            continue
        if fills_tile(o):
            yield from o.source.offsets
        elif isinstance(o, ops.Parallel):
            inside = [*walk(o.body)]
            stores = [x for x in inside if isinstance(x, ops.Store)]
            if not stores or any(x.dest.space != "shared" for x in stores):
                continue
            loads = [x for x in inside if isinstance(x, ops.Load)]
            there = {x.result: x for x in loads if x.source.space == "global"}
            yield from (v for x in there.values() for v in x.indices)
            chosen = (x for x in inside if isinstance(x, ops.Select))
            yield from (x.cond for x in chosen if {x.on_true, x.on_false} & there.keys())
        else:
            continue
        yield from (v for x in around for v in ops.decides(x))


def _read_once(r: LiveRange, made: Mapping[Value, Op]) -> set[ops.Load]:
    """The only access to what a copy leaves in shared memory, if one loop over its elements reads
    each of them there once, the copy brings the same to all blocks, and no loop with stages brings
    it ahead."""
    if any(isinstance(o, ops.For) and has_stages(o) for o in r.around) or len(r.readers) != 1:
        return set()
    assert isinstance(r.fill, ops.Copy)
    behind = upstream(r.fill.source.offsets, made)
    loop, buffer = r.block.ops[r.readers[0]], r.fill.dest.buffer
    if not isinstance(loop, ops.Parallel) or any(
        not o.pure or isinstance(o, ops.BlockIndex) for o in behind
    ):
        return set()
    loads = {o for o in loop.body.every(ops.Load) if o.source is buffer}
    index = {v: n for v, n in zip(loop.body.args, loop.extents) if n != 1}
    shape = buffer.buffer.static_shape
    read = [tuple(v for v, n in zip(o.indices, shape) if n != 1) for o in loads]
    whole = [*index.values()] == [n for n in shape if n != 1]
    once = loads <= {*loop.body.ops} and read == [tuple(index)]
    return loads if whole and once else set()


def _is_kept(r: LiveRange, fill: ops.Copy) -> bool:
    """Whether what a buffer has of a shared tile is there, too, as long as somebody reads it: the
    same numbers, if wider ones."""
    if fill.source.type.space != "shared" or not r.readers:
        return False
    between = r.block.ops[r.start + 1 : r.readers[-1] + 1]
    effects = (e for o in between for _, e in effects_in(o))
    held, made = fill.source.dtype, fill.dest.dtype
    wider = held.is_float and made.is_float and 8 <= held.bits < made.bits
    return (held == made or wider) and fill.source.buffer not in buffers_written(effects)


def _is_forwardable(fill: Op, written: set[Value]) -> TypeGuard[ops.Copy]:
    """Whether what an op leaves in a buffer is as well read where it took it from."""
    if not isinstance(fill, ops.Copy) or fill.source.buffer.space != "global":
        return False
    kinds = {fill.source.dtype, fill.dest.dtype}
    return fill.source.buffer not in written and (len(kinds) == 1 or all(d.is_int for d in kinds))
