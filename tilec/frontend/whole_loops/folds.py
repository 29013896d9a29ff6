"""What the loops inside of a whole loop do with each element, where tiles do it together: folds
under conditions and of several loops, and the place of the largest or smallest element.

    for l in range(L):
        for t in range(S):
            if X[i, l, t] > 0:                  total = total + T.if_then_else(X[i, l, t] > 0, …, 0)
                total += X[i, l, t]

    for j in range(N):
        if X[i, j] > best:                      the largest, and the first place that has it
            best = X[i, j]
            at = j
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tilec import language as T
from tilec.frontend.arithmetic import common_dtype
from tilec.frontend.python_numbers import word_for
from tilec.frontend.values import Scalar, is_literal
from tilec.frontend.whole_loops.nests import (
    Put,
    cast_of,
    changed_by,
    counted,
    elements_of,
    index_of,
    is_alone,
    stored_tensors,
    tensor_of,
)
from tilec.frontend.whole_loops.places import neutral_of
from tilec.frontend.whole_loops.rows import Rows
from tilec.frontend.whole_loops.terms import sign_of
from tilec.ir.ops import FOLDS
from tilec.ir.types import FLOAT32, FLOAT64, DType, magnitude_of
from tilec.support.syntax import copied, every, names_in, stored_names

_FEW = 32  # iterations, of a loop that blocks do not share where there is another
_FLAT = 256  # rows that are shorter than this are gone along together with those beside them
_ATOMICS = [getattr(T, f"atomic_{name}") for name in FOLDS]
_SIDES: dict[type[ast.cmpop], tuple[str, str]] = {  # how `value ? best` compares: word, operator
    ast.Gt: ("max", ">"), ast.GtE: ("max", ">="), ast.Lt: ("min", "<"), ast.LtE: ("min", "<="),
}  # fmt: skip
_PRODUCTS: dict[type[ast.operator], str] = {
    ast.Mult: "prod", ast.BitAnd: "bitand", ast.BitOr: "bitor", ast.BitXor: "bitxor",
}  # fmt: skip
_OF_TWO = (T.max, T.min, max, min)
_OF_FLOATS = (
    T.exp, T.exp2, T.log, T.log2, T.sqrt, T.rsqrt, T.sin, T.cos, T.tanh, T.sigmoid, T.erf,
)  # fmt: skip
_AS_GIVEN = (T.abs, T.popcount, T.clz, T.ctz, T.brev, T.bitwise_not)
_OF_BOTH = (ast.Add, ast.Sub, ast.Mult, ast.BitAnd, ast.BitOr, ast.BitXor)
ENDS = (T.infinity, T.max_value, T.min_value)
"""Numbers of the dtype that they are given."""

_TURNED = {">": "<", ">=": "<=", "<": ">", "<=": ">="}


class Pick(NamedTuple):
    """`if value > best: best = value; at = index`: `word` is max or min, `compared` how, `place`
    the index or what it is added to, which is less the later it is if it goes `down`."""

    best: str
    at: str
    word: str
    compared: str
    value: ast.expr
    place: ast.expr
    down: bool = False

    @property
    def first(self) -> bool:
        """Whether it is the first of equal elements that counts."""
        return "=" not in self.compared

    @property
    def of_equal(self) -> str:
        """Which place of equal elements counts: the smallest one or the largest."""
        return "max" if self.first == self.down else "min"


@dataclass
class Folds(Rows):
    """Reads the statements of a nest."""

    def magnitude(self, extent: ast.expr) -> tuple[int, int]:
        """The one of `MAGNITUDES` that an extent does not exceed, 0 beyond all, and what divides
        it."""
        size, unit = self.nest.about(extent)
        return magnitude_of(size) if size else 0, unit

    def _levels(self, chain: Sequence[ast.For]) -> tuple[list[ast.For], list[ast.For], int]:
        """The loops around tiles, of few iterations last, as blocks share the first; those that a
        tile goes along as one, and about how long these are together: 0, longer than any known
        length."""
        flat, size = 1, self._length(chain[-1])
        while 0 < size < _FLAT and flat < len(chain):
            flat += 1
            size *= self._length(chain[-flat])
        around = sorted(chain[:-flat], key=self._has_few)
        return around, [*chain[-flat:]], size

    def _has_few(self, loop: ast.For) -> bool:
        known = self.nest.known(self._extent(loop))
        return known is not None and known < _FEW

    def _extent(self, loop: ast.For) -> ast.expr:
        extent = counted(loop.iter, self.nest.named)
        assert extent is not None
        return extent

    def _length(self, loop: ast.For) -> int:
        return self.magnitude(self._extent(loop))[0]

    def _fold(self, s: ast.stmt) -> tuple[str, str, ast.expr] | None:
        if not isinstance(s, ast.If):
            found = super()._fold(s) or self._other_fold(s)
            return None if found is None or self._is_cut_off(*found) else found
        if (asked := self._asked(s)) is not None:
            return asked.best, asked.word, asked.value
        test = s.test
        found = self._fold(s.body[0]) if len(s.body) == 1 and not s.orelse else None
        if found is None or not self._is_pure(test):
            return None
        name, word, value = found
        nothing = self._neutral(word, self.sums[name])
        if nothing is None:
            return None
        text = ast.unparse(value)
        given, kept = self._dtype_once(value), self.nest.dtype_of(self.sums[name])
        narrow = given and kept and given.is_int and kept.is_int and given.bits < kept.bits
        if narrow and kept and word in ("max", "min"):
            text = f"{self.language}.cast({text}, {kept.name!r})"  # as `nothing` may be wide
        chosen = f"{self.language}.if_then_else({ast.unparse(test)}, {text}, {nothing})"
        return name, word, ast.parse(chosen, mode="eval").body

    def _other_fold(self, s: ast.stmt) -> tuple[str, str, ast.expr] | None:
        """A product, or what of ints is combined bit by bit."""
        found = changed_by(s)
        if found is None:
            return None
        name, op, value = found
        dtype = self.nest.dtype_of(self.sums[name]) if name in self.sums else None
        word = _PRODUCTS.get(type(op))
        if word is None or dtype is None or (word != "prod" and dtype.is_float):
            return None
        return name, word, value

    def _is_cut_off(self, name: str, word: str, value: ast.expr) -> bool:
        """Whether a sum or product of ints is known to be one with floats, whose order counts."""
        given, kept = self.dtype(value, ()), self.nest.dtype_of(self.sums[name])
        ours = kept is not None and kept.is_int and word in ("sum", "prod")
        return ours and given is not None and given.is_float

    def _compared(self, s: ast.stmt) -> tuple[Pick, dict[str, ast.expr]] | None:
        """A condition that gives a variable what is more, or less, than it; with all that it gives
        variables. The place of it is not read."""
        match s:
            case ast.If(ast.Compare(left, [compared], [right]), body, []) if (
                type(compared) in _SIDES
            ):
                given = {t: v for t, v in map(given_by, body) if v is not None}
            case _:
                return None
        if len(given) != len(body) or not given.keys() <= {*self.sums}:
            return None
        word, how = _SIDES[type(compared)]
        best = given.keys() & {n.id for side in (left, right) if isinstance(n := side, ast.Name)}
        if len(best) != 1:
            return None
        (name,) = best
        value = left
        if isinstance(left, ast.Name) and left.id == name:
            value, how = right, _TURNED[how]
            word = "max" if word == "min" else "min"
        one, other = (self._as_it_is(v, self._before(s)) for v in (value, given[name]))
        if one != other or not self._is_pure(value):
            return None
        return Pick(name, "", word, how, value, value), given

    def _before(self, s: ast.stmt) -> Sequence[ast.stmt]:
        """The statements of a loop's body before the one that `s` is, or stands in."""
        bodies: list[list[ast.stmt]] = [x.body for x in every(ast.For, *self.nest.body)]
        for body in bodies:
            for at, outer in enumerate(body):
                if not isinstance(outer, ast.For) and s in every(ast.stmt, outer):
                    return body[:at]
        return ()

    def _as_it_is(self, value: ast.expr, before: Sequence[ast.stmt]) -> str:
        """The text of an expression with what names of statements `before` it stand for, and
        without casts of all of it that lose nothing: equal ones are the same number."""
        changed = set[str]()
        for s in reversed(before):
            match s:
                case ast.Assign([ast.Name(name)], given) if name in names_in(value):
                    if (names_in(given) | {name}) & changed:
                        break
                    value = Put({name: given}).visit(copied(value))
            changed |= {*stored_names(s)}
            if any(every(ast.Expr, s)) or stored_tensors(s):
                break  # which elements it changes is not asked
        while (operand := self._cast_of(value)) is not None:
            kept, given_dtype = self.dtype(value, before), self.dtype(operand, before)
            if kept is None or given_dtype is None or not is_exact(given_dtype, kept):
                break
            value = operand
        return ast.unparse(value)

    def _cast_of(self, value: ast.expr) -> ast.expr | None:
        """What a cast is of; None for anything else."""
        match value:
            case ast.Call(func, [operand], []) if self.nest.named(func) is float:
                return operand
        found = cast_of(value, self.nest.named)
        return None if found is None else found[0]

    def _pick(self, s: ast.stmt, chain: Sequence[ast.For]) -> Pick | None:
        """That and the place of the element."""
        found = self._compared(s)
        if found is None or len(found[1]) != 2 or len(chain) != 1:
            return None
        (at,) = found[1].keys() - {found[0].best}
        place, body = found[1][at], chain[-1].body
        changed = {*stored_names(chain[-1]), *map(tensor_of, elements_of(ast.Expr(place)))}
        sign = sign_of(place, index_of(chain[0]), changed)
        pick = found[0]._replace(at=at, place=place, down=sign < 0)
        if not sign:
            return None
        return pick if self._keeps(pick, body[: body.index(s)]) else None

    def _asked(self, s: ast.stmt) -> Pick | None:
        """`if value > best: best = value`: T.max but for what `best` is at first, which stays if it
        is no number. What floats round, or are not, keeps its order."""
        found = self._compared(s)
        if found is None or len(found[1]) != 1:
            return None
        kept, given = self.nest.dtype_of(self.sums[found[0].best]), self._dtype_once(found[0].value)
        if kept is None or not (kept.is_float or (given is not None and is_exact(given, kept))):
            return None
        return found[0]

    def _keeps(self, p: Pick, before: Sequence[ast.stmt]) -> bool:
        """Whether its variables hold what they are given as it is. The next element is compared
        with a rounded one otherwise, and which is the most follows from their order."""
        best, at = (self.nest.dtype_of(self.sums[name]) for name in (p.best, p.at))
        given = self.dtype(p.value, before)
        if best is None or at is None or given is None or not is_exact(given, best):
            return False
        if at.bits < 32:
            return False
        # No uint says that there is no last one.
        return p.of_equal == "min" or at.kind in ("int", "float")

    def dtype(self, value: ast.expr, before: Sequence[ast.stmt]) -> DType | None:
        """That of an expression behind the statements `before` it in a loop; None where it does not
        follow from what is read."""
        match value:
            case ast.Name(name) if name not in self.own:
                found = self.nest.named(value)
                return found.dtype if isinstance(found, Scalar) else None
            case ast.Name(name) if name in self.sums:
                return self.nest.dtype_of(self.sums[name])
            case ast.Name(name):
                for at, s in reversed([*enumerate(before)]):
                    match s:
                        case ast.AnnAssign(ast.Name(made), dtype) if made == name:
                            return self.nest.dtype_of(dtype)
                        case ast.Assign([ast.Name(made)], given) if made == name:
                            return self.dtype(given, before[:at])
                return None
            case ast.Subscript(ast.Name(tensor)) if tensor not in self.own:
                return self.nest.dtype_of(ast.parse(f"{tensor}.dtype", mode="eval").body)
            case ast.Subscript(ast.Tuple([_, _, *_] as items)):  # one of a few numbers
                floats = all(isinstance(x, ast.Constant) and type(x.value) is float for x in items)
                return FLOAT32 if floats else None
            case ast.UnaryOp(ast.USub() | ast.Invert(), given):
                return self.dtype(given, before)
            case ast.BinOp(left, ast.LShift() | ast.RShift(), _):
                return self.dtype(left, before)
            case ast.BinOp(left, op, right) if isinstance(op, _OF_BOTH):
                a, b = (self.dtype(x, before) for x in (left, right))
                if self._is_number(left) or self._is_number(right):
                    beside = a or b  # numbers have its dtype, floats not an int's
                    floats = beside is not None and beside.is_float
                    whole = self._is_number(left, int) or self._is_number(right, int)
                    return beside if floats or whole else None
                return None if a is None or b is None else common_dtype(a, b)
            case ast.BinOp(left, ast.Div(), right):
                a = self.dtype(ast.BinOp(left, ast.Mult(), right), before)
                return a if a is not None and a.is_float else None
            case ast.IfExp(_, left, right):
                return self.dtype(ast.BinOp(left, ast.Mult(), right), before)
            case ast.Call(ast.Attribute(_, "astype"), [dtype], []):
                return self.nest.dtype_of(dtype)
            case ast.Call(ast.Attribute(ast.Name(module)), _) if module == self.language:
                return None  # what this module has written
            case ast.Call(func, [given, *others], []):
                found = self.nest.named(func)
                if isinstance(found, DType):
                    return found
                if any(found is word for word in ENDS):
                    return self.nest.dtype_of(given)
                if (found is T.cast or found is T.Cast) and len(others) == 1:
                    return self.nest.dtype_of(others[0] if found is T.cast else given)
                if any(found is word for word in (T.if_then_else, T.where)):
                    given, *others = others
                if any(found is word for word in (*_OF_TWO, T.if_then_else, T.where)) and others:
                    return self.dtype(ast.BinOp(given, ast.Mult(), others[0]), before)
                a = self.dtype(given, before)
                if found is float:
                    return a if a is None or a is FLOAT64 else FLOAT32
                found = (word_for(found) or (found,))[0]
                floats = a is not None and a.is_float and any(found is w for w in _OF_FLOATS)
                return a if floats or any(found is w for w in _AS_GIVEN) else None
        return None

    def _is_number(self, value: ast.expr, kind: type = object) -> bool:
        """Whether it is a number of this kind that is written down, a name for one, or arithmetic
        on such."""
        match value:
            case ast.BinOp(left, _, right):
                return self._is_number(left, kind) and self._is_number(right, kind)
            case ast.UnaryOp(_, operand):
                return self._is_number(operand, kind)
            case ast.Name() | ast.Attribute() if self.own.isdisjoint(names_in(value)):
                known = self.nest.named(value)
                return is_literal(known) and isinstance(known, kind)
        return isinstance(value, ast.Constant) and isinstance(value.value, kind)

    def _asked_inside(self, s: ast.stmt) -> Pick | None:
        """The same, under other conditions, too."""
        found = self._asked(s)
        if found is None and isinstance(s, ast.If) and len(s.body) == 1:
            return self._asked_inside(s.body[0])
        return found

    def _dtype_once(self, value: ast.expr) -> DType | None:
        """That of an expression of names that one statement of the nest alone gives a value."""
        stored = stored_names(*self.nest.body)
        once = [s for s in every(ast.Assign, *self.nest.body) if stored.count(given_by(s)[0]) == 1]
        return self.dtype(value, once)

    def _picked(self, s: ast.stmt, chain: Sequence[ast.For]) -> tuple[str, ...]:
        found = self._pick(s, chain)
        return () if found is None else (found.best, found.at)

    def _neutral(self, word: str, dtype: ast.expr) -> str | None:
        return neutral_of(word, self.nest.dtype_of(dtype), self.language)

    def _acts_once(self, s: ast.stmt) -> bool:
        """Whether a statement out of loops stores elements or adds to them, under conditions."""
        match s:
            case ast.If(test, body, orelse):
                return self._is_pure(test) and all(map(self._acts_once, [*body, *orelse]))
            case ast.Assign([ast.Subscript(ast.Name()) as place], value):
                return self._is_pure(value) and self._is_pure(place.slice)
            case ast.Expr():
                return self._is_atomic(s)
        return isinstance(s, ast.Pass)

    def _is_atomic(self, s: ast.stmt) -> bool:
        match s:
            case ast.Expr(ast.Call(func, [ast.Subscript(ast.Name()) as place, value], [])):
                word = self.nest.named(func)
                ours = any(word is w for w in _ATOMICS) and is_alone(self.nest, tensor_of(place))
                return ours and self._is_pure(value) and self._is_pure(place.slice)
        return False


def given_by(s: ast.stmt) -> tuple[str, ast.expr | None]:
    """The name that a statement gives a value, and the value."""
    match s:
        case ast.Assign([ast.Name(name)], value) | ast.AnnAssign(ast.Name(name), _, value):
            return name, value
    return "", None


def is_exact(given: DType, kept: DType) -> bool:
    """Whether one dtype has all numbers of another."""
    if given is kept:
        return True
    if kept.is_float:
        return kept.bits >= max(32, 2 * given.bits)
    return kept.kind in (given.kind, "int") and given.is_int and given.bits < kept.bits
