"""Tiles that are larger than one that has no room are not traced, and nothing else is left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from unittest import mock

import mha_fwd
import pytest

import tilec
import tilec.language as T
from tilec.ir.core import Func
from tilec.tune.choose import Choice, Chooser


def chosen(kernel: Any, specs: list[Any], target: str) -> tuple[Choice, list[Mapping[str, int]]]:
    """What is chosen, and the tiles that were traced for it."""
    traced: list[Mapping[str, int]] = []
    asked = kernel.described(specs, target, {})
    build = kernel.choices.traced

    def counted(signature: Any, key: Any, constants: Mapping[str, int]) -> Func:
        traced.append(constants)
        made: Func = build(signature, key, constants)
        return made

    with mock.patch.object(kernel.choices, "traced", counted):
        found = kernel.choices.rank(asked.key(), asked)
    kernel.choices._choosers.clear()
    return found, traced


def compared(kernel: Any, specs: list[Any], target: str) -> tuple[int, int]:
    """How many tiles are traced, and how many there are: the choice is the same from all."""
    found, traced = chosen(kernel, specs, target)
    with mock.patch.object(Chooser, "_is_too_large", lambda self, at: False):
        want, every = chosen(kernel, specs, target)
    assert found.constants == want.constants and found.ranked == want.ranked
    return len(traced), len(every)


@pytest.mark.parametrize(
    ("target", "dim", "most"),
    [
        ("cuda:sm_90a", 256, 12),
        ("cuda:sm_90a", 64, 25),
        ("cuda:sm_80", 256, 12),
        ("hip:gfx942", 128, 20),
    ],
)
def test_attention(target: str, dim: int, most: int) -> None:
    traced, every = compared(
        mha_fwd.mha.__wrapped__(dim, dim, True), mha_fwd.specs(dim, dim), target
    )
    assert every == 25 and traced <= most
    assert traced < every or dim == 64  # all of which fit


@tilec.kernel
def row_sums(
    A: T.Tensor((4096, 4096), "float32"),
    B: T.Tensor((4096,), "float32"),
    ROWS: T.constexpr = T.auto(8, 16, 32, 64, 128, 256),
    COLUMNS: T.constexpr = T.auto(64, 128, 256, 512, 1024),
):
    with T.Kernel(T.ceildiv(4096, ROWS)) as bx:
        a = T.alloc_shared((ROWS, COLUMNS), "float32")
        part = T.alloc_fragment((ROWS,), "float32")
        total = T.alloc_fragment((ROWS,), "float32")
        T.clear(total)
        for k in T.Pipelined(4096 // COLUMNS, num_stages=2):
            T.copy(A[bx * ROWS : (bx + 1) * ROWS, k * COLUMNS : (k + 1) * COLUMNS], a)
            T.reduce_sum(a, part, dim=1)
            for i in T.Parallel(ROWS):
                total[i] += part[i]
        T.copy(total, B[bx * ROWS : (bx + 1) * ROWS])


def test_no_product() -> None:
    specs = [tilec.spec((4096, 4096), "float32"), tilec.spec((4096,), "float32")]
    traced, every = compared(row_sums, specs, "cuda:sm_90a")
    assert every == 30 and traced < every


@tilec.kernel
def slices(
    A: T.Tensor((1 << 20,), "float32"),
    B: T.Tensor((1 << 20,), "float32"),
    PARTS: T.constexpr = T.auto(1, 2, 4, 8),
):
    with T.Kernel(16) as bx:
        a = T.alloc_shared((65536 // PARTS,), "float32")
        for k in T.Pipelined(PARTS, num_stages=2):
            T.copy(A[bx * 65536 + k * (65536 // PARTS) :], a)
            T.copy(a, B[bx * 65536 + k * (65536 // PARTS) :])


def test_an_argument_that_makes_tiles_smaller() -> None:
    """The first value has no room, and says nothing of those that are larger."""
    specs = [tilec.spec((1 << 20,), "float32") for _ in range(2)]
    traced, every = compared(slices, specs, "cuda:sm_90a")
    assert traced == every == 4
