"""Builtins of `tilec.language` about layouts: where the elements of a tile are.

A layout of memory gives each element an offset; one of a fragment a thread and a register of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilec.ir.caller import for_users
from tilec.ir.errors import LayoutError
from tilec.ir.layout import Fragment as _Fragment
from tilec.ir.layout import Layout as _Layout

__all__ = ["Fragment", "Layout", "annotate_layout"]


def annotate_layout(layouts: dict[Any, Any]) -> None:
    """Fix the layout of buffers: `{A_s: make_swizzled_layout(A_s)}`, `{A_s: T.Layout(…)}` for
    shared ones, `{x: T.Fragment(…)}` for fragments. It is kept; what works on a fragment in another
    way (a matrix instruction, a reduction) takes and leaves copies; of what each thread has whole
    (`T.alloc_local`) it says nothing. The layout of a tensor,
    `{A: T.Layout(A.shape, …)}`, says where its elements are in memory; see docs/language.md.

    Raises LayoutError for other extents than the buffer's and for a second layout; warns
    (CompileWarning) where no layout of tilec's says what a fragment's function does.
    """


@for_users
def Layout(shape: Any, fn: Callable[..., Any]) -> _Layout:
    """The layout that puts element `(i, j, …)` of a shared buffer at offset `fn(i, j, …)`.

    A tuple of coordinates counts row by row in the box that holds them: `lambda i, j: (j, i)` is
    column-major. Raises LayoutError if no layout fits `fn`, for a shape of anything but positive
    ints, and where `fn` fails.
    """
    try:
        return _Layout.from_function(shape, fn)
    except LayoutError as e:
        e.hint = e.hint or "write T.Layout((64, 64), lambda i, j: i * 64 + j)"
        raise


@for_users
def Fragment(
    shape: Any,
    forward_fn: Callable[..., Any] | None = None,
    forward_thread_fn: Callable[..., Any] | None = None,
    replicate: int = 1,
    forward_index_fn: Callable[..., Any] | None = None,
) -> _Fragment:
    """Where a fragment of `shape` is: `forward_fn(i, j, …)` gives the thread of the block that
    holds element `(i, j, …)` and which of its registers (an int, or coordinates of one); or
    `forward_thread_fn` and `forward_index_fn` do, one each; without the latter a thread has its
    elements row by row.

    `replicate`: so many threads hold each element; the number of the copy is a last argument of
    `forward_fn` and `forward_thread_fn`. Threads that no element names hold copies, too.

    Raises LayoutError for functions that fail or give anything but ints of at least 0, and where
    two elements share a register.
    """
    return _Fragment.from_functions(
        shape, forward_fn, forward_thread_fn, replicate, forward_index_fn
    )
