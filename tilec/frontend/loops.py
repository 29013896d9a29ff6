"""Run-time loops that run in order: `for` over a range, `while`, and what they carry around.

A name that is assigned in a loop's body and has a value before it is carried: it becomes an SSA
value that each iteration takes and hands on. `break` ends at the front end: the loop becomes a
`while` that carries a `live` flag, and what follows a `break` or `continue` in the body stands
under an `if`.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from tilec.frontend.arithmetic import affine_of
from tilec.frontend.branches import Branches, same_value
from tilec.frontend.context import BlockBuilder, LoopFlags
from tilec.frontend.index import Reach
from tilec.frontend.recovery import check_known
from tilec.frontend.statement_order import BadOrder, arrange, may_run_ahead, of_statements
from tilec.frontend.values import Buffer, Number, Region, Scalar, Undefined, describe, is_number
from tilec.ir.core import Block, Op, Value
from tilec.ir.effects import buffers_written, effects_in
from tilec.ir.intervals import add
from tilec.ir.ops import Const, For, Gemm, While, Yield
from tilec.ir.types import BOOL, DType, ScalarType
from tilec.support.syntax import assigned_names, every, names_in

_TRIES = 5  # how often a body is traced before the dtypes of its literals must have settled
_MOST_WRITTEN = 8192  # operations of a loop that is written out
_hidden = count()


@dataclass(frozen=True, eq=False, slots=True)
class Carried:
    """A traced loop body: its block (arguments: `extra`, then the carried values) and inits."""

    block: Block
    inits: tuple[Value, ...]
    dtypes: tuple[DType, ...]


@dataclass(frozen=True, slots=True)
class Counted:
    """`for target in range(lo, hi, step)`; `kind` and `attributes` as in the op `For`.

    `index_of` makes the target's value from the loop's index (a coordinate, several of them, …).
    `runs_through`: no `break` ends it.
    """

    kind: str
    builtin: str
    lo: int | Scalar
    hi: int | Scalar
    step: int | Scalar
    index_of: Callable[[Scalar], object]
    attributes: dict[str, Any]
    runs_through: bool = True

    @property
    def trips(self) -> int | None:
        """How often the body runs, if that is known."""
        if isinstance(self.lo, int) and isinstance(self.hi, int) and isinstance(self.step, int):
            return max(0, -(-(self.hi - self.lo) // self.step))
        return None


class Loops(Branches):
    """Traces sequential loops."""

    def block(self, statements: list[ast.stmt]) -> None:
        """Trace statements in order."""
        raise NotImplementedError

    # --- for --------------------------------------------------------------------------------------

    def counted_loop(self, loop: Counted, target: ast.expr, body: list[ast.stmt]) -> None:
        """Emit a `For`, or a `While` if a `break` can end it."""
        if loop.trips == 0:
            self.forget(body, (target,))
            return
        place, hazards = self.loc, self.hazards
        loop = replace(loop, runs_through=not any(map(_breaks, body)))
        flags = self._flags(loop.builtin)
        names = self._carried_names(body)
        index = Value(
            ScalarType(self.index_dtype), target.id if isinstance(target, ast.Name) else ""
        )

        def one_iteration() -> None:
            self._iterate(flags, target, loop.index_of(self._index(loop, index)), body)

        carried = self._carry(names, one_iteration, loop.trips is None, (index,), body)
        if flags.breaks:
            self.hazards = hazards
            with self.at(place):
                self._breaking_loop(loop, target, body)
            return
        with self.at(place):
            lo, hi, step = (self.index_value(x) for x in (loop.lo, loop.hi, loop.step))
            kind, attributes = loop.kind, loop.attributes
            if kind == "serial" and attributes:  # Python's own
                if self.parallel is None and may_run_ahead(carried.block):
                    kind = "pipelined"
                else:
                    attributes = {}
                    self.own_loops |= {index} if self.parallel is None else set()
            block, attributes = self._arranged(carried.block, attributes)
            if loop.kind in ("unroll", "vectorized") and loop.trips is not None:
                self._check_written(loop.builtin, loop.trips, block)
            made = self.emit(For, kind, lo, hi, step, carried.inits, block, **attributes)
        self._rename(names, made.results)
        self.forget(body, (target,))

    def _check_written(self, builtin: str, trips: int, block: Block) -> None:
        """Refuse a loop that would take longer to write out than anyone waits."""
        total = trips * _written(block, {})
        if total > _MOST_WRITTEN:
            raise self.error(
                f"T.{builtin} would write its body out {trips} times, {total} operations in all; "
                f"the most is {_MOST_WRITTEN}",
                "use T.serial, and unroll a short loop inside of it",
            )

    def _arranged(self, block: Block, attributes: dict[str, Any]) -> tuple[Block, dict[str, Any]]:
        """The body and the attributes of a pipelined loop whose statements the user has ordered.
        0 and 1 are the least, as any number: with a product, the plan says how many there are."""
        group, attributes = attributes.get("group", ()), {**attributes}
        attributes.pop("group", None)
        order, stage = attributes.get("order", ()), attributes.get("stage", ())
        if attributes.get("num_stages") in (0, 1) and not stage and any(block.every(Gemm)):
            attributes = {**attributes, "num_stages": -1}
        if not order and not stage:
            return block, attributes
        try:
            if group:
                order, stage = of_statements(block, order, stage, group)
            body, places, stages = arrange(block, order, stage)
        except BadOrder as e:
            message, hint = e.args
            raise self.error(message, hint) from None
        return body, {**attributes, "order": places, "stage": stages}

    def _index(self, loop: Counted, value: Value) -> Scalar:
        lo, hi, step = loop.lo, loop.hi, loop.step
        last = add(self.indices.reach(affine_of(hi))[1], -1)
        if isinstance(hi, int) and isinstance(lo, int) and isinstance(step, int):
            last = lo + (hi - 1 - lo) // step * step
        first = self.indices.reach(affine_of(lo))[0]
        known = loop.trips is not None
        dense = known and step == 1 and loop.runs_through
        reach = Reach(first, last, known, self.depth, dense=dense, name=value.name)
        return self.scalar(value, reach)

    def _iterate(
        self, flags: LoopFlags, target: ast.expr, index: object, body: list[ast.stmt]
    ) -> None:
        """Trace one iteration of the body in the current builder."""
        self.names[flags.run] = True
        self.names.setdefault(flags.live, True)
        self.frame.loops.append(flags)
        try:
            self.bind(target, index)
            self.block(body)
        finally:
            self.frame.loops.pop()

    def _flags(self, builtin: str) -> LoopFlags:
        n = next(_hidden)
        return LoopFlags(f".run{n}", f".live{n}", builtin)

    def _breaking_loop(self, loop: Counted, target: ast.expr, body: list[ast.stmt]) -> None:
        flags = self._flags(loop.builtin)
        position = f".index{next(_hidden)}"
        self.names[flags.live] = True
        lo = loop.lo if isinstance(loop.lo, Scalar) else self.constant(loop.lo, self.index_dtype)
        self.names[position] = lo

        def more() -> bool | Scalar:
            at = self._scalar_name(position)
            return self._and(
                self.names[flags.live], lambda: self.truth(self.compare("lt", at, loop.hi))
            )

        def one_iteration() -> None:
            at = self._scalar_name(position)
            self._iterate(flags, target, loop.index_of(at), body)
            self.names[position] = self.binary("add", at, loop.step)

        names = [*self._carried_names(body), flags.live, position]
        carried = self._carry(names, one_iteration, True, (), body)
        self._while(names, carried, more)
        self.forget(body, (target,))
        del self.names[flags.live], self.names[position]

    def _scalar_name(self, name: str) -> Scalar:
        value = self.names[name]
        assert isinstance(value, Scalar)
        return value

    # --- while ------------------------------------------------------------------------------------

    def while_loop(self, node: ast.While) -> None:
        """Emit a `While`; none if the condition is false at compile time."""
        flags = self._flags("while")
        names = self._carried_names(node.body)
        if self._never(node.test, names):
            return
        place, hazards = self.loc, self.hazards

        def more() -> bool | Scalar:
            return self._and(self.names.get(flags.live, True), lambda: self.condition(node.test))

        def one_iteration() -> None:
            self._iterate(flags, ast.Tuple([], ast.Store()), (), node.body)

        carried = self._carry(names, one_iteration, True, (), node.body)
        if flags.breaks:
            self.names[flags.live] = True
            names.append(flags.live)
            self.hazards = hazards
            carried = self._carry(names, one_iteration, True, (), node.body)
        with self.at(place):
            self._while(names, carried, more)
            self.forget(node.body, ())
        self.names.pop(flags.live, None)

    def _while(self, names: list[str], carried: Carried, more: Callable[[], bool | Scalar]) -> None:
        args = [Value(ScalarType(d), _shown(n)) for n, d in zip(names, carried.dtypes)]
        with self.inside(conditional=True) as builder:
            self.names.update({n: self.scalar(a) for n, a in zip(names, args)})
            cond = more()
            if self._reads_too_late(builder, carried.block.ops):
                cond = more()
            if cond is True:
                message = "this loop never ends: its condition is always true and it has no break"
                hint = "change what the condition asks for in the loop, or break under an if"
                raise self.error(message, hint)
            builder.emit(Yield, (self.convert(cond, BOOL).value,), loc=self.loc)
        made = self.emit(While, carried.inits, builder.block(args), carried.block)
        self._rename(names, made.results)

    def _never(self, test: ast.expr, names: list[str]) -> bool:
        """Whether the condition is false whatever the loop changes."""
        if not names_in(test).isdisjoint(names):
            return False
        with self.inside():
            return self.condition(test) is False

    def _and(self, first: object, second: Callable[[], bool | Scalar]) -> bool | Scalar:
        if not isinstance(first, Scalar):
            return second() if first else False
        return self.truth(self.choose(first, second, lambda: False))

    # --- carried values ---------------------------------------------------------------------------

    def _carried_names(self, body: Iterable[ast.stmt]) -> list[str]:
        assigned = assigned_names(body) - self.frame.references
        for name in [n for n, v in self.names.items() if n in assigned and isinstance(v, Region)]:
            self.names[name] = self.read_value(self.names[name])  # an element, as an argument
        return [n for n, v in self.names.items() if n in assigned and is_number(v)]

    def _carry(
        self,
        names: list[str],
        one_iteration: Callable[[], None],
        conditional: bool,
        extra: tuple[Value, ...],
        body: list[ast.stmt],
    ) -> Carried:
        """Trace the body with `names` carried. A Python literal has no dtype of its own: the body
        is traced again until the dtypes that it gives such names agree with those it was given.
        Until then they are guesses, which a loop inside need not keep to."""
        starts = [self._start(n) for n in names]
        dtypes = [s.dtype if isinstance(s, Scalar) else self.default_dtype(s) for s in starts]
        hazards = self.hazards
        final = False
        for _ in range(_TRIES):
            self.hazards = hazards
            args = [Value(ScalarType(d), _shown(n)) for n, d in zip(names, dtypes)]
            self.carried.update(args)
            guesses = {a for a, s in zip(args, starts) if self._is_guess(s) and not final}
            self.guesses |= guesses
            before = dict(self.names)
            with self.inside(conditional) as builder:
                self.names.update({n: self.scalar(a) for n, a in zip(names, args)})
                one_iteration()
                if self._reads_too_late(builder, builder.ops):
                    continue
                ends = [self.names[n] for n in names]
                check_known(ends)
                self._check_fixed(before, names, body)
            wanted = [
                self._next_dtype(n, s, d, e) for n, s, d, e in zip(names, starts, dtypes, ends)
            ]
            final = wanted == dtypes
            if final and guesses <= self.guesses:
                self._yield(builder, ends, dtypes)
                passed = ((s, d) for s, d in zip(starts, dtypes) if isinstance(s, Scalar))
                self.guesses -= {s.value for s, d in passed if s.dtype is not d}
                inits = tuple(self.convert(s, d).value for s, d in zip(starts, dtypes))
                return Carried(builder.block((*extra, *args)), inits, tuple(dtypes))
            dtypes = wanted
        hint = "give them a dtype before it: x = T.float32(0)"
        raise self.error(f"the dtypes of {', '.join(names)} do not settle in this loop", hint)

    def _reads_too_late(self, traced: BlockBuilder, body: Iterable[Op]) -> bool:
        """Whether `traced`, in a loop with this `body`, reads elements that are named in front of
        the loop, and which the body writes to: traced again, it reads them there."""
        late = traced.late - self.read_early
        if late:  # seldom; a body may be long
            late.intersection_update(buffers_written(e for o in body for _, e in effects_in(o)))
        self.read_early |= late
        return bool(late)

    def _is_guess(self, start: Number) -> bool:
        """Whether a number has no dtype of its own: a literal, or what a loop around begins with
        one."""
        return not isinstance(start, Scalar) or start.value in self.guesses

    def _start(self, name: str) -> Number:
        return self.number(self.names[name], name)

    def _yield(self, builder: BlockBuilder, ends: list[object], dtypes: list[DType]) -> None:
        self.builders.append(builder)
        values = tuple(self.convert(self.number(e, ""), d).value for e, d in zip(ends, dtypes))
        self.emit(Yield, values)
        self.builders.pop()

    def _next_dtype(self, name: str, start: Number, dtype: DType, end: object) -> DType:
        """The dtype to carry `name` in, seen what an iteration made of it."""
        if not is_number(end):
            what = end.reason if isinstance(end, Undefined) else f"it is {describe(end)}"
            message = f"{name} is {describe(start)} before the loop, at its end {what}"
            raise self.error(message, f"give {name} a number on every way through the loop")
        if not isinstance(end, Scalar):
            if not self._is_guess(start):
                return dtype
            wider = isinstance(end, float) and dtype.is_int
            return self.default_dtype(end) if wider else dtype
        if end.dtype is dtype:
            return dtype
        is_int = start.dtype.is_int if isinstance(start, Scalar) else isinstance(start, int)
        if self._is_guess(start) and (is_int or end.dtype.is_float):
            return end.dtype
        before = start.dtype.name if isinstance(start, Scalar) else f"the literal {start!r}"
        message = f"{name} is {before} before this loop and {end.dtype.name} after an iteration"
        hint = f"start with T.{end.dtype.name}(…), or end with T.{dtype.name}(…)"
        raise self.error(message, hint)

    def _check_fixed(
        self, before: dict[str, object], carried: list[str], body: list[ast.stmt]
    ) -> None:
        """Raise CompileError if the body changes what cannot change at run time."""
        for name in assigned_names(body) & set(before) - set(carried):
            old, new = before[name], self.names.get(name)
            check_known((new,))
            if self.options.tilelang and isinstance(old, Buffer):
                continue  # in an iteration alone
            if not isinstance(old, Undefined) and not same_value(old, new):
                raise self.error(
                    f"{name} is {describe(old)} before this loop and {describe(new)} after an "
                    "iteration; only numbers can change at run time",
                    "use another name inside the loop, or loop over a Python list",
                )

    def _rename(self, names: list[str], results: tuple[Value, ...]) -> None:
        """What a loop leaves in the names it carries."""
        for name, result in zip(names, results):
            result.name = _shown(name)
            self.names[name] = self.scalar(result)

    def forget(self, body: list[ast.stmt], targets: tuple[ast.expr, ...]) -> None:
        """Names that only the loop gave values to have none after it."""
        reason = Undefined(f"it is assigned only inside the loop on line {self.loc.line}")
        for name in names_in(*targets):
            what = f"it is the variable of the loop on line {self.loc.line}"
            self.names[name] = Undefined(what)
        for name in assigned_names(body):
            self.names.setdefault(name, reason)


@functools.lru_cache(maxsize=1024)
def _breaks(statement: ast.stmt) -> bool:
    """Whether a `break` stands in a statement, of the loop around it or of one inside of it. (A
    kernel with open arguments is traced dozens of times.)"""
    return any(every(ast.Break, statement))


def _shown(name: str) -> str:
    return name if name.isidentifier() else ""


def _written(block: Block, numbers: dict[Value, Any]) -> int:
    """The ops of `block` when the loops in it that are to be written out are."""
    total = 0
    for o in block.ops:
        inside = sum(_written(region, numbers) for region in o.regions)
        match o:
            case Const():
                numbers[o.result] = o.value
            case For(kind="unroll" | "vectorized"):
                indices = o.indices(numbers.get)
                inside *= 1 if indices is None else len(indices)
        total += 1 + inside
    return total
