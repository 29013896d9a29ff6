"""A kernel's records as Python: one function per segment, with its values in local variables.

What a segment is, and how values get from one to the next, is said by `program`. Each scalar stack
slot of the records is such a variable, and each stack array a tuple of values: nothing points to
them but the records' own loads and stores."""

from __future__ import annotations

import functools
import heapq
import re
from collections.abc import Collection, Iterator, Mapping
from types import CodeType
from typing import Any

from tilec.ir.errors import InternalError
from tilec.ir.instr.semantics import absorbs, may_wait
from tilec.ir.instr.sync import COUNT_UP
from tilec.ir.llvm import Function, Inst, Val
from tilec.ir.llvm_text import BYTES, array_of, size_of
from tilec.sim import numbers
from tilec.sim.buffers import SHARED_BASE
from tilec.sim.intrinsics import intrinsic, reads, work_of
from tilec.sim.numbers import HELPERS, spelled
from tilec.sim.program import (
    NOWHERE,
    Branch,
    Const,
    Edge,
    LoadStore,
    Operand,
    Program,
    Segment,
    Wait,
)
from tilec.sim.undefined import UNDEF, VARIABLE, Undefined

_GLOBAL = "ptr addrspace(1)"
_Key = tuple[str, str, str]  # type, spelling, and what variable has no value, of an operand
_Source = tuple[list[str], dict[str, str], dict[str, Any]]  # lines, names of values, constants


def read_program(function: Function, watched: Collection[str] = ()) -> Program:
    """The records of `function` made ready to run; `watched` are stack slots whose changes are told
    to the active. Raises InternalError for a record without semantics."""
    return _Reader(function, watched).program()


