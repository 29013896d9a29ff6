"""The IR itself: values, ops, blocks and functions, and the four ways to walk and change them.

An op is a dataclass made by the `op` decorator (`tilec.ir.op_classes`), frozen for type checkers
(`base`). Its fields *are* its definition: a field typed `Value`, `tuple[Value, ...]` or `Region` (a
box of a buffer; `| None` where it may be left out) is an operand, a field typed `Block` is a
region, every other field is an attribute. Printing, parsing, cloning and walking are generic over
these fields.

Values have identity (two values are equal only if they are the same object) and carry their type;
blocks and ops are immutable, so a pass shares what it does not change and rebuilds the rest."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Self, TypeVar, dataclass_transform

from tilec.ir.errors import InternalError
from tilec.ir.loc import UNKNOWN, Loc
from tilec.ir.types import Type
from tilec.ir.values import Effect as Effect
from tilec.ir.values import Effects as Effects
from tilec.ir.values import Region as Region
from tilec.ir.values import Value as Value
from tilec.ir.values import squeeze as squeeze


@dataclass(frozen=True, eq=False)
class Block:
    """A straight list of ops with block arguments. A loop body's last op is a `Yield`.

    What is asked of all ops inside is found once, from what is known of the regions: of these most
    are the same after a pass."""

    args: tuple[Value, ...] = ()
    ops: tuple[Op, ...] = ()

    @functools.cached_property
    def inside(self) -> tuple[Op, ...]:
        """Its ops and those of the regions inside, in textual order, outer before inner."""
        found: list[Op] = []
        for o in self.ops:
            found.append(o)
            for region in o.regions:
                found += region.inside
        return tuple(found)

    @functools.cached_property
    def kinds(self) -> frozenset[type[Op]]:
        """The classes of the ops `inside`."""
        return frozenset(map(type, self.inside))

    @functools.cached_property
    def _sorts(self) -> dict[type[Op], list[Op]]:
        found: dict[type[Op], list[Op]] = {}
        for o in self.inside:
            found.setdefault(type(o), []).append(o)
        return found

    @functools.cached_property
    def _makers_inside(self) -> dict[Value, Op]:
        return makers(self.inside)

    @functools.cached_property
    def made(self) -> frozenset[Value]:
        """The values that are made inside, and the arguments of the blocks."""
        regions = [region.made for o in self.ops for region in o.regions]
        return frozenset(self.args).union(*(o.results for o in self.ops), *regions)

    @functools.cached_property
    def outer(self) -> frozenset[Value]:
        """The values that are used inside and made elsewhere."""
        regions = [region.outer for o in self.ops for region in o.regions]
        return frozenset().union(*(o.operands for o in self.ops), *regions) - self.made

    def every(self, kind: type[AnyOp]) -> Iterator[AnyOp]:
        """The ops of one class, of those `inside`."""
        found: list[Any] = [cls for cls in self.kinds if issubclass(cls, kind)]
        if len(found) == 1:
            return iter(self._sorts[found[0]])  # type: ignore[arg-type]
        return (o for o in self.inside if isinstance(o, kind)) if found else iter(())

    def has(self, *kinds: type[Op]) -> bool:
        """Whether there is an op of one of these classes inside."""
        return any(issubclass(cls, kinds) for cls in self.kinds)

    @property
    def statements(self) -> tuple[Op, ...]:
        """The ops without a `Yield` at the end."""
        ends = bool(self.ops) and self.ops[-1].opname == "yield"
        return self.ops[:-1] if ends else self.ops

    def with_ops(self, ops: Sequence[Op]) -> Block:
        """The block with these ops; the same object if they are what it has."""
        same = len(ops) == len(self.ops) and all(map(operator.is_, ops, self.ops))
        return self if same else Block(self.args, tuple(ops))

    def rewrite(
        self,
        kind: type[AnyOp],
        visit: Callable[[AnyOp], Replacement],
        subst: Substitution | None = None,
    ) -> Block:
        """Rebuild the block, inner regions first: `visit` sees each op of a `kind` (operands
        already replaced) and returns None to keep it, an op or a list of ops to put in its place.
        It may add to `subst`, which later ops see. Returns the same object if nothing changed."""
        if not subst and not self.has(kind):
            return self
        return self._rewritten(kind, visit, {} if subst is None else subst)

    def _rewritten(
        self, kind: type[AnyOp], visit: Callable[[AnyOp], Replacement], subst: Substitution
    ) -> Block:
        ops: list[Op] = []
        for o in self.ops:
            new = o.with_operands(subst) if subst else o
            if new.region_fields:
                new = new.with_regions(lambda region: region.rewrite(kind, visit, subst))
            got = visit(new) if isinstance(new, kind) else None
            if got is None:
                ops.append(new)
            elif isinstance(got, Op):
                ops.append(got)
            else:
                ops.extend(got)
        return self.with_ops(ops)

    @property
    def makers(self) -> dict[Value, Op]:
        """The op that makes each value, of the block's own."""
        return makers(self.ops)

    @property
    def defs(self) -> dict[Value, Op]:
        """The op that makes each value, in the blocks inside, too (block arguments and parameters
        have none)."""
        return {**self._makers_inside}

    @property
    def users(self) -> dict[Value, list[Op]]:
        """The ops that have each value as an operand, in textual order."""
        found: dict[Value, list[Op]] = {}
        for o in walk(self):
            for v in dict.fromkeys(o.operands):
                found.setdefault(v, []).append(o)
        return found

    def substituted(self, subst: Substitution) -> Block:
        """The block with other values in the place of some."""
        return self.rewrite(Op, lambda _: None, subst) if subst else self

    def clone(self, subst: Substitution) -> Block:
        """A copy of the block with fresh values throughout."""
        args = fresh(self.args, subst)
        return Block(args, tuple(o.clone(subst) for o in self.ops))

    def ending(self, ops: Sequence[Op], top: Sequence[Op] = ()) -> Block:
        """The block with `ops` behind its statements, and `top` in front of them."""
        count = len(self.statements)
        return Block(self.args, (*top, *self.ops[:count], *ops, *self.ops[count:]))


