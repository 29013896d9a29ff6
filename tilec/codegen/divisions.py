"""Divisions and shifts that are defined for all operands, on scalars and on vectors.

LLVM leaves a division by zero, the least number by -1 and a shift by the width or more undefined.
It may conclude that a place where this would happen is never reached, and delete the bounds test
that leads there. Here they have the results that `docs/language.md` promises: x // 0 and x % 0 are
0, the least number by -1 wraps, and a shift by the width or more (a negative number, too) leaves
no bit of the operand but the sign of a signed one.

Quotients and remainders of floats are Python's and NumPy's, of the exact quotient: one that is
rounded may have passed a whole number.
"""

from __future__ import annotations

from tilec.codegen.lanes import intrinsic, like, literal_of
from tilec.ir.llvm import Function, Val, constant, elem_of

DIVISIONS = ("floordiv", "mod", "truncdiv", "truncmod")


def divide(
    fn: Function, kind: str, a: Val, b: Val, signed: bool, *, by_zero: bool, wraps: bool
) -> Val:
    """`kind` of `DIVISIONS`. `by_zero`: `b` may be 0; `wraps`: `a` may be the least number and
    `b` -1."""
    none, one = constant(a.type, 0), constant(a.type, 1)
    zero = fn.icmp("eq", b, none) if by_zero else None
    minus = fn.icmp("eq", b, -1) if wraps else None
    bad = fn.binary("or", zero, minus) if zero and minus else zero or minus
    if bad is not None:
        b = fn.select(bad, one, b)
    sign = "s" if signed else "u"
    remains = kind in ("mod", "truncmod")
    quotient = none if remains else fn.binary(sign + "div", a, b)
    rest = fn.binary(sign + "rem", a, b) if remains or signed and kind == "floordiv" else none
    if signed and kind in ("floordiv", "mod"):
        # C's remainder has the sign of the dividend. Where that is not the divisor's, Python's is
        # one divisor away and its quotient one less.
        opposite = fn.icmp("slt", fn.binary("xor", rest, b), none)
        below = fn.binary("and", fn.icmp("ne", rest, none), opposite)
        if remains:
            return fn.binary("add", rest, fn.select(below, b, none))
        quotient = fn.binary("add", quotient, fn.cast("sext", below, a.type))
    if remains:
        return rest
    if minus is not None:
        quotient = fn.select(minus, fn.binary("sub", none, a), quotient)
    return quotient if zero is None else fn.select(zero, none, quotient)


def by_reciprocal(fn: Function, kind: str, a: Val, b: Val, reciprocal: Val) -> Val:
    """a // b ("floordiv") or a % b of i32 numbers that are not negative, where `reciprocal` is
    0xffffffff // b: a product and one correction (Granlund, Montgomery, "Division by invariant
    integers using multiplication", 1994)."""
    product = fn.binary("mul", fn.cast("zext", a, "i64"), fn.cast("zext", reciprocal, "i64"))
    high = fn.binary("lshr", product, 32)
    quotient = fn.cast("trunc", high, "i32")  # or one less than it
    rest = fn.binary("sub", a, fn.binary("mul", quotient, b))
    over = fn.icmp("uge", rest, b)
    if kind == "mod":
        return fn.select(over, fn.binary("sub", rest, b), rest)
    return fn.binary("add", quotient, fn.cast("zext", over, "i32"))


def shift(fn: Function, opcode: str, a: Val, by: Val, *, inside: bool = False) -> Val:
    """`opcode` is "shl", "lshr" or "ashr". `inside`: `by` is known to be less than the width."""
    bits = int(elem_of(a.type)[1:])
    number = literal_of(by)
    if inside or number is not None and 0 <= number < bits:
        return fn.binary(opcode, a, by)
    none, most = constant(a.type, 0), constant(by.type, bits - 1)
    fits = fn.icmp("ule", by, most)
    if opcode == "ashr":
        return fn.binary(opcode, a, fn.select(fits, by, most))
    if bits == 64:  # LLVM 22 leaves the test to PTX, which reads 32 bits of the amount
        by = fn.binary("and", by, most)
    return fn.select(fits, fn.binary(opcode, a, by), none)


def float_quotient(fn: Function, kind: str, a: Val, b: Val) -> Val:
    """ "floordiv" or "truncdiv" of floats; the infinity or nan that a / b is where `b` is 0."""
    none, one = constant(a.type, 0.0), constant(a.type, 1.0)
    size, by = intrinsic(fn, "fabs", [a]), intrinsic(fn, "fabs", [b])
    ratio = fn.binary("fdiv", a, b)
    near = intrinsic(fn, "rint", [intrinsic(fn, "fabs", [ratio])])
    minus = fn.binary("fsub", constant(a.type, -0.0), near)
    rest = intrinsic(fn, "fma", [minus, by, size])  # its sign is exact
    rest = fn.select(fn.fcmp("oeq", near, none), size, rest)  # |b| may be infinite
    whole = fn.select(fn.fcmp("olt", rest, none), fn.binary("fsub", near, one), near)
    if kind == "floordiv":
        above = fn.select(fn.fcmp("ogt", rest, none), fn.binary("fadd", near, one), near)
        whole = fn.select(_signs_differ(fn, a, b), above, whole)
    whole = fn.select(fn.fcmp("uno", rest, rest), rest, whole)
    whole = intrinsic(fn, "copysign", [whole, ratio])
    return fn.select(fn.fcmp("oeq", b, none), ratio, whole)


def float_remainder(fn: Function, kind: str, a: Val, b: Val, rest: Val) -> Val:
    """ "mod" or "truncmod" of floats. `rest` is the remainder of |a| by |b|, nan where it has none.
    The result has the sign of `b` for "mod", of `a` for "truncmod", also where it is 0."""
    if kind == "truncmod":
        return intrinsic(fn, "copysign", [rest, a])
    other = fn.binary("fsub", intrinsic(fn, "fabs", [b]), rest)
    turned = fn.binary("and", _signs_differ(fn, a, b), fn.fcmp("one", rest, 0.0))
    return intrinsic(fn, "copysign", [fn.select(turned, other, rest), b])


def _signs_differ(fn: Function, a: Val, b: Val) -> Val:
    word = like(a.type, "i64" if elem_of(a.type) == "double" else "i32")
    signs = fn.binary("xor", fn.cast("bitcast", a, word), fn.cast("bitcast", b, word))
    return fn.icmp("slt", signs, 0)
