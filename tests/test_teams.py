"""Teams: several sets of a block's threads that take turns at the tensor cores (ping-pong)."""

from __future__ import annotations

import numpy as np
import pytest
from test_lowering import SM90, matmul_text, strided
from thread_interp import run_threads

from tilec.ir.core import Func, walk
from tilec.ir.errors import ResourceError
from tilec.ir.ops import Alloc, Scope, TurnPass, TurnWait, Wgmma
from tilec.ir.parser import parse_func
from tilec.ir.plan import Plan
from tilec.passes import run_plan

PING_PONG = Plan("ping-pong", specialise=True, persistent=True, staged_store=True, teams=2)
DIRECT = Plan("ping-pong", specialise=True, persistent=True, teams=2)


def product(text: str, plan: Plan, m: int, n: int, k: int, tb: int, launched: int) -> Func:
    func = run_plan(parse_func(text), SM90, plan)
    rng = np.random.default_rng(m * 1000 + n * 10 + k)
    a = strided(rng, (m, k), np.float16, 0)
    b = strided(rng, (n, k) if tb else (k, n), np.float16, 0)
    c = np.full((m, n), np.nan, np.float16)
    run_threads(func, SM90, {"A": a, "B": b, "C": c}, launched=launched)
    want = a.astype(np.float64) @ (b.T if tb else b).astype(np.float64)
    assert np.isfinite(c.astype(np.float64)).all(), "an output was not written"
    np.testing.assert_allclose(c.astype(np.float64), want, rtol=2e-3, atol=2e-3 * max(k, 1) ** 0.5)
    return func


@pytest.mark.parametrize("plan", [PING_PONG, DIRECT], ids=["staged", "direct"])
@pytest.mark.parametrize("launched", [1, 2, 3])
@pytest.mark.parametrize("k", [8, 72, 200])
def test_a_product_by_two_teams(plan, launched, k):
    """1 to 9 tiles for each launched block, 1 to 7 slots of the ring for each tile."""
    text = matmul_text(64, 64, 32, 3, 128, 0, 1)
    func = product(text, plan, 136, 136, k, 1, launched)
    (consumer,) = [o for o in walk(func.body) if isinstance(o, Scope) and o.name == "consumer"]
    assert (consumer.warps, consumer.teams) == (8, 2) and func.attrs["launch_threads"] == 384
    kinds = [type(o) for o in walk(consumer.body)]
    wait, product_at = kinds.index(TurnWait), kinds.index(Wgmma)
    assert wait < product_at < len(kinds) - 1 - kinds[::-1].index(TurnPass)


def test_192_accumulators_for_each_thread():
    func = product(matmul_text(128, 192, 64, 3, 128, 0, 1), PING_PONG, 264, 200, 136, 1, 1)
    accumulators = max(
        o.type.layout.size("reg")
        for o in walk(func.body)
        if isinstance(o, Alloc) and o.type.space == "fragment" and o.type.layout
    )
    assert accumulators == 192


def test_no_loop_over_blocks_no_teams():
    with pytest.raises(ResourceError, match="no persistent loop"):
        plan = Plan("ping-pong", specialise=True, teams=2)
        run_plan(parse_func(matmul_text(64, 64, 32, 3, 128, 0, 1)), SM90, plan)
