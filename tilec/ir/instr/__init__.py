"""Hardware facts as rows: what every instruction tilec emits needs, holds, is spelled like and
means.

    row       the types: MatrixRow, Row, Asm, and the counter of asm operands
    wgmma     wgmma                     memory    ldmatrix, stmatrix, cp.async, TMA, vectors
    nvidia    mma.sync                  sync      mbarriers, fences, named barriers, setmaxnreg
    amd       mfma
    simt      multiply-add in one thread
    cluster   barriers, arrivals and loads between the blocks of a cluster
"""

from tilec.ir.errors import InternalError, did_you_mean
from tilec.ir.instr import cluster, memory, sync
from tilec.ir.instr.amd import AMD_ROWS, FLOAT8_NAMES, MfmaRow
from tilec.ir.instr.memory import MatrixMoveRow
from tilec.ir.instr.nvidia import NVIDIA_ROWS, MmaRow
from tilec.ir.instr.row import Asm, Intrinsic, MatrixRow, Operands, Row, registers_of, tile_of
from tilec.ir.instr.simt import SIMT_ROWS, SimtRow
from tilec.ir.instr.wgmma import WGMMA_INT_N, WGMMA_N, WgmmaRow, wgmma_wait
from tilec.ir.types import DType

MATRIX_ROWS: dict[str, MatrixRow] = {row.name: row for row in (*NVIDIA_ROWS, *AMD_ROWS, *SIMT_ROWS)}

_BY_DTYPES: dict[tuple[DType, DType, DType], list[MatrixRow]] = {}
for _row in (*NVIDIA_ROWS, *AMD_ROWS):
    _BY_DTYPES.setdefault((_row.a_dtype, _row.b_dtype, _row.c_dtype), []).append(_row)


def rows_of(a: DType, b: DType, c: DType) -> tuple[MatrixRow, ...]:
    """The matrix instructions, of any target, that multiply `a` by `b` and accumulate in `c`: of
    each kind the one to prefer first."""
    return tuple(_BY_DTYPES.get((a, b, c), ()))


def find_row(name: str) -> MatrixRow:
    """The matrix row called `name`, e.g. "mma.m16n8k16.f16", "wgmma.m64n256k16.bf16",
    "mfma.32x32x8.f16", "simt.fma.f32". Raises InternalError for an unknown name."""
    row = MATRIX_ROWS.get(name)
    if row is None:
        raise InternalError(f"there is no row {name!r}{did_you_mean(name, MATRIX_ROWS)}")
    return row


__all__ = [
    "FLOAT8_NAMES",
    "MATRIX_ROWS",
    "WGMMA_INT_N",
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
    "cluster",
    "find_row",
    "memory",
    "registers_of",
    "rows_of",
    "sync",
    "tile_of",
    "wgmma_wait",
]
