"""Accesses that the user has guarded, but not enough: `if i < N:` around `A[i + 1]`.

tilec guards every access of a tensor itself, and partial tiles rely on it, so that an access which
leaves its tensor in some iterations is no mistake as such. Where the user tests an index and then
reads beside it, it is one. It is warned of only where an iteration is found that certainly runs and
is out of bounds. Either all conditions around the access compare indices of loops and blocks whose
extents are known, and the iterations are tried out (`find_escape`); or the only condition is that
`bx * BN + i` is less than the extent of the tensor, and the blocks, `T.ceildiv(extent, BN)` of
them, are known to reach the last element (`find_run_time_escape`).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from tilec.frontend.index import Indices
from tilec.ir.affine import Affine
from tilec.ir.core import Value
from tilec.ir.intervals import decide
from tilec.ir.ops import MIRRORED, NEGATED
from tilec.support.lazy import Lazy

np: Any = Lazy("numpy")

_LIMIT = 1 << 17  # iterations that are tried out


@dataclass(frozen=True, slots=True)
class Comparison:
    """`tested kind bound`, e.g. i + 1 < 100."""

    kind: str
    tested: Affine
    bound: int

    @staticmethod
    def of(kind: str, a: Affine, b: Affine) -> Comparison:
        """`a kind b`. What is compared with a number is what is tested; else the difference is."""
        if b.constant is not None:
            return Comparison(kind, a, b.constant)
        if a.constant is not None:
            return Comparison(MIRRORED[kind], b, a.constant)
        return Comparison(kind, a - b, 0)

    def negated(self) -> Comparison:
        return Comparison(NEGATED[self.kind], self.tested, self.bound)

    def holds(self, values: Mapping[Value, Any]) -> Any:
        """Whether it does, for each of the iterations."""
        return getattr(operator, self.kind)(self.tested.at(values), self.bound)


Condition = tuple[Comparison, ...]
"""All of these hold."""

Known = TypeVar("Known")


def decided(condition: Condition | None, indices: Indices, other: Known) -> bool | Known:
    """Whether `condition` holds, as far as what is known of its numbers says; `other` if that is
    not enough."""
    bounds = ((c, (c.bound, c.bound)) for c in condition or ())
    answers = {decide(c.kind, indices.reach(c.tested), bound) for c, bound in bounds}
    if (0, 0) in answers:
        return False
    return True if answers == {(1, 1)} else other


Quotient = tuple[Affine, int]
"""(a, b) of T.ceildiv(a, b)."""


def negated(condition: Condition | None) -> Condition | None:
    """What holds where `condition` does not; None where that is not a conjunction."""
    return (condition[0].negated(),) if condition is not None and len(condition) == 1 else None


def both(a: Condition | None, b: Condition | None) -> Condition | None:
    """Both of two conditions; None where one of them is not known."""
    return None if a is None or b is None else (*a, *b)


Escape = tuple[str, str]
"""An iteration whose access is out of bounds, for a message: the index there, and which iteration
it is."""


def find_escape(
    index: Affine,
    size: int,
    conditions: Sequence[Condition | None],
    known: Indices,
    named: Mapping[str, Affine],
) -> Escape | None:
    """An iteration that runs, and in which `index` is not in 0 … size - 1 although it has been
    tested; None if none is certain. `conditions` are all that stand around the access, None for one
    that is not known. `named`: what the author calls the iteration, if not the indices of loops and
    blocks that there are."""
    tests: list[Comparison] = []
    for condition in conditions:
        if condition is None:
            return None
        tests += condition
    shifts = [(c, (index - c.tested).constant) for c in tests if c.tested.terms]
    own = [(c, shift) for c, shift in shifts if shift is not None]
    atoms = list(dict.fromkeys([*index.terms, *(a for c in tests for a in c.tested.terms)]))
    reaches = [known.of(a) for a in atoms]
    if not own or not all(r.dense for r in reaches):
        return None
    extents = [r.extent for r in reaches]
    if math.prod(extents) > _LIMIT:
        return None
    grid = np.indices(extents).reshape(len(atoms), -1)
    values = {a: row + r.lo for a, r, row in zip(atoms, reaches, grid)}
    at = index.at(values)
    escapes = np.zeros(len(at), bool)
    for c, shift in own:
        escapes |= _beside(c, shift, at, size)
    escapes &= (at < 0) | (at >= size)
    for c in tests:
        escapes &= c.holds(values)
    found = np.flatnonzero(escapes)
    if not len(found):
        return None
    first = int(found[0])
    own_names = {n: a for n, a in named.items() if index.terms.keys() & a.terms.keys()}
    own_names = own_names or {known.of(a).name or "an index": Affine.of(a) for a in index.terms}
    where = [f"{name} = {a.at(values)[first]}" for name, a in own_names.items()]
    return str(at[first]), " and ".join(where)


def find_run_time_escape(
    index: Affine,
    extent: Affine,
    name: str,
    conditions: Sequence[Condition | None],
    quotients: Mapping[Value, Quotient],
    known: Indices,
) -> Escape | None:
    """`find_escape` for an `extent` that is known at run time, which `name` calls. `quotients` are
    the block indices that run over T.ceildiv(a, b) blocks."""
    if len(conditions) != 1 or conditions[0] is None or len(conditions[0]) != 1:
        return None
    (test,) = conditions[0]
    below = test.tested if test.kind == "lt" else test.tested.scaled(-1)
    tested = below + extent
    shift = (index - tested).constant
    if test.kind not in ("lt", "gt") or test.bound or not shift:
        return None
    if not _reaches(tested, extent, quotients, known):
        return None
    if shift < 0:
        return str(shift), "what is tested is 0"
    more = f" + {shift - 1}" if shift > 1 else ""
    return f"{name}{more}", f"what is tested is {name} - 1"


def _reaches(
    tested: Affine, extent: Affine, quotients: Mapping[Value, Quotient], known: Indices
) -> bool:
    """Whether `tested` takes every value from 0 to `extent` - 1, whatever that is: the index of a
    block times b, where there are T.ceildiv(extent, b) of them, plus all numbers below b."""
    blocks = [a for a in tested.terms if a in quotients]
    if len(blocks) != 1 or tested.const:
        return False
    (block,) = blocks
    whole, part = quotients[block]
    if (whole - extent).constant != 0 or tested.terms[block] != part:
        return False
    count = 1
    rest = [(c, a) for a, c in tested.terms.items() if a is not block]
    for factor, v in sorted(rest, key=operator.itemgetter(0)):
        reach = known.of(v)
        if factor != count or not reach.dense or reach.lo != 0:
            return False
        count *= reach.extent
    return count == part


def _beside(c: Comparison, shift: int, at: Any, size: int) -> Any:
    """Whether the test explains why the index is out of bounds, so that no partial tile does: what
    is tested lies inside and the access beside it, or `<=` stands where `<` was meant."""
    tested = at - shift
    if shift:
        return (tested >= 0) & (tested < size)
    return (tested == size) & (c.kind == "le" and c.bound == size)
