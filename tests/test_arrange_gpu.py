"""Overlapped products on a GPU: right, and the same bits in each of 200 runs, with one and several
tiles a block, loops of one to many iterations, with turns of the warpgroups and without."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from test_arrange import arrange, attention, perceptron

import tilec

pytestmark = pytest.mark.gpu
RUNS = 200


@pytest.fixture(params=["turns", "no turns"])
def turns(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Whether warpgroups take turns, whatever `arrange` would choose."""
    monkeypatch.setenv("TILEC_DISABLE_CACHE", "1")
    if request.param == "no turns":
        best = arrange.best

        def without(*args: Any) -> Any:
            return replace(best(*args), turns=False)

        monkeypatch.setattr(arrange, "best", without)
    yield request.param


def same_in_every_run(torch: Any, run: Any, out: Any) -> None:
    out.fill_(77)
    run()
    first = out.clone()
    for _ in range(RUNS):
        out.fill_(77)
        run()
        assert torch.equal(out, first)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("sizes", [(128, 64), (300, 1000), (40000, 1024)])
def test_attention(torch: Any, turns: str, sizes: tuple[int, int], causal: bool) -> None:
    m, n = sizes
    if causal and m > n:
        n = m = 4100
    kernel = tilec.kernel(attention(causal=causal, overlap=True))
    q, k, v = (torch.randn(s, 64, device="cuda", dtype=torch.float16) for s in (m, n, n))
    o = torch.empty_like(q)
    same_in_every_run(torch, lambda: kernel(q, k, v, o), o)
    s = q.double() @ k.double().T / 8
    if causal:
        hidden = torch.arange(m, device="cuda")[:, None] < torch.arange(n, device="cuda")
        s = s.masked_fill(hidden, float("-inf"))
    want = torch.softmax(s, 1) @ v.double()
    assert float((o.double() - want).abs().max()) < 3e-3
    compiled = kernel.compile(q, k, v, o)
    assert compiled.plan is not None and compiled.plan.overlap
    assert ("takes the turn" in compiled.stages["plan"]) == (turns == "turns")


@pytest.mark.parametrize("hidden", [64, 128, 1920])
def test_perceptron(torch: Any, turns: str, hidden: int) -> None:
    x = torch.randn(3000, 64, device="cuda", dtype=torch.float16)
    w1 = torch.randn(64, hidden, device="cuda", dtype=torch.float16)
    w2 = torch.randn(hidden, 64, device="cuda", dtype=torch.float16) / hidden
    y = torch.empty(3000, 64, device="cuda")
    kernel = tilec.kernel(perceptron)
    same_in_every_run(torch, lambda: kernel(x, w1, w2, y), y)
    h = (x.double() @ w1.double()).relu()
    want = (h * h / 64) @ w2.double()
    assert float((y.double() - want).abs().max()) <= 2e-3 * (1 + float(want.abs().max()))
