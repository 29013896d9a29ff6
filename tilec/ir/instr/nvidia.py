"""NVIDIA's matrix instructions of a warp, and all rows of the vendor.

PTX ISA 8.5, sections "Warp Level Matrix Instructions: mma" and "… for sparse matrices: mma.sp";
those of a warpgroup are in `tilec.ir.instr.wgmma`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilec.ir.instr.instruction import (
    PTX_TYPES,
    Asm,
    Instruction,
    MatrixInstruction,
    Operands,
    instruction_name,
    register_kind,
    register_list,
    row,
)
from tilec.ir.instr.machine import Machine
from tilec.ir.instr.semantics import Outcome, Semantics, Word
from tilec.ir.instr.wgmma import (
    FLOATS,
    FLOATS8,
    INTS8,
    SPARSE_WGMMA_INSTRUCTIONS,
    WGMMA_INSTRUCTIONS,
)
from tilec.ir.layout import MMA4_A, MMA4_B, MMA4_C, MMA_C, mma_a, mma_b, mma_sp_metadata
from tilec.ir.types import FLOAT32, FLOAT64, INT32, DType

Words = Sequence[Word]


@dataclass(frozen=True)
class MmaInstruction(MatrixInstruction):
    """`mma.sync`: one warp, all operands in registers."""

    def asm(self) -> Asm:
        """Arguments: registers of a, b, c (32 bits each, 64 of float64); results: registers of
        d."""

        def multiply(m: Machine, a: Words, b: Words, c: Words) -> Outcome:
            return m.mma(self, a, b, c)

        return _of_registers(self, "mma", multiply)


def _of_registers(
    row: MatrixInstruction, word: str, multiply: Semantics, selector: int | None = None
) -> Asm:
    """A product of registers of a, b, c and, with a `selector`, of the metadata, all of which
    `multiply` is given."""
    kind, inputs = register_kind(row.c_dtype), "d" if row.a_dtype == FLOAT64 else "r"
    x, counts = Operands(), row.registers
    d = x.outputs(kind, counts[2])
    given = [x.inputs(k, count) for k, count in zip((inputs, inputs, kind), counts)]
    described = "" if selector is None else f", {x.input('r')}, {selector:#x}"
    types = [PTX_TYPES[t] for t in (row.c_dtype, row.a_dtype, row.b_dtype, row.c_dtype)]
    form = f"{word}.sync.aligned.m{row.m}n{row.n}k{row.k}.row.col.{'.'.join(types)}"
    operands = ", ".join(register_list(r) for r in (d, *given))

    def semantics(m: Machine, *words: Word) -> Outcome:
        first, second, third = counts[0], counts[0] + counts[1], sum(counts)
        return multiply(m, words[:first], words[first:second], words[second:third], *words[third:])

    return x.asm(f"{form} {operands}{described};", semantics, memory=False, effects=False)


def _mma(k: int, a: DType, b: DType, c: DType, feature: str = "mma") -> MmaInstruction:
    name = instruction_name(f"mma.m16n8k{k}", a, b, c)
    layouts = (mma_a(a.bits, k), mma_b(a.bits, k))
    packs = (32 // a.bits, 32 // a.bits, 32 // c.bits)
    return MmaInstruction(name, 16, 8, k, a, b, c, *layouts, MMA_C, packs, feature)


AND_OR = row(
    "lop3.and_or", "mma", "lop3.b32 $0, $1, $2, $3, 0xEA;",
    lambda m, value, mask, bits: (value & mask | bits,), "rrr", "r", memory=False, effects=False,
)  # fmt: skip
"""Section "lop3". Arguments: a word, a mask, and bits to be set: `(word & mask) | bits`. Of the two
operations, with constants, ptxas makes two instructions."""

PERMUTE_BYTES = row(
    "prmt", "mma", "prmt.b32 $0, $1, $2, $3;",
    lambda m, low, high, chosen: (_permuted(low, high, chosen),),
    "rrr", "r", memory=False, effects=False,
)  # fmt: skip
"""Section "prmt". Arguments: two words, whose bytes are numbered from the lowest of the first, and
the numbers of those of the result, four bits each."""

TANH = row(
    "tanh.approx", "mma", "tanh.approx.f32 $0, $1;",
    lambda m, value: (np.tanh(value),), "f", "f", memory=False, effects=False,
)  # fmt: skip
"""Section "tanh": of a float32, with a relative error of about 2**-11."""


def _permuted(low: Word, high: Word, chosen: Word) -> Word:
    found: Word = low & np.uint32(0)
    for n in range(4):
        which = chosen >> np.uint32(4 * n) & np.uint32(7)
        word = np.where(which < 4, low, high)
        byte = word >> (which & np.uint32(3)) * np.uint32(8) & np.uint32(0xFF)
        found = found | byte << np.uint32(8 * n)
    return found


def _unknown(kind: str, bits: int) -> Instruction:
    name, same = f"mov.b{bits}", lambda m, value: (value,)
    return row(name, "mma", f"{name} $0, $1;", same, kind, kind, memory=False, effects=False)


UNKNOWN = {"i32": _unknown("r", 32), "i64": _unknown("l", 64)}
"""Argument: a number. The same number, of which LLVM knows nothing."""

_OF_FLOAT64 = (FLOAT64, FLOAT64, FLOAT64, MMA4_A, MMA4_B, MMA4_C, (1, 1, 1))
_FLOAT64 = MmaInstruction("mma.m8n8k4.f64", 8, 8, 4, *_OF_FLOAT64, feature="mma")


def _wide_f64(k: int) -> MmaInstruction:
    """Section "Matrix fragments for mma.m16n8k4, mma.m16n8k8 and mma.m16n8k16 with .f64": a number
    stands where a word of the others does."""
    operands = FLOAT64, FLOAT64, FLOAT64, mma_a(32, k), mma_b(32, k), MMA_C, (1, 1, 1)
    return MmaInstruction(f"mma.m16n8k{k}.f64", 16, 8, k, *operands, feature="mma_f64")


MMA_INSTRUCTIONS: tuple[MmaInstruction, ...] = (
    *(_mma(k // a.bits, a, b, c) for a, b, c in FLOATS for k in (256, 128)),
    *(_mma(32, a, b, FLOAT32, "mma_fp8") for a in FLOATS8 for b in FLOATS8),
    *(_mma(k, a, b, INT32) for a in INTS8 for b in INTS8 for k in (32, 16)),
    *map(_wide_f64, (8, 4)),
    _FLOAT64,
)


@dataclass(frozen=True)
class SparseMmaInstruction(MatrixInstruction):
    """`mma.sp`: one warp, all operands in registers; A is compressed."""

    def asm(self, selector: int = 0) -> Asm:
        """Arguments: registers of a, b, c (32 bits each) and of the metadata; results: registers of
        d."""

        def multiply(m: Machine, a: Words, b: Words, c: Words, metadata: Word) -> Outcome:
            return m.mma_sp(self, a, b, c, metadata, selector)

        return _of_registers(self, ORDERED, multiply, selector)


ORDERED = "mma.sp::ordered_metadata"
PTX_FOR = {ORDERED: "+ptx85", "createpolicy": "+ptx84"}
"""The version of PTX that instructions need which the targets' own lacks."""


