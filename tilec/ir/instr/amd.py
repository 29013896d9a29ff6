"""AMD's matrix instructions.

AMD Instinct MI300 ISA, section "Matrix Arithmetic Instructions"; element maps as AMD's matrix
instruction calculator prints them (https://github.com/ROCm/amd_matrix_instruction_calculator);
the "mfma_cdna2" ones are in the MI200 ISA and not in MI300's.
CDNA4's own instructions, the "mfma_cdna4" ones, are not in it: they are as Composable Kernel
(xdlops_gemm.hpp, `mfma_type`: `k_per_blk` is 8, of int8 16) and IREE (IREEGPUAttrs.cpp,
`getSingleSubgroupLayout`) have them, which agree. Reached through LLVM intrinsics only. float8 is
the target's kind: "fp8" is e4m3, "bf8" is e5m2.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilec.ir.instr.instruction import Intrinsic, MatrixInstruction, instruction_name
from tilec.ir.instr.machine import Machine
from tilec.ir.instr.semantics import Outcome, Word
from tilec.ir.layout import mfma_a, mfma_c
from tilec.ir.types import (
    BFLOAT16,
    FLOAT8_E4M3,
    FLOAT8_E5M2,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT8,
    INT32,
    TFLOAT32,
    DType,
)

# Ending of the intrinsic's name and the LLVM type of one lane's inputs, by the dtype of A and B and
# how many of them a lane holds.
_PLAIN = {
    (FLOAT16, 4): ("f16", "<4 x half>"), (FLOAT16, 8): (".f16", "<8 x half>"),
    (BFLOAT16, 4): ("bf16.1k", "<4 x i16>"), (BFLOAT16, 8): (".bf16", "<8 x bfloat>"),
    (TFLOAT32, 2): (".xf32", "<2 x float>"), (FLOAT32, 1): ("f32", "float"),
    (FLOAT64, 1): ("f64", "double"), (INT8, 4): ("i8", "i32"), (INT8, 8): (".i8", "i64"),
    (INT8, 16): (".i8", "<4 x i32>"),
}  # fmt: skip
FLOAT8_NAMES = {FLOAT8_E4M3: "fp8", FLOAT8_E5M2: "bf8"}
_INTRINSIC = "llvm.amdgcn.mfma."
_SUMS = {FLOAT32: ("f32", "float"), FLOAT64: ("f64", "double"), INT32: ("i32", "i32")}


@dataclass(frozen=True)
class MfmaInstruction(MatrixInstruction):
    """`v_mfma`: one wave of 64 lanes, operands in registers, one vector per operand."""

    @property
    def word(self) -> str:
        """The instruction's name as HIP's builtins have it: "f32_16x16x16f16"."""
        return self.intrinsic().name.removeprefix(_INTRINSIC).replace(".", "_")

    def intrinsic(self) -> Intrinsic:
        """Arguments: one value each of a, b, c; result: vector of d. The constants say: no
        broadcast, no swizzle of lanes (of float64: no negation)."""
        if self.a_dtype in FLOAT8_NAMES:
            ending, ab = f".{FLOAT8_NAMES[self.a_dtype]}.{FLOAT8_NAMES[self.b_dtype]}", "i64"
        else:
            ending, ab = _PLAIN[self.a_dtype, self.packs[0]]
        word, kind = _SUMS[self.c_dtype]
        c = f"<{self.packs[2]} x {kind}>"
        name = f"{_INTRINSIC}{word}.{self.m}x{self.n}x{self.k}{ending}"

        def multiply(m: Machine, a: Word, b: Word, c: Word, *constants: Word) -> Outcome:
            return (m.mma(self, (a,), (b,), (c,)),)

        return Intrinsic(name, (ab, ab, c), c, (0, 0, 0), semantics=multiply)


def _mfma(
    size: int, per_lane: int, a: DType, b: DType, c: DType, feature: str = "mfma"
) -> MfmaInstruction:
    """A lane holds `per_lane` neighbours along k of one instruction of A and one column of B."""
    k = per_lane * 64 // size
    name, held = instruction_name(f"mfma.{size}x{size}x{k}", a, b, c), mfma_a(size, per_lane)
    layouts = held, held.transpose(), mfma_c(size, 1 if c == FLOAT64 else 4)
    packs = per_lane, per_lane, size * size // 64
    return MfmaInstruction(name, size, size, k, a, b, c, *layouts, packs, feature)


_SIZES = (32, 16)

AMD_INSTRUCTIONS: tuple[MatrixInstruction, ...] = (
    *(_mfma(size, 8, t, t, FLOAT32, "mfma_cdna4") for t in (FLOAT16, BFLOAT16) for size in _SIZES),
    *(_mfma(size, 16, INT8, INT8, INT32, "mfma_cdna4") for size in _SIZES),
    *(_mfma(size, 4, t, t, FLOAT32) for t in (FLOAT16, BFLOAT16) for size in _SIZES),
    *(
        _mfma(size, 8, a, b, FLOAT32, "mfma_cdna3")
        for a in FLOAT8_NAMES
        for b in FLOAT8_NAMES
        for size in _SIZES
    ),
    *(_mfma(size, 8, INT8, INT8, INT32, "mfma_cdna3") for size in _SIZES),
    *(_mfma(size, 4, INT8, INT8, INT32, "mfma_cdna2") for size in _SIZES),
    *(_mfma(size, 2, TFLOAT32, TFLOAT32, FLOAT32, "mfma_xf32") for size in _SIZES),
    *(_mfma(size, 1, FLOAT32, FLOAT32, FLOAT32) for size in _SIZES),
    _mfma(16, 1, FLOAT64, FLOAT64, FLOAT64),
)
