"""The body of a parallel loop as one thread runs it: registers for fragments, guarded vectors for
memory."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from tilec.ir import ops
from tilec.ir.builder import Builder
from tilec.ir.core import Block, Op, Substitution, Value
from tilec.ir.errors import InternalError
from tilec.ir.layout import leading_run, rows_behind
from tilec.ir.types import BOOL, ScalarType
from tilec.passes.utils.accesses import Access, fragment_accesses
from tilec.passes.utils.addressing import narrow, shared_offset
from tilec.passes.utils.memory_access import MemoryFacts, VectorAccess, in_memory, masked_loads


class LoopBody:
    """Lowers a loop's body for several elements at once, `width` of which are neighbours each time.
    `envs[e]` maps the body's values to those of element e; an op whose operands are the same in all
    of them is made once. Where an element has a value for `inside`, it is stored only if that
    holds."""

    def __init__(
        self,
        known: MemoryFacts,
        b: Builder,
        loop: ops.Parallel | None,
        width: int,
        guarded: bool | Collection[tuple[Op, int]],
        replica: Value | None,
        arg: Value | None = None,
        past: Block | None = None,
    ) -> None:
        """`guarded`: whether accesses are tested, or those which are, and along which dimension.
        `arg`: the index along which the elements are neighbours, where it is not the loop's.
        `past`: one load and one store, done past the registers."""
        self.known = known
        self.b = b
        self.loop = loop
        self.width = width
        self.guarded = guarded
        self.replica = replica
        self.inside = Value(ScalarType(BOOL), "inside")
        self.first: Value | None = None
        self.tables: dict[int, tuple[int, ...]] = {}
        self.fragments = {a.op: a for a in fragment_accesses(loop)} if loop else {}
        self.along = arg
        self.dim, _ = leading_run(loop.layout) if loop and loop.layout else (-1, 1)
        self.row, self.rows = rows_behind(loop.layout) if loop and loop.layout else (-1, 1)
        block = loop.body if loop else past
        self.masked = masked_loads(block.ops, known) if block else {}
        copies = block if loop is None or loop.engine == "cp_async" else None
        self.past = self._past_registers(copies) if copies else ()
        self._pending: tuple[ops.Load, VectorAccess]

    def op(self, o: Op, envs: list[Substitution], first: int = 0) -> None:
        """`o` for the elements from number `first` on."""
        self.b.loc = o.loc
        match o:
            case ops.Yield():
                return
            case (ops.Load() | ops.Store()) as access if o in self.fragments:
                for e, env in enumerate(envs, first):
                    self._register(access, env, e)
            case ops.ElementAccess() if in_memory(o):
                self._memory(o, envs)
            case ops.Select() if self._masks(o):
                for env in envs:
                    env[o.result] = env[o.on_true]
            case _ if o.pure and not o.regions:
                self._pure(o, envs)
            case ops.If() | ops.For() if self._together(o, envs):
                for run in self._together(o, envs):  # elements that go the same way
                    self._inside(o, run, first)
                    first += len(run)
            case ops.If() if min(self.width, len(envs)) > 1 and self.known.one_branch(o, self._arg):
                for start in range(0, len(envs), self.width):
                    self._whole(o, envs[start : start + self.width], first + start)
            case _ if o.region_fields:
                for e, env in enumerate(envs, first):
                    self._inside(o, [env], e)
            case _:
                for env in envs:
                    done = [o.clone(env)]
                    if self.replica is not None and any(e.is_once for e in o.effects()):
                        self.b.branch(self.replica, done)
                    else:
                        self.b.ops += done

    def _pure(self, o: Op, envs: list[Substitution]) -> None:
        several = len(envs) > 1
        step = self._step(o, self._arg, self.width) if several else None
        down = self._step(o, self._row, self.rows) if self._rows_together(envs) else None
        made_of: dict[tuple[Value, ...], Substitution] = {}
        for e, env in enumerate(envs):
            alike = made_of.setdefault(tuple(env.get(v, v) for v in o.operands), env)
            row, more = divmod(e, self.width)
            if alike is not env:
                for r in o.results:
                    env[r] = alike[r]
            elif down is not None and row:
                env[o.result] = self._further(envs[more][o.result], down * row)
            elif step is not None and more:
                env[o.result] = self._further(envs[e - more][o.result], step * more)
            else:
                self.b.ops.append(o.clone(env))

    def _further(self, made: Value, by: int) -> Value:
        return self.b.binary("add", made, by) if by else made

    def _rows_together(self, envs: list[Substitution]) -> bool:
        """Whether these are all rows that a thread has one after the other."""
        return self.rows > 1 and len(envs) == self.rows * self.width

    def _step(self, o: Op, arg: Value | None, width: int) -> int | None:
        """How much what `o` makes grows from neighbour to neighbour, where that is known and saves
        a division, or lets a condition be asked for once."""
        if width == 1 or arg is None or not isinstance(o, ops.Binary | ops.Compare):
            return None
        if isinstance(o, ops.Binary) and o.kind not in ops.DIVISIONS:
            return None
        found = self.known.neighbours(arg, width).step(o.result)
        return None if found is None else found.by

    def _together(self, o: Op, envs: list[Substitution]) -> list[list[Substitution]]:
        """The elements in runs that go the same way at `o`; none where each goes its own."""
        runs: list[list[Substitution]] = []
        last: tuple[Value, ...] = ()
        for env in envs:
            way = tuple(env.get(v, v) for v in ops.decides(o))
            if not runs or way != last:
                runs.append([])
            runs[-1].append(env)
            last = way
        return runs if len(runs) == 1 or len(runs) < len(envs) else []

    @property
    def _arg(self) -> Value | None:
        """The index of the loop along which the elements lowered together are neighbours."""
        if self.loop is None or self.dim < 0:
            return self.along
        return self.loop.body.args[self.dim]

    @property
    def _row(self) -> Value | None:
        """The index of the loop along which rows follow one another in a thread."""
        return self.loop.body.args[self.row] if self.loop and self.row >= 0 else None

    def _whole(self, o: ops.If, envs: list[Substitution], first: int) -> None:
        """A condition that holds for all neighbours if it does for the outer two: they take the
        branch together where it holds, else each for itself."""
        b, together, apart = self.b, Builder(o.loc), Builder(o.loc)
        whole = b.all_of(*(env.get(o.cond, o.cond) for env in (envs[0], envs[-1])))
        self.b = together
        own = [dict(env) for env in envs]
        for x in o.then.ops:
            self.op(x, own, first)
        self.b = apart
        for e, env in enumerate(envs, first):
            self._inside(o, [dict(env)], e)
        self.b = b
        b.emit(ops.If, whole, together.block(), apart.block())

    def _inside(self, o: Op, envs: list[Substitution], first: int) -> None:
        """An op with regions, for elements that run them together, each with its own carried
        values: what is inside is lowered in turn."""
        outer = self.b
        made: dict[str, Any] = {}
        alike = 1 if isinstance(o, ops.For) else 0  # arguments: the index
        for name in o.region_fields:
            region: Block = getattr(o, name)
            index = {a: Value(a.type, a.name) for a in region.args[:alike]}
            for env in envs:
                env.update(index)
                env.update((a, Value(a.type, a.name)) for a in region.args[alike:])
            self.b = Builder(o.loc)
            for x in region.ops:
                if isinstance(x, ops.Yield):
                    self.b.emit(ops.Yield, self._of_each(x.values, envs))
                else:
                    self.op(x, envs, first)
            carried = self._of_each(region.args[alike:], envs)
            made[name] = self.b.block((*index.values(), *carried))
        self.b = outer
        if isinstance(o, ops.For | ops.While):
            made["inits"] = self._of_each(o.inits, envs)
        if isinstance(o, ops.If):
            made["types"] = o.types * len(envs)
        for env in envs:
            env.update((r, Value(r.type, r.name)) for r in o.results)
        made["results"] = self._of_each(o.results, envs)
        outer.ops.append(replace(o.with_operands(envs[0]), **made))

    @staticmethod
    def _of_each(values: Sequence[Value], envs: Sequence[Substitution]) -> tuple[Value, ...]:
        return tuple(env.get(v, v) for env in envs for v in values)

    # --- fragments ---

    def _register(self, o: ops.Load | ops.Store, env: Substitution, e: int) -> None:
        access = self.fragments[o]
        assert self.loop is not None and self.first is not None
        b = self.b
        index = b.binary("add", self.first, e) if e else self.first
        straight = access.dims == tuple(range(len(self.loop.extents)))
        if not straight or access.buffer.buffer.layout != self.loop.layout:
            index = b.value(ops.Lookup, self._table(access), index)
        if isinstance(o, ops.Load):
            env[o.result] = b.value(ops.RegRead, access.buffer, index)
        else:
            b.emit(ops.RegWrite, access.buffer, index, env.get(o.value, o.value))

    def _table(self, access: Access) -> tuple[int, ...]:
        """Register of the fragment for each register of the loop."""
        assert self.loop is not None
        fragment, extents = access.buffer, self.loop.extents
        mine = self.loop.laid_out.table("reg")
        theirs = fragment.buffer.laid_out.table("reg")
        where: dict[tuple[int, ...], int] = {}
        wide = [i for i, e in enumerate(fragment.buffer.static_shape) if e != 1]
        for r in reversed(range(len(theirs))):
            where[tuple(int(theirs[r][i]) for i in wide)] = r
        kept = [run for run in access.runs if any(extents[d] != 1 for d in run)]

        def number(c: Sequence[int], run: tuple[int, ...]) -> int:
            total = 0
            for d in run:
                total = total * extents[d] + int(c[d])
            return total

        try:
            return tuple(where[tuple(number(c, run) for run in kept)] for c in mine)
        except KeyError:
            raise InternalError(
                f"the loop's layout {self.loop.layout} does not match {fragment.type}",
                self.loop.loc,
            ) from None

    # --- memory ---

    def _memory(self, o: ops.ElementAccess, envs: list[Substitution]) -> None:
        alone = isinstance(o, ops.Atomic) and not self.known.adds_vectors(o)
        limit = 1 if alone else min(self.width, len(envs))
        arg = self._arg if limit > 1 else None
        together = None if o in self.past else self.known.packed(o, arg, limit)
        known = together or self.known.memory(o, arg, limit)
        width, per = known.width * known.per, known.per
        apart = arg is not None and width == 1 and self.known.stride(o, arg) > 1
        loaded: dict[tuple[Value, ...], list[Substitution]] = {}
        for start in range(0, len(envs), width):
            group = envs[start : start + width]
            if isinstance(o, ops.Load) and o not in self.past:
                alike = loaded.setdefault(self._of_each(o.indices, group), group)
                if alike is not group:  # several elements read one
                    for env, other in zip(group, alike):
                        env[o.result] = other[o.result]
                    continue
            if apart and arg is not None:
                found = self.known.aligned(o, arg, self.width, start % self.width)
                known = replace(known, bytes=found)
            self._check(o, group)
            if o in self.past:
                self._async(o, group, known)
            else:
                self._access(o, group[::per], known)
                for e, env in enumerate(group):
                    env.update((r, group[e - e % per][r]) for r in o.results if e % per)

    def _access(self, o: ops.ElementAccess, group: list[Substitution], known: VectorAccess) -> None:
        """One vector, or where it crosses an edge its elements."""
        whole = self._crossing(o, group, known)
        if whole is not None:
            self._split(o, group, known, whole)
        elif isinstance(o, ops.Load):
            self._load(o, group, known)
        elif isinstance(o, ops.Atomic):
            self._atomic(o, group, known)
        elif isinstance(o, ops.Store):
            self._store(o, group, known)

    def _offset(self, o: ops.ElementAccess, env: Substitution) -> Value:
        buffer = o.buffer
        t = buffer.buffer
        indices = [env.get(v, v) for v in o.indices]
        if t.space == "global":
            return self.known.tensors.offset(self.b, t, indices)
        return shared_offset(self.b, t.laid_out, indices)

    def _start(self, o: ops.Load, env: Substitution) -> Value:
        """The offset of what a copy past the registers brings, if that is there; of places that are
        computed for each vector in as few instructions as there may be."""
        facts, args = self.known.facts, self.loop.body.args if self.loop else ()
        if all(facts.slope(v, a) is not None for v in o.indices for a in args):
            return self._offset(o, env)
        indices = [env.get(v, v) for v in o.indices]
        return self.known.tensors.short_offset(self.b, o.source.buffer, indices)

    def _check(self, o: ops.ElementAccess, group: list[Substitution]) -> None:
        """What is not proved of an index into shared memory is looked at in the simulator."""
        buffer = o.buffer
        if buffer.space == "shared" and self.known.checks(o, buffer.buffer):
            for env in (group[0], group[-1])[: len(group)]:
                self.b.emit(ops.CheckIndex, buffer, tuple(env.get(v, v) for v in o.indices))

    def _masks(self, o: ops.Select) -> bool:
        """Whether the choice of 0 in the place of a loaded element is made by not loading it, as
        cp.async does: its condition is the same for all that one brings (`recognise_gathers`)."""
        return bool(self.past) and o in self.masked

    def _mask(self, o: ops.ElementAccess, env: Substitution) -> list[Value]:
        """The conditions under which elements are loaded."""
        for select, mask in self.masked.items():
            if mask.load is o and self._masks(select):
                return [env.get(v, v) for v in mask.conds]
        return []

    def _guard(
        self, o: ops.ElementAccess, env: Substitution, known: VectorAccess, skip: int = -1
    ) -> list[Value]:
        """Tests that the access lies inside its tensor, but for dimension `skip`."""
        b = self.b
        conds = self._mask(o, env)
        t = o.buffer.buffer
        for d, low, high in known.checks:
            if not self._is_tested(o, d):
                continue
            index = env.get(o.indices[d], o.indices[d])
            if high and d != skip:
                extent = self.known.tensors.number(b, t.shape[d], index.dtype)
                conds.append(b.compare("lt", index, extent))
            if low:
                zero = b.const(0, index.dtype)
                conds.append(b.compare("ge", index, zero))
        return conds

    def _is_tested(self, o: ops.ElementAccess, d: int) -> bool:
        return self.guarded if isinstance(self.guarded, bool) else (o, d) in self.guarded

    def _bytes(self, o: ops.ElementAccess, width: int) -> int:
        return max(1, width * o.buffer.dtype.bits // 8)

    def _extent(self, o: ops.ElementAccess, index: Value, known: VectorAccess) -> Value | None:
        """The extent of the last dimension; None if no access is beyond it."""
        last = len(o.indices) - 1
        past = any(d == last and high for d, _, high in known.checks)
        if not past or not self._is_tested(o, last):
            return None
        return self.known.tensors.number(self.b, o.buffer.buffer.shape[last], index.dtype)

    def _crossing(
        self, o: ops.ElementAccess, group: list[Substitution], known: VectorAccess
    ) -> Value | None:
        """Whether a whole vector lies inside along its own dimension; None if it cannot cross the
        edge."""
        if len(group) == 1 or known.whole:
            return None
        index = group[-1].get(o.indices[-1], o.indices[-1])
        extent = self._extent(o, index, known)
        return None if extent is None else self.b.compare("lt", index, extent)

    def _cache(self, buffer: Value) -> str:
        """What the loop's author says of L2 and this buffer."""
        return self.loop.cache if self.loop and buffer.space == "global" else ""

    def _load(self, o: ops.Load, group: list[Substitution], known: VectorAccess) -> None:
        self._name(o, group, self._loaded(o, group, known))

    def _loaded(self, o: ops.Load, group: list[Substitution], known: VectorAccess) -> Value:
        """The vector, or the element, that one access loads."""
        b = self.b
        guard = b.conjunction(self._guard(o, group[-1], known))
        safe = self.known.tensors.safe.get(o.source)
        other = None
        if guard is not None and safe is not None:
            other = b.const(safe.value, safe.dtype)
        width = len(group)
        at, size = self._offset(o, group[0]), known.bytes or self._bytes(o, width)
        return b.value(ops.MemLoad, o.source, at, width, size, guard, other, self._cache(o.source))

    def _name(self, o: ops.Load, group: list[Substitution], loaded: Value) -> None:
        """Let the results be the elements of what is loaded."""
        for e, env in enumerate(group):
            env[o.result] = loaded if len(group) == 1 else self.b.value(ops.Extract, loaded, e)

    def _split(
        self, o: ops.ElementAccess, group: list[Substitution], known: VectorAccess, whole: Value
    ) -> None:
        """One vector access where it fits, element by element at the edge. A vector that is loaded
        is taken apart behind both: in its branch each waited for its data before the next began."""
        b = self.b
        last = len(o.indices) - 1
        inner_checks = tuple((d, low, high and d != last) for d, low, high in known.checks)
        vector, single = Builder(o.loc), Builder(o.loc)
        for builder, parts, checks in (
            (vector, [group], inner_checks),
            (single, [[env] for env in group], known.checks),
        ):
            self.b = builder
            values: list[Value] = []
            for part in parts:
                envs = [dict(env) for env in part]
                access = VectorAccess(len(envs), checks)
                if isinstance(o, ops.Load):
                    values.append(self._loaded(o, envs, access))
                else:
                    self._access(o, envs, access)
            if len(values) > 1:
                values = [builder.value(ops.Pack, tuple(values))]
            builder.emit(ops.Yield, tuple(values))
        self.b = b
        types = tuple(v.type for v in values)
        made = b.emit(ops.If, whole, vector.block(), single.block(), types)
        if isinstance(o, ops.Load):
            self._name(o, group, *made.results)

    def _atomic(self, o: ops.Atomic, group: list[Substitution], known: VectorAccess) -> None:
        env = group[0]
        guard = self.b.conjunction(self._conditions(o, group[-1], known))
        if len(group) > 1:
            values = self.b.value(ops.Pack, tuple(e.get(o.value, o.value) for e in group))
            self.b.emit(ops.MemRed, o.dest, self._offset(o, env), values, guard)
            return
        value = env.get(o.value, o.value)
        compare = None if o.compare is None else env.get(o.compare, o.compare)
        at = self._offset(o, env)
        env[o.result] = self.b.value(ops.MemAtomic, o.dest, at, value, o.kind, guard, compare)

    def _conditions(
        self, o: ops.ElementAccess, env: Substitution, known: VectorAccess
    ) -> list[Value]:
        """What must hold where memory is changed."""
        conds = self._guard(o, env, known)
        if self.replica is not None:
            conds.append(self.replica)
        if self.inside in env:
            conds.append(env[self.inside])
        return conds

    def _store(self, o: ops.Store, group: list[Substitution], known: VectorAccess) -> None:
        b = self.b
        guard = b.conjunction(self._conditions(o, group[-1], known))
        values = tuple(env.get(o.value, o.value) for env in group)
        value = values[0] if len(values) == 1 else b.value(ops.Pack, values)
        at, size = self._offset(o, group[0]), known.bytes or self._bytes(o, len(group))
        b.emit(ops.MemStore, o.dest, at, value, size, guard, self._cache(o.dest))

    def _past_registers(self, block: Block) -> tuple[Op, ...]:
        """The store of a loop, and the load of what it stores: other loads say from where."""
        made = block.makers
        (store,) = (o for o in block.ops if isinstance(o, ops.Store))
        value = made[store.value]
        if isinstance(value, ops.Select):
            value = self.masked[value].load
        return store, value

    def _async(self, o: ops.ElementAccess, group: list[Substitution], known: VectorAccess) -> None:
        """A copy past the registers: made at its store; the load only says from where."""
        if isinstance(o, ops.Load):
            for env in group:
                env[o.result] = o.result
            self._pending = (o, known)
            return
        load, load_known = self._pending
        b = self.b
        to, size = self._offset(o, group[0]), self._bytes(o, len(group))
        places = o.buffer, to, load.source, self._start(load, group[0])
        valid = self._valid_bytes(load, group, load_known)
        b.emit(ops.CpAsync, *places, size, valid, self._cache(load.source))

    def _valid_bytes(
        self, o: ops.Load, group: list[Substitution], known: VectorAccess
    ) -> Value | None:
        """How many bytes of a vector lie inside the tensor; None if all of them always do."""
        last = len(o.indices) - 1
        b = self.b
        inside = b.conjunction(self._guard(o, group[0], known, skip=last))
        size = o.source.dtype.bits // 8
        whole = b.const(len(group) * size)
        valid = whole
        index = group[0].get(o.indices[-1], o.indices[-1])
        extent = self._extent(o, index, known)
        if extent is not None:
            left = b.binary("sub", extent, index)
            count, zero = (b.const(n, left.dtype) for n in (len(group), 0))
            left = b.binary("max", b.binary("min", left, count), zero)
            left = narrow(b, left)  # only now: it may have been far below zero
            valid = b.binary("mul", left, size)
        if inside is not None:
            valid = b.select(inside, valid, b.const(0))
        return None if valid is whole else valid
