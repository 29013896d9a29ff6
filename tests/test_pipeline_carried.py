"""expand_pipeline: what a loop carries while its tiles run ahead is known behind it, on every
target and by every way that tiles take."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from simulated import run_compiled

import tilec
import tilec.language as T

TARGETS = ("cpu", "cuda:sm_80", "cuda:sm_90a", "hip:gfx942")
N = T.dynamic("N")


def sums(dtype: str, width: int) -> Any:
    @tilec.kernel
    def kernel(A: T.Tensor((8, N), dtype), B: T.Tensor((8, 32), "float32")):
        with T.Kernel(1, threads=(32, 8)):
            x, y = T.get_thread_binding(0), T.get_thread_binding(1)
            total = T.alloc_local((1,), "float32")
            T.clear(total)
            s = T.alloc_shared((8, width), dtype)
            for k in T.Pipelined(T.ceildiv(N, width), num_stages=2):
                T.copy(A[0, k * width], s, disable_tma=True)
                for i in T.serial(width // 32):
                    total[0] += T.cast(s[y, x * (width // 32) + i], "float32")
            B[y, x] = total[0] + T.shfl_xor(total[0], 1)

    return kernel


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("dtype", "n"), [("float16", 512), ("float32", 3 * 256), ("float16", 130)])
def test_a_sum_of_each_thread(target: str, dtype: str, n: int) -> None:
    a = np.random.default_rng(0).integers(-4, 5, (8, n)).astype(dtype)
    b = np.zeros((8, 32), np.float32)
    run_compiled(sums(dtype, 256), target, a, b)
    whole = np.zeros((8, -(-n // 256) * 256))
    whole[:, :n] = a
    own = whole.reshape(8, -1, 32, 8).sum((1, 3))
    assert np.array_equal(b, own + own[:, np.arange(32) ^ 1])
