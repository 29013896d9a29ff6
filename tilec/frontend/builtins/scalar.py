"""Builtins about single numbers: indices of blocks and threads, maths, casts, choices, printing,
the bits of ints, spelled in the arithmetic that every target has (LLVM makes the machine's own
instructions of it where it sees them)."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable

from tilec import language as T
from tilec.builtins.lanes import find_vector
from tilec.frontend import narrow
from tilec.frontend.builtins.formulas import fast_math
from tilec.frontend.builtins.lanes import reinterpreted
from tilec.frontend.builtins.table import Call, builtin, dtype_at, traced
from tilec.frontend.expressions import Expressions
from tilec.frontend.index import Reach
from tilec.frontend.values import Buffer, Lanes, Number, Region, Scalar, describe, is_number
from tilec.ir.errors import CompileError
from tilec.ir.ops import Bitcast, BlockIndex, Fma, GridSize, Print, ThreadIndex
from tilec.ir.types import UINT32, DType, find_dtype

# --- blocks and threads ---------------------------------------------------------------------------


def block_index(t: Expressions, dim: int, extent: int | None = None, name: str = "") -> Scalar:
    """Index of this block along `dim`, in the kernel's index dtype; `extent` if it is known."""
    hi = None if extent is None else extent - 1
    known = hi is not None and hi >= 0
    reach = Reach(0, hi, attained=hi is not None, dense=known, name=name)
    return t.to_index(t.emit_scalar(BlockIndex, dim, reach=reach))


builtin(T.program_id)(lambda t, c: block_index(t, c.axis("axis")))
builtin(T.get_block_binding)(lambda t, c: block_index(t, c.axis("dim")))


@builtin(T.num_programs)
def num_programs(t: Expressions, c: Call) -> Scalar:
    return t.to_index(t.emit_scalar(GridSize, c.axis("axis"), reach=Reach(1)))


builtin(T.get_thread_binding)(lambda t, c: thread_along(t, c, c.axis("dim")))


@builtin(T.thread_binding)
def thread_binding(t: Expressions, c: Call) -> Number:
    stop, thread = c["stop"], c["thread"]
    if isinstance(stop, str):  # T.thread_binding(extent, "threadIdx.x")
        stop, thread = None, stop
    if thread not in ("threadIdx.x", "threadIdx.y", "threadIdx.z"):
        raise t.error(f"{describe(thread)} is not a thread axis", 'write "threadIdx.x"')
    start = 0 if stop is None else c.number("start")
    dim = "xyz".index(thread[-1])
    index = t.binary("add", start, thread_along(t, c, dim))
    if isinstance(index, Scalar):
        t.thread_dims[index.value] = dim
    return index


def thread_along(t: Expressions, c: Call, dim: int) -> Number:
    """This thread's index along a dimension of its block; those of dimension 0 are neighbours."""
    shape = t.block_shape or (0,)
    if dim >= len(shape):
        return 0
    index: Number = index_of_thread(t, c, "indices")
    for extent in shape[:dim]:
        index = t.binary("floordiv", index, extent)
    if dim < len(shape) - 1:
        index = t.binary("mod", index, shape[dim])
    if isinstance(index, Scalar):
        t.thread_dims[index.value] = dim
    return index


def index_of_thread(t: Expressions, c: Call, of: str = "threads") -> Scalar:
    """The linear index of this thread in its block."""
    c.of(of)
    return t.to_index(t.emit_scalar(ThreadIndex, reach=Reach(0)))


# --- maths ----------------------------------------------------------------------------------------


def elementwise(t: Expressions, function: T.Elementwise, args: list[Number]) -> Number:
    """A maths builtin, computed now if its arguments are known."""
    if len(args) == 1:
        (x,) = args
        if isinstance(x, Scalar):
            fast = fast_math(t, function.kind, x)
            return t.unary(function.kind, x) if fast is None else fast
        try:
            result: Number = function.python(x)
        except (ValueError, OverflowError, TypeError, AttributeError) as e:
            hint = f"give T.{function.name} a number that it is defined for"
            raise t.error(f"T.{function.name}({x!r}): {e}", hint) from None
        return result
    x, y = args
    return t.binary(function.kind, x, y)


