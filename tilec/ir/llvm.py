"""LLVM records: what code generators write and what the text given to LLVM is printed from
(`tilec.ir.llvm_printer`).

A record (`Inst`) keeps its opcode, operands, types, hardware instruction and what the instruction
does, source location, the user's buffer that it touches and, for a branch, the label where its
sides meet again, so that another reader than LLVM can execute exactly the code that is shipped.
`Function` appends records and folds integer constants as it goes, because most index arithmetic of
an unrolled tile is known when it is printed. LLVM language reference:
https://llvm.org/docs/LangRef.html"""

from __future__ import annotations

import functools
import operator
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilec.ir.instr.instruction import Asm
from tilec.ir.instr.semantics import Semantics
from tilec.ir.loc import UNKNOWN, Loc
from tilec.ir.semantics import COMPARISONS

_MASK = {"i1": 1, "i8": 0xFF, "i16": 0xFFFF, "i32": 0xFFFF_FFFF, "i64": 0xFFFF_FFFF_FFFF_FFFF}


class Val:
    """An operand: LLVM type, spelling, and its number where it is an integer literal. `unset`: the
    variable of which this literal is no value (see `ops.Const`)."""

    __slots__ = ("literal", "ref", "type", "unset")

    def __init__(self, type: str, ref: str, literal: int | None = None, unset: str = "") -> None:
        self.type = type
        self.ref = ref
        self.literal = literal
        self.unset = unset

    def __str__(self) -> str:
        return f"{self.type} {self.ref}"

    def __repr__(self) -> str:
        return f"Val({self})"


def int_val(value: int, type: str = "i32") -> Val:
    """An integer literal, wrapped to the type's width (shown signed, as LLVM prints it)."""
    if type == "i1":
        return Val("i1", "true" if value & 1 else "false", value & 1)
    mask = _MASK[type]
    value &= mask
    if value > mask >> 1:
        value -= mask + 1
    return Val(type, str(value), value)


def float_val(value: float, type: str = "float") -> Val:
    """A floating-point literal, exact in `type` ("half", "bfloat", "float" or "double")."""
    if type == "half":
        return Val(type, f"0xH{struct.unpack('<H', struct.pack('<e', value))[0]:04X}")
    if type == "bfloat":
        bits = struct.unpack("<I", struct.pack("<f", value))[0]
        if value == value:
            bits += 0x7FFF + (bits >> 16 & 1)
        return Val(type, f"0xR{bits >> 16 & 0xFFFF:04X}")
    if type == "float":
        try:
            value = struct.unpack("<f", struct.pack("<f", value))[0]
        except OverflowError:
            value = float("inf") if value > 0 else float("-inf")
    return Val(type, f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}")


_FLOATS = ("half", "bfloat", "float", "double")


@functools.cache
def lanes_of(type: str) -> int:
    """Number of elements of a vector type; 1 for a scalar type."""
    return int(type[1:].split(" ", 1)[0]) if type.startswith("<") else 1


@functools.cache
def elem_of(type: str) -> str:
    """Element type of a vector type; a scalar type itself."""
    return type[1:-1].split(" x ", 1)[1] if type.startswith("<") else type


def shaped(elem: str, lanes: int) -> str:
    """The type of `lanes` elements: a scalar for 1, else a vector."""
    return elem if lanes == 1 else f"<{lanes} x {elem}>"


def constant(type: str, value: float | int) -> Val:
    """A number of `type`, the same in every lane."""
    elem = elem_of(type)
    one = float_val(float(value), elem) if elem in _FLOATS else int_val(int(value), elem)
    return splat_constant(one, lanes_of(type))


def splat_constant(one: Val, lanes: int) -> Val:
    """A literal in every lane."""
    return one if lanes == 1 else Val(shaped(one.type, lanes), f"splat ({one})")


Operand = Val | int | float
"""A value, or a number, which is one of the type of the operand beside it."""

UNDEF = "poison"

FLAGS = frozenset(("nuw", "nsw", "exact", "disjoint", "nneg", "samesign"))
"""Words of an instruction that make its result poison where what they promise does not hold."""


@dataclass(slots=True)
class Inst:
    """One instruction. `text` is its LLVM spelling without result name and debug location;
    `semantics` what its instruction does (`tilec.ir.instr.machine`), None where that is LLVM's;
    `buffer` the name of the shared buffer or tensor that it touches."""

    opcode: str
    result: Val | None
    operands: tuple[Val, ...]
    text: str
    instr: str = ""
    loc: Loc = UNKNOWN
    merge: str = ""
    semantics: Semantics | None = None
    buffer: str = ""


@dataclass(slots=True)
class Phi:
    """A phi node; `incoming` grows until the function is printed."""

    result: Val
    incoming: list[tuple[Val, str]] = field(default_factory=list)


