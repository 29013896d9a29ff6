"""TMA stores whole 16 bytes: what it may not store to are rows that end within them, with something
else behind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from mutant_families import product_kernel

import tilec
from tilec.ir.errors import LaunchError

KERNEL = product_kernel(persistent=False)
STORE = "cp.async.bulk.tensor.2d.global"


def arrays(n: int, gap: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A (50, 152), B (n, 152), and C (50, n) in rows that are `gap` elements longer."""
    rng = np.random.default_rng(n)
    a, b = (rng.standard_normal((m, 152)).astype(np.float16) for m in (50, n))
    return a, b, np.full((50, n + gap), 7, np.float32)[:, :n]


def compiled(*given: Any) -> Any:
    return KERNEL.plan_launch("cuda:sm_90a", None, given, {}).variant


@pytest.mark.parametrize(
    ("n", "gap", "by_tma"),
    [(72, 0, True), (72, 4, True), (71, 1, False), (70, 2, False), (1, 3, False), (71, 0, False)],
)
def test_who_stores(n: int, gap: int, by_tma: bool) -> None:
    a, b, c = arrays(n, gap)
    assert (STORE in compiled(a, b, c).stages["ptx"]) == by_tma
    wide = (n + gap) * 4 % 16 == 0  # so threads may store 16 bytes at a time
    assert by_tma or ("st.global.v4.b32" in compiled(a, b, c).stages["ptx"]) == wide
    report = tilec.simulate(KERNEL, a, b, c, target="cuda:sm_90a")
    assert not report.findings, str(report)
    np.testing.assert_allclose(c, a.astype(np.float64) @ b.T.astype(np.float64), atol=1e-3)
    assert c.base is not None and (c.base[:, n:] == 7).all()


def test_loads_take_ragged_rows() -> None:
    """TMA reads whole 16 bytes too, and fills what is outside."""
    a, b, c = arrays(72, 0)
    wide = np.full((50, 160), np.nan, np.float16)
    wide[:, :150] = a[:, :150]
    loads = "cp.async.bulk.tensor.2d.shared"
    given = wide[:, :150], b[:, :150], c
    assert loads in compiled(*given).stages["ptx"] and STORE in compiled(*given).stages["ptx"]
    assert not tilec.simulate(KERNEL, *given, target="cuda:sm_90a").findings
    want = a[:, :150].astype(np.float64) @ b[:, :150].T.astype(np.float64)
    np.testing.assert_allclose(c, want, atol=1e-3)


def test_a_variant_for_whole_rows_refuses_others() -> None:
    whole = compiled(*arrays(72, 4))
    call = KERNEL.plan_launch("cuda:sm_90a", None, arrays(71, 1), {}).call
    with pytest.raises(LaunchError, match="C: this variant was compiled for rows of whole 16"):
        whole._check_facts(replace(call, device="cuda"))
