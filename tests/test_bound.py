"""What no plan is predicted to take less than is less than what any takes, and near it; and what is
chosen is what is best of all tiles, of which most are never ranked."""

from __future__ import annotations

import functools
import importlib
import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import pytest

import tilec
import tilec.language as T
from benchmarks import kernels
from tilec.tune.choose import Choice
from tilec.tune.cost import Estimate
from tilec.tune.rank import Candidate, Ranked
from tilec.tune.tried import Tile, Tried

M, N, K = T.dynamic("M, N, K")
TARGETS = ("cuda:sm_90a", "cuda:sm_80", "hip:gfx942", "cpu")


def product(dtype: str, m: int, n: int, k: int, **how: bool) -> tuple[Any, list[Any]]:
    a, b = ((k, m) if how.get("ta") else (m, k)), ((n, k) if how.get("tb") else (k, n))
    result = kernels.DTYPES[dtype][1]
    made = kernels.product.__wrapped__(dtype, **how)
    return made, [tilec.spec(a, dtype), tilec.spec(b, dtype), tilec.spec((m, n), result)]


def example(name: str, number: int = 0) -> tuple[Any, list[Any]]:
    kernel, specs, _ = importlib.import_module(name).SPECS[number]
    return kernel, list(specs)


def plain(m: int, n: int, k: int) -> tuple[Any, list[Any]]:
    """A product as a loop over whole tensors, whose tiles are all tilec's."""

    @tilec.kernel
    def linear(
        x: T.Tensor((M, K), "float16"),
        w: T.Tensor((N, K), "float16"),
        y: T.Tensor((M, N), "float16"),
    ):
        for i, j in T.Parallel(M, N):
            total = 0.0
            for k in range(K):
                total += T.cast(x[i, k], "float32") * w[j, k]
            y[i, j] = total

    return linear, [tilec.spec(s, "float16") for s in ((m, k), (n, k), (m, n))]


def rows(n: int) -> tuple[Any, list[Any]]:
    """No product, and tiles of any width."""

    @tilec.kernel
    def scale(x: T.Tensor((N,), "float32"), BN: T.constexpr = T.auto(32, 64, 128, 256)):
        with T.Kernel(T.ceildiv(N, BN)) as b:
            for i in T.Parallel(BN):
                x[b * BN + i] = T.exp(x[b * BN + i]) * 2.0

    return scale, [tilec.spec((n,), "float32")]


CASES: dict[str, Callable[[], tuple[Any, list[Any]]]] = {
    "float16": functools.partial(product, "float16", 4096, 4096, 4096),
    "few tiles": functools.partial(product, "float16", 256, 384, 8192),
    "no columns": functools.partial(product, "float16", 4096, 1, 4096, tb=True),
    "rows anywhere": functools.partial(product, "float16", 1000, 1001, 1003),
    "float32": functools.partial(product, "float32", 2048, 777, 1024),
    "int8": functools.partial(product, "int8", 3000, 4096, 512, tb=True),
    "float8": functools.partial(product, "float8_e4m3", 8192, 1024, 8192, tb=True),
    "whole loop": functools.partial(plain, 3000, 5000, 1288),
    "one of all": functools.partial(plain, 1, 1, 1),
    "rows": functools.partial(rows, 1 << 20),
    "causal": functools.partial(example, "mha_fwd"),
    "groups of heads": functools.partial(example, "gqa_fwd"),
    "decoding": functools.partial(example, "flash_decoding"),
    "latent": functools.partial(example, "mla_decode"),
    "gradients": functools.partial(example, "mha_bwd", 1),
}


def search(kernel: Any, specs: list[Any], target: str) -> Choice:
    asked = kernel.described(specs, target, {})
    found = kernel.choices.rank(asked.key(), asked)
    assert isinstance(found, Choice)
    return found


@pytest.mark.covering(2, axes=("case", "target"))
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case", CASES)
def test_no_plan_takes_less(case: str, target: str) -> None:
    found = search(*CASES[case](), target).found
    assert isinstance(found, Tried)
    every = {at: (least, found.seconds(at)) for at, least in found.least.items()}
    assert every and not {at: both for at, both in every.items() if not 0 <= both[0] <= both[1]}


@pytest.mark.parametrize("case", ["float16", "whole loop", "rows anywhere", "causal"])
def test_what_is_not_ranked_cannot_win(case: str) -> None:
    """The same is chosen, and tried behind it, as from a search that ranks all it comes by."""
    kernel, specs = CASES[case]()
    lazy = search(kernel, specs, "cuda:sm_90a")
    assert lazy.plans(lazy.constants) and isinstance(lazy.found, Tried)
    few, every = len(lazy.found.ranked), len(lazy.found.least)
    tiles = [(tile, lazy.plans(tile), lazy.has_alike(tile)) for tile in lazy.tiles()]
    kernel.choices._choosers.clear()
    with mock.patch.object(Candidate, "least", lambda self, numbers: 0.0):
        full = search(kernel, specs, "cuda:sm_90a")
        assert tiles == [(tile, full.plans(tile), full.has_alike(tile)) for tile in full.tiles()]
    assert isinstance(full.found, Tried)
    assert few < every and len(full.found.ranked) > len(lazy.found.ranked) - 1
    assert case != "float16" or few <= 0.6 * every, f"{few} of {every} tiles are ranked"


def test_configurations_come_in_order_as_they_are_asked_for() -> None:
    """A tile is ranked when it may be next, and none before; of equals the first comes first."""
    least = {(1,): 3.0, (2,): 1.0, (3,): 9.0, (4,): 4.0}
    takes = {(1,): [4.0, 6.0], (2,): [5.0], (3,): [9.0], (4,): [4.0]}
    asked: list[Tile] = []

    def rank(at: Tile) -> list[Ranked]:
        asked.append(at)
        made = [SimpleNamespace(seconds=s) for s in takes[at]]
        return [Ranked({"BN": at[0]}, None, cast(Estimate, e)) for e in made]

    def order(r: Ranked) -> float:
        assert r.estimate is not None
        return r.estimate.seconds

    found = Tried(least.__getitem__, rank, order)
    assert found.fastest([(1,), (2,), (3,)]) == (1,) and asked == [(2,), (1,)]
    assert found.fastest([(4,), (1,)]) == (4,) and asked[2:] == [(4,)]
    rows = iter(found)
    shown = [(r.constants["BN"], order(r)) for r in itertools.islice(rows, 4)]
    assert shown == [(1, 4.0), (4, 4.0), (2, 5.0), (1, 6.0)] and (3,) not in asked
    assert [r.constants["BN"] for r in rows] == [3] and len(asked) == 4
    assert [*found] == [*found]
