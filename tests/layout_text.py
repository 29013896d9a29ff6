"""The text of a layout read back."""

from __future__ import annotations

import re
from collections.abc import Callable

from tilec.ir.errors import LayoutError
from tilec.ir.layout import FRAGMENTS, Layout, blocked, padded, row_major, swizzled
from tilec.ir.layout.core import OWNERS
from tilec.ir.layout.normal import Digit

_MADE: dict[str, tuple[Callable[..., Layout], int]] = {
    "row_major": (row_major, 0),
    "padded": (padded, 2),
    "swizzled": (swizzled, 2),
    "blocked": (blocked, 3),
}
"""What makes the layouts of a name, of a shape and how many numbers."""
_CALL = re.compile(r"(\w+)\(([^()]*|\(\))\)")
_EXACT = re.compile(r"([\dx]+|\(\))\[(.*)\]")
_DIGIT = re.compile(r"(\d+):\(([\d,]*)\)")


def parse_layout(text: str) -> Layout:
    """The layout that `str` prints as `text`. Raises ValueError where it is no layout's text."""
    text = text.strip()
    try:
        if text in FRAGMENTS:
            return FRAGMENTS[text]
        call = _CALL.fullmatch(text)
        if call is not None and call[1] in _MADE:
            make, count = _MADE[call[1]]
            shape, *numbers = call[2].split(", ")
            if len(numbers) != count:
                raise ValueError(f"{len(numbers)} numbers behind {shape}, not {count}")
            return make(_dims(shape), *map(int, numbers))
        whole = _EXACT.fullmatch(text)
        if whole is None:
            raise ValueError(f"{text!r} is neither a layout's name nor its digits")
        return _exact(whole[1], whole[2])
    except LayoutError as error:
        raise ValueError(str(error)) from error


def _dims(text: str) -> tuple[int, ...]:
    """`64x32` as a tuple, `()` as the empty one."""
    return () if text.strip() == "()" else tuple(int(e) for e in text.split("x"))


def _exact(shape: str, rest: str) -> Layout:
    digits: list[Digit] = []
    parts: dict[str, str] = {}
    for part in re.split(r",\s+", rest) if rest.strip() else ():
        word, _, value = part.partition(" ")
        if word in OWNERS:
            for radix, step in _DIGIT.findall(value):
                digits.append(Digit(word, int(radix), tuple(int(s) for s in step.split(",") if s)))
        elif word in ("atom", "pad", "align"):
            parts[word] = value
        else:
            raise ValueError(f"a layout has no part {part!r}")
    every, _, skip = parts.get("pad", "").partition("+")
    return Layout(
        _dims(shape),
        tuple(digits),
        _dims(parts["atom"]) if "atom" in parts else (),
        (int(every), int(skip)) if every else None,
        int(parts.get("align", 16)),
    )