_T = TypeVar("_T", bound=type)


@dataclass_transform(frozen_default=True, eq_default=False, kw_only_default=True)
def base(cls: _T) -> _T:
    """Frozen for type checkers alone: where each field is guarded when a program runs, an op takes
    three times as long to make, and nothing is made as often."""
    return dataclass(eq=False, kw_only=True)(cls)  # type: ignore[return-value]


@base
class Op:
    """Base of all ops; see the module's opening. `results` are filled by `Builder.emit`."""

    results: tuple[Value, ...] = ()
    loc: Loc = UNKNOWN

    opname: ClassVar[str] = ""
    operand_fields: ClassVar[tuple[str, ...]] = ()
    region_fields: ClassVar[tuple[str, ...]] = ()
    attribute_fields: ClassVar[tuple[str, ...]] = ()
    pure: ClassVar[bool] = False
    kept_effects: ClassVar[Effects | None] = None  # of one op (`op_classes`)

    @property
    def result(self) -> Value:
        (value,) = self.results
        return value

    @property
    def uses(self) -> tuple[Value, ...]:
        """What it is computed from: its operands, and those of the ops inside of it."""
        if not self.region_fields:
            return self.operands
        return tuple(v for x in walk(self) for v in x.operands)

    def copied(self) -> Self:
        """Another with the same fields."""
        return self.__class__(**{f.name: getattr(self, f.name) for f in fields(self)})

    def infer(self) -> Sequence[Type]:
        """Types of the results, from operands and attributes."""
        return ()

    def verify(self) -> None:
        """Raise InternalError where operands and attributes contradict one another."""

    def evaluate(self, *args: Any, **read: Any) -> Any:
        """What it computes, in NumPy. `read`: by the names of its operand fields the arrays that it
        reads, scalars and the contents of regions and buffers. Gives its result, or the contents of
        the regions that it writes (a tuple, in the order of its effects, of several)."""
        raise InternalError(f"what {self.opname} computes is not said", self.loc)

    def effects(self) -> Effects:
        """What it does besides giving its results (`tilec.ir.effects`). Every class that is neither
        pure nor made of regions states it."""
        return tuple(e for region in self.regions for o in region.ops for e in o.effects())

    @property
    def operands(self) -> tuple[Value, ...]:
        """The values it uses, in the order of its fields. (`op` gives each class a faster form
        of this: no other question is asked as often.)"""
        found: list[Value] = []
        for name in self.operand_fields:
            got = getattr(self, name)
            if isinstance(got, Value):
                found.append(got)
            elif isinstance(got, Region):
                found.append(got.buffer)
                found.extend(got.offsets)
            elif got is not None:
                found.extend(got)
        return tuple(found)

    @property
    def regions(self) -> tuple[Block, ...]:
        """The blocks inside of it (likewise)."""
        return tuple(getattr(self, name) for name in self.region_fields)

    @property
    def attributes(self) -> tuple[Any, ...]:
        """What, beside its operands and regions, tells it from others of its class."""
        return tuple(getattr(self, name) for name in self.attribute_fields)

    def every(self, kind: type[AnyOp]) -> Iterator[AnyOp]:
        """The ops of one class, of those that `walk` gives."""
        return (o for o in walk(self) if isinstance(o, kind))

    def has(self, *kinds: type[Op]) -> bool:
        """Whether it, or an op inside, is of one of these classes."""
        return any(isinstance(o, kinds) for o in walk(self))

    def with_regions(self, change: Callable[[Block], Block], backwards: bool = False) -> Self:
        """The op with each of its regions (the last one first, if `backwards`) as `change` makes
        it; the same object if nothing changes."""
        changed: dict[str, Any] = {}
        for name in reversed(self.region_fields) if backwards else self.region_fields:
            region = getattr(self, name)
            done = change(region)
            if done is not region:
                changed[name] = done
        return altered(self, **changed) if changed else self

    def with_operands(self, subst: Substitution) -> Self:
        """The op with its operands replaced (regions are left alone); the same object if nothing
        changes."""
        if subst.keys().isdisjoint(self.operands):
            return self
        changed: dict[str, Any] = {}
        for name in self.operand_fields:
            got = getattr(self, name)
            new = _map_operand(got, subst)
            if new is not got:
                changed[name] = new
        return altered(self, **changed) if changed else self

    def clone(self, subst: Substitution) -> Self:
        """A copy with fresh results and block arguments; `subst` maps old values to new and
        grows."""
        changed: dict[str, Any] = {}
        for name in self.operand_fields:
            changed[name] = _map_operand(getattr(self, name), subst)
        for name in self.region_fields:
            changed[name] = getattr(self, name).clone(subst)
        return altered(self, results=fresh(self.results, subst), **changed)


