"""lower_parallel: loops over a tile become loops over one thread's registers.

Before: every `parallel` has a layout; copies and fills have become parallel loops
(`lower_copies`). After: no `parallel`, and no element access outside of `local` buffers: only
`reg_read`/`reg_write` of fragments and `mem_load`/`mem_store`/`cp_async` with offset, width and
guard.

A loop runs over groups of `v` registers whose elements are neighbours, so that the memory accesses
among them become vector accesses where alignment is known. An index that may leave its tensor is
guarded. The test is made once for the whole tile: inside, the fast form has no guards; only a tile
that crosses an edge takes the guarded form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tilec.ir.analysis import Facts
from tilec.ir.core import (
    Block,
    Builder,
    Func,
    Op,
    Replacement,
    Substitution,
    Value,
    clone,
    substitute,
    walk,
)
from tilec.ir.errors import InternalError
from tilec.ir.layout import Layout
from tilec.ir.ops import (
    AnnotateSafeValue,
    Binary,
    Cast,
    Compare,
    Const,
    CpAsync,
    Extract,
    For,
    If,
    Load,
    Lookup,
    MemLoad,
    MemStore,
    Pack,
    Parallel,
    RegRead,
    RegWrite,
    Select,
    Store,
    Yield,
)
from tilec.ir.types import INT32, BufferType
from tilec.passes.accesses import fragment_accesses
from tilec.passes.addressing import (
    Place,
    Tensors,
    clone_expression,
    conjunction,
    coordinates,
    shared_offset,
    unique_replica,
)
from tilec.passes.select_copies import alignment, gcd2, innermost_contiguous
from tilec.target import Target

MAX_VECTOR_BYTES = 16


def lower_parallel(func: Func, target: Target) -> Func:
    """See the module's opening."""
    lowering = Lowering(func, target)

    def visit(o: Op) -> None | Op | list[Op]:
        match o:
            case Parallel():
                return lowering.parallel(o)
            case Load() | Store() if _in_memory(o):
                return lowering.scalar(o)
            case AnnotateSafeValue():
                return []
        return None

    return func.with_body(_rewrite_outside(func.body, visit, {}))


def _rewrite_outside(
    block: Block, visit: Callable[[Op], Replacement], subst: Substitution
) -> Block:
    """`rewrite`, but a parallel loop is seen before what is inside it."""
    ops: list[Op] = []
    for o in block.ops:
        new = substitute(o, subst)
        if not isinstance(o, Parallel):
            inner: dict[str, Any] = {
                n: _rewrite_outside(getattr(new, n), visit, subst) for n in new.region_fields
            }
            if inner:
                new = replace(new, **inner)
        got = visit(new)
        if got is None:
            ops.append(new)
        elif isinstance(got, Op):
            ops.append(got)
        else:
            if new.results and got:
                subst[new.results[0]] = got[-1].results[0]
            ops.extend(got)
    return replace(block, ops=tuple(ops))


def _in_memory(o: Op) -> bool:
    buffer = o.source if isinstance(o, Load) else o.dest if isinstance(o, Store) else None
    return buffer is not None and buffer.buffer.space in ("global", "shared")


@dataclass
class _Memory:
    """One access to memory in a parallel loop: the widest vector it may use, and the tests it
    needs."""

    width: int
    checks: tuple[
        tuple[int, bool, bool], ...
    ]  # (dimension, below zero possible, past the end possible)


