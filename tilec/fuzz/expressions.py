"""Random expressions of a dtype, for the body of a T.Parallel: one function for each kind, and the
words that are functions of numbers, around operands that are given as text."""

from __future__ import annotations

from collections.abc import Callable

from tilec.fuzz.writer import FLOATS, INTS, Buffer, Scope, Writer
from tilec.ir.types import DTYPES

ANYWHERE = ("exp", "exp2", "tanh", "sigmoid", "sin", "cos", "tan", "erf")
POSITIVE = ("log", "log2", "log10", "sqrt", "rsqrt")
BITWISE = (("bitwise_and", "&"), ("bitwise_or", "|"), ("bitwise_xor", "^"))
SHIFTS = (("shift_left", "<<"), ("shift_right", ">>"))
QUOTIENTS = ("ceildiv", "cdiv", "floordiv", "floormod", "truncdiv", "truncmod")


def value(w: Writer, s: Scope, dtype: str, depth: int = 2) -> str:
    """The text of a value of `dtype`. What is only stored (float8) is computed in float16."""
    if "float8" in dtype:
        return converted(w, value(w, s, "float16", depth), dtype)
    if dtype == "bool":
        return converted(w, condition(w, s) if w.chance(0.6) else value(w, s, "int32", 1), dtype)
    options = LEAVES if depth <= 0 else (*LEAVES, *INNER, *INNER)
    return w.one_of(options)(w, s, dtype, depth)


def literal(w: Writer, s: Scope, dtype: str, depth: int) -> str:
    if DTYPES[dtype].is_float:
        return f'T.cast({w.one_of(("1.0", "0.5", "-2.0", "3.0", "-0.25"))}, "{dtype}")'
    return f'T.cast({w.between(0, 5)}, "{dtype}")'


def of_index(w: Writer, s: Scope, dtype: str, depth: int) -> str:
    return f'T.cast({position(w, s)} % {w.between(2, 7)}, "{dtype}")'


def of_input(w: Writer, s: Scope, dtype: str, depth: int) -> str:
    return converted(w, element(w, s, w.one_of(w.inputs)), dtype)


def of_tile(w: Writer, s: Scope, dtype: str, depth: int) -> str:
    if s.own and w.chance(0.3):
        return f'T.cast({s.own}, "{dtype}")'
    tiles = [t for t in w.tiles if t.name != s.target]
    if not tiles:
        return of_input(w, s, dtype, depth)
    return converted(w, tile_element(w, s, w.one_of(tiles)), dtype)


def of_scalar(w: Writer, s: Scope, dtype: str, depth: int) -> str:
    if not w.scalars:
        return of_index(w, s, dtype, depth)
    return f'T.cast({w.one_of(w.scalars)[0]}, "{dtype}")'


def binary(w: Writer, s: Scope, dtype: str, depth: int) -> str:
    a, b = (value(w, s, dtype, depth - 1) for _ in "ab")
    if w.chance(0.3):
        return f"T.{w.one_of(('max', 'min'))}({a}, {b})"
    return f"({a} {w.one_of('+-*')} {b})"


def clamped(w: Writer, s: Scope, dtype: str, depth: int) -> str:
    low = 0 if DTYPES[dtype].kind == "uint" else -8
    a = value(w, s, dtype, depth - 1)
    return f"T.max(T.min({a}, {plain(8, dtype)}), {plain(low, dtype)})"


def with_literal(w: Writer, s: Scope, dtype: str, depth: int) -> str:
    a = value(w, s, dtype, depth - 1)
    return f"({a} {w.one_of('+-*')} {plain(w.between(1, 3), dtype)})"


def unary(w: Writer, s: Scope, dtype: str, depth: int) -> str:
    a = value(w, s, dtype, depth - 1)
    if DTYPES[dtype].kind == "uint":
        return f"({a} % 7)"
    if DTYPES[dtype].is_float and w.chance(0.6):
        return f"T.{w.one_of(('abs', 'floor', 'ceil', 'trunc', 'round'))}({a})"
    return f"(-{a})"


def of_kind(w: Writer, s: Scope, dtype: str, depth: int) -> str:
    """What only floats, or only integers, have."""
    a = clamped(w, s, dtype, depth)
    b = value(w, s, dtype, depth - 2)
    if DTYPES[dtype].is_int:
        return of_integers(w, a, b)
    if w.chance(0.2):
        a, word = value(w, s, dtype, depth - 2), w.one_of(("if_then_else", "Select"))
        return f"T.{word}(T.{w.one_of(('isnan', 'isinf'))}({a}), {b}, {a})"
    if w.chance(0.2):
        return f"({b} / {w.one_of(('2.0', '3.0', '-4.0'))})"
    if dtype == "float64":  # of it GPUs have nearly none
        return f"T.sqrt(T.abs({a}) + 1.0)"
    return of_floats(w, a, clamped(w, s, dtype, depth - 2))