@builtin(T.fma)
def fma(t: Expressions, c: Call) -> Scalar:
    a, b, d = (c.number(name) for name in "abc")
    x, y = t.unify(a, b, "*")
    x, z = t.unify(x, d, "+")
    if not x.dtype.is_float:
        raise t.error(f"T.fma of {describe(x)}: it is defined for floats", "write a * b + c")
    y = t.convert(y, x.dtype)
    return t.emit_scalar(Fma, x.value, y.value, z.value)


@builtin(T.if_then_else, raw=True)
def if_then_else(t: Expressions, c: Call) -> object:
    nodes = c.nodes
    cond = t.condition(nodes["cond"])
    if not isinstance(cond, Scalar):
        return t.expression(nodes["on_true" if cond else "on_false"])

    def value(name: str) -> Callable[[], Number]:
        return lambda: t.number_of(nodes[name], name)

    return t.choose(cond, value("on_true"), value("on_false"))


# --- casts ----------------------------------------------------------------------------------------


def cast_to(t: Expressions, value: object, dtype: DType) -> Scalar:
    """`value` as `dtype`, a run-time number even if it is known."""
    number = t.number(value, "the value to cast")
    if isinstance(number, float) and dtype.is_int and number == number and abs(number) < 2.0**63:
        number = int(number)  # truncated, as a cast at run time would
    return t.convert(number, dtype)


builtin(T.Cast)(lambda t, c: cast_to(t, c["value"], c.dtype("dtype")))


@builtin(T.isfinite)
def isfinite(t: Expressions, c: Call) -> Number:
    x = c.number("x")
    if not isinstance(x, Scalar):
        return math.isfinite(x)
    if not x.dtype.is_float:
        hint = "write T.isfinite(T.float32(x))"
        raise t.error(f"isfinite of {describe(x)}: it is defined for floats", hint)
    return t.compare("lt", t.unary("abs", x), math.inf)


@builtin(T.reinterpret)
def reinterpret(t: Expressions, c: Call) -> Scalar | Lanes | None:
    given = [c["value"], c["dtype"]]
    if isinstance(given[0], str | DType) and find_dtype(given[0]) is not None:
        given.reverse()
    vector = find_vector(given[0])
    if vector is not None:
        given = [given[1], vector]
    to = find_vector(given[1])
    if to is not None or isinstance(given[0], Lanes | tuple):
        return reinterpreted(t, given[0], to or dtype_at(t, given[1], c.place("dtype")))
    value = t.run_time(t.number(given[0], "the value"))
    if given[1] == "handle":  # a pointer that says nothing, beside T.attr
        return value
    dtype = dtype_at(t, given[1], c.place("dtype"))
    found = narrow.reinterpreted(t, value, dtype)
    if found is not None:
        return found
    if value.dtype.bits != dtype.bits:
        raise t.error(
            f"the bits of {describe(value)} as {dtype.name}: {value.dtype.bits} and {dtype.bits}",
            "cast it to a dtype of as many bits first",
        )
    return t.emit_scalar(Bitcast, value.value, dtype)


# --- builtins that compute at compile time --------------------------------------------------------


@builtin(T.infinity, T.max_value, T.min_value, T.dynamic, T.const)
def run(t: Expressions, c: Call) -> object:
    function = getattr(T, c.builtin)
    try:
        return function(**c.values)
    except (CompileError, AttributeError, TypeError) as e:
        message = e.message if isinstance(e, CompileError) else f"T.{c.builtin}: {e}"
        raise t.error(message, getattr(e, "hint", "")) from None


# --- printing -------------------------------------------------------------------------------------


@builtin(T.print, raw=True)
def print_(t: Expressions, c: Call) -> None:
    node = c.nodes["obj"]
    msg = c.message('write T.print(x, msg="x is"), or T.print(f"{x} {y}") for several')
    prefix = f"{_escaped(msg)}: " if msg else ""
    if isinstance(node, ast.JoinedStr):
        text, values = _format(t, node)
        t.emit(Print, prefix + text, values)
        return
    obj = t.expression(node)
    if isinstance(obj, str):
        t.emit(Print, prefix + _escaped(obj))
    elif isinstance(obj, Buffer) and not obj.variable:
        if t.parallel is not None:
            hint = "print an element"
            raise t.error("T.print of a whole buffer cannot stand in T.Parallel", hint)
        t.emit(Print, prefix + obj.name, (), obj.value)
    else:
        number = t.run_time(t.number(obj, "obj of T.print", node))
        t.emit(Print, prefix + "{}", (number.value,))


