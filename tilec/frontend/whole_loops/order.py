"""What the loops inside of a whole loop are, in the form that tiles read (`folds`).

    for h in range(H):                          for c in range(3):  # as X lies in memory
        for w in range(W):                          for h in range(H):
            for c in range(3):                          for w in range(W):
                if X[b, c, h, w] > 0:      ->               if X[b, c, h, w] > 0:
                    total += X[b, c, h, w]                      total += X[b, c, h, w]
                    count += 1                              if X[b, c, h, w] > 0:
                else:                                           count += 1
                    other -= X[b, c, h, w]                  if not X[b, c, h, w] > 0:
                                                                other += -X[b, c, h, w]
    if X[i, j] > 0:                             found = max(found, X[i, j] > 0)  # bools
        found = True
    for j in range(N - 1, -1, -1):              for k in range(N):  # j is N - 1 - k (`counting`)
        a, b = X[i, j], Y[i, j]                     a = X[i, N - 1 - k]; b = Y[i, N - 1 - k]
    if S[i] > 0:                                for j in range(N):
        for j in range(N):                          if S[i] > 0:
            total += X[i, j]                            total += X[i, j]

Nothing is lost where folds are all that the loops do, in any order, and elements that all of their
indices name; who reads this form asks for that (`Rows._read`).
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tilec.frontend.values import Scalar
from tilec.frontend.whole_loops.anew import BeginsAnew
from tilec.frontend.whole_loops.counting import counted_from, number_in, plus
from tilec.frontend.whole_loops.folds import Folds
from tilec.frontend.whole_loops.joined import joined
from tilec.frontend.whole_loops.nests import (
    Nest,
    Put,
    chain_of,
    changed_by,
    fresh_name,
    index_of,
    stored_tensors,
)
from tilec.frontend.whole_loops.once import with_sums_of_one
from tilec.frontend.whole_loops.rows import is_pure
from tilec.ir.types import BOOL
from tilec.support.syntax import (
    all_of,
    copied,
    every,
    headed,
    name_nodes,
    names_in,
    parsed,
    placed,
    stored_names,
)

_SIDES: dict[type[ast.AST], str] = {  # which of two bools is left
    ast.Or: "max", ast.BitOr: "max", ast.And: "min", ast.BitAnd: "min",
}  # fmt: skip
_FOLDING = (ast.Add, ast.Sub, ast.Mult, ast.BitOr, ast.BitAnd, ast.BitXor)


def one_by_one(nest: Nest, used: set[str], apart: bool = True) -> Nest:
    """The nest with one assignment for each name: of `a, b = x, y`, by way of other names, not
    `used`, where `y` reads `a`, and of `a = b = 0`; and with all loops from 0 by 1. `apart`: one
    side is left of conditions that are decided, and others are in loops where they stood around
    them: what is made for other statements there is made whether they hold or not."""
    one = _OneByOne(nest, {*used}, apart)
    made = [one.visit(copied(s)) for s in nest.body]
    body = tuple(x for s in made for x in (s if isinstance(s, list) else [s]))
    body = tuple(x for x in body if not isinstance(x, ast.Pass)) or body
    return with_sums_of_one(replace(nest, body=body) if one.changed else nest)


def in_ways(nest: Nest, used: set[str]) -> Iterator[Nest]:
    """The nest `one_by_one`: with a condition around all of it where it stands, if there is one,
    which may be that of whole tiles; then with all conditions around loops in these."""
    match nest.body:
        case [ast.If(test)] if nest.decided(test) is None:
            yield one_by_one(nest, used, apart=False)
    yield one_by_one(nest, used)


class _OneByOne(BeginsAnew):
    def __init__(self, nest: Nest, used: set[str], apart: bool) -> None:
        super().__init__(nest)
        self.used, self.decided = used, nest.decided if apart else None
        self.written = stored_tensors(*nest.body)
        self.names = [n.id for n in name_nodes(*nest.body)]

    def fresh(self, base: str) -> str:
        self.used.add(name := fresh_name(base, self.used))
        return name

    def visit_Assign(self, s: ast.Assign) -> ast.AST | list[ast.stmt]:
        pairs: list[tuple[ast.expr, ast.expr]]
        match s:
            case ast.Assign([ast.Tuple(targets)], ast.Tuple(values)):
                names = [_assigned(t) for t in targets]
                if len(names) != len(values) or "" in names:
                    return s
                read = (names_in(value) for value in values)
                pairs = [*zip(targets, values)]
                if any(reads & {*names[:at]} for at, reads in enumerate(read)):
                    others = [self.fresh(name.lower()) for name in names]
                    made, kept = ([ast.Name(o, c()) for o in others] for c in (ast.Store, ast.Load))
                    for n in (*made, *kept):
                        ast.copy_location(n, s)
                    pairs = [*zip(made, values), *zip(targets, kept)]
            case ast.Assign(
                [_, _, *_] as targets, ast.Constant() | ast.UnaryOp(_, ast.Constant()) as value
            ):
                pairs = [(target, value) for target in targets]
            case ast.Assign([ast.Name() as target], ast.BinOp(a, ast.Add() as op, b)):
                return (
                    self._begun_anew(s, target, op, a, b)
                    or self._begun_anew(s, target, op, b, a)
                    or s
                )
            case ast.Assign([ast.Name() as target], value):
                return self._one_of(s, target, self._choice(value)) or s
            case _:
                return s
        self.changed = True
        return [ast.copy_location(ast.Assign([t], v), s) for t, v in pairs]

    def visit_If(self, s: ast.If) -> ast.AST | list[ast.stmt]:
        if made := self._one_of_sides(s):
            return made
        known = None if self.decided is None else self.decided(s.test)
        if known is not None:
            self.changed = True
            side = ast.Module(s.body if known else s.orelse, [])
            self.generic_visit(side)
            return side.body or [ast.copy_location(ast.Pass(), s)]
        inside = [n.id for n in name_nodes(s)]
        own = {n for n in stored_names(s) if inside.count(n) == self.names.count(n)}
        self.generic_visit(s)
        changed = {*stored_names(s), *self.written}
        if self.decided is None or not any(every(ast.For, s)):
            return s
        if not changed.isdisjoint(names_in(s.test)) or not is_pure(s.test, self.named):
            return s
        self.changed = True
        other = ast.copy_location(ast.UnaryOp(ast.Not(), s.test), s.test)
        sides = (s.test, s.body), (other, s.orelse)
        return [
            t if self._makes(t, own) else _inside(t, test) for test, side in sides for t in side
        ]

    def _makes(self, s: ast.stmt, own: set[str]) -> bool:
        """Whether a statement does nothing but give such names values."""
        within = [x for x in ast.walk(s) if isinstance(x, ast.stmt)]
        plain = all(isinstance(x, ast.For | ast.Assign | ast.AugAssign) for x in within)
        values = [x.value for x in within if isinstance(x, ast.Assign | ast.AugAssign)]
        pure = all(is_pure(v, self.named) for v in values)
        stores = any(isinstance(e.ctx, ast.Store) for e in every(ast.Subscript, s))
        return plain and pure and not stores and {*stored_names(s)} <= own

    def visit_For(self, s: ast.For) -> ast.AST | list[ast.stmt]:
        self.generic_visit(s)
        if self.decided is not None and all(isinstance(x, ast.Pass) for x in s.body):
            return []
        found, index = counted_from(s.iter, self.named), index_of(s)
        loops = [x for x in every(ast.For, *self.nest.body) if index_of(x) == index]
        inside = [n for x in loops for n in name_nodes(x) if n.id == index]
        everywhere = sum(n.id == index for n in name_nodes(*self.nest.body))
        set_by = sum(isinstance(n.ctx, ast.Store) for n in inside)
        if found is None or set_by != len(loops) or len(inside) != everywhere or s.orelse:
            return s
        extent, begin, step = found
        read = ast.Tuple([extent, begin], ast.Load())
        numbers = map(self.named, name_nodes(read))
        unsigned = any(isinstance(x, Scalar) and x.dtype.kind == "uint" for x in numbers)
        if unsigned or names_in(read) & {*stored_names(*s.body)} or any(every(ast.Subscript, read)):
            return s
        self.changed = True
        count, name = ast.unparse(extent), self.fresh(index)
        if step == -1:
            at = f"({ast.unparse(begin)}) - {name}"
        else:
            at = f"{name}{f' * {step}' * (step != 1)} + ({ast.unparse(begin)})"
        number = ast.parse(at, mode="eval").body
        if (first := number_in(begin)) is not None and step != -1:
            assert isinstance(number, ast.BinOp)
            number = plus(number.left, first)
        put = _Number({index: number})
        made: ast.For = headed(f"for {name} in range({count}):", [*map(put.visit, s.body)], s)
        assert isinstance(made.iter, ast.Call) and isinstance(s.iter, ast.Call)
        made.iter.func = s.iter.func  # `range`, as the author calls it
        return made


class _Number(Put):
    """Puts what is counted in the place of an index, and adds numbers up: of `j - 1` where `j` is
    `k + 1` only `k` is left."""

    def __init__(self, given: Mapping[str, ast.expr]) -> None:
        super().__init__(given)
        self.made = list[ast.expr]()

    def visit(self, node: ast.AST) -> Any:
        made = super().visit(node)
        self.made += [made] if made is not node else []
        return made

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        n = number_in(node.right)
        if n is None or node.left not in self.made or not isinstance(node.op, ast.Add | ast.Sub):
            return node
        return placed(plus(node.left, n if isinstance(node.op, ast.Add) else -n), node)


def _inside(s: ast.stmt, test: ast.expr) -> ast.stmt:
    """A statement under a condition, which loops in one another ask last."""
    if isinstance(s, ast.For) and not s.orelse:
        inner = chain_of(s)[-1]
        if not inner.orelse:
            inner.body = [ast.copy_location(ast.If(test, inner.body, []), inner)]
            return s
    return ast.copy_location(ast.If(test, [s], []), s)


def _assigned(target: ast.expr) -> str:
    """The name, or the tensor, that an assignment changes; "" for anything else."""
    match target:
        case ast.Name(name) | ast.Subscript(ast.Name(name)):
            return name
    return ""


def in_order(folds: Folds) -> Nest:
    """The nest of what reads folds, with its loops in order."""
    return replace(folds.nest, body=tuple(map(_Simple(folds).statement, folds.nest.body)))


class _Simple:
    """`kept`: the variables that loops may fold into, with their dtypes; `names`: all in a nest."""

    def __init__(self, folds: Folds) -> None:
        self.folds, self.kept, self.language = folds, folds.sums, folds.language
        self.dtype, self.dtype_of = folds.dtype, folds.nest.dtype_of
        self.names = [n.id for n in name_nodes(*folds.nest.body)]

    def statement(self, s: ast.stmt) -> ast.stmt:
        match s:
            case ast.For():
                return self.loop(s)
            case ast.AugAssign(ast.Subscript() as place, op, value):
                own = ast.copy_location(ast.Subscript(place.value, place.slice, ast.Load()), place)
                made = ast.copy_location(ast.BinOp(own, op, value), s)
                return ast.copy_location(ast.Assign([place], made), s)
            case ast.AugAssign(ast.Name(name) as target, op, value) if name not in self.kept:
                read = ast.copy_location(ast.Name(name, ast.Load()), target)
                made = ast.copy_location(ast.BinOp(read, op, value), s)
                return ast.copy_location(ast.Assign([target], made), s)
        return s

    def loop(self, s: ast.For) -> ast.For:
        chain = chain_of(s)
        body = list[ast.stmt]()
        for t in chain[-1].body:
            body += self.chosen(t, body) or self.parts(t)
        body = joined(body, self.folds)
        if not any(c.orelse for c in chain):
            chain = _as_in_memory(chain)
        for c in reversed(chain):
            made = copy.copy(c)
            made.body = body
            body = [made]
        return made

    def chosen(self, s: ast.stmt, before: Sequence[ast.stmt]) -> list[ast.stmt]:
        """Of a condition that gives other numbers of their dtypes to names of the statements
        `before` it, or adds to them, each as what is chosen; none for anything else."""
        made = list[ast.stmt]()
        if not isinstance(s, ast.If):
            return made
        test, named = ast.unparse(s.test), stored_names(*before)
        for t, taken in ((t, side is s.body) for side in (s.body, s.orelse) for t in side):
            match self.statement(t):
                case ast.Assign([ast.Name(name)], value):
                    pass
                case _:
                    return []
            dtype = self.dtype(value, before)
            if name in self.kept or name not in named or dtype is None:
                return []
            if dtype is not self.dtype(ast.Name(name), before):
                return []
            if name in names_in(s.test) and len(s.body + s.orelse) > 1:
                return []  # which would be asked of the new number
            sides = [ast.unparse(value), name][:: 1 if taken else -1]
            choice = f"{self.language}.if_then_else({test}, {', '.join(sides)})"
            made += parsed(f"{name} = {choice}", t)
        return made

    def parts(self, s: ast.stmt, tests: Sequence[ast.expr] = ()) -> list[ast.stmt]:
        """A statement; of a condition around folds alone, one around each."""
        if isinstance(s, ast.If):
            if (both := self._of_both(s)) is not None:
                return self.parts(both, tests)
            s = self._without_names(s)
            if not all(map(self._folds, ast.walk(s))):
                return [s]
            other = ast.copy_location(ast.UnaryOp(ast.Not(), s.test), s.test)
            sides = ((s.test, s.body), (other, s.orelse))
            return [x for test, body in sides for t in body for x in self.parts(t, [*tests, test])]
        s = self._sum(self.statement(s))
        s, tests = self._truth(s, tests)
        if not tests:
            return [s]
        if isinstance(s, ast.Pass):
            return []
        test = ast.copy_location(all_of(tests), s)
        return [ast.copy_location(ast.If(test, [s], []), s)]

    def _without_names(self, s: ast.If) -> ast.If:
        """A condition without names of its own: what they stand for is in their place."""
        made = copy.copy(s)
        for side in ("body", "orelse"):
            puts, body = dict[str, ast.expr](), list[ast.stmt]()
            for t in getattr(s, side):
                t = Put(puts).visit(copied(t))
                match t:
                    case ast.If():
                        t = self._without_names(t)
                    case ast.Assign([ast.Name(name)], value) if name not in self.kept:
                        inside = [n.id for n in name_nodes(*getattr(s, side))]
                        once = stored_names(*getattr(s, side)).count(name) == 1
                        own = inside.count(name) == self.names.count(name)
                        if once and own and names_in(value).isdisjoint(stored_names(s)):
                            puts[name] = value
                            continue
                body.append(t)
            setattr(made, side, body)
        return made

    def _of_both(self, s: ast.If) -> ast.stmt | None:
        """What either side adds to one float, or multiplies it by, as one of both."""
        if len(s.body) != 1 or len(s.orelse) != 1:
            return None
        match changed_by(s.body[0]), changed_by(s.orelse[0]):
            case (name, op, one), (other, again, two):
                dtype = self.dtype_of(self.kept[name]) if name in self.kept else None
                same = name == other and type(op) is type(again)
                if same and isinstance(op, ast.Add | ast.Mult) and dtype and dtype.is_float:
                    sides = ", ".join(map(ast.unparse, (s.test, one, two)))
                    chosen = f"{self.language}.if_then_else({sides})"
                    (made,) = parsed(f"{name} += {chosen}", s)
                    assert isinstance(made, ast.AugAssign)
                    made.op = op
                    return made
        return None

    def _folds(self, n: ast.AST) -> bool:
        """Whether a statement, or what is none, is a fold or has some under a condition."""
        match n:
            case ast.AugAssign(ast.Name(name), op, _):
                return name in self.kept and isinstance(op, _FOLDING)
            case ast.Assign([ast.Name(name)], ast.Constant(bool())):
                return name in self.kept
            case ast.Assign([ast.Name(name)], value):
                return name in self.kept and name in names_in(value)
        return isinstance(n, ast.If | ast.Pass) or not isinstance(n, ast.stmt)

    def _sum(self, s: ast.stmt) -> ast.stmt:
        """A difference as the sum that it is."""
        match s:
            case ast.AugAssign(ast.Name(name), ast.Sub(), value):
                pass
            case ast.Assign([ast.Name(name)], ast.BinOp(ast.Name(old), ast.Sub(), value)):
                if old != name:
                    return s
            case _:
                return s
        dtype = self.dtype_of(self.kept[name]) if name in self.kept else None
        if dtype is None or (dtype.is_int and not self._is_int(value)):
            return s
        text = f"{name} += -{self.language}.cast({ast.unparse(value)}, {dtype.name!r})"
        return parsed(text, s)[0]

    def _truth(self, s: ast.stmt, tests: Sequence[ast.expr]) -> tuple[ast.stmt, Sequence[ast.expr]]:
        """`a = a or x`, `a |= x` or, under tests, `a = True` as the larger of bools, `and` as the
        smaller; with the tests that are left."""
        name, others = "", list[ast.expr]()
        op: ast.operator | ast.boolop = ast.Or()
        match s:
            case ast.AugAssign(ast.Name(name), op, value):
                others = [value]
            case ast.Assign([ast.Name(name)], ast.BinOp(a, op, b)):
                others = _without(name, [a, b])
            case ast.Assign([ast.Name(name)], ast.BoolOp(op, values)):
                others = _without(name, values)
            case ast.Assign([ast.Name(name)], ast.Constant(bool() as known)) if tests:
                others, tests = [ast.BoolOp(ast.And(), [*tests, ast.Constant(True)])], ()
                if not known:
                    op, others = ast.And(), [ast.UnaryOp(ast.Not(), others[0])]
        word = _SIDES.get(type(op))
        dtype = self.dtype_of(self.kept[name]) if name in self.kept else None
        if dtype is not BOOL or word is None or not others:
            return s, tests
        both = ast.Or() if word == "max" else ast.And()
        asked = ast.unparse(others[0] if len(others) == 1 else ast.BoolOp(both, others))
        text = f"{name} = {self.language}.{word}({name}, {self.language}.cast({asked}, 'bool'))"
        return parsed(text, s)[0], tests

    def _is_int(self, value: ast.expr) -> bool:
        """Whether it is known to be: the negative of what is cut off is another number."""
        if isinstance(value, ast.Constant):
            return isinstance(value.value, int)
        found = self.dtype(value, ())
        return found is not None and found.is_int


def _without(name: str, values: Sequence[ast.expr]) -> list[ast.expr]:
    """Those of `values` that are not the variable; none where it is not one of them."""
    others = [v for v in values if not (isinstance(v, ast.Name) and v.id == name)]
    return others if len(others) == len(values) - 1 else []


def _as_in_memory(chain: list[ast.For]) -> list[ast.For]:
    """Loops in one another in the order of the indices of the element that names most of them."""
    targets = [index_of(c) for c in chain]
    found = [x for x in _plain_indices(chain[-1].body) if {*x} >= {*targets}]
    if not all(targets) or not found:
        return chain
    return [chain[targets.index(name)] for name in found[0] if name in targets]


def across_rows(nest: Nest) -> Nest:
    """Iterations whose last index is the last one of no element, where another one is: in the order
    of the indices of the first element that names them all."""
    found = [x for x in _plain_indices(nest.body) if {*x} >= {*nest.indices}]
    last = {x[-1] for x in _plain_indices(nest.body)}
    if not found or nest.indices[-1] in last or found[0][-1] not in nest.indices:
        return nest
    order = [nest.indices.index(name) for name in found[0] if name in nest.indices]
    return replace(
        nest,
        indices=tuple(nest.indices[k] for k in order),
        extents=tuple(nest.extents[k] for k in order),
    )


def _plain_indices(body: Sequence[ast.stmt]) -> list[list[str]]:
    """The indices of elements of matrices, "" for what is no name; no name stands there twice."""
    found = []
    for n in (n for s in body for n in ast.walk(s)):
        if isinstance(n, ast.Subscript) and isinstance(n.slice, ast.Tuple):
            names = [i.id if isinstance(i, ast.Name) else "" for i in n.slice.elts]
            if names and len({*names} - {""}) == sum(map(bool, names)):
                found.append(names)
    return found
