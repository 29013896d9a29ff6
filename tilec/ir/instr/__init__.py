"""The hardware's instructions as data: what each one that tilec emits needs, holds, is spelled like
and does.

    instruction   the types: MatrixInstruction, Instruction, Asm, the counter of asm operands
    wgmma     wgmma                     memory    ldmatrix, stmatrix, cp.async, TMA, vectors
    nvidia    mma.sync, mma.sp          sync      mbarriers, fences, named barriers, setmaxnreg
    amd       mfma
    simt      multiply-add in one thread
    cluster   barriers, arrivals and loads between the blocks of a cluster
"""

from tilec.ir.errors import InternalError, did_you_mean
from tilec.ir.instr import cluster, memory, sync
from tilec.ir.instr.amd import (
    AMD_INSTRUCTIONS,
    FLOAT8_NAMES,
    AmdInstruction,
    MfmaInstruction,
    WmmaInstruction,
)
from tilec.ir.instr.instruction import (
    SIMT_INSTRUCTIONS,
    Asm,
    Instruction,
    Intrinsic,
    MatrixInstruction,
    Operands,
    SimtInstruction,
)
from tilec.ir.instr.memory import MatrixMove
from tilec.ir.instr.nvidia import (
    NVIDIA_INSTRUCTIONS,
    PTX_FOR,
    SPARSE_INSTRUCTIONS,
    MmaInstruction,
    SparseMmaInstruction,
)
from tilec.ir.instr.wgmma import WGMMA_INT_N, WGMMA_N, WgmmaInstruction, wgmma_wait
from tilec.ir.types import DType

MATRIX_INSTRUCTIONS: dict[str, MatrixInstruction] = {
    instr.name: instr
    for instr in (*NVIDIA_INSTRUCTIONS, *SPARSE_INSTRUCTIONS, *AMD_INSTRUCTIONS, *SIMT_INSTRUCTIONS)
}

_ByDtypes = dict[tuple[DType, DType, DType], list[MatrixInstruction]]
_BY_DTYPES: _ByDtypes = {}
_SPARSE_BY_DTYPES: _ByDtypes = {}
for _row in (*NVIDIA_INSTRUCTIONS, *AMD_INSTRUCTIONS):
    _BY_DTYPES.setdefault((_row.a_dtype, _row.b_dtype, _row.c_dtype), []).append(_row)
for _row in SPARSE_INSTRUCTIONS:
    _SPARSE_BY_DTYPES.setdefault((_row.a_dtype, _row.b_dtype, _row.c_dtype), []).append(_row)


def instructions_of(a: DType, b: DType, c: DType) -> tuple[MatrixInstruction, ...]:
    """The matrix instructions, of any target, that multiply `a` by `b` and accumulate in `c`: of
    each kind the one to prefer first."""
    return tuple(_BY_DTYPES.get((a, b, c), ()))


def sparse_instructions_of(a: DType, b: DType, c: DType) -> tuple[MatrixInstruction, ...]:
    """Those that multiply a compressed `a` by `b`."""
    return tuple(_SPARSE_BY_DTYPES.get((a, b, c), ()))


def find_instruction(name: str) -> MatrixInstruction:
    """The matrix instruction called `name`, e.g. "mma.m16n8k16.f16", "wgmma.m64n256k16.bf16",
    "mfma.32x32x8.f16", "simt.fma.f32". Raises InternalError for an unknown name."""
    instr = MATRIX_INSTRUCTIONS.get(name)
    if instr is None:
        raise InternalError(
            f"there is no instruction {name!r}{did_you_mean(name, MATRIX_INSTRUCTIONS)}"
        )
    return instr


__all__ = [
    "FLOAT8_NAMES", "MATRIX_INSTRUCTIONS", "PTX_FOR", "WGMMA_INT_N", "WGMMA_N", "Asm", "Intrinsic",
    "AmdInstruction", "MatrixMove", "MatrixInstruction", "MfmaInstruction", "MmaInstruction",
    "Operands", "Instruction", "SimtInstruction", "SparseMmaInstruction", "WgmmaInstruction",
    "WmmaInstruction", "cluster", "find_instruction", "memory", "instructions_of",
    "sparse_instructions_of", "sync", "wgmma_wait",
]  # fmt: skip
