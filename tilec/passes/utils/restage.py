"""Buffers that have become a stage of larger ones: what ops of a program by hand touch of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tilec.ir.core import Block, Op, Region, Value, rewrite
from tilec.ir.errors import CompileError
from tilec.ir.ops import Load, Store


def restaged(
    o: Op, ring: Mapping[Value, Value], stage: Value, refuse: Callable[[Op, str], CompileError]
) -> list[Op]:
    """`o` where each buffer of `ring` is stage `stage` of another, whose first dimension counts
    them. Raises the error that `refuse` makes for an op that takes such a buffer as a whole."""

    def visit(x: Op) -> None | Op:
        match x:
            case Load(source=v) if v in ring:
                return replace(x, source=ring[v], indices=(stage, *x.indices))
            case Store(dest=v) if v in ring:
                return replace(x, dest=ring[v], indices=(stage, *x.indices))
        changed: dict[str, Any] = {}
        for name in x.operand_fields:
            got = getattr(x, name)
            if isinstance(got, Region) and got.buffer in ring:
                offsets, extents = (stage, *got.offsets), (1, *got.extents)
                changed[name] = Region(ring[got.buffer], offsets, extents)
            elif isinstance(got, Value) and got in ring:
                raise refuse(x, f"{got.name} is more than one tile")
        return replace(x, **changed) if changed else None

    return list(rewrite(Block((), (o,)), visit).ops)
