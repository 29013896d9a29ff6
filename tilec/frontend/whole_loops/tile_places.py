"""Where the iterations and the elements of a whole loop are in its tiles, as syntax."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tilec.frontend.whole_loops.nests import Put, unravelled
from tilec.frontend.whole_loops.scans import Scans
from tilec.support.syntax import copied, headed, names_in, parsed


class Summed(NamedTuple):
    """Sums of products of a tile: what stands in front of a loop over tiles, what makes one tile's,
    and the fragments, by the names that stand for their elements; whether loads come ahead of the
    loop over tiles."""

    before: list[ast.stmt]
    each: list[ast.stmt]
    tiles: dict[str, str]
    ahead: bool


@dataclass
class TilePlaces(Scans):
    """`block` and `part`: what stands for the block's number, and for which of those it is that
    share columns; `scan`: for what makes running values. A tile has `outer` iterations, or columns,
    and `inner` elements of each, of `rows` iterations of the loop around it; `o`, `n` and `step`
    name a place in it, and its number. `alone`: it goes along the last index of the iterations
    alone, not along all of them as one. `totals`: the names that stand for sums of products;
    `gemms` writes what gives these for tiles, of rows and of a loop's elements that begin at two
    numbers."""

    block: str = ""
    part: str = ""
    combined: str = ""
    scan: str = ""
    held: dict[str, str] = field(default_factory=dict)  # variables, and the fragments they are in
    written_out: dict[str, ast.expr] = field(default_factory=dict)  # names, for what they stand
    frozen: set[str] = field(default_factory=set)  # variables that these need as they are
    running: dict[str, str] = field(default_factory=dict)  # variables, and places of tiles
    outer: int = 1
    inner: int = 1
    rows: int = 1
    columns: bool = False
    alone: bool = False
    totals: frozenset[str] = frozenset()
    gemms: Callable[[set[str], str, str, tuple[int, int]], Summed] = lambda *given: Summed(
        [], [], {}, False
    )
    parts: int = 1
    meets: bool = False  # blocks that share iterations, behind each loop
    in_a_row: bool = False  # of which each has tiles that follow one another
    o: str = ""
    n: str = ""
    step: str = ""
    wanted: str = ""  # what says of a tile's element that there is one

    def _held(self, name: str, dtype: ast.expr, at: ast.stmt) -> list[ast.stmt]:
        """The fragment of a variable."""
        if name in self.held:
            return []
        self.held[name] = self.fresh(name)
        return self._fragment(self.held[name], self._shape_of(name), dtype, at)

    def _shape_of(self, name: str) -> tuple[int, ...]:
        return (self.outer,)

    def _place_of(self, name: str) -> str:
        """A variable's element, of an iteration."""
        return f"{self.held[name]}[{self.o}]"

    def _fragment(
        self, name: str, shape: tuple[int, ...], dtype: ast.expr, at: ast.stmt
    ) -> list[ast.stmt]:
        made = f"{name} = {self.language}.alloc_fragment({shape}, {ast.unparse(dtype)})"
        return parsed(made, at)

    def _write_out(self, name: str, value: ast.expr) -> None:
        """Let `name`, whose dtype nobody has written, stand for what it is."""
        self.frozen |= names_in(value) & self.held.keys()
        self.written_out[name] = self._put(value)

    def _names(self) -> Put:
        """Elements of fragments for variables; written out names before them."""
        places = {name: self._place_of(name) for name in self.held} | self.running
        return Put({**places, **self.written_out})

    def _put(self, node: ast.expr) -> ast.expr:
        """The author's expression, with elements of fragments for variables."""
        found = self._names().visit(copied(node))
        assert isinstance(found, ast.expr)
        return found

    def _each(
        self, target: str, value: ast.expr, at: ast.stmt, guarded: bool = False
    ) -> list[ast.stmt]:
        """An assignment for each of the block's iterations; of a variable, for those beyond the
        last one, too, which have tiles' elements."""
        guard = f"if {self._once()}: " * (guarded and (self.outer > 1 or self.meets))
        text = f"""
for {self.o} in {self.language}.Parallel({self.outer}):
    {self._places()}
    {guard}{target} = {ast.unparse(self._put(value))}
"""
        return parsed(text, at)

    def _each_once(self, s: ast.stmt) -> list[ast.stmt]:
        """A statement for each of the block's iterations that there are."""
        guarded = headed(f"if {self._once()}:", [self._names().visit(copied(s))], s)
        head = f"for {self.o} in {self.language}.Parallel({self.outer}):"
        return [headed(head, [*parsed(self._places(), s), guarded], s)]

    def _numbers(self) -> tuple[str, str, str]:
        """The number of the block among those that go along the iterations it has, the number of
        the others, and how many iterations there are."""
        if not self.alone:
            return self.block, "0", " * ".join(f"({ast.unparse(e)})" for e in self.nest.extents)
        extent = ast.unparse(self.nest.extents[-1])
        across = f"{self.language}.ceildiv({extent}, {self.outer})"
        own = self.block if len(self.nest.indices) == 1 else f"{self.block} % {across}"
        return own, f"({self.block} // {across})", f"({extent})"

    def _places(self) -> str:
        """The indices of an iteration."""
        own, number, _ = self._numbers()
        first = f"{own} * {self.outer} + {self.o}"
        if not self.alone:
            return self._apart(self.nest.indices, f"({first})")
        *others, last = self.nest.indices
        rest = "" if self.totals else f"; {self._apart(others, number)}"
        return f"{last} = {first}{rest}"

    def _apart(self, indices: Sequence[str], number: str) -> str:
        extents = [f"({ast.unparse(e)})" for e in self.nest.extents[: len(indices)]]
        return unravelled(indices, extents, number)

    def _of_block(self) -> list[ast.stmt]:
        """The indices that all iterations of a block share, where sums of products need them."""
        text = self._apart(self.nest.indices[:-1], self._numbers()[1])
        return parsed(text, self.nest.body[0]) if self.totals else []

    def _inside(self) -> str:
        """Whether there is such an iteration."""
        own, _, total = self._numbers()
        if self.alone:
            return f"{self.nest.indices[-1]} < {total}"
        return "True" if self.outer == 1 else f"{own} * {self.outer} + {self.o} < {total}"

    def _once(self) -> str:
        """Whether there is such an iteration, in one of the blocks that share it."""
        return self._inside() + f" and {self.part} == 0" * self.meets

    def _is_whole(self) -> str:
        """Whether all iterations of the block are there."""
        own, _, total = self._numbers()
        return "True" if self.outer == 1 else f"({own} + 1) * {self.outer} <= {total}"

    def _tile(self) -> tuple[tuple[int, int], str]:
        """A tile's shape, and the place in it of a block's iteration and a loop's."""
        if self.columns:
            return (self.inner, self.outer), f"{self.n}, {self.o}"
        return (self.outer, self.inner), f"{self.o}, {self.n}"
