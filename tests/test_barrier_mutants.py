"""Programs ordered by hand, with one op of their code left out: the simulator finds each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import barrier_programs as programs
import pytest
from test_barriers import HOPPER, operands

from tilec.ir.core import Func, Op, walk
from tilec.ir.ops import (
    Barrier,
    CpAsyncWait,
    MbarrierArrive,
    MbarrierExpectTx,
    MbarrierWait,
    ProxyFence,
    WgmmaWait,
)
from tilec.jit.simulate import simulate_changed

ORDER = (
    Barrier,
    CpAsyncWait,
    MbarrierArrive,
    MbarrierExpectTx,
    MbarrierWait,
    ProxyFence,
    WgmmaWait,
)
NAMES = ("ring", "apart", "together", "in_flight", "shared_tile")
# What is not needed, or not seen to be: the op, and the start of its line.
EXPLAINED = {
    # The stage is known at run time only: it might be the one that was written before.
    ("apart", "barrier", "T.copy(B["),
    # That their author has waited for the products, which read what is written again, is not seen.
    ("in_flight", "barrier", "for s in T.unroll("),
    # The simulator does not know which registers a product in flight holds.
    ("in_flight", "wgmma_wait", "T.wait_wgmma(1)"),
    # Another fence, in front of the group's own tile, stands between the threads and the product.
    ("shared_tile", "proxy_fence", "with T.ws(1)"),
}
SOURCE = Path(programs.__file__).read_text().split("\n")
# Loops are three iterations long: what orders the last one with what is behind it is needed.
SIZE = (128, 128, 192)


def ordering(func: Func) -> list[Op]:
    return [o for o in walk(func.body) if isinstance(o, ORDER)]


def findings(name: str, left_out: int) -> tuple[str, tuple[Any, ...], int]:
    """What is left out (by its number), what is said of it, and how many there are."""
    told: list[str] = []

    def change(func: Func) -> Func:
        found = ordering(func)
        told.append(str(len(found)))
        if left_out >= len(found):
            return func
        gone = found[left_out]
        told.append(f"{gone.opname} of line {gone.loc.line}")
        line = SOURCE[gone.loc.line - 1].strip()
        if any((name, gone.opname) == x[:2] and line.startswith(x[2]) for x in EXPLAINED):
            told.append("explained")
        return func.rewrite(Op, lambda o: [] if o is gone else None)

    a, b, c, _ = operands(*SIZE)
    report = simulate_changed(change, getattr(programs, name), a, b, c, target=HOPPER)
    return " ".join(told[1:]), report.findings, int(told[0])


def each(name: str) -> Iterator[tuple[str, tuple[Any, ...]]]:
    n, count = 0, 1
    while n < count:
        what, found, count = findings(name, n)
        yield what, found
        n += 1


@pytest.mark.parametrize("name", NAMES)
def test_each_op_that_orders_is_needed(name: str) -> None:
    _, whole, count = findings(name, 1 << 30)
    assert not whole and count > 2
    missed = [what for what, found in each(name) if not found and "explained" not in what]
    assert not missed
