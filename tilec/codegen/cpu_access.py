"""Loads and stores of the CPU target: where an element lies, which lanes may touch it, and the
cheapest way to.

An index is one of three things. A scalar is the same in all lanes; a `Ramp` grows by a known step
from lane to lane (a loop index that runs along the lanes, and what is computed from it by
additions); a vector is anything else. Offsets keep the three apart, so that an access is one
number, one contiguous vector, or a gather or scatter, as it needs.

A guard costs no branch. A scalar load out of bounds is turned to a slot that holds the tensor's
safe value, a scalar store to a slot that nobody reads, and vectors use LLVM's masked loads and
stores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tilec.codegen.lanes import (
    convert,
    from_memory,
    iota,
    mangled,
    memory_type,
    splat,
    to_memory,
    with_lanes,
)
from tilec.ir.llvm import Function, Val, constant, elem_of, int_val, lanes_of, shaped
from tilec.ir.types import DType


@dataclass(frozen=True, slots=True)
class Ramp:
    """base + step * lane."""

    base: Val
    step: int


Index = Val | Ramp


@dataclass(frozen=True)
class MemRef:
    """A buffer's place. `strides` are i64 elements, `sizes` the i64 extents that guards compare
    with. `safe`: a slot with what reads out of bounds give (0 where there is none, as on chip: an
    index out of bounds has no meaning there, but may not touch what else the process holds).
    `tail`: the metadata by which LLVM tells buffers apart. `private`: each lane has a copy, element
    by element side by side.
    """

    pointer: Val
    dtype: DType
    strides: tuple[Val, ...]
    sizes: tuple[Val, ...] | None = None
    safe: Val | None = None
    tail: str = ""
    private: bool = False

    def with_unit_stride(self) -> MemRef:
        """The same where the last stride has been found to be 1."""
        return replace(self, strides=(*self.strides[:-1], int_val(1, "i64")))


@dataclass(frozen=True, slots=True)
class Place:
    """An element per lane: `base` elements from the buffer's start, plus `step` per lane, plus
    `offsets`. `uniform_ok`: whether the indices on which all lanes agree are in bounds; `lanes_ok`:
    in which lanes the others are; `some_ok`: false only where no lane is. None is true.
    """

    base: Val
    step: int
    offsets: Val | None
    uniform_ok: Val | None
    lanes_ok: Val | None
    some_ok: Val | None


@dataclass(frozen=True)
class MemoryEmitter:
    """Loads and stores appended to `fn`. `nowhere`: a slot of 8 bytes for stores that must not
    happen. `truth`: an i1 that is true, which LLVM cannot know.
    """

    fn: Function
    nowhere: Val
    truth: Val

    @staticmethod
    def begin(fn: Function) -> MemoryEmitter:
        """Make the two slots in the block that `fn` is at, its first."""
        slot = fn.alloca("i8", 1)
        fn.store(int_val(1, "i8"), slot, 1, words="volatile ")
        truth = fn.icmp("ne", fn.load("i8", slot, 1, words="volatile "), 0)
        return MemoryEmitter(fn, fn.alloca("i64", 8), truth)

    # --- lanes ---

    def vector(self, v: Index, lanes: int) -> Val:
        """The index or value as a vector (a scalar where there is one lane)."""
        if isinstance(v, Ramp):
            base = splat(self.fn, v.base, lanes)
            return self.fn.add(base, iota(lanes, v.base.type, v.step)) if lanes > 1 else v.base
        return splat(self.fn, v, lanes) if lanes_of(v.type) != lanes else v

    def both(self, a: Val | None, b: Val | None) -> Val | None:
        """a and b, where None is true."""
        if a is None or b is None:
            return a if b is None else b
        return self.fn.binary("and", a, b)

    def wide(self, v: Index, signed: bool) -> Index:
        """An index as i64."""
        if isinstance(v, Ramp):
            return Ramp(self.fn.cast("sext" if signed else "zext", v.base, "i64"), v.step)
        return convert(self.fn, "sext" if signed else "zext", v, "i64")

    # --- places ---

    def place(
        self, memory: MemRef, indices: Sequence[Index], lanes: int, proved: Sequence[bool]
    ) -> Place:
        """Where the i64 `indices` point. Dimensions that are `proved` need no guard."""
        fn = self.fn
        base, step = int_val(0, "i64"), 0
        offsets: Val | None = None
        uniform_ok: Val | None = None
        lanes_ok: Val | None = None
        reached: Val | None = None
        private = memory.private and lanes > 1
        for d, index in enumerate(indices):
            stride = memory.strides[d]
            if private:
                stride = fn.mul(stride, lanes)
            more: Val | None = None
            if isinstance(index, Ramp):
                base = fn.add(base, fn.mul(index.base, stride))
                if stride.literal is not None:
                    step += index.step * stride.literal
                else:
                    more = fn.mul(splat(fn, stride, lanes), iota(lanes, "i64", index.step))
            elif lanes_of(index.type) > 1:
                more = fn.mul(index, splat(fn, stride, lanes))
            else:
                base = fn.add(base, fn.mul(index, stride))
            if more is not None:
                offsets = more if offsets is None else fn.add(offsets, more)
            if memory.sizes is None or proved[d]:
                continue
            size = memory.sizes[d]
            if isinstance(index, Val) and lanes_of(index.type) == 1:
                uniform_ok = self.both(uniform_ok, fn.icmp("ult", index, size))
            else:
                lanes_ok = self.both(lanes_ok, self._inside(index, size, lanes))
                reached = self.both(reached, self._reached(index, size, lanes))
        if private:
            step += 1
        some_ok = self.both(uniform_ok, reached)
        return Place(base, step, offsets, uniform_ok, lanes_ok, some_ok)

    def _reached(self, index: Index, size: Val, lanes: int) -> Val | None:
        """Whether some lane's index is in [0, size), as far as that is cheap to tell."""
        fn = self.fn
        if isinstance(index, Val) or index.step != 1:
            return None
        below = fn.icmp("slt", index.base, size)
        return fn.binary("and", below, fn.icmp("sgt", index.base, -lanes))

    def _inside(self, index: Index, size: Val, lanes: int) -> Val:
        """Lanes whose index is in [0, size)."""
        return self.fn.icmp("ult", self.vector(index, lanes), splat(self.fn, size, lanes))

    def _address(self, memory: MemRef, place: Place) -> Val:
        base = memory.pointer
        if place.base.literal == 0:
            return base
        # Not `inbounds`: a guarded access may compute an address that is never touched.
        text = f"getelementptr {memory_type(memory.dtype)}, {base}, {place.base}"
        return self.fn.pure("getelementptr", "ptr", (base, place.base), text)

    def _safe(self, memory: MemRef) -> Val:
        """A slot with what a read out of bounds gives."""
        if memory.safe is not None:
            return memory.safe
        self.fn.declarations["zero"] = "@zero = private constant i64 0, align 8"
        return Val("ptr", "@zero")

    def _mapped(self, memory: MemRef, place: Place, otherwise: Val) -> Val:
        """The address of a masked access: `otherwise` where no lane is inside, since a processor is
        slow to find out that an address it may not touch was not asked for."""
        pointer = self._address(memory, place)
        if place.some_ok is None:
            return pointer
        return self.fn.select(place.some_ok, pointer, otherwise)

    def _addresses(self, memory: MemRef, place: Place, lanes: int) -> Val:
        """One pointer per lane."""
        fn = self.fn
        base = self._address(memory, place)
        offsets = iota(lanes, "i64", place.step)
        if place.offsets is not None:
            offsets = fn.add(place.offsets, offsets) if place.step else place.offsets
        text = f"getelementptr {memory_type(memory.dtype)}, {base}, {offsets}"
        return fn.pure("getelementptr", f"<{lanes} x ptr>", (base, offsets), text)

    def _mask(self, place: Place, mask: Val | None, lanes: int) -> Val | None:
        made = self.both(mask, place.lanes_ok)
        if place.uniform_ok is not None:
            made = self.both(made, splat(self.fn, place.uniform_ok, lanes))
        return made

    # --- loads and stores ---

    def load(self, memory: MemRef, place: Place, lanes: int, mask: Val | None) -> Val:
        """The elements in register form: a scalar where all lanes read the same one."""
        fn, dtype = self.fn, memory.dtype
        elem, align = memory_type(dtype), dtype.bytes
        if place.offsets is None and place.step == 0 and place.lanes_ok is None:
            pointer = self._address(memory, place)
            if place.uniform_ok is not None:
                pointer = fn.select(place.uniform_ok, pointer, self._safe(memory))
            return from_memory(fn, fn.load(elem, pointer, align, tail=memory.tail), dtype)
        mask = self._mask(place, mask, lanes)
        type = shaped(elem, lanes)
        contiguous = place.offsets is None and place.step == 1
        if contiguous and mask is None:
            pointer = self._address(memory, place)
            return from_memory(fn, fn.load(type, pointer, align, tail=memory.tail), dtype)
        other = Val(type, "poison")
        if place.uniform_ok is not None or place.lanes_ok is not None:
            other = splat(fn, fn.load(elem, self._safe(memory), align), lanes)
        if contiguous:
            name, where = "masked.load", self._mapped(memory, place, self._safe(memory))
        else:
            name, where = "masked.gather", self._addresses(memory, place, lanes)
        mask = mask if mask is not None else constant(shaped("i1", lanes), 1)
        made = self._masked(type, name, mangled(type), where, align, [mask, other], memory.tail)
        return from_memory(fn, made, dtype)

    def store(
        self, memory: MemRef, place: Place, value: Index, lanes: int, mask: Val | None
    ) -> None:
        """Write `value` (register form). Where lanes write one element, the last of them wins."""
        fn, dtype = self.fn, memory.dtype
        align = dtype.bytes
        same = place.offsets is None and place.step == 0 and place.lanes_ok is None
        if same and isinstance(value, Val) and lanes_of(value.type) == 1:
            ok = place.uniform_ok
            if mask is not None:
                some = fn.intrinsic("i1", f"llvm.vector.reduce.or.{mangled(mask.type)}", [mask])
                ok = self.both(ok, some)
            pointer = self._address(memory, place)
            if ok is not None:
                pointer = fn.select(ok, pointer, self.nowhere)
            fn.store(to_memory(fn, value, dtype), pointer, align, tail=memory.tail)
            return
        made = to_memory(fn, self.vector(value, lanes), dtype)
        mask = self._mask(place, mask, lanes)
        contiguous = place.offsets is None and place.step == 1
        if contiguous and mask is None:
            fn.store(made, self._address(memory, place), align, tail=memory.tail)
            return
        if contiguous:
            name, where = "masked.store", self._mapped(memory, place, self.nowhere)
            if mask is not None and (align < 4 or (align < 8 and not dtype.is_float)):
                # LLVM 22 stores what a narrow element was truncated from where it knows that only
                # one is left: 4 bytes, or the 8 of an int64.
                mask = self.both(mask, splat(fn, self.truth, lanes))
            if mask is not None and 1 < lanes < 16 // align:
                # LLVM 22 widens a store of fewer bytes itself, at times with its mask repeated.
                made = with_lanes(fn, made, 16 // align, Val(made.type, "poison"))
                mask = with_lanes(fn, mask, 16 // align, constant(mask.type, 0))
        else:
            name, where = "masked.scatter", self._addresses(memory, place, lanes)
        mask = mask if mask is not None else constant(shaped("i1", lanes), 1)
        self._masked("void", name, mangled(made.type), where, align, [mask], memory.tail, made)

    def atomic(
        self,
        memory: MemRef,
        place: Place,
        values: Sequence[Index],
        change: Callable[..., Val],
        lanes: int,
        mask: Val | None,
    ) -> Val:
        """`change(pointer, *values)` for one lane after the other, which gives what was there (0
        where nothing is done)."""
        fn = self.fn
        ok = self._mask(place, mask, lanes)
        given = zip(*(self._each(self.vector(v, lanes), lanes) for v in values))
        wanted = [None] * lanes if ok is None else self._each(ok, lanes)
        found = []
        for at, own, inside in zip(self._pointers(memory, place, lanes), given, wanted):
            if inside is not None:
                at = fn.select(inside, at, self.nowhere)
            got = change(at, *own)
            if inside is not None:
                got = fn.select(inside, got, 0)
            found.append(got)
        return fn.pack(found) if lanes > 1 else found[0]

    def _each(self, v: Val, lanes: int) -> list[Val]:
        return self.fn.unpack(v, lanes, elem_of(v.type)) if lanes_of(v.type) > 1 else [v] * lanes

    def _pointers(self, memory: MemRef, place: Place, lanes: int) -> list[Val]:
        if lanes > 1:
            return self._each(self._addresses(memory, place, lanes), lanes)
        base = self._address(memory, place)
        if place.offsets is None:
            return [base]
        return [self.fn.gep(memory_type(memory.dtype), base, place.offsets)]

    def _masked(
        self,
        type: str,
        name: str,
        suffix: str,
        where: Val,
        align: int,
        args: Sequence[Val],
        tail: str,
        value: Val | None = None,
    ) -> Val:
        """A masked intrinsic; the alignment stands on the pointer operand."""
        fn = self.fn
        full = f"llvm.{name}.{suffix}.{mangled(where.type)}"
        given = [value, where, *args] if value is not None else [where, *args]
        if full not in fn.declarations:
            fn.declarations[full] = f"declare {type} @{full}({', '.join(v.type for v in given)})"
        words = [f"{v.type} align {align} {v.ref}" if v is where else str(v) for v in given]
        text = f"call {type} @{full}({', '.join(words)}){tail}"
        if type == "void":
            fn.act("call", tuple(given), text, full)
            return where
        return fn.inst("call", type, tuple(given), text, full)
