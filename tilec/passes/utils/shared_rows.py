"""What rows of shared memory that are set apart cost those who walk down a column of them, and
those who take whole rows."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod

import numpy as np

from tilec.ir.layout import Layout, bank_conflicts, leading_run
from tilec.ir.layout.queries import BANK_BYTES, BANKS


def walk_price(memory: Layout, bits: int, lanes: int, held: Sequence[Layout], moved: int) -> float:
    """Of a padded buffer's accesses, in instructions of a warp and times that they go over the
    banks: `lanes` threads walk down a column at once, fragments of the layouts `held` are copied
    whole, and so is the buffer to or from global memory, `moved` times."""
    total, (every, skip) = prod(memory.shape), memory.pad or (memory.shape[-1], 0)
    row, widest = every + skip, gcd(every, skip, 128 // bits)
    words = np.arange(lanes) * row * bits // (8 * BANK_BYTES)
    walked = int(np.bincount(np.unique(words) % BANKS).max())
    price = total / lanes * (1 + walked)
    for layout in held:
        dim, run = leading_run(layout)
        if layout.shape != memory.shape:
            continue
        width = gcd(widest, run) if dim == layout.rank - 1 else 1
        times = max(1, width * bits // 32) * bank_conflicts(layout, memory, bits, width)
        price += layout.size("reg") * layout.size("warp") / width * (1 + times)
    return price + moved * total / (32 * widest) * (1 + max(1, widest * bits // 32))
