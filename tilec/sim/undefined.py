"""Values that are not plain numbers: what was never written, or what LLVM leaves undefined (`UNDEF`
in all lanes, a `Partly` in some of them), and accumulators in flight.

What is undefined absorbs arithmetic, so that code which computes with it and throws the result away
runs on. Where it reaches memory, a branch or a hardware row, that is a finding."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import NDArray

from tilec.ir.llvm import FLAGS, Inst
from tilec.ir.loc import UNKNOWN, Loc

VARIABLE = "="
"""Before the name of a variable that is in no stack slot."""

POISON = "!"
"""Before the words for an operation whose result LLVM leaves undefined (see `poison`)."""


class Lost:
    """`slot`: the stack slot that nobody had written, or `VARIABLE` and a name, or `POISON` and
    what has made it, "" if it is not known; `part`: which of the slot's elements; `loc`: where it
    was read."""

    __slots__ = ("loc", "part", "slot")

    def __init__(self, slot: str = "", part: int = 0, loc: Loc = UNKNOWN) -> None:
        self.slot, self.part, self.loc = slot, part, loc

    @property
    def origin(self) -> tuple[str, int, Loc]:
        return self.slot, self.part, self.loc


class Undefined(NDArrayOperatorsMixin, Lost):
    """What is undefined in all lanes; arithmetic with it, NumPy's too, gives it again."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "undefined"

    def __array_ufunc__(self, *args: Any, **kwargs: Any) -> Undefined:
        return self

    def __array_function__(self, *args: Any, **kwargs: Any) -> Undefined:
        return self

    def __getitem__(self, index: Any) -> Undefined:
        return self

    def _absorb(self, *others: Any, **kwargs: Any) -> Undefined:
        return self

    astype = view = reshape = _absorb
    __hash__ = object.__hash__


UNDEF = Undefined()


class Partly(NDArrayOperatorsMixin, Lost):
    """An array over the lanes that is undefined where `lost` holds; `value` is anything there.
    `sure`: those of these lanes of which the origin is known to be right."""

    __slots__ = ("lost", "sure", "value")

    def __init__(
        self,
        value: NDArray[Any],
        lost: NDArray[np.bool_],
        sure: NDArray[np.bool_],
        origin: tuple[str, int, Loc],
    ) -> None:
        super().__init__(*origin)
        self.value, self.lost, self.sure = value, lost, sure

    def __repr__(self) -> str:
        return f"{self.value} where not {self.lost}"

    @property
    def dtype(self) -> Any:
        return self.value.dtype

    @property
    def ndim(self) -> int:
        return 1

    @property
    def shape(self) -> tuple[int, ...]:
        return self.lost.shape

    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        return absorbed(lambda *plain: getattr(ufunc, method)(*plain, **kwargs), *args)

    def __getitem__(self, index: Any) -> Any:
        """Some of the lanes, or one."""
        value, lost = self.value[index], self.lost[index]
        if np.ndim(lost) == 0:
            return Undefined(*self.origin) if lost else value
        return partly(value, lost, self.sure[index], self.origin)

    def astype(self, kind: Any) -> Partly:
        return Partly(self.value.astype(kind), self.lost, self.sure, self.origin)


def partly(
    value: Any, lost: NDArray[np.bool_], sure: NDArray[np.bool_], origin: tuple[str, int, Loc]
) -> Any:
    """`value`, an array or the same for all lanes, undefined where `lost` holds."""
    if isinstance(value, Partly):  # what is undefined already
        lost, sure, value = lost | value.lost, sure & ~value.lost, value.value
    if type(value) is Undefined or not lost.any():
        return value
    if lost.all() and sure.all():
        return Undefined(*origin)
    return Partly(np.broadcast_to(value, lost.shape), lost, sure, origin)


def is_undefined(x: Any) -> bool:
    """Whether any part of a value was never written, in any lane."""
    if type(x) is tuple:
        return any(is_undefined(e) for e in x)
    return isinstance(x, Lost)


def lost_parts(x: Any) -> list[Lost]:
    """The parts of a value that were not written, or not in all lanes."""
    if type(x) is tuple:
        return [found for e in x for found in lost_parts(e)]
    return [x] if isinstance(x, Lost) else []


