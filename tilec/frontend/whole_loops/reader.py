"""Reads the bodies of loops that add up products (`products`): what is added to which total, what
names stand for, and what a total begins with. And finds sums of products that are no T.gemm, of
which a PerformanceWarning tells.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tilec import language as T
from tilec.frontend.values import as_syntax
from tilec.frontend.whole_loops.nests import (
    Decided,
    Named,
    Nest,
    Put,
    called,
    cast_of,
    chain_of,
    counts_of,
    indices_of,
    is_zero,
    other_operand,
)
from tilec.frontend.whole_loops.operands import Operand
from tilec.frontend.whole_loops.rows import is_pure
from tilec.frontend.whole_loops.terms import added_in
from tilec.support.syntax import copied, every, names_in, placed, stored_names

Added = tuple[ast.expr, ast.expr, Operand, Operand]


def sizes_along(pair: Sequence[Operand], index: str) -> list[ast.expr]:
    """How far the elements in operands go along an index."""
    found = []
    for o in pair:
        for e in o.elements():
            if e.is_along(index) and e.tensor is not None:
                text = f"{e.tensor.id}.shape[{e.where(index)}]"
                found.append(placed(ast.parse(text, mode="eval").body, e.value))
    return found


class Own(NamedTuple):
    """A total, its dtype, and what is added to it."""

    total: ast.Name | ast.Subscript
    dtype: ast.expr
    value: ast.expr

    @property
    def text(self) -> str:
        return ", ".join(map(ast.unparse, (self.total, self.dtype, self.value)))


def _is_plain(own: Own) -> bool:
    return isinstance(own.total, ast.Name) and not [*every(ast.Slice | ast.Dict, own.value)]


@dataclass
class Total:
    """A variable that a loop adds to: what the body calls it, and its dtype; what is added to."""

    total: ast.expr
    added: list[ast.expr] = field(default_factory=list)
    dtype: ast.expr | None = None
    begins: bool = False


class Reader:
    """Reads a body. `names`: the syntax that names stand for, `inside` those that the loop makes;
    `begun`: what stands before the loop, as it is to stand behind it."""

    def __init__(self, named: Named, decided: Decided) -> None:
        self.named, self.decided = named, decided
        self.names: dict[str, ast.expr] = {}
        self.inside: set[str] = set()
        self.totals: dict[str, Total] = {}
        self.begun: list[ast.stmt] = []

    def reads(self, before: Sequence[ast.stmt], inside: Sequence[ast.stmt]) -> bool:
        """Whether a loop does nothing but add to what began before it, and name what it adds."""
        named = []
        for s in inside:
            found = self.added(s)
            if found is None:
                named.append(s)
                continue
            total = self.totals.setdefault(ast.unparse(found[0]), Total(found[0]))
            total.added.append(found[1])
        if not all(map(self._begins, before)) or not all(map(self.note, named)):
            return False
        self.inside = {*stored_names(*named)}
        own = {n for t in self.totals.values() for n in names_in(t.total)}
        values = [v for s in (*self.begun, *named) if (v := getattr(s, "value", None)) is not None]
        return own.isdisjoint(names_in(*values)) and all(t.begins for t in self.totals.values())

    def products(self, outer: Collection[str]) -> tuple[list[Added], list[Own]]:
        """What is added to which total, of which dtype, and what else is, that one operand alone
        says; nothing, where some of it is neither. `outer`: the iterations' indices."""
        made, alone = list[Added](), list[Own]()
        own = {ast.unparse(t.total).split("[")[0] for t in self.totals.values()}
        for t in self.totals.values():
            for sign, term in (x for value in t.added for x in added_in(self.meant(value))):
                if t.dtype is None or own & names_in(term):
                    return [], []
                match term:
                    case ast.BinOp(a, ast.Mult(), b):
                        if sign < 0:
                            a = ast.copy_location(ast.UnaryOp(ast.USub(), a), a)
                        one, other = (self._operand(x) or self._computed(x) for x in (a, b))
                        if one is None or other is None:
                            return [], []
                        if (one.names ^ other.names) & {*outer}:
                            made.append((t.total, t.dtype, one, other))
                            continue
                if sign < 0:
                    term = ast.copy_location(ast.UnaryOp(ast.USub(), term), term)
                assert isinstance(t.total, ast.Name | ast.Subscript)
                alone.append(Own(t.total, t.dtype, term))
        both = {ast.unparse(x[0]) for x in made} & {ast.unparse(x.total) for x in alone}
        pure = not alone or all(
            is_pure(v, self.named) for t in self.totals.values() for v in t.added
        )
        return (made, alone) if pure and not both and all(map(_is_plain, alone)) else ([], [])

    def added(self, s: ast.stmt) -> tuple[ast.expr, ast.expr] | None:
        """What a statement adds to, and what it adds."""
        match s:
            case ast.AugAssign(target, ast.Add(), value):
                return target, value
            case ast.AugAssign(target, ast.Sub(), value):
                return target, ast.copy_location(ast.UnaryOp(ast.USub(), value), value)
            case ast.Assign([target], ast.BinOp(a, ast.Add(), b)):
                found = other_operand(ast.unparse(target), a, b)
                return None if found is None else (target, found)
            case ast.Assign([target], ast.Call(func, [a, b, c], [])):
                if self._called(func) is T.fma and ast.unparse(c) == ast.unparse(target):
                    return target, ast.copy_location(ast.BinOp(a, ast.Mult(), b), s)
        return None

    def _begins(self, s: ast.stmt) -> bool:
        """Reads a statement before the loop: a total's allocation, what it begins with, a name."""
        match s:
            case ast.Assign([ast.Name(name)], ast.Call(func, args, words)) if self._called(
                func
            ) in (T.alloc_var, T.alloc_local, T.alloc_fragment):
                return self._allocated(name, self._called(func), args, words)
            case ast.Expr(ast.Call(func, [ast.Name(name), *value], [])):
                called, zero = self._called(func), ast.copy_location(ast.Constant(0), s)
                if called is T.clear or (called is T.fill and value):
                    return self._starts(f"{name}[0]", (value or [zero])[0])
                return False
            case ast.AnnAssign(ast.Name(name), dtype, ast.expr() as value):
                if name in self.totals:
                    return self._starts(name, value, dtype)
            case ast.Assign([target], value) if (name := ast.unparse(target)) in self.totals:
                if self.totals[name].dtype is not None:
                    return self._starts(name, value)
                cast = self._cast(value)  # which says the dtype
                return (
                    isinstance(target, ast.Name) and cast is not None and self._starts(name, *cast)
                )
        self.begun.append(s)
        return self.note(s)

    def _allocated(
        self, name: str, called: object, args: Sequence[ast.expr], words: Sequence[ast.keyword]
    ) -> bool:
        given: dict[str | None, ast.expr] = {w.arg: w.value for w in words}
        if called is T.alloc_var:
            given |= dict(zip(("dtype", "init"), args))
        else:
            given |= dict(zip(("shape", "dtype"), args))
            one = "shape" in given and ast.unparse(given["shape"]) in ("(1,)", "[1]", "1")
            name = f"{name}[0]" if one else ""
        total, start = self.totals.get(name), given.get("init")
        if total is None or total.dtype is not None:
            return False
        total.dtype = given.get("dtype")
        return start is None or self._starts(name, start)

    def _starts(self, name: str, start: ast.expr, dtype: ast.expr | None = None) -> bool:
        """Notes what a total begins with: it is added behind the loop to what is summed from 0."""
        total = self.totals.get(name)
        if total is None or total.begins:
            return False
        total.begins, total.dtype = True, total.dtype or dtype
        if total.dtype is None or is_zero(start):
            return total.dtype is not None
        cast = ast.copy_location(ast.Call(as_syntax(T.cast), [start, total.dtype], []), start)
        target = copied(total.total)
        assert isinstance(target, ast.Name | ast.Subscript)
        made = ast.AugAssign(target, ast.Add(), cast)
        self.begun.append(ast.copy_location(made, start))
        return is_pure(start, self.named)

    def note(self, s: ast.stmt) -> bool:
        """Notes what a statement gives a name."""
        match s:
            case ast.Assign([ast.Name(name)], value) if is_pure(value, self.named):
                self.names[name] = self.meant(value)
            case ast.AnnAssign(ast.Name(name), dtype, ast.expr() as value) if is_pure(
                value, self.named
            ):
                cast = ast.Call(as_syntax(T.cast), [self.meant(value), dtype], [])
                self.names[name] = ast.copy_location(cast, s)
            case _:
                return False
        return True

    # --- expressions ------------------------------------------------------------------------------

    def meant(self, node: ast.expr) -> ast.expr:
        """An expression without names that stand for others."""
        if not names_in(node) & self.names.keys():
            return node
        made = Put(self.names).visit(copied(node))
        assert isinstance(made, ast.expr)
        return made

    def factors(self, node: ast.expr, inner: str) -> list[Operand]:
        """The elements at places that depend on `inner` of which an expression is the product."""
        match node := self.meant(node):
            case ast.BinOp(a, ast.Mult(), b):
                return self.factors(a, inner) + self.factors(b, inner)
        found, cast = self._operand(node), self._cast(node)
        if found is None and cast is not None:
            return self.factors(cast[0], inner)
        return [found] if found is not None and inner in found.names else []

    def _operand(self, node: ast.expr) -> Operand | None:
        match node:
            case ast.Subscript(ast.Name() as tensor):
                if any(every(ast.Slice, node)) or not is_pure(node, self.named):
                    return None
                return Operand(node, tensor, tuple(indices_of(node)), None)
            case ast.IfExp(test, one, other):
                side = self.decided(test)
                return None if side is None else self._operand(one if side else other)
        cast = self._cast(node)
        found = None if cast is None else self._operand(cast[0])
        if found is None or cast is None or found.dtype is not None:
            return None
        return replace(found, dtype=cast[1])

    def _computed(self, node: ast.expr) -> Operand | None:
        pure = is_pure(node, self.named) and not [*every(ast.Slice | ast.Dict, node)]
        return Operand(node, None, (), None) if pure else None

    def _cast(self, node: ast.expr) -> tuple[ast.expr, ast.expr] | None:
        """What is cast, and to which dtype, which `float` leaves to the element's."""
        match node:
            case ast.Call(func, [ast.Subscript(tensor) as value], []):
                if self._called(func) is float:
                    wide = f"{ast.unparse(tensor)}.dtype == 'float64'"
                    text = f"'float64' if {wide} else 'float32'"
                    return value, placed(ast.parse(text, mode="eval").body, node)
        return cast_of(node, self.named)

    def _called(self, func: ast.expr) -> object:
        return called(func, self.named)


