"""`print` on the CPU: one call of the C library's `printf` for a line, so that lines of different
threads do not mix.
"""

from __future__ import annotations

from tilec.codegen.cpu_emitter import Emitter
from tilec.ir.core import Value
from tilec.ir.llvm import Val
from tilec.ir.ops import Print
from tilec.ir.types import BOOL, FLOAT64, DType


def emit_print(e: Emitter, o: Print) -> None:
    if o.buffer is not None:
        _print_buffer(e, o.pieces()[0], o.buffer)
        return
    text, *rest = map(_escape, o.pieces())
    for v, piece in zip(o.values, rest):
        text += _directive(v.dtype) + piece
    _printf(e, text + "\n", [_argument(e, v) for v in o.values])


def _escape(text: str) -> str:
    return text.replace("%", "%%")


def _directive(dtype: DType) -> str:
    if dtype.is_float:
        return "%.17g" if dtype == FLOAT64 else "%.9g"
    if dtype == BOOL:
        return "%s"
    return "%llu" if dtype.kind == "uint" else "%lld"


def _argument(e: Emitter, v: Value) -> Val:
    return _promoted(e, e.scalar(v), v.dtype)


def _promoted(e: Emitter, x: Val, dtype: DType) -> Val:
    """As C passes it to a function with variable arguments."""
    if dtype.is_float:
        return e.scalars.cast(x, dtype, FLOAT64)
    if dtype == BOOL:
        return e.fn.select(x, e.text("True"), e.text("False"))
    return e.fn.cast("zext" if dtype.kind == "uint" else "sext", x, "i64")


def _printf(e: Emitter, line: str, args: list[Val]) -> None:
    e.fn.declarations["printf"] = "declare i32 @printf(ptr, ...)"
    e.fn.declarations["fflush"] = "declare i32 @fflush(ptr)"
    given = [e.text(line), *args]
    e.fn.act("call", tuple(given), f"call i32 (ptr, ...) @printf({', '.join(map(str, given))})")
    e.fn.act("call", (), "call i32 @fflush(ptr null)")


def _print_buffer(e: Emitter, title: str, buffer: Value) -> None:
    """The elements row by row, each with its indices behind the title."""
    t = buffer.buffer
    holes = ", ".join("%lld" for _ in t.shape)
    line = f"{_escape(title)}[{holes}] = {_directive(t.dtype)}\n"
    memory = e.memories[buffer]
    sizes = [e.extent(n) for n in t.shape]

    def level(d: int, indices: list[Val]) -> None:
        if d == len(sizes):
            place = e.access.place(memory, indices, 1, (True,) * len(indices))
            x = e.access.load(memory, place, 1, None)
            _printf(e, line, [*indices, _promoted(e, x, t.dtype)])
            return
        e.repeat(sizes[d], lambda i: level(d + 1, [*indices, i]))

    level(0, [])