def absorbed(compute: Callable[..., Any], *args: Any) -> Any:
    """What `compute` makes of `args`, undefined in the lanes in which one of these is."""
    found = [x for a in args for x in lost_parts(a)]
    for x in found:
        if type(x) is Undefined:
            return x
    first, *others = [x for x in found if isinstance(x, Partly)]
    lost = first.lost
    for x in others:
        lost = lost | x.lost
    made = compute(*(_anything(a) for a in args))
    if type(made) is tuple:
        return tuple(partly(e, lost, first.sure, first.origin) for e in made)
    return partly(made, lost, first.sure, first.origin)


def applied(compute: Callable[..., Any], *args: Any) -> Any:
    """What `compute` makes of `args`, none of them a tuple: undefined where one of them is."""
    for x in args:
        if isinstance(x, Lost):
            return absorbed(compute, *args)
    return compute(*args)


def _anything(x: Any) -> Any:
    """A value with something in the lanes in which it is undefined; not of what is so in all."""
    if type(x) is tuple:
        return tuple(map(_anything, x))
    return x.value if isinstance(x, Partly) else x


def filled(x: Any, zero: Any) -> Any:
    """A value with `zero` in the lanes in which it is undefined."""
    if isinstance(x, Partly):
        return np.where(x.lost, zero, x.value)
    return zero if isinstance(x, Lost) else x


def chosen(cond: Any, a: Any, b: Any) -> Any:
    """`a` in the lanes in which `cond` (an array) holds, else `b`; either may be undefined."""
    first = first_read([x for x in (a, b) if isinstance(x, Lost)])
    if type(a) is Undefined and type(b) is Undefined:
        return first
    kind = (b if type(a) is Undefined else a).dtype.type(0)
    lost = np.where(cond, lost_in(a), lost_in(b))
    sure = np.where(cond, sure_in(a, first), sure_in(b, first))
    return partly(np.where(cond, filled(a, kind), filled(b, kind)), lost, sure, first.origin)


def lost_where(value: Any, lost: Any, nothing: Undefined) -> Any:
    """`value` with `nothing` where `lost` (one answer for all lanes, or one each) holds."""
    if np.ndim(lost) == 0:
        return nothing
    return partly(value, lost, lost, nothing.origin)


_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def unsigned(x: Any) -> Any:
    """The same bits as an unsigned number."""
    return x.view(_UNSIGNED[x.dtype.itemsize])


def is_poison(x: Any) -> bool:
    """Whether a value is undefined because an operation was."""
    return isinstance(x, Lost) and x.slot.startswith(POISON)


def lost_in(x: Any) -> Any:
    """The lanes in which a value is undefined: one answer for all, or one each."""
    return x.lost if isinstance(x, Partly) else isinstance(x, Lost)


def sure_in(x: Any, first: Lost) -> Any:
    """Those of which the origin is that of `first`."""
    if not isinstance(x, Lost) or (x.slot, x.part) != (first.slot, first.part):
        return False
    return x.sure if isinstance(x, Partly) else True


def first_read(lost: Sequence[Lost]) -> Lost:
    """Of several undefined values one that says where it was read."""
    return next((x for x in lost if x.loc is not UNKNOWN), lost[0])


def read_at(x: Any, loc: Loc) -> Any:
    """What a record at `loc` has read from a stack slot: what is undefined remembers it."""
    if isinstance(x, Lost):
        if x.loc is not UNKNOWN:
            return x
        if isinstance(x, Partly):
            return Partly(x.value, x.lost, x.sure, (x.slot, x.part, loc))
        return Undefined(x.slot, x.part, loc)
    if type(x) is tuple and any(isinstance(e, Lost) for e in x):
        return tuple(read_at(e, loc) for e in x)
    return x


# --- accumulators in flight ---
#
# Accumulators of wgmma that may not be touched yet.
#
# PTX ISA, "wgmma.mma_async": between the product and the `wgmma.wait_group` that covers it the
# registers of the accumulator hold anything, but further products of the same warpgroup may add to
# them. So what a product gives is marked, and whatever else computes with it, or stores it, finds
# the mark.


@dataclass(eq=False)
class Flight:
    """One product: `times` is when each of its warpgroups committed it; `touch` reports that
    somebody has touched its registers, which he read at the location; that happens once."""

    times: Mapping[int, int]
    touch: Callable[[Loc], None] = field(repr=False)
    touched: bool = False

    def report(self, read: Loc) -> None:
        if not self.touched:
            self.touched = True
            self.touch(read)