# --- what T.gemm does not give --------------------------------------------------------------------


class Missed(NamedTuple):
    """A statement that adds up products of elements of rows and columns, which are those of
    `tensors`; `inner` are the extents of its loops, or of tensors where these follow from the
    iteration, `why` says what T.gemm does not give."""

    statement: ast.stmt
    tensors: frozenset[str]
    inner: tuple[ast.expr, ...]
    why: str


def missed_product(nest: Nest) -> Missed | None:
    """Such a statement of a nest that is no product."""
    stored = stored_names(*nest.body)
    for s in nest.body:
        if isinstance(s, ast.If):
            for body in (s.body, s.orelse):
                if (missed := missed_product(replace(nest, body=tuple(body)))) is not None:
                    return missed
    for at, loop in enumerate(nest.body):
        if not isinstance(loop, ast.For):
            continue
        chain = chain_of(loop)
        inner, reader = counts_of(chain, nest.named), Reader(nest.named, lambda test: True)
        if inner is None:
            continue
        for s in nest.body[:at]:
            if not {*stored_names(s)} & {n for n in stored if stored.count(n) > 1}:
                reader.note(s)
        indices, extents = zip(*inner)
        whole = (*nest.indices, *indices), (*nest.extents, *extents), tuple(chain[-1].body)
        if (missed := missed_product(Nest(*whole, nest.named))) is not None:
            return missed._replace(why="the loops around it are not done over tiles of such sums")
        within = [s for s in ast.walk(loop) if isinstance(s, ast.stmt)]
        under = {x for s in within if isinstance(s, ast.If) for x in s.body + s.orelse}
        found, others = dict[ast.stmt, list[Operand]](), False
        for s in within:
            added = reader.added(s)
            operands = [] if added is None else reader.factors(added[1], inner[-1][0])
            pairs = itertools.permutations([o.names for o in operands], 2)
            if any({*nest.indices} & a - b and {*nest.indices} & b - a for a, b in pairs):
                found[s] = operands
            elif not isinstance(s, ast.For | ast.If):
                others |= added is not None or not reader.note(s)
        others |= any(stored.count(name) > 1 for name in reader.names)
        for s, operands in found.items():
            why = "its indices or dtypes are not T.gemm's"
            if len(operands) > 2:
                why = f"{len(operands)} factors go with {inner[-1][0]}, and T.gemm takes two"
            elif s in under:
                why = "a condition says what is added"
            elif others:
                why = "the loop does something else, too"
            tensors = frozenset(o.tensor.id for o in operands if o.tensor)
            own, known = {*nest.indices, *stored}, list[ast.expr]()
            for name, extent in inner:
                sizes = [extent] if names_in(extent).isdisjoint(own) else []
                known += sizes or sizes_along(operands, name)[:1]
            return Missed(s, tensors, tuple(known), why)
    return None