@dataclass(slots=True)
class BasicBlock:
    """A label, its phis and its instructions; the last one ends it."""

    label: str
    phis: list[Phi] = field(default_factory=list)
    insts: list[Inst] = field(default_factory=list)


UNROLLED = 16
"""Rounds of a loop that LLVM is told to unroll."""
_LOOPS = {"": "", "keep": ", !llvm.loop !0", "unroll": ", !llvm.loop !5"}


class Function:
    """A function under construction: records are appended to `self.block`."""

    def __init__(
        self, name: str, params: Sequence[tuple[str, str, str]], *, linkage: str, attrs: str
    ) -> None:
        """`params`: (type, attributes, name) each; `linkage`: the words before the return type."""
        self.name = name
        self.params = list(params)
        self.linkage = linkage
        self.attrs = attrs
        self._taken = {name for _, _, name in params}  # values and labels share their names
        self._labels: dict[str, int] = {}
        self.blocks: list[BasicBlock] = [BasicBlock(self.label("entry"))]
        self.block = self.blocks[0]
        self.allocas: list[Inst] = []
        self.declarations: dict[str, str] = {}
        self.loc: Loc = UNKNOWN
        self.buffer = ""  # what the records that are appended now touch
        self.stack_space = 0
        self.known: dict[str, Val] | None = None
        self._log: list[str] = []
        self._count = 0

    # --- names, blocks ---

    def fresh(self, type: str) -> Val:
        self._count += 1
        name = f"%v{self._count}"
        return self.fresh(type) if name in self._taken else Val(type, name)

    def label(self, stem: str) -> str:
        n = self._labels.get(stem, 0)
        self._labels[stem] = n + 1
        name = f"{stem}{n}" if n else stem
        return self.label(stem) if f"%{name}" in self._taken else name

    def start(self, label: str) -> None:
        """Begin the block `label`; later records go there."""
        self.block = BasicBlock(label)
        self.blocks.append(self.block)

    def phi(self, type: str) -> Phi:
        made = Phi(self.fresh(type))
        self.block.phis.append(made)
        return made

    # --- records ---

    def inst(
        self,
        opcode: str,
        type: str,
        operands: tuple[Val, ...],
        text: str,
        instr: str = "",
        semantics: Semantics | None = None,
    ) -> Val:
        """Append an instruction with a result and return the result."""
        result = self.fresh(type)
        made = Inst(opcode, result, operands, text, instr, self.loc, "", semantics, self.buffer)
        self.block.insts.append(made)
        return result

    def pure(self, opcode: str, type: str, operands: tuple[Val, ...], text: str) -> Val:
        """`inst` of an instruction without effects: where `known` is a dict, one that was appended
        before and still dominates this place (see `mark`) is used again."""
        return self.once(text, self.inst, opcode, type, operands, text)

    def once(self, name: str, make: Callable[..., Val], *args: Any) -> Val:
        """What `make(*args)` gives, or has given under this name in a place that still dominates
        this one."""
        if self.known is None:
            return make(*args)
        found = self.known.get(name)
        if found is None:
            found = self.known[name] = make(*args)
            self._log.append(name)
        return found

    def mark(self) -> int:
        """To be called where a region begins that does not dominate what follows it; see
        `forget`."""
        return len(self._log)

    def forget(self, mark: int, sort: str = "") -> None:
        """The region begun at `mark` ends: what was computed inside, or of that what has a name
        that begins so, may not be used again."""
        if self.known is not None:
            inside, self._log[mark:] = self._log[mark:], []
            for name in inside:
                if name.startswith(sort):
                    del self.known[name]
                else:
                    self._log.append(name)

    def act(
        self,
        opcode: str,
        operands: tuple[Val, ...],
        text: str,
        instr: str = "",
        merge: str = "",
        semantics: Semantics | None = None,
    ) -> None:
        """Append an instruction without a result."""
        made = Inst(opcode, None, operands, text, instr, self.loc, merge, semantics, self.buffer)
        self.block.insts.append(made)

    def binary(self, opcode: str, a: Val, b: Operand, flags: str = "") -> Val:
        """`opcode` is LLVM's: add sub mul and or xor shl lshr ashr udiv urem sdiv srem fadd fsub
        fmul fdiv …"""
        b = b if isinstance(b, Val) else constant(a.type, b)
        folded = _fold(opcode, a, b)
        if folded is not None:
            return folded
        words = f"{opcode} {flags} " if flags else f"{opcode} "
        return self.pure(opcode, a.type, (a, b), f"{words}{a.type} {a.ref}, {b.ref}")

    def add(self, a: Val, b: Operand) -> Val:
        return self.binary("add", a, b)

    def mul(self, a: Val, b: Operand) -> Val:
        return self.binary("mul", a, b)

    def icmp(self, pred: str, a: Val, b: Operand) -> Val:
        b = b if isinstance(b, Val) else constant(a.type, b)
        if a.literal is not None and b.literal is not None:
            return int_val(_compare(pred, a, b), "i1")
        return self._comparison("icmp", pred, a, b)

    def fcmp(self, pred: str, a: Val, b: Operand) -> Val:
        return self._comparison("fcmp", pred, a, b if isinstance(b, Val) else constant(a.type, b))

    def _comparison(self, opcode: str, pred: str, a: Val, b: Val) -> Val:
        type = shaped("i1", lanes_of(a.type))
        return self.pure(opcode, type, (a, b), f"{opcode} {pred} {a.type} {a.ref}, {b.ref}")

    def select(self, cond: Val, a: Operand, b: Operand) -> Val:
        if not isinstance(a, Val):
            assert isinstance(b, Val)
            a = constant(b.type, a)
        b = b if isinstance(b, Val) else constant(a.type, b)
        if cond.literal is not None:
            return a if cond.literal else b
        if a.ref == b.ref and a.type == b.type:
            return a
        return self.pure("select", a.type, (cond, a, b), f"select {cond}, {a}, {b}")

    def cast(self, opcode: str, a: Val, to: str) -> Val:
        """zext sext trunc bitcast fptrunc fpext sitofp uitofp fptosi fptoui ptrtoint inttoptr."""
        if a.type == to:
            return a
        if a.literal is not None and opcode in ("zext", "sext", "trunc"):
            value = a.literal & _MASK[a.type] if opcode == "zext" else a.literal
            value = -value if opcode == "sext" and a.type == "i1" else value
            return int_val(value, to)
        return self.pure(opcode, to, (a,), f"{opcode} {a} to {to}")

    def gep(self, elem: str, base: Val, index: Val) -> Val:
        if index.literal == 0:
            return base
        text = f"getelementptr {elem}, {base}, {index}"
        return self.pure("getelementptr", base.type, (base, index), text)

    def load(self, type: str, ptr: Val, align: int, words: str = "", tail: str = "") -> Val:
        text = f"load {words}{type}, {ptr}, align {align}{tail}"
        return self.inst("load", type, (ptr,), text)

    def store(self, value: Val, ptr: Val, align: int, words: str = "", tail: str = "") -> None:
        self.act("store", (value, ptr), f"store {words}{value}, {ptr}, align {align}{tail}")

    def alloca(self, type: str, align: int) -> Val:
        """A stack slot, made at the function's entry, in the stack's address space."""
        space = self.stack_space
        result = self.fresh(f"ptr addrspace({space})" if space else "ptr")
        tail = f", addrspace({space})" if space else ""
        text = f"alloca {type}, align {align}{tail}"
        self.allocas.append(Inst("alloca", result, (), text, "", self.loc))
        return result

    def call(
        self,
        type: str,
        name: str,
        args: Sequence[Val] = (),
        *,
        instr: str = "",
        tail: str = "",
        semantics: Semantics | None = None,
    ) -> Val | None:
        """Call the intrinsic or function `name`, declaring it; returns None for "void"."""
        if name not in self.declarations:
            self.declarations[name] = f"declare {type} @{name}({', '.join(a.type for a in args)})"
        text = f"call {type} @{name}({', '.join(map(str, args))}){tail}"
        if type == "void":
            self.act("call", tuple(args), text, instr or name, semantics=semantics)
            return None
        return self.inst("call", type, tuple(args), text, instr or name, semantics)

    def intrinsic(
        self,
        type: str,
        name: str,
        args: Sequence[Val] = (),
        instr: str = "",
        semantics: Semantics | None = None,
    ) -> Val:
        """`call` of a function that returns a value."""
        result = self.call(type, name, args, instr=instr, semantics=semantics)
        assert result is not None
        return result

    def asm(self, a: Asm, args: Sequence[Val] = (), instr: str = "") -> list[Val]:
        """Inline assembly; returns one value per entry of its `outputs`."""
        several = len(a.outputs) > 1
        words = "asm sideeffect" if a.effects else "asm"
        given = ", ".join(map(str, args))
        type = "{ " + ", ".join(a.outputs) + " }" if several else "".join(a.outputs) or "void"
        group = "#1" if a.convergent else "#2"
        text = f'call {type} {words} "{a.template}", "{a.constraints}"({given}) {group}'
        if not a.outputs:
            self.act("asm", tuple(args), text, instr, semantics=a.semantics)
            return []
        result = self.inst("asm", type, tuple(args), text, instr, a.semantics)
        if not several:
            return [result]
        return [self.extract_value(result, i, t) for i, t in enumerate(a.outputs)]

    def compare_exchange(self, at: Val, compare: Val, value: Val, how: str) -> Val:
        """What was at `at`, where `value` now is if that was `compare`."""
        text = f"cmpxchg {at}, {compare}, {value} {how}"
        pair = self.inst("cmpxchg", f"{{ {value.type}, i1 }}", (at, compare, value), text)
        return self.extract_value(pair, 0, value.type)

    def extract_value(self, struct: Val, index: int, type: str) -> Val:
        return self.inst("extractvalue", type, (struct,), f"extractvalue {struct}, {index}")

    def insert_element(self, vector: Val, value: Val, index: int) -> Val:
        text = f"insertelement {vector}, {value}, i32 {index}"
        return self.inst("insertelement", vector.type, (vector, value), text)

    def extract_element(self, vector: Val, index: int, type: str) -> Val:
        return self.inst("extractelement", type, (vector,), f"extractelement {vector}, i32 {index}")

    def pack(self, values: Sequence[Val]) -> Val:
        """The values as one LLVM vector."""
        vector = Val(f"<{len(values)} x {values[0].type}>", UNDEF)
        for i, v in enumerate(values):
            vector = self.insert_element(vector, v, i)
        return vector

    def unpack(self, vector: Val, lanes: int, type: str) -> list[Val]:
        return [self.extract_element(vector, i, type) for i in range(lanes)]

    # --- control flow ---

    def br(self, label: str, loop: str = "") -> None:
        """Jump; a back edge says whether LLVM is to "unroll" the loop or to "keep" it."""
        self.act("br", (), f"br label %{label}{_LOOPS[loop]}")

    def cbr(self, cond: Val, then: str, orelse: str, merge: str, loop: str = "") -> None:
        """Branch on `cond`; `merge` is the label where both sides meet again."""
        text = f"br {cond}, label %{then}, label %{orelse}{_LOOPS[loop]}"
        self.act("br", (cond,), text, "", merge)

    def loop_header(self, stem: str, inits: Sequence[Val]) -> list[Phi]:
        """Start a loop's first block with a phi for each carried value."""
        start, head = self.block.label, self.label(stem)
        self.br(head)
        self.start(head)
        phis = [self.phi(x.type) for x in inits]
        for p, x in zip(phis, inits):
            p.incoming.append((x, start))
        return phis

    def close_loop(
        self, phis: Sequence[Phi], values: Sequence[Val], head: str, form: str = ""
    ) -> None:
        """Jump back to a loop's first block with the next values."""
        for p, x in zip(phis, values):
            p.incoming.append((x, self.block.label))
        self.br(head, loop=form)

    def ret(self) -> None:
        self.act("ret", (), "ret void")


