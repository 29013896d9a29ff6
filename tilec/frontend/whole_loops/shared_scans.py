"""Running values of a few long rows, which blocks share and wait for one another at.

    for i in range(N):                  for step in …:          # tiles of its own
        total += X[i]                       part += X[…]
        Y[i] = total            ->      each[p] = what block p has in `part`
                                        total += each[0] + … + each[p - 1]
                                        for step in …:          # the same tiles
                                            …                   # a scan, as of one block
                                        total = what it began with + each[0] + …

A block has tiles that follow one another, and goes along them twice: what it reads in between
nobody else has written.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Sequence
from typing import NamedTuple

from tilec.frontend.whole_loops.across import Across
from tilec.frontend.whole_loops.folds import given_by
from tilec.ir.ops.tile import COMBINED
from tilec.support.syntax import parsed

OPERATORS = {"sum": "+", "prod": "*", "bitand": "&", "bitor": "|", "bitxor": "^"}  # of folds


class Begun(NamedTuple):
    """What stands in front of a loop, and behind it."""

    before: list[ast.stmt]
    behind: list[ast.stmt]


class SharedScans(Across):
    """Writes what stands around a loop with running values that blocks share."""

    def _folded(
        self, chain: Sequence[ast.For], running: set[str]
    ) -> tuple[list[ast.stmt], list[ast.stmt]] | None:
        raise NotImplementedError

    def _begun_by_others(self, loop: ast.For, running: set[str]) -> Begun | None:
        """What gives the variables of a loop what the blocks before this one fold into them, and,
        behind it, what all of them do."""
        alone, folds = copy.copy(loop), dict[str, tuple[str, str]]()
        alone.body = []
        for s in loop.body:
            fold = self._fold(s)
            if fold is None and given_by(s)[0]:
                alone.body.append(s)
            if fold is not None and fold[0] in running:
                name, word, value = fold
                own = self.fresh(f"{name}_part")
                self.sums[own], folds[name] = self.sums[name], (own, word)
                alone.body += parsed(f"{own} = {self._both(own, word, ast.unparse(value))}", s)
        before, after, behind = list[ast.stmt](), list[ast.stmt](), list[ast.stmt]()
        for name, (own, word) in folds.items():
            dtype, none = self.sums[name], self._neutral(word, self.sums[name])
            if none is None:
                return None
            before += self._held(own, dtype, loop)
            before += parsed(f"{self.language}.fill({self.held[own]}, {none})", loop)
            each, others, end = map(self.fresh, ("each", "others", "end"))
            before += self._fragment(each, (self.outer, self.parts), dtype, loop)
            for made in (others, end):
                before += self._fragment(made, (self.outer,), dtype, loop)
            none = f"{self.language}.cast({none}, {ast.unparse(dtype)})"
            after += parsed(self._of_all(name, own, word, none, each, others, end), loop)
            behind += parsed(f"{self.language}.copy({end}, {self.held[name]})", loop)
        self.meets = False  # what a block has by itself
        found = self._folded([alone], set())
        self.meets = True
        return None if found is None else Begun([*before, *found[0], *found[1], *after], behind)

    def _of_all(
        self, name: str, own: str, word: str, none: str, each: str, others: str, end: str
    ) -> str:
        """What puts the parts `own` of a variable together: of the blocks before, and of all."""
        t, o, p = self.language, self.o, self.fresh("p")
        place, kept = f"{each}[{o}, {p}]", f"{self.held[name]}[{o}]"
        loop = f"for {o}, {p} in {t}.Parallel({self.outer}, {self.parts}):"
        return f"""
{loop}
    {place} = {t}.if_then_else({p} == {self.part}, {self.held[own]}[{o}], {none})
{self.combined}([{each}], {self.parts}, {[COMBINED.get(word, word)]}, True)
{t}.reduce_{word}({each}, {end}, dim=1)
{loop}
    {place} = {t}.if_then_else({p} < {self.part}, {place}, {none})
{t}.reduce_{word}({each}, {others}, dim=1)
for {o} in {t}.Parallel({self.outer}):
    {end}[{o}] = {self._both(kept, word, f"{end}[{o}]")}
    {kept} = {self._both(kept, word, f"{others}[{o}]")}
"""

    def _both(self, left: str, word: str, right: str) -> str:
        """What a fold makes of two values."""
        symbol = OPERATORS.get(word, "")
        return (
            f"{left} {symbol} ({right})" if symbol else f"{self.language}.{word}({left}, {right})"
        )
