"""The GPU's dtypes as LLVM types, and conversions and comparisons between them.

In registers a bool is i1, float8 an i8 of its bits and tfloat32 a float; half precision is LLVM's
own type. What a vendor converts by an instruction is a method that the vendor's class overrides.
"""

from __future__ import annotations

import math

from tilec.codegen.lanes import mangled
from tilec.codegen.numerics import FORMATS, Numerics, encode
from tilec.codegen.ranges import Ranges, limits
from tilec.ir.errors import CompileError
from tilec.ir.llvm import Function, Val, float_val, int_val
from tilec.ir.types import (
    BFLOAT16,
    BOOL,
    DTYPES,
    FLOAT8_E4M3,
    FLOAT8_E5M2,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    TFLOAT32,
    DType,
)

_FLOAT8 = (FLOAT8_E4M3, FLOAT8_E5M2)
_UNSIGNED = ("uint", "bool")
_COMPARE = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}
OWN_ARITHMETIC = (FLOAT16, FLOAT32, FLOAT64, TFLOAT32)
"""Floats that GPUs compute with as they are; the others are computed in float32."""


def _register_type(dtype: DType) -> str:
    if dtype.kind in ("int", "uint") or dtype in _FLOAT8:
        return f"i{dtype.bits}"
    special = {BOOL: "i1", FLOAT16: "half", BFLOAT16: "bfloat", FLOAT64: "double"}
    return special.get(dtype, "float")


_REGISTER = {d.name: _register_type(d) for d in DTYPES.values() if d.bits >= 8}


def register_type(dtype: DType) -> str:
    """The LLVM type of one value of `dtype` in a register."""
    found = _REGISTER.get(dtype.name)
    if found is None:
        raise CompileError(
            f"{dtype.name} cannot be computed with", hint="cast it to int8 or float16"
        )
    return found


def memory_type(dtype: DType) -> str:
    """The LLVM type of one value of `dtype` in memory."""
    return "i8" if dtype == BOOL else register_type(dtype)


def literal(value: bool | int | float, dtype: DType) -> Val:
    """A constant of `dtype`, rounded to it (nearest even; float8 saturates)."""
    if dtype.is_int:
        return int_val(int(value), register_type(dtype))
    if dtype in _FLOAT8:
        return int_val(encode(float(value), FORMATS[dtype]), "i8")
    if dtype == TFLOAT32:
        value = _round_to_bits(float(value), 11)
    elif dtype == FLOAT16 and math.isfinite(value) and abs(value) >= 65520:
        value = math.copysign(math.inf, value)
    return float_val(float(value), register_type(dtype))


def _round_to_bits(value: float, bits: int) -> float:
    if not math.isfinite(value) or value == 0.0:
        return value
    fraction, scale = math.frexp(value)
    return math.ldexp(round(math.ldexp(fraction, bits)), scale - bits)


