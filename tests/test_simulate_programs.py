"""Whole programs in the simulator: the examples, programs as users write them, a published kernel
with a fault. The numbers are the right ones, and nothing is found where nothing is wrong."""

from __future__ import annotations

import importlib
import zlib
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from simulated import simulated
from test_examples import PRINT_ONE_LINE, run_example
from test_frontend_programs import load_seed
from user_programs import CASES

import tilec
import tilec.language as T
from tilec.ir.core import Func
from tilec.ir.ops import WgmmaWait
from tilec.jit.simulate import simulate_changed
from tilec.target import find_target

pytestmark = pytest.mark.usefixtures("unassembled")
TARGETS = ("cuda:sm_90a", "cuda:sm_80", "hip:gfx942", "hip:gfx950")
IN_TURN = (*TARGETS[:3], *TARGETS[:2], TARGETS[3])
FNUZ = {
    np.dtype(ml_dtypes.float8_e4m3fn): ml_dtypes.float8_e4m3fnuz,
    np.dtype(ml_dtypes.float8_e5m2): ml_dtypes.float8_e5m2fnuz,
}


def findings(report: Any) -> list[str]:
    return [f"{f.kind}: {f.message}" for f in report.findings]


SMALLER = {  # as many steps of each loop, and fewer rows
    "row_cumsum": ((2, 4096), (3, 1), (1, 5001)),
    "split_k": ((33, 40, 2600), (1, 1, 1)),
    "fused_epilogue": ((75, 200, 40),),
    "levels": ((1, 1, 1), (70, 90, 50)),
    "hadamard": ((2, 1000), (1, 4096), (3, 1), (1, 64)),
    "sparse_gemm": ((33, 65, 176), (1, 1, 16)),
    "layer_norm": ((2, 4096), (3, 1), (2, 1000)),
    "rms_norm": ((2, 4096), (3, 1), (2, 1000)),
    "softmax": ((4, 512), (3, 1), (2, 4097)),
    "long_softmax": ((2, 16384), (3, 4100), (3, 1)),
    "fp8_quantise": ((2, 4096), (3, 1), (2, 1000)),
    "top_k": ((2, 2048, 8), (3, 1, 1), (2, 1000, 5)),
    "gemv": ((9, 2048), (1, 1), (5, 1001)),
    "histogram": (1, 5000, 20_000),
    "tensor_sum": (1, 5000, 9001),
}
FEWER = {"matmul": 4, "grouped_gemm": 3}  # each fourth case, or third: the CPU has them all


