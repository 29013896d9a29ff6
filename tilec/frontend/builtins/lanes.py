"""Builtins about short vectors."""

from __future__ import annotations

from collections.abc import Callable

from tilec import language as T
from tilec.builtins.lanes import MOST_LANES, VectorDType
from tilec.frontend.builtins.pointers import as_bits, regrouped
from tilec.frontend.builtins.table import Call, builtin, named
from tilec.frontend.expressions import Expressions
from tilec.frontend.lanes import lanewise, numbers_of
from tilec.frontend.values import Lanes, Number, Region, Scalar, describe
from tilec.ir.ops import Fma
from tilec.ir.types import DType

_PAIRS = ("float32", "float16", "bfloat16")


@builtin(T.Ramp)
def ramp(t: Expressions, c: Call) -> Lanes:
    base, stride = c.number("base"), c.number("stride")
    steps = (t.binary("mul", stride, n) for n in range(_lanes(t, c)))
    return Lanes(tuple(t.binary("add", base, step) for step in steps))


builtin(T.Broadcast)(lambda t, c: Lanes((c.number("value"),) * _lanes(t, c)))


def _lanes(t: Expressions, c: Call) -> int:
    lanes = c.integer("lanes", 2)
    if lanes > MOST_LANES:
        said = f"is {lanes}, the most is {MOST_LANES}"
        raise c.wrong("lanes", said, "loop over the elements: for i in T.vectorized(n)")
    return lanes


@builtin(T.extract_lane)
def extract_lane(t: Expressions, c: Call) -> Number:
    vector, lane = c["vector"], c.integer("lane", 0)
    if not isinstance(vector, Lanes):
        hint = "name a vector: T.alloc_var(T.float32x2), T.float32x2(a, b), A[T.Ramp(i, 1, 2)]"
        raise c.wrong("vector", f"is {describe(vector)}, which has no lanes", hint)
    if lane >= len(vector.items):
        hint = f"lanes count from 0 to {len(vector.items) - 1}"
        raise t.error(f"lane {lane} of {describe(vector)}", hint, c.place("lane"))
    return t.number(vector.items[lane], "a lane")


# --- pairs ----------------------------------------------------------------------------------------


def _pairs(compute: Callable[..., Number]) -> Callable[[Expressions, Call], Lanes]:
    def handler(t: Expressions, c: Call) -> Lanes:
        first: DType | None = None
        vectors = {n: numbers_of(t, v) if isinstance(v, Lanes) else [] for n, v in c.values.items()}
        others = [x.dtype for items in vectors.values() for x in items if isinstance(x, Scalar)]
        read = []
        for name, given in c.values.items():
            items = vectors[name]
            known = {x.dtype for x in items if isinstance(x, Scalar)}
            literal = others[:1] if items and not known else []  # takes the other operands' dtype
            dtype = known.pop() if len(known) == 1 else next(iter(literal), None)
            if len(items) != 2 or dtype is None or dtype.name not in _PAIRS:
                hint = (
                    f"vectors of two are {', '.join(d + 'x2' for d in _PAIRS)}: A[T.Ramp(i, 1, "
                    "2)], T.float32x2(a, b)"
                )
                raise c.wrong(name, f"is {describe(given)}, not two floats of one dtype", hint)
            first = first or dtype
            if dtype is not first:
                message = f"T.{c.builtin} of {first.name}x2 and {dtype.name}x2"
                hint = f'cast one of them: T.cast(x, "{first.name}x2")'
                raise t.error(message, hint, c.place(name))
            read.append(Lanes(tuple(t.convert(x, dtype) for x in items)))
        return lanewise(t, lambda *row: compute(t, *row), *read)

    return handler


for _kind in ("add", "sub", "mul", "max", "min"):
    builtin(*named("{}2", [_kind]))(_pairs(lambda t, x, y, kind=_kind: t.binary(kind, x, y)))
builtin(T.fma2)(_pairs(lambda t, x, y, z: t.emit_scalar(Fma, x.value, y.value, z.value)))
builtin(T.abs2)(_pairs(lambda t, x: t.unary("abs", x)))


# --- dtypes ---------------------------------------------------------------------------------------


def vector(t: Expressions, made: VectorDType, values: list[object]) -> Lanes:
    """`T.float32x2(a, b)`, `T.float32x2(x)`: numbers, or one for every lane, converted."""
    lanes = [x for v in values for x in (v.items if isinstance(v, Lanes) else (v,))]
    lanes = lanes * made.lanes if len(lanes) == 1 else lanes
    if len(lanes) != made.lanes:
        hint = f"write T.{made.name}({', '.join('abcdefgh'[: made.lanes])}), or one for all"
        raise t.error(f"T.{made.name} of {len(lanes)} numbers: it has {made.lanes} lanes", hint)
    return Lanes(tuple(t.convert(t.number(x, "a lane"), made.dtype) for x in lanes))


def reinterpreted(t: Expressions, value: object, to: VectorDType | DType) -> Lanes | Scalar | None:
    """The bits of a vector, or of a number as one; the first lane has the lowest. None where
    neither side is a vector."""
    several = isinstance(value, Lanes | tuple)
    if not several and not isinstance(to, VectorDType):
        return None
    given = value.items if isinstance(value, Lanes) else value
    items = given if isinstance(given, tuple) else (given,)
    scalars = [t.run_time(t.number(x, "a lane")) for x in items]
    lanes, dtype = (to.lanes, to.dtype) if isinstance(to, VectorDType) else (1, to)
    own = scalars[0].dtype
    if any(x.dtype is not own for x in scalars) or own.bits * len(scalars) != dtype.bits * lanes:
        held = describe(value) if isinstance(value, Lanes | Scalar | Region) else "these numbers"
        raise t.error(
            f"the bits of {held} as {to.name}: {sum(x.dtype.bits for x in scalars)} and "
            f"{dtype.bits * lanes}",
            "name a dtype of as many bits in all",
        )
    words = regrouped(t, [as_bits(t, x) for x in scalars], dtype.bits)
    found = [as_bits(t, x, dtype) for x in words]
    return Lanes(tuple(found)) if isinstance(to, VectorDType) else found[0]