class Casts:
    """Conversions appended to one function. Methods take and return `Val`s of `register_type`."""

    def __init__(self, f: Function, ranges: Ranges) -> None:
        self.f = f
        self.ranges = ranges
        self.numerics = Numerics(f)

    # --- vendor hooks ---

    def literal(self, value: bool | int | float, dtype: DType) -> Val:
        """A constant of `dtype`, rounded to it."""
        return literal(value, dtype)

    def to_float8(self, x: Val, dtype: DType) -> Val:
        """float to float8 bits: nearest even, saturating, nan kept."""
        return self.numerics.narrow(x, dtype)

    def from_float8(self, x: Val, dtype: DType) -> Val:
        """float8 bits to float, exactly."""
        return self.numerics.widen(x, dtype)

    def round_tf32(self, x: Val) -> Val:
        """float rounded to the bits of TF32, nearest even; inf and nan stay."""
        return self.numerics.round_tf32(x)

    # --- spelling ---

    def call(self, name: str, *args: Val) -> Val:
        """LLVM's generic floating-point intrinsic `name`, on the arguments' type."""
        type = args[0].type
        return self.f.intrinsic(type, f"llvm.{name}.{mangled(type)}", args)

    def negate(self, x: Val) -> Val:
        return self.f.pure("fneg", x.type, (x,), f"fneg {x}")

    # --- comparisons ---

    def compare(self, kind: str, a: Val, b: Val, dtype: DType) -> Val:
        """`kind` of `COMPARE_KINDS`: i1."""
        if dtype.is_int:
            return self.int_compare(kind, a, b, dtype.kind == "int")
        if dtype not in OWN_ARITHMETIC:
            a, b = self.widen(a, dtype), self.widen(b, dtype)
        return self.f.fcmp(_COMPARE[kind], a, b)

    def int_compare(self, kind: str, a: Val, b: Val, signed: bool) -> Val:
        if signed:
            answer = self.ranges.decided(kind, a, b)
            if answer is not None:
                return int_val(int(answer), "i1")
        pred = kind if kind in ("eq", "ne") else ("s" if signed else "u") + kind
        return self.f.icmp(pred, a, b)

    def select(self, cond: Val, a: Val, b: Val) -> Val:
        made = self.f.select(cond, a, b)
        if made.type in ("i32", "i64") and made is not a and made is not b:
            (al, ah), (bl, bh) = self.ranges.get(a), self.ranges.get(b)
            self.ranges.set(made, min(al, bl), max(ah, bh))
        return made

    # --- casts ---

    def cast(self, x: Val, source: DType, dest: DType) -> Val:
        """`x` of `source` as `dest`: nearest even; float to int and to float8 saturate."""
        f = self.f
        if source == dest:
            return x
        if dest == BOOL:
            return self.compare("ne", x, literal(0, source), source)
        if source.is_int and dest.is_int:
            return self._int_cast(x, source, dest)
        if source.is_int:
            return self._from_int(x, source, dest)
        if dest.is_int:
            return self._to_int(x, source, dest)
        if dest == TFLOAT32:
            return self.round_tf32(self.cast(x, source, FLOAT32))
        if source == TFLOAT32:
            return self.cast(x, FLOAT32, dest)
        if dest == FLOAT64:
            return f.cast("fpext", self.widen(x, source), "double")
        if source == FLOAT64 and dest in (FLOAT32, FLOAT16):
            return f.cast("fptrunc", x, register_type(dest))
        if source == FLOAT64:
            return self.narrow(self.numerics.round_to_odd(x), dest)
        return self.narrow(self.widen(x, source), dest)

    def widen(self, x: Val, dtype: DType) -> Val:
        """A float of 32 bits or fewer as LLVM float."""
        if x.type == "float":
            return x
        if dtype in _FLOAT8:
            return self.from_float8(x, dtype)
        return self.f.cast("fpext", x, "float")

    def narrow(self, x: Val, dtype: DType) -> Val:
        """An LLVM float as a float of 32 bits or fewer."""
        if dtype in _FLOAT8:
            return self.to_float8(x, dtype)
        if register_type(dtype) == "float":
            return x
        return self.f.cast("fptrunc", x, register_type(dtype))

    def _int_cast(self, x: Val, source: DType, dest: DType) -> Val:
        to = register_type(dest)
        bits = 1 if source == BOOL else source.bits
        if bits == dest.bits:
            return x
        if bits > dest.bits:
            made = self.f.cast("trunc", x, to)
        else:
            unsigned = source.kind in _UNSIGNED or self.ranges.nonneg(x)
            made = self.f.cast("zext" if unsigned else "sext", x, to)
        if source.kind == "int":
            low, high = self.ranges.get(x)
            floor, top = limits(to)
            if low >= floor and high <= top:
                self.ranges.set(made, low, high)
        elif bits < dest.bits:
            self.ranges.set(made, 0, (1 << bits) - 1)
        return made

    def _from_int(self, x: Val, source: DType, dest: DType) -> Val:
        f = self.f
        opcode = "uitofp" if source.kind in _UNSIGNED else "sitofp"
        if dest in (FLOAT32, FLOAT64, FLOAT16):
            if x.literal is not None:
                return literal(x.literal & _ones(x.type) if opcode == "uitofp" else x.literal, dest)
            return f.cast(opcode, x, register_type(dest))
        if source.bits <= 16 or source == BOOL:
            return self.narrow_int(f.cast(opcode, x, "float"), dest)
        wide = f.cast(opcode, x, "double")
        if dest == TFLOAT32:
            return self.cast(wide, FLOAT64, dest)
        return self.narrow_int(self.numerics.round_to_odd(wide), dest)

    def narrow_int(self, x: Val, dtype: DType) -> Val:
        """An LLVM float that was made of an integer as a float of 16 bits or fewer."""
        return self.narrow(x, dtype)

    def _to_int(self, x: Val, source: DType, dest: DType) -> Val:
        """Toward zero, saturating; nan gives 0."""
        f = self.f
        if source != FLOAT64:
            x = self.widen(x, source)
        to = register_type(dest)
        way = "fptoui" if dest.kind == "uint" else "fptosi"
        if dest.bits >= 32:
            return f.intrinsic(to, f"llvm.{way}.sat.{to}.{mangled(x.type)}", (x,))
        wide = f.intrinsic("i32", f"llvm.fptosi.sat.i32.{mangled(x.type)}", (x,))
        low, high = (0, (1 << dest.bits) - 1) if dest.kind == "uint" else limits(to)
        for kind, edge in (("slt", low), ("sgt", high)):
            bound = int_val(edge, "i32")
            wide = f.select(f.icmp(kind, wide, bound), bound, wide)
        return f.cast("trunc", wide, to)

    def bitcast(self, x: Val, source: DType, dest: DType) -> Val:
        """The same bits as another dtype of equal width."""
        if source == BOOL:
            x = self.f.cast("zext", x, "i8")
        if dest == BOOL:
            return self.f.icmp("ne", self.f.cast("bitcast", x, "i8"), int_val(0, "i8"))
        return self.f.cast("bitcast", x, register_type(dest))


def _ones(type: str) -> int:
    return (1 << int(type[1:])) - 1
