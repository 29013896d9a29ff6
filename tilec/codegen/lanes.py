"""Code written once for scalars and for vectors.

LLVM's arithmetic is the same for `float` and `<16 x float>`; only constants, casts and the names of
intrinsics differ. The helpers here hide that difference: each takes values of either shape and
gives the shape it got, so that a conversion or a polynomial is one text for a single element and
for a register full of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from math import prod

from tilec.ir.llvm import Function, Val, elem_of, int_val, lanes_of, shaped, splat_constant
from tilec.ir.types import BOOL, FLOAT32, FLOAT64, TFLOAT32, DType

_BITS = {"half": 16, "bfloat": 16, "float": 32, "double": 64}
_SUFFIX = {"half": "f16", "bfloat": "bf16", "float": "f32", "double": "f64"}


def like(type: str, elem: str) -> str:
    """`elem` in the shape of `type`."""
    return shaped(elem, lanes_of(type))


def literal_of(v: Val) -> int | None:
    """The integer that a literal is in every lane; None of anything else."""
    if v.literal is not None or not v.ref.startswith("splat (i"):
        return v.literal
    number = v.ref[:-1].rsplit(" ", 1)[1]
    return {"true": 1, "false": 0}[number] if number in ("true", "false") else int(number)


def parts_of(fn: Function, word: Val, elem: str, lanes: int) -> list[Val]:
    """The elements that the bits of a register are."""
    whole = fn.cast("bitcast", word, shaped(elem, lanes))
    return [whole] if lanes == 1 else fn.unpack(whole, lanes, elem)


def iota(lanes: int, elem: str = "i32", step: int = 1) -> Val:
    """The vector 0, step, 2 * step, …"""
    parts = ", ".join(str(int_val(i * step, elem)) for i in range(lanes))
    return Val(shaped(elem, lanes), f"<{parts}>")


def splat(fn: Function, v: Val, lanes: int) -> Val:
    """A scalar in every lane of a vector."""
    if lanes == 1:
        return v
    if not v.ref.startswith("%"):
        return splat_constant(v, lanes)
    type = shaped(v.type, lanes)
    first = fn.insert_element(Val(type, "poison"), v, 0)
    zeros = f"<{lanes} x i32> zeroinitializer"
    return fn.inst(
        "shufflevector", type, (first,), f"shufflevector {first}, {type} poison, {zeros}"
    )


def with_lanes(fn: Function, v: Val, lanes: int, rest: Val) -> Val:
    """A vector with more lanes: those of `v`, then the first of `rest`, which is of its type."""
    count = lanes_of(v.type)
    picked = ", ".join(f"i32 {k if k < count else count}" for k in range(lanes))
    type = shaped(elem_of(v.type), lanes)
    text = f"shufflevector {v}, {rest}, <{lanes} x i32> <{picked}>"
    return fn.pure("shufflevector", type, (v,), text)


def convert(fn: Function, opcode: str, v: Val, elem: str) -> Val:
    """LLVM's cast `opcode` to elements of type `elem`, keeping the shape."""
    return fn.cast(opcode, v, like(v.type, elem))


def intrinsic(fn: Function, name: str, args: Sequence[Val], extra: Sequence[Val] = ()) -> Val:
    """`llvm.<name>` overloaded on the type of the first argument, which it returns."""
    type = args[0].type
    return fn.intrinsic(type, f"llvm.{name}.{mangled(type)}", [*args, *extra])


def counted(
    fn: Function, end: int, step: int, body: Callable[[Val], object], type: str = "i32"
) -> None:
    """`body` for 0, step, … below `end`, as a loop that LLVM leaves rolled."""
    if end <= step:
        if end > 0:
            body(int_val(0, type))
        return
    (index,) = fn.loop_header("loop", [int_val(0, type)])
    head, done = fn.block.label, fn.label("endloop")
    body(index.result)
    after = fn.binary("add", index.result, step, "nuw nsw")
    fn.cbr(fn.icmp("slt", after, end), head, done, done, loop="keep")
    index.incoming.append((after, fn.block.label))
    fn.start(done)


@functools.cache
def mangled(type: str) -> str:
    """How an intrinsic's name spells a type: "v16f32" for `<16 x float>`."""
    elem, lanes = elem_of(type), lanes_of(type)
    short = "p0" if elem == "ptr" else _SUFFIX.get(elem, elem)
    return short if lanes == 1 else f"v{lanes}{short}"


def per_lane(fn: Function, symbol: str, args: Sequence[Val]) -> Val:
    """Call the C library's `symbol` (arguments and result of one type) for each lane."""
    type = args[0].type
    lanes, elem = lanes_of(type), elem_of(type)
    if lanes == 1:
        return fn.intrinsic(elem, symbol, list(args))
    columns = [fn.unpack(a, lanes, elem) for a in args]
    return fn.pack([fn.intrinsic(elem, symbol, list(one)) for one in zip(*columns)])


def register_type(dtype: DType) -> str:
    """LLVM type of one element in a register. Floats narrower than 32 bits are kept as their bits,
    because not every host has instructions (or even run-time routines) for them.
    """
    if dtype == BOOL:
        return "i1"
    if dtype in (FLOAT32, TFLOAT32):
        return "float"
    return "double" if dtype == FLOAT64 else f"i{dtype.bits}"


def memory_type(dtype: DType) -> str:
    """LLVM type of one element in memory (a bool is a byte)."""
    return "i8" if dtype == BOOL else register_type(dtype)


def from_memory(fn: Function, v: Val, dtype: DType) -> Val:
    """What has been loaded as a value in a register."""
    if dtype != BOOL:
        return v
    return fn.icmp("ne", v, Val(v.type, "zeroinitializer" if lanes_of(v.type) > 1 else "0"))


def to_memory(fn: Function, v: Val, dtype: DType) -> Val:
    """A value in a register as it is stored."""
    return v if dtype != BOOL else convert(fn, "zext", v, "i8")


def in_words(f: Function, x: Val, move: Callable[[Val], Val]) -> Val:
    """`x`, a scalar or vector of any type, after `move`, which takes it to another lane, has been
    applied to each of its words: machines move 32 bits."""
    elem = elem_of(x.type)
    bits = prod((lanes_of(x.type), _BITS.get(elem) or int(elem[1:])))
    whole = f.cast("bitcast", x, f"i{bits}")
    if bits < 32:
        moved = f.cast("trunc", move(f.cast("zext", whole, "i32")), f"i{bits}")
    elif bits == 32:
        moved = move(whole)
    else:
        count = bits // 32
        words = f.cast("bitcast", whole, f"<{count} x i32>")
        parts = [move(w) for w in f.unpack(words, count, "i32")]
        moved = f.cast("bitcast", f.pack(parts), f"i{bits}")
    return f.cast("bitcast", moved, x.type)
