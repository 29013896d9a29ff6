"""The words that are functions of numbers, written around operands that are given as text."""

from __future__ import annotations

from tilec.fuzz.writer import Writer
from tilec.ir.types import DTYPES

ANYWHERE = ("exp", "exp2", "tanh", "sigmoid", "sin", "cos", "tan", "erf")
POSITIVE = ("log", "log2", "log10", "sqrt", "rsqrt")
BITWISE = (("bitwise_and", "&"), ("bitwise_or", "|"), ("bitwise_xor", "^"))
SHIFTS = (("shift_left", "<<"), ("shift_right", ">>"))
QUOTIENTS = ("ceildiv", "cdiv", "floordiv", "floormod", "truncdiv", "truncmod")


def plain(n: float, dtype: str) -> str:
    """A small whole number as a literal of the dtype's kind."""
    return f"{n}.0" if DTYPES[dtype].is_float else str(n)


def converted(w: Writer, text: str, dtype: str) -> str:
    """A cast, in one of its spellings."""
    kind = w.below(12)
    if kind == 0:
        return f'T.Cast("{dtype}", {text})'
    if kind == 1:
        return f"T.{dtype}({text})"
    if kind == 2:
        return f"T.cast({text}, T.{dtype})"
    return f'T.cast({text}, "{dtype}")'


def of_floats(w: Writer, a: str, b: str) -> str:
    """A function of one or two floats of [-8, 8], where it is smooth."""
    kind = w.below(8)
    if kind < 3:
        return f"T.{w.one_of(ANYWHERE)}({a})"
    if kind < 5:
        return f"T.{w.one_of(POSITIVE)}(T.abs({a}) + 0.5)"
    if kind == 5:
        return f"T.log1p(T.abs({a}))" if w.chance(0.5) else f"T.exp10(T.min({a}, 3.0))"
    if kind == 6:
        return f"T.pow(T.abs({a}) + 0.5, T.max(T.min({b}, 3.0), -2.0))"
    return f"T.atan2({a}, {b})"


def of_float_bits(w: Writer, a: str, b: str) -> str:
    """`a`, or `b` where it is no number, or none of size."""
    return (
        f"T.{w.one_of(('if_then_else', 'Select'))}(T.{w.one_of(('isnan', 'isinf'))}({a}), {b}, {a})"
    )


def rounding(w: Writer, a: str) -> str:
    return f"T.{w.one_of(('abs', 'floor', 'ceil', 'trunc', 'round'))}({a})"


def of_integers(w: Writer, a: str, b: str) -> str:
    """What only integers have; `a` is of [-8, 8]. What is divided or shifted by is mostly a small
    number, else what was read: 0, negative or beyond the width, but not known to be 0."""
    kind = w.below(6)
    if kind == 0:
        word, sign = w.one_of(BITWISE)
        return f"({a} {sign} {b})" if w.chance(0.5) else f"T.{word}({a}, {b})"
    if kind == 1:
        word, sign = w.one_of(SHIFTS)
        by = a if "[" in a and w.chance(0.4) else w.between(1, 5)
        return f"({b} {sign} {by})" if w.chance(0.5) else f"T.{word}({b}, {by})"
    if kind == 2:
        divisor = b if "[" in b and w.chance(0.4) else w.between(1, 5)
        return f"T.{w.one_of(QUOTIENTS)}({a}, {divisor})"
    if kind == 3:
        divisor = a if "[" in a and w.chance(0.4) else w.between(1, 5)
        return f"({b} {w.one_of(('//', '%'))} {divisor})"
    if kind == 4:
        return f"T.{w.one_of(('popcount', 'clz', 'bitwise_not'))}({b})"
    return f"(~{b})"


def limited(w: Writer, a: str, dtype: str) -> str:
    """Beside the ends of the dtype's range."""
    if DTYPES[dtype].is_float and w.chance(0.5):
        return f'T.max({a}, -T.infinity("{dtype}"))'
    if w.chance(0.5):
        return f'T.min({a}, T.max_value("{dtype}"))'
    return f"T.max({a}, T.min_value(T.{dtype}))"
