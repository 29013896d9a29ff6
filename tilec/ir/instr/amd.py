"""AMD's matrix instructions.

AMD Instinct MI300 ISA, section "Matrix Arithmetic Instructions"; element maps as AMD's matrix
instruction calculator prints them (https://github.com/ROCm/amd_matrix_instruction_calculator).
Reached through LLVM intrinsics only.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilec.ir.instr.row import Intrinsic, MatrixRow
from tilec.ir.layout import mfma_a, mfma_c
from tilec.ir.types import BFLOAT16, FLOAT16, FLOAT32, DType


@dataclass(frozen=True)
class MfmaRow(MatrixRow):
    """`v_mfma`: one wave of 64 lanes, operands in registers, one vector per operand."""

    def intrinsic(self) -> Intrinsic:
        """Arguments: vectors of a, b, c; result: vector of d. The constants say: no broadcast, no
        swizzle of lanes."""
        bf16 = self.a_dtype == BFLOAT16
        a = f"<{self.packs[0]} x {'i16' if bf16 else 'half'}>"
        c = f"<{self.packs[2]} x float>"
        ending = "bf16.1k" if bf16 else "f16"
        name = f"llvm.amdgcn.mfma.f32.{self.m}x{self.n}x{self.k}{ending}"
        return Intrinsic(name, (a, a, c), c, (0, 0, 0))


def _mfma(size: int, k: int, ab: DType) -> MfmaRow:
    per_lane = k * size // 64
    a, c = mfma_a(size, per_lane), mfma_c(size)
    return MfmaRow(
        f"mfma.{size}x{size}x{k}.{ab}",
        size,
        size,
        k,
        ab,
        ab,
        FLOAT32,
        a,
        a.transpose(),
        c,
        packs=(per_lane, per_lane, size * size // 64),
        feature="mfma",
    )


AMD_ROWS: tuple[MatrixRow, ...] = tuple(
    _mfma(size, k, t) for t in (FLOAT16, BFLOAT16) for size, k in ((16, 16), (32, 8))
)
