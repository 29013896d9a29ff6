"""Whole loops that are sums of products, as T.gemm gives them.

    for b, s, n in T.Parallel(B, S, N):
        gate: T.float32 = bias[n]
        for k in range(K):
            x = T.cast(X[b, s, k], "float32")
            gate += x * T.cast(W[n, k], "float32")
        Y[b, s, n] = T.silu(gate)

What an index is follows from the operands that depend on it: `n` is a column, as only the right
operand does; `b` and `s` are rows, as only the left one does; what both or neither depend on is the
same for a tile. Names stand for what they are given, a condition for an operand that is 0 where it
does not hold, and what a sum begins with is added behind the loop.
"""

from __future__ import annotations

import ast
import copy
import itertools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tilec import language as T
from tilec.frontend.values import as_syntax
from tilec.frontend.whole_loops.nests import (
    DtypeOf,
    Fresh,
    Named,
    Nest,
    Put,
    as_one_loop,
    called,
    chain_of,
    counted,
    elements_of,
    index_of,
    indices_of,
    is_zero,
    other_operand,
)
from tilec.frontend.whole_loops.operands import Operand, depends
from tilec.frontend.whole_loops.places import in_variables
from tilec.frontend.whole_loops.rows import is_pure
from tilec.ir.types import DType
from tilec.support.syntax import every, names_in, placed, stored_names

Decided = Callable[[ast.expr], bool | None]


@dataclass(frozen=True)
class Sum:
    """What the body calls a sum, its dtype, and the operands of what it adds up."""

    total: ast.expr
    dtype: ast.expr
    left: Operand
    right: Operand


@dataclass(frozen=True)
class Product:
    """A loop over `outer` that adds up `sums` along `inner`, loops in one another with their
    extents, and what it does with them: `before`, which stood before the loops, and `epilogue`.
    `rows`: indices on which all left operands depend and no right one, `columns`: the other way
    round."""

    outer: tuple[str, ...]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    inner: tuple[tuple[str, ast.expr], ...]
    sums: tuple[Sum, ...]
    before: tuple[ast.stmt, ...]
    epilogue: tuple[ast.stmt, ...]

    @property
    def pairs(self) -> list[tuple[Operand, Operand]]:
        return [(s.left, s.right) for s in self.sums]

    @property
    def operands(self) -> list[Operand]:
        return [o for pair in self.pairs for o in pair]

    @property
    def sided(self) -> list[tuple[Operand, tuple[str, ...]]]:
        """The operands with the indices on which those of their side alone depend."""
        return [x for a, b in self.pairs for x in ((a, self.rows), (b, self.columns))]

    @property
    def several(self) -> set[str]:
        """The indices of which tiles go along the longest ones."""
        return {i for found in (self.rows, self.columns) if len(found) > 1 for i in found}

    @property
    def text(self) -> str:
        """All of it that may differ between two of one loop."""
        written = [*self.before, *self.epilogue, *(e for _, e in self.inner)]
        for s in self.sums:
            written += [s.total, s.dtype]
        return "\n".join([*map(ast.unparse, written), *(o.text for o in self.operands)])


def find_product(
    nest: Nest, named: Named, decided: Decided, dtype_of: DtypeOf, fresh: Fresh
) -> Product | None:
    """The sums of products that a nest is, also where elements are what is added to."""
    found = product_of(nest, named, decided)
    if found is None:
        found = product_of(in_variables(nest, named, dtype_of, "", fresh), named, decided)
    return found


