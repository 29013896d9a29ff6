"""Which ops of threads' own code need no order among themselves, in whatever iterations: where an
element's number tells the thread, no other thread ever stores it there; a place that a counter has
given out it gives out once; and sums of atomics are the same in any order.

    for i in T.serial(8):                                  # number: 2048 i + 8 tx + v
        for v in T.vectorized(8):                          # of 256 threads: 2048 > 255 * 8 + 7
            n = i * 2048 + tx * 8 + v
            tile[n // 128, n % 128] = own[v]
"""

from __future__ import annotations

from functools import cached_property

from tilec.ir import ops
from tilec.ir.affine import Affine
from tilec.ir.analysis import Facts, facts_of
from tilec.ir.core import Func, Op, Value

COMMUTES = frozenset({"add", "min", "max", "and", "or", "xor"})
_QUOTIENTS = {"floordiv": "mod", "truncdiv": "truncmod"}


class Owners:
    """Of the stores of one function."""

    def __init__(self, func: Func) -> None:
        self._func = func
        threads = [o.result for o in func.body.every(ops.ThreadIndex)]
        self._thread, self._threads = next(iter(threads), None), {*threads}
        self._found: dict[ops.Store, bool] = {}

    @cached_property
    def _facts(self) -> Facts:
        return facts_of(self._func)

    @cached_property
    def _indices(self) -> set[Value]:
        return {o.body.args[0] for o in self._func.body.every(ops.For)}

    def unordered(self, o: Op) -> bool:
        """Whether threads may do `o`, which stores or updates an element, in any order."""
        if isinstance(o, ops.Atomic):
            return o.kind in COMMUTES
        if not isinstance(o, ops.Store) or o.dest.buffer.space != "shared":
            return False
        if o not in self._found:
            self._found[o] = bool(self._threads) and (self._is_counted(o) or self._is_owned(o))
        return self._found[o]

    def _is_counted(self, o: ops.Store) -> bool:
        """Whether an index is what one counter gave out, which is told of resets by a barrier."""
        for index in o.indices:
            form = self._facts.form(index)
            made = [self._facts.made_by(v) for v, step in form.terms.items() if abs(step) == 1]
            if len(form.terms) != 1 or not made or not isinstance(made[0], ops.Atomic):
                continue
            by = self._facts.constant(made[0].value) if made[0].value.is_integer else None
            fixed = all(self._facts.constant(i) is not None for i in made[0].indices)
            shared = made[0].dest.buffer.space == "shared"
            if made[0].kind == "add" and by and fixed and shared:
                return True
        return False

    def _is_owned(self, o: ops.Store) -> bool:
        number = Affine()
        for index, extent in zip(o.indices, o.dest.buffer.static_shape):
            number = number.scaled(extent) + self._facts.form(index)
        steps = dict[Value, int]()
        for v, step in self._whole(number).terms.items():
            if v not in self._indices | self._threads:
                return False
            at = self._thread if v in self._threads else v  # which are one number
            assert at is not None
            steps[at] = steps.get(at, 0) + step
        if self._thread not in steps:
            return False
        reached = 0  # by those that grow by less: numbers of different iterations do not meet
        for v, step in sorted(steps.items(), key=lambda x: abs(x[1])):
            lo, hi = self._facts.range(v)
            if lo is None or hi is None or abs(step) <= reached:
                return False
            reached += abs(step) * (hi - lo)
        return True

    def _whole(self, number: Affine) -> Affine:
        """`number` with `n` in place of `n // c * c + n % c`."""
        made = {v: self._facts.made_by(v) for v in number.terms}
        for v, x in made.items():
            for w, y in made.items():
                if not isinstance(x, ops.Binary) or not isinstance(y, ops.Binary):
                    continue
                by, step = self._facts.constant(x.rhs), number.terms[w]
                same = x.lhs is y.lhs and self._facts.constant(y.rhs) == by
                pair = _QUOTIENTS.get(x.kind) == y.kind and same
                if pair and by is not None and number.terms[v] == step * by:
                    rest = number.without(v).without(w)
                    return self._whole(rest + self._facts.form(x.lhs).scaled(step))
        return number
