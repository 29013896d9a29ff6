"""What the emitters of all targets share: values, scalar ops, branches and sequential loops, one
method per op, `emit_<op's name>`. An emitter decides nothing; it spells."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from functools import partial
from typing import Any

from tilec.codegen.ranges import Ranges
from tilec.codegen.scalars import Scalars
from tilec.ir import ops
from tilec.ir.core import Block, Op, Value
from tilec.ir.errors import CompileError, TilecError
from tilec.ir.llvm import Function, Val, constant
from tilec.ir.loc import Loc
from tilec.ir.types import FLOAT64, DType


class BaseEmitter:
    """Appends ops to `f`. `env` has what stands for each value so far."""

    f: Function
    scalars: Scalars
    ranges: Ranges

    def __init__(self) -> None:
        self.env: dict[Value, Any] = {}
        self._emitters: dict[type[Op], Callable[..., None]] = {}  # no methods: those hold it

    # --- what a target says ---

    def missing(self, o: Op) -> TilecError:
        """The error for an op that the target has no form of."""
        raise NotImplementedError

    def get(self, v: Value) -> Val:
        found: Val = self.env[v]
        return found

    def operands(self, *values: Value) -> list[Val]:
        """Register forms of one shape."""
        return [self.get(v) for v in values]

    def carried(self, v: Value, target: Value) -> Val:
        """`v` in the shape of the block argument or result that it becomes."""
        return self.get(v)

    def loop_form(self, o: ops.For | ops.While) -> str:
        """What LLVM is told of a loop (`Function.br`)."""
        return ""

    # --- walking ---

    def block(self, block: Block) -> None:
        """Print the ops of a region."""
        for o in block.ops:
            self.emit(o)

    def emit(self, o: Op) -> None:
        """Print one op."""
        self.f.loc = o.loc
        emit = self._emitters.get(type(o))
        if emit is None:
            found: Callable[..., None] | None = getattr(type(self), f"emit_{o.opname}", None)
            if found is None:
                raise self.missing(o)
            emit = self._emitters[type(o)] = found
        emit(self, o)

    def region(self, block: Block, targets: Sequence[Value]) -> list[Val]:
        """Print a region that does not dominate what follows it; gives what it yields to
        `targets`."""
        mark = self.f.mark()
        self.block(block)
        values = [self.carried(v, t) for v, t in zip(ops.yielded(block), targets)]
        self.f.forget(mark)
        return values

    def emit_yield(self, o: ops.Yield) -> None:
        """The op around the region takes the values."""

    # --- scalars ---

    def each(self, o: Op, fn: Callable[..., Val], *operands: Value) -> None:
        """The result of `o` is `fn` of the operands."""
        self.env[o.result] = fn(*self.operands(*operands))

    def emit_const(self, o: ops.Const) -> None:
        made = self.scalars.literal(o.value, o.dtype)
        self.env[o.result] = Val(made.type, made.ref, made.literal, o.unset) if o.unset else made

    def emit_binary(self, o: ops.Binary) -> None:
        binary, dtype = self.scalars.binary, o.lhs.dtype
        if o.reciprocal is not None:
            self.each(o, partial(self.scalars.by_reciprocal, o.kind), *o.operands)
            return
        self.each(o, lambda a, b: binary(o.kind, a, b, dtype, o.nonzero), o.lhs, o.rhs)

    def emit_unary(self, o: ops.Unary) -> None:
        self.each(o, lambda x: self.scalars.unary(o.kind, x, o.operand.dtype), o.operand)

    def emit_fma(self, o: ops.Fma) -> None:
        self.each(o, lambda a, b, c: self.scalars.fma(a, b, c, o.a.dtype), o.a, o.b, o.c)

    def emit_compare(self, o: ops.Compare) -> None:
        self.each(o, lambda a, b: self.scalars.compare(o.kind, a, b, o.lhs.dtype), o.lhs, o.rhs)

    def emit_select(self, o: ops.Select) -> None:
        values = self.operands(o.cond, o.on_true, o.on_false)
        self.env[o.result] = self.scalars.select(*values)

    def emit_cast(self, o: ops.Cast) -> None:
        self.each(o, lambda x: self.scalars.cast(x, o.operand.dtype, o.dtype), o.operand)

    def emit_bitcast(self, o: ops.Bitcast) -> None:
        self.each(o, lambda x: self.scalars.bitcast(x, o.operand.dtype, o.dtype), o.operand)

    # --- loops ---

    def emit_for(self, o: ops.For) -> None:
        f, dtype, args = self.f, o.lo.dtype, o.body.args
        lo, hi, step = self.get(o.lo), self.get(o.hi), self.get(o.step)
        body, end = f.label("body"), f.label("end")
        inits = [self.carried(v, a) for v, a in zip(o.inits, args[1:])]
        index, *carried = f.loop_header("loop", [lo, *inits])
        head = f.block.label
        f.cbr(self.continues(index.result, hi, step, dtype), body, end, end)
        f.start(body)
        rising = step.literal is not None and step.literal > 0 and dtype.kind == "int"
        if rising:
            self.ranges.set(index.result, self.ranges.get(lo)[0], self.ranges.get(hi)[1] - 1)
        self.env.update(zip(args, (p.result for p in (index, *carried))))
        mark = f.mark()
        values = self.region(o.body, args[1:])
        following = self.scalars.binary("add", index.result, step, dtype)
        f.forget(mark)
        f.close_loop([index, *carried], [following, *values], head, self.loop_form(o))
        f.start(end)
        self.env.update(zip(o.results, (p.result for p in carried)))

    def continues(self, index: Val, hi: Val, step: Val, dtype: DType) -> Val:
        """Whether a loop has an iteration left."""
        scalars, zero = self.scalars, constant(step.type, 0)
        up = scalars.compare("lt", index, hi, dtype)
        if dtype.kind == "uint" or self.ranges.nonneg(step):
            return up
        down = scalars.compare("gt", index, hi, dtype)
        return self.f.select(scalars.compare("gt", step, zero, dtype), up, down)

    def emit_while(self, o: ops.While) -> None:
        f = self.f
        body, end = f.label("body"), f.label("end")
        phis = f.loop_header("while", [self.carried(v, a) for v, a in zip(o.inits, o.cond.args)])
        head = f.block.label
        results = [p.result for p in phis]
        self.env.update(zip(o.cond.args, results))
        self.env.update(zip(o.body.args, results))
        self.block(o.cond)
        (cond,) = ops.yielded(o.cond)
        f.cbr(self.get(cond), body, end, end)
        f.start(body)
        f.close_loop(phis, self.region(o.body, o.cond.args), head, self.loop_form(o))
        f.start(end)
        self.env.update(zip(o.results, results))

    # --- branches ---

    def emit_if(self, o: ops.If) -> None:
        f, cond = self.f, self.get(o.cond)
        if cond.literal is not None:
            taken = o.then if cond.literal else o.orelse
            self.block(taken)
            self.env.update(zip(o.results, [self.env[v] for v in ops.yielded(taken)]))
            return
        then, orelse, join = f.label("then"), f.label("else"), f.label("join")
        empty = len(o.orelse.ops) <= 1 and not o.results
        f.cbr(cond, then, join if empty else orelse, join)
        ends = []
        for label, region in [(then, o.then), (orelse, o.orelse)][: 1 if empty else 2]:
            f.start(label)
            ends.append((self.region(region, o.results), f.block.label))
            f.br(join)
        f.start(join)
        for i, r in enumerate(o.results):
            phi = f.phi(ends[0][0][i].type)
            phi.incoming += [(values[i], label) for values, label in ends]
            self.env[r] = phi.result


def print_format(o: ops.Print, directives: Sequence[str]) -> str:
    """C's format of the line that `o` prints, with a directive for each value."""
    text, *rest = (piece.replace("%", "%%") for piece in o.pieces())
    return text + "".join(d + piece for d, piece in zip(directives, rest)) + "\n"


def directive(dtype: DType) -> str:
    """C's word for printing a value, as double or 64-bit integer, so that nothing of it is lost."""
    if dtype.is_float:
        return "%.17g" if dtype == FLOAT64 else "%.9g"
    return "%llu" if dtype.kind == "uint" else "%lld"


def check_name(name: str, loc: Loc, declared: Container[str]) -> None:
    """Raise CompileError for a kernel with the name of a function that its code calls."""
    if name in declared:
        message = f"{name} is the name of a function that this kernel's code calls"
        raise CompileError(message, loc, f"give the kernel another name: {name}_kernel")


def text_constant(name: str, text: str, words: str = "") -> str:
    """The module's constant `name`, a zero-terminated string."""
    raw = text.encode() + b"\0"
    spelled = "".join(f"\\{c:02X}" for c in raw)
    return f'{name} = private {words}constant [{len(raw)} x i8] c"{spelled}"'