class Lowering:
    """Facts about one function, shared by the lowering of its loops."""

    def __init__(self, func: Func, target: Target) -> None:
        self.func = func
        self.target = target
        self.facts = Facts(func)
        self.tensors = Tensors(func)
        self.defs = {r: o for o in walk(func.body) for r in o.results}
        self.runs: dict[Layout, int] = {}

    # --- what an access allows ---

    def affine(self, v: Value, arg: Value) -> tuple[int, int] | None:
        """(coefficient of `arg`, a power of two that divides the rest), if `v` is linear in
        `arg`."""
        if v is arg:
            return 1, 1 << 30
        o = self.defs.get(v)
        if o is None or not _depends(v, arg, self.defs):
            return 0, max(1, self.facts.divisor(v))
        match o:
            case Binary(kind="add" | "sub"):
                x, y = self.affine(o.lhs, arg), self.affine(o.rhs, arg)
                if x is None or y is None:
                    return None
                sign = 1 if o.kind == "add" else -1
                return x[0] + sign * y[0], gcd2(x[1], y[1]) if x[1] < 1 << 30 else y[1]
            case Cast() if o.operand.dtype.is_int and o.dtype.is_int:
                return self.affine(o.operand, arg)
        return None

    def run(self, layout: Layout) -> int:
        """Elements of the last dimension that lie side by side, aligned to their number."""
        if layout not in self.runs:
            offsets = layout.offsets()
            best, width = 1, 2
            while width <= 16 and layout.shape[-1] % width == 0:
                groups = offsets.reshape(-1, width)
                if (groups[:, :1] % width).any() or (groups - groups[:, :1] != range(width)).any():
                    break
                best, width = width, 2 * width
            self.runs[layout] = best
        return self.runs[layout]

    def memory(self, o: Load | Store, arg: Value | None, limit: int) -> _Memory:
        """What is known of an access; `arg` is the loop index along which registers are
        neighbours."""
        buffer = o.source if isinstance(o, Load) else o.dest
        t = buffer.buffer
        width = 1
        if arg is not None and limit > 1:
            width = min(limit, MAX_VECTOR_BYTES * 8 // t.dtype.bits)
            linear = self.affine(o.indices[-1], arg)
            others = any(_depends(v, arg, self.defs) for v in o.indices[:-1])
            if linear is None or linear[0] != 1 or others:
                width = 1
            else:
                width = gcd2(width, linear[1])
                if t.space == "global":
                    known = alignment(t) * 8 // t.dtype.bits if innermost_contiguous(t) else 1
                    width = min(width, max(known, 1))
                elif t.layout is not None:
                    width = min(width, self.run(t.layout))
        return _Memory(width, self.checks(o, t) if t.space == "global" else ())

    def checks(self, o: Load | Store, t: BufferType) -> tuple[tuple[int, bool, bool], ...]:
        """The dimensions whose index is not proved to lie inside, and on which side it may not."""
        found = []
        for d, (index, extent) in enumerate(zip(o.indices, t.shape)):
            lo, hi = self.facts.range(index)
            low = lo is None or lo < 0
            if isinstance(extent, int):
                high = hi is None or hi >= extent
            else:
                high = not (index in self.defs and _is_zero(self.defs[index]))
            if low or high:
                found.append((d, low, high))
        return tuple(found)

    # --- code outside of parallel loops ---

    def scalar(self, o: Op) -> list[Op]:
        """An element access that every thread makes for itself."""
        b = Builder(o.loc)
        assert isinstance(o, (Load, Store))
        body = _Body(self, b, None, 1, True, None)
        env: Substitution = {}
        body.op(o, [env])
        if isinstance(o, Load):
            made = env[o.result]
            if not b.ops or made not in b.ops[-1].results:
                raise InternalError("a load that ends in another op", o.loc)
        return b.ops

    # --- parallel loops ---

    def parallel(self, p: Parallel) -> list[Op]:
        layout = p.layout
        if layout is None:
            raise InternalError("a parallel loop without a layout", p.loc)
        b = Builder(p.loc)
        place = Place(b)
        place.make(layout)
        replica = unique_replica(b, layout, place)
        dim, run = leading_run(layout)
        arg = p.body.args[dim] if dim >= 0 else None
        accesses = [o for o in walk(p.body) if isinstance(o, (Load, Store)) and _in_memory(o)]
        flat = not any(o.regions for o in p.body.ops)
        limit = run if flat else 1
        width = max((self.memory(o, arg, limit).width for o in accesses), default=1)
        needs = [(o, c) for o in accesses for c in self.memory(o, arg, limit).checks]
        if not needs:
            self._emit(b, p, place, replica, width, dim, guarded=False)
            return b.ops
        inside = self._tile_inside(b, p, needs) if flat and p.agent != "cp_async" else None
        if inside is None:
            self._emit(b, p, place, replica, width if flat else 1, dim, guarded=True)
            return b.ops
        fast, slow = Builder(p.loc), Builder(p.loc)
        self._emit(fast, p, place, replica, width, dim, guarded=False)
        self._emit(slow, p, place, replica, width, dim, guarded=True)
        fast.emit(Yield)
        slow.emit(Yield)
        b.emit(If, inside, fast.block(), slow.block())
        return b.ops

    def _tile_inside(
        self, b: Builder, p: Parallel, needs: list[tuple[Load | Store, tuple[int, bool, bool]]]
    ) -> Value | None:
        """Whether all accesses of the loop lie inside their tensors, tested at the tile's
        corners."""
        conds: list[Value] = []
        done: set[tuple[object, ...]] = set()
        zero_args: Substitution = {a: b.value(Const, 0, INT32) for a in p.body.args}
        last_args: Substitution = {
            a: b.value(Const, e - 1, INT32) for a, e in zip(p.body.args, p.extents)
        }
        inner = {r: o for o in walk(p.body) for r in o.results}
        for o, (d, low, high) in needs:
            index = o.indices[d]
            t = (o.source if isinstance(o, Load) else o.dest).buffer
            for a in p.body.args:
                linear = self.affine(index, a)
                if linear is None or linear[0] < 0:
                    return None
            key = (index, t.shape[d], low, high)
            if key in done:
                continue
            done.add(key)
            if high:
                most = clone_expression(b, index, inner, dict(last_args))
                if most is None:
                    return None
                extent = self.tensors.number(b, t.shape[d], most.dtype)
                conds.append(b.value(Compare, "lt", most, extent))
            if low:
                least = clone_expression(b, index, inner, dict(zero_args))
                if least is None:
                    return None
                conds.append(b.value(Compare, "ge", least, b.value(Const, 0, least.dtype)))
        return conjunction(b, conds)

    def _emit(
        self,
        b: Builder,
        p: Parallel,
        place: Place,
        replica: Value | None,
        width: int,
        dim: int,
        guarded: bool,
    ) -> None:
        """The loop over groups of `width` registers."""
        assert p.layout is not None
        registers = p.layout.size("reg")
        group = Value(b.value(Const, 0, INT32).type, "r")
        inner = Builder(p.loc)
        first = inner.value(Binary, "mul", group, inner.value(Const, width, INT32))
        coords = coordinates(inner, p.layout, place, first)
        envs: list[Substitution] = []
        for e in range(width):
            env: Substitution = dict(zip(p.body.args, coords))
            if e:
                env[p.body.args[dim]] = inner.value(
                    Binary, "add", coords[dim], inner.value(Const, e, INT32)
                )
            envs.append(env)
        body = _Body(self, inner, p, width, guarded, replica)
        body.first = first
        for o in p.body.ops:
            body.op(o, envs)
        inner.emit(Yield)
        zero, count, one = (b.value(Const, n, INT32) for n in (0, registers // width, 1))
        b.emit(For, "unroll", zero, count, one, (), inner.block([group]))


def leading_run(layout: Layout) -> tuple[int, int]:
    """(dimension, length): how many of a thread's first registers are neighbours along a
    dimension, each run starting at a multiple of its length. (-1, 1) if none are."""
    regs = [d for d in layout.digits if d.owner == "reg"]
    if not regs:
        return -1, 1
    dim = next((i for i, s in enumerate(regs[0].step) if s), -1)
    if dim < 0:
        return -1, 1
    run, used = 1, 0
    for d in regs:
        if d.step[dim] != run or any(s for i, s in enumerate(d.step) if i != dim):
            break
        run *= d.radix & -d.radix
        used += 1
        if d.radix & (d.radix - 1):
            break
    rest = [d for d in layout.digits if d.owner != "reg"] + regs[used:]
    while run > 1 and any(d.step[dim] % run for d in rest):
        run //= 2
    return (dim, run) if run > 1 else (-1, 1)


def _is_zero(o: Op) -> bool:
    return isinstance(o, Const) and o.value == 0


def _depends(v: Value, on: Value, defs: dict[Value, Op]) -> bool:
    if v is on:
        return True
    o = defs.get(v)
    return o is not None and any(_depends(x, on, defs) for x in o.operands)


class _Body:
    """Lowers a loop's body for several neighbouring elements at once. `envs[e]` maps the body's
    values to those of element e; an op whose operands are the same in all of them is made once."""

    def __init__(
        self,
        lowering: Lowering,
        b: Builder,
        loop: Parallel | None,
        width: int,
        guarded: bool,
        replica: Value | None,
    ) -> None:
        self.lowering = lowering
        self.b = b
        self.loop = loop
        self.width = width
        self.guarded = guarded
        self.replica = replica
        self.first: Value | None = None
        self.tables: dict[int, tuple[int, ...]] = {}
        self.fragments = {a.op: a for a in fragment_accesses(loop)} if loop else {}
        self.dim, _ = leading_run(loop.layout) if loop and loop.layout else (-1, 1)
        self._pending: tuple[Load, _Memory]

    def op(self, o: Op, envs: list[Substitution]) -> None:
        self.b.loc = o.loc
        match o:
            case Yield():
                return
            case Load() | Store() if o in self.fragments:
                for e, env in enumerate(envs):
                    self._register(o, env, e)
            case Load() | Store() if _in_memory(o):
                self._memory(o, envs)
            case _ if o.pure and not o.regions:
                self._pure(o, envs)
            case _:
                for e, env in enumerate(envs):
                    self._effect(o, env, e)

    def _pure(self, o: Op, envs: list[Substitution]) -> None:
        first = [envs[0].get(v, v) for v in o.operands]
        same = all([env.get(v, v) for v in o.operands] == first for env in envs[1:])
        for e, env in enumerate(envs):
            if e and same:
                for r in o.results:
                    env[r] = envs[0][r]
            else:
                self.b.ops.append(clone(o, env))

    def _effect(self, o: Op, env: Substitution, e: int) -> None:
        """An op with regions or effects, for one element: its inside is lowered in turn."""
        if not o.region_fields:
            self.b.ops.append(clone(o, env))
            return
        outer = self.b
        inner: dict[str, Any] = {}
        for name in o.region_fields:
            region: Block = getattr(o, name)
            args = []
            for a in region.args:
                env[a] = Value(a.type, a.name)
                args.append(env[a])
            self.b = Builder(o.loc)
            for x in region.ops:
                if isinstance(x, Yield):
                    self.b.ops.append(substitute(x, env))
                elif isinstance(x, (Load, Store)) and x in self.fragments:
                    self._register(x, env, e)
                else:
                    self.op(x, [env])
            inner[name] = Block(tuple(args), tuple(self.b.ops))
        self.b = outer
        results = []
        for r in o.results:
            env[r] = Value(r.type, r.name)
            results.append(env[r])
        self.b.ops.append(replace(substitute(o, env), results=tuple(results), **inner))

    # --- fragments ---

    def _register(self, o: Load | Store, env: Substitution, e: int) -> None:
        access = self.fragments[o]
        assert self.loop is not None and self.loop.layout is not None and self.first is not None
        b = self.b
        index = b.value(Binary, "add", self.first, b.value(Const, e, INT32)) if e else self.first
        if access.project(self.loop.layout) != self.loop.layout or access.dims != tuple(
            range(len(self.loop.extents))
        ):
            index = b.value(Lookup, self._table(access.buffer, access.dims), index)
        if isinstance(o, Load):
            env[o.result] = b.value(RegRead, access.buffer, index)
        else:
            b.emit(RegWrite, access.buffer, index, env.get(o.value, o.value))

    def _table(self, fragment: Value, dims: tuple[int, ...]) -> tuple[int, ...]:
        """Register of the fragment for each register of the loop."""
        assert self.loop is not None and self.loop.layout is not None
        own = fragment.buffer.layout
        assert own is not None
        mine = self.loop.layout.table("reg")
        theirs = own.table("reg")
        where: dict[tuple[int, ...], int] = {}
        wide = [i for i, e in enumerate(fragment.buffer.static_shape) if e != 1]
        for r in reversed(range(len(theirs))):
            where[tuple(int(theirs[r][i]) for i in wide)] = r
        kept = [d for d in dims if self.loop.extents[d] != 1]
        try:
            return tuple(where[tuple(int(c[d]) for d in kept)] for c in mine)
        except KeyError:
            raise InternalError(
                f"the loop's layout {self.loop.layout} does not match {fragment.type}",
                self.loop.loc,
            ) from None

    # --- memory ---

    def _memory(self, o: Load | Store, envs: list[Substitution]) -> None:
        arg = None
        if self.loop is not None and self.dim >= 0 and len(envs) > 1:
            arg = self.loop.body.args[self.dim]
        known = self.lowering.memory(o, arg, len(envs))
        width = known.width
        for start in range(0, len(envs), width):
            group = envs[start : start + width]
            if self.loop is not None and self.loop.agent == "cp_async":
                self._async(o, group, known)
            elif isinstance(o, Load):
                self._load(o, group, known)
            else:
                self._store(o, group, known)

    def _offset(self, o: Load | Store, env: Substitution) -> Value:
        buffer = o.source if isinstance(o, Load) else o.dest
        t = buffer.buffer
        indices = [env.get(v, v) for v in o.indices]
        if t.space == "global":
            return self.lowering.tensors.offset(self.b, t, indices)
        assert t.layout is not None
        return shared_offset(self.b, t.layout, indices)

    def _guard(
        self, o: Load | Store, env: Substitution, known: _Memory, skip: int = -1
    ) -> list[Value]:
        """Tests that the access lies inside its tensor, but for dimension `skip`."""
        b = self.b
        conds: list[Value] = []
        if not self.guarded:
            return conds
        t = (o.source if isinstance(o, Load) else o.dest).buffer
        for d, low, high in known.checks:
            index = env.get(o.indices[d], o.indices[d])
            if high and d != skip:
                extent = self.lowering.tensors.number(b, t.shape[d], index.dtype)
                conds.append(b.value(Compare, "lt", index, extent))
            if low:
                zero = b.value(Const, 0, index.dtype)
                conds.append(b.value(Compare, "ge", index, zero))
        return conds

    def _bytes(self, t: BufferType, width: int) -> int:
        return max(1, width * t.dtype.bits // 8)

    def _crossing(self, o: Load | Store, group: list[Substitution], known: _Memory) -> Value | None:
        """Whether a whole vector lies inside along its own dimension; None if it cannot cross the
        edge."""
        t = (o.source if isinstance(o, Load) else o.dest).buffer
        last = len(o.indices) - 1
        if (
            len(group) == 1
            or not self.guarded
            or not any(d == last and h for d, _, h in known.checks)
        ):
            return None
        b = self.b
        index = group[-1].get(o.indices[-1], o.indices[-1])
        extent = self.lowering.tensors.number(b, t.shape[-1], index.dtype)
        return b.value(Compare, "lt", index, extent)

    def _load(self, o: Load, group: list[Substitution], known: _Memory) -> None:
        t = o.source.buffer
        whole = self._crossing(o, group, known)
        if whole is not None:
            self._split(o, group, known, whole)
            return
        b = self.b
        guard = conjunction(b, self._guard(o, group[-1], known))
        safe = self.lowering.tensors.safe.get(o.source)
        other = None
        if guard is not None and safe is not None:
            other = b.value(Const, safe.value, safe.dtype)
        width = len(group)
        loaded = b.value(
            MemLoad, o.source, self._offset(o, group[0]), width, self._bytes(t, width), guard, other
        )
        for e, env in enumerate(group):
            env[o.result] = loaded if width == 1 else b.value(Extract, loaded, e)

    def _split(
        self, o: Load | Store, group: list[Substitution], known: _Memory, whole: Value
    ) -> None:
        """One vector access where it fits, element by element at the edge."""
        b = self.b
        last = len(o.indices) - 1
        inner_checks = tuple((d, low, high and d != last) for d, low, high in known.checks)
        vector, single = Builder(o.loc), Builder(o.loc)
        types = tuple(o.result.type for _ in group) if isinstance(o, Load) else ()
        for builder, parts, checks in (
            (vector, [group], inner_checks),
            (single, [[env] for env in group], known.checks),
        ):
            self.b = builder
            values: list[Value] = []
            for part in parts:
                envs = [dict(env) for env in part]
                if isinstance(o, Load):
                    self._load(o, envs, _Memory(len(envs), checks))
                    values += [env[o.result] for env in envs]
                else:
                    self._store(o, envs, _Memory(len(envs), checks))
            builder.emit(Yield, tuple(values))
        self.b = b
        made = b.emit(If, whole, vector.block(), single.block(), types)
        if isinstance(o, Load):
            for env, r in zip(group, made.results):
                env[o.result] = r

    def _store(self, o: Store, group: list[Substitution], known: _Memory) -> None:
        whole = self._crossing(o, group, known)
        if whole is not None:
            self._split(o, group, known, whole)
            return
        b = self.b
        conds = self._guard(o, group[-1], known)
        if self.replica is not None:
            conds.append(self.replica)
        guard = conjunction(b, conds)
        values = tuple(env.get(o.value, o.value) for env in group)
        value = values[0] if len(values) == 1 else b.value(Pack, values)
        t = o.dest.buffer
        b.emit(
            MemStore, o.dest, self._offset(o, group[0]), value, self._bytes(t, len(group)), guard
        )

    def _async(self, o: Load | Store, group: list[Substitution], known: _Memory) -> None:
        """A copy past the registers: made at its store; the load only says from where."""
        if isinstance(o, Load):
            for env in group:
                env[o.result] = o.result
            self._pending = (o, known)
            return
        load, load_known = self._pending
        b = self.b
        b.emit(
            CpAsync,
            o.dest,
            self._offset(o, group[0]),
            load.source,
            self._offset(load, group[0]),
            self._bytes(o.dest.buffer, len(group)),
            self._valid_bytes(load, group, load_known),
        )

    def _valid_bytes(self, o: Load, group: list[Substitution], known: _Memory) -> Value | None:
        """How many bytes of a vector lie inside the tensor; None if all of them always do."""
        last = len(o.indices) - 1
        b = self.b
        inside = conjunction(b, self._guard(o, group[0], known, skip=last))
        t = o.source.buffer
        size = t.dtype.bits // 8
        whole = b.value(Const, len(group) * size, INT32)
        valid = whole
        if self.guarded and any(d == last and high for d, _, high in known.checks):
            index = group[0].get(o.indices[-1], o.indices[-1])
            extent = self.lowering.tensors.number(b, t.shape[-1], index.dtype)
            left = b.value(Binary, "sub", extent, index)
            if left.dtype != INT32:
                left = b.value(
                    Cast, b.value(Binary, "min", left, b.value(Const, 64, left.dtype)), INT32
                )
            count = b.value(Const, len(group), INT32)
            zero = b.value(Const, 0, INT32)
            left = b.value(Binary, "max", b.value(Binary, "min", left, count), zero)
            valid = b.value(Binary, "mul", left, b.value(Const, size, INT32))
        if inside is not None:
            valid = b.value(Select, inside, valid, b.value(Const, 0, INT32))
        return None if valid is whole else valid
