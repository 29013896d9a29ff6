"""Bodies of whole loops with several loops, each of which adds up something of its own.

    for i, j in T.Parallel(M, N):
        s: T.float32 = 0                        s: T.float32 = 0
        for k in range(K):                      for k in range(K):
            s += X[i, k] * W[j, k]                  s += X[i, k] * W[j, k]
        for r in range(R):             ->       Y[i, j] = s
            s += H[i, r] * B[j, r]              and
        Y[i, j] = s                             s: T.float32 = 0
                                                for r in range(R):
                                                    s += H[i, r] * B[j, r]
                                                Y[i, j] = s

So each is read as if it were alone (`products`): what begins its sums, the loop, and what is done
with all that was summed.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from tilec.frontend.whole_loops.nests import index_of, stored_tensors
from tilec.support.syntax import assigned_names, every, names_in


def by_loops(body: Sequence[ast.stmt]) -> list[tuple[ast.stmt, ...]]:
    """A body for each loop; none where a loop asks for what another one has made."""
    loops = [s for s in body if isinstance(s, ast.For)]
    if len(loops) < 2:
        return [tuple(body)]
    at = body.index(loops[-1])
    begun, epilogue = [s for s in body[:at] if s not in loops], body[at + 1 :]
    own = [assigned_names([s]) | stored_tensors(s) for s in loops]
    counts = [{*map(index_of, every(ast.For, s))} for s in loops]
    kept, made = assigned_names(begun), list[tuple[ast.stmt, ...]]()
    for loop, names, indices in zip(loops, own, counts):
        others = set[str]().union(*own) - names
        again = {n for n in names - kept - indices if sum(n in x for x in own) > 1}
        if others & names_in(loop) or not all(_makes(loop, name) for name in again):
            return []
        before = [s for s in begun if others.isdisjoint(names_in(s))]
        made.append((*before, loop, *epilogue))
    return made if all(any(s in part for part in made) for s in begun) else []


def _makes(loop: ast.For, name: str) -> bool:
    """Whether a loop gives a name a value before it reads it."""
    for s in loop.body:
        match s:
            case _ if name not in names_in(s):
                continue
            case ast.For():
                return name not in names_in(s.iter) and _makes(s, name)
            case ast.Assign([ast.Name(target)], value) | ast.AnnAssign(
                ast.Name(target), _, ast.expr() as value
            ):
                return target == name and name not in names_in(value)
        return False
    return False
