"""`print` on the CPU: one call of the C library's `printf` for a line, so that lines of different
threads do not mix. What fails of T.device_assert is a number in the module, for the launch to read.
"""

from __future__ import annotations

from tilec.codegen.cpu_loops import LoopEmitter
from tilec.codegen.emitter import directive, print_format
from tilec.ir.core import Value
from tilec.ir.llvm import Val, int_val
from tilec.ir.ops import DeviceAssert, Print
from tilec.ir.types import BOOL, FLOAT64, INT64


class PrintingEmitter(LoopEmitter):
    """The emitter with T.print."""

    def emit_print(self, o: Print) -> None:
        words = ["%s" if v.dtype == BOOL else directive(v.dtype) for v in o.values]
        given = [self.text(print_format(o, words)), *map(self._promoted, o.values)]
        self.f.declarations["printf"] = "declare i32 @printf(ptr, ...)"
        self.f.declarations["fflush"] = "declare i32 @fflush(ptr)"
        line = f"call i32 (ptr, ...) @printf({', '.join(map(str, given))})"
        self.f.act("call", tuple(given), line)
        self.f.act("call", (), "call i32 @fflush(ptr null)")

    def emit_device_assert(self, o: DeviceAssert) -> None:
        """One that fails is as good as another: threads and blocks may overwrite each other's."""
        f = self.f
        failed, passed = f.label("failed"), f.label("passed")
        f.cbr(self.get(o.cond), passed, failed, passed)
        f.start(failed)
        at = Val("ptr", f"@{f.name}.failed")
        text = f"store atomic i32 {o.number}, {at} monotonic, align 4"
        f.act("store", (int_val(o.number), at), text)
        f.br(passed)
        f.start(passed)
        self.asserts = True

    def _promoted(self, v: Value) -> Val:
        """As C passes it to a function with variable arguments."""
        x = self.get(v)
        if v.dtype == BOOL:
            return self.f.select(x, self.text("True"), self.text("False"))
        return self.scalars.cast(x, v.dtype, FLOAT64 if v.dtype.is_float else INT64)
