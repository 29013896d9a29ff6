"""Products whose operands carry scales: per tensor, row, column and block of 128, applied while the
product is in registers. Run for the CPU and, thread by thread, under every plan of GPU targets."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from form_help import GPUS, SM90, Arrays, aligned, close, lowered, on_cpu, on_threads, tile_func
from form_programs import Kernel, block_scaled, tensor_row_column_scaled

from tilec.codegen import assemble, emit
from tilec.ir.core import walk
from tilec.ir.ops import TmaLoad
from tilec.target import Target

Rng = np.random.Generator
NUMPY: dict[str, Any] = {"float16": np.float16, "float8_e4m3": ml_dtypes.float8_e4m3fn}
EVERYWHERE = pytest.mark.parametrize(
    "target", [None, *GPUS], ids=lambda t: t.arch if t is not None else "cpu"
)
DTYPES = pytest.mark.parametrize("dtype", ["float16", "float8_e4m3"])
TOLERANCE = 4e-3  # of a result in bfloat16


def operands(rng: Rng, m: int, n: int, k: int, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    return tuple(  # type: ignore[return-value]
        aligned(rng.standard_normal(s).astype(NUMPY[dtype])) for s in ((m, k), (n, k))
    )


def blank(m: int, n: int) -> np.ndarray:
    return aligned(np.full((m, n), np.nan, ml_dtypes.bfloat16))


def scales(rng: Rng, *shape: int) -> np.ndarray:
    return aligned(rng.uniform(0.25, 4, shape).astype(np.float32))


def by_blocks(
    rng: Rng, m: int, n: int, k: int, dtype: str, sa_by_columns: bool
) -> tuple[Arrays, np.ndarray]:
    a, w = operands(rng, m, n, k, dtype)
    blocks = -(-k // 128)
    sa, sw = scales(rng, m, blocks), scales(rng, -(-n // 128), blocks)
    want = np.zeros((m, n))
    for b in range(blocks):
        part = slice(128 * b, 128 * (b + 1))
        columns = np.repeat(sw[:, b], 128)[:n].astype(np.float64)
        want += (
            a[:, part].astype(np.float64)
            @ w[:, part].astype(np.float64).T
            * np.outer(sa[:, b], columns)
        )
    given = aligned(sa.T) if sa_by_columns else sa
    return {"A": a, "W": w, "SA": given, "SW": sw, "C": blank(m, n)}, want


def check(kernel: Kernel, target: Target | None, arrays: Arrays, want: np.ndarray) -> list[int]:
    """Run everywhere; the number of boxes that each plan's producer loads."""
    if target is None:
        close(on_cpu(kernel, arrays)["C"], want, TOLERANCE)
        return []
    boxes = []
    for _, done, held in on_threads(tile_func(kernel, arrays), target, arrays):
        close(held["C"], want, TOLERANCE)
        boxes.append(sum(isinstance(o, TmaLoad) for o in walk(done.body)))
    return boxes


@pytest.mark.covering(2)
@EVERYWHERE
@DTYPES
@pytest.mark.parametrize("sa_by_columns", [True, False], ids=["by columns", "by rows"])
def test_blocks_of_128(sa_by_columns: bool, dtype: str, target: Target | None, rng: Rng) -> None:
    arrays, want = by_blocks(rng, 40, 136, 144, dtype, sa_by_columns)
    boxes = check(block_scaled(sa_by_columns, dtype), target, arrays, want)
    if target is SM90 and dtype == "float8_e4m3":
        assert max(boxes) == 2 + sa_by_columns  # the scales of 64 rows are a box of their own


@pytest.mark.covering(1)
@EVERYWHERE
@DTYPES
def test_tensor_row_and_column(dtype: str, target: Target | None, rng: Rng) -> None:
    a, w = operands(rng, 70, 72, 80, dtype)
    arrays = {"A": a, "W": w, "alpha": scales(rng, 1), "rows": scales(rng, 70),
              "columns": scales(rng, 72), "C": blank(70, 72)}  # fmt: skip
    want = a.astype(np.float64) @ w.astype(np.float64).T * arrays["alpha"]
    want *= np.outer(arrays["rows"], arrays["columns"])
    check(tensor_row_column_scaled(dtype), target, arrays, want)


def test_a_block_is_one_product_and_one_addition_per_element(rng: Rng) -> None:
    """wgmma's own accumulator starts anew in each block, and each element is one fused
    multiply-add."""
    arrays, _ = by_blocks(rng, 72, 144, 272, "float8_e4m3", True)
    func = tile_func(block_scaled(True), arrays)
    for plan, done in lowered(func, SM90, some=True):
        if not plan.specialise:
            continue
        made: Any = assemble(emit(done, SM90), SM90)
        assert not made.advisories and not made.spilled_bytes
        assert made.asm.count("wgmma.mma_async") == 4
        assert 64 <= made.asm.count("fma.rn.f32") < 72  # 64 x 128 elements, 128 threads
