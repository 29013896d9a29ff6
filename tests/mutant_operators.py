"""What `mutants` does to a kernel: each change takes one thing away that orders work or keeps it in
bounds, or makes it weaker.

`changes(func)` lists them for a function of the SCHEDULED or LOWERED contract. A place is numbered
in the order in which `rewrite` visits ops, so that an op object that stands in two places is two
places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tilec.ir.analysis import facts_of
from tilec.ir.builder import Builder
from tilec.ir.core import Block, Func, Op, Replacement, Value, walk
from tilec.ir.loc import Loc
from tilec.ir.ops import (
    Barrier,
    Binary,
    Cast,
    ClusterBarrier,
    ClusterCopy,
    ClusterLoad,
    ClusterSend,
    ClusterStore,
    ClusterSum,
    Compare,
    Const,
    Copy,
    CountUp,
    CpAsync,
    CpAsyncCommit,
    CpAsyncWait,
    DeviceFence,
    Fill,
    For,
    Gemm,
    If,
    Ldmatrix,
    MbarrierArrive,
    MbarrierExpect,
    MbarrierInit,
    MbarrierInitFence,
    MbarrierWait,
    MemLoad,
    MemStore,
    OrderedArrive,
    OrderedWait,
    Parallel,
    ProxyFence,
    RingStage,
    Scope,
    Select,
    Stmatrix,
    Store,
    TmaLoad,
    TmaStore,
    TmaStoreCommit,
    TmaStoreWait,
    WarpSync,
    Wgmma,
    WgmmaWait,
    While,
)
from tilec.ir.types import BOOL, INT32, ScalarType, VectorType

REMOVED: tuple[type[Op], ...] = (
    Barrier, WarpSync, ProxyFence, MbarrierInit, MbarrierInitFence, MbarrierExpect, MbarrierArrive,
    MbarrierWait, ClusterBarrier, CpAsyncCommit, CpAsyncWait, WgmmaWait, TmaStoreCommit,
    TmaStoreWait, OrderedWait, OrderedArrive, DeviceFence,
)  # fmt: skip
ACQUIRING: tuple[type[Op], ...] = (
    Barrier, WarpSync, MbarrierWait, ClusterBarrier, CpAsyncWait, WgmmaWait, TmaStoreWait,
    OrderedWait,
    ProxyFence,
)  # fmt: skip
RELEASING: tuple[type[Op], ...] = (
    Barrier, WarpSync, ClusterBarrier, MbarrierArrive, CpAsyncCommit, TmaStoreCommit, OrderedArrive,
)  # fmt: skip
# What it matters to be before or behind.
ACTING: tuple[type[Op], ...] = (
    *REMOVED, Copy, Fill, Gemm, Parallel, ClusterSum, ClusterCopy, ClusterLoad, ClusterSend,
    ClusterStore, CountUp, MemLoad, MemStore,
    CpAsync, Ldmatrix, Stmatrix, TmaLoad, TmaStore, Wgmma, For, While, If,
)  # fmt: skip

Make = Callable[[Op], Replacement]


@dataclass(frozen=True)
class Change:
    """`operator`: the kind of change; `description`: what it does at `loc`; `apply` makes the
    changed function of the one that the change was listed for."""

    operator: str
    description: str
    loc: Loc
    apply: Callable[[Func], Func]


def changes(func: Func) -> list[Change]:
    """Every change of ordering, waiting, counting and bounds."""
    places = sites(func)
    found: list[Change] = []

    def add(i: int, operator: str, description: str, make: Make) -> None:
        found.append(Change(operator, description, places[i].loc, lambda f: change_at(f, i, make)))

    for i, o in enumerate(places):
        if isinstance(o, REMOVED):
            add(i, f"remove {o.opname}", f"no {said(o)}", lambda _: [])
        for operator, description, make in weaker(o):
            add(i, operator, description, make)
    found += moves(func, places)
    found += bounds(func, places)
    found += rings(func)
    return found


def sites(func: Func) -> list[Op]:
    """The ops of the body in the order in which `rewrite` visits them."""
    seen: list[Op] = []

    def visit(o: Op) -> None:
        seen.append(o)

    func.body.rewrite(Op, visit)
    return seen


def change_at(func: Func, place: int, make: Make) -> Func:
    """`func` with `make(op)` at a place."""
    return change_all(func, {place: make})


def change_all(func: Func, makes: dict[int, Make]) -> Func:
    number = -1

    def visit(o: Op) -> Replacement:
        nonlocal number
        number += 1
        make = makes.get(number)
        return None if make is None else make(o)

    return func.rewrite(Op, visit)


def said(o: Op) -> str:
    """An op in a few words: its name and its operands' names."""
    names = [v.name for v in o.operands if v.name]
    return " ".join([o.opname, *names[:2]])