class _Reader:
    def __init__(self, f: Function, watched: Collection[str]) -> None:
        self.f, self.watched = f, watched
        self.arrays: dict[str, str] = {}  # pointers into the stack -> the slot they point into
        self.stack: dict[str, Any] = {}  # stack slots -> their first value
        self.units: dict[str, int] = {}  # stack slots -> bytes of an element
        for a in f.allocas:
            assert a.result is not None
            kind = a.text.split("alloca ", 1)[1].split(", align")[0]
            self.stack[a.result.ref] = _nothing(kind, a.result.ref)
            self.arrays[a.result.ref] = a.result.ref
            self.units[a.result.ref] = size_of(kind.rpartition(" x ")[2].strip("[]>"))
        self.values: dict[_Key, Any] = {}  # of constant operands
        self.names: dict[str, str] = {}  # of a segment's values
        self.scope: dict[str, Any] = {}  # its constants, by their names
        self.spelled: dict[_Key, str] = {}
        self.segments: list[Segment] = []
        self.granule = 16  # what matrix instructions and engines move at least
        self.first: dict[str, int] = {}
        self.uses: list[set[str]] = []
        self.defs: list[set[str]] = []

    # --- segments ---

    def program(self) -> Program:
        self._cut()
        for block in self.f.blocks:
            for i in block.insts:
                self._note_pointer(i)
        sources = [self._segment(s) for s in self.segments]
        live = self._live()
        slots: dict[str, int] = {}
        for names in live:
            for n in sorted(names - slots.keys()):
                slots[n] = len(slots)
        for block in self.f.blocks:
            for phi in block.phis:
                slots.setdefault(phi.result.ref, len(slots))
        for ref in self._needed_by_ends():
            slots.setdefault(ref, len(slots))
        self._ends(slots)
        for s, source, needed in zip(self.segments, sources, live):
            s.live_in = tuple(sorted(slots[n] for n in needed))
            text, scope = self._text(s, source, slots)
            s.run = functools.partial(_first_run, s, text, scope)
        start: list[Any] = [UNDEF] * len(slots)
        for ref, value in self.stack.items():
            if ref in slots:
                start[slots[ref]] = value
        params = [slots.get(name) for _, _, name in self.f.params]
        return Program(self.segments, len(slots), params, start, self.granule)

    def _needed_by_ends(self) -> Iterator[str]:
        """What the scheduler reads and writes between segments."""
        for block in self.f.blocks:
            for phi in block.phis:
                yield from (v.ref for v, _ in phi.incoming if _named(v))
        for s in self.segments:
            last = s.insts[-1] if s.insts else None
            if last is not None and (last.opcode == "br" or _may_wait(last)):
                yield from (v.ref for v in last.operands if _named(v))
                if last.result is not None:
                    yield last.result.ref

    def _cut(self) -> None:
        for block in self.f.blocks:
            self.first[block.label] = len(self.segments)
            label, insts = block.label, list[Inst]()
            for i in block.insts:
                insts.append(i)
                if _may_wait(i):
                    self.segments.append(Segment(len(self.segments), label, insts))
                    label, insts = "", []
            self.segments.append(Segment(len(self.segments), label, insts))

    def _segment(self, s: Segment) -> _Source:
        """The Python lines of a segment, with what it uses and defines noted. Its values and
        constants are numbered as they come: segments that differ in names and numbers alone, as
        those of one kernel for other dtypes do, have the same text."""
        self.uses.append(set())
        self.defs.append(set())
        self.names, self.scope, self.spelled = {}, {}, {}
        lines: list[str] = []
        for i in s.insts:
            if i.opcode in ("ret", "unreachable"):
                continue
            if i.opcode == "br" or _may_wait(i):
                self.uses[-1].update(
                    v.ref for v in i.operands if _named(v) and v.ref not in self.defs[-1]
                )
                continue
            lines += self._lines(i)
        return lines, self.names, self.scope

    def _text(
        self, s: Segment, source: _Source, slots: Mapping[str, int]
    ) -> tuple[str, dict[str, Any]]:
        """A segment as a function, with the values that it takes from `env` and leaves there."""
        lines, names, self.scope = source
        uses, defs = self.uses[s.index], self.defs[s.index]
        s.touched = frozenset(slots[ref] for ref in uses | defs if ref in slots)
        taken = [f"{x} = e[{self._object(slots[ref])}]" for ref, x in names.items() if ref in uses]
        left = [
            f"e[{self._object(slots[ref])}] = {x}"
            for ref, x in names.items()
            if ref in defs and ref in slots
        ]
        return "def run(m, e):\n " + "\n ".join([*taken, *lines, *left] or ["pass"]), self.scope

    def _ends(self, slots: Mapping[str, int]) -> None:
        label = ""
        phis = {b.label: b.phis for b in self.f.blocks}

        def operand(v: Val) -> Operand:
            if v.ref in slots:
                return slots[v.ref]
            return Const(self._value(v))

        def edge(to: str) -> Edge:
            copies = []
            for p in phis[to]:
                (value,) = {v.ref: v for v, came in p.incoming if came == label}.values()
                copies.append((slots[p.result.ref], operand(value)))
            return Edge(self.first[to], tuple(copies))

        for s in self.segments:
            label = s.label or label
            last = s.insts[-1] if s.insts else None
            if last is None or last.opcode in ("ret", "unreachable"):
                continue
            if last.opcode == "br":
                first, *others = [edge(to) for to in _targets(last)]
                s.end = first
                for second in others:
                    merge = self.first[last.merge] if last.merge else NOWHERE
                    s.end = Branch(operand(last.operands[0]), first, second, merge, last)
            elif _may_wait(last):
                result = slots.get(last.result.ref) if last.result is not None else None
                args = tuple(operand(v) for v in last.operands)
                s.end = Wait(last, args, result, s.index + 1)

    def _live(self) -> list[set[str]]:
        """What is needed at the start of each segment. A phi is written on the way to it."""
        phis = {b.label: b.phis for b in self.f.blocks}
        uses, following = list[set[str]](), list[list[int]]()
        before: list[list[int]] = [[] for _ in self.segments]
        label = ""
        for s in self.segments:
            label = s.label or label
            last = s.insts[-1] if s.insts else None
            needed, targets = set(self.uses[s.index]), list[int]()
            if last is not None and last.opcode == "br":
                for to in _targets(last):
                    targets.append(self.first[to])
                    for p in phis[to]:
                        came = {v.ref for v, block in p.incoming if block == label and _named(v)}
                        needed |= came - self.defs[s.index]
            elif last is not None and _may_wait(last):
                targets.append(s.index + 1)
            uses.append(needed)
            following.append(targets)
            for to_segment in targets:
                before[to_segment].append(s.index)
        born = [{p.result.ref for p in phis[s.label]} if s.label else set() for s in self.segments]
        live = [set(u) for u in uses]
        todo = [-i for i in reversed(range(len(live)))]  # a heap: from the end to the start
        waiting = set(range(len(live)))
        while todo:
            i = -heapq.heappop(todo)
            waiting.discard(i)
            out = set[str]().union(*(live[j] - born[j] for j in following[i]))
            found = uses[i] | (out - self.defs[i])
            if found != live[i]:
                live[i] = found
                for j in before[i]:
                    if j not in waiting:
                        waiting.add(j)
                        heapq.heappush(todo, -j)
        return live

    # --- names and constants ---

    def _name(self, ref: str) -> str:
        found = self.names.get(ref)
        if found is None:
            found = self.names[ref] = f"x{len(self.names)}"
        return found

    def _constant(self, v: Val) -> str:
        key = (v.type, v.ref, v.unset)
        found = self.spelled.get(key)
        if found is None:
            found = self.spelled[key] = self._object(self._value(v))
        return found

    def _value(self, v: Val) -> Any:
        """The number that a constant operand is."""
        key = (v.type, v.ref, v.unset)
        if key not in self.values:
            self.values[key] = self._number(v)
        return self.values[key]

    def _number(self, v: Val) -> Any:
        if v.unset:
            return Undefined(VARIABLE + v.unset)
        if v.ref.startswith("@smem"):
            distance = int(v.ref.partition("+")[2] or 0)
            return numbers.kind_of(v.type)(SHARED_BASE + distance)
        if v.ref.startswith("@"):
            return v.ref
        return numbers.literal(v.type, v.ref)

    def _object(self, value: Any) -> str:
        name = f"K{len(self.scope)}"
        self.scope[name] = value
        return name

    def _use(self, v: Val) -> str:
        """The Python spelling of an operand."""
        if not _named(v):
            return self._constant(v)
        if v.ref not in self.defs[-1]:
            self.uses[-1].add(v.ref)
        return self._name(v.ref)

    def _define(self, ref: str) -> str:
        self.defs[-1].add(ref)
        return self._name(ref)

    # --- records ---

    def _note_pointer(self, i: Inst) -> None:
        if i.opcode == "getelementptr" and i.operands[0].ref in self.arrays and i.result:
            self.arrays[i.result.ref] = self.arrays[i.operands[0].ref]

    def _lines(self, i: Inst) -> list[str]:
        if i.opcode in ("load", "store"):
            return self._access(i)
        if i.opcode in ("call", "asm"):
            return self._call(i)
        if i.opcode == "check_index":
            extents = self._object(tuple(map(int, re.findall(r"\d+", i.text))))
            indices = "".join(self._use(v) + ", " for v in i.operands)
            return [f"m.check_index({self._object(i)}, {extents}, ({indices}))"]
        if i.opcode == "device_assert":
            return [f"m.device_assert({self._object(i)}, {self._use(i.operands[0])})"]
        if i.opcode == "fence":
            ordered = f"m.order_memory({i.text.split()[2].rstrip(',')!r})"
            return [ordered, "m.device_fence()"] if '"agent"' in i.text else [ordered]
        if i.opcode == "cmpxchg":
            args = ", ".join(self._use(v) for v in i.operands)
            space = "shared" if "(3)" in i.operands[0].type else "global"
            kind = i.operands[1].type
            call = f"m.compare_exchange({self._object(i)}, {kind!r}, {space!r}, {args})"
            return self._result(i, call)
        if i.opcode == "atomicrmw":
            assert i.result is not None
            args = ", ".join(self._use(v) for v in i.operands)
            kind = i.text.split()[1]
            if kind != "uinc_wrap":
                space = "shared" if "(3)" in i.operands[0].type else "global"
                record = self._object(i)
                call = f"m.atomic({record}, {kind!r}, {i.result.type!r}, {space!r}, {args})"
                return self._result(i, call)
            what, record = self._object(COUNT_UP.asm.semantics), self._object(i)
            return self._result(i, f"m.call({what}, {record}, ({args}))[0]")
        assert i.result is not None
        if i.opcode == "getelementptr" and i.result.ref in self.arrays:
            return self._result(i, self._element(i))
        return self._result(i, spelled(i, [self._use(v) for v in i.operands], self._object))

    def _result(self, i: Inst, value: str) -> list[str]:
        """The line that defines the result of a record."""
        assert i.result is not None
        return [f"{self._define(i.result.ref)} = {value}"]

    def _element(self, i: Inst) -> str:
        """The number of the element of a stack array that a pointer into it points to."""
        base, index = i.operands
        slot = self.arrays[base.ref]
        kind = i.text.split(" ", 1)[1].rsplit(f", {base}", 1)[0]
        step, unit = size_of(kind), self.units[slot]
        found = self._use(index)
        if step != unit:
            found = f"{found} * {step} // {unit}"
        return found if base.ref == slot else f"{self._use(base)} + {found}"

    def _access(self, i: Inst) -> list[str]:
        load = i.opcode == "load"
        pointer = i.operands[0 if load else 1]
        if pointer.ref in self.arrays:
            return self._stack_access(i, load, pointer)
        if load:
            assert i.result is not None
            type = i.result.type
        else:
            type = i.operands[0].type
        vector = numbers.vector_of(type)
        count, kind = vector or (1, type)
        space = {_GLOBAL: "global", "ptr addrspace(3)": "shared"}.get(pointer.type, "constant")
        align = int(re.findall(r", align (\d+)", i.text)[-1])
        kind = "i64" if kind.startswith("ptr") else kind
        bytes = BYTES[kind]
        at = self._use(pointer)
        if space == "shared":
            self._note_size(count * bytes | align)
        access = self._object(LoadStore(i, space, kind, count, vector is not None, align, bytes))
        if load:
            return self._result(i, f"m.load({access}, {at})")
        return [f"m.store({access}, {at}, {self._use(i.operands[0])})"]

    def _note_size(self, bytes: int) -> None:
        """Shared memory is accessed in multiples of so many bytes."""
        self.granule = min(self.granule, bytes & -bytes)

    def _stack_access(self, i: Inst, load: bool, pointer: Val) -> list[str]:
        slot = self.arrays[pointer.ref]
        whole = slot == pointer.ref and not _is_array(self.stack[slot], i, load)
        name = self._use(Val("ptr", slot))
        if whole:
            if load:
                return self._result(i, f"read_register({name}, {self._object(i.loc)})")
            value = self._use(i.operands[0])
            return [f"{self._define(slot)} = {value}", *self._watch(i, slot)]
        index = self._use(pointer) if slot != pointer.ref else "K_first"
        record = self._object(i)
        if load:
            return self._result(i, f"m.pick({record}, {slot!r}, {name}, {index})")
        value = self._use(i.operands[0])
        put = f"m.put({record}, {slot!r}, {name}, {index}, {value})"
        return [f"{self._define(slot)} = {put}", *self._watch(i, slot)]

    def _watch(self, i: Inst, slot: str) -> list[str]:
        if slot not in self.watched:
            return []
        return [f"m.written_register({self._object(i)}, {slot!r}, {self._name(slot)})"]

    def _call(self, i: Inst) -> list[str]:
        args = [
            self._use(v if reads(i.instr, n) else Val(v.type, "0"))
            for n, v in enumerate(i.operands)
        ]
        if i.instr == "vprintf":
            return [f"m.print_line({args[0]}, {args[1]})"]
        if i.instr == "llvm.assume":
            return [f"m.assume({self._object(i)}, {args[0]})"]
        semantics = i.semantics or intrinsic(i.instr)
        if semantics is None:
            message = f"{i.instr or i.text[:60]} has no semantics in the simulator"
            raise InternalError(message, i.loc)
        copied = re.match(r"cp\.async\.(\d+)", i.instr)
        if copied or i.instr.startswith("ld.cluster"):
            self._note_size(int(copied[1]) if copied else 4)
        what, record = self._object(semantics), self._object(i)
        word = "compute" if absorbs(semantics) else "call"
        call = f"m.{word}({what}, {record}, ({''.join(a + ', ' for a in args)}))"
        work = work_of(i.instr) if i.opcode == "call" else ""
        counted = [f"m.count({work!r}, {record})"] if work else []
        if i.result is None:
            return [*counted, call]
        single = not i.result.type.startswith("{")
        return [*counted, *self._result(i, f"{call}{'[0]' if single else ''}")]


