"""The register budget: what is refused before code is made, and what the shares are."""

from __future__ import annotations

import os
from math import prod

import pytest
from test_lowering import matmul_text

from tilec.codegen.isolated import run_isolated
from tilec.ir.core import walk
from tilec.ir.errors import InternalError, ResourceError
from tilec.ir.ops import Scope, Wgmma
from tilec.ir.parser import parse_func
from tilec.passes import run
from tilec.passes.distribution import covering
from tilec.passes.registers import at_launch, budget, register_split, widest_wgmma
from tilec.target import find_target

SM90, SM80, GFX942 = (find_target(n) for n in ("cuda:sm_90a", "cuda:sm_80", "hip:gfx942"))


def test_the_pool_is_never_overdrawn():
    for groups in range(1, 8):
        consumer, producer = register_split(4 * groups, SM90)
        if consumer:
            pool = at_launch((groups + 1) * 128, SM90) * (groups + 1)
            assert consumer * groups + producer <= pool
            assert consumer % 8 == producer % 8 == 0
    assert register_split(8, SM90) == (232, 40), "the split that was measured"


@pytest.mark.parametrize("target", [SM90, SM80, GFX942], ids=str)
def test_a_fragment_that_no_thread_can_hold(target):
    text = matmul_text(256, 256, 32, 2, 256, 0, 0)
    with pytest.raises(ResourceError) as caught:
        run(parse_func(text), target)
    message = str(caught.value)
    assert "256x256 float32 fragment acc takes 256 registers of each of 256 threads" in message
    assert caught.value.hint.startswith(("halve the tile: 128x256", "threads=512"))
    assert caught.value.loc is not None and caught.value.loc.line > 0
    assert len(message.split("\n")) <= 12


def test_wide_products_split_where_the_launch_has_few_registers():
    """With four warpgroups in a block an n=256 instruction does not compile (C7602)."""
    assert widest_wgmma(256, True, SM90) == 256
    assert widest_wgmma(384, True, SM90) == 200
    func = run(parse_func(matmul_text(192, 256, 32, 2, 384, 0, 1)), SM90)
    rows = {o.row for o in walk(func.body) if isinstance(o, Wgmma)}
    assert all(int(r.split("n")[1].split("k")[0]) <= 200 for r in rows)
    scopes = [o for o in func.body.ops if isinstance(o, Scope)]
    assert all(s.registers % 8 == 0 for s in scopes)
    assert budget(256, True, SM90) == 208


def test_a_child_that_aborts_is_an_error_here():
    assert run_isolated(lambda: b"code", "made") == b"code"
    with pytest.raises(InternalError, match="cannot make it: the last words"):
        run_isolated(_abort, "cannot make it")
    with pytest.raises(InternalError, match="cannot make it: refused"):
        run_isolated(_refuse, "cannot make it")


def _abort() -> bytes:
    os.write(2, b"much before\nthe last words\n")
    os.abort()


def _refuse() -> bytes:
    raise InternalError("refused")


@pytest.mark.parametrize("extents", [(18, 66), (100,), (7, 33), (3, 5, 70), (1000, 3), (128, 64)])
@pytest.mark.parametrize("warps", [1, 4, 12])
def test_every_thread_works_on_odd_tiles(extents, warps):
    layout = covering(extents, 32, warps, 1)
    assert all(a >= b for a, b in zip(layout.shape, extents))
    work = layout.size("reg") * 32 * warps
    if prod(extents) >= 32 * warps:
        assert work <= 2.2 * prod(extents), "half the threads would be idle"
    assert covering((128, 64), 32, 4, 4).shape == (128, 64), "nothing is added where it divides"
