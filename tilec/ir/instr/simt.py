"""The instruction every target has: each thread multiplies and adds by itself."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilec.ir.instr.instruction import Array, MatrixInstruction
from tilec.ir.layout import Layout
from tilec.ir.types import DTYPES, DType


@dataclass(frozen=True)
class SimtInstruction(MatrixInstruction):
    """c += a * b in one thread: fused for floats, wrapping for integers. Inputs are first converted
    to c's dtype."""

    def semantics(self, a: Array, b: Array, c: Array) -> Array:
        """c + a @ b, rounded once for floats."""
        if self.c_dtype.is_int:
            wrapped: Array = a.astype(c.dtype) @ b.astype(c.dtype) + c
            return wrapped
        wide = np.longdouble if self.c_dtype.bits == 64 else np.float64
        exact: Array = a.astype(c.dtype).astype(wide) @ b.astype(c.dtype).astype(wide)
        rounded: Array = (exact + c.astype(wide)).astype(c.dtype)
        return rounded


_ONE = Layout((1, 1), ())


def _simt(t: DType) -> SimtInstruction:
    return SimtInstruction(
        f"simt.fma.{t.short}", 1, 1, 1, t, t, t, _ONE, _ONE, _ONE, (1, 1, 1), feature=""
    )


_DTYPES = "float16 bfloat16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64"
SIMT_INSTRUCTIONS: tuple[MatrixInstruction, ...] = tuple(
    _simt(DTYPES[name]) for name in _DTYPES.split()
)
