"""Running values: what the loops inside of a whole loop have in a variable at each element.

    for j in range(N):                          run[o, 0] = total[o]
        total += X[i, j]                        for step in …:
        Y[i, j] = total                             run[o, n + 1] = X[i, j]
                                       ->           cumsum(run)  # of one element more than a tile
                                                    Y[i, j] = run[o, n + 1]
                                                    run[o, 0] = run[o, last]
                                                total[o] = run[o, 0]

Where a condition lets it begin anew (`if F[i, j]: total = 0.0`, before the fold) the scan is told
so, by a tile of bools. What stands before the fold reads `run[o, n]`. Names and further running
values may follow from it, but not what is folded into it: that is a recurrence, of one thread for
each row.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from tilec.frontend.whole_loops.folds import Folds, given_by, is_exact
from tilec.frontend.whole_loops.rows import Reset
from tilec.ir.ops.scan import SCANS
from tilec.ir.types import BOOL
from tilec.support.syntax import names_in

_BYTES = 32768  # of shared memory, that the running values of a tile take
PAD = 8  # elements, the last of which is what a row's tile begins with: the others are aligned


class Scans(Folds):
    """Finds running values."""

    def _running(self, chain: Sequence[ast.For]) -> set[str]:
        """The variables of loops in one another that are read between the folds into them."""
        body = chain[-1].body
        folds = [self._fold(s) for s in body]
        read = {
            fold[0]
            for s, fold in zip(body, folds)
            if fold is not None and any(fold[0] in names_in(t) for t in body if t is not s)
        }
        if len(chain) > 1 or not read:
            return set()
        found = set[str]()
        origins = {name: {name} for name in read}  # what a name follows from
        for s, fold in zip(body, folds):
            if fold is not None and fold[0] in read:
                if self._is_scanned(*fold) and _from(origins, fold[2]) <= found:
                    found |= {fold[0]} if self._begins_well(fold[0], s, body, origins) else set()
                continue
            name, value = given_by(s)
            if value is not None and name not in read:
                origins[name] = _from(origins, value)
        return found

    def _reset(self, s: ast.stmt) -> Reset | None:
        match s:
            case ast.If(test, [ast.Assign([ast.Name(name)], start)], []) if name in self.sums:
                pure = self._is_pure(test) and self._is_pure(start)
                if pure and name not in names_in(test, start):
                    return Reset(name, test, start)
        return None

    def _begins_well(
        self, name: str, fold: ast.stmt, body: Sequence[ast.stmt], origins: dict[str, set[str]]
    ) -> bool:
        """Whether a variable that begins anew does so once, before the fold, by what no variable
        runs in, and is not read in between."""
        resets = [(s, r) for s in body if (r := self._reset(s)) is not None and r.name == name]
        if not resets:
            return True
        before = body[: body.index(fold)]
        own, reset = resets[0]
        others = (s for s in before if s is not own)
        alone = len(resets) == 1 and own in before and name not in names_in(*others)
        asked = any(p.best == name for s in body if (p := self._asked_inside(s)) is not None)
        return alone and not asked and not _from(origins, reset.test) | _from(origins, reset.start)

    def _is_cut(self, loop: ast.For) -> bool:
        """Whether running values may begin in the middle of a loop, with what it folds up to there:
        they follow from none of the others, and do not begin anew."""
        running = self._running([loop])
        folds = [fold for s in loop.body if (fold := self._fold(s)) and fold[0] in running]
        names = names_in(*(value for _, _, value in folds))
        for s in reversed(loop.body):
            name, value = given_by(s)
            if value is not None and name in names and name not in running:
                names |= names_in(value)
        asked = any(self._asked_inside(s) or self._reset(s) for s in loop.body)
        return not asked and names.isdisjoint(running)

    def _is_scanned(self, name: str, word: str, value: ast.expr) -> bool:
        """Whether a scan gives what a fold does: one of a kind that there is, whose order does not
        count, from what the variable is at first."""
        kept, given = self.nest.dtype_of(self.sums[name]), self._dtype_once(value)
        if word not in SCANS or kept is None or kept is BOOL:
            return False
        if kept.is_float:
            return kept.bits >= 16
        return word in ("sum", "prod") or (given is not None and is_exact(given, kept))

    def _fitting(self, running: set[str], outer: int, inner: int) -> int:
        """Of `inner` elements of a row as many as shared memory has room for."""
        dtypes = [self.nest.dtype_of(self.sums[name]) for name in running]
        size = outer * sum(d.bits // 8 for d in dtypes if d is not None)
        return min(inner, 1 << (_BYTES // size).bit_length() - 1)


def _from(origins: dict[str, set[str]], value: ast.expr) -> set[str]:
    """The running values that an expression follows from."""
    return {origin for name in names_in(value) for origin in origins.get(name, ())}


def makers(value: ast.expr, before: Sequence[tuple[ast.stmt, str]]) -> list[str]:
    """The texts of those of the statements `before` an expression that give it the names that it
    reads."""
    needed, found = names_in(value), list[str]()
    for s, text in reversed(before):
        name, given = given_by(s)
        if given is not None and name in needed:
            needed |= names_in(given)
            found.insert(0, text)
    return found