def product_of(nest: Nest, named: Named, decided: Decided) -> Product | None:
    """The sums of products that a loop's body is; None for any other. `decided`: what is known of
    a condition before the kernel runs."""
    body = as_one_loop(nest.body)
    at = next((n for n, s in enumerate(body) if isinstance(s, ast.For)), len(body))
    before, epilogue = body[:at], body[at + 1 :]
    if at == len(body) or any(every(ast.For | ast.While | ast.With | ast.Return, *epilogue)):
        return None
    loop = body[at]
    assert isinstance(loop, ast.For)
    loops, between, within, tests = _levels(loop)
    inner, reader = _counts(loops, named), _Reader(named, decided)
    if inner is None or any(map(reader.added, between)):
        return None
    if not reader.reads(before, [*between, *within]):
        return None
    stored = stored_names(*before, loop)
    own = {name for name, _ in inner} | reader.inside
    if own & names_in(*before, *epilogue) or any(
        stored.count(n) > 1 for n in {*reader.names, *own}
    ):
        return None
    if not {*nest.indices}.isdisjoint(stored):
        return None
    extents = [e for _, e in inner]
    if not names_in(*extents).isdisjoint({*nest.indices, *stored}):
        return None  # a triangle
    sums, fixed = list[Sum](), set[str]()
    for total, dtype, *factors in reader.products():
        pair = _sides(nest.indices, *factors)
        for test in map(reader.meant, tests):
            pair = pair and _tested(*pair, test, nest.indices, fixed)
        if pair is None or not all(is_pure(t, named) for t in tests):
            return None
        sums.append(Sum(total, dtype, *pair))
    inner = _longest_last(inner, [o for s in sums for o in (s.left, s.right)], fixed)
    rows = tuple(i for i in nest.indices if all(depends(i, s.left, s.right) for s in sums))
    columns = tuple(i for i in nest.indices if all(depends(i, s.right, s.left) for s in sums))
    begun = tuple(reader.begun)
    found = Product(nest.indices, rows, columns, inner, tuple(sums), begun, epilogue)
    return found if sums and inner and rows and columns else None


class Missed(NamedTuple):
    """A statement that adds up products of elements of rows and columns, which are those of
    `tensors`; `inner` are extents of its loops that do not follow from the
    iteration, `why` says what T.gemm does not give."""

    statement: ast.stmt
    tensors: frozenset[str]
    inner: tuple[ast.expr, ...]
    why: str


def missed_product(nest: Nest, named: Named) -> Missed | None:
    """Such a statement of a nest that is no product."""
    stored = stored_names(*nest.body)
    for at, loop in enumerate(nest.body):
        if not isinstance(loop, ast.For):
            continue
        chain = chain_of(loop)
        inner, reader = _counts(chain, named), _Reader(named, lambda test: True)
        if inner is None:
            continue
        for s in nest.body[:at]:
            if not {*stored_names(s)} & {n for n in stored if stored.count(n) > 1}:
                reader.note(s)
        indices, extents = zip(*inner)
        row = Nest((*nest.indices, *indices), (*nest.extents, *extents), tuple(chain[-1].body))
        if (missed := missed_product(row, named)) is not None:
            return missed._replace(why="the loops around it are not done over tiles of such sums")
        within = [s for s in ast.walk(loop) if isinstance(s, ast.stmt)]
        under = {x for s in within if isinstance(s, ast.If) for x in s.body + s.orelse}
        found, others = dict[ast.stmt, list[Operand]](), False
        for s in within:
            added = reader.added(s)
            operands = [] if added is None else reader.factors(added[1], inner[-1][0])
            pairs = itertools.permutations([o.names for o in operands], 2)
            if any({*nest.indices} & a - b and {*nest.indices} & b - a for a, b in pairs):
                found[s] = operands
            elif not isinstance(s, ast.For | ast.If):
                others |= added is not None or not reader.note(s)
        others |= any(stored.count(name) > 1 for name in reader.names)
        for s, operands in found.items():
            why = "its indices or dtypes are not T.gemm's"
            if len(operands) > 2:
                why = f"{len(operands)} factors go with {inner[-1][0]}, and T.gemm takes two"
            elif s in under:
                why = "a condition says what is added"
            elif others:
                why = "the loop does something else, too"
            tensors = frozenset(o.tensor.id for o in operands if o.tensor)
            known = tuple(e for _, e in inner if names_in(e).isdisjoint((*nest.indices, *stored)))
            return Missed(s, tensors, known, why)
    return None


