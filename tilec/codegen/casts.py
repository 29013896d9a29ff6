"""Conversions and comparisons between dtypes, on scalars and on vectors, and the GPU's dtypes as
LLVM types.

In a GPU's registers a bool is i1, float8 an i8 of its bits and tfloat32 a float; half precision is
LLVM's own type. What a target converts by an instruction, or keeps in another type, is a method
that its class overrides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from tilec.codegen.lanes import convert, intrinsic, like, literal_of, mangled
from tilec.codegen.numerics import FORMATS, Format, Numerics, encode, round_to_bits
from tilec.codegen.ranges import Ranges, limits
from tilec.ir.errors import CompileError
from tilec.ir.llvm import (
    Function,
    Val,
    constant,
    elem_of,
    float_val,
    int_val,
    lanes_of,
    splat_constant,
)
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


class Casts:
    """Conversions appended to one function. Methods take and return `Val`s of `register`'s types,
    or vectors of them."""

    formats: Mapping[DType, Format] = FORMATS
    """What the small floats are."""

    own: tuple[DType, ...] = OWN_ARITHMETIC
    """Floats that the target computes with as they are."""

    def __init__(self, f: Function, ranges: Ranges, half: bool = False) -> None:
        """`half`: as in `Numerics`."""
        self.f = f
        self.ranges = ranges
        self.numerics = Numerics(f, half)

    # --- what a target says ---

    def register(self, dtype: DType) -> str:
        """The LLVM type of one value of `dtype`."""
        return register_type(dtype)

    def literal(self, value: bool | int | float, dtype: DType) -> Val:
        """A constant of `dtype`, rounded to it (nearest even; float8 saturates)."""
        if dtype.is_int:
            return int_val(int(value), register_type(dtype))
        if dtype in _FLOAT8:
            return int_val(encode(float(value), self.formats[dtype]), "i8")
        if dtype == TFLOAT32:
            value = round_to_bits(float(value), 11)
        elif dtype == FLOAT16 and math.isfinite(value) and abs(value) >= 65520:
            value = math.copysign(math.inf, value)
        return float_val(float(value), register_type(dtype))

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
        return intrinsic(self.f, name, args)

    def negate(self, x: Val) -> Val:
        return self.f.pure("fneg", x.type, (x,), f"fneg {x}")

    # --- comparisons ---

    def compare(self, kind: str, a: Val, b: Val, dtype: DType) -> Val:
        """`kind` of `COMPARE_KINDS`: i1."""
        if dtype.is_int:
            return self.int_compare(kind, a, b, dtype.kind == "int")
        if dtype not in self.own:
            a, b = self.widen(a, dtype), self.widen(b, dtype)
        return self.f.fcmp(_COMPARE[kind], a, b)

    def int_compare(self, kind: str, a: Val, b: Val, signed: bool) -> Val:
        if signed:
            answer = self.ranges.decided(kind, a, b)
            if answer is not None:
                return constant(like(a.type, "i1"), int(answer))
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
            zero = splat_constant(self.literal(0, source), lanes_of(x.type))
            return self.compare("ne", x, zero, source)
        if source.is_int and dest.is_int:
            return self._int_cast(x, source, dest)
        if source.is_int:
            return self._from_int(x, source, dest)
        if dest.is_int:
            return self._to_int(x, source, dest)
        if dest == FLOAT64:
            return convert(f, "fpext", self.widen(x, source), "double")
        if source == FLOAT64 and dest != TFLOAT32 and self.register(dest) in ("float", "half"):
            return convert(f, "fptrunc", x, self.register(dest))
        if source == FLOAT64:
            return self.narrow(self.numerics.round_to_odd(x), dest)
        return self.narrow(self.widen(x, source), dest)

    def widen(self, x: Val, dtype: DType) -> Val:
        """A float of 32 bits or fewer as LLVM float."""
        if dtype in _FLOAT8:
            return self.from_float8(x, dtype)
        return convert(self.f, "fpext", x, "float")

    def narrow(self, x: Val, dtype: DType) -> Val:
        """An LLVM float as a float of 32 bits or fewer."""
        if dtype in _FLOAT8:
            return self.to_float8(x, dtype)
        if dtype == TFLOAT32:
            return self.round_tf32(x)
        return convert(self.f, "fptrunc", x, self.register(dtype))

    def _int_cast(self, x: Val, source: DType, dest: DType) -> Val:
        to = self.register(dest)
        bits = 1 if source == BOOL else source.bits
        if bits == dest.bits:
            return x
        if bits > dest.bits:
            made = convert(self.f, "trunc", x, to)
        else:
            unsigned = source.kind in _UNSIGNED or self.ranges.nonneg(x)
            made = convert(self.f, "zext" if unsigned else "sext", x, to)
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
        if dest != TFLOAT32 and self.register(dest) in ("float", "double", "half"):
            number = literal_of(x)
            if number is None:
                return convert(f, opcode, x, self.register(dest))
            if opcode == "uitofp":
                number &= (1 << int(elem_of(x.type)[1:])) - 1
            return splat_constant(self.literal(number, dest), lanes_of(x.type))
        if source.bits <= 16 or source == BOOL:  # exact as float32
            return self.narrow_int(convert(f, opcode, x, "float"), dest)
        if source.bits == 64:
            x = self.numerics.fold_low_bits(x)
        return self.narrow_int(self.numerics.round_to_odd(convert(f, opcode, x, "double")), dest)

    def narrow_int(self, x: Val, dtype: DType) -> Val:
        """An LLVM float that was made of an integer as a float of 16 bits or fewer."""
        return self.narrow(x, dtype)

    def _to_int(self, x: Val, source: DType, dest: DType) -> Val:
        """Toward zero, saturating; nan gives 0."""
        f = self.f
        if source != FLOAT64:
            x = self.widen(x, source)
        to = self.register(dest)
        way = "fptoui" if dest.kind == "uint" else "fptosi"
        if dest.bits >= 32:
            return self._saturated(way, x, to)
        wide = self._saturated("fptosi", x, "i32")
        low, high = (0, (1 << dest.bits) - 1) if dest.kind == "uint" else limits(to)
        for kind, edge in (("slt", low), ("sgt", high)):
            bound = constant(wide.type, edge)
            wide = f.select(f.icmp(kind, wide, bound), bound, wide)
        return convert(f, "trunc", wide, to)

    def _saturated(self, way: str, x: Val, elem: str) -> Val:
        to = like(x.type, elem)
        return self.f.intrinsic(to, f"llvm.{way}.sat.{mangled(to)}.{mangled(x.type)}", (x,))

    def bitcast(self, x: Val, source: DType, dest: DType) -> Val:
        """The same bits as another dtype of equal width."""
        if source == BOOL:
            x = convert(self.f, "zext", x, "i8")
        if dest == BOOL:
            x = convert(self.f, "bitcast", x, "i8")
            return self.f.icmp("ne", x, 0)
        return convert(self.f, "bitcast", x, self.register(dest))
