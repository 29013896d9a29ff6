"""Hopper's asynchronous matrix instructions of a warpgroup.

PTX ISA 8.0, section "Asynchronous Warpgroup Level Matrix Instructions: wgmma.mma_async". One
instruction is 64 rows, 32 bytes of K and n columns. B comes from shared memory, A from there or
from registers. 16-bit inputs may be stored with either dimension contiguous, all others with K
contiguous only. Of a compressed A (section "… for sparse matrices: wgmma.mma_async.sp") 32 bytes
stand for 64 bytes of K, which is what one instruction reads of B.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from tilec.ir.errors import InternalError
from tilec.ir.instr import instruction
from tilec.ir.instr.machine import Machine
from tilec.ir.instr.semantics import Outcome, Word, absorbing
from tilec.ir.layout import Layout, mma_b, wgmma_a, wgmma_c, wgmma_sp_metadata
from tilec.ir.types import (
    BFLOAT16,
    FLOAT8_E4M3,
    FLOAT8_E5M2,
    FLOAT16,
    FLOAT32,
    INT8,
    INT32,
    TFLOAT32,
    UINT8,
    DType,
)

K_BITS = 256
"""One instruction's part of K in every row of A and column of B."""


@dataclass(frozen=True)
class WgmmaInstruction(instruction.MatrixInstruction):
    """`wgmma.mma_async`: four warps, b (and a, unless it is in registers) read from shared memory
    through matrix descriptors (`tilec.ir.layout.wgmma_operand`)."""

    def product(
        self,
        m_blocks: int,
        a_steps: tuple[int, ...],
        b_steps: tuple[int, ...],
        *,
        a_transposed: bool = False,
        b_transposed: bool = False,
        accumulate: str = "always",
        a_place: str = "shared",
        served: int = 1,
    ) -> instruction.Asm:
        """A whole product of a tile as one piece: fence, all steps, commit.

        `a_steps`: units of 16 bytes to add to a's descriptor for each [m block][k step], m major
        (none with `a_place` "fragment"); `b_steps`: to b's, for each k step. `*_transposed`: the
        operand is MN-major. `accumulate`: "always", "never" (the first step of each m block
        overwrites c), or "if" (decided by an argument). `served`: of a compressed a, for how many k
        steps one word of metadata is.

        Arguments: a's descriptor (i64), or with `a_place` "fragment" its registers (i32, per [m
        block][k step]); of a compressed a its metadata (i32, per [m block][`served` k steps]); b's
        descriptor (i64); for "if" an i32 that is 0 to overwrite; and unless "never" the
        accumulators. Results: the accumulators, one m block after the other. They, and
        a's registers, are in flight until `wgmma_wait`.
        """
        steps, in_registers = len(b_steps), a_place == "fragment"
        if not in_registers and len(a_steps) != m_blocks * steps:
            raise InternalError(
                f"{self.name}: {len(a_steps)} steps of a, {m_blocks} times {steps} of b"
            )
        if (a_transposed or b_transposed) and "mn" not in self.majors:
            raise InternalError(f"{self.name}: an operand that is not K-major")
        per_step, _, count = self.registers
        x = instruction.Operands()
        # Of several steps the first writes c before the others have read a.
        early = accumulate == "never" or in_registers or self.metadata is not None
        c = x.outputs(instruction.register_kind(self.c_dtype), m_blocks * count, early=early)
        a = x.inputs("r", m_blocks * steps * per_step) if in_registers else x.inputs("l")
        each = steps // served
        e = x.inputs("r", m_blocks * each) if self.metadata is not None else []
        b = x.input("l")
        text = [".reg .b64 da, db;"]
        first = {"always": "1", "never": "0", "if": "p"}[accumulate]
        if accumulate == "if":
            text.append(f".reg .pred p; setp.ne.u32 p, {x.input('r')}, 0;")
        if accumulate != "never":
            x.tie_all()
        text.append("wgmma.fence.sync.aligned;")
        tail = self._modifiers(None if in_registers else a_transposed, b_transposed)
        for step in range(steps):
            text.append(f"add.s64 db, {b}, {b_steps[step]};")
            for block in range(m_blocks):
                at = block * steps + step
                if in_registers:
                    a_text = instruction.register_list(a[at * per_step : (at + 1) * per_step])
                else:
                    text.append(f"add.s64 da, {a[0]}, {a_steps[at]};")
                    a_text = "da"
                d = instruction.register_list(c[block * count : (block + 1) * count])
                scale = first if step == 0 else "1"
                described = f"{e[block * each + step // served]}, {step % served}, " if e else ""
                text.append(f"{self._instruction} {d}, {a_text}, db, {described}{scale}{tail};")
        text.append("wgmma.commit_group.sync.aligned;")

        @absorbing
        def multiply(m: Machine, *words: Word) -> Outcome:
            a_words, rest = words[: len(a)], words[len(a) :]
            metadata, rest = rest[: len(e)], rest[len(e) :]
            if in_registers:
                fragments = [a_words[i : i + per_step] for i in range(0, len(a_words), per_step)]
            else:
                fragments = [(a_words[0] + at,) for at in a_steps]
            keep = rest[1] if accumulate == "if" else int(accumulate == "always")
            transposed = {"a_transposed": a_transposed, "b_transposed": b_transposed}
            b_at = [rest[0] + at for at in b_steps]
            held = None if accumulate == "never" else rest[1 + (accumulate == "if") :]
            return m.wgmma(self, fragments, b_at, held, **transposed, keep=keep, metadata=metadata)

        return x.asm(f"{{ {' '.join(text)} }}", multiply)

    def _modifiers(self, a_transposed: bool | None, b_transposed: bool) -> str:
        """Signs of a and b (not of integers), then which of the shared operands are MN-major (of
        16-bit types)."""
        words = [] if self.c_dtype.is_int else ["1", "1"]
        if "mn" in self.majors:
            words += [str(int(t)) for t in (a_transposed, b_transposed) if t is not None]
        return "".join(f", {w}" for w in words)

    @property
    def _instruction(self) -> str:
        types = ".".join(
            instruction.PTX_TYPES[t] for t in (self.c_dtype, self.a_dtype, self.b_dtype)
        )
        form = "wgmma.mma_async" + (".sp" if self.metadata is not None else "")
        return f"{form}.sync.aligned.m{self.m}n{self.n}k{self.k}.{types}"