def _format(t: Expressions, node: ast.JoinedStr) -> tuple[str, tuple[object, ...]]:
    """An f-string as a format with `{}` for run-time values, and those values."""
    text, values = "", []
    for part in node.values:
        if isinstance(part, ast.Constant):
            text += _escaped(str(part.value))
            continue
        assert isinstance(part, ast.FormattedValue)
        if part.format_spec is not None or part.conversion != -1:
            raise t.error("format specs are not supported in T.print", "write {x} alone", at=part)
        value = t.expression(part.value)
        if isinstance(value, Region | Buffer) or (is_number(value) and isinstance(value, Scalar)):
            values.append(t.run_time(t.number(value, "a printed value", part.value)).value)
            text += "{}"
        elif is_number(value) or isinstance(value, str):
            text += _escaped(str(value))
        else:
            text += _escaped(value.name if isinstance(value, DType) else repr(value))
    return text, tuple(values)


def _escaped(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


# --- the bits of ints -----------------------------------------------------------------------------

_HALF = 0xFFFF_FFFF


builtin(T.ffs)(lambda t, c: traced(t, find_first_set, t.run_time(_int(t, c, "x"))))


@builtin(T.mulhi)
def mulhi(t: Expressions, c: Call) -> Scalar:
    x, y = (_int(t, c, name, 32, 64) for name in ("x", "y"))
    return traced(t, upper_product, *t.unify(x, y, "*"))


@builtin(T.byte_perm)
def byte_perm(t: Expressions, c: Call) -> Scalar:
    words = (t.convert(_int(t, c, name, 32), UINT32) for name in ("x", "y", "s"))
    return traced(t, permuted_bytes, *words)


def _int(t: Expressions, c: Call, name: str, *widths: int) -> Number:
    """An argument that is an int, of one of so many bits where it is not known now."""
    hint = "convert it: T.int32(x), or T.reinterpret(x, dtype) for its bits"
    number = c.whole(name, hint)
    if widths and isinstance(number, Scalar) and number.dtype.bits not in widths:
        many = " or ".join(map(str, widths))
        said = f"is {describe(number)}, not an int of {many} bits"
        raise c.wrong(name, said, f"convert it: T.int{widths[0]}(x)")
    return number


# In the language of kernels:


def find_first_set(x):  # type: ignore[no-untyped-def]
    """See `T.ffs`."""
    return T.if_then_else(x == 0, 0, T.int32(T.ctz(x)) + 1)


def upper_product(x, y):  # type: ignore[no-untyped-def]
    """The upper half of a product, of the dtype of both factors; of 64 bits by halves, of which a
    negative factor counts 2**64 too much as an unsigned one."""
    dtype, signed = x.dtype, x.dtype.name[0] == "i"
    if dtype.bits == 32:
        wide = "int64" if signed else "uint64"
        return T.cast((T.cast(x, wide) * T.cast(y, wide)) >> 32, dtype)
    a, b = T.uint64(x), T.uint64(y)
    low = [(a & _HALF, b & _HALF), (a >> 32, b & _HALF)]
    lower, left, right, upper = [m * n for m, n in [*low, (a & _HALF, b >> 32), (a >> 32, b >> 32)]]
    one, other, both = lower >> 32, left & _HALF, right & _HALF
    middle = one + other + both
    one, other, both = left >> 32, right >> 32, middle >> 32
    found = upper + one + other + both
    if signed:
        for sign, factor in ((x, b), (y, a)):
            found = found - (T.uint64(sign >> 63) & factor)  # all ones, or none
    return T.cast(found, dtype)


def permuted_bytes(x, y, s):  # type: ignore[no-untyped-def]
    """See `T.byte_perm`."""
    both = T.uint64(T.uint32(x)) | (T.uint64(T.uint32(y)) << 32)
    chosen, found = T.uint32(s), T.uint32(0)
    for n in (0, 8, 16, 24):
        which = (chosen >> n // 2) & 7
        found = found | (T.uint32((both >> T.uint64(which * 8)) & 0xFF) << n)
    return found