def _levels(
    loop: ast.For,
) -> tuple[list[ast.For], list[ast.stmt], list[ast.stmt], list[ast.expr]]:
    """Loops in one another, what stands between them, what the innermost one does, and the
    conditions around it."""
    loops, between, tests = list[ast.For](), list[ast.stmt](), list[ast.expr]()
    body: list[ast.stmt] = [loop]
    while True:
        match body[-1]:
            case ast.For() as inner:
                loops.append(inner)
            case ast.If(ast.BoolOp(ast.And(), both), _, []) as inner:
                tests += both
            case ast.If(test, _, []) as inner:
                tests.append(test)
            case _:
                return loops, between, body, tests
        between += body[:-1]
        body = inner.body


def _counts(loops: Sequence[ast.For], named: Named) -> tuple[tuple[str, ast.expr], ...] | None:
    """The indices and the extents of loops."""
    found = []
    for s in loops:
        extent = counted(s.iter, named)
        if extent is None or s.orelse or not index_of(s):
            return None
        found.append((index_of(s), extent))
    return tuple(found)


def _longest_last(
    inner: tuple[tuple[str, ast.expr], ...], operands: Sequence[Operand], fixed: set[str]
) -> tuple[tuple[str, ast.expr], ...]:
    """Loops in an order in which tiles go along the last one, the longest that can be: none of
    those that are `fixed`, and one that is an index by itself, if any is."""

    def size(loop: tuple[str, ast.expr]) -> int:
        extent = loop[1].value if isinstance(loop[1], ast.Constant) else None
        return extent if isinstance(extent, int) else sys.maxsize

    along = [loop for loop in inner if loop[0] not in fixed]
    along = [loop for loop in along if all(o.is_along(loop[0]) for o in operands)] or along
    if not along:
        return ()
    last = max(reversed(along), key=size)
    return (*(loop for loop in inner if loop is not last), last)


def _sides(outer: Sequence[str], a: Operand, b: Operand) -> tuple[Operand, Operand] | None:
    """Two operands; the one that alone depends on the last of such indices is the right one."""
    free = [i for i in outer if (i in a.names) != (i in b.names)]
    if not free:
        return None
    return (b, a) if free[-1] in a.names else (a, b)


def _tested(
    left: Operand, right: Operand, test: ast.expr, outer: Sequence[str], fixed: set[str]
) -> tuple[Operand, Operand] | None:
    """The operands of what is added where a condition holds; None for one that says so of a row and
    a column. Where it is one of rows alone, what the right operand has there is multiplied by 0,
    which is a nan if it is infinite: so it may be asked of indices only, which tells taps beyond
    an image from others, and is to be the same along a tile's sum: these names become `fixed`."""
    names = names_in(test)
    of_rows = any(depends(i, left, right) for i in names & {*outer})
    of_columns = any(depends(i, right, left) for i in names & {*outer})
    if of_rows or of_columns:
        if (of_rows and of_columns) or elements_of(ast.Expr(test)):
            return None
        fixed |= names
    if not of_columns:
        left = replace(left, tests=(*left.tests, test))
    if not of_rows:
        right = replace(right, tests=(*right.tests, test))
    return left, right


@dataclass
class _Total:
    """A variable that a loop adds to: what the body calls it, and its dtype; what is added to."""

    total: ast.expr
    added: list[ast.expr] = field(default_factory=list)
    dtype: ast.expr | None = None
    begins: bool = False