def at_limits(w: Writer, s: Scope, dtype: str, depth: int) -> str:
    """Beside the ends of the dtype's range."""
    a = value(w, s, dtype, depth - 1)
    if DTYPES[dtype].is_float and w.chance(0.5):
        return f'T.max({a}, -T.infinity("{dtype}"))'
    if w.chance(0.5):
        return f'T.min({a}, T.max_value("{dtype}"))'
    return f"T.max({a}, T.min_value(T.{dtype}))"


def chosen(w: Writer, s: Scope, dtype: str, depth: int) -> str:
    a, b = (value(w, s, dtype, depth - 1) for _ in "ab")
    if w.chance(0.3):
        return f"({a} if {condition(w, s)} else {b})"
    return f"T.{w.one_of(('if_then_else', 'Select'))}({condition(w, s)}, {a}, {b})"


def through(w: Writer, s: Scope, dtype: str, depth: int) -> str:
    """By way of another dtype."""
    other = w.one_of((*FLOATS, *INTS, "float32", "bool"))
    return converted(w, value(w, s, other, depth - 1), dtype)


def fused(w: Writer, s: Scope, dtype: str, depth: int) -> str:
    a, b, c = (value(w, s, dtype, depth - 2) for _ in "abc")
    return f"T.fma({a}, {b}, {c})" if dtype in ("float32", "float64") else f"({a} * {b} + {c})"


def by_macro(w: Writer, s: Scope, dtype: str, depth: int) -> str:
    """A call of a function of two numbers that is inlined."""
    names = [n for n in w.macros if n.startswith("macro")]
    if not names:
        name = w.name("macro")
        made = w.one_of(("x + y * 2", "T.max(x, y) - x", "y - x", "T.min(x * 2, y)"))
        w.macros[name] = f"@T.macro\ndef {name}(x, y):\n    return {made}\n\n\n"
        names.append(name)
    return f"{w.one_of(names)}({value(w, s, dtype, depth - 1)}, {value(w, s, dtype, depth - 2)})"


Kind = Callable[[Writer, Scope, str, int], str]
LEAVES: tuple[Kind, ...] = (
    literal, of_index, of_input, of_input, of_input, of_tile, of_tile, of_tile, of_scalar,
)  # fmt: skip
INNER: tuple[Kind, ...] = (
    binary, binary, binary, clamped, with_literal, unary, of_kind, of_kind, of_kind, chosen,
    through, fused, at_limits, by_macro,
)  # fmt: skip


# --- parts of expressions ---


def position(w: Writer, s: Scope) -> str:
    """A whole number known from where the program is."""
    names = s.names + w.counters
    if not names:
        return str(w.between(0, 9))
    return w.one_of(names) if w.chance(0.7) else f"({w.one_of(names)} + {w.between(1, 9)})"


def condition(w: Writer, s: Scope, depth: int = 1) -> str:
    """A comparison, or some of them together."""
    if depth and w.chance(0.2):
        a, b = (condition(w, s, 0) for _ in "ab")
        return w.one_of((f"({a} and {b})", f"({a} or {b})", f"(not {a})"))
    if w.scalars and w.chance(0.2):
        name, _ = w.one_of(w.scalars)
        return f"{name} {w.one_of(('<', '>=', '!='))} {w.between(0, 3)}"
    if w.chance(0.1):
        return f"{w.between(0, 3)} <= {position(w, s)} < {w.between(2, 12)}"
    op = w.one_of(("<", "<=", ">", ">=", "==", "!="))
    return f"{position(w, s)} {op} {w.between(0, 12)}"


def element(w: Writer, s: Scope, tensor: Buffer) -> str:
    """An element of an input, maybe beyond its bounds."""
    entries = []
    starts = [""] * (len(tensor.shape) - 2) + [f"by * {w.bm} + ", f"bx * {w.bn} + "]
    if len(s.names) == len(tensor.shape) > 1 and w.chance(0.5):  # where the block is
        shift = w.one_of(("", "", " + 1", " - 2"))
        return f"{tensor.name}[{', '.join(a + b for a, b in zip(starts, s.names))}{shift}]"
    for extent in tensor.shape:
        at = position(w, s)
        kind = w.below(6)
        if kind == 0:
            at = f"{at} * {w.one_of((2, 3, -1))}"
        if kind in (1, 2):
            at = f"{at} + {w.between(-3, max(1, extent - 1))}"
        if kind == 3:
            at = f"({at}) % {max(1, extent)}"
        entries.append(at)
    return tensor.element(entries)


def tile_element(w: Writer, s: Scope, tile: Buffer) -> str:
    """An element of a tile: within its bounds."""
    entries = []
    for d, extent in enumerate(tile.shape):
        same = [n for n, e in s.index if e <= extent]
        straight = [n for k, (n, e) in enumerate(s.index) if e == extent and k == d]
        if straight and w.chance(0.7):
            entries.append(straight[0])
        elif same and w.chance(0.6):
            entries.append(w.one_of(same))
        elif w.chance(0.3):
            entries.append(str(w.below(extent)))
        else:
            entries.append(f"({position(w, s)}) % {extent}")
    return tile.element(entries)


# --- words that are functions of numbers ---


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
        return f"T.{w.one_of(('popcount', 'clz', 'ctz', 'brev', 'bitwise_not'))}({b})"
    return f"(~{b})"
