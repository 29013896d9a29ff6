"""mem2reg: turns buffers of one element that each thread has for itself into SSA values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tilec.ir.core import Block, Func, Op, Region, Substitution, Value, altered, walk, within
from tilec.ir.ops import Alloc, Const, Fill, For, If, Load, Store, While, Yield, yielded
from tilec.ir.types import ScalarType
from tilec.ir.uniformity import Level, uniformity_of
from tilec.passes.utils.dce import sweep
from tilec.target import Target


def mem2reg(func: Func, target: Target) -> Func:
    """Before: TILE. After: TILE, and every `local` buffer of one element that is only loaded,
    stored and filled is gone: its value is an SSA value, carried through `for`, `while` and `if`.
    So is a fragment of one element in which all threads store one value.

    A buffer stays if its index is not the constant 0, if something else uses it (its address, a
    copy, a print), if a `parallel` or `scope` around a store to it does not enclose the buffer
    itself, if the condition of a `while` stores to it, or if a load may come before the first
    store (so that the simulator can still report it). Other fragments and shared buffers are left
    alone.
    """
    promoted = _promotable(func)
    while promoted:
        lifting = _Lifting(promoted)
        body = lifting.block(func.body)
        if not lifting.undefined:
            return sweep(func.with_body(body))
        promoted -= lifting.undefined
    return func


# --- which ones ---------------------------------------------------------------------------------


def _promotable(func: Func) -> set[Value]:
    single = [o for o in func.body.every(Alloc) if o.type.size == 1]
    found = {o.result for o in single if o.type.space in ("local", "fragment")}
    if not found:
        return found
    made, uniformity = func.body.defs, uniformity_of(func)

    def zeros(indices: Iterable[Value]) -> bool:
        ops = (made.get(v) for v in indices)
        return all(isinstance(o, Const) and o.value == 0 for o in ops)

    def is_for_all(o: Op) -> bool:
        """Whether no fragment that `o` stores to gets one thread's value."""
        if not isinstance(o, Store) or o.dest.space == "local":
            return True
        return max(uniformity.level(o.value), uniformity.around(o)) == Level.BLOCK

    for o, around in within(func.body):
        match o:
            case Load(indices=at) | Store(indices=at) | Fill(dest=Region(offsets=at)) if zeros(
                at
            ) and is_for_all(o):
                pass
            case _:
                found.difference_update(o.operands)
        stored = _stored(o)
        if stored is not None and any(_traps(x, o, stored) for x in around):
            found.discard(stored)
    return found


def _traps(x: Op, o: Op, buffer: Value) -> bool:
    """Whether no SSA value leads out of `x` of what `o` inside of it stores in a buffer from
    outside."""
    opens = isinstance(x, For | If) or (isinstance(x, While) and o not in x.cond.inside)
    return not opens and not any(buffer in region.made for region in x.regions)


def _stored(o: Op) -> Value | None:
    """The buffer that a store or fill writes."""
    match o:
        case Store(dest=buffer) | Fill(dest=Region(buffer=buffer)):
            return buffer
    return None


# --- lifting ------------------------------------------------------------------------------------


class _Lifting:
    """One walk in textual order. `now` holds each live buffer's value, None before its first store;
    `undefined` collects the buffers loaded while that was None."""

    def __init__(self, promoted: set[Value]) -> None:
        self.promoted = promoted
        self.undefined: set[Value] = set()
        self.subst: Substitution = {}
        self.now: dict[Value, Value | None] = {}
        self.out: list[Op] = []

    def block(self, block: Block) -> Block:
        outer, self.out = self.out, []
        for old in block.ops:
            self.op(old, old.with_operands(self.subst) if self.subst else old)
        done, self.out = self.out, outer
        return block.with_ops(done)

    def op(self, old: Op, o: Op) -> None:
        match o:
            case Alloc() if o.result in self.promoted:
                self.now[o.result] = None
            case Load(source=buffer) if buffer in self.promoted:
                if self.now[buffer] is None:
                    self.undefined.add(buffer)
                self.subst[o.result] = self.held(buffer, o)
            case Store(value=value) | Fill(value=value) if (to := _stored(o)) in self.promoted:
                self.now[to] = value
            case _ if o.region_fields:
                # a buffer that is not in `now` yet was allocated inside, and dies there
                stored = dict.fromkeys(v for x in walk(old) if (v := _stored(x)))
                self.structured(o, [b for b in stored if b in self.promoted and b in self.now])
            case _:
                self.out.append(o)

    def structured(self, o: Op, buffers: list[Value]) -> None:
        """An op with regions that hand over what is in these buffers; a loop takes it in, too."""
        kept, takes = self.now, bool(buffers) and not isinstance(o, If)

        def region(block: Block) -> Block:
            self.now = dict(kept)
            args = tuple(map(_value, buffers)) if takes else ()
            self.now.update(zip(buffers, args))
            done = self.block(block)
            done = replace(done, args=(*done.args, *args)) if args else done
            decides = isinstance(o, While) and block is o.cond
            return done if decides or not buffers else self.yielding(done, buffers)

        before = tuple(self.held(b, o) for b in buffers) if takes else ()
        done, results = o.with_regions(region), tuple(map(_value, buffers))
        match o:
            case For() | While() if buffers:
                done = altered(done, inits=(*o.inits, *before), results=(*o.results, *results))
            case If() if buffers:
                types = (*o.types, *(r.type for r in results))
                done = altered(done, types=types, results=(*o.results, *results))
        self.now = {**kept, **dict(zip(buffers, results))}
        self.out.append(done)

    def yielding(self, block: Block, buffers: list[Value]) -> Block:
        """`block` with the buffers' values at its end added to what it yields."""
        last = next((o for o in block.ops[-1:] if isinstance(o, Yield)), Yield())
        outer, self.out = self.out, [*block.statements]
        values = tuple(self.held(b, last) for b in buffers)
        ops, self.out = self.out, outer
        done = replace(last, values=(*yielded(block), *values))
        return replace(block, ops=(*ops, done))

    def held(self, buffer: Value, near: Op) -> Value:
        """What a buffer holds; anything where nothing was stored yet, for in a program without a
        fault that is not looked at."""
        value, dtype = self.now[buffer], buffer.dtype
        if value is None:
            number = 0.0 if dtype.is_float else False if dtype.kind == "bool" else 0
            value = _value(buffer)
            self.out.append(Const(number, dtype, buffer.name, results=(value,), loc=near.loc))
        return value


def _value(buffer: Value) -> Value:
    return Value(ScalarType(buffer.dtype), buffer.name)
