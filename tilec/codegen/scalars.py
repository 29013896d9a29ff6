"""Scalar arithmetic on LLVM records: what the ops of `tilec.ir.ops.scalar` become, on scalars and
on vectors.

Floats that a target does not compute with as they are (everywhere bfloat16 and float8) are computed
in float32 and rounded after every op, which is exact: float32 has more than twice their bits.
Products and sums are not contracted here: `passes.fuse_multiply_adds` has made `fma` of them. What
a target has an instruction or a library for is a method that its class overrides.
"""

from __future__ import annotations

import math

from tilec.codegen import divisions
from tilec.codegen.casts import Casts
from tilec.codegen.lanes import convert, intrinsic, like, literal_of
from tilec.codegen.ranges import WIDTH, Ranges, limits
from tilec.ir.errors import CompileError
from tilec.ir.llvm import Function, Operand, Val, constant, elem_of, float_val, int_val
from tilec.ir.types import BOOL, FLOAT16, FLOAT32, DType

_ARITHMETIC = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
_BITWISE = {"and": "and", "or": "or", "xor": "xor", "shl": "shl", "add": "or", "mul": "and"}


class Scalars(Casts):
    """Arithmetic appended to one function. Methods take and return `Val`s of
    `register(dtype)`, or vectors of them."""

    roundings = {"floor": "floor", "ceil": "ceil", "trunc": "trunc", "round": "roundeven"}
    """LLVM's intrinsics that make a float whole."""

    def __init__(self, f: Function, ranges: Ranges, half: bool = False) -> None:
        super().__init__(f, ranges, half)
        self._sums: dict[str, tuple[Val, int]] = {}

    # --- what a target says ---

    def quotient_fast(self, a: Val, b: Val) -> Val:
        """a / b of floats, to 2 ulp over their whole range."""
        return self.f.binary("fdiv", a, b)

    def unsupported(self, what: str, dtype: DType) -> CompileError:
        """The error for maths this target has no code for."""
        return CompileError(
            f"{what} of {dtype.name} is not available on this target",
            self.f.loc,
            "cast the operand to float32",
        )

    # --- two values ---

    def binary(self, kind: str, a: Val, b: Operand, dtype: DType, nonzero: bool = False) -> Val:
        """`kind` of `BINARY_KINDS`. `nonzero`: as in `ops.Binary`."""
        b = b if isinstance(b, Val) else constant(a.type, b)
        if dtype == BOOL:
            return self._bool_binary(kind, a, b)
        if dtype.is_int:
            return self._int_binary(kind, a, b, dtype.kind == "int", nonzero)
        return self._float_binary(kind, a, b, dtype)

    def _bool_binary(self, kind: str, a: Val, b: Val) -> Val:
        if kind in ("min", "max"):
            kind = "and" if kind == "min" else "or"
        if kind in ("sub", "xor"):
            return self.f.binary("xor", a, b)
        if kind not in _BITWISE:
            raise self.unsupported(kind, BOOL)
        return self.f.binary(_BITWISE[kind], a, b)

    def _int_binary(self, kind: str, a: Val, b: Val, signed: bool, nonzero: bool) -> Val:
        f = self.f
        match kind:
            case "add" | "sub" | "mul":
                return self._sum(kind, a, b, signed)
            case _ if kind in divisions.DIVISIONS:
                made = self._division(kind, a, b, signed, nonzero)
            case "min" | "max":
                keep = self.int_compare("lt" if kind == "min" else "gt", a, b, signed)
                made = f.select(keep, a, b)
            case "xor":
                return self._xor(a, b, signed)
            case "and" | "or":
                made = f.binary(kind, a, b)
            case "shl" | "shr":
                low, high = self.ranges.get(b)
                inside = low >= 0 and high < WIDTH[elem_of(b.type)]
                opcode = "shl" if kind == "shl" else "ashr" if signed else "lshr"
                made = divisions.shift(f, opcode, a, b, inside=inside)
            case "pow":
                return self.int_pow(a, b, signed)
            case _:
                raise CompileError(f"{kind} of integers", f.loc, "cast the operands to float32")
        return self._note(kind, made, a, b) if signed else made

    def _note(self, kind: str, made: Val, a: Val, b: Val) -> Val:
        found = self.ranges.result(kind, a, b)
        return self.ranges.set(made, *found) if found is not None else made

    def _sum(self, kind: str, a: Val, b: Val, signed: bool) -> Val:
        """add, sub or mul, marked as not wrapping where that is proved. Numbers come last: (x + c)
        + d becomes x + (c + d), (x + c) * d becomes x * d + c * d, and (x + c) + (y + d) becomes
        (x + y) + (c + d)."""
        f = self.f
        if kind == "sub" and b.literal is not None and b.literal != limits(b.type)[0]:
            kind, b = "add", int_val(-b.literal, b.type)
        if a.literal is not None and kind != "sub":
            a, b = b, a
        if kind == "add" and b.literal is not None and a.ref in self._sums:
            a, more = self._sums[a.ref]
            b = int_val(b.literal + more, b.type)
        elif kind in ("add", "mul") and (a.ref in self._sums or b.ref in self._sums):
            (x, more), (y, also) = self.split_sum(a), self.split_sum(b)
            number = more + also if kind == "add" else more * (b.literal or 0)
            low, high = limits(a.type)
            if (kind == "add" or b.literal is not None) and low <= number <= high:
                rest = self._sum(kind, x, y, signed)
                return self._sum("add", rest, int_val(number, a.type), signed)
        flags = ""
        found = self.ranges.result(kind, a, b) if signed else None
        if found is not None:
            both = found[0] >= 0 and self.ranges.nonneg(a) and self.ranges.nonneg(b)
            flags = "nuw nsw" if both else "nsw"
        made = f.binary(kind, a, b, flags)
        if found is not None:
            self.ranges.set(made, *found)
        if kind == "add" and b.literal is not None and made is not a and made.literal is None:
            self._sums[made.ref] = (a, b.literal)
        return made

    def _xor(self, a: Val, b: Val, signed: bool) -> Val:
        """(x + c) ^ b becomes (x ^ b) + c where b lies below the lowest bit of c: a swizzled
        address keeps the number that an instruction can hold."""
        base, more = self.split_sum(a)
        if more and self.ranges.nonneg(b) and self.ranges.get(b)[1] < more & -more:
            made = self._note("xor", self.f.binary("xor", base, b), base, b)
            return self._sum("add", made, int_val(more, a.type), signed)
        made = self.f.binary("xor", a, b)
        return self._note("xor", made, a, b) if signed else made

    def split_sum(self, v: Val) -> tuple[Val, int]:
        """`v` as (base, constant) with v == base + constant and, as read by `_sum`, no wrap beyond
        v's own."""
        return self._sums.get(v.ref, (v, 0))

    def by_reciprocal(self, kind: str, a: Val, b: Val, reciprocal: Val) -> Val:
        """A division that `ops.Binary` has a reciprocal for."""
        made = divisions.by_reciprocal(self.f, kind, a, b, reciprocal)
        found = self.ranges.result(kind, a, b)
        return made if found is None else self.ranges.set(made, *found)

    def _division(self, kind: str, a: Val, b: Val, signed: bool, nonzero: bool) -> Val:
        f, ranges, d = self.f, self.ranges, literal_of(b)
        (low, high), (least, most) = ranges.get(a), ranges.get(b)
        if kind == "floordiv" and signed and d is not None and d > 0 and low // d == high // d:
            return constant(a.type, low // d)
        if kind == "mod" and signed and low >= 0 and high < least:
            return a
        power = kind in ("floordiv", "mod") and signed and _power(d)
        signed = signed and not (ranges.nonneg(a) and ranges.nonneg(b))
        if power and kind == "floordiv":
            shift_by = constant(a.type, (d or 1).bit_length() - 1)
            return f.binary("ashr" if signed else "lshr", a, shift_by)
        if power:
            return f.binary("and", a, (d or 1) - 1)
        by_zero = not nonzero and least <= 0 <= most
        wraps = not nonzero and signed and low == limits(a.type)[0] and least <= -1 <= most
        return divisions.divide(f, kind, a, b, signed, by_zero=by_zero, wraps=wraps)

    def int_pow(self, a: Val, b: Val, signed: bool) -> Val:
        """a ** b of scalars by squaring; a negative exponent gives 1."""
        f = self.f
        if a.literal is not None and b.literal is not None:
            return int_val(a.literal ** max(b.literal, 0), a.type)
        phis = f.loop_header("pow", [int_val(1, a.type), a, b])
        head, body, done = f.block.label, f.label("pow_step"), f.label("pow_done")
        power, base, left = (p.result for p in phis)
        f.cbr(f.icmp("sgt", left, 0), body, done, done)
        f.start(body)
        mark = f.mark()
        odd = f.cast("trunc", left, "i1")
        next_power = f.select(odd, f.binary("mul", power, base), power)
        next_base = f.binary("mul", base, base)
        next_left = f.binary("ashr", left, 1)
        f.forget(mark)
        f.close_loop(phis, [next_power, next_base, next_left], head, "keep")
        f.start(done)
        return power

    def _float_binary(self, kind: str, a: Val, b: Val, dtype: DType) -> Val:
        f = self.f
        if dtype not in self.own:
            x, y = self.widen(a, dtype), self.widen(b, dtype)
            wide = self._float_binary(kind, x, y, FLOAT32)
            if kind in ("min", "max") and dtype.bits == 8:  # narrowing makes infinities finite
                return f.select(f.fcmp("oeq", wide, x), a, b)
            return self.narrow(wide, dtype)
        if kind in _ARITHMETIC:
            return f.binary(_ARITHMETIC[kind], a, b)
        if kind in ("min", "max"):
            return self.call(f"{kind}num", a, b)
        if dtype == FLOAT16:
            wide = self._float_binary(kind, self.widen(a, dtype), self.widen(b, dtype), FLOAT32)
            return self.narrow(wide, dtype)
        if kind in ("floordiv", "truncdiv"):
            return divisions.float_quotient(f, kind, a, b)
        if kind in ("mod", "truncmod"):
            rest = self.float_rest(self.call("fabs", a), self.call("fabs", b))
            return divisions.float_remainder(f, kind, a, b, rest)
        return self.maths2(kind, a, b, dtype)

    def float_rest(self, a: Val, b: Val) -> Val:
        """The exact remainder of scalars `a` by `b`, neither of which is negative; nan where it has
        none.

        a - q * b is a number of the format where q is a / b rounded, and so is it where q is then
        rounded to a whole number. Each step takes at least the digits of a significand away: most
        operands need one. Where q is infinite, multiples of `b` are tried first."""
        f = self.f
        none = float_val(0.0, a.type)
        start = f.select(f.fcmp("ogt", b, none), a, math.nan)
        phis = f.loop_header("rest", [start, b])
        head, body, done = f.block.label, f.label("rest_step"), f.label("rest_done")
        rest, by = (p.result for p in phis)
        f.cbr(f.fcmp("oge", self.call("fabs", rest), b), body, done, done)
        f.start(body)
        mark = f.mark()
        quotient = f.binary("fdiv", rest, by)
        far = f.fcmp("oeq", self.call("fabs", quotient), math.inf)
        step = float_val(2.0 ** (512 if a.type == "double" else 64), a.type)
        larger = f.binary("fmul", by, step)
        whole = self.negate(self.call("rint", quotient))
        smaller = self.call("fma", whole, by, rest)
        following = [f.select(far, rest, smaller), f.select(far, larger, b)]
        f.forget(mark)
        f.close_loop(phis, following, head, "keep")
        f.start(done)
        negative = f.fcmp("olt", rest, none)
        return f.select(negative, f.binary("fadd", rest, b), rest)

    # --- one value ---

    def unary(self, kind: str, x: Val, dtype: DType) -> Val:
        """`kind` of `UNARY_KINDS`."""
        f = self.f
        if dtype.is_int:
            return self._int_unary(kind, x, dtype)
        if kind in ("neg", "abs"):
            if dtype in self.own:
                return self.negate(x) if kind == "neg" else self.call("fabs", x)
            if dtype.bits == 16 or self.formats[dtype].has_sign:
                return self._sign_bit(kind, x, dtype)
        if dtype == FLOAT16 or dtype not in self.own:
            wide = self.widen(x, dtype)
            if kind in ("isnan", "isinf"):
                return self.unary(kind, wide, FLOAT32)
            return self.narrow(self.unary_roughly(kind, wide), dtype)
        if kind == "isnan":
            return f.fcmp("uno", x, x)
        if kind == "isinf":
            return f.fcmp("oeq", self.call("fabs", x), math.inf)
        if kind in self.roundings:
            return self.call(self.roundings[kind], x)
        if kind == "sqrt":
            return self.call("sqrt", x)
        return self.maths1(kind, x, dtype)

    def unary_roughly(self, kind: str, x: Val) -> Val:
        """`unary` of a float whose result is rounded to half precision or less."""
        return self.unary(kind, x, FLOAT32)

    def maths1(self, kind: str, x: Val, dtype: DType) -> Val:
        """A transcendental function of one float or double."""
        raise self.unsupported(kind, dtype)

    def maths2(self, kind: str, a: Val, b: Val, dtype: DType) -> Val:
        """`pow` or `atan2` of two floats or doubles."""
        raise self.unsupported(kind, dtype)

    def _int_unary(self, kind: str, x: Val, dtype: DType) -> Val:
        f = self.f
        zero = constant(x.type, 0)
        match kind:
            case "not":
                return f.binary("xor", x, -1)
            case "neg":
                return self._sum("sub", zero, x, dtype.kind == "int")
            case "abs":
                if dtype.kind != "int":
                    return x
                return f.select(f.icmp("slt", x, zero), f.binary("sub", zero, x), x)
            case "popcount":
                return intrinsic(f, "ctpop", [x])
            case "clz":
                return intrinsic(f, "ctlz", [x], [int_val(0, "i1")])
            case "ctz":
                return intrinsic(f, "cttz", [x], [int_val(0, "i1")])
            case "brev":
                return intrinsic(f, "bitreverse", [x])
            case "floor" | "ceil" | "trunc" | "round":
                return x
            case "isnan" | "isinf":
                return constant(like(x.type, "i1"), 0)
            case _:
                raise CompileError(
                    f"{kind} of {dtype.name}",
                    f.loc,
                    f"cast the operand to float32: {kind} is of floats",
                )

    def _sign_bit(self, kind: str, x: Val, dtype: DType) -> Val:
        f, sign = self.f, 1 << (dtype.bits - 1)
        bits = convert(f, "bitcast", x, f"i{dtype.bits}")
        if kind == "neg":
            bits = f.binary("xor", bits, sign)
        else:
            bits = f.binary("and", bits, sign - 1)
        return f.cast("bitcast", bits, x.type)

    def fma(self, a: Val, b: Val, c: Val, dtype: DType) -> Val:
        """a * b + c, rounded once (float8 and bfloat16: float32's fma, rounded again)."""
        if dtype.is_int:
            signed = dtype.kind == "int"
            return self._sum("add", self._sum("mul", a, b, signed), c, signed)
        if dtype in self.own:
            return self.call("fma", a, b, c)
        return self.narrow(self.call("fma", *(self.widen(v, dtype) for v in (a, b, c))), dtype)


def _power(n: int | None) -> bool:
    return n is not None and n > 0 and n & (n - 1) == 0