def _compare(pred: str, a: Val, b: Val) -> bool:
    x, y = a.literal or 0, b.literal or 0
    if pred.startswith("u"):
        x, y = x & _MASK[a.type], y & _MASK[b.type]
    return COMPARISONS[pred if pred in COMPARISONS else pred[1:]](x, y)


_OF_SIGNED: dict[str, Callable[[int, int], int]] = {
    "ashr": lambda x, y: x >> y if y >= 0 else -(x < 0),
    "sdiv": lambda x, y: abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1),
    "srem": lambda x, y: abs(x) % abs(y) * (1 if x >= 0 else -1),
}
_OF_UNSIGNED: dict[str, Callable[[int, int], int]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "and": operator.and_,
    "or": operator.or_, "xor": operator.xor, "lshr": operator.rshift, "udiv": operator.floordiv,
    "urem": operator.mod, "shl": lambda x, y: x << y if y < 64 else 0,
}  # fmt: skip


def _fold(opcode: str, a: Val, b: Val) -> Val | None:
    """Integer constant folding and the identities that keep unrolled addresses short."""
    x, y = a.literal, b.literal
    if x is None and y is None or a.type not in _MASK:
        return None
    if y == 0 and opcode in ("add", "sub", "or", "xor", "shl", "lshr", "ashr"):
        return a
    if x == 0 and opcode in ("add", "or", "xor"):
        return b
    if opcode in ("mul", "and") and (x == 0 or y == 0):
        return int_val(0, a.type)
    if y == 1 and opcode in ("mul", "udiv", "sdiv"):
        return a
    if x == 1 and opcode == "mul":
        return b
    if y == 1 and opcode in ("urem", "srem"):
        return int_val(0, a.type)
    if x is None or y is None:
        return None
    if opcode in _OF_SIGNED:
        return None if y == 0 else int_val(_OF_SIGNED[opcode](x, y), a.type)
    x, y = x & _MASK[a.type], y & _MASK[a.type]
    if opcode not in _OF_UNSIGNED or (opcode in ("udiv", "urem") and y == 0):
        return None
    return int_val(_OF_UNSIGNED[opcode](x, y), a.type)