def _first_run(
    s: Segment, text: str, constants: Mapping[str, Any], active: Any, env: list[Any]
) -> None:
    """Python takes as long to read a segment as the segment takes to run once, and many never do:
    those of loops and branches that nothing enters."""
    scope = {**HELPERS, **constants}
    exec(_code(text), scope)
    s.run = scope.pop("run")  # else the scope would hold what holds it
    s.run(active, env)


@functools.lru_cache(maxsize=8192)
def _code(text: str) -> CodeType:
    return compile(text, "<simulated kernel>", "exec")


def _targets(branch: Inst) -> list[str]:
    return re.findall(r"label %([\w.]+)", branch.text)


def _named(v: Val) -> bool:
    return v.ref.startswith("%")


def _may_wait(i: Inst) -> bool:
    return i.opcode in ("asm", "call") and may_wait(i.semantics or intrinsic(i.instr))


def _nothing(type: str, slot: str, part: int = 0) -> Any:
    """The first value of a stack slot, or of the element `part` of one."""
    if type.startswith("["):
        count, elem = array_of(type)
        each = (numbers.vector_of(elem) or (1,))[0]
        return tuple(_nothing(elem, slot, i * each) for i in range(count))
    vector = numbers.vector_of(type)
    if vector:
        return tuple(Undefined(slot, part + i) for i in range(vector[0]))
    return Undefined(slot, part)


def _is_array(first: Any, i: Inst, load: bool) -> bool:
    """Whether a load or store at the start of a stack slot means the first of its elements."""
    if type(first) is not tuple:
        return False
    assert not load or i.result is not None
    kind = i.result.type if load and i.result is not None else i.operands[0].type
    vector = numbers.vector_of(kind)
    if vector is None:
        return True
    return type(first[0]) is tuple