# --- weaker waits, other counts, wrong slots ---

Weaker = tuple[str, str, Make]


def weaker(o: Op) -> Iterator[Weaker]:
    """What else may be done to one op."""
    match o:
        case CpAsyncWait() | WgmmaWait() | TmaStoreWait():
            more = o.pending + 1
            yield f"{o.opname}: one more", f"{more} may be pending", _set(pending=more)
            if isinstance(o, TmaStoreWait) and not o.read:
                yield "tma_store_wait: read only", "waits until it is read", _set(read=True)
        case MbarrierInit():
            yield "arrival count", f"{said(o)}: {o.count + 1}", _set(count=o.count + 1)
            if o.count > 1:
                yield "arrival count", f"{said(o)}: {o.count - 1}", _set(count=o.count - 1)
        case CountUp():
            for n in (o.last - 1, o.last + 1):
                yield "last count", f"{said(o)}: {n}, not {o.last}", _set(last=n)
        case MbarrierExpect():
            for n in (o.bytes - 16, o.bytes + 16, o.bytes // 2):
                yield "bytes expected", f"{n}, not {o.bytes}", _set(bytes=n)
            yield from _other_slot(o)
        case MbarrierWait():
            yield "parity flipped", said(o), _flip
            for p in (0, 1):
                yield "parity stale", f"{said(o)}: always {p}", _constant("parity", p)
            if o.acquire:
                yield "no acquire", said(o), _set(acquire=False)
            yield from _other_slot(o)
        case MbarrierArrive():
            if o.publish:
                yield "no publish", said(o), _set(publish=False)
            if o.block is not None and not o.publish:
                yield "arrive at home", said(o), _set(block=None)
            if o.guard is not None:
                yield "guard removed", said(o), _set(guard=None)
            yield from _other_slot(o)
        case ClusterSend():
            yield from _other_slot(o)
            yield "bytes sent", f"{o.bytes - 16}, not {o.bytes}", _set(bytes=o.bytes - 16)
        case TmaLoad():
            yield from _other_slot(o)
            if o.blocks is not None:
                yield "multicast to itself only", said(o), _set(blocks=None)
        case TmaStore():
            if o.guard is not None:
                yield "guard removed", said(o), _set(guard=None)
            if o.reduction:
                yield "stored, not added", said(o), _set(reduction="")
        case Barrier():
            if o.threads:
                for n in (o.threads - 32, o.threads + 32):
                    yield "barrier threads", f"{n}, not {o.threads}", _set(threads=n)
            if o.id or o.threads:
                yield "barrier number", f"{o.id + 1}, not {o.id}", _set(id=o.id + 1)
        case OrderedWait() | OrderedArrive():
            yield "turn number", f"{said(o)}: {o.id + 1}, not {o.id}", _set(id=o.id + 1)
        case Scope() if o.registers > 100:
            many = o.registers + 8
            yield "register pool", f"{o.name}: {many}, not {o.registers}", _set(registers=many)
        case If() if any(isinstance(x, MbarrierInit | TmaLoad) for x in walk(o.then)):
            yield "no elected thread", "all threads go there", _constant("cond", True)
        case Store() if o.dest.name.split("_")[0].startswith("ring"):
            yield "position not advanced", f"{o.dest.name} not stored", lambda _: []


def _set(**fields: Any) -> Make:
    return lambda o: replace(o, **fields)


def _flip(o: Op) -> Sequence[Op]:
    assert isinstance(o, MbarrierWait)
    b = Builder(o.loc)
    one = b.value(Const, 1, INT32)
    return [*_after(b, replace(o, parity=b.value(Binary, "xor", o.parity, one)))]


def _constant(field: str, value: int | bool) -> Make:
    def make(o: Op) -> Sequence[Op]:
        b = Builder(o.loc)
        dtype = BOOL if isinstance(value, bool) else INT32
        fields: dict[str, Any] = {field: b.value(Const, value, dtype)}
        return _after(b, replace(o, **fields))

    return make


def _after(b: Builder, o: Op) -> Sequence[Op]:
    return [*b.ops, o]


def _other_slot(o: Any) -> Iterator[Weaker]:
    (slots,) = o.barrier.buffer.static_shape
    if slots > 1:
        yield "slot off by one", said(o), _next_slot(slots)


def _next_slot(slots: int) -> Make:
    def make(o: Any) -> Sequence[Op]:
        b = Builder(o.loc)
        more = b.value(Binary, "add", o.stage, b.value(Const, 1, INT32))
        return _after(
            b, replace(o, stage=b.value(Binary, "mod", more, b.value(Const, slots, INT32)))
        )

    return make


# --- in another order ---


def moves(func: Func, places: Sequence[Op]) -> Iterator[Change]:
    """What acquires comes behind the next op that acts, what releases before the one in front."""
    for first, second in _neighbours(func, places):
        a, b = places[first], places[second]
        kept: list[Op] = []

        def keep(o: Op, kept: list[Op] = kept) -> Sequence[Op]:
            kept[:] = [o]
            return []

        def put(o: Op, kept: list[Op] = kept) -> Sequence[Op]:
            return [o, *kept]

        makes: dict[int, Make] = {first: keep, second: put}
        if type(a) is type(b) and not isinstance(a, MbarrierArrive | MbarrierWait):
            continue
        if isinstance(a, ACQUIRING):
            name, text = f"{a.opname} too late", f"{said(a)} behind {said(b)}"
            yield Change(name, text, a.loc, partial(change_all, makes=makes))
        elif isinstance(b, RELEASING):
            name, text = f"{b.opname} too early", f"{said(b)} before {said(a)}"
            yield Change(name, text, b.loc, partial(change_all, makes=makes))


def _neighbours(func: Func, places: Sequence[Op]) -> Iterator[tuple[int, int]]:
    """Pairs of places of one block that change places without harm to the IR: both act, the first
    has no results, one of them orders."""
    numbers: dict[int, list[int]] = {}
    for i, o in enumerate(places):
        numbers.setdefault(id(o), []).append(i)
    for block in _blocks(func.body):
        acting = [o for o in block.ops if isinstance(o, ACTING) and len(numbers[id(o)]) == 1]
        for a, b in zip(acting, acting[1:]):
            if not a.results and (isinstance(a, ACQUIRING) or isinstance(b, RELEASING)):
                yield numbers[id(a)][0], numbers[id(b)][0]


def _blocks(block: Block) -> Iterator[Block]:
    yield block
    for o in block.ops:
        for region in o.regions:
            yield from _blocks(region)


# --- bounds ---


def bounds(func: Func, places: Sequence[Op]) -> Iterator[Change]:
    """Guards that are missing or off by one, loops that go round once more than the other role's.

    The guards of one line are changed together: of an unrolled access only some reach the bound."""
    made, facts = func.body.defs, facts_of(func)
    guards: dict[Value, int] = {}  # elements that are asked for by one
    in_scope = {id(o) for s in walk(func.body) if isinstance(s, Scope) for o in walk(s.body)}
    for o in walk(func.body):
        if isinstance(o, MemLoad | MemStore | CpAsync):
            for guard in (getattr(o, "guard", None), getattr(o, "valid", None)):
                for part in set() if guard is None else _parts(guard, made):
                    guards[part] = max(guards.get(part, 1), _lanes(o))
        elif isinstance(o, If) and any(isinstance(x, MemLoad | MemStore) for x in walk(o.then)):
            guards |= dict.fromkeys(_parts(o.cond, made) - guards.keys(), 1)
    groups: dict[tuple[str, str, int], tuple[Loc, dict[int, Make]]] = {}

    def together(operator: str, what: str, i: int, make: Make) -> None:
        loc = places[i].loc
        groups.setdefault((operator, what, loc.line), (loc, {}))[1][i] = make

    for i, o in enumerate(places):
        match o:
            case MemLoad() | MemStore() if o.guard is not None:
                together("guard removed", said(o), i, _set(guard=None, **_no_other(o)))
            case CpAsync() if o.valid is not None:
                together("guard removed", said(o), i, _set(valid=None))
            case Compare(kind="lt" | "le" | "gt" | "ge") if o.result in guards:
                rhs = made.get(o.rhs)
                bound = str(rhs.value) if isinstance(rhs, Const) else o.rhs.name or "bound"
                by = min(guards[o.result], facts.divisor(o.rhs))  # rows end between two vectors
                together("bound off by one", f"index {o.kind} {bound}", i, partial(_wider, by=by))
            case For(kind="pipelined" | "persistent" | "serial") if id(o) in in_scope:
                yield _at("extent + 1", f"{o.kind} loop of one role", o, i, _longer)
    for (operator, what, _), (loc, makes) in groups.items():
        yield Change(operator, what, loc, partial(change_all, makes=makes))


def _at(operator: str, description: str, o: Op, i: int, make: Make) -> Change:
    return Change(operator, description, o.loc, lambda f: change_at(f, i, make))


def _no_other(o: Op) -> dict[str, None]:
    return {"other": None} if isinstance(o, MemLoad) else {}


def _parts(value: Value, made: dict[Value, Op]) -> set[Value]:
    """The comparisons that a guard, or a number of bytes, is made of."""
    o = made.get(value)
    if isinstance(o, Compare) and isinstance(o.lhs.type, ScalarType) and o.lhs.dtype.is_int:
        return {value}
    found: set[Value] = set()
    if isinstance(o, Binary | Select | Cast):
        for v in o.operands:
            found |= _parts(v, made)
    return found


def _lanes(o: Op) -> int:
    """How many elements an access has."""
    moved = o.result if isinstance(o, MemLoad) else o.value if isinstance(o, MemStore) else None
    return moved.type.lanes if moved is not None and isinstance(moved.type, VectorType) else 1


def _wider(o: Op, by: int) -> Sequence[Op]:
    assert isinstance(o, Compare)
    b = Builder(o.loc)
    kind = "sub" if o.kind in ("lt", "le") else "add"
    moved = b.value(Binary, kind, o.lhs, b.value(Const, by, o.lhs.dtype))
    return _after(b, replace(o, lhs=moved))


def _longer(o: Op) -> Sequence[Op]:
    assert isinstance(o, For)
    b = Builder(o.loc)
    return _after(b, replace(o, hi=b.value(Binary, "add", o.hi, o.step)))


# --- rings ---


def rings(func: Func) -> Iterator[Change]:
    """Buffers with a version less than their waits say, and accesses of a version next to the
    right one."""
    places = sites(func)
    uses: dict[Value, list[int]] = {}
    for i, o in enumerate(places):
        if isinstance(o, RingStage) and o.root.buffer.stages > 1:
            uses.setdefault(o.root, []).append(i)
    for root, at in uses.items():
        loc, stages = places[at[0]].loc, root.buffer.stages
        makes: dict[int, Make] = dict.fromkeys(at, _at_most(stages - 2))
        text = f"{root.name}: {stages - 1} stages, not {stages}"
        yield Change("ring too short", text, loc, partial(change_all, makes=makes))
        for i in at:
            yield _at("slot off by one", said(places[i]), places[i], i, _next_slot(stages))


def _at_most(slot: int) -> Make:
    def make(o: Any) -> Sequence[Op]:
        b = Builder(o.loc)
        return _after(
            b, replace(o, stage=b.value(Binary, "min", o.stage, b.value(Const, slot, INT32)))
        )

    return make