@dataclass(frozen=True, eq=False)
class Param:
    """A parameter of a kernel and where a launch gets it from.

    `role`: "tensor" (pointer of argument `arg`), "scalar" (argument `arg` itself), "size" (extent
    `dim` of tensor argument `arg`), "stride" (stride `dim`, in elements), "elements" (how many
    tensor argument `arg` has), "tensor_map" (a descriptor made from tensor argument `arg`), "grid"
    (blocks of the user's grid along `dim`), "workspace" and "counters" (memory of the launch's own,
    `dim` bytes for each block of the user's grid: any content; and zeros, which the kernel leaves
    as zeros), "memory" (all of it: a null pointer, from which addresses are counted)."""

    value: Value
    role: str
    arg: str
    dim: int = -1


@dataclass(frozen=True, eq=False)
class Func:
    """A kernel: parameters, the grid as a block of scalar ops that ends in a Yield, and the body.

    `attrs` are facts about the whole kernel that passes decide and later ones read ("threads", …).
    """

    name: str
    params: tuple[Param, ...]
    grid: Block
    body: Block
    attrs: Mapping[str, Any] = field(default_factory=dict)
    loc: Loc = UNKNOWN

    def with_body(self, body: Block) -> Func:
        return self if body is self.body else replace(self, body=body)

    def rewrite(
        self,
        kind: type[AnyOp],
        visit: Callable[[AnyOp], Replacement],
        subst: Substitution | None = None,
    ) -> Func:
        """The function with its body's ops of one class as `visit` has them."""
        return self.with_body(self.body.rewrite(kind, visit, subst))

    def with_attrs(self, **attrs: Any) -> Func:
        return replace(self, attrs={**self.attrs, **attrs})

    def param(self, name: str) -> Param:
        for p in self.params:
            if p.value.name == name:
                return p
        raise InternalError(f"kernel {self.name} has no parameter {name}")

    def unused(self, name: str, others: Collection[str] = ()) -> str:
        """A name like this one that is none of a parameter's, or of `others`."""
        taken = {*others, *(p.value.name for p in self.params)}
        while name in taken:
            name += "_"
        return name


