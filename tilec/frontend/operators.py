"""Operators: arithmetic, comparison, logic, and the choice between two values."""

from __future__ import annotations

import ast
import enum
import functools
import operator
import types
from collections.abc import Callable, Iterable, Sequence

from tilec import language as T
from tilec.frontend.arithmetic import PYTHON, SYMBOLS
from tilec.frontend.context import BlockBuilder
from tilec.frontend.guards import negated
from tilec.frontend.lanes import lanewise
from tilec.frontend.plain_python import at_run_time, is_object
from tilec.frontend.recovery import Again
from tilec.frontend.regions import Regions
from tilec.frontend.values import (
    NOT_RETURNED,
    Buffer,
    Lanes,
    Number,
    Region,
    Scalar,
    as_syntax,
    describe,
    is_literal,
    is_number,
)
from tilec.ir.ops import Binary, If, Load, Select, Shuffle, ShuffleXor, Yield
from tilec.ir.types import BOOL, DType, find_dtype
from tilec.support.syntax import names_in

BINARY: dict[type[ast.operator], str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.FloorDiv: "floordiv",
    ast.Mod: "mod", ast.Pow: "pow", ast.BitAnd: "and", ast.BitOr: "or", ast.BitXor: "xor",
    ast.LShift: "shl", ast.RShift: "shr",
}  # fmt: skip
CONTAINERS = (str, tuple, list, dict, set, frozenset)
_CHOSEN = ".chosen"  # hidden name: what a choice with `:=` in it gives
_COMPARE: dict[type[ast.cmpop], str] = {
    ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge",
}  # fmt: skip

_FUNCTIONS: dict[object, type[ast.operator | ast.cmpop | ast.unaryop]] = {
    **{PYTHON[kind]: op for op, kind in BINARY.items()},
    **{PYTHON[kind]: op for op, kind in _COMPARE.items()},
    operator.neg: ast.USub, operator.pos: ast.UAdd, operator.invert: ast.Invert,
    operator.not_: ast.Not,
}  # fmt: skip


def as_operator(function: object, operands: Sequence[object]) -> ast.expr | None:
    """What a call of a function of Python's module `operator` stands for: `a >= b` for
    `operator.ge(a, b)`."""
    known = isinstance(function, types.BuiltinFunctionType) and _FUNCTIONS.get(function)
    match known and known(), [as_syntax(x) for x in operands]:
        case ast.operator() as op, [a, b]:
            return ast.BinOp(a, op, b)
        case ast.cmpop() as op, [a, b]:
            return ast.Compare(a, [op], [b])
        case ast.unaryop() as op, [a]:
            return ast.UnaryOp(op, a)
    return None


