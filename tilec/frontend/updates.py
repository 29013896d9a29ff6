"""Updates in `T.Parallel` of elements that iterations may share: `H[X[i]] += 1`.

An update stores what it has computed from the element itself, or on a condition about it. Where
two iterations update one element, one of the results is lost. That the index of an update is read
from memory is an error, unless other indices tell the iterations apart; that it is folded by a
number of the run time (`i % n`), or that a condition about data chooses the iterations which update
one and the same element, is a warning. (`find_race` has what is certain.)
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any

from tilec.frontend.races import LIMIT, Race, are_apart, evaluate
from tilec.ir.affine import LINEAR, Forms
from tilec.ir.core import Op, Value, walk, within
from tilec.ir.loc import Loc
from tilec.ir.ops import Binary, If, Load, Parallel, Store, Unary, yielded

_TRIED = (1, 2, 3, 4, 8)
_FOLDING = ("floordiv", "mod", "truncdiv", "truncmod", "min", "max", "and", "or", "shr")


class Sharing(IntEnum):
    """What speaks for it that iterations share an index."""

    NOTHING = 0
    FOLDED = 1
    READ = 2


_WORDS = {
    Sharing.READ: ("an index that is read from memory", "have one index"),
    Sharing.FOLDED: ("an index that is folded by a run-time number", "have one index"),
    Sharing.NOTHING: ("an index that several of them have", "come there"),
}


def find_update(loop: Parallel, forms: Forms, around: Sequence[Sequence[Op]] = ()) -> Race | None:
    """The first update in `loop` whose iterations may share an element; `forms`: what all integers
    are; `around`: the ops before it, of all blocks that it stands in."""
    body = _Body(loop, forms, around)
    if body.count == 1:
        return None
    for store, conditions in body.stores():
        if not body.is_update(store, conditions):
            continue
        sharing = max((body.sharing(i) for i in store.indices), default=Sharing.NOTHING)
        if body.are_apart(store) or (sharing is Sharing.FOLDED and body.are_always_apart(store)):
            continue
        if sharing is Sharing.NOTHING and not all(map(body.hangs_on_data, conditions)):
            continue  # perhaps one iteration only does it
        how, lost = _WORDS[sharing]
        message = (
            f"iterations of T.Parallel update {store.dest.name or 'a buffer'} at {how}: where two "
            f"of them {lost}, one of the results is lost"
        )
        return Race(message, store.loc, sharing is Sharing.READ)
    return None


Conditions = tuple[Value, ...]


class _Body:
    """A loop's body. `own`: what each iteration has for itself; `stored`: what is written in it;
    `made`: the op that made a value, or the loop inside of which it is an argument."""

    def __init__(self, loop: Parallel, forms: Forms, around: Sequence[Sequence[Op]]) -> None:
        self.loop, self.count, self.around = loop, math.prod(loop.extents), around
        self.forms = forms
        self.made = loop.body.defs
        self.own = {*self.made}
        for o in walk(loop.body):
            self.made |= {a: o for region in o.regions for a in region.args}
        self.loaded = {o.source for o in loop.body.every(Load)}
        self.stored: dict[Value, list[Value]] = {}
        for s in loop.body.every(Store):
            self.stored.setdefault(s.dest, []).append(s.value)
        self._behind: dict[Value, set[Value]] = {}
        self._known: dict[Value, Any] | None = None

    def stores(self) -> Iterator[tuple[Store, Conditions]]:
        """Every store, and the conditions around it."""
        for o, around in within(self.loop.body):
            if isinstance(o, Store):
                yield o, tuple(x.cond for x in around if isinstance(x, If))

    def behind(self, v: Value) -> set[Value]:
        """`v`, and all that it is computed from. What is read from a variable is computed from all
        that is stored to it; the arguments of a loop inside from its bounds and what it carries."""
        if v not in self._behind:
            self._behind[v] = _reached([v], self._sources)
        return self._behind[v]

    def _sources(self, v: Value) -> list[Value]:
        """What `v` is computed from directly."""
        o = self.made.get(v)
        if o is None:
            return []
        sources = [*o.operands, *(x for region in o.regions for x in yielded(region))]
        if isinstance(o, Load) and o.source in self.own:
            sources += self.stored.get(o.source, ())
        return sources

    @functools.cached_property
    def _users(self) -> dict[Value, list[Value]]:
        users: dict[Value, list[Value]] = {}
        for v in self.made:
            for x in self._sources(v):
                users.setdefault(x, []).append(v)
        return users

    @functools.cached_property
    def varying(self) -> set[Value]:
        """The values that may differ between iterations."""
        return _reached(self.loop.body.args, self._users.get)

    def is_update(self, store: Store, conditions: Conditions) -> bool:
        """Whether it stores what is computed from the same element, or on a condition about it."""
        if store.dest in self.own or store.dest not in self.loaded:
            return False
        for x in set().union(*map(self.behind, (store.value, *conditions))):
            o = self.made.get(x)
            if isinstance(o, Load) and o.source is store.dest and o.result is x:
                if all(self._same(a, b) for a, b in zip(o.indices, store.indices)):
                    return True
        return False

    def _same(self, a: Value, b: Value) -> bool:
        """Whether two values are computed alike, from places that do not change in between."""
        left = [(a, b)]
        while left:
            a, b = left.pop()
            x, y = self.made.get(a), self.made.get(b)
            if a is b:
                continue
            if x is None or type(x) is not type(y) or x.regions or x.results != (a,):
                return False
            if isinstance(x, Load) and x.source in self.stored and x.source not in self.own:
                return False
            if x.attributes != y.attributes:
                return False
            left += zip(x.operands, y.operands)
        return True

    def sharing(self, v: Value) -> Sharing:
        """What speaks for it that `v` is the same in two iterations."""
        return max(map(self._of, self.behind(v)))

    def _of(self, v: Value) -> Sharing:
        o = self.made.get(v)
        if isinstance(o, Load) and o.source not in self.own and v in self.varying:
            return Sharing.READ
        if isinstance(o, Binary) and o.kind in _FOLDING and v in self.varying:
            return Sharing.FOLDED if self._knows().get(v) is None else Sharing.NOTHING
        return Sharing.NOTHING

    def hangs_on_data(self, condition: Value) -> bool:
        """Whether a condition, or each part of it, is about what is read in each iteration."""
        match self.made.get(condition):
            case Binary(kind="and" | "or", lhs=a, rhs=b):
                return self.hangs_on_data(a) and self.hangs_on_data(b)
            case Unary(kind="not", operand=x):
                return self.hangs_on_data(x)
        return self.sharing(condition) is Sharing.READ

    def _knows(self) -> dict[Value, Any]:
        if self._known is None:
            few = self.count <= LIMIT
            known = evaluate(self.loop, self.forms) if few else {}
            # An argument that varies is not one number in all iterations, nor is what it is behind.
            inside = [a for a, o in self.made.items() if a not in o.results and a in self.varying]
            known |= dict.fromkeys(known.keys() & _reached(inside, self._users.get))
            self._known = known
        return self._known

    def are_apart(self, store: Store) -> bool:
        """Whether the other indices tell all iterations apart. One that nobody can compute here is
        taken to differ wherever the loop's indices in it do."""
        args = self.loop.body.args
        if set(args) <= set(store.indices):
            return True
        known = self._knows()
        clear = [i for i in store.indices if self.sharing(i) is Sharing.NOTHING]
        unknown = [i for i in clear if known.get(i) is None and i in self.varying]
        within = {a for i in unknown for a in args if a in self.behind(i)}
        if not known:  # too many iterations
            return within == set(args)
        indices = [*within, *(i for i in clear if known.get(i))]
        return are_apart(indices, known, self.count, self.forms) is True

    def are_always_apart(self, store: Store) -> bool:
        """Whether the indices tell all iterations apart: by their steps, or for each of a few
        numbers that may come from outside of the loop, as the step of a butterfly
        (`i // s * 2 * s + i % s`) does: where these are any numbers, or as they follow from others
        (`1 << s` beside `s`)."""
        args = self.loop.body.args
        if self._are_apart_by_steps(store):
            return True
        behind = set().union(*map(self.behind, store.indices)).difference(self.made, args)
        outside = {v for x in behind if x.is_integer for v in self.forms.form(x).terms}
        found, made = self._from_outside(outside)
        return self._are_apart_for(store, outside) or (
            bool(made) and self._are_apart_for(store, found, made)
        )

    def _are_apart_by_steps(self, store: Store) -> bool:
        """Whether each index of the loop goes by steps, in one of the store's, that are longer than
        all else there may differ by: `j` in `A[i, j * 2 + (i + n) % 2]`."""
        left = set(self.loop.body.args)
        sums = [self.forms.form(i).terms for i in store.indices if i.is_integer]
        told = left
        while told:
            told = {a for a in left if any(self._tells(terms, a, left) for terms in sums)}
            left = left - told
        return not left

    def _tells(self, terms: Mapping[Value, int], index: Value, left: set[Value]) -> bool:
        """Whether two iterations with the same sum have the same `index`, where they may differ in
        those that are `left`."""
        spread, fixed = 0, set(self.loop.body.args) - left
        for v, factor in terms.items():
            if v is index or v in fixed or v not in self.varying:
                continue
            low, high = self.forms.range(v)
            if low is None or high is None:
                return False
            spread += abs(factor) * (high - low)
        return abs(terms.get(index, 0)) > spread

    def _are_apart_for(self, store: Store, outside: set[Value], before: Sequence[Op] = ()) -> bool:
        """Whether they do for numbers in the place of `outside`, from which `before` makes more."""
        told = [_numbers(*self.forms.range(v)) for v in outside]
        if self.count * math.prod(map(len, told)) > LIMIT:
            return False
        for numbers in itertools.product(*told):
            known = evaluate(self.loop, self.forms, dict(zip(outside, numbers)), before)
            if not are_apart(store.indices, known, self.count, self.forms):
                return False
        return True

    def _from_outside(self, outside: set[Value]) -> tuple[set[Value], list[Op]]:
        """The integers that values from outside of the loop follow from, and the ops that make
        these values of them."""
        needed = {*outside}
        made = list[Op]()
        for o in (o for block in reversed(self.around) for o in reversed(block)):
            if isinstance(o, LINEAR) and o.result in needed:
                if all(v.is_integer for v in o.operands):
                    needed.remove(o.result)
                    needed |= {x for v in o.operands for x in self.forms.form(v).terms}
                    made.append(o)
        return needed, made[::-1]


def _numbers(low: int | None, high: int | None) -> list[int]:
    """A few numbers of a range."""
    found = [n for n in _TRIED if (low is None or low <= n) and (high is None or n <= high)]
    return found or [n for n in (low, high) if n is not None][:1]


def _reached(start: Iterable[Value], near: Callable[[Value], list[Value] | None]) -> set[Value]:
    """The values of `start`, and all that are reached from them."""
    left = [*start]
    found = set(left)
    while left:
        new = [x for x in near(left.pop()) or () if x not in found]
        left += new
        found.update(new)
    return found


def updates_at(loop: Parallel, place: Loc | None) -> bool:
    """Whether what is written at `place` is read there, too: `s[0] += x[i]`."""
    read = {(o.source, o.indices) for o in loop.body.every(Load)}
    return any(
        isinstance(o, Store) and o.loc == place and (o.dest, o.indices) in read
        for o in walk(loop.body)
    )
