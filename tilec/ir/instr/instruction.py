"""What an instruction is as data, read by selection, emission, simulation and tests alike.

It names the instruction, the feature a target needs for it, where its operands'
elements live (layouts), how it is spelled for LLVM (`Asm` or `Intrinsic`) and what it does
(`semantics`: in NumPy, and through the primitives of `tilec.ir.instr.machine`)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilec.ir import types
from tilec.ir.errors import InternalError
from tilec.ir.instr.semantics import Semantics
from tilec.ir.layout import Layout

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Asm:
    """Inline assembly as LLVM takes it.

    `inputs` and `outputs` are the LLVM types of the arguments and of the results, in order; an
    accumulator that is updated in place is in both. `effects`: must not be removed, repeated or
    moved over another. `convergent`: must not come to depend on further conditions, as what a warp
    does together. `semantics` takes the machine and the arguments.
    """

    template: str
    constraints: str
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    effects: bool = True
    convergent: bool = True
    semantics: Semantics = field(kw_only=True, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Intrinsic:
    """An LLVM intrinsic: its name, the types of its arguments and result, the constant arguments
    after them, and `flags`, places among all of them with a bit for each. `semantics` takes the
    machine and the arguments, constants and flags included."""

    name: str
    inputs: tuple[str, ...]
    output: str
    constants: tuple[int, ...] = ()
    flags: tuple[tuple[int, int], ...] = ()
    semantics: Semantics = field(kw_only=True, compare=False, repr=False)


PTX_TYPES = {
    types.FLOAT16: "f16", types.BFLOAT16: "bf16", types.FLOAT32: "f32", types.FLOAT64: "f64",
    types.TFLOAT32: "tf32", types.FLOAT8_E4M3: "e4m3", types.FLOAT8_E5M2: "e5m2",
    types.INT8: "s8", types.UINT8: "u8", types.INT32: "s32",
}  # fmt: skip
"""PTX's names of the dtypes that matrix instructions take."""

LLVM_TYPES = {"h": "i16", "f": "float", "d": "double", "r": "i32", "l": "i64", "p": "ptr"}
"""Register classes of PTX asm constraints, and `p`: a generic pointer, which goes to a 64-bit
register."""


class Operands:
    """Counts the operands of one piece of inline assembly, so that template and constraints agree.

    Outputs first, then inputs, then the inputs tied to outputs: LLVM numbers them in this order.
    """

    def __init__(self) -> None:
        self._outputs: list[str] = []
        self._inputs: list[str] = []
        self._ties: list[int] = []
        self._types: list[str] = []
        self._early = False

    def outputs(self, kind: str, count: int, early: bool = False) -> list[str]:
        """`count` results of register class `kind`; `early`: written before the inputs are read."""
        if self._inputs or self._ties:
            raise InternalError("asm: an output after an input")
        start = len(self._outputs)
        self._early = self._early or early
        self._outputs += [kind] * count
        return [f"${start + i}" for i in range(count)]

    def inputs(self, kind: str, count: int = 1) -> list[str]:
        """`count` arguments of register class `kind`."""
        if self._ties:
            raise InternalError("asm: an input after a tied one")
        start = len(self._outputs) + len(self._inputs)
        self._inputs += [kind] * count
        return [f"${start + i}" for i in range(count)]

    def input(self, kind: str) -> str:
        return self.inputs(kind)[0]

    def tie_all(self) -> None:
        """Every output begins with the value of an argument."""
        self._ties = list(range(len(self._outputs)))

    def asm(
        self,
        template: str,
        semantics: Semantics,
        *,
        memory: bool = True,
        effects: bool = True,
        convergent: bool = True,
    ) -> Asm:
        """The finished piece, which does what `semantics` does. `memory`: it reads or writes
        memory, or orders those who do; `effects`, `convergent`: see `Asm`."""
        mark = "=&" if self._early else "="
        words = [mark + k for k in self._outputs]
        words += ["l" if k == "p" else k for k in self._inputs]
        words += [str(i) for i in self._ties]
        named = {int(n) for n in re.findall(r"\$(\d+)", template)}
        wanted = range(len(self._outputs), len(self._outputs) + len(self._inputs))
        if not named.issuperset(wanted) or not named.issubset(range(len(words))):
            raise InternalError(
                f"asm operands {sorted(named)} against {','.join(words)}: {template[:80]}"
            )
        if not self._early and self._reads_after_writes(template):
            raise InternalError(f"asm that reads behind what it has written: {template[:80]}")
        if memory:
            words.append("~{memory}")
        kinds = [*self._inputs, *(self._outputs[i] for i in self._ties)]
        return Asm(
            template,
            ",".join(words),
            tuple(LLVM_TYPES[k] for k in kinds),
            tuple(LLVM_TYPES[k] for k in self._outputs),
            effects,
            convergent,
            semantics=semantics,
        )

    def _reads_after_writes(self, template: str) -> bool:
        """Whether an instruction reads an input behind one that names an output of the same width:
        LLVM puts inputs into the registers of outputs, where their values are the same."""
        width = {"l": 64, "d": 64, "p": 64, "h": 16}
        outputs = {width.get(k, 32) for k in self._outputs}
        written = False
        for instruction in template.split(";"):
            named = [int(n) for n in re.findall(r"\$(\d+)", instruction)]
            inputs = [n - len(self._outputs) for n in named if n >= len(self._outputs)]
            if written and any(width.get(self._inputs[n], 32) in outputs for n in inputs):
                return True
            written = written or any(n < len(self._outputs) for n in named)
        return False


