"""Structured control flow. Values a region carries leave it through its last op, a `yield`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tilec.ir.core import Block, Op, Value
from tilec.ir.errors import InternalError
from tilec.ir.op_classes import op
from tilec.ir.types import BOOL, INT32, ScalarType, Type, scalar_type

__all__ = ["Yield", "For", "While", "If", "Parallel", "yielded", "decides", "handed_on"]

if TYPE_CHECKING:
    from tilec.ir.layout import Layout

LOOP_KINDS = ("serial", "unroll", "vectorized", "pipelined", "persistent")


@op("yield", effects=())
class Yield(Op):
    """Ends a region and hands over its values."""

    values: tuple[Value, ...] = ()


@op("for")
class For(Op):
    """`for i in range(lo, hi, step)`; `step` > 0 where it is known.

    `body.args` are the index (of `lo`'s type), then one per carried value; its Yield gives the
    next values. Results are the carried values after the last iteration (`inits` if there was
    none). `kind` says how the user wrote it; `num_stages` (-1: left to the plan), `order` and
    `stage` belong to "pipelined" (the user's: one int per op of the body that acts, its place
    among them and its stage, -1 where tilec may choose; or empty). Once `arrange` has decided them,
    `order` are the statements' numbers as an iteration does them, `stage` how many iterations late
    each is, and with `turns` the warpgroups of a scope start their products one after the other.
    With `versions` 2, products that read fragments which the loop fills run on into the next
    iteration, which fills other ones: once expanded, an iteration does that of two."""

    kind: str
    lo: Value
    hi: Value
    step: Value
    inits: tuple[Value, ...]
    body: Block
    num_stages: int = 0
    order: tuple[int, ...] = ()
    stage: tuple[int, ...] = ()
    turns: bool = False
    reversible: bool = False
    versions: int = 1

    def infer(self) -> Sequence[Type]:
        return tuple(v.type for v in self.inits)

    def verify(self) -> None:
        if self.kind not in LOOP_KINDS:
            raise InternalError(f"unknown loop kind {self.kind}", self.loc)
        if not self.body.args:
            raise InternalError("the loop's body takes no index", self.loc)
        check_carried(self, self.body, self.inits, extra=1)
        index, bounds = self.body.args[0].type, (self.lo.type, self.hi.type, self.step.type)
        if not isinstance(index, ScalarType) or not index.dtype.is_int or {*bounds} != {index}:
            lo, hi, step = bounds
            raise InternalError(f"a loop index of {index} from {lo} to {hi} by {step}", self.loc)

    def in_order(self) -> For:
        """The loop with its iterations one after the other."""
        return replace(self, kind="serial", num_stages=0, order=(), stage=())

    def indices(self, known: Callable[[Value], Any]) -> range | None:
        """The index in each iteration, where `known` gives the bounds as ints; else None."""
        lo, hi, step = (known(v) for v in (self.lo, self.hi, self.step))
        if not (isinstance(lo, int) and isinstance(hi, int) and isinstance(step, int)):
            return None
        return range(lo, hi, step) if step > 0 else None


@op("while")
class While(Op):
    """`while cond: body`, carrying values. `cond.args` and `body.args` are the carried values;
    `cond` yields one bool; `body` yields the next values."""

    inits: tuple[Value, ...]
    cond: Block
    body: Block

    def infer(self) -> Sequence[Type]:
        return tuple(v.type for v in self.inits)

    def verify(self) -> None:
        check_carried(self, self.body, self.inits, extra=0)
        want, taken = [v.type for v in self.inits], self.cond.args
        if [a.type for a in taken] != want:
            said = f"the loop carries {[*map(str, want)]}, its condition takes {taken}"
            raise InternalError(said, self.loc)
        if [v.type for v in yielded(self.cond)] != [scalar_type(BOOL)]:
            said = f"the condition yields {yielded(self.cond)}, not one bool"
            raise InternalError(said, self.loc)


@op("if")
class If(Op):
    """`then` where `cond` holds, else `orelse`; both yield values of `types`, which are the
    results."""

    cond: Value
    then: Block
    orelse: Block
    types: tuple[Type, ...] = ()

    def infer(self) -> Sequence[Type]:
        return self.types

    def verify(self) -> None:
        for block in self.regions:
            got = tuple(v.type for v in yielded(block))
            if got != self.types:
                raise InternalError(f"a branch yields {got}, the if gives {self.types}", self.loc)
        if self.cond.type != scalar_type(BOOL):
            raise InternalError(f"the condition is {self.cond.type}, not a bool", self.loc)
        if self.then.args or self.orelse.args:
            raise InternalError("a branch takes no arguments", self.loc)


@op("parallel")
class Parallel(Op):
    """The body once for each index tuple in `extents`, in any order or at once. `body.args`: one
    i32 index per extent. Iterations must not read what another iteration writes. `layout`
    (registers, lanes and warps over the extents) says which thread runs which iteration; decided
    by `infer_layouts`, which takes what the author `wanted` (threads as lanes). `engine`
    "cp_async": the body is one load and one store, done past the registers. `inside`: all that it
    touches in memory is known to lie inside of its tensors; `outside`: some of it is known not to.
    `cache`: of what it touches in global memory, "evict_first" or "evict_last"; "" where nobody
    says."""

    extents: tuple[int, ...]
    body: Block
    coalesced_width: int = 0
    layout: Layout | None = None
    engine: str = ""
    inside: bool = False
    outside: bool = False
    wanted: Layout | None = None
    cache: str = ""

    @property
    def laid_out(self) -> Layout:
        """The layout, which it must have."""
        if self.layout is None:
            raise InternalError("a parallel loop without a layout", self.loc)
        return self.layout

    def verify(self) -> None:
        extents, indices = self.extents, [a.type for a in self.body.args]
        if len(indices) != len(extents):
            raise InternalError(f"{len(extents)} extents, {len(indices)} indices", self.loc)
        if {*indices} - {scalar_type(INT32)} or yielded(self.body):
            raise InternalError("a parallel body takes i32 indices and yields nothing", self.loc)


def yielded(block: Block) -> tuple[Value, ...]:
    """The values a region hands over; () where it has no Yield."""
    if block.ops and isinstance(block.ops[-1], Yield):
        return block.ops[-1].values
    return ()


def decides(o: Op) -> tuple[Value, ...]:
    """What says whether, and how often, the regions of `o` are run."""
    match o:
        case For():
            return o.lo, o.hi, o.step
        case While():
            return yielded(o.cond)
        case If():
            return (o.cond,)
    return ()


def handed_on(o: Op) -> list[tuple[tuple[Value, ...], tuple[Value, ...]]]:
    """For each value that a loop carries or a branch gives: all that may flow into it from outside
    and from the regions; the block arguments and the result that it is called then."""
    match o:
        case For():
            return [*zip(zip(o.inits, yielded(o.body)), zip(o.body.args[1:], o.results))]
        case While():
            held = zip(o.cond.args, o.body.args, o.results)
            return [*zip(zip(o.inits, yielded(o.body)), held)]
        case If():
            return [*zip(zip(yielded(o.then), yielded(o.orelse)), zip(o.results))]
    return []


def check_carried(o: Op, body: Block, inits: tuple[Value, ...], extra: int) -> None:
    """A loop's inits, block arguments and yielded values agree in number and type."""
    want = [v.type for v in inits]
    if [a.type for a in body.args[extra:]] != want or [v.type for v in yielded(body)] != want:
        raise InternalError(
            f"the loop carries {want}, its body takes {[a.type for a in body.args[extra:]]} "
            f"and yields {[v.type for v in yielded(body)]}",
            o.loc,
        )
    if not body.ops or not isinstance(body.ops[-1], Yield):
        raise InternalError("the loop's body ends without a yield", o.loc)
