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
from tilec.ir.layout import WMMA_A, WMMA_C, mfma_a, mfma_c
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
    UINT8,
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
class AmdInstruction(MatrixInstruction):
    """One wave, operands in registers, one vector per operand."""

    def intrinsic(self) -> Intrinsic:
        """Arguments: one value each of a, b, c; result: vector of d."""
        raise NotImplementedError


@dataclass(frozen=True)
class MfmaInstruction(AmdInstruction):
    """`v_mfma`: one wave of 64 lanes."""

    @property
    def word(self) -> str:
        """The instruction's name as HIP's builtins have it: "f32_16x16x16f16"."""
        return self.intrinsic().name.removeprefix(_INTRINSIC).replace(".", "_")

    def intrinsic(self) -> Intrinsic:
        """The constants say: no broadcast, no swizzle of lanes (of float64: no negation)."""
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


_WMMA = {
    FLOAT16: ("f32.16x16x16.f16.v8f32.v16f16", "<16 x half>"),
    BFLOAT16: ("f32.16x16x16.bf16.v8f32.v16i16", "<16 x i16>"),
}


@dataclass(frozen=True)
class WmmaInstruction(AmdInstruction):
    """`v_wmma` of RDNA3: one wave of 32 lanes."""

    def intrinsic(self) -> Intrinsic:
        """The flags of integers say which of A and B have a sign, and that the sum wraps."""
        flags: tuple[tuple[int, int], ...] = ()
        if self.c_dtype == INT32:
            word, ab, c = "i32.16x16x16.iu8.v8i32.v4i32", "<4 x i32>", "<8 x i32>"
            flags = (0, int(self.a_dtype == INT8)), (2, int(self.b_dtype == INT8)), (5, 0)
        else:
            word, ab = _WMMA[self.a_dtype]
            c = "<8 x float>"
        of = [n for n in range(6) if n not in dict(flags)][:3]

        def multiply(m: Machine, *given: Word) -> Outcome:
            a, b, c = (given[n] for n in of)
            return (m.mma(self, (a,), (b,), (c,)),)

        return Intrinsic(
            f"llvm.amdgcn.wmma.{word}", (ab, ab, c), c, flags=flags, semantics=multiply
        )


def _wmma(a: DType, b: DType, c: DType) -> WmmaInstruction:
    name, layouts = instruction_name("wmma.16x16x16", a, b, c), (WMMA_A, WMMA_A.transpose(), WMMA_C)
    return WmmaInstruction(name, 16, 16, 16, a, b, c, *layouts, (16, 16, 8), "wmma")


_SIZES, _BYTES = (32, 16), (INT8, UINT8)

AMD_INSTRUCTIONS: tuple[AmdInstruction, ...] = (
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
    *(_wmma(t, t, FLOAT32) for t in (FLOAT16, BFLOAT16)),
    *(_wmma(a, b, INT32) for a in _BYTES for b in _BYTES),
)