def register_kind(dtype: types.DType) -> str:
    """The class of the registers that hold elements of `dtype` for a matrix instruction."""
    return {types.FLOAT32: "f", types.FLOAT64: "d"}.get(dtype, "r")


def register_list(registers: list[str]) -> str:
    """Registers as one vector operand of PTX."""
    return "{" + ", ".join(registers) + "}"


def instruction_name(stem: str, a: types.DType, b: types.DType, c: types.DType) -> str:
    """`stem.a` where both inputs are of one dtype, else `stem.axb`; the accumulator is named unless
    it is the widest of its kind (i32, f64 for f64, else f32)."""
    usual = types.INT32 if a.is_int else types.FLOAT64 if a == types.FLOAT64 else types.FLOAT32
    inputs = a.short if a == b else f"{a.short}x{b.short}"
    return f"{stem}.{inputs}" + ("" if c == usual else f".{c.short}")


@dataclass(frozen=True)
class MatrixInstruction:
    """A matrix instruction: c (m, n) += a (m, k) @ b (k, n).

    `a`, `b`, `c`: layouts of the operands in registers, over `warps` warps that execute it
    together; of an operand that only comes from shared memory, the layout it would have. `packs`:
    elements of a, b and c that share one register operand. `a_places`, `b_places`: "fragment"
    and/or "shared". `majors`: which dimension of a shared operand may be contiguous, "k" or "mn".
    `feature`: what a target must have. `coarse_sum`: the running sum keeps fewer bits than c's
    dtype has. Who runs it follows from its family, the first part of its name.

    Where A is compressed (`tilec.sparse`) it takes half of `k` elements of its rows, and their
    metadata, units of `unit` bits side by side in a 32-bit register: `metadata` says which lane has
    which ones of the instruction's rows, along K those of the `selectors` instructions that one
    register serves. An instruction's selector says which of them is its own.
    """

    name: str
    m: int
    n: int
    k: int
    a_dtype: types.DType
    b_dtype: types.DType
    c_dtype: types.DType
    a: Layout
    b: Layout
    c: Layout
    packs: tuple[int, int, int]
    feature: str
    warps: int = 1
    a_places: tuple[str, ...] = ("fragment",)
    b_places: tuple[str, ...] = ("fragment",)
    majors: tuple[str, ...] = ()
    coarse_sum: bool = False
    metadata: Layout | None = None
    unit: int = 0
    selectors: int = 1

    def __post_init__(self) -> None:
        want = ((self.m, self.a_k), (self.k, self.n), (self.m, self.n))
        if (self.a.shape, self.b.shape, self.c.shape) != want:
            raise InternalError(f"{self.name}: operand layouts are not {want}")

    @property
    def a_k(self) -> int:
        """How many elements of a row of A it takes: `k`, or what is kept of so many."""
        return self.k if self.metadata is None else self.k // 2

    @property
    def registers(self) -> tuple[int, int, int]:
        """Register operands (packs) of a, b and c per thread."""
        a, b, c = (
            layout.size("reg") // pack for layout, pack in zip((self.a, self.b, self.c), self.packs)
        )
        return a, b, c

    def semantics(self, a: Array, b: Array, c: Array) -> Array:
        """c + a @ b as the instruction computes it, up to the order and the precision of its sum;
        arrays (m, k), (k, n), (m, n). TF32 ignores the low 13 bits of its inputs."""
        if self.a_dtype == types.TFLOAT32:
            a, b = (_tf32(x) for x in (a, b))
        if self.c_dtype.is_int:  # sums of int8 products are exact in float64, and BLAS has those
            exact = _product(a.astype(np.float64), b.astype(np.float64)).astype(np.int64)
            return (exact + c.astype(np.int64)).astype(c.dtype)
        wide = np.float64 if self.c_dtype == types.FLOAT64 else np.float32
        product: Array = _product(a.astype(wide), b.astype(wide)) + c.astype(wide)
        return product.astype(c.dtype)


