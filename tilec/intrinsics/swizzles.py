"""Where elements of a tile go in shared memory, by number."""

from __future__ import annotations

from typing import Any

from tilec.ir.caller import for_users
from tilec.ir.errors import LayoutError
from tilec.ir.types import find_dtype


@for_users
def get_swizzle_layout(
    row: Any, column: Any, row_size: int, dtype: object, swizzle_bytes: int | None = None
) -> tuple[Any, Any]:
    """Where the element at (row, column) of a tile with rows of `row_size` elements goes: the
    16-byte chunks of each line of `swizzle_bytes` (default: a row's bytes, at most 128) change
    places by the row's number. For `T.Layout(shape, lambda i, j: get_swizzle_layout(…))`.

    Raises LayoutError for an unknown dtype, and for rows of other than whole lines of 32, 64 or
    128 bytes.
    """
    known = find_dtype(dtype if isinstance(dtype, str) else str(getattr(dtype, "name", dtype)))
    if known is None:
        raise LayoutError(f"{dtype!r} is not a dtype", hint='write "float16", say')
    row_bytes = row_size * known.bits // 8
    line = min(128, row_bytes) if swizzle_bytes is None else swizzle_bytes
    if line not in (32, 64, 128) or row_bytes % line:
        raise LayoutError(
            f"rows of {row_bytes} bytes have no swizzle of {line}",
            hint="rows are whole lines of 32, 64 or 128 bytes",
        )
    chunk, chunks = 128 // known.bits, line // 16
    return row, (column // chunk ^ row % chunks) * chunk + column % chunk
