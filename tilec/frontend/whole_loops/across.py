"""Sums that go across the rows of a tile, of what its elements give: products of two tiles.

    for s, e in T.Parallel(S, E):               for step in …:
        o = 0.0                                     …                   # `acc` of a tile
        for t in range(L):                          for o, n in T.Parallel(64, 64):
            acc = …  # a sum of products   ->           left[o, n] = T.exp(acc[o, n] - m[o])
            o += T.exp(acc - m) * V[t, e]           for n, c in T.Parallel(64, 128):
        O[s, e] = o / l                                 right[n, c] = V[step * 64 + n, c]
                                                    T.gemm(left, right, sums)

The sums inside do not depend on `e`: a block has them once for all columns of its tile. So it is
with attention, and with two products of matrices in one another.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tilec.frontend.whole_loops.ends import Ends
from tilec.frontend.whole_loops.folds import given_by
from tilec.frontend.whole_loops.nests import (
    Fresh,
    Nest,
    Put,
    changed_by,
    counted,
    elements_of,
    index_of,
    unravelled,
)
from tilec.ir.types import FLOAT32, next_power_of_2
from tilec.support.syntax import conditions_in, copied, every, names_in, parsed, stored_names


class Fold(NamedTuple):
    """What becomes of a statement of a loop, mostly one that folds into a variable: what stands
    before the loop, what is done for each element of a tile that is whole, and of one that sticks
    out, behind each tile, and behind the loop, up to where blocks come together, and from there the
    `last`; `first` in a tile. A scan has a loop of its own over the tile, from which something is
    `carried` to the next one. The `place` of an element, of equal ones the smallest or largest, is
    `found` when it is known what is the most, and put together with what was there, `settled`."""

    before: list[ast.stmt]
    whole: Sequence[str]
    edge: Sequence[str]
    behind: Sequence[str] = ()
    after: Sequence[ast.stmt] = ()
    last: Sequence[ast.stmt] = ()
    first: Sequence[str] = ()
    carried: Sequence[str] = ()
    found: Sequence[ast.stmt] = ()
    place: str = ""
    of_equal: str = ""
    settled: Sequence[ast.stmt] = ()


@dataclass
class Across(Ends):
    """`across`: the index of columns, of which a block has `width`, those of the tile `number`, and
    the one at `c`; `wide`: the variables of which it has one for each."""

    across: str = ""
    width: int = 1
    c: str = ""
    number: str = ""
    wide: set[str] = field(default_factory=set)

    def _go_across(self, most: int) -> bool:
        """Takes the nest apart: no name stands for what depends on the columns; whether that can
        be."""
        extent = self.nest.extents[self.nest.indices.index(self.across)]
        about = self.magnitude(extent)[0]
        self.width = max(16, min(most, next_power_of_2(about) if about else most))
        self.c = self.fresh("c")
        self.nest = _spread(self.nest, self.across)
        ours, count = {self.across}, 0
        while count < len(ours):
            count = len(ours)
            for s in every(ast.Assign | ast.AugAssign | ast.AnnAssign, *self.nest.body):
                target = s.targets[0] if isinstance(s, ast.Assign) else s.target
                if isinstance(target, ast.Name) and s.value and names_in(s.value) & ours:
                    ours.add(target.id)
        self.wide = ours - {self.across}
        for s in self.nest.body:
            inside = s.body if isinstance(s, ast.For) else [s] * isinstance(s, ast.If | ast.Expr)
            for t in inside:
                fold, tests = _under(t)
                changed = changed_by(fold)
                ours_alone = changed is not None and changed[0] in self.wide
                if names_in(t) & ours and not (ours_alone and ours.isdisjoint(names_in(*tests))):
                    return False
        top = {given_by(s)[0] for s in self.nest.body}
        return bool(self.wide) and self.wide <= top

    def _shape_of(self, name: str) -> tuple[int, ...]:
        return (self.outer, self.width) if name in self.wide else (self.outer,)

    def _place_of(self, name: str) -> str:
        at = f"{self.o}, {self.c}" if name in self.wide else self.o
        return f"{self.held[name]}[{at}]"

    def _each(
        self, target: str, value: ast.expr, at: ast.stmt, guarded: bool = False
    ) -> list[ast.stmt]:
        text = f"{target} = {ast.unparse(self._put(value))}"
        if {self.across, self.c}.isdisjoint(names_in(ast.parse(text))):
            return super()._each(target, value, at, guarded)
        guard = f"if {self._inside()} and {self.across} < {self._columns()}: " * guarded
        made = f"""
for {self.o}, {self.c} in {self.language}.Parallel({self.outer}, {self.width}):
    {self._places()}
    {self._column()}
    {guard}{text}
