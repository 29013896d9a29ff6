"""A product of one warpgroup ends for all four warps at once, however late one of them comes: on
this ground `insert_sync` puts no barrier between a product and what overwrites its operands."""

from __future__ import annotations

import re
import sys
from typing import Any

import numpy as np
import pytest

import tilec
import tilec.codegen.assemble
import tilec.language as T

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch")

ASSEMBLE: Any = sys.modules["tilec.codegen.assemble"]
STEPS, CLOCKS = 8, 20000  # what a warp sleeps, in ns


@tilec.kernel
def overwritten(
    A: T.Tensor((64, 64), "float16"),
    B: T.Tensor((64, 64), "float16"),
    C: T.Tensor((STEPS, 64, 64), "float32"),
    late: T.constexpr,  # a variant for each
):
    """Products by B, 1, 2, ..., each in the shared memory of the one before."""
    with T.Kernel(1, threads=128):
        a, b = T.alloc_shared((64, 64), "float16"), T.alloc_shared((64, 64), "float16")
        c = T.alloc_fragment((64, 64), "float32")
        T.copy(A, a)
        T.copy(B, b)
        for n in T.serial(STEPS):
            T.gemm(a, b, c, clear_accum=True)
            for i, j in T.Parallel(64, 64):
                b[i, j] = n + 1
            T.copy(c, C[n, 0, 0])


@pytest.mark.parametrize("test, warp", [("eq", 0), ("eq", 2), ("ne", 0), ("ne", 3)])
def test_late_warps(test: str, warp: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("wgmma")
    assemble, sleeps = ASSEMBLE.run_ptxas, []
    sleep = (
        "{ .reg .pred q; .reg .b32 t; mov.u32 t, %tid.x; shr.u32 t, t, 5;"
        f" setp.{test}.u32 q, t, {warp}; @q nanosleep.u32 {CLOCKS}; }}\n"
    )

    def with_sleep(ptxas: Any, ptx: str, arch: str) -> Any:
        assert "wgmma" in ptx and ptx.count("bar.sync") <= 2  # one in front, one for each product
        ptx, found = re.subn(r"(?=\{[^\n]*wgmma\.fence)", sleep, ptx)
        sleeps.append(found)
        return assemble(ptxas, ptx, arch)

    monkeypatch.setattr(ASSEMBLE, "run_ptxas", with_sleep)
    monkeypatch.setenv("TILEC_DISABLE_CACHE", "1")
    rng = np.random.default_rng(warp)
    a, b = (torch.from_numpy(rng.standard_normal((64, 64))).cuda().half() for _ in range(2))
    c = torch.full((STEPS, 64, 64), float("nan"), device="cuda")
    overwritten(a, b, c, late=f"{test} {warp}")
    if not sleeps:
        pytest.skip("the driver assembles")
    others = (
        torch.arange(STEPS, device="cuda").double()[:, None, None].expand(STEPS, 64, 64).clone()
    )
    others[0] = b.double()
    torch.testing.assert_close(c.double(), a.double() @ others, atol=1e-3, rtol=0)
    assert sleeps == [1]
