"""Where the elements of a kernel's tiles live, as plain data that the page draws.

A layout goes to the page as its digits (`ir/layout`); the page adds them up. So a tile of 128 by
256 takes a line of text there, and every element of it can be looked at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilec.ir.core import Func, walk
from tilec.ir.layout import Layout
from tilec.ir.layout.normal import is_inside
from tilec.ir.ops import Alloc
from tilec.ir.types import BufferType

OWNERS = {"fragment": ("warp", "lane", "reg"), "shared": ("offset",)}


def drawn(func: Func, reasons: Mapping[str, str]) -> list[dict[str, Any]]:
    """Each buffer of a LAID_OUT function that has a layout, in the order of the source."""
    found = []
    for o in walk(func.body):
        if isinstance(o, Alloc) and o.type.layout is not None and o.type.space in OWNERS:
            name = o.result.name
            line = o.loc.chain()[-1].line
            found.append(of_buffer(name, o.type, line, reasons.get(name, "")))
    return found


def reasons_of(func: Func) -> dict[str, str]:
    """Why each buffer got its layout, as `infer_layouts` has noted."""
    pairs = (str(r).partition(": ") for r in func.attrs.get("layout_reasons", ()))
    return {name: why for name, _, why in pairs}


def of_buffer(name: str, t: BufferType, line: int, reason: str) -> dict[str, Any]:
    """One buffer. `digits`: (owner, weight in its index, radix, step, whether it combines by
    XOR)."""
    layout = t.layout
    assert isinstance(layout, Layout)
    digits = [
        [owner, weight, d.radix, list(d.step), is_inside(d, layout.atom)]
        for owner in ("reg", "lane", "warp", "offset")
        for d, weight in layout.of(owner)
    ]
    return {
        "name": name,
        "space": t.space,
        "dtype": t.dtype.name,
        "bits": t.dtype.bits,
        "shape": list(layout.shape),
        "stages": t.stages,
        "line": line,
        "text": str(layout),
        "reason": reason,
        "digits": digits,
        "sizes": {owner: layout.size(owner) for owner in ("reg", "lane", "warp", "offset")},
        "pad": list(layout.pad) if layout.pad else None,
    }