class _Reader:
    """Reads a body. `names`: the syntax that names stand for, `inside` those that the loop makes;
    `begun`: what stands before the loop, as it is to stand behind it."""

    def __init__(self, named: Named, decided: Decided) -> None:
        self.named, self.decided = named, decided
        self.names: dict[str, ast.expr] = {}
        self.inside: set[str] = set()
        self.totals: dict[str, _Total] = {}
        self.begun: list[ast.stmt] = []

    def reads(self, before: Sequence[ast.stmt], inside: Sequence[ast.stmt]) -> bool:
        """Whether a loop does nothing but add to what began before it, and name what it adds."""
        named = []
        for s in inside:
            found = self.added(s)
            if found is None:
                named.append(s)
                continue
            total = self.totals.setdefault(ast.unparse(found[0]), _Total(found[0]))
            total.added.append(found[1])
        if not all(map(self._begins, before)) or not all(map(self.note, named)):
            return False
        self.inside = {*stored_names(*named)}
        own = {n for t in self.totals.values() for n in names_in(t.total)}
        values = [v for s in (*self.begun, *named) if (v := getattr(s, "value", None)) is not None]
        return own.isdisjoint(names_in(*values)) and all(t.begins for t in self.totals.values())

    def products(self) -> list[tuple[ast.expr, ast.expr, Operand, Operand]]:
        """What is added to which total, of which dtype; none, where some of it is no product."""
        made, own = [], {ast.unparse(t.total).split("[")[0] for t in self.totals.values()}
        for t in self.totals.values():
            for value in t.added:
                match self.meant(value):
                    case ast.BinOp(a, ast.Mult(), b) if t.dtype is not None:
                        one, other = (self._operand(x) or self._computed(x) for x in (a, b))
                        if one is None or other is None or own & (one.names | other.names):
                            return []
                        made.append((t.total, t.dtype, one, other))
                    case _:
                        return []
        return made

    def added(self, s: ast.stmt) -> tuple[ast.expr, ast.expr] | None:
        """What a statement adds to, and what it adds."""
        match s:
            case ast.AugAssign(target, ast.Add(), value):
                return target, value
            case ast.Assign([target], ast.BinOp(a, ast.Add(), b)):
                found = other_operand(ast.unparse(target), a, b)
                return None if found is None else (target, found)
            case ast.Assign([target], ast.Call(func, [a, b, c], [])):
                if self._called(func) is T.fma and ast.unparse(c) == ast.unparse(target):
                    return target, ast.copy_location(ast.BinOp(a, ast.Mult(), b), s)
        return None

    def _begins(self, s: ast.stmt) -> bool:
        """Reads a statement before the loop: a total's allocation, what it begins with, a name."""
        match s:
            case ast.Assign([ast.Name(name)], ast.Call(func, args, words)) if self._called(
                func
            ) in (T.alloc_var, T.alloc_local, T.alloc_fragment):
                return self._allocated(name, self._called(func), args, words)
            case ast.Expr(ast.Call(func, [ast.Name(name), *value], [])):
                called, zero = self._called(func), ast.copy_location(ast.Constant(0), s)
                if called is T.clear or (called is T.fill and value):
                    return self._starts(f"{name}[0]", (value or [zero])[0])
                return False
            case ast.AnnAssign(ast.Name(name), dtype, ast.expr() as value):
                if name in self.totals:
                    return self._starts(name, value, dtype)
            case ast.Assign([target], value) if (name := ast.unparse(target)) in self.totals:
                if self.totals[name].dtype is not None:
                    return self._starts(name, value)
                cast = self._cast(value)  # which says the dtype
                return (
                    isinstance(target, ast.Name) and cast is not None and self._starts(name, *cast)
                )
        self.begun.append(s)
        return self.note(s)

    def _allocated(
        self, name: str, called: object, args: Sequence[ast.expr], words: Sequence[ast.keyword]
    ) -> bool:
        given: dict[str | None, ast.expr] = {w.arg: w.value for w in words}
        if called is T.alloc_var:
            given |= dict(zip(("dtype", "init"), args))
        else:
            given |= dict(zip(("shape", "dtype"), args))
            one = "shape" in given and ast.unparse(given["shape"]) in ("(1,)", "[1]", "1")
            name = f"{name}[0]" if one else ""
        total, start = self.totals.get(name), given.get("init")
        if total is None or total.dtype is not None:
            return False
        total.dtype = given.get("dtype")
        return start is None or self._starts(name, start)

    def _starts(self, name: str, start: ast.expr, dtype: ast.expr | None = None) -> bool:
        """Notes what a total begins with: it is added behind the loop to what is summed from 0."""
        total = self.totals.get(name)
        if total is None or total.begins:
            return False
        total.begins, total.dtype = True, total.dtype or dtype
        if total.dtype is None or is_zero(start):
            return total.dtype is not None
        cast = ast.copy_location(ast.Call(as_syntax(T.cast), [start, total.dtype], []), start)
        target = copy.deepcopy(total.total)
        assert isinstance(target, ast.Name | ast.Subscript)
        made = ast.AugAssign(target, ast.Add(), cast)
        self.begun.append(ast.copy_location(made, start))
        return is_pure(start, self.named)

    def note(self, s: ast.stmt) -> bool:
        """Notes what a statement gives a name."""
        match s:
            case ast.Assign([ast.Name(name)], value) if is_pure(value, self.named):
                self.names[name] = self.meant(value)
            case ast.AnnAssign(ast.Name(name), dtype, ast.expr() as value) if is_pure(
                value, self.named
            ):
                cast = ast.Call(as_syntax(T.cast), [self.meant(value), dtype], [])
                self.names[name] = ast.copy_location(cast, s)
            case _:
                return False
        return True

    # --- expressions ------------------------------------------------------------------------------

    def meant(self, node: ast.expr) -> ast.expr:
        """An expression without names that stand for others."""
        if not names_in(node) & self.names.keys():
            return node
        made = Put(self.names).visit(copy.deepcopy(node))
        assert isinstance(made, ast.expr)
        return made

    def factors(self, node: ast.expr, inner: str) -> list[Operand]:
        """The elements at places that depend on `inner` of which an expression is the product."""
        match node := self.meant(node):
            case ast.BinOp(a, ast.Mult(), b):
                return self.factors(a, inner) + self.factors(b, inner)
        found, cast = self._operand(node), self._cast(node)
        if found is None and cast is not None:
            return self.factors(cast[0], inner)
        return [found] if found is not None and inner in found.names else []

    def _operand(self, node: ast.expr) -> Operand | None:
        match node:
            case ast.Subscript(ast.Name() as tensor):
                if any(every(ast.Slice, node)) or not is_pure(node, self.named):
                    return None
                return Operand(node, tensor, tuple(indices_of(node)), None)
            case ast.IfExp(test, one, other):
                side = self.decided(test)
                return None if side is None else self._operand(one if side else other)
        cast = self._cast(node)
        found = None if cast is None else self._operand(cast[0])
        if found is None or cast is None or found.dtype is not None:
            return None
        return replace(found, dtype=cast[1])

    def _computed(self, node: ast.expr) -> Operand | None:
        pure = is_pure(node, self.named) and not [*every(ast.Slice | ast.Dict, node)]
        return Operand(node, None, (), None) if pure else None

    def _cast(self, node: ast.expr) -> tuple[ast.expr, ast.expr] | None:
        """What is cast, and to which dtype."""
        match node:
            case ast.Call(ast.Attribute(value, "astype"), [dtype], []):
                return value, dtype
            case ast.Call(func, [dtype, value], []) if self._called(func) is T.Cast:
                return value, dtype
            case ast.Call(func, [value, dtype], []) if self._called(func) is T.cast:
                return value, dtype
            case ast.Call(dtype, [value], []) if isinstance(self._called(dtype), DType):
                return value, dtype
            case ast.Call(func, [ast.Subscript(tensor) as value], []):
                if self._called(func) is float:
                    wide = f"{ast.unparse(tensor)}.dtype == 'float64'"
                    text = f"'float64' if {wide} else 'float32'"
                    return value, placed(ast.parse(text, mode="eval").body, node)
        return None

    def _called(self, func: ast.expr) -> object:
        return called(func, self.named)
