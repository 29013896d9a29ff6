"""Scalar ops: one value per thread (or per iteration of a `parallel`), SSA, no effects."""

from __future__ import annotations

from collections.abc import Sequence

from tilec.ir import semantics
from tilec.ir.core import Block, Op, Value
from tilec.ir.errors import InternalError
from tilec.ir.op_classes import op
from tilec.ir.semantics import Array
from tilec.ir.types import BOOL, INT32, UINT32, DType, Type, VectorType, scalar_type

__all__ = [
    "Const", "constants", "Binary", "Unary", "Fma", "Compare", "Select", "Cast", "Bitcast",
    "BlockIndex", "GridSize", "ThreadIndex", "DIVISIONS", "MIRRORED", "NEGATED",
]  # fmt: skip

DIVISIONS = ("floordiv", "mod", "truncdiv", "truncmod")  # of integers
# Arithmetic on two values of one dtype. `floordiv` and `mod` round to minus infinity as Python's
# do, `truncdiv` and `truncmod` to zero as C's do; `div` is of floats only. Shifts: `shr` is
# arithmetic for signed, logical for unsigned.
BINARY_KINDS = (
    "add", "sub", "mul", "div", "floordiv", "mod", "truncdiv", "truncmod", "min", "max", "and",
    "or", "xor", "shl", "shr", "pow", "atan2",
)  # fmt: skip
# Maths on one value; `fast_*` are the hardware's own forms (`tilec.builtins.fast`).
UNARY_KINDS = (
    "neg", "not", "abs", "exp", "exp2", "exp10", "log", "log2", "log10", "log1p", "sqrt", "rsqrt",
    "sin", "cos", "tan", "tanh", "sigmoid", "erf", "floor", "ceil", "round", "trunc", "isnan",
    "isinf", "fast_exp2", "fast_log2", "fast_sin", "fast_cos", "fast_tanh", "fast_rcp",
    *semantics.OF_BITS,
)  # fmt: skip
COMPARE_KINDS = ("eq", "ne", "lt", "le", "gt", "ge")
MIRRORED = {"eq": "eq", "ne": "ne", "lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}
NEGATED = {"eq": "ne", "ne": "eq", "lt": "ge", "ge": "lt", "gt": "le", "le": "gt"}


def _with_dtype(t: Type, dtype: DType) -> Type:
    return VectorType(dtype, t.lanes) if isinstance(t, VectorType) else scalar_type(dtype)


@op("const", pure=True)
class Const(Op):
    """A literal of `dtype`: a bool, int or float (inf and nan included). `unset`: the variable that
    has no value yet and is given this one; who uses it is told so by the simulator."""

    value: bool | int | float
    dtype: DType
    unset: str = ""

    def infer(self) -> Sequence[Type]:
        return (scalar_type(self.dtype),)

    def evaluate(self) -> Array:
        return semantics.literal(self.value, self.dtype)


def constants(block: Block) -> dict[Value, bool | int | float]:
    """The literals in `block`, and in the regions inside."""
    return {o.result: o.value for o in block.every(Const)}


@op("binary", pure=True, result="lhs")
class Binary(Op):
    """`kind` (see BINARY_KINDS) of two values of one type. Integers have a result for all operands
    (`docs/language.md`). `nonzero`: a pass that divides knows its divisor not to be 0 or -1.
    `reciprocal`: of an i32 divisor, 0xffffffff // it (u32); neither it nor what is divided is
    negative, and targets may multiply."""

    kind: str
    lhs: Value
    rhs: Value
    nonzero: bool = False
    reciprocal: Value | None = None

    def verify(self) -> None:
        if self.kind not in BINARY_KINDS:
            raise InternalError(f"unknown binary kind {self.kind}", self.loc)
        if self.lhs.type != self.rhs.type:
            raise InternalError(f"{self.kind} of {self.lhs.type} and {self.rhs.type}", self.loc)
        if self.reciprocal is not None and (
            self.kind not in ("floordiv", "mod")
            or self.lhs.type != scalar_type(INT32)
            or self.reciprocal.type != scalar_type(UINT32)
        ):
            raise InternalError(f"{self.kind} of {self.lhs.type} has no reciprocal", self.loc)

    def evaluate(self, lhs: Array, rhs: Array, reciprocal: Array | None = None) -> Array:
        return semantics.binary(self.kind, lhs, rhs, self.lhs.dtype)


@op("unary", pure=True)
class Unary(Op):
    """`kind` (see UNARY_KINDS) of one value; isnan and isinf give bool, the others the operand's
    type."""

    kind: str
    operand: Value

    def infer(self) -> Sequence[Type]:
        t = self.operand.type
        return (_with_dtype(t, BOOL) if self.kind in ("isnan", "isinf") else t,)

    def verify(self) -> None:
        if self.kind not in UNARY_KINDS:
            raise InternalError(f"unknown unary kind {self.kind}", self.loc)

    def evaluate(self, operand: Array) -> Array:
        return semantics.unary(self.kind, operand, self.operand.dtype)


@op("fma", pure=True, result="a")
class Fma(Op):
    """a * b + c, rounded once."""

    a: Value
    b: Value
    c: Value

    def evaluate(self, a: Array, b: Array, c: Array) -> Array:
        return semantics.fma(a, b, c, self.a.dtype)


@op("compare", pure=True)
class Compare(Op):
    """`kind` (see COMPARE_KINDS) of two values of one type; ordered, except `ne`, for floats."""

    kind: str
    lhs: Value
    rhs: Value

    def infer(self) -> Sequence[Type]:
        return (_with_dtype(self.lhs.type, BOOL),)

    def verify(self) -> None:
        if self.kind not in COMPARE_KINDS:
            raise InternalError(f"unknown comparison {self.kind}", self.loc)
        if self.lhs.type != self.rhs.type:
            raise InternalError(
                f"compare {self.kind} of {self.lhs.type} and {self.rhs.type}", self.loc
            )

    def evaluate(self, lhs: Array, rhs: Array) -> Array:
        return semantics.compare(self.kind, lhs, rhs)


@op("select", pure=True, result="on_true")
class Select(Op):
    """`on_true` where `cond` holds, else `on_false`. Both are evaluated."""

    cond: Value
    on_true: Value
    on_false: Value

    def verify(self) -> None:
        if self.on_true.type != self.on_false.type:
            raise InternalError(f"select of {self.on_true.type} and {self.on_false.type}", self.loc)

    def evaluate(self, cond: Array, on_true: Array, on_false: Array) -> Array:
        return semantics.np.where(cond, on_true, on_false)


@op("cast", pure=True)
class Cast(Op):
    """Convert to `dtype`: nearest even; float to int and to float8 saturate, float to int
    truncates."""

    operand: Value
    dtype: DType

    def infer(self) -> Sequence[Type]:
        return (_with_dtype(self.operand.type, self.dtype),)

    def evaluate(self, operand: Array) -> Array:
        return semantics.cast(operand, self.operand.dtype, self.dtype)


@op("bitcast", pure=True)
class Bitcast(Op):
    """The same bits as another dtype: of equal width, or as the elements of a vector that is as
    many bits in all (a u32 is two f16; four u8 are a u32)."""

    operand: Value
    dtype: DType

    @property
    def lanes(self) -> int:
        """Elements of the result; 1: a scalar."""
        t = self.operand.type
        count = t.lanes if isinstance(t, VectorType) else 1
        return count * self.operand.dtype.bits // self.dtype.bits

    def infer(self) -> Sequence[Type]:
        lanes = self.lanes
        return (scalar_type(self.dtype) if lanes == 1 else VectorType(self.dtype, lanes),)

    def verify(self) -> None:
        t = self.operand.type
        count = t.lanes if isinstance(t, VectorType) else 1
        if count * self.operand.dtype.bits != self.lanes * self.dtype.bits:
            raise InternalError(f"bitcast of {t} to {self.dtype}", self.loc)

    def evaluate(self, operand: Array) -> Array:
        return semantics.bitcast(operand, self.dtype)


@op("block_index", pure=True, result=INT32)
class BlockIndex(Op):
    """Index of this block in grid dimension `dim` (0, 1 or 2): i32."""

    dim: int


@op("grid_size", pure=True, result=INT32)
class GridSize(Op):
    """Number of blocks in grid dimension `dim`: i32."""

    dim: int


@op("thread_index", pure=True, result=INT32)
class ThreadIndex(Op):
    """Linear index of this thread among the threads that run the user's code: i32."""
