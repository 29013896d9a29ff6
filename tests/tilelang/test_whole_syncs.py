"""T.sync_threads in branches that threads take apart: of a branch's threads, or of the block."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilec
import tilec.tilelang as tilelang
import tilec.tilelang.language as T

# mypy: ignore-errors

WHOLE = {tilelang.PassConfigKey.TL_DISABLE_THREAD_STORAGE_SYNC: True}


def passed_on(annotated: Any = None, **options: Any) -> Any:
    """One group writes what the others read behind a barrier that each of them has."""

    @tilelang.jit(out_idx=[1], **options)
    def program(n: int):
        @T.prim_func
        def main(A: T.Tensor((n,), "float32"), B: T.Tensor((n, 384), "float32")):
            T.annotate_pass_configs(annotated or {})
            with T.Kernel(n, threads=384) as bx:
                s = T.alloc_shared((1,), "float32")
                x = T.get_thread_binding()
                if x < 128:
                    if x == 0:
                        s[0] = A[bx] * 2
                    T.sync_threads()
                    B[bx, x] = s[0]
                elif x < 256:
                    T.sync_threads()
                    B[bx, x] = s[0] + 1
                else:
                    T.sync_threads()
                    B[bx, x] = s[0] + 2

        return main

    return program(3)


def simulated(program: Any) -> tuple[Any, np.ndarray, np.ndarray]:
    a = np.arange(3, dtype=np.float32) + 1
    report = tilec.simulate(program.kernel, a, target="cuda:sm_90a")
    return report, next(iter(report.outputs.values())), a


@pytest.mark.parametrize(
    "options",
    [
        {"pass_configs": WHOLE},
        {"pass_configs": {"tl.disable_thread_storage_sync": True}},
        {"annotated": {tilelang.PassConfigKey.TL_DISABLE_THREAD_STORAGE_SYNC: True}},
    ],
)
def test_of_the_block(options: Any) -> None:
    program = passed_on(**options)
    report, got, a = simulated(program)
    assert report.ok, str(report)
    assert np.array_equal(got, a[:, None] * 2 + np.arange(384) // 128)


def test_of_the_threads_of_a_branch() -> None:
    report, _, _ = simulated(passed_on())
    assert "data race" in str(report)


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_80", "cuda:sm_90a", "hip:gfx942"])
def test_where_all_come(target: str) -> None:
    @T.prim_func
    def main(A: T.Tensor((64,), "float32"), n: T.int32, B: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            s = T.alloc_shared((64,), "float32")
            x = T.get_thread_binding()
            if n > 0:
                s[x] = A[x]
                T.sync_threads()
                B[x] = s[63 - x]

    program = tilelang.compile(main, pass_configs=WHOLE)
    a, b = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    if target == "cpu":
        program(a, 1, b)
    else:
        assert tilec.simulate(program.kernel, a, 1, b, target=target).ok
    assert np.array_equal(b, a[::-1])
