"""LLVM's arithmetic on NumPy values: what the records other than memory, rows and branches compute.

A value is a NumPy scalar (the same in all lanes) or an array over the lanes; a vector, struct or
array is a tuple of values (see `tilec.sim`). Signed NumPy integers hold LLVM's integers, which have
no sign: the unsigned operations look at the same bits as unsigned ones. LLVM language reference:
https://llvm.org/docs/LangRef.html"""

from __future__ import annotations

import functools
import operator
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from tilec.ir.llvm import Inst
from tilec.ir.llvm_text import BYTES, array_of, size_of
from tilec.sim.undefined import (
    DIVISIONS,
    UNDEF,
    Lost,
    absorbed,
    applied,
    checked,
    chosen,
    conditions,
    filled,
    is_poison,
    read_register,
    unsigned,
)

Value = Any

KINDS: dict[str, Any] = {
    "i1": np.bool_, "i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64,
    "half": np.float16, "bfloat": ml_dtypes.bfloat16, "float": np.float32, "double": np.float64,
}  # fmt: skip
"""NumPy's scalar type of each scalar LLVM type."""

_MASKS = {f"i{n}": (1 << n) - 1 for n in range(2, 32) if n not in (8, 16)}
"""The bits of integers that are as wide as a vector of i1 has elements. They are held without a
sign, in the next wider type."""
KINDS |= {
    type: np.int8 if mask < 1 << 7 else np.int16 if mask < 1 << 15 else np.int32
    for type, mask in _MASKS.items()
}


def vector_of(type: str) -> tuple[int, str] | None:
    """(elements, element type) of a vector type; None for others."""
    return array_of(type) if type.startswith("<") else None


def kind_of(type: str) -> Any:
    """NumPy's scalar type of a scalar LLVM type; pointers are addresses."""
    return np.int64 if type.startswith("ptr") else KINDS[type]


def literal(type: str, ref: str) -> Value:
    """The value of a constant operand as records spell it."""
    vector = vector_of(type)
    if ref in ("poison", "undef"):
        count = vector[0] if vector else type.count(",") + 1
        return (UNDEF,) * count if vector or type.startswith("{") else UNDEF
    if vector:
        count, elem = vector
        if ref == "zeroinitializer":
            return (KINDS[elem](0),) * count
        parts = ref.strip("<>").split(", ")
        return tuple(literal(*p.split(" ", 1)) for p in parts)
    if ref == "zeroinitializer" or ref == "null":
        return kind_of(type)(0)
    if type == "i1":
        return np.bool_(ref in ("true", "1", "-1"))
    if ref.startswith("0xH"):
        return np.uint16(int(ref[3:], 16)).view(np.float16)
    if ref.startswith("0xR"):
        return np.uint16(int(ref[3:], 16)).view(ml_dtypes.bfloat16)
    if ref.startswith("0x"):
        return KINDS[type](struct.unpack("<d", struct.pack("<Q", int(ref, 16)))[0])
    return kind_of(type)(int(ref) if type.startswith(("i", "ptr")) else float(ref))


def each(fn: Callable[..., Value], *operands: Value) -> Value:
    """`fn` of the operands, undefined where one of them is; of vectors, of each element."""
    for x in operands:
        if type(x) is tuple:
            return tuple(each(fn, *one) for one in _elements(operands))
    return applied(fn, *operands)


def _elements(operands: Sequence[Value]) -> Iterator[tuple[Value, ...]]:
    """The operands of each element of vectors; what is none is the same in all."""
    count = next(len(x) for x in operands if type(x) is tuple)
    return zip(*(x if type(x) is tuple else (x,) * count for x in operands))


def through_unsigned(fn: Callable[[Value, Value], Value]) -> Callable[[Value, Value], Value]:
    """`fn` of the same bits without a sign."""
    return lambda a, b: fn(unsigned(a), unsigned(b)).view(a.dtype)


def _divide(a: Value, b: Value) -> Value:
    """Towards zero; by zero anything (see `ThreadState.divide`)."""
    safe = np.where(b == 0, b.dtype.type(1), b)
    found = a // safe
    return (found + ((a % safe != 0) & ((a < 0) != (safe < 0)))).astype(a.dtype)[()]


