"""T.print and T.device_assert on GPUs: a call of `vprintf`, CUDA's, with C's format of the values.

NVIDIA's driver provides the function. On AMD it stands in the records for the simulator alone:
machine code is made without (`without_prints`)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tilec.codegen.emitter import directive, print_format, text_constant
from tilec.codegen.gpu import Emitter
from tilec.ir import ops
from tilec.ir.core import Func
from tilec.ir.llvm import Val, int_val
from tilec.ir.types import FLOAT64, INT32, INT64
from tilec.target import Target

_CALL = re.compile(r"^.*@vprintf\(.*\n", re.MULTILINE)


def without_prints(llvm_text: str) -> str:
    """A module without its calls of `vprintf`, whose results nothing uses, and its declaration."""
    return _CALL.sub("", llvm_text)


class PrintingEmitter(Emitter):
    """An emitter that knows T.print. `strings` are the module's constant texts."""

    def __init__(self, func: Func, target: Target) -> None:
        super().__init__(func, target)
        self.strings: list[str] = []

    def header(self) -> list[str]:
        return [*super().header(), *self.strings]

    def emit_print(self, o: ops.Print) -> None:
        """A print that is made `once` is made by the first thread."""
        text = print_format(o, [directive(v.dtype) for v in o.values])
        values = []
        for v in o.values:
            wide = FLOAT64 if v.dtype.is_float else INT64
            values.append(self.scalars.cast(self.get(v), v.dtype, wide))
        if not o.once:
            self._vprintf(text, values)
            return
        mine = self.f.icmp("eq", self.f.binary("or", self.warp, self.lane), 0)
        self.only_if(mine, lambda: self._vprintf(text, values), "print")

    def emit_device_assert(self, o: ops.DeviceAssert) -> None:
        """A record that only the simulator reads, or a message and a trap."""
        f, cond = self.f, self.get(o.cond)
        if not o.block:
            if cond.literal != 1:
                f.act("device_assert", (cond,), f"; {o.text}".replace("\n", " "))
            return
        text = o.text.replace("%", "%%") + ", block (%lld, %lld, %lld), thread %lld\n"
        values = [self.scalars.cast(self.get(v), v.dtype, INT64) for v in o.block]
        values.append(self.scalars.cast(self.thread, INT32, INT64))
        f.declarations["llvm.trap"] = "declare void @llvm.trap()"

        def fail() -> None:
            self._vprintf(text, values)
            f.act("call", (), "call void @llvm.trap()")

        self.only_if(f.binary("xor", cond, 1), fail, "failed")

    def emit_assume(self, o: ops.Assume) -> None:
        """A record that only the simulator reads; LLVM is told nothing. A number that is said to be
        more than another needs no test where something is divided by it."""
        lhs, rhs, f = self.get(o.lhs), self.get(o.rhs), self.f
        kind = o.kind
        if kind == "multiple":
            lhs, rhs = self.scalars.binary("mod", lhs, rhs, o.lhs.dtype), int_val(0, lhs.type)
            kind = "eq"
        cond = self.scalars.compare(kind, lhs, rhs, o.lhs.dtype)
        if cond.literal != 1:
            f.act("device_assert", (cond,), f"; assertion failed: T.assume({o.text})")
        least = self.scalars.ranges.get(rhs)[0] + (kind == "gt")
        if kind in ("gt", "ge") and lhs.literal is None:
            low, high = self.scalars.ranges.get(lhs)
            self.scalars.ranges.set(lhs, max(low, least), high)

    def _vprintf(self, text: str, values: Sequence[Val]) -> None:
        """Print one line; each value takes 8 bytes of the argument block."""
        f, name = self.f, f"@text{len(self.strings)}"
        self.strings.append(text_constant(name, text, "addrspace(4) "))
        block = f.alloca(f"[{max(1, len(values))} x i64]", 8)
        for i, x in enumerate(values):
            f.store(x, f.gep("i64", block, int_val(i, "i64")), 8)
        pointer = f.cast("addrspacecast", Val("ptr addrspace(4)", name), "ptr")
        f.call("i32", "vprintf", [pointer, block])
