"""Hardware facts as rows: what every instruction tilec emits needs, holds, is spelled like and
means.

    row       the types: MatrixRow, Row, Asm, and the counter of asm operands
    nvidia    mma.sync, wgmma           memory    ldmatrix, stmatrix, cp.async, TMA, vectors
    amd       mfma                      sync      mbarriers, fences, named barriers, setmaxnreg
    simt      multiply-add in one thread
"""

from tilec.ir.errors import InternalError, did_you_mean
from tilec.ir.instr import memory, sync
from tilec.ir.instr.amd import AMD_ROWS, MfmaRow
from tilec.ir.instr.memory import MatrixMoveRow
from tilec.ir.instr.nvidia import NVIDIA_ROWS, WGMMA_N, MmaRow, WgmmaRow
from tilec.ir.instr.row import Asm, Intrinsic, MatrixRow, Operands, Row, registers_of, tile_of
from tilec.ir.instr.simt import SIMT_ROWS, SimtRow

MATRIX_ROWS: dict[str, MatrixRow] = {row.name: row for row in (*NVIDIA_ROWS, *AMD_ROWS, *SIMT_ROWS)}


def find_row(name: str) -> MatrixRow:
    """The matrix row called `name`, e.g. "mma.m16n8k16.f16", "wgmma.m64n256k16.bf16",
    "mfma.32x32x8.f16", "simt.fma.f32". Raises InternalError for an unknown name."""
    row = MATRIX_ROWS.get(name)
    if row is None:
        raise InternalError(f"there is no row {name!r}{did_you_mean(name, MATRIX_ROWS)}")
    return row


__all__ = [
    "MATRIX_ROWS",
    "WGMMA_N",
    "Asm",
    "Intrinsic",
    "MatrixMoveRow",
    "MatrixRow",
    "MfmaRow",
    "MmaRow",
    "Operands",
    "Row",
    "SimtRow",
    "WgmmaRow",
    "find_row",
    "memory",
    "registers_of",
    "sync",
    "tile_of",
]