def _remainder(a: Value, b: Value) -> Value:
    return (a - _divide(a, b) * b).astype(a.dtype)


def both(a: Value, b: Value) -> Value:
    """`and` of conditions: false where one is, whatever the other is, unless that is poison."""
    for x, other in ((a, b), (b, a)):
        if isinstance(x, Lost) and not isinstance(other, Lost) and not is_poison(x):
            return select(other, x, np.False_)
    return a & b


def either(a: Value, b: Value) -> Value:
    """`or` of conditions: true where one is, whatever the other is, unless that is poison."""
    return ~both(~a, ~b)


CONDITIONS = {"and": both, "or": either}

BINARY: dict[str, Callable[[Value, Value], Value]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "and": operator.and_,
    "or": operator.or_, "xor": operator.xor, "shl": operator.lshift,
    "lshr": through_unsigned(operator.rshift), "ashr": operator.rshift,
    "udiv": through_unsigned(lambda a, b: a // np.maximum(b, 1)),
    "urem": through_unsigned(lambda a, b: a % np.maximum(b, 1)), "sdiv": _divide,
    "srem": _remainder, "fadd": operator.add, "fsub": operator.sub, "fmul": operator.mul,
    "fdiv": operator.truediv, "frem": np.fmod,
}  # fmt: skip
SPELLED = {"add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|", "xor": "^", "shl": "<<",
           "ashr": ">>", "fadd": "+", "fsub": "-", "fmul": "*", "fdiv": "/"}  # fmt: skip
"""Python's operators that do the same to scalar values."""


def comparison(opcode: str, pred: str) -> Callable[[Value, Value], Value]:
    """icmp and fcmp: of floats ordered predicates are false, unordered ones true, where an operand
    is nan."""
    if pred in ("uno", "ord"):
        return lambda a, b: ((a != a) | (b != b)) == (pred == "uno")
    test = getattr(operator, pred if pred in ("eq", "ne") else pred[1:])
    if opcode == "fcmp":
        if pred[0] == "u":
            return lambda a, b: test(a, b) | (a != a) | (b != b)
        return lambda a, b: test(a, b) & (a == a) & (b == b)
    return (lambda a, b: test(unsigned(a), unsigned(b))) if pred[0] == "u" else test


def _of_few_bits(
    test: Callable[[Value, Value], Value], mask: int, signed: bool
) -> Callable[[Value, Value], Value]:
    """`test` of integers of which only the bits of `mask` count, with a sign or without."""
    half = (mask + 1) >> 1

    def number(x: Value) -> Value:
        return ((x & mask) ^ half) - half if signed else x & mask

    return lambda a, b: test(number(a), number(b))


def select(cond: Value, a: Value, b: Value) -> Value:
    """`a` where `cond` holds, else `b`; a condition may be one for all elements of a vector."""
    if any(type(x) is tuple for x in (cond, a, b)):
        return tuple(select(*one) for one in _elements((cond, a, b)))
    if isinstance(cond, Lost):
        return absorbed(select, cond, a, b)
    if np.ndim(cond) == 0:
        return a if cond else b
    if isinstance(a, Lost) or isinstance(b, Lost):
        return chosen(cond, a, b)
    return np.where(cond, a, b)


def _saturated(x: Value, to: Any) -> Value:
    """A float cut off at the bounds of an integer type, nan to 0. (LLVM leaves values outside
    open; the machines saturate.)"""
    wide = np.asarray(x, np.float64)
    low, high = np.iinfo(to).min, np.iinfo(to).max
    inside = np.where(wide != wide, 0.0, np.trunc(wide))
    middle = (inside > float(low)) & (inside < float(high))
    cut = np.where(inside >= float(high), to(high), to(low))
    return np.where(middle, np.where(middle, inside, 0).astype(to), cut)[()]


def cast(opcode: str, x: Value, source: str, to: str) -> Value:
    """Conversions; `source` and `to` are LLVM types."""
    if opcode == "bitcast":
        return bitcast(x, source, to)
    source, to = (t.split(" x ")[-1].rstrip(">") for t in (source, to))
    return each(conversion(opcode, source, to), x)


@functools.cache
def conversion(opcode: str, source: str, to: str) -> Callable[[Value], Value]:
    """Conversions of scalars."""
    kind = kind_of(to)
    match opcode:
        case "zext" | "uitofp" | "inttoptr" if source != "i1":
            return lambda x: unsigned(x).astype(kind)
        case "sext" if source == "i1":
            return lambda x: -x.astype(kind)
        case "fptosi":
            return lambda x: _saturated(x, kind)
        case "fptoui":
            whole = np.dtype(f"u{np.dtype(kind).itemsize}").type
            return lambda x: _saturated(x, whole).view(kind)
        case "trunc" if to in _MASKS or to == "i1":
            mask = _MASKS.get(to, 1)
            return lambda x: (x & mask).astype(kind)
    return lambda x: x.astype(kind)  # trunc, sext, fptrunc, fpext, sitofp, of pointers


def bitcast(x: Value, source: str, to: str) -> Value:
    """The same bits as another type of the same size, scalar or vector."""
    from_vector, to_vector = vector_of(source), vector_of(to)
    if from_vector is None and to_vector is None:
        return _reinterpret(x, to)
    parts = x if from_vector else (x,)
    old = from_vector[1] if from_vector else source
    new = to_vector[1] if to_vector else to
    if old == "i1" and not to_vector:
        return _packed(parts, to)
    if new == "i1" and to_vector:
        return tuple((x >> k & 1).astype(np.bool_) for k in range(to_vector[0]))
    if BYTES[old] == BYTES[new]:
        made = tuple(_reinterpret(p, new) for p in parts)
    elif BYTES[old] > BYTES[new]:
        made = tuple(e for p in parts for e in _parted(p, new, BYTES[old] // BYTES[new]))
    else:
        step = BYTES[new] // BYTES[old]
        made = tuple(_joined(parts[i : i + step], new) for i in range(0, len(parts), step))
    return made if to_vector else made[0]


def _packed(parts: tuple[Value, ...], to: str) -> Value:
    """Bools as the bits of an integer, the first in the lowest."""

    def pack(*parts: Value) -> Value:
        bits = sum(p.astype(np.int64) << k for k, p in enumerate(parts))
        return np.asarray(bits, np.int64).astype(KINDS[to])[()]

    return applied(pack, *parts)


def _reinterpret(x: Value, to: str) -> Value:
    if to.startswith("ptr"):
        return applied(lambda v: v.astype(np.int64), x)
    return applied(lambda v: v.view(KINDS[to]), x)


def _parted(x: Value, to: str, count: int) -> tuple[Value, ...]:
    """An element's bits as `count` smaller ones, low bits first."""

    def part(v: Value) -> tuple[Value, ...]:
        smaller = np.ascontiguousarray(np.asarray(v)[..., None]).view(KINDS[to])
        return tuple(smaller[..., i] for i in range(count))

    made = applied(part, x)
    return made if type(made) is tuple else (made,) * count


def _joined(parts: tuple[Value, ...], to: str) -> Value:
    """Several elements' bits as one larger one, the first in the low bits."""

    def join(*parts: Value) -> Value:
        stacked = np.stack(np.broadcast_arrays(*parts), -1)
        return np.ascontiguousarray(stacked).view(KINDS[to])[..., 0]

    return applied(join, *parts)


_FROZEN = 0x55


def frozen(x: Value, type: str) -> Value:
    """freeze: what is undefined becomes some number. (Any would do; this one has a strange one.)"""
    vector = vector_of(type)
    if vector:
        return tuple(frozen(e, vector[1]) for e in x)
    return filled(x, kind_of(type)(_FROZEN))


def shuffle(a: Value, b: Value, mask: Value) -> Value:
    """shufflevector; where the mask is poison, so is the element."""
    parts = a + b
    return tuple(UNDEF if isinstance(k, Lost) else parts[int(k)] for k in mask)


def insert(vector: Value, value: Value, index: int) -> Value:
    """insertelement."""
    return (*vector[:index], value, *vector[index + 1 :])


def pick(parts: tuple[Value, ...], index: Value) -> Value:
    """The element at `index`, which may differ from lane to lane, of an array."""
    if np.ndim(index) == 0:
        return parts[int(index)]
    at = np.unique(index)
    found = parts[int(at[0])]
    for i in at[1:]:
        found = select(index == i, parts[int(i)], found)
    return found


def put(
    parts: tuple[Value, ...], index: Value, value: Value, where: Value = None
) -> tuple[Value, ...]:
    """The array with `value` at `index`, in the lanes `where` (None: all)."""
    if np.ndim(index) == 0 and where is None:
        return (*parts[: int(index)], value, *parts[int(index) + 1 :])
    for i in np.unique(index if where is None else np.broadcast_to(index, where.shape)[where]):
        here = index == i if where is None else (index == i) & where
        parts = (*parts[: int(i)], select(here, value, parts[int(i)]), *parts[int(i) + 1 :])
    return parts


# --- spelling ---
#
# What the records compute that only compute, as Python expressions.


def spelled(i: Inst, args: Sequence[str], keep: Callable[[Any], str]) -> str:
    """The expression for a record with the operands `args`; `keep` gives the name of a constant.
    Raises KeyError for an opcode that is not known."""
    types = [v.type for v in i.operands]
    assert i.result is not None
    vector = any(t.startswith("<") for t in types)
    word = "each" if vector else "applied"
    match i.opcode:
        case op if op in BINARY:
            if types[0] == "i1" and op in CONDITIONS:
                return f"{CONDITIONS[op].__name__}({args[0]}, {args[1]})"
            if op in DIVISIONS and not (i.operands[1].literal or 0) > 0:
                return f"m.divide({keep(i)}, {keep(BINARY[op])}, {args[0]}, {args[1]})"
            if op in SPELLED and not vector and not conditions(i):
                return f"{args[0]} {SPELLED[op]} {args[1]}"
            return f"{word}({keep(checked(BINARY[op], i))}, {args[0]}, {args[1]})"
        case "icmp" | "fcmp":
            pred = i.text.split()[1]
            test = checked(comparison(i.opcode, pred), i)
            if types[0] in _MASKS:
                test = _of_few_bits(test, _MASKS[types[0]], pred[0] == "s")
            return f"{word}({keep(test)}, {args[0]}, {args[1]})"
        case "select":
            return f"select({args[0]}, {args[1]}, {args[2]})"
        case "fneg":
            return f"{word}({keep(operator.neg)}, {args[0]})"
        case "freeze":
            return f"frozen({args[0]}, {i.result.type!r})"
        case "getelementptr":
            elem = i.text.split(" ", 1)[1].rsplit(f", {i.operands[0]}", 1)[0]
            return f"{args[0]} + {args[1]}.astype(int64) * {size_of(elem)}"
        case "extractvalue" | "extractelement":
            if len(args) > 1 and i.operands[1].literal is None:
                return f"pick({args[0]}, {args[1]})"
            return f"{args[0]}[{int(i.text.rsplit(' ', 1)[1])}]"
        case "insertelement":
            if len(args) > 2 and i.operands[2].literal is None:
                return f"put({args[0]}, {args[2]}, {args[1]})"
            return f"insert({args[0]}, {args[1]}, {int(i.text.rsplit(' ', 1)[1])})"
        case "shufflevector":
            return f"shuffle({args[0]}, {args[1]}, {args[2]})"
    if i.opcode == "addrspacecast" and i.operands[0].ref.startswith("@"):
        return args[0]
    if i.opcode == "bitcast":
        return f"bitcast({args[0]}, {types[0]!r}, {i.result.type!r})"
    source, to = (t.split(" x ")[-1].rstrip(">") for t in (types[0], i.result.type))
    return f"{word}({keep(checked(conversion(i.opcode, source, to), i))}, {args[0]})"


HELPERS: dict[str, Any] = {
    f.__name__: f
    for f in (applied, each, both, either, select, frozen, insert, pick, put, shuffle, bitcast)
} | {"int64": KINDS["i64"], "K_first": KINDS["i32"](0), "read_register": read_register}
"""What the expressions, and the lines around them, call by name."""