def _mma_sp(k: int, a: DType, b: DType, c: DType, feature: str = "mma_sp") -> SparseMmaInstruction:
    name, unit = instruction_name(f"mma_sp.m16n8k{k}", a, b, c), 32 if a.bits == 8 else 16
    layouts, packs = (mma_a(a.bits, k // 2), mma_b(a.bits, k)), (32 // a.bits, 32 // a.bits)
    operands = a, b, c, *layouts, MMA_C, (*packs, 32 // c.bits), feature
    metadata = mma_sp_metadata(unit)
    return SparseMmaInstruction(
        name, 16, 8, k, *operands, metadata=metadata, unit=unit, selectors=32 // unit
    )


SPARSE_INSTRUCTIONS: tuple[MatrixInstruction, ...] = (
    *SPARSE_WGMMA_INSTRUCTIONS,
    *(_mma_sp(512 // a.bits, a, b, c) for a, b, c in FLOATS),
    *(_mma_sp(64, a, b, FLOAT32, "mma_sp_fp8") for a in FLOATS8 for b in FLOATS8),
    *(_mma_sp(64, a, b, INT32) for a in INTS8 for b in INTS8),
)

NVIDIA_INSTRUCTIONS: tuple[MatrixInstruction, ...] = (*WGMMA_INSTRUCTIONS, *MMA_INSTRUCTIONS)
