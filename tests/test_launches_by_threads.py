"""Launches of one kernel from several threads, while it forgets what it has made ready, drops
variants and begins anew."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import tilec
import tilec.language as T

N = T.dynamic("N")


@tilec.kernel(out=["Y"])
def shifted(
    X: T.Tensor((N,), "float32"), Y: T.Tensor((N,), "float32"), by: T.float32, BN: T.constexpr = 32
):
    with T.Kernel(T.ceildiv(N, BN), threads=32) as b:
        for i in T.Parallel(BN):
            Y[b * BN + i] = X[b * BN + i] + by


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Threads are changed often, and tables are full soon."""
    monkeypatch.setattr(sys.modules["tilec.jit.recipe"], "LIMIT", 60)
    monkeypatch.setattr(sys.modules["tilec.kernel"], "MOST_KEPT", 4)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.parametrize("clearing", [False, True])
def test_what_is_forgotten_in_between(clearing: bool) -> None:
    kernel = tilec.kernel(out=["Y"])(shifted.function)
    failures: list[Any] = []

    def work(seed: int) -> None:
        for i in range(400):
            x = np.full(1 + (97 * seed + i) % 500, i, np.float32)
            for _ in range(2):  # what is made ready for a size is remembered by the second
                y = kernel(x, float(seed), BN=32 << (i // 100 % 2))
                if not (y == i + seed).all():
                    failures.append((seed, i))
            if clearing and i % 50 == 0:
                kernel.clear()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    assert not failures