def wgmma_wait(pending: int, kinds: Sequence[str]) -> instruction.Asm:
    """Wait until at most `pending` groups are in flight. Arguments and results: the registers, of
    classes `kinds` ("f" or "r"), that may be touched afterwards."""
    x = instruction.Operands()
    for kind in kinds:
        x.outputs(kind, 1)
    x.tie_all()

    @absorbing
    def wait(m: Machine, *registers: Word) -> Outcome:
        return m.wgmma_wait(pending, registers)

    return x.asm(f"wgmma.wait_group.sync.aligned {pending};", wait)


@functools.cache
def _wgmma_b(bits: int, n: int, k: int) -> Layout:
    """b is never in registers; as a fragment it would lie like mma's, the same in all four
    warps."""
    return _of_four_warps(bits, k).tile((1, n // 8), "reg")


@functools.cache
def _of_four_warps(bits: int, k: int) -> Layout:
    return mma_b(bits, k).replicate(4, "warp")


def _wgmma(n: int, a: DType, b: DType, c: DType, sparse: bool = False) -> WgmmaInstruction:
    k, pack = (2 if sparse else 1) * K_BITS // a.bits, 32 // a.bits
    family, unit = ("wgmma_sp" if sparse else "wgmma"), (32 if a.bits == 8 else 16)
    name = instruction.instruction_name(f"{family}.m64n{n}k{k}", a, b, c)
    layouts = wgmma_a(a.bits), _wgmma_b(a.bits, n, k), wgmma_c(n)
    own = name, 64, n, k, a, b, c, *layouts, (pack, pack, 32 // c.bits), family
    return WgmmaInstruction(
        *own,
        warps=4,
        a_places=("shared", "fragment"),
        b_places=("shared",),
        majors=("k", "mn") if a.bits == 16 else ("k",),
        # Measured by several groups, e.g. DeepSeek-V3 (arXiv 2412.19437), section 3.5.2: about 14
        # bits of the running sum are kept.
        coarse_sum=c == FLOAT32 and a.is_float and a.bits == 8,
        metadata=wgmma_sp_metadata(unit) if sparse else None,
        unit=unit if sparse else 0,
        selectors=32 // unit if sparse else 1,
    )


WGMMA_N = tuple(range(8, 257, 8))
WGMMA_INT_N = (8, 24, *range(16, 257, 16))

# The dtypes of A, B and the sums that the tensor cores multiply, by warps and by warpgroups.
FLOATS8, INTS8 = (FLOAT8_E4M3, FLOAT8_E5M2), (INT8, UINT8)
FLOATS = (
    (FLOAT16, FLOAT16, FLOAT32),
    (FLOAT16, FLOAT16, FLOAT16),
    (BFLOAT16, BFLOAT16, FLOAT32),
    (TFLOAT32, TFLOAT32, FLOAT32),
)
_FLOATS = (*FLOATS, *((a, b, c) for a in FLOATS8 for b in FLOATS8 for c in (FLOAT32, FLOAT16)))

WGMMA_INSTRUCTIONS: tuple[WgmmaInstruction, ...] = (
    *(_wgmma(n, a, b, c) for a, b, c in _FLOATS for n in WGMMA_N),
    *(_wgmma(n, a, b, INT32) for a in INTS8 for b in INTS8 for n in sorted(WGMMA_INT_N)),
)
SPARSE_WGMMA_INSTRUCTIONS: tuple[WgmmaInstruction, ...] = (
    *(_wgmma(n, a, b, c, sparse=True) for a, b, c in _FLOATS for n in WGMMA_N),
    *(_wgmma(n, a, b, INT32, sparse=True) for a in INTS8 for b in INTS8 for n in WGMMA_INT_N),
)
