"""What LLVM leaves undefined: results that are poison, and divisions, which are undefined at once.

LLVM may conclude from such an operation that it is not executed, and leave out what would have
kept it from being executed. So the simulator gives what LLVM says, not what a machine would do:
poison (see `undefined`), which is a finding where it reaches memory, a branch or a row. LLVM
language reference, "Poison Values" and the flags of each instruction:
https://llvm.org/docs/LangRef.html#poisonvalues
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilec.ir.llvm import FLAGS, Inst
from tilec.ir.loc import Loc
from tilec.sim.undefined import POISON, Lost, Undefined, absorbed, lost_where

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
    """`compute`, with a result that is poison where LLVM says so."""
    tests = [(bad, Undefined(POISON + words, 0, i.loc)) for words, bad in conditions(i)]
    if not tests:
        return compute

    def run(*args: Value) -> Value:
        if any(isinstance(a, Lost) for a in args):
            return absorbed(run, *args)
        made = compute(*args)
        result = made
        for bad, poison in tests:
            wrong = bad(*args, made)
            if np.any(wrong):
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


def _unsigned(x: Value) -> Value:
    return x.view(np.dtype(f"u{x.dtype.itemsize}"))


def _too_far(a: Value, b: Value, made: Value) -> Any:
    return _unsigned(b) >= 8 * a.dtype.itemsize


def _wide(x: Value) -> Value:
    """The number as Python's own where 64 bits may not be enough."""
    return x.astype(object) if x.dtype.itemsize == 8 else x.astype(np.int64)


def _signed_overflow(compute: Callable[[Value, Value], Value]) -> Bad:
    def test(a: Value, b: Value, made: Value) -> Any:
        return np.asarray(compute(_wide(a), _wide(b)) != _wide(made), np.bool_)

    return test


def _unsigned_overflow(compute: Callable[[Value, Value], Value]) -> Bad:
    def test(a: Value, b: Value, made: Value) -> Any:
        exact = compute(_wide(_unsigned(a)), _wide(_unsigned(b)))
        return np.asarray(exact != _wide(_unsigned(made)), np.bool_)

    return test


def _cut_off(a: Value, made: Value) -> Any:
    """The bits that a truncation drops are copies of the sign."""
    return made.astype(a.dtype) != a


def _cut_off_unsigned(a: Value, made: Value) -> Any:
    small = made if made.dtype == np.bool_ else _unsigned(made)
    return small.astype(_unsigned(a).dtype) != _unsigned(a)


def _unfit(op: str, i: Inst) -> Bad:
    assert i.result is not None
    bits = int(i.result.type.split(" x ")[-1].strip("<>i"))
    low, high = (-(2.0 ** (bits - 1)), 2.0 ** (bits - 1)) if op == "fptosi" else (0.0, 2.0**bits)

    def test(a: Value, made: Value) -> Any:
        whole = np.trunc(np.asarray(a, np.float64))
        return ~((whole >= low) & (whole < high))

    return test


_BINARY: dict[str, Callable[[Value, Value], Value]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
}
_FLAGGED: dict[tuple[str, str], Bad] = {
    **{(op, "nsw"): _signed_overflow(fn) for op, fn in _BINARY.items()},
    **{(op, "nuw"): _unsigned_overflow(fn) for op, fn in _BINARY.items()},
    ("shl", "nsw"): lambda a, b, made: made >> b != a,
    ("shl", "nuw"): lambda a, b, made: _unsigned(made) >> _unsigned(b) != _unsigned(a),
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
