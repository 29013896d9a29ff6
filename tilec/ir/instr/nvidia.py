"""NVIDIA's matrix instructions.

PTX ISA 8.0, sections "Warp Level Matrix Instructions: mma" and "Asynchronous Warpgroup Level Matrix
Instructions: wgmma.mma_async".
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from tilec.ir.errors import InternalError
from tilec.ir.instr.row import Array, Asm, MatrixRow, Operands
from tilec.ir.layout import (
    MMA8_A,
    MMA8_B,
    MMA16_A,
    MMA16_B,
    MMA32_A,
    MMA32_B,
    MMA_C,
    WGMMA_A,
    Layout,
    wgmma_c,
)
from tilec.ir.types import BFLOAT16, FLOAT16, FLOAT32, INT8, INT32, TFLOAT32, UINT8, DType

PTX_TYPES = {
    FLOAT16: "f16",
    BFLOAT16: "bf16",
    FLOAT32: "f32",
    TFLOAT32: "tf32",
    INT8: "s8",
    UINT8: "u8",
    INT32: "s32",
}


@dataclass(frozen=True)
class MmaRow(MatrixRow):
    """`mma.sync`: one warp, all operands in registers."""

    def asm(self) -> Asm:
        """Arguments: registers of a, b, c (32 bits each); results: registers of d."""
        kind = "f" if self.c_dtype == FLOAT32 else "r"
        x = Operands()
        a_count, b_count, c_count = self.registers
        d = x.outputs(kind, c_count)
        a, b, c = x.inputs("r", a_count), x.inputs("r", b_count), x.inputs(kind, c_count)
        types = [PTX_TYPES[t] for t in (self.c_dtype, self.a_dtype, self.b_dtype, self.c_dtype)]
        shape = f"m{self.m}n{self.n}k{self.k}"
        template = (
            f"mma.sync.aligned.{shape}.row.col.{'.'.join(types)} "
            f"{_list(d)}, {_list(a)}, {_list(b)}, {_list(c)};"
        )
        return x.asm(template, memory=False, effects=False)

    def meaning(self, a: Array, b: Array, c: Array) -> Array:
        """See MatrixRow; TF32 ignores the low 13 bits of its inputs."""
        if self.a_dtype == TFLOAT32:
            a, b = (_tf32(x) for x in (a, b))
        return super().meaning(a, b, c)


def _tf32(x: Array) -> Array:
    bits: Array = x.astype("float32").view("uint32") & 0xFFFFE000
    return bits.view("float32")


@dataclass(frozen=True)
class WgmmaRow(MatrixRow):
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
    ) -> Asm:
        """A whole product of a tile as one piece: fence, all steps, commit.

        `a_steps`: units of 16 bytes to add to a's descriptor for each [m block][k step], m major;
        `b_steps`: to b's, for each k step. `*_transposed`: the operand is MN-major. `accumulate`:
        "always", "never" (the first step of each m block overwrites c), or "if" (decided by an
        argument).

        Arguments: a's descriptor (i64), or with `a_place` "fragment" its registers (i32, per [m
        block][k step]); b's descriptor (i64); for "if" an i32 that is 0 to overwrite; and unless
        "never" the accumulators. Results: the accumulators, one m block after the other. They are
        in flight until `wait`.
        """
        steps = len(b_steps)
        if len(a_steps) != m_blocks * steps:
            raise InternalError(
                f"{self.name}: {len(a_steps)} steps of a, {m_blocks} times {steps} of b"
            )
        count = self.registers[2]
        x = Operands()
        c = x.outputs("f", m_blocks * count, early=accumulate == "never")
        in_registers = a_place == "fragment"
        per_step = self.registers[0]
        a = x.inputs("r", m_blocks * steps * per_step) if in_registers else x.inputs("l")
        b = x.input("l")
        text = [".reg .b64 da, db;"]
        first = "1"
        if accumulate == "if":
            text.append(f".reg .pred p; setp.ne.u32 p, {x.input('r')}, 0;")
            first = "p"
        elif accumulate == "never":
            first = "0"
        if accumulate != "never":
            x.tie_all()
        text.append("wgmma.fence.sync.aligned;")
        tail = (
            f"{int(a_transposed)}, {int(b_transposed)}"
            if not in_registers
            else f"{int(b_transposed)}"
        )
        for step in range(steps):
            text.append(f"add.s64 db, {b}, {b_steps[step]};")
            for block in range(m_blocks):
                at = block * steps + step
                if in_registers:
                    a_text = _list(a[at * per_step : (at + 1) * per_step])
                else:
                    text.append(f"add.s64 da, {a[0]}, {a_steps[at]};")
                    a_text = "da"
                d = _list(c[block * count : (block + 1) * count])
                scale = first if step == 0 else "1"
                text.append(f"{self._instruction} {d}, {a_text}, db, {scale}, 1, 1, {tail};")
        text.append("wgmma.commit_group.sync.aligned;")
        return x.asm(f"{{ {' '.join(text)} }}")

    def wait(self, pending: int, registers: int) -> Asm:
        """Wait until at most `pending` groups are in flight. Arguments and results: the `registers`
        accumulators that may be touched afterwards."""
        x = Operands()
        x.outputs("f", registers)
        x.tie_all()
        return x.asm(f"wgmma.wait_group.sync.aligned {pending};")

    @property
    def _instruction(self) -> str:
        types = f"{PTX_TYPES[self.c_dtype]}.{PTX_TYPES[self.a_dtype]}.{PTX_TYPES[self.b_dtype]}"
        return f"wgmma.mma_async.sync.aligned.m{self.m}n{self.n}k{self.k}.{types}"


def _list(registers: list[str]) -> str:
    return "{" + ", ".join(registers) + "}"


def _mma(name: str, k: int, a: Layout, b: Layout, ab: DType, c: DType) -> MmaRow:
    pack = 32 // ab.bits
    packs = (pack, pack, 32 // c.bits)
    return MmaRow(name, 16, 8, k, ab, ab, c, a, b, MMA_C, packs, feature="mma")


@functools.cache
def _wgmma_b(n: int) -> Layout:
    """b is never in registers; as a fragment it would lie like mma's, the same in all four
    warps."""
    return MMA16_B.tile((1, n // 8), "reg").replicate(4, "warp")


def _wgmma(n: int, ab: DType) -> WgmmaRow:
    return WgmmaRow(
        f"wgmma.m64n{n}k16.{ab}",
        64,
        n,
        16,
        ab,
        ab,
        FLOAT32,
        WGMMA_A,
        _wgmma_b(n),
        wgmma_c(n),
        packs=(2, 2, 1),
        feature="wgmma",
        warps=4,
        a_places=("shared", "fragment"),
        b_places=("shared",),
        majors=("k", "mn"),
    )


WGMMA_N = tuple(range(8, 257, 8))

NVIDIA_ROWS: tuple[MatrixRow, ...] = (
    *(_mma(f"mma.m16n8k16.{t}", 16, MMA16_A, MMA16_B, t, FLOAT32) for t in (FLOAT16, BFLOAT16)),
    _mma("mma.m16n8k16.f16.f16", 16, MMA16_A, MMA16_B, FLOAT16, FLOAT16),
    _mma("mma.m16n8k8.tf32", 8, MMA8_A, MMA8_B, TFLOAT32, FLOAT32),
    *(_mma(f"mma.m16n8k32.{t}", 32, MMA32_A, MMA32_B, t, INT32) for t in (INT8, UINT8)),
    *(_wgmma(n, t) for t in (FLOAT16, BFLOAT16) for n in WGMMA_N),
)