class Operators(Regions):
    """Evaluates operators; their operands are left to a subclass."""

    def expression(self, node: ast.expr) -> object:
        """The value of `node`. Raises CompileError for what kernels do not have."""
        raise NotImplementedError

    def number_of(self, node: ast.expr, what: str = "this") -> Number:
        """The value of `node` as a number."""
        return self.number(self.expression(node), what, node)

    def condition(self, node: ast.expr) -> bool | Scalar:
        """The value of `node` as a condition: a bool known now, or a run-time one. Sequences,
        strings and None count as Python counts them."""
        if isinstance(node, ast.BoolOp):
            with self.at(self.frame.loc(node)):
                value = self.boolean_operator(node, truth=True)
        else:
            value = self.expression(node)
        if not _at_run_time(value) and not isinstance(value, T.Size):
            return bool(value)
        return self.truth(self.number(value, "this condition", node))

    def binary_operator(self, node: ast.BinOp) -> object:
        """`a + b` and the like; `+` and `*` of compile-time lists too. The sum of a long
        `a + b + c + …` nests as deep as it is long: its left sides are done from the inside."""
        chain, kept = [node], self.loc
        while isinstance(node.left, ast.BinOp):
            node = node.left
            chain.append(node)
        value = self.expression(node.left)
        try:
            while chain:
                node = chain.pop()
                self.loc = self.frame.loc(node)
                value = self._binary(node, value)
        finally:
            self.loc = kept
        return value

    def _binary(self, node: ast.BinOp, a: object) -> object:
        """The value of `node`, whose left side has the value `a`."""
        kind = BINARY.get(type(node.op))
        b = self.expression(node.right)
        if kind is None:
            raise self.error("@ is not an operator on tiles", "use T.gemm(A, B, C)")
        if isinstance(a, CONTAINERS) or isinstance(b, CONTAINERS):
            return self.of_containers(kind, a, b)
        if isinstance(a, T.Size) or isinstance(b, T.Size):
            return self._size_arithmetic(kind, a, b)
        if isinstance(a, Lanes) or isinstance(b, Lanes):
            return lanewise(self, lambda x, y: self.binary(kind, x, y), a, b)
        x, y = (self.number(v, "this operand", n) for v, n in ((a, node.left), (b, node.right)))
        whole = x.dtype.is_int if isinstance(x, Scalar) else isinstance(x, int)
        if kind == "pow" and whole and isinstance(y, Scalar) and y.dtype.is_int:
            self.write_out(node.right)
        return self.binary(kind, x, y)

    def write_out(self, key: ast.expr) -> None:
        """Let a loop around the code be traced once for each index, if one can be: the one whose
        index `key` names, else the innermost, and the others after it."""
        named = names_in(key)
        asked = [n for n in self.unrolls if isinstance(n.target, ast.Name) and n.target.id in named]
        if loops := (asked or self.unrolls)[-1:]:
            self.left_out.written_out.update(loops)
            raise Again

    def of_containers(self, kind: str, a: object, b: object) -> object:
        """An operator of Python's lists, tuples, strings, dicts and sets."""
        try:
            made: object = PYTHON[kind](a, b)
        except (KeyError, TypeError, ValueError):
            shown = f"{describe(a)} {SYMBOLS.get(kind, kind)} {describe(b)}"
            hint = "name one of its items, or loop over it: for x in …"
            raise self.error(f"{shown} means nothing", hint) from None
        self.made[id(made)] = made, self.builder
        return made

    def _size_arithmetic(self, kind: str, a: object, b: object) -> object:
        """Arithmetic on sizes that have no value yet, in the shape of an annotation."""
        try:
            return PYTHON[kind](a, b)
        except TypeError:
            message = f"{describe(a)} {SYMBOLS[kind]} {describe(b)} cannot be an extent"
            raise self.error(message, "extents are ints, sizes, and + - * // % of these") from None

    def unary_operator(self, node: ast.UnaryOp) -> object:
        """`-a`, `not a`, `~a`."""
        if isinstance(node.op, ast.Not):
            cond = self.condition(node.operand)
            return self.logical_not(cond)
        value = self.expression(node.operand)
        if isinstance(value, Lanes) and isinstance(node.op, ast.USub):
            return lanewise(
                self, lambda x: self.unary("neg", x) if isinstance(x, Scalar) else -x, value
            )
        x = self.number(value, "this operand", node.operand)
        match node.op:
            case ast.UAdd():
                return x
            case ast.USub():
                return self.unary("neg", x) if isinstance(x, Scalar) else -x
            case _:
                if isinstance(x, float):
                    raise self.error(f"~ of {describe(x)} needs an integer", "convert: T.int32(x)")
                return self.unary("not", x) if isinstance(x, Scalar) else ~int(x)

    def comparison(self, node: ast.Compare) -> object:
        """`a < b <= c`: each operand is evaluated once."""
        left_node = node.left
        left = True if self._is_array_here(node) else self.expression(left_node)
        result: bool | Scalar = True
        for op, right_node in zip(node.ops, node.comparators):
            right = self.expression(right_node)
            one = self._compare_once(op, left, right, (left_node, right_node))
            left_node = right_node
            if result is True:
                result = one
            elif one is False or result is False:
                result = False
            elif one is not True:
                assert isinstance(result, Scalar) and isinstance(one, Scalar)
                result = self.logical_and(result, one)
            left = right
        return result

    def _is_array_here(self, node: ast.Compare) -> bool:
        """Whether this asks of an array from outside of the kernel whether it is None, which is all
        that a kernel may ask of it."""
        against = node.comparators[0]
        if not isinstance(node.left, ast.Name) or node.left.id in self.names:
            return False
        if not isinstance(node.ops[0], ast.Is | ast.IsNot) or not isinstance(against, ast.Constant):
            return False
        found, value = self.frame.source.lookup(node.left.id)
        return found and hasattr(value, "shape") and hasattr(value, "dtype")

    def _compare_once(
        self, op: ast.cmpop, left: object, right: object, nodes: tuple[ast.expr, ast.expr]
    ) -> bool | Scalar:
        match op:
            case ast.Is() | ast.IsNot():
                if isinstance(right, bool) and isinstance(left, Scalar) and left.dtype is BOOL:
                    return left if right == isinstance(op, ast.Is) else self.logical_not(left)
                one_object = right is None or isinstance(right, bool) or _is_one_object(right)
                if left is not None and not one_object:
                    raise self.error(f"{describe(right)} has no identity to ask for", "use ==")
                same = _same if isinstance(right, DType) else operator.is_
                return same(left, right) == isinstance(op, ast.Is)
            case ast.In() | ast.NotIn():
                if not isinstance(right, (*CONTAINERS, range)):
                    message = f"{describe(left)} in {describe(right)} is not known here"
                    raise self.error(message, "compare with each: x == 1 or x == 2")
                if not isinstance(right, str) and at_run_time((left, *right)):
                    holds = self._equal(((left, x) for x in right), False, nodes)
                    return holds if isinstance(op, ast.In) else self.logical_not(holds)
                try:
                    return (left in right) == isinstance(op, ast.In)
                except TypeError:  # a list in a dict, a number in a text
                    message = f"{describe(left)} cannot be in {describe(right)}"
                    raise self.error(message, "look for what it may hold") from None
        kind = _COMPARE[type(op)]
        if not any(_at_run_time(v) for v in (left, right)) and not (
            is_literal(left) and is_literal(right)
        ):
            if isinstance(left, tuple | list) and isinstance(right, tuple | list):
                if kind in ("eq", "ne") and at_run_time((left, right)):
                    alike = type(left) is type(right) and len(left) == len(right)
                    holds = alike and self._equal(zip(left, right), True, nodes)
                    return holds if kind == "eq" else self.logical_not(holds)
            if isinstance(left, CONTAINERS) and type(left) is type(right):
                return bool(self.of_containers(kind, left, right))
            if kind not in ("eq", "ne"):
                message = f"{describe(left)} and {describe(right)} have no order"
                raise self.error(message, "compare numbers with < and >, anything with ==")
            return _same(left, right) == (kind == "eq")
        x, y = (self.number(v, "this operand", n) for v, n in zip((left, right), nodes))
        return self.truth(self.compare(kind, x, y))

    def _equal(
        self, pairs: Iterable[tuple[object, object]], every: bool, nodes: tuple[ast.expr, ast.expr]
    ) -> bool | Scalar:
        """Whether every pair is of two equal values, or any."""
        found: Number = every
        for a, b in pairs:
            same = self._compare_once(ast.Eq(), a, b, nodes)
            if isinstance(same, Scalar):
                found = self._selected(same, *((found, False) if every else (True, found)))
            elif same != every:
                return same
        return self.truth(found)

    def boolean_operator(self, node: ast.BoolOp, truth: bool = False) -> object:
        """`a and b`, `a or b`: the second is evaluated only where it counts. As in Python, one of
        the operands; where only their `truth` is asked for, at run time, a bool."""
        is_and = isinstance(node.op, ast.And)
        result = self.expression(node.values[0])
        for later in node.values[1:]:
            if not _at_run_time(result):
                if bool(result) != is_and:
                    return result
                result = self.expression(later)
                continue
            number = self.number(result, "this operand")
            first = self.truth(number)
            assert isinstance(first, Scalar)
            second: Callable[[], Number] = functools.partial(self.condition, later)
            if not truth:
                second = functools.partial(self.number_of, later, "this operand")
            # `and` decides where the first is 0, whatever its dtype.
            decided = not is_and if is_and or truth or first is number else number
            kept: Callable[[], Number] = functools.partial(self.number, decided, "this operand")
            result = self.choose(first, *((second, kept) if is_and else (kept, second)))
        return result

    def conditional(self, node: ast.IfExp) -> object:
        """`a if c else b`."""
        cond = self.condition(node.test)
        if not isinstance(cond, Scalar):
            return self.expression(node.body if cond else node.orelse)
        sides = node.body, node.orelse
        if isinstance(sides[0], ast.Tuple) and isinstance(sides[1], ast.Tuple):
            pairs = [*zip(sides[0].elts, sides[1].elts)]
            apart = not any(isinstance(n, ast.Starred) for pair in pairs for n in pair)
            if apart and len(sides[0].elts) == len(sides[1].elts):
                return tuple(self._chosen(cond, *pair) for pair in pairs)
        return self._chosen(cond, *sides)

    def _chosen(self, cond: Scalar, body: ast.expr, orelse: ast.expr) -> Number:
        return self.choose(
            cond,
            lambda: self.number_of(body, "this value"),
            lambda: self.number_of(orelse, "this value"),
        )

    def choose(
        self, cond: Scalar, on_true: Callable[[], Number], on_false: Callable[[], Number]
    ) -> Number:
        """One of two values at run time. Both are computed where that is harmless; otherwise (an
        on-chip read that may be out of bounds, or of what nobody may have written, a division) only
        the one that is chosen."""
        hazards, test = self.hazards, self.tests.get(cond.value)
        with self.inside(conditional=True, guard=test) as then:
            a = on_true()
        with self.inside(conditional=True, guard=negated(test)) as other:
            b = on_false()
        names, other_names = then.names, other.names
        named = self._named_in(names, other_names)
        ops = (*then.ops, *other.ops)
        harmless = hazards == self.hazards and all(o.pure or isinstance(o, Load) for o in ops)
        if self.parallel is None and not any(isinstance(o, Shuffle | ShuffleXor) for o in ops):
            loads = (o for o in ops if isinstance(o, Load))
            harmless &= not any(o.buffer.space == "shared" for o in loads)
        self.hazards = hazards
        if harmless:
            self.builder.ops += then.ops + other.ops
            for name in named:
                x, y = names[name], other_names[name]
                if is_number(x) and is_number(y):
                    self.names[name] = self._selected(cond, x, y)
                else:
                    self.names[name] = y if x is NOT_RETURNED else x
            return self._selected(cond, a, b)
        if named:
            names[_CHOSEN], other_names[_CHOSEN] = a, b
            self.join(cond, then, other)
            return self.number(self.names.pop(_CHOSEN), "this value")
        x, y = self.unify_in(then, other, a, b)
        for block, value in ((then, x), (other, y)):
            block.emit(Yield, (value.value,), loc=self.loc)
        branches = then.block(), other.block()
        return self.scalar(self.emit(If, cond.value, *branches, (x.value.type,)).result)

    def _named_in(self, names: dict[str, object], other: dict[str, object]) -> list[str]:
        """What `:=` has given a value to in one or both of two sides. The side that has not done so
        leaves the name as it was, or as one that nobody asks for: Python would raise there."""
        old, sides = self.names, (names, other)
        found = [n for side in sides for n, v in side.items() if old.get(n) is not v]
        for name in found:
            for side in sides:
                side.setdefault(name, NOT_RETURNED)
        return [*dict.fromkeys(found)]

    def join(self, cond: Scalar, on_true: BlockBuilder, on_false: BlockBuilder) -> None:
        """Emit the `If` of two branches; names that differ between them become its results."""
        raise NotImplementedError

    def _selected(self, cond: Scalar, a: Number, b: Number) -> Number:
        """A `Select`, or the logic it amounts to."""
        if a is True and b is False:
            return cond
        if b is False and isinstance(a, Scalar) and a.dtype is BOOL:
            return self.logical_and(cond, a)
        if a is True and isinstance(b, Scalar) and b.dtype is BOOL:
            return self.emit_scalar(Binary, "or", cond.value, b.value)
        if not isinstance(a, Scalar) and not isinstance(b, Scalar) and a is b:
            return a
        x, y = self.unify(a, b, "or")
        return self.emit_scalar(Select, cond.value, x.value, y.value)

    def unify_in(
        self, then: BlockBuilder, other: BlockBuilder, a: Number, b: Number
    ) -> tuple[Scalar, Scalar]:
        """`unify`, the conversions being emitted where each value was computed."""
        with self.inside():
            dtype = self.unify(a, b, "or")[0].dtype
        made = []
        for builder, value in ((then, a), (other, b)):
            self.builders.append(builder)
            made.append(self.convert(value, dtype))
            self.builders.pop()
        return made[0], made[1]


def _at_run_time(value: object) -> bool:
    return isinstance(value, Scalar | Region | Buffer)


def _is_one_object(value: object) -> bool:
    """Whether Python has one object that is equal to `value`: what `is` may ask for."""
    return isinstance(value, enum.Enum | DType | Buffer | type | types.FunctionType) or is_object(
        value
    )


def _same(a: object, b: object) -> bool:
    """Equality of compile-time values; a dtype equals its name."""
    if isinstance(a, DType) or isinstance(b, DType):
        return find_dtype(a) is find_dtype(b) if a is not None and b is not None else False
    return a == b