class InFlight(np.ndarray[Any, Any]):
    """Registers of a product that nobody has waited for; parts of them and other views of their
    bits are still in flight. `read`: where they were read last."""

    flight: Flight | None
    read: Loc

    def __array_finalize__(self, made_from: Any) -> None:
        self.flight = getattr(made_from, "flight", None)
        self.read = getattr(made_from, "read", UNKNOWN)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return getattr(ufunc, method)(*map(touched, inputs), **kwargs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if func is not np.concatenate:  # lanes that meet: nothing is computed
            for x in args:
                touched(x)
        return func(*_plain(args), **kwargs)


def in_flight(registers: tuple[Any, ...], flight: Flight) -> tuple[Any, ...]:
    """The registers, marked."""
    marked = []
    for x in registers:
        view = np.asarray(x).view(InFlight)
        view.flight = flight
        marked.append(view)
    return tuple(marked)


def joint_flight(values: Sequence[Any]) -> Flight | None:
    """The flight of registers that lanes hold who meet; None if not all of them are in flight."""
    flights = [v.flight for v in values if isinstance(v, InFlight) and v.flight is not None]
    if len(flights) < len(values):
        return None
    first = flights[0]
    if all(f is first for f in flights):
        return first
    return Flight({g: t for f in flights for g, t in f.times.items()}, first.touch)


def read_register(x: Any, loc: Loc) -> Any:
    """What a record at `loc` has read from a stack slot: what is in flight, or undefined, remembers
    it."""
    if isinstance(x, InFlight):
        marked = x.view()
        marked.read = loc
        return marked
    return read_at(x, loc)


def settled(x: Any) -> Any:
    """A register (or a vector of such) without the mark. No view of it: Python's collector does not
    look behind a view, and would keep the flight, with all of the launch, for ever."""
    if type(x) is tuple:
        return tuple(map(settled, x))
    return np.array(x) if isinstance(x, InFlight) else x


def touched(x: Any) -> Any:
    """A register (or a vector of such) that is used for something else; without the mark."""
    if type(x) is tuple:
        return tuple(map(touched, x)) if any(isinstance(e, InFlight) for e in x) else x
    if isinstance(x, InFlight):
        if x.flight is not None:
            x.flight.report(x.read)
        return settled(x)
    return x


def waited(x: Any, done: Mapping[int, int]) -> Any:
    """A register after a wait that has the products up to the times `done` behind it."""
    if not isinstance(x, InFlight) or x.flight is None:
        return x
    over = all(done.get(group, 0) >= time for group, time in x.flight.times.items())
    return settled(x) if over else x


def _plain(x: Any) -> Any:
    if isinstance(x, (list, tuple)):
        return type(x)(map(_plain, x))
    return settled(x)


# --- poison ---
#
# Results that are poison, and divisions, which are undefined at once.
#
# LLVM may conclude from such an operation that it is not executed, and leave out what would have
# kept it from being executed. So the simulator gives what LLVM says, not what a machine would do:
# poison, which is a finding where it reaches memory, a branch or a row. LLVM
# language reference, "Poison Values" and the flags of each instruction:
# https://llvm.org/docs/LangRef.html#poisonvalues

Value = Any
Bad = Callable[..., Any]

DIVISIONS = ("udiv", "urem", "sdiv", "srem")
SHIFTS = ("shl", "lshr", "ashr")


def flags_of(i: Inst) -> tuple[str, ...]:
    """The words of an instruction that promise something of its operands or result."""
    return tuple(w for w in i.text.split()[1:5] if w in FLAGS)


def conditions(i: Inst) -> list[tuple[str, Bad]]:
    """In words, and as a function of operands and result, when the result of a record is poison."""
    found: list[tuple[str, Bad]] = []
    op, flags = i.opcode, flags_of(i)
    if op in SHIFTS and not _is_small(i):
        found.append((f"{op} by more bits than there are", _too_far))
    if op in ("fptosi", "fptoui"):
        found.append((f"{op} of a number that does not fit", _unfit(op, i)))
    for flag in flags:
        test = _FLAGGED.get((op, flag)) or _ANYWHERE.get(flag)
        if test is not None:
            found.append((f"{op} {flag} of operands for which that does not hold", test))
    return found


def checked(compute: Callable[..., Value], i: Inst) -> Callable[..., Value]:
    """`compute` (of operands that are defined), with a result that is poison where LLVM says so."""
    tests = [(bad, Undefined(POISON + words, 0, i.loc)) for words, bad in conditions(i)]
    if not tests:
        return compute

    def run(*args: Value) -> Value:
        made = compute(*args)
        result = made
        for bad, poison in tests:
            wrong = bad(*args, made)
            if wrong if type(wrong) is np.bool_ else np.count_nonzero(wrong):
                result = lost_where(result, wrong, poison)
        return result

    return run


def undefined_division(op: str, a: Value, b: Value) -> Any:
    """Where a division is undefined."""
    bad = b == 0
    if op[0] == "s":
        bad = bad | (a == np.iinfo(a.dtype).min) & (b == -1)
    return bad


def poison(words: str, loc: Loc) -> Undefined:
    return Undefined(POISON + words, 0, loc)


def _is_small(i: Inst) -> bool:
    """Whether a shift is by a literal number of bits, of which there are as many."""
    bits = i.operands[1].literal
    type = i.operands[0].type
    return bits is not None and type.startswith("i") and 0 <= bits < int(type[1:])


def _too_far(a: Value, b: Value, made: Value) -> Any:
    return unsigned(b) >= 8 * a.dtype.itemsize


def _signed_product(a: Value, b: Value, made: Value) -> Any:
    if a.dtype.itemsize < 8:
        return a.astype(np.int64) * b != made
    about = np.asarray(a, np.float64) * b
    if not np.count_nonzero(np.abs(about) >= 2.0**62):
        return np.zeros(about.shape, np.bool_)
    exact = [np.asarray(x).astype(object) for x in (a, b, made)]  # 64 bits may not be enough
    return np.asarray(exact[0] * exact[1] != exact[2], np.bool_)


def _unsigned_product(a: Value, b: Value, made: Value) -> Any:
    return _signed_product(unsigned(a), unsigned(b), unsigned(made))


def _cut_off(a: Value, made: Value) -> Any:
    """The bits that a truncation drops are copies of the sign."""
    return made.astype(a.dtype) != a


def _cut_off_unsigned(a: Value, made: Value) -> Any:
    small = made if made.dtype == np.bool_ else unsigned(made)
    return small.astype(unsigned(a).dtype) != unsigned(a)


def _unfit(op: str, i: Inst) -> Bad:
    assert i.result is not None
    bits = int(i.result.type.split(" x ")[-1].strip("<>i"))
    low, high = (-(2.0 ** (bits - 1)), 2.0 ** (bits - 1)) if op == "fptosi" else (0.0, 2.0**bits)

    def test(a: Value, made: Value) -> Any:
        whole = np.trunc(np.asarray(a, np.float64))
        return ~((whole >= low) & (whole < high))

    return test


OVERFLOWS: dict[tuple[str, str], Bad] = {
    ("add", "nsw"): lambda a, b, made: (a ^ made) & (b ^ made) < 0,
    ("sub", "nsw"): lambda a, b, made: (a ^ b) & (a ^ made) < 0,
    ("mul", "nsw"): _signed_product,
    ("add", "nuw"): lambda a, b, made: unsigned(made) < unsigned(a),
    ("sub", "nuw"): lambda a, b, made: unsigned(a) < unsigned(b),
    ("mul", "nuw"): _unsigned_product,
}
"""Where the result of an operation, as a number with ("nsw") or without a sign, does not fit."""

_FLAGGED: dict[tuple[str, str], Bad] = {
    **OVERFLOWS,
    ("shl", "nsw"): lambda a, b, made: made >> b != a,
    ("shl", "nuw"): lambda a, b, made: unsigned(made) >> unsigned(b) != unsigned(a),
    ("lshr", "exact"): lambda a, b, made: made << b != a,
    ("ashr", "exact"): lambda a, b, made: made << b != a,
    ("udiv", "exact"): lambda a, b, made: made * b != a,
    ("sdiv", "exact"): lambda a, b, made: made * b != a,
    ("trunc", "nsw"): _cut_off,
    ("trunc", "nuw"): _cut_off_unsigned,
}
_ANYWHERE: dict[str, Bad] = {
    "disjoint": lambda a, b, made: a & b != 0,
    "samesign": lambda a, b, made: (a < 0) != (b < 0),
    "nneg": lambda a, made: a < 0,
}
