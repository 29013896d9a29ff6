"""Iterations that a thread has side by side: of a nest whose loops do not ask for its last index.

    for i, d in T.Parallel(M, D):               for i, g in T.Parallel(M, D // 8):
        s = 0.0                                     sums = T.alloc_local((8,), "float32")
        for e in range(P[i], P[i + 1]):             …
            s += V[e] * X[C[e], d]      ->          for e in range(P[i], P[i + 1]):
        Y[i, d] = s                                     for n in T.vectorized(8):
                                                            sums[n] += V[e] * X[C[e], g * 8 + n]
                                                    …

What is the same for all of them (rows that are gathered, places that are searched for) is loaded
and counted once, and their elements come as vectors.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from tilec.frontend.whole_loops.nests import (
    Fresh,
    Nest,
    Put,
    declared,
    elements_of,
    indices_of,
    tensor_of,
)
from tilec.support.syntax import copied, every, headed, names_in, parsed, stored_names

_MOST, _VECTOR = 8, 128  # iterations, bits of a load
_ENOUGH = 1 << 17  # threads, that fill a machine


@dataclass
class SideBySide:
    """Writes the nest for threads that have several iterations; it says the dtypes of what folds.
    `bits`: those of a tensor's elements."""

    nest: Nest
    language: str
    fresh: Fresh
    bits: Callable[[str], int]
    ours: set[str] = field(default_factory=set)  # what is another one for each iteration
    own: dict[str, str] = field(default_factory=dict)  # of it what outlives a run, and its array
    put: Put = field(default_factory=lambda: Put({}))
    count: int = 1
    turn: str = ""

    def written(self, unit: int, iterations: int) -> Nest | None:
        """The nest, of about so many `iterations`, the last extent a multiple of `unit`; None where
        it is of another form."""
        *indices, d = self.nest.indices
        if not indices or not any(every(ast.For | ast.While, *self.nest.body)):
            return None
        self._spread(d)
        found = [e for e in elements_of(*self.nest.body) if self.ours & names_in(e)]
        for e in found:
            *others, last = indices_of(e)
            if not (isinstance(last, ast.Name) and last.id == d) or self.ours & names_in(*others):
                return None
        if not found or not all(map(self.bits, map(tensor_of, found))):
            return None
        narrow = min(self.bits(tensor_of(e)) for e in found)
        self.count = min(unit, _MOST, _VECTOR // narrow)
        while iterations // self.count < _ENOUGH:
            self.count //= 2
            if self.count < 2:
                return None
        if self.count < 2:
            return None
        group, self.turn = self.fresh(d), self.fresh("n")
        at = f"{group} * {self.count} + {self.turn}"
        self.put = Put({d: at})
        runs = self._runs(self.nest.body)
        if runs is None:
            return None
        dtypes, made = declared(self.nest), list[ast.stmt]()
        for name in sorted(self.ours - {d}):
            if all(name not in names_in(*run) for run in runs) or self._within(name, runs):
                continue
            if name not in dtypes:
                return None
            self.own[name] = self.fresh(name)
            kind = ast.unparse(dtypes[name])
            text = f"{self.own[name]} = {self.language}.alloc_local(({self.count},), {kind})"
            made += parsed(text, self.nest.body[0])
        arrays = {x: f"{array}[{self.turn}]" for x, array in self.own.items()}
        self.put = Put({d: at, **arrays})
        extent = ast.BinOp(self.nest.extents[-1], ast.FloorDiv(), ast.Constant(self.count))
        extents = (*self.nest.extents[:-1], ast.copy_location(extent, self.nest.extents[-1]))
        body = (*made, *self._block(self.nest.body))
        return replace(self.nest, indices=(*indices, group), extents=extents, body=body)

    def _spread(self, d: str) -> None:
        self.ours, known = {d}, 0
        while known < len(self.ours):
            known = len(self.ours)
            for s in every(ast.Assign | ast.AugAssign | ast.AnnAssign, *self.nest.body):
                if self.ours & names_in(s):
                    self.ours |= {*stored_names(s)}

    def _runs(self, body: Sequence[ast.stmt]) -> list[list[ast.stmt]] | None:
        """The statements behind one another that each iteration does for itself; None where it has
        a loop or a branch of its own."""
        found: list[list[ast.stmt]] = [[]]
        for s in body:
            if not self.ours & names_in(s):
                found.append([])
            elif isinstance(s, ast.Assign | ast.AugAssign | ast.AnnAssign):
                found[-1].append(s)
            else:
                inside = self._inside(s)
                if inside is None:
                    return None
                found += [*inside, []]
        return [run for run in found if run]

    def _inside(self, s: ast.stmt) -> list[list[ast.stmt]] | None:
        match s:
            case ast.For(target, asked, body, []):
                heads = [target, asked]
            case ast.While(asked, body, []) | ast.If(asked, body, []):
                heads = [asked]
            case _:
                return None
        return None if self.ours & names_in(*heads) else self._runs(body)

    def _within(self, name: str, runs: Sequence[Sequence[ast.stmt]]) -> bool:
        """Whether one run alone names it, and gives it a value first."""
        found = [run for run in runs if name in names_in(*run)]
        first = next(s for s in found[0] if name in names_in(s))
        begun = isinstance(first, ast.Assign) and name not in names_in(first.value)
        return len(found) == 1 and begun

    def _block(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        made, run = list[ast.stmt](), list[ast.stmt]()
        for s in (*body, ast.Pass()):
            own = bool(self.ours & names_in(s))
            if own and isinstance(s, ast.Assign | ast.AugAssign | ast.AnnAssign):
                run.append(self._of_one(s))
                continue
            if run:
                head = f"for {self.turn} in {self.language}.vectorized({self.count}):"
                made.append(headed(head, run, run[0]))
                run = []
            if own:
                assert isinstance(s, ast.For | ast.While | ast.If)
                inside = copy.copy(s)
                inside.body = self._block(s.body)
                s = inside
            if not isinstance(s, ast.Pass):
                made.append(s)
        return made

    def _of_one(self, s: ast.stmt) -> ast.stmt:
        """A statement of one iteration: what has an array has its dtype."""
        match s:
            case ast.AnnAssign(ast.Name(name) as target, _, ast.expr() as value):
                if name in self.own:
                    s = ast.copy_location(ast.Assign([target], value), s)
        found = self.put.visit(copied(s))
        assert isinstance(found, ast.stmt)
        return found
