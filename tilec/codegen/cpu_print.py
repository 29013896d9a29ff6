"""`print` on the CPU: one call of the C library's `printf` for a line, so that lines of different
threads do not mix.
"""

from __future__ import annotations

from tilec.codegen.cpu_loops import LoopEmitter
from tilec.codegen.emitter import directive, print_format
from tilec.ir.core import Value
from tilec.ir.llvm import Val
from tilec.ir.ops import Print
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

    def _promoted(self, v: Value) -> Val:
        """As C passes it to a function with variable arguments."""
        x = self.get(v)
        if v.dtype == BOOL:
            return self.f.select(x, self.text("True"), self.text("False"))
        return self.scalars.cast(x, v.dtype, FLOAT64 if v.dtype.is_float else INT64)
