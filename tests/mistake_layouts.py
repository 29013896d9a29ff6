"""Mistakes in layouts, and Python that kernels do not have; see `mistake_programs`."""

from __future__ import annotations

from mistake_programs import Edit, Mistake, line

from tilec import LayoutError

ANNOTATION = "{A_s: make_swizzled_layout(A_s)}"


def layout(written: str) -> Edit:
    return ANNOTATION, written


ROW_MAJOR = layout("{A_s: T.Layout((BM, BK), lambda i, j: i * 32 + j)}")
BY_SHAPE = layout("{A_s: T.Layout(A_s.shape, lambda i, j: i * BK + j)}")


LAYOUT = (
    Mistake(
        "overlapping layout",
        layout("{A_s: T.Layout((BM, BK), lambda i, j: i * 16 + j)}"),
        "lambda i, j: i * 16 + j",
        ("(0, 16) and (1, 0) both at offset 16",),
        "i * 32 + j is row-major",
        ROW_MAJOR,
        LayoutError,
    ),
    Mistake(
        "layout from one",
        layout("{A_s: T.Layout((BM, BK), lambda i, j: i * 32 + j + 1)}"),
        "lambda i, j: i * 32 + j + 1",
        ("the lowest offset of the layout function is 1, not 0",),
        "from 0: i * 32 + j",
        ROW_MAJOR,
        LayoutError,
    ),
    Mistake(
        "layout of floats",
        layout("{A_s: T.Layout((BM, BK), lambda i, j: i / 2 + j)}"),
        "lambda i, j: i / 2 + j",
        ("gives an int (an offset in elements), not 0.0",),
        "i * 32 + j is row-major",
        ROW_MAJOR,
        LayoutError,
    ),
    Mistake(
        "layout of other extents",
        layout("{A_s: T.Layout((BK, BM), lambda i, j: i * BM + j)}"),
        "T.Layout((BK, BM), lambda i, j: i * BM + j)",
        ("the layout has shape (32, 64), the buffer is A_s (shared (64, 32) float16)",),
        "T.Layout(A_s.shape, …)",
        BY_SHAPE,
        LayoutError,
    ),
    Mistake(
        "one coordinate",
        layout("{A_s: T.Layout((BM, BK), lambda i: i * BK)}"),
        "lambda i: i * BK",
        ("must take 2 coordinates",),
        "lambda i, j: …",
        BY_SHAPE,
    ),
    Mistake(
        "layout by name",
        layout('{A_s: "swizzle"}'),
        '"swizzle"',
        ("the layout of A_s is the str 'swizzle'",),
        "make_swizzled_layout(A_s)",
    ),
    Mistake(
        "layout of a fragment",
        layout("{acc: make_swizzled_layout(acc)}"),
        "make_swizzled_layout(acc)",
        ("acc (fragment (64, 64) float32), which is in registers",),
        "leave acc out",
        layout("{}"),
        LayoutError,
    ),
    Mistake(
        "layout of a tensor",
        layout("{A: make_swizzled_layout(A)}"),
        "A",
        ("A (global (M, K) float16) is a tensor argument",),
        "annotate the shared buffer",
    ),
    Mistake(
        "layout under T",
        layout("{A_s: T.make_swizzled_layout(A_s)}"),
        "T.make_swizzled_layout",
        ("'make_swizzled_layout'",),
        "from tilec.layout import make_swizzled_layout",
    ),
    Mistake(
        "keyword of a layout",
        layout("{A_s: make_swizzled_layout(A_s, swizzle=128)}"),
        "make_swizzled_layout(A_s, swizzle=128)",
        ("'swizzle'",),
        "write make_swizzled_layout(buffer",
    ),
)

UNSUPPORTED = (
    Mistake(
        "try",
        line("try:\n            T.clear(row)\n        except ValueError:\n            pass"),
        "try:",
        ("try is not allowed",),
        "use if",
    ),
    Mistake(
        "input",
        line("z = input()"),
        "input()",
        ("input cannot be called",),
        "take it as a parameter",
        line("z = bx"),
    ),
    Mistake(
        "generator over a run-time range",
        line("z = max(x for x in range(bx))"),
        "range(bx)",
        ("a comprehension over a run-time range",),
        "use a for loop",
        line("z = max(x for x in range(4))"),
    ),
    Mistake(
        "f-string",
        line('z = f"{bx}"'),
        "bx",
        ("an f-string of a run-time int32",),
        "text of run-time values is for T.print",
        line('T.print(f"{bx}")'),
    ),
    Mistake(
        "starred too few",
        line("a, b, *c = (1,)"),
        "a, b, *c",
        ("1 value for at least 2 names",),
        "write as many names as values",
        line("a, *c = (1,)"),
    ),
    Mistake(
        "assert",
        line("assert scale > 0"),
        "scale > 0",
        ("the condition of this assert is only known at run time",),
        "known at compile time",
    ),
    Mistake(
        "early return",
        line("for i in range(bx):\n            return"),
        "return",
        ("return in a loop that runs at run time",),
        "break",
    ),
    Mistake(
        "run-time key",
        line("z = {bx: 1}"),
        "bx",
        ("a run-time int32 cannot be a key",),
        "use an int, a string",
        line("z = {1: 1, 2: 2}"),
    ),
    Mistake(
        "run-time membership",
        line("z = 1\n        if 1 in bx:\n            z = 2"),
        "1 in bx",
        ("1 in a run-time int32",),
        "x == 1 or x == 2",
        line("z = 1\n        if bx == 1:\n            z = 2"),
    ),
)
