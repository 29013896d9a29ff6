"""Fragments that a loop takes in another layout than theirs."""

from __future__ import annotations

import numpy as np
import pytest
from simulated import run

import tilec
import tilec.language as T

pytestmark = pytest.mark.turns

GPUS = ("cuda:sm_80", "cuda:sm_90a", "hip:gfx942")
TURNED = T.Fragment((32,), forward_fn=lambda i: (i % 8 * 4 + i // 8, 0))
IN_ORDER = T.Fragment((32,), forward_fn=lambda i: (i, 0))


@tilec.kernel
def set_and_read(A: T.Tensor((32,), "float32"), B: T.Tensor((32,), "float32")):
    with T.Kernel(1, threads=32):
        x = T.alloc_fragment((32,), "float32")
        T.annotate_layout({x: TURNED})
        for i in T.Parallel(32, loop_layout=IN_ORDER):
            x[i] = A[i] + 1.0
            B[i] = x[i]


@tilec.kernel
def set_in_part_and_read(A: T.Tensor((32,), "float32"), B: T.Tensor((32,), "float32")):
    with T.Kernel(1, threads=32):
        x = T.alloc_fragment((32,), "float32")
        T.annotate_layout({x: TURNED})
        T.fill(x, 1.0)
        for i in T.Parallel(32, loop_layout=IN_ORDER):
            if A[i] > 0:
                x[i] = A[i] + 1.0
            B[i] = x[i]


@pytest.mark.parametrize("target", ["cpu", *GPUS])
def test_what_an_iteration_has_set_is_not_fetched(target: str) -> None:
    """Nobody has written it before: the simulator reports who reads it."""
    a, b = np.arange(-16, 16, dtype=np.float32), np.full(32, np.nan, np.float32)
    run(set_and_read, target, a, b)
    assert (b == a + 1).all()
    run(set_in_part_and_read, target, a, b)
    assert (b == np.maximum(a, 0) + 1).all()


@pytest.mark.parametrize("target", GPUS)
def test_only_the_result_is_moved(target: str) -> None:
    args = (tilec.spec((32,), "float32"),) * 2
    text = set_and_read.compile(*args, target=target).stages["infer_layouts"]
    assert text.count("copy %") == 1
    text = set_in_part_and_read.compile(*args, target=target).stages["infer_layouts"]
    assert text.count("copy %") == 2