@pytest.mark.parametrize("number", range(len(PRINT_ONE_LINE)), ids=PRINT_ONE_LINE)
def test_example(
    number: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each on one target; its own checks hold."""
    monkeypatch.setattr(importlib.import_module("example_support"), "ON_GPU", False)
    target = IN_TURN[number % 6]
    if "fp8" in PRINT_ONE_LINE[number] and find_target(target).has("float8_fnuz"):
        target = "hip:gfx950"  # the example's numbers are those of the other float8
    name = PRINT_ONE_LINE[number]
    if name in FEWER:
        example = importlib.import_module(name)
        some = [*example.cases()][:: FEWER[name]]
        monkeypatch.setattr(example, "cases", lambda: some)
    with simulated(target) as reports:
        run_example(name, capsys, *([SMALLER[name]] if name in SMALLER else []))
    assert reports
    for r in reports:
        assert not findings(r)


NAMES = sorted(
    n for n in CASES if zlib.crc32(n.encode()) % (8 if n.startswith("cast_") else 2) == 0
)  # all of them run thread by thread, and those with loops here of few iterations


@pytest.mark.parametrize("number", range(len(NAMES)), ids=NAMES)
def test_program(number: int) -> None:
    """Each on one target."""
    case, target = CASES[NAMES[number]], IN_TURN[number % 6]
    arrays = case.make(np.random.default_rng(number))
    if find_target(target).has("float8_fnuz"):
        if any(a.dtype in FNUZ for a in arrays.values()):
            pytest.skip("float8 of another kind")
    want = case.want({n: a.copy() for n, a in arrays.items()})
    report = tilec.simulate(tilec.kernel(case.function), **arrays, target=target, **case.options)
    assert not findings(report)
    for name, right in want.items():
        got, right = arrays[name].astype(np.float64), np.asarray(right, np.float64)
        scale = np.abs(right[np.isfinite(right)]).max(initial=1.0)
        np.testing.assert_allclose(got, right, rtol=case.tolerance, atol=case.tolerance * scale)


# --- a published kernel with a fault --------------------------------------------------------------


def chunk_state(initial: bool, target: str) -> tuple[Any, float]:
    """Report and relative error of TileLang's chunk state kernel."""
    batch, length, heads, dk, dv, chunk = 1, 128, 1, 64, 32, 64
    types = ("bfloat16", "bfloat16", "float32", "float32", "float32")
    kernel = load_seed("tilelang_chunk_delta_h").chunk_gated_delta_rule_fwd_h(
        batch, length, heads, dk, dv, *types, chunk, True, initial, True, True
    )
    rng = np.random.default_rng(dk + dv)

    def bf16(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) / 8).astype(ml_dtypes.bfloat16)

    k, w = bf16(batch, length, heads, dk), bf16(batch, length, heads, dk)
    u, start = bf16(batch, length, heads, dv), bf16(batch, heads, dk, dv)
    steps = -np.log1p(np.exp(-rng.standard_normal((batch, length // chunk, chunk, heads))))
    g = steps.cumsum(2).reshape(batch, length, heads).astype(np.float32)
    h = np.zeros((batch, length // chunk, heads, dk, dv), ml_dtypes.bfloat16)
    final, new = np.zeros((batch, heads, dk, dv), np.float32), np.zeros_like(u)
    report = tilec.simulate(kernel, k, w, u, g, start, h, final, new, target=target)
    state = start[0, 0].astype(np.float64) if initial else np.zeros((dk, dv))
    for c in range(0, length, chunk):
        kc, wc, uc = (x[0, c : c + chunk, 0].astype(np.float64) for x in (k, w, u))
        gc = g[0, c : c + chunk, 0].astype(np.float64)
        v = (uc - wc @ state) * np.exp(gc[-1] - gc)[:, None]
        state = state * np.exp(gc[-1]) + kc.T @ v
    return report, float(np.linalg.norm(final[0, 0] - state) / np.linalg.norm(state))


@pytest.mark.parametrize("target", TARGETS)
def test_chunk_state_with_an_initial_state(target: str) -> None:
    report, error = chunk_state(True, target)
    assert not findings(report) and error < 5e-3


@pytest.mark.parametrize("target", TARGETS)
def test_chunk_state_reads_what_nobody_wrote(target: str) -> None:
    """Without an initial state the first iteration copies and multiplies a shared tile before it
    is written: both lines are named."""
    report, _ = chunk_state(False, target)
    assert {f.kind for f in report.findings} == {"uninitialised read"}
    assert {f.buffer.split(", ")[-1] for f in report.findings} == {"b_h_shared"}
    lines = [loc.line for f in report.findings for loc in f.locations]
    source = load_seed("tilelang_chunk_delta_h").__file__
    text = open(source).read().splitlines()
    assert sorted(text[n - 1].strip().split("(")[0] for n in lines) == ["T.copy", "T.gemm"]
    assert all("b_h_shared" in text[n - 1] for n in lines)


# --- registers in flight --------------------------------------------------------------------------

M, N, K = T.dynamic("M, N, K")


@tilec.kernel
def product(
    A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"), C: T.Tensor((M, N), "float32")
):
    with T.Kernel(T.ceildiv(N, 128), T.ceildiv(M, 64), threads=128) as (bx, by):
        A_s = T.alloc_shared((64, 64), "float16")
        B_s = T.alloc_shared((64, 128), "float16")
        acc = T.alloc_fragment((64, 128), "float32")
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(K, 64), num_stages=2):
            T.copy(A[by * 64, k * 64], A_s)
            T.copy(B[k * 64, bx * 128], B_s)
            T.gemm(A_s, B_s, acc)
        T.copy(acc, C[by * 64, bx * 128])


def without_waits(func: Func) -> Func:
    return func.rewrite(WgmmaWait, lambda o: [])


def test_an_accumulator_is_used_before_its_product_is_finished() -> None:
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal(s).astype(np.float16) for s in ((64, 192), (192, 128)))
    c = np.zeros((64, 128), np.float32)
    assert not findings(tilec.simulate(product, a, b, c))
    report = simulate_changed(without_waits, product, a, b, c)
    found = [f for f in report.findings if f.kind == "operand in flight"]
    assert found and len(found[0].locations) == 2