"""
        return parsed(made, at)

    def _of_block(self) -> list[ast.stmt]:
        if not self.across:
            return super()._of_block()
        others = self.nest.indices[:-1]
        extents = [f"({ast.unparse(e)})" for e in self.nest.extents]
        at = others.index(self.across)
        self.number = self.fresh("columns")
        extents[at] = f"{self.language}.ceildiv({extents[at]}, {self.width})"
        names = [self.number if i == self.across else i for i in others]
        text = unravelled(names, extents[:-1], self._numbers()[1])
        return parsed(text, self.nest.body[0])

    def _columns(self) -> str:
        return f"({ast.unparse(self.nest.extents[self.nest.indices.index(self.across)])})"

    def _column(self) -> str:
        return f"{self.across} = {self.number} * {self.width} + {self.c}"

    def _added_across(self, name: str, word: str, value: ast.expr, loop: ast.For) -> Fold | None:
        """A sum of products of what a row and an element give and of what that and a column do."""
        value, tests = self._chosen(value)
        factors = _factors(value)
        right = [f for f in factors if self.across in names_in(f)]
        left = [f for f in factors if f not in right]
        given = {self.nest.indices[-1], *self.held, *self.totals, *stored_names(*loop.body)}
        is_sum = word == "sum" and self.nest.dtype_of(self.sums[name]) is FLOAT32
        if not is_sum or not left or not right:
            return None
        if not given.isdisjoint(names_in(*right)) or self.wide & names_in(*left):
            return None
        if FLOAT32 not in [self.dtype(f, loop.body) for f in factors]:
            return None
        of_columns = [x for x in tests if given.isdisjoint(names_in(x))]
        if any(elements_of(ast.Expr(x)) for x in tests if x not in of_columns):
            return None  # what is left out is multiplied by 0
        t, o, n, c = self.language, self.o, self.n, self.c
        a, b = self.fresh("left"), self.fresh("right")
        own, other = (
            f"{t}.cast({' * '.join(f'({ast.unparse(self._put(f))})' for f in side)}, 'float32')"
            for side in (left, right)
        )
        if tests:
            own = f"{t}.if_then_else({self._all_of(tests)}, {own}, 0.0)"
        begun = f"""
{a} = {t}.alloc_fragment({self.outer, self.inner}, "float32")
{b} = {t}.alloc_shared({self.inner, self.width}, "float32")
"""
        index, extent = index_of(loop), self._range(loop)
        inside = f"{index} < {extent} and {self.across} < {self._columns()}"
        inside += f" and {self._all_of(of_columns)}" * bool(of_columns)
        behind = f"""
for {n}, {c} in {t}.Parallel({self.inner}, {self.width}):
    {index} = {self.step} * {self.inner} + {n}
    {self._column()}
    {b}[{n}, {c}] = {t}.if_then_else({inside}, {other}, 0.0)
{t}.gemm({a}, {b}, {self.held[name]})
"""
        place = f"{a}[{o}, {n}] ="
        edge = f"{place} {t}.if_then_else({self.wanted}, {own}, 0.0)"
        return Fold(parsed(begun, loop), [f"{place} {own}"], [edge], [behind.strip()])

    def _chosen(self, value: ast.expr) -> tuple[ast.expr, list[ast.expr]]:
        """What is added up, and the conditions that `_fold` says so under."""
        tests = list[ast.expr]()
        while True:
            match value:
                case ast.Call(ast.Attribute(ast.Name(module), "if_then_else"), [test, one, _], []):
                    if module == self.language:
                        tests += conditions_in(test)
                        value = one
                        continue
            return value, tests

    def _all_of(self, tests: Sequence[ast.expr]) -> str:
        return " and ".join(f"({ast.unparse(self._put(x))})" for x in tests)


def _under(s: ast.stmt) -> tuple[ast.stmt, list[ast.expr]]:
    """A statement, and the conditions under which it stands alone."""
    tests = list[ast.expr]()
    while isinstance(s, ast.If) and len(s.body) == 1 and not s.orelse:
        tests.append(s.test)
        s = s.body[0]
    return s, tests


def _factors(value: ast.expr) -> list[ast.expr]:
    match value:
        case ast.BinOp(a, ast.Mult(), b):
            return _factors(a) + _factors(b)
        case ast.BinOp(ast.BinOp(_, ast.Mult(), _) as a, ast.Div(), b):
            one = ast.copy_location(ast.Constant(1.0), b)
            return _factors(a) + [ast.copy_location(ast.BinOp(one, ast.Div(), b), b)]
    return [value]


def _spread(nest: Nest, across: str) -> Nest:
    """The nest without names in loops for what depends on columns."""
    body = list[ast.stmt]()
    for s in nest.body:
        if isinstance(s, ast.For):
            puts, inside = dict[str, ast.expr](), list[ast.stmt]()
            for x in s.body:
                made = Put(puts).visit(copied(x))
                match made:
                    case ast.Assign([ast.Name(name)], value) if (
                        across in names_in(value) and changed_by(made) is None
                    ):
                        puts[name] = value
                        continue
                inside.append(made)
            loop = copy.copy(s)
            loop.body = inside
            s = loop
        body.append(s)
    return replace(nest, body=tuple(body))


def with_columns(nest: Nest, fresh: Fresh) -> Nest:
    """The nest with its last loop's iterations as its own, where that has rows of sums inside of
    it and nothing else writes: what stands before it is the same for all of them, though it may
    call something else as the loop calls its index."""
    *before, last = nest.body
    rows = [s for s in last.body if isinstance(s, ast.For)] if isinstance(last, ast.For) else []
    stores = any(isinstance(n.ctx, ast.Store) for n in elements_of(*before))
    if stores or not any(every(ast.For, *(x for s in rows for x in s.body))):
        return nest
    assert isinstance(last, ast.For)
    extent, own = counted(last.iter, nest.named), {*nest.indices, *stored_names(*nest.body)}
    if extent is None or last.orelse or not index_of(last) or names_in(extent) & own:
        return nest
    if any(every(ast.Expr, *before)):
        return nest
    index, body = index_of(last), last.body
    if index in names_in(*before):
        index = fresh(index)
        put = Put({index_of(last): index})
        body = [put.visit(copied(s)) for s in body]
    indices, extents = (*nest.indices, index), (*nest.extents, extent)
    return replace(nest, indices=indices, extents=extents, body=(*before, *body))
