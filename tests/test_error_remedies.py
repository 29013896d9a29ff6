"""Messages whose remedy would not have helped: each names what is wrong and what mends it."""

from __future__ import annotations

import numpy as np
import pytest

import tilec
import tilec.language as T
from tilec.ir.errors import CompileError


def every_other_row(rows: int) -> tilec.Kernel:
    @tilec.kernel
    def every_other(A: T.Tensor((64, 64), "float16"), C: T.Tensor((64, 64), "float16")):
        with T.Kernel(1, threads=128) as _:
            s = T.alloc_shared((rows, 64), "float16")
            T.copy(A[0:64:2, :], s)
            T.copy(s, C[0, 0])

    return every_other


def test_a_slice_with_a_step_asks_for_its_own_tile() -> None:
    x, y = np.ones((64, 64), np.float16), np.zeros((64, 64), np.float16)
    with pytest.raises(CompileError) as caught:
        every_other_row(64)(x, y)
    assert caught.value.hint == 'allocate s as T.alloc_shared((32, 64), "float16")'
    every_other_row(32)(x, y)
    assert y[:32].all()


@pytest.mark.parametrize("stages", [0, 1])
def test_producers_that_may_not_run_ahead(stages: int) -> None:
    """Where the rows lie is not what keeps them from it."""

    @tilec.kernel
    def sums(A: T.Tensor((64, 256), "float16"), C: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=128) as _:
            T.annotate_schedule(specialise=True)
            a = T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            T.clear(c)
            for k in T.Pipelined(4, num_stages=stages):
                T.copy(A[0, k * 64], a)
                for i, j in T.Parallel(64, 64):
                    c[i, j] += a[i, j]
            T.copy(c, C)

    given = tilec.spec((64, 256), "float16"), tilec.spec((64, 64), "float32")
    with pytest.raises(CompileError) as caught:
        sums.compile(*given, target="cuda:sm_90a")
    assert f"num_stages={stages} of T.Pipelined (line 44)" in caught.value.message
    assert caught.value.hint == "leave specialise out, or write num_stages=2 or more"