# --- walking ---


def walk(of: Block | Op) -> Iterator[Op]:
    """Every op of a block, or an op, and those of the regions inside, in textual order, outer
    before inner."""
    if isinstance(of, Block):
        return iter(of.inside)
    found = [of]
    for region in of.regions:
        found += region.inside
    return iter(found)


def within(block: Block, around: tuple[Op, ...] = ()) -> Iterator[tuple[Op, tuple[Op, ...]]]:
    """As `walk`, each op with those that it stands in, outer ones first."""
    for o in block.ops:
        yield o, around
        for region in o.regions:
            yield from within(region, (*around, o))


def makers(ops: Iterable[Op]) -> dict[Value, Op]:
    """The op of these that makes each value."""
    return {r: o for o in ops for r in o.results}


def made_in(of: Block | Op) -> set[Value]:
    """The values that a block, or an op, makes, and the arguments of the regions inside."""
    if isinstance(of, Block):
        return {*of.made} - {*of.args}
    return {*of.results}.union(*(region.made for region in of.regions))


def upstream(
    values: Iterable[Value], defs: Mapping[Value, Op], done: Container[Value] = ()
) -> Iterator[Op]:
    """The ops of `defs` that `values` are computed from, each once, after those that make what it
    uses. Values in `done` (which the caller may fill on the way) are not looked behind."""
    seen: set[Op] = set()
    for value in values:
        stack: list[tuple[Op, bool]] = []
        _push(stack, (value,), defs, done)
        while stack:
            o, ready = stack.pop()
            if ready:
                yield o
            elif o not in seen:
                seen.add(o)
                stack.append((o, True))
                _push(stack, o.uses, defs, done)


def _push(
    stack: list[tuple[Op, bool]],
    values: Sequence[Value],
    defs: Mapping[Value, Op],
    done: Container[Value],
) -> None:
    """Put the ops that make `values` on the stack, the first on top."""
    for v in reversed(values):
        o = defs.get(v)
        if o is not None and v not in done:
            stack.append((o, False))


# --- changing ---

Substitution = dict[Value, Value]


def fresh(values: Collection[Value], subst: Substitution | None = None) -> tuple[Value, ...]:
    """Others of the same types and names, which `subst` then maps these values to."""
    made = tuple([Value(v.type, v.name) for v in values])
    if subst is not None:
        subst.update(zip(values, made))
    return made


AnyOp = TypeVar("AnyOp", bound=Op)


def altered(o: AnyOp, **changed: Any) -> AnyOp:
    """`o` with other fields, as `dataclasses.replace` has it, which takes four times as long.
    (Nothing asks an op for its `__dict__`: from then on Python takes longer to find a field.)"""
    made = o.copied()
    for name, value in changed.items():
        setattr(made, name, value)
    return made


def _map_operand(got: Any, subst: Substitution) -> Any:
    if isinstance(got, Value):
        return subst.get(got, got)
    if got is None:
        return None
    if isinstance(got, Region):
        if got.buffer in subst or any(v in subst for v in got.offsets):
            offsets = tuple(subst.get(v, v) for v in got.offsets)
            return replace(got, buffer=subst.get(got.buffer, got.buffer), offsets=offsets)
        return got
    if any(v in subst for v in got):
        return tuple(subst.get(v, v) for v in got)
    return got


Replacement = None | Op | Sequence[Op]


def rewritten(
    ops: Sequence[Op], visit: Callable[[Any], Replacement], subst: Substitution | None = None
) -> tuple[Op, ...]:
    """As `Block.rewrite`, of ops that stand in no block."""
    return Block((), tuple(ops)).rewrite(Op, visit, subst).ops


def with_boxes(o: AnyOp, change: Callable[[Region], Region]) -> AnyOp:
    """`o` with its regions as `change` makes them; the same object if nothing changes."""
    given = {name: getattr(o, name) for name in o.operand_fields}
    boxes = {name: (r, change(r)) for name, r in given.items() if isinstance(r, Region)}
    changed = {name: new for name, (old, new) in boxes.items() if new is not old}
    return altered(o, **changed) if changed else o
