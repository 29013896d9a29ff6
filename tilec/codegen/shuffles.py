"""Values on their way to another lane: machines move words of 32 bits."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from tilec.codegen.lanes import elem_of, lanes_of
from tilec.ir.llvm import Function, Val

_BITS = {"half": 16, "bfloat": 16, "float": 32, "double": 64}


def in_words(f: Function, x: Val, move: Callable[[Val], Val]) -> Val:
    """`x`, a scalar or vector of any type, after `move` has been applied to each of its words."""
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
