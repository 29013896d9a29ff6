"""TL_ENABLE_FAST_MATH and --use_fast_math: functions of float32 as the hardware has them."""

from typing import Any

import numpy as np
import pytest

import tilec
import tilec.tilelang as tilelang
import tilec.tilelang.language as T

# mypy: ignore-errors

KEY = tilelang.PassConfigKey.TL_ENABLE_FAST_MATH
ASKING = [
    {"pass_configs": {KEY: True}},
    {"pass_configs": {"tl.enable_fast_math": True}},
    {"compile_flags": ["-O3", "--use_fast_math"]},
    {"compile_flags": "-use_fast_math"},
    {"annotated": {KEY: True}},
    {"flags": "--use_fast_math"},
]
NOT_ASKING = [{}, {"pass_configs": {KEY: False}}, {"compile_flags": ["-O3"]}]
APPROXIMATE = ("sin.approx", "cos.approx", "lg2.approx", "tanh.approx")
N = 256


def functions(annotated: Any = None, flags: Any = (), dtype: str = "float32", **options: Any):
    @tilelang.jit(out_idx=[1], **options)
    def program(n: int):
        @T.prim_func
        def main(A: T.Tensor((n,), dtype), B: T.Tensor((5, n), dtype)):
            T.annotate_pass_configs(annotated or {})
            T.annotate_compile_flags(flags)
            with T.Kernel(1, threads=64):
                for i in T.Parallel(n):
                    B[0, i] = T.sin(A[i])
                    B[1, i] = T.cos(A[i])
                    B[2, i] = T.log(A[i])
                    B[3, i] = T.tanh(A[i])
                    B[4, i] = T.exp(A[i])

        return main

    return program(N)


def text_of(program: Any, target: str, stage: str) -> str:
    specs = [tilec.spec((N,), program.kernel.parameters[0].dtype)]
    return program.kernel.compile(*specs, target=target).stages[stage]


@pytest.mark.usefixtures("unassembled")
@pytest.mark.parametrize("options", ASKING, ids=str)
def test_asked_for(options: dict[str, Any]) -> None:
    program = functions(**options)
    ptx = text_of(program, "cuda:sm_90a", "ptx")
    assert all(word in ptx for word in APPROXIMATE)
    gcn = text_of(program, "hip:gfx942", "gcn")
    assert all(word in gcn for word in ("v_sin_f32", "v_cos_f32", "v_log_f32"))


@pytest.mark.usefixtures("unassembled")
@pytest.mark.parametrize("options", NOT_ASKING, ids=str)
def test_not_asked_for(options: dict[str, Any]) -> None:
    ptx = text_of(functions(**options), "cuda:sm_90a", "ptx")
    assert not any(word in ptx for word in ("sin.approx", "cos.approx", "tanh.approx"))


@pytest.mark.usefixtures("unassembled")
def test_of_float64_there_are_none() -> None:
    ptx = text_of(functions(dtype="float64", pass_configs={KEY: True}), "cuda:sm_90a", "ptx")
    assert not any(word in ptx for word in APPROXIMATE)


@pytest.mark.parametrize("target", ["cuda:sm_80", "cuda:sm_90a", "hip:gfx942"])
def test_numbers(target: str) -> None:
    program = functions(pass_configs={KEY: True})
    a = np.linspace(0.1, 3, N, dtype=np.float32)
    report = tilec.simulate(program.kernel, a, target=target)
    assert report.ok, str(report)
    check(next(iter(report.outputs.values())), a)


def test_numbers_on_the_cpu() -> None:
    """Which has no faster forms."""
    a = np.linspace(0.1, 3, N, dtype=np.float32)
    check(functions(pass_configs={KEY: True}).kernel(a), a)


def check(got: np.ndarray, a: np.ndarray) -> None:
    x = a.astype(np.float64)
    want = np.stack([np.sin(x), np.cos(x), np.log(x), np.tanh(x), np.exp(x)])
    np.testing.assert_allclose(got, want, rtol=6e-4, atol=2e-6)
