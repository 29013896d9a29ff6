"""Emitters of `mma.sync` whose operands lie in shared memory as they were arranged beforehand, or
have four bits."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from tilec import language as T
from tilec.intrinsics.mma import TensorCoreIntrinEmitter
from tilec.ir.caller import caller_loc
from tilec.ir.errors import CompileError

# mypy: disable-error-code="no-untyped-def"


class TransformKind(IntEnum):
    """How an operand lies in shared memory. Other than the first, it is a buffer of four dimensions
    of tiles of `micro_size_x` (of B `micro_size_y`) rows and `micro_size_k` columns: as they are;
    each matrix of 8 rows and 16 bytes for itself, one behind the other; what each lane needs side
    by side, lane by lane."""

    NonTransform = 0
    InterWarpTransform = 1
    IntraWarpTransform = 2
    LDMatrixTransform = 3


@dataclass(eq=False)
class TensorCoreIntrinEmitterWithLadderTransform(TensorCoreIntrinEmitter):
    """`TensorCoreIntrinEmitter` whose operands may have been arranged in memory beforehand, as
    `transform_kind_a` and `transform_kind_b` say (`TransformKind`, or its number), so that a warp
    reads them in one piece. Of B in the last arrangement `num_elems_per_byte` elements may share a
    byte: `ldmatrix_b` brings the bytes, and `mma` takes what the kernel has unpacked.

    Raises CompileError for other kinds, for packed elements in another arrangement, and for
    arranged operands whose rows do not run along k.
    """

    MAY_PACK = True

    transform_kind_a: Any = 0
    transform_kind_b: Any = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.transform_kind_a = self._kind("transform_kind_a", self.a_transposed)
        self.transform_kind_b = self._kind("transform_kind_b", not self.b_transposed)
        last = self.transform_kind_b is TransformKind.LDMatrixTransform
        packed = self.num_elems_per_byte
        if packed not in (1, 2, 4) or (packed > 1 and not last):
            message = f"num_elems_per_byte={packed} with transform_kind_b="
            hint = "write 1, 2 or 4; more than 1 with transform_kind_b=3"
            raise CompileError(f"{message}{int(self.transform_kind_b)}", caller_loc(), hint)
        self.local_size_packed = self.local_size_b // packed

    def _kind(self, name: str, across: bool) -> TransformKind:
        kind = getattr(self, name)
        if isinstance(kind, bool) or kind not in tuple(TransformKind):
            raise CompileError(f"{name} is {kind!r}", caller_loc(), "write 0, 1, 2 or 3")
        if kind and across:
            operand = name[-1]
            message = f"{name}={int(kind)} of an operand whose rows do not run along k"
            hint = "leave a_transposed out" if operand == "a" else "write b_transposed=True"
            raise CompileError(message, caller_loc(), hint)
        return TransformKind(kind)

    plain = TensorCoreIntrinEmitter.bring

    @T.macro
    def bring(self, local, shared, lane, warp, ki, rk, is_b=False):
        """The rows of A, or columns of B, of the warp with this number among them."""
        kind = self.transform_kind_b if is_b else self.transform_kind_a
        tiles = self.warp_cols if is_b else self.warp_rows
        if kind == 0:
            self.plain(local, shared, lane, warp, ki, rk, is_b)
        else:
            k = rk * (self.chunk // self.micro_size_k) + ki
            for i in T.unroll(tiles):
                self.arranged(local, shared, i, warp * tiles + i, k, lane, kind, is_b)

    @T.macro
    def arranged(self, local, shared, place, tile, k, lane, kind, is_b):
        """A lane's elements of a tile, to local memory at `place`."""
        packed = self.num_elems_per_byte if is_b else 1
        size = self.local_size_packed if is_b else self.local_size_a
        width = self.micro_size_k // packed
        if kind == TransformKind.LDMatrixTransform:
            row, first = lane * size // width, lane * size % width  # a row is of two lanes
            for e in T.vectorized(size):
                local[place * size + e] = shared[tile, k, row, first + e]
        else:
            for u, (row, column) in enumerate(self.units(is_b)):
                for e in T.vectorized(self.per):
                    if kind == TransformKind.InterWarpTransform:
                        x, y = row + lane // 4, column + lane % 4 * self.per + e
                    else:
                        at = (u * 32 + lane) * self.per + e
                        x, y = at // width, at % width
                    local[place * size + u * self.per + e] = shared[tile, k, x, y]


_BYTES = {"int4": "int8", "uint4": "uint8"}


class INT4TensorCoreIntrinEmitter(TensorCoreIntrinEmitter):
    """`TensorCoreIntrinEmitter` of integers of four bits ("int4", "uint4") or eight. On chip each
    has a byte, and products are those of bytes with int32 sums: GPUs from sm_90 on have no other.
    """

    def __init__(self, a_dtype: object = "int4", b_dtype: object = "int4", *args: Any, **kwargs: Any) -> None:  # fmt: skip  # noqa: E501
        a_dtype, b_dtype = (_BYTES.get(str(d), d) for d in (a_dtype, b_dtype))
        if not args:
            kwargs.setdefault("accum_dtype", "int32")
        super().__init__(a_dtype, b_dtype, *args, **kwargs)
