"""split_operands: products of float32 numbers by narrow ones are sums of some of TF32.

Before and after: TILE, as traced, so that plans are chosen for what the products are. A product of
float32 is multiply-adds in every thread, but where the numbers of one operand are of float16 or
bfloat16, though its tile is of float32,

    gemm a, b, acc             b: what a cast has made of float16

TF32 holds these, and three numbers of TF32, of eleven bits each, are one of float32, two of them a
product of two of float16:

    upper = the upper eleven bits of a;     rest = a - upper
    middle = the upper eleven bits of rest; lower = rest - middle
    gemm upper, b, acc (TF32);  gemm middle, b, acc (TF32);  gemm lower, b, acc (TF32)

Threads make the pieces where they make the elements of a, if nothing else has these; a fragment's
are in one another's place, one after the other. All products are exact, and their sum is float32's
as before, but tensor cores compute it. Of what is infinite nothing is left."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import prod

from tilec.ir import ops
from tilec.ir.builder import Builder
from tilec.ir.clusters import threads_of
from tilec.ir.core import Func, Op, Region, Value
from tilec.ir.types import FLOAT32, TFLOAT32, UINT32
from tilec.passes.narrow_operands import held_narrow
from tilec.passes.utils.building import beside
from tilec.passes.utils.identities import digits_of, holds
from tilec.target import Target

PIECE = 11  # bits that a TF32 has
UPPER = 0xFFFFE000  # its sign, exponent and ten bits of a float32
MOST_REGISTERS = 128  # of a thread, which warps that share rows hold twice
MAGNITUDE, INFINITE = 0x7FFFFFFF, 0x7F800000
NAMES = ("upper", "middle", "lower")


def split_operands(func: Func, target: Target) -> Func:
    """Where tiles fit an instruction, and pieces a block."""
    if target.kind != "cuda" or not target.has("mma"):
        return func
    products = [o for o in func.body.every(ops.Gemm) if _is_wide(o)]
    narrow = held_narrow(func) if products else set()
    split = [o for o in products if (o.a.buffer in narrow) != (o.b.buffer in narrow)]
    wide = {o.b if o.a.buffer in narrow else o.a for o in split}
    counts = {r: -(-_bits_of(r.buffer, func) // PIECE) for r in wide}
    if not split or not _fit(func, counts, target):
        return func

    made = _Made({r.buffer: n for r, n in counts.items() if _is_made_apart(r.buffer, func, split)})

    def visit(o: Op) -> list[Op] | None:
        if not isinstance(o, ops.Gemm):
            return made.visit(o)
        if o not in split:
            return None
        left = o.b.buffer in narrow
        wide = o.a if left else o.b

        def by(piece: Region) -> Op:
            product = replace(o, a=piece) if left else replace(o, b=piece)
            return replace(product, allow_tf32=True)

        if wide.buffer in made.pieces:
            return [*map(by, made.of(wide))]
        in_turns = wide.buffer.buffer.space == "fragment"
        return (_in_turns if in_turns else _beside)(Builder(o.loc), wide, counts[wide], by)

    return func.with_body(func.body.rewrite(Op, visit))


def _is_made_apart(v: Value, func: Func, split: Sequence[ops.Gemm]) -> bool:
    """Whether threads make a shared tile element by element, and such products alone read it."""
    if v.buffer.space != "shared":
        return False
    for o in func.body.users[v]:
        match o:
            case ops.Store(dest=dest, value=value) if dest is v and value is not v:
                pass
            case ops.Fill() if _bits(o.value, func.body.defs) == 0:
                pass
            case ops.Gemm() if o in split and o.c is not v:
                pass
            case _:
                return False
    return True


class _Made:
    """Tiles whose pieces are made in their place, each of so many."""

    def __init__(self, counts: Mapping[Value, int]) -> None:
        self.counts = counts
        self.pieces: dict[Value, list[Value]] = {}

    def of(self, wide: Region) -> list[Region]:
        """The pieces of a region."""
        return [replace(wide, buffer=v) for v in self.pieces[wide.buffer]]

    def visit(self, o: Op) -> list[Op] | None:
        b = Builder(o.loc)
        match o:
            case ops.Alloc() if o.result in self.counts:
                names = NAMES[: self.counts[o.result]]
                whole = b.whole(o.result)
                made = [beside(b, whole, o.type.space, name, TFLOAT32) for name in names]
                self.pieces[o.result] = [r.buffer for r in made]
                b.ops = [x for x in b.ops if isinstance(x, ops.Alloc)]
            case ops.Store(dest=v) if v in self.pieces:
                for piece, value in zip(self.pieces[v], _pieces(b, o.value, self.counts[v])):
                    b.emit(ops.Store, piece, o.indices, value)
            case ops.Fill() if (v := o.dest.buffer) in self.pieces:
                zero = b.const(0.0, TFLOAT32)
                for piece in self.pieces[v]:
                    b.ops.append(replace(o, dest=replace(o.dest, buffer=piece), value=zero))
            case _:
                return None
        return b.ops


def _bits_of(buffer: Value, func: Func) -> int:
    """How many bits the numbers in a tile have at most, from the first that is set to the last."""
    defs, found = func.body.defs, 0
    for o in func.body.users[buffer]:
        match o:
            case ops.Store(dest=v) if v is buffer:
                found = max(found, _bits(o.value, defs))
            case ops.Fill():
                found = max(found, _bits(o.value, defs))
            case ops.Gemm() if o.c is not buffer:
                pass
            case _:
                return digits_of(buffer.dtype)
    return found or digits_of(buffer.dtype)


def _bits(v: Value, defs: Mapping[Value, Op]) -> int:
    """Those of a value: a product of two has those of both."""
    match defs.get(v):
        case ops.Const(value=0):
            return 0
        case ops.Cast(operand=x) if holds(v.dtype, x.dtype):
            found = _bits(x, defs)
        case ops.Select(on_true=x, on_false=y) | ops.Binary(kind="min" | "max", lhs=x, rhs=y):
            found = max(_bits(x, defs), _bits(y, defs))
        case ops.Unary(kind="neg" | "abs", operand=x):
            found = _bits(x, defs)
        case ops.Binary(kind="mul", lhs=x, rhs=y):
            found = _bits(x, defs) + _bits(y, defs)
        case _:
            found = digits_of(v.dtype)
    return min(found, digits_of(v.dtype))


def _is_wide(o: ops.Gemm) -> bool:
    plain = not (o.clear or o.accumulate or o.metadata or o.asynchronous or o.allow_tf32)
    m, n, k = o.shape
    plain = plain and m % 16 == n % 16 == k % 8 == 0
    return plain and {o.a.dtype, o.b.dtype, o.c.dtype} == {FLOAT32}


def _fit(func: Func, counts: Mapping[Region, int], target: Target) -> bool:
    """Whether so many more tiles of these fit beside all that there is."""
    stages = max([2, *(o.num_stages for o in func.body.every(ops.For))])
    shared = [o.type for o in func.body.every(ops.Alloc) if o.type.space == "shared"]
    own = [(r.buffer.buffer.space, n, prod(r.extents)) for r, n in counts.items()]
    room = (
        target.shared_bytes - stages * sum(prod(t.static_shape) * t.dtype.bits for t in shared) // 8
    )
    words = max((size for space, _, size in own if space == "fragment"), default=0)
    fits = 4 * sum(n * size for space, n, size in own if space == "shared") <= room
    return fits and 4 * words <= MOST_REGISTERS * threads_of(func)


def _beside(b: Builder, wide: Region, count: int, by: Callable[[Region], Op]) -> list[Op]:
    """The products by so many tiles of pieces, beside one another."""
    space = wide.buffer.buffer.space
    pieces = [beside(b, wide, space, name, TFLOAT32) for name in NAMES[:count]]
    with _each(b, wide) as (inner, indices, x):
        for piece, value in zip(pieces, _pieces(inner, x, count)):
            inner.emit(ops.Store, piece.buffer, indices, value)
    return [*b.ops, *map(by, pieces)]


def _in_turns(b: Builder, wide: Region, count: int, by: Callable[[Region], Op]) -> list[Op]:
    """The products by so many pieces, in one tile, and what is left of the elements in another."""
    space = wide.buffer.buffer.space
    upper, rest = (beside(b, wide, space, name) for name in ("upper", "rest"))
    for n in range(count):
        with _each(b, rest if n else wide) as (inner, indices, x):
            if n < count - 1:
                x, left = _cut(inner, x, n == 0)
                inner.emit(ops.Store, rest.buffer, indices, left)
            inner.emit(ops.Store, upper.buffer, indices, x)
        b.ops.append(by(upper))
    return b.ops


@contextmanager
def _each(b: Builder, source: Region) -> Iterator[tuple[Builder, Sequence[Value], Value]]:
    """A loop over the elements of a region: the builder of its body, a place, and the element."""
    with b.each_element(source.extents) as (inner, indices):
        at = tuple(inner.fold("add", x, i) for x, i in zip(source.offsets, indices))
        yield inner, indices, inner.value(ops.Load, source.buffer, at)


def _pieces(b: Builder, x: Value, count: int) -> list[Value]:
    """So many numbers of TF32 whose sum a float32 is."""
    made = list[Value]()
    for n in range(1, count):
        upper, x = _cut(b, x, n == 1)
        made.append(upper)
    made.append(x)
    return [b.value(ops.Bitcast, b.value(ops.Bitcast, v, UINT32), TFLOAT32) for v in made]


def _cut(b: Builder, x: Value, first: bool) -> tuple[Value, Value]:
    """The upper bits of a number, and what is left of it; `first`: which may be infinite."""
    bits = b.value(ops.Bitcast, x, UINT32)
    upper = b.value(ops.Bitcast, b.binary("and", bits, b.const(UPPER, UINT32)), FLOAT32)
    rest = b.binary("sub", x, upper)
    if first:
        magnitude = b.binary("and", bits, b.const(MAGNITUDE, UINT32))
        infinite = b.compare("eq", magnitude, b.const(INFINITE, UINT32))
        rest = b.select(infinite, b.const(0.0, FLOAT32), rest)
    return upper, rest