_ALONE = 1 << 18  # multiply-adds up to which OpenBLAS takes one thread


def _product(a: Array, b: Array) -> Array:
    """a @ b, some instructions at a time, so that BLAS takes one thread: on a machine with other
    work the waiting of several for one another takes a hundred times as long as a small product."""
    if b.ndim > 2:  # as many products as instructions, each of them small
        return a @ b
    instrs = max(1, _ALONE // max(1, b.size))
    flat = a.reshape(-1, a.shape[-1])
    out = np.empty((len(flat), b.shape[1]), a.dtype)
    for first in range(0, len(flat), instrs):
        np.matmul(flat[first : first + instrs], b, out=out[first : first + instrs])
    return out.reshape(*a.shape[:-1], -1)


def _tf32(x: Array) -> Array:
    bits: Array = x.astype("float32").view("uint32") & 0xFFFFE000
    return bits.view("float32")


@dataclass(frozen=True)
class Instruction:
    """Any other instruction: `unit_bits` is the size of the elements it moves (0: it moves
    none)."""

    name: str
    feature: str
    asm: Asm
    unit_bits: int = 0


def row(
    name: str, feature: str, text: str, semantics: Semantics, inputs: str = "", outputs: str = "",
    *, bits: int = 0, **kept: bool,
) -> Instruction:  # fmt: skip
    """PTX in which `$0`, `$1`, … are its operands, results first: `outputs` and `inputs` are their
    register classes, a letter each. It does what `semantics` does; `bits`: see `Instruction`;
    `kept`: as of `Operands.asm`."""
    x = Operands()
    for kind in outputs:
        x.outputs(kind, 1)
    for kind in inputs:
        x.input(kind)
    return Instruction(name, feature, x.asm(text, semantics, **kept), bits)


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


def _simt(t: types.DType) -> SimtInstruction:
    return SimtInstruction(
        f"simt.fma.{t.short}", 1, 1, 1, t, t, t, _ONE, _ONE, _ONE, (1, 1, 1), feature=""
    )


_DTYPES = "float16 bfloat16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64"
SIMT_INSTRUCTIONS: tuple[MatrixInstruction, ...] = tuple(
    _simt(types.DTYPES[name]) for name in _DTYPES.split()
)
