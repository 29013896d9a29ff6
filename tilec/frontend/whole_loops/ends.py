"""Where loops over tiles end that have an end for each row, and for each batch.

    for i in T.Parallel(M):                     for o in T.Parallel(64):
        most = -T.infinity("float32")               i = block * 64 + o
        for s in range(i + 1):                      ends[o] = T.if_then_else(i < M, i + 1, 0)
            acc = …  # a sum of products        T.reduce_max(ends, last, dim=0)
            most = T.max(most, acc)      ->     for step in T.Pipelined(T.ceildiv(last[0], 64)):
        L[i] = most                                 …  # `acc` of a tile
                                                    for o, n in T.Parallel(64, 64):
                                                        s = step * 64 + n
                                                        if s < ends[o]: …

A block goes as far as the longest of its rows; of the others what lies behind their end is no part
of what they fold. An end that is the same for all rows of a block is one of its numbers.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tilec import language as T
from tilec.frontend.whole_loops.folds import given_by
from tilec.frontend.whole_loops.nests import (
    Nest,
    counted,
    elements_of,
    index_of,
    no_less,
    stored_tensors,
    with_ends,
)
from tilec.frontend.whole_loops.rows import is_pure
from tilec.frontend.whole_loops.tile_places import TilePlaces
from tilec.ir.types import DType
from tilec.support.syntax import all_of, conditions_in, copied, names_in, parsed, stored_names

_SMALLEST = (min, max, T.min, T.max)


def with_ends_of_rows(nest: Nest) -> Nest:
    """The nest with what follows from its indices in place of names for it in the extents of its
    loops; of conditions whose side is known that. Where a loop does nothing but what it does before
    an end, `for s in range(S): if s < n: …`, it ends there."""
    stored = {*stored_names(*nest.body), *stored_tensors(*nest.body)}
    ends = _Ends(nest)
    body = tuple(ends.visit(copied(s)) for s in nest.body)
    nest = replace(nest, body=body) if ends.changed else nest

    def is_known(e: ast.expr) -> bool:
        return is_pure(e, nest.named) and stored.isdisjoint(names_in(e))

    return replace(nest, body=with_ends(nest, is_known))


class _Ends(ast.NodeTransformer):
    def __init__(self, nest: Nest) -> None:
        self.nest, self.changed = nest, False

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        self.generic_visit(node)
        side = self.nest.decided(node.test)
        self.changed |= side is not None
        return node if side is None else node.body if side else node.orelse

    def visit_For(self, s: ast.For) -> ast.AST:
        self.generic_visit(s)
        extent, smaller = counted(s.iter, self.nest.named), ast.Name("min", ast.Load())
        if extent is None or s.orelse or self.nest.named(smaller) is not min:
            return s
        match s.body:
            case [ast.If(test, body, [])]:
                tests = conditions_in(test)
            case _:
                return s
        found = [(t, self._end_of(t, s)) for t in tests]
        ends = [e for _, e in found if e is not None]
        left = [t for t, e in found if e is None]
        if not ends or not isinstance(s.iter, ast.Call):
            return s
        self.changed = True
        if left:
            body = [ast.copy_location(ast.If(all_of(left), body, []), s.body[0])]
        s.body = body
        s.iter.args[-1] = ast.Call(smaller, [extent, *ends], [])
        ast.copy_location(s.iter.args[-1], extent)
        ast.fix_missing_locations(s)
        return s

    def _end_of(self, test: ast.expr, s: ast.For) -> ast.expr | None:
        """Where a loop ends all of whose iterations ask whether they are before it."""
        at: ast.expr
        end: ast.expr
        match test:
            case ast.Compare(at, [ast.Lt()], [end]) | ast.Compare(end, [ast.Gt()], [at]):
                pass
            case ast.Compare(at, [ast.LtE()], [last]) | ast.Compare(last, [ast.GtE()], [at]):
                end = ast.copy_location(ast.BinOp(last, ast.Add(), ast.Constant(1)), last)
            case _:
                return None
        if not (isinstance(at, ast.Name) and at.id == index_of(s)):
            return None
        changed = {*stored_names(s), *stored_tensors(*self.nest.body)}
        ours = self._is_int(end) and is_pure(end, self.nest.named)
        return end if ours and changed.isdisjoint(names_in(end)) else None

    def _is_int(self, e: ast.expr) -> bool:
        match e:
            case ast.Constant(number):
                return isinstance(number, int)
            case ast.Name(name) if name in self.nest.indices:
                return True
            case ast.Name(name) if name in (stored := stored_names(*self.nest.body)):
                given = dict(map(given_by, self.nest.body)).get(name)
                return stored.count(name) == 1 and given is not None and self._is_int(given)
            case ast.BinOp(a, ast.Add() | ast.Sub() | ast.Mult() | ast.FloorDiv(), b):
                return self._is_int(a) and self._is_int(b)
            case ast.Call(func, args, []) if any(self.nest.named(func) is x for x in _SMALLEST):
                return all(map(self._is_int, args))
            case ast.Subscript(ast.Name(tensor)):
                found = self.nest.dtype_of(ast.parse(f"{tensor}.dtype", mode="eval").body)
                return found is not None and found.is_int
        value = self.nest.named(e)
        dtype = getattr(value, "dtype", None)
        return isinstance(value, int) or (isinstance(dtype, DType) and dtype.is_int)


class End(NamedTuple):
    """The fragments of an end: that of each row, and of one element each the last and the first of
    these."""

    rows: str
    last: str
    first: str


@dataclass
class Ends(TilePlaces):
    """`ends`: of rows, by their texts."""

    ends: dict[str, End] = field(default_factory=dict)

    def _is_end(self, chain: Sequence[ast.For], across: str) -> bool:
        """Whether the extents of loops in one another follow from what a block knows: all of them
        from the indices that its rows share, and the last from those of rows, too. What is not
        added up across rows is multiplied by 0 there: so of elements it is not."""
        *others, row = self.nest.indices
        for s in chain:
            extent = counted(s.iter, self.nest.named)
            if extent is None:
                return False
            own = self.own & names_in(extent)
            if not own:
                continue
            last = s is chain[-1] and not (across and elements_of(ast.Expr(extent)))
            shared = {*others, *[row] * last} - {across}
            dtype = self.dtype(extent, ())
            if not (self.totals and own <= shared and self._is_pure(extent)):
                return False
            written = stored_tensors(*self.nest.body)
            if written & names_in(extent) or (dtype is not None and dtype.is_float):
                return False
        return True

    def _ends_of_rows(self, loops: Sequence[ast.For]) -> list[ast.stmt]:
        """What a block knows of these before its loops, each the last of those in one another."""
        made, t = list[ast.stmt](), self.language
        for s in loops:
            extent = self._extent(s)
            text = ast.unparse(extent)
            if not self.totals or self.nest.indices[-1] not in names_in(extent):
                continue
            if text in self.ends:
                continue
            end = self.ends[text] = End(*map(self.fresh, ("ends", "last", "first")))
            made += parsed(
                f"""
{end.rows} = {t}.alloc_fragment(({self.outer},), "int32")
{end.last}, {end.first} = {t}.alloc_fragment((1,), "int32"), {t}.alloc_fragment((1,), "int32")
for {self.o} in {t}.Parallel({self.outer}):
    {self._places()}
    {end.rows}[{self.o}] = {t}.if_then_else({self._inside()}, {text}, 0)
{t}.reduce_max({end.rows}, {end.last}, dim=0)
{t}.reduce_min({end.rows}, {end.first}, dim=0)
""",
                s,
            )
        return made

    def _end(self, s: ast.For, alone: bool = True) -> End:
        """Texts of where a loop ends for a row, for the last, and for the first of them. Those of
        one that is not `alone` are multiplied by others: none below 0."""
        extent, t = self._extent(s), self.language
        end = self.ends.get(ast.unparse(extent))
        if end is None:
            return End(*[f"({ast.unparse(extent if alone else no_less(extent, t))})"] * 3)
        texts = f"{end.rows}[{self.o}]", f"{end.last}[0]", f"{end.first}[0]"
        return End(*(texts if alone else [f"{t}.max({x}, 0)" for x in texts]))

    def _range(self, s: ast.For, alone: bool = True) -> str:
        """How far a loop goes for a block; see `_end`."""
        return self._end(s, alone).last
