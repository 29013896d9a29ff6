"""Barriers, TMA copies and groups of threads by hand, on a GPU."""

from __future__ import annotations

from typing import Any

import barrier_programs as programs
import numpy as np
import pytest

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch")

HOPPER = ("ring", "apart", "together", "parts")
SIZES = ((128, 64, 160), (1000, 712, 1096), (130, 65, 90), (1, 1, 1), (2048, 2048, 4096))


def made(m: int, n: int, k: int) -> Any:
    torch.manual_seed(m + n + k)
    a = torch.randn(m, k, device="cuda").half()
    b = torch.randn(k, n, device="cuda").half()
    return a, b, torch.full((m, n), float("nan"), device="cuda"), a.double() @ b.double()


def check(kernel: Any, size: tuple[int, int, int], **meta: Any) -> None:
    a, b, c, want = made(*size)
    for _ in range(3):
        kernel(a, b, c, **meta)
    torch.cuda.synchronize()
    np.testing.assert_allclose(c.cpu().numpy(), want.cpu().numpy(), atol=2e-4 * size[2] ** 0.5)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("name", [*HOPPER, "in_flight", "shared_tile"])
def test_products(name: str, size: tuple[int, int, int]) -> None:
    if name in HOPPER and torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("mbarriers and TMA")
    check(getattr(programs, name), size)


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_stages_of_a_ring(stages: int) -> None:
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("mbarriers and TMA")
    check(programs.ring, (512, 512, 2080), stages=stages)


@pytest.mark.parametrize("shape", [(32, 64), (170, 330), (1, 1), (4096, 1024)], ids=str)
def test_tiles_leave(shape: tuple[int, int]) -> None:
    x = torch.randn(shape, device="cuda")
    y = torch.zeros_like(x)
    programs.stored(x, y)
    torch.testing.assert_close(y, x + 1)
