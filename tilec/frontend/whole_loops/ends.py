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
import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tilec.frontend.whole_loops.nests import (
    Named,
    Nest,
    counted,
    elements_of,
    tensor_of,
    with_ends,
)
from tilec.frontend.whole_loops.rows import is_pure
from tilec.frontend.whole_loops.tile_places import TilePlaces
from tilec.support.syntax import every, names_in, parsed, stored_names


def with_ends_of_rows(nest: Nest, named: Named, decided: Callable[[ast.expr], bool | None]) -> Nest:
    """The nest with what follows from its indices in place of names for it in the extents of its
    loops; of conditions whose side is known that."""
    stored = {*stored_names(*nest.body), *_written(nest)}

    class Side(ast.NodeTransformer):
        def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
            self.generic_visit(node)
            side = decided(node.test)
            return node if side is None else node.body if side else node.orelse

    body = with_ends(nest, lambda e: is_pure(e, named) and stored.isdisjoint(names_in(e)))
    if any(every(ast.IfExp, *(s.iter for s in every(ast.For, *body)))):
        body = copy.deepcopy(body)
        for s in every(ast.For, *body):
            s.iter = Side().visit(s.iter)
    return replace(nest, body=tuple(body))


def _written(nest: Nest) -> set[str]:
    found = elements_of(*nest.body)
    return {tensor_of(e) for e in found if isinstance(e.ctx, ast.Store)}


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
            extent = counted(s.iter, self.named)
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
            if _written(self.nest) & names_in(extent) or (dtype is not None and dtype.is_float):
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

    def _end(self, s: ast.For) -> End:
        """Texts of where a loop ends for a row, for the last, and for the first of them."""
        end = self.ends.get(ast.unparse(self._extent(s)))
        if end is None:
            return End(*[f"({ast.unparse(self._extent(s))})"] * 3)
        return End(f"{end.rows}[{self.o}]", f"{end.last}[0]", f"{end.first}[0]")

    def _range(self, s: ast.For) -> str:
        """How far a loop goes for a block."""
        return self._end(s).last
