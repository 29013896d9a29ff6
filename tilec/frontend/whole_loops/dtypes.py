"""The dtypes of variables that begin with a number, in a loop over whole tensors.

    total = 0.0                                 total: "float32" = 0.0
    for j in range(N):                 ->       for j in range(N):
        total += X[i, j]                            total += X[i, j]

What folds into a name that is a float makes it float32 where nothing is a float64, whatever the
elements are, and float64 where all of it is; into one that is an int, ints make it the dtype of
both, and float32 makes it that; what begins as `T.int64(0)` stays so. So the fold is that of a
variable; see `rows` and `tiles`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from tilec import language as T
from tilec.frontend.arithmetic import common_dtype
from tilec.frontend.values import as_syntax
from tilec.frontend.whole_loops.folds import ENDS, Folds
from tilec.frontend.whole_loops.nests import (
    Nest,
    called,
    changed_by,
    index_of,
    other_operand,
)
from tilec.frontend.whole_loops.rows import FOLDS
from tilec.ir.types import BOOL, DTYPES, FLOAT32, FLOAT64, DType
from tilec.support.syntax import assigned_names, every, name_nodes, names_in, stored_names

_WIDER = ("float64", "double")
_OPERATORS = (ast.Add, ast.Sub, ast.Mult)


def with_dtypes(nest: Nest, wide: bool | None = None) -> Nest:
    """The nest with the dtype said of each such name, and `name /= n` between loops written as
    `name = name / n`. `wide`: whether something is of float64; None before it is known what tensors
    are, which count as float32."""
    told = any(word in ast.unparse(s) for s in nest.body for word in _WIDER)
    if told and wide is None:
        return nest
    body: list[ast.stmt] = []
    known: dict[str, ast.expr] = {}
    for at, s in enumerate(nest.body):
        match s:
            case ast.Assign([ast.Name(name) as target], value):
                found = _Folded(nest, sums=known, name=name, wide=told or bool(wide)).read(
                    value, at
                )
                if found is not None:
                    known[name] = found[0]
                    s = ast.copy_location(ast.AnnAssign(target, *found, simple=1), s)
            case ast.AugAssign(ast.Name(name) as target, op, value):
                read = ast.copy_location(ast.Name(name, ast.Load()), target)
                value = ast.copy_location(ast.BinOp(read, op, value), s)
                s = ast.copy_location(ast.Assign([target], value), s)
        body.append(s)
    return replace(nest, body=tuple(body))


def with_casts(nest: Nest, typed: Nest) -> Nest:
    """The nest with casts to the dtypes that `typed` says of names, which stay names."""
    body: list[ast.stmt] = []
    for s, said in zip(nest.body, typed.body):
        match s, said:
            case ast.Assign(targets, value), ast.AnnAssign(annotation=ast.Constant(str() as text)):
                word = ast.copy_location(as_syntax(DTYPES[text]), value)
                value = ast.copy_location(ast.Call(word, [value], []), value)
                s = ast.copy_location(ast.Assign(targets, value), s)
        body.append(s)
    return replace(nest, body=tuple(body))


def changes_literals(nest: Nest) -> bool:
    """Whether loops change a name that begins with a number and no dtype. It has the dtype of all
    that a loop makes of it; in iterations that are written out, that of the first one at first."""
    own = assigned_names(nest.body) | {*nest.indices}

    def is_number(value: ast.expr) -> bool:
        words = (called(c.func, nest.named) for c in every(ast.Call, value))
        told = any(isinstance(w, DType) or w is T.cast or w is T.Cast for w in words)
        return not told and own.isdisjoint(names_in(value)) and not [*every(ast.Subscript, value)]

    begun: dict[str, list[ast.Assign]] = {}
    for s in every(ast.Assign, *nest.body):
        match s:
            case ast.Assign([ast.Name(name)], value) if is_number(value):
                begun.setdefault(name, []).append(s)
    for loop in every(ast.For, *nest.body):
        inside = [*ast.walk(loop)]
        for n in name_nodes(*loop.body):
            if isinstance(n.ctx, ast.Store) and any(s not in inside for s in begun.get(n.id, ())):
                return True
    return False


@dataclass
class _Folded(Folds):
    """What loops of a nest fold into a name; `sums`: the dtypes of those that began before it;
    `wide`: something may be of float64."""

    name: str = ""
    wide: bool = False

    def read(self, value: ast.expr, at: int) -> tuple[ast.expr, ast.expr] | None:
        """The dtype of the name that begins as `value` in a statement, as it is written, and the
        number; None where no loop behind it folds into it, or one gives it a dtype that does not
        show here."""
        behind = self.nest.body[at + 1 :]
        match value:
            case ast.Call(func, [ast.Constant(int() | float()) as number], []):
                cast = self.nest.named(func)
                if isinstance(cast, DType) and self._is_only_folded(behind, cast, lambda v: False):
                    return func, number
            case ast.Constant(bool()):
                bools = self._is_only_folded(behind, BOOL, _is_bool)
                return (_text(BOOL, value), value) if bools else None
            case ast.Constant() | ast.UnaryOp() | ast.Call() if self._is_int(value):
                dtype = self._of_int(behind)
                if dtype is not None and self._is_only_folded(behind, dtype, self._is_int):
                    return _text(dtype, value), value
        widest = self._widest(behind) if self._is_float(value) else None
        if widest is not None and self._is_only_folded(behind, widest, self._is_float):
            return _text(widest, value), value
        dtype = self.dtype(value, ())
        if dtype is not None and self._folded(behind) == {dtype}:  # as the elements are
            if self._is_only_folded(behind, dtype, lambda v: False):
                return _text(dtype, value), value
        return None

    def _widest(self, behind: Sequence[ast.stmt]) -> DType | None:
        """What a float becomes."""
        folded = self._folded(behind) if self.wide else {FLOAT32}
        return folded.pop() if folded in ({FLOAT32}, {FLOAT64}) else None

    def _is_only_folded(
        self, behind: Sequence[ast.stmt], dtype: DType, begins: Callable[[ast.expr], bool]
    ) -> bool:
        """Whether loops fold into it, bools into one that begins as such, and all else that it is
        given is where it begins again, or arithmetic on it: no other name for another number."""
        folds = {s for s, v, _ in self._folds(behind) if _is_bool(v) == (dtype is BOOL)}
        given = {s for outer in behind for s in _sides(outer) if self._leaves(s, dtype)}
        for s in behind:
            match s:
                case ast.Assign([ast.Name(name)], value) if name == self.name and begins(value):
                    given.add(s)
        return bool(folds) and stored_names(*behind).count(self.name) == len(folds | given)

    def _leaves(self, s: ast.stmt, dtype: DType) -> bool:
        """Whether a statement out of loops is arithmetic on the name that leaves it its dtype: an
        int that is divided, or to which a float is added, is one."""
        widest = dtype is (FLOAT64 if self.wide else FLOAT32)
        if widest or dtype is FLOAT32:
            new = self._chosen(s)
            if new is not None and self.name in names_in(new):
                known = replace(self, sums={**self.sums, self.name: _text(dtype, new)})
                if (widest and _is_arithmetic(new)) or known.dtype(new, ()) is dtype:
                    return True
        value = self._changed(s, *[ast.Div] * dtype.is_float)
        if value is None or widest:
            return value is not None
        if dtype is BOOL:
            return _is_bool(value)
        return _is_int(value) or (dtype.is_float and self._is_float(value))

    def _folds(
        self, behind: Sequence[ast.stmt]
    ) -> Iterator[tuple[ast.stmt, ast.expr, Sequence[ast.stmt]]]:
        """The statements of loops that fold into it, with what, and what stands before them."""
        for loop in every(ast.For, *behind):
            for at, outer in enumerate(loop.body):
                for s in _sides(outer):
                    value = self._changed(s) or (self._chosen(s) if s is not outer else None)
                    if value is not None:
                        yield s, value, loop.body[:at]

    def _of_int(self, behind: Sequence[ast.stmt]) -> DType | None:
        """The dtype that what is folded makes of an int."""
        dtypes = self._folded(behind)
        if dtypes == {FLOAT32}:
            return FLOAT32
        both = {common_dtype(self.nest.index, d) if d and d.is_int else None for d in dtypes}
        return both.pop() if len(both) == 1 else None

    def _folded(self, behind: Sequence[ast.stmt]) -> set[DType | None]:
        """The dtypes of what is folded."""
        counts, index = {index_of(s) for s in every(ast.For, *behind)}, self.nest.index

        def dtype(value: ast.expr, before: Sequence[ast.stmt]) -> DType | None:
            match value:
                case ast.Name(name) if name in counts:
                    return index
                case ast.IfExp(_, left, right) if _is_int(left) and _is_int(right):
                    return index
                case ast.BinOp(left, ast.Add() | ast.Sub() | ast.Mult() as op, right):
                    a, b = dtype(left, before), dtype(right, before)
                    if a is b is index and not isinstance(op, ast.Mult):
                        return a
                    if a and b and {a, b} == {index, FLOAT32}:
                        return FLOAT32
            return index if _is_int(value) else self.dtype(value, before)

        return {dtype(value, before) for _, value, before in self._folds(behind)}

    def _is_float(self, value: ast.expr) -> bool:
        match value:
            case ast.UnaryOp(ast.USub(), operand):
                return self._is_float(operand)
            case ast.Constant(float()):
                return True
            case ast.Name() | ast.Attribute():
                return isinstance(self.nest.named(value), float)
            case ast.Call(func, [ast.Constant(str())], []) if self.nest.named(func) is float:
                return True
        dtype = self._end_of(value)
        return dtype is not None and dtype.is_float

    def _is_int(self, value: ast.expr) -> bool:
        """Whether it is an int, or an end of ints that indices have, too."""
        dtype, index = self._end_of(value), self.nest.index
        ours = dtype is not None and dtype.is_int and common_dtype(index, dtype) is index
        return ours or _is_int(value)

    def _end_of(self, value: ast.expr) -> DType | None:
        """The dtype whose largest or smallest number a word is, which is a number as any other."""
        match value:
            case ast.Call(func, args, []):
                if any(self.nest.named(func) is word for word in ENDS):
                    if not args:
                        return FLOAT32
                    return self.nest.dtype_of(args[0])
        return None

    def _chosen(self, s: ast.stmt) -> ast.expr | None:
        """What a statement gives the name: on a condition, or out of loops."""
        match s:
            case ast.Assign([ast.Name(given)], value) if given == self.name:
                return value
        return None

    def _changed(self, s: ast.stmt, *more: type[ast.operator]) -> ast.expr | None:
        """What a statement adds to the name, or takes the largest or smallest of it and of, or
        whether one or both hold."""
        match s:
            case ast.Assign([ast.Name(given)], ast.Call(func, [a, b], [])) if given == self.name:
                return other_operand(self.name, a, b) if self.nest.named(func) in FOLDS else None
            case ast.Assign([ast.Name(given)], ast.BoolOp(_, [a, b])) if given == self.name:
                return other_operand(self.name, a, b)
        name, op, value = changed_by(s) or ("", None, None)
        return value if name == self.name and isinstance(op, (*_OPERATORS, *more)) else None


def _sides(s: ast.stmt) -> Iterator[ast.stmt]:
    """A statement, and those of its branches."""
    yield s
    for inner in (*s.body, *s.orelse) if isinstance(s, ast.If) else ():
        yield from _sides(inner)


def _is_bool(value: ast.expr) -> bool:
    """Whether it says that something holds."""
    match value:
        case ast.Constant(bool()) | ast.Compare() | ast.UnaryOp(ast.Not()):
            return True
        case ast.BoolOp(_, sides):
            return all(map(_is_bool, sides))
    return False


def _is_arithmetic(value: ast.expr) -> bool:
    """Whether it is sums, products and quotients alone, with no cast in them."""
    kinds = (ast.BinOp, ast.UnaryOp, ast.Name, ast.Constant, ast.Subscript, ast.Tuple)
    operators = (*_OPERATORS, ast.Div, ast.USub, ast.expr_context)
    return all(isinstance(n, (*kinds, *operators)) for n in ast.walk(value))


def _is_int(value: ast.expr) -> bool:
    if isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.USub):
        value = value.operand
    return isinstance(value, ast.Constant) and type(value.value) is int


def _text(dtype: DType, at: ast.expr) -> ast.expr:
    return ast.copy_location(ast.Constant(dtype.name), at)


def with_both(a: DType, b: DType) -> DType | None:
    """The dtype of 16 bits that one of two is, which has all numbers of the other, one of 8."""
    wide, narrow = (a, b) if a.bits > b.bits else (b, a)
    small = narrow.is_int or narrow.name.startswith(("float8_e4m3", "float8_e5m2"))
    return wide if wide.is_float and wide.bits == 16 and narrow.bits == 8 and small else None
