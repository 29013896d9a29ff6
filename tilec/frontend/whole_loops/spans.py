"""How far sums of products go in one tile, where conditions say so of rows or columns.

    for k in range(i + 1):                      for k in range(L.shape[1]):
        acc += L[i, k] * B[k, j]        ->          if k < i + 1:
                                                        acc += L[i, k] * B[k, j]

A condition is an operand that is 0 where it does not hold. What no row of a tile adds, by what
`k < i + 1` says of the largest `i` that it has, is no part of its sum; so is none of a tile whose
rows and columns all fail a condition around the sum, `if j <= i`.

    for d in range(2 * w + 1):                  for k in range(X.shape[0]):
        k = i + d - w                               if 0 <= k - i + w < 2 * w + 1:
        if 0 <= k < M:                  ->              acc += D[i, k - i + w] * X[k, j]
            acc += D[i, d] * X[k, j]

A sum along a diagonal, of which the columns' operand depends on rows, goes by what that one is at.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from tilec import language as T
from tilec.frontend.whole_loops.nests import Named, Put
from tilec.frontend.whole_loops.operands import Operand, sides_of
from tilec.frontend.whole_loops.terms import Terms, added_in, sum_of, without
from tilec.support.syntax import copied, names_in

Bound = tuple[str, int]
"""A sum of a text, which may be empty, and a number."""
Range = tuple[Bound, Bound]


@dataclass(frozen=True)
class Most:
    """The largest value of an expression as text: `ranges` are the smallest and the largest values
    of names in it, `say` gives the text of what depends on none of these."""

    ranges: Mapping[str, Range]
    named: Named
    say: Callable[[ast.expr], str]

    def of(self, terms: Terms) -> str | None:
        """That of what `terms` add up to."""
        found = self._sum(terms)
        return None if found is None else _text(found)

    def _sum(self, terms: Terms) -> Bound | None:
        made, number = "", 0
        for sign, node in terms:
            found = self._of(node)
            if found is None:
                return None
            text, more = found[1] if sign > 0 else found[0]
            number += sign * more
            if text:
                made += f" {'+' if sign > 0 else '-'} {text}" if made or sign < 0 else text
        return f"({made.strip()})" if " " in made else made, number

    def _of(self, node: ast.expr) -> Range | None:
        match node:
            case ast.Constant(int(n)):
                return ("", n), ("", n)
            case _ if names_in(node).isdisjoint(self.ranges):
                return ((text := f"({self.say(node)})"), 0), (text, 0)
            case ast.Name(name):
                return self.ranges[name]
            case ast.BinOp(_, ast.Add() | ast.Sub(), _) | ast.UnaryOp(ast.USub(), _):
                high = self._sum(added_in(node))
                less = self._sum([(-sign, x) for sign, x in added_in(node)])
                if less is None or high is None:
                    return None
                return (f"(-{less[0]})" if less[0] else "", -less[1]), high
            case ast.BinOp(a, ast.Mult() | ast.FloorDiv() as op, ast.Constant(int(n))) if n > 0:
                found, word = self._of(a), "*" if isinstance(op, ast.Mult) else "//"
                if found is None:
                    return None
                low, high = ((f"({_text(x)} {word} {n})", 0) for x in found)
                return low, high
            case ast.Call(func, [_, *_] as args, []) if self._is_end(func):
                parts = [x for x in map(self._of, args) if x is not None]
                if len(parts) < len(args):
                    return None
                both = zip(*parts)
                low, high = ((f"{self.say(func)}({', '.join(map(_text, x))})", 0) for x in both)
                return low, high
        return None

    def _is_end(self, func: ast.expr) -> bool:
        return any(self.named(func) is word for word in (T.min, T.max, min, max))


def _text(bound: Bound) -> str:
    text, number = bound
    if not number:
        return text or "0"
    return f"({text} {'+' if number > 0 else '-'} {abs(number)})" if text else f"({number})"


def limits(test: ast.expr, index: str) -> list[tuple[int, Terms]]:
    """What a condition says of `index`: that it is below (1), or at or above (-1), what terms add
    up to, or (0), of what it does not say of it, that they are more than 0."""
    found = []
    for low, value, high in sides_of(test):
        less, more, one = (low, value, 1) if low is not None else (value, high, 0)
        assert less is not None and more is not None
        terms = added_in(more) + added_in(less, -1) + [(1, ast.Constant(one))]
        times, rest = without(index, terms)
        if times == 0 and index not in names_in(*(x for _, x in terms)):
            found.append((0, rest))
        elif times == -1:
            found.append((1, rest))
        elif times == 1:  # index > -rest
            found.append((-1, [*((-s, x) for s, x in rest), (1, ast.Constant(1))]))
    return found


def weakened(test: ast.expr, index: str, most: Most) -> list[ast.expr]:
    """What a condition says of `index` for all values of other names."""
    made = []
    for way, terms in limits(test, index):
        end = most.of(terms if way > 0 else [(-s, x) for s, x in terms])
        if end is not None and way:
            made.append(f"{index} < {end}" if way > 0 else f"{index} >= (-{end})")
    return [ast.copy_location(ast.parse(x, mode="eval").body, test) for x in made]


def span_of(
    tests: Collection[ast.expr], guards: Collection[ast.expr], index: str, most: Most
) -> tuple[list[str], list[str], list[str]]:
    """Where the part of a sum along `index` that conditions leave of a tile begins, where it ends,
    and what is more than 0 where there is any."""
    begins, ends, some = list[str](), list[str](), list[str]()
    for test in tests:
        for way, terms in limits(test, index):
            end = most.of(terms if way > 0 else [(-s, x) for s, x in terms])
            if end is not None and way:
                (ends if way > 0 else begins).append(end if way > 0 else f"(-{end})")
    for test in guards:
        found = [most.of(terms) for way, terms in limits(test, index) if way == 0]
        some += [x for x in found if x is not None]
    return begins, ends, some


@dataclass(frozen=True)
class Turn:
    """A sum that goes by an element's place, `index`: it was `sign` times what that was before,
    plus `rest`; as far as `extent`, where the element is outside of its tensor from."""

    index: str
    at: str
    before: ast.expr
    extent: ast.expr

    def of(self, node: ast.expr) -> ast.expr:
        """An expression by the new index."""
        made = Put({self.at: self.index, self.index: self.before}).visit(copied(node))
        assert isinstance(made, ast.expr)
        return made

    def operand(self, o: Operand) -> Operand:
        indices = tuple(map(self.of, o.indices))
        return replace(o, value=self.of(o.value), indices=indices)

    def inside(self, extent: ast.expr) -> ast.expr:
        """The condition that the sum has such an iteration, of `extent` it had."""
        zero, both = ast.Constant(0), [copied(self.before), copied(extent)]
        made = ast.Compare(zero, [ast.LtE(), ast.Lt()], both)
        return ast.fix_missing_locations(ast.copy_location(made, extent))


def turns_of(
    operands: Sequence[Operand], inner: Collection[str], outer: Collection[str]
) -> list[Turn]:
    """How sums may go by a place of an operand that depends on one of `inner` and on indices of
    `outer`, as no other place of it does."""
    found = []
    for o in operands:
        for d, at in enumerate(o.indices):
            names, others = names_in(at), names_in(*o.indices[:d], *o.indices[d + 1 :])
            own, moved = names & {*inner}, names & {*outer}
            if len(own) != 1 or not moved or (own | moved) & others or o.tensor is None:
                continue
            (index,) = own
            sign, rest = without(index, added_in(at))
            if abs(sign) == 1:
                name = ast.Name(index, ast.Load())
                before = sum_of([(sign, name), *((-sign * s, x) for s, x in rest)], at)
                shape = ast.Attribute(copied(o.tensor), "shape", ast.Load())
                extent = ast.Subscript(shape, ast.Constant(d), ast.Load())
                ast.fix_missing_locations(ast.copy_location(extent, at))
                found.append(Turn(index, ast.unparse(at), before, extent))
    return found
