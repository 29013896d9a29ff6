"""Races in `T.Parallel` that can be proved: two iterations that touch one element, one of them
writing.

The indices of the accesses that every iteration makes are computed for all iterations at once, as
NumPy arrays over the iteration space plus a sum of values that are the same in all iterations. Two
accesses are compared where these sums agree; nothing is said about the others.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tilec.ir.affine import LINEAR, Affine, Forms
from tilec.ir.core import Op, Value, made_in, walk
from tilec.ir.effects import effects_in
from tilec.ir.loc import Loc
from tilec.ir.ops import Parallel
from tilec.ir.semantics import array
from tilec.ir.types import contiguous_strides
from tilec.support.lazy import Lazy

np: Any = Lazy("numpy")

ADD_UP = "add up a tile with T.reduce_sum (or max, min), or loop with T.serial"
LIMIT = 1 << 17  # iterations; of larger loops the first ones are looked at
_MOST = 1 << 31  # factors from here on are no index's: the arithmetic of 64 bits stays exact


@dataclass(frozen=True, slots=True)
class Race:
    """What to tell the user, and where. `sure` enough for an error."""

    message: str
    loc: Loc
    sure: bool = True


@dataclass(frozen=True, eq=False, slots=True)
class _Index:
    """`array` (over the iterations) plus each `base` value times its factor."""

    array: Any
    bases: dict[Value, int]


def find_race(loop: Parallel, forms: Forms, shown: Mapping[Value, Value]) -> Race | None:
    """The first race that is certain to happen in `loop`; `forms`: what all integers are; `shown`:
    of each view the buffer that it shows."""
    count = math.prod(looked_at(loop))
    ops, varying = loop.body.ops, _varying(loop)
    own = {r for o in ops for r in o.results}  # a variable made in the loop is each iteration's own
    same = _same_values(ops)
    # One access for each place that is read, and for each value that is written to a place.
    reads_of: dict[Value, dict[object, _Access]] = {}
    writes: dict[object, _Access] = {}

    def memory(a: _Access) -> Value:
        return shown.get(a.buffer, a.buffer)

    for a in _accesses(ops, varying):
        at = tuple(same.get(i, i) for i in a.indices)
        if not a.writes:
            reads_of.setdefault(memory(a), {}).setdefault((a.buffer, at), a)
        elif a.buffer not in own:
            writes.setdefault((a.buffer, at, a.varies), a)
    suspects = [
        (w, [r for r in reads_of.get(memory(w), {}).values() if r.place != w.place])
        for w in writes.values()
    ]
    suspects = [(w, r) for w, r in suspects if r or not _tell_apart(w.indices, loop, forms)]
    if not suspects or count < 2:
        return None
    known = evaluate(loop, forms)
    for write, reads in suspects:
        target = rows_of(write.indices, known, count, forms)
        if target is None:
            continue
        for read in reads:
            source = rows_of(read.indices, known, count, forms)
            race = None if source is None else _read_race(write, read, target, source, loop)
            if race is not None:
                return race
        race = _write_race(write, target, loop) if write.varies else None
        if race is not None:
            return race
    return None


def find_shared_update(loop: Parallel, places: Container[Loc], forms: Forms) -> Loc | None:
    """Where, of the `places` of statements that change an element by what it was, several
    iterations do so with one element of a fragment from outside, on conditions or not."""
    count = math.prod(looked_at(loop))
    suspects = [
        (o.loc, e.region.offsets)
        for o, e in (effects_in(loop.body) if count > 1 else ())
        if e.writes and e.region and o.loc in places and e.region.type.space == "fragment"
        if e.region.buffer not in made_in(loop) and not _tell_apart(e.region.offsets, loop, forms)
    ]
    known = evaluate(loop, forms) if suspects else {}
    apart = ((place, are_apart(indices, known, count, forms)) for place, indices in suspects)
    return next((place for place, told in apart if told is False), None)


@dataclass(frozen=True, eq=False, slots=True)
class _Access:
    """An element that is read or written; `varies`: by what differs between iterations."""

    buffer: Value
    indices: tuple[Value, ...]
    writes: bool
    varies: bool
    loc: Loc

    @property
    def place(self) -> tuple[Value, ...]:
        return self.buffer, *self.indices


def _accesses(ops: Sequence[Op], varying: Container[Value]) -> Iterator[_Access]:
    """What every iteration reads and writes. (Updates of one element are done one by one.)"""
    for o in ops:
        for e in () if o.pure or o.region_fields else o.effects():
            if e.region is None or e.kind not in ("read", "write"):
                continue
            buffer, indices = e.region.buffer, e.region.offsets
            others = (v for v in o.operands if v is not buffer and v not in indices)
            varies = any(v in varying for v in others)
            yield _Access(buffer, indices, e.writes, varies, o.loc)


def _same_values(ops: Sequence[Op]) -> dict[Value, Value]:
    """For each value the first that is computed in the same way."""
    first: dict[object, Value] = {}
    same: dict[Value, Value] = {}
    for o in ops:
        if o.pure and not o.region_fields and len(o.results) == 1:
            key = (type(o), repr(o.attributes), *(same.get(v, v) for v in o.operands))
            same[o.result] = first.setdefault(key, o.result)
    return same


def _tell_apart(indices: Sequence[Value], loop: Parallel, forms: Forms) -> bool:
    """Whether each of the loop's indices has one among `indices` that is a multiple of it plus what
    comes from outside: no element is written twice."""
    made = made_in(loop)
    told = set()
    for i in indices:
        terms = forms.form(i).terms
        varying = [v for v in terms if v in made]
        if len(varying) == 1 and abs(terms[varying[0]]) < _MOST:
            told.add(varying[0])
    return told >= set(loop.body.args)


def looked_at(loop: Parallel) -> tuple[int, ...]:
    """Extents of the iterations that are computed one by one: the loop's, the largest halved until
    they are few enough. What two of those do is done in the loop."""
    extents = [*loop.extents]
    while math.prod(extents) > LIMIT:
        extents[extents.index(max(extents))] //= 2
    return tuple(extents)


def evaluate(
    loop: Parallel,
    forms: Forms,
    outside: Mapping[Value, int] = MappingProxyType({}),
    before: Sequence[Op] = (),
) -> dict[Value, _Index | None]:
    """Each integer of the body that could be computed, in the iterations that are `looked_at`; None
    for the others. `outside`: numbers for values from outside of the loop; `before`: the ops that
    make others of these."""
    extents = looked_at(loop)
    grid = np.indices(extents).reshape(len(extents), math.prod(extents))
    known: dict[Value, _Index | None] = {
        a: _Index(grid[d], {}) for d, a in enumerate(loop.body.args)
    }
    known |= {v: _Index(np.array([n]), {}) for v, n in outside.items()}
    for o in (*before, *walk(loop.body)):
        known.update(dict.fromkeys(o.results))
        if isinstance(o, LINEAR) and o.result.dtype.kind in ("int", "uint"):
            known[o.result] = _result(o, forms, known)
    return known


def _result(o: Op, forms: Forms, known: dict[Value, _Index | None]) -> _Index | None:
    form = forms.form(o.result)
    if form != Affine.of(o.result):
        return _total(form, known)
    parts = [_total(forms.form(v), known) for v in o.operands]
    if all(p is not None and isinstance(p.array, int) for p in parts):
        return _Index(0, {o.result: 1})  # the same in all iterations
    arrays = [
        array(p.array, v.dtype)
        for p, v in zip(parts, o.operands)
        if p is not None and not p.bases and v.dtype.is_int
    ]
    return _Index(o.evaluate(*arrays).astype("int64"), {}) if len(arrays) == len(parts) else None


def _total(sum: Affine, known: dict[Value, _Index | None]) -> _Index | None:
    """A sum for all iterations. A value from outside the loop is the same in all of them: a
    base."""
    if any(abs(n) >= _MOST for n in (sum.const, *sum.terms.values())):
        return None
    rows: Any = sum.const
    bases: dict[Value, int] = {}
    for v, n in sum.terms.items():
        part = known[v] if v in known else _Index(0, {v: 1})
        if part is None:
            return None
        rows = rows + n * part.array
        bases |= {base: n * factor for base, factor in part.bases.items()}
    return _Index(rows, bases)


@dataclass(frozen=True, eq=False, slots=True)
class _Elements:
    """The element each iteration touches (one row each), and the bases of each dimension."""

    rows: Any
    bases: tuple[dict[Value, int], ...]


def rows_of(
    indices: Sequence[Value], known: dict[Value, _Index | None], count: int, forms: Forms
) -> _Elements | None:
    found = [_total(forms.form(i), known) for i in indices]
    if not found or any(f is None for f in found):
        return None
    rows = np.stack([np.broadcast_to(f.array, (count,)) for f in found if f is not None], axis=1)
    return _Elements(rows, tuple(f.bases for f in found if f is not None))


def are_apart(
    indices: Sequence[Value], known: dict[Value, _Index | None], count: int, forms: Forms
) -> bool | None:
    """Whether all iterations have elements of their own; None where that cannot be computed."""
    found = rows_of(indices, known, count, forms)
    return None if found is None else len(np.unique(row_keys(found.rows)[0])) == count


def row_keys(*rows: Any) -> list[Any]:
    """Rows as single ints, equal where the rows are."""
    low = np.min([r.min(axis=0) for r in rows], axis=0)
    high = np.max([r.max(axis=0) for r in rows], axis=0)
    return [np.ravel_multi_index(tuple((r - low).T), tuple(high - low + 1)) for r in rows]


def _read_race(
    write: _Access, read: _Access, target: _Elements, source: _Elements, loop: Parallel
) -> Race | None:
    if read.buffer is not write.buffer:
        one, other = _numbered(target, write.buffer), _numbered(source, read.buffer)
        if one is None or other is None or read.buffer.dtype.bits != write.buffer.dtype.bits:
            return None
        target, source = one, other
    if source.bases != target.bases:
        return None
    written, wanted = row_keys(target.rows, source.rows)
    order = np.argsort(written, kind="stable")
    at = np.minimum(np.searchsorted(written[order], wanted), len(order) - 1)
    writer = order[at]
    clash = np.flatnonzero((written[writer] == wanted) & (writer != np.arange(len(wanted))))
    if not len(clash):
        return None
    i = int(clash[0])
    message = (
        f"iteration {_iteration(i, loop)} of T.Parallel reads an element of "
        f"{write.buffer.name or 'the buffer'} that iteration {_iteration(int(writer[i]), loop)} "
        f"writes (line {write.loc.line}); they run in any order"
    )
    return Race(message, read.loc)


def _numbered(found: _Elements, buffer: Value) -> _Elements | None:
    """The elements by their row-major numbers, which those of all views are; None where some may
    not exist."""
    t = buffer.buffer
    known = all(isinstance(e, int) for e in t.shape) and not any(found.bases)
    if not known or not np.all((found.rows >= 0) & (found.rows < t.shape)):
        return None
    return _Elements(found.rows @ np.array(contiguous_strides(t.static_shape))[:, None], ({},))


def _write_race(write: _Access, target: _Elements, loop: Parallel) -> Race | None:
    """Two iterations that write one element."""
    (keys,) = row_keys(target.rows)
    order = np.argsort(keys, kind="stable")
    twice = np.flatnonzero(keys[order][1:] == keys[order][:-1])
    if not len(twice):
        return None
    one, other = int(order[twice[0]]), int(order[twice[0] + 1])
    message = (
        f"iterations {_iteration(one, loop)} and {_iteration(other, loop)} of T.Parallel write "
        f"the same element of {write.buffer.name or 'the buffer'}; they run in any order"
    )
    return Race(message, write.loc)


def _varying(loop: Parallel) -> set[Value]:
    """Values that depend on the iteration."""
    found = set(loop.body.args)
    for o in loop.body.ops:
        if not found.isdisjoint(o.uses):
            found.update(o.results)
    return found


def _iteration(flat: int, loop: Parallel) -> str:
    coordinates = []
    for extent in reversed(looked_at(loop)):
        flat, c = divmod(flat, extent)
        coordinates.append(c)
    names = [a.name or f"index{d}" for d, a in enumerate(loop.body.args)]
    return ", ".join(f"{n} = {c}" for n, c in zip(names, reversed(coordinates)))
