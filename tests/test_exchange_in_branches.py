"""Threads of a branch that tell one another something by shared memory: whole warps are a group,
whose accesses are in order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilec
import tilec.language as T

pytestmark = pytest.mark.usefixtures("unassembled")

M = T.dynamic("M")


@tilec.kernel
def maxima(X: T.Tensor((M, 128), "float32"), Y: T.Tensor((M, 128), "float32"), who: T.constexpr):
    """`who` of 256 threads take the maximum of four columns' numbers, and put it where others of
    them may still have to read."""
    with T.Kernel(T.ceildiv(M, 2), threads=256) as b:
        s = T.alloc_shared((4, 256), "float32")
        t = T.get_thread_binding()
        for i in range(4):
            s[i, t] = X[b * 2 + t // 128, (t * 4 + i) % 128]
        best = T.alloc_var("float32", 0.0)
        if t < who:
            for i in T.serial(t // 4, 256, 32):
                best = T.max(best, s[t % 4, i])
            s[0, t] = best
        Y[b * 2 + t // 128, t % 128] = s[0, t % who]


def expected(x: np.ndarray, who: int) -> np.ndarray:
    want = np.zeros_like(x)
    for b in range(len(x) // 2):
        t = np.arange(256)
        s = np.stack([x[b * 2 + t // 128, (t * 4 + i) % 128] for i in range(4)])
        best = np.array([s[k % 4, k // 4 :: 32].max() for k in range(who)])
        want[b * 2 : b * 2 + 2] = best[t % who].reshape(2, 128)
    return want


@pytest.mark.parametrize("target", ["cuda:sm_90a", "cuda:sm_80"])
@pytest.mark.parametrize("who", [32, 128])
def test_a_group_is_in_order(who: int, target: str, rng: np.random.Generator) -> None:
    x, y = rng.random((8, 128), np.float32), np.full((8, 128), np.nan, np.float32)
    report = tilec.simulate(maxima, x, y, who, target=target, schedules=3)
    assert not report.findings, report
    np.testing.assert_array_equal(y, expected(x, who))
    stages = maxima.compile(x, y, who, target=target).stages
    assert f"barrier id=15, threads={who}" in stages["insert_sync"]


@pytest.mark.parametrize(("who", "target"), [(100, "cuda:sm_90a"), (128, "hip:gfx942")])
def test_what_is_no_group_is_the_authors_to_order(
    who: int, target: str, rng: np.random.Generator
) -> None:
    """Parts of warps, and where there is no barrier for a part of a block."""
    x, y = rng.random((8, 128), np.float32), np.full((8, 128), np.nan, np.float32)
    report = tilec.simulate(maxima, x, y, who, target=target)
    assert [f.kind for f in report.findings] == ["overwritten before read"]


@pytest.mark.gpu
def test_on_a_gpu(torch: Any) -> None:
    x = torch.rand(2000, 128, device="cuda")
    want = torch.from_numpy(expected(x.cpu().numpy(), 128))
    for _ in range(200):
        y = torch.full_like(x, float("nan"))
        maxima(x, y, 128)
        assert torch.equal(y.cpu(), want)
