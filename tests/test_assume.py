"""T.assume: guards that what the author says makes unnecessary go; what is not so is found."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from simulated import run

import tilec
import tilec.language as T
from tilec.ir.analysis import Facts
from tilec.ir.core import walk
from tilec.ir.ops import Assume, BlockIndex, Load
from tilec.jit.build import trace_variant

TARGETS = ("cpu", "cuda:sm_80", "cuda:sm_90a", "hip:gfx942")
M, N = T.dynamic("M, N")


@tilec.kernel
def inside(A: T.Tensor((N,), "float32"), low: T.int32, high: T.int32):
    with T.Kernel(1, threads=32):
        for i in T.serial(high - low):
            T.assume(low + i >= 0 and low + i < N)
            A[low + i] = 7


@tilec.kernel
def rows(A: T.Tensor((M, N), "float32"), B: T.Tensor((M, N), "float32")):
    with T.Kernel(1, threads=32):
        tx = T.get_thread_binding()
        first = tx * 4
        T.assume(N % 4 == 0)
        T.assume(tx < M)
        for i in T.vectorized(4):
            T.assume(first + i < N)
            B[tx, first + i] = A[tx, first + i]


@tilec.kernel
def gather(
    A: T.Tensor((M,), "float32"), index: T.Tensor((N,), "int32"), B: T.Tensor((N,), "float32")
):
    with T.Kernel(T.ceildiv(N, 96), threads=32) as b:
        T.assume(N % 96 == 0)
        for i in T.Parallel(96):
            j = index[b * 96 + i]
            T.assume(0 <= j < M)
            B[b * 96 + i] = A[j]


@tilec.kernel
def variable(A: T.Tensor((N,), "float32"), B: T.Tensor((1,), "float32"), n: T.int32):
    with T.Kernel(1, threads=32):
        x = T.alloc_var("int32")
        x = n
        T.assume((x >= 0) & (N > x))
        B[0] = A[x]


@pytest.mark.parametrize("target", TARGETS)
def test_numbers(target: str, rng: np.random.Generator) -> None:
    a = np.zeros(50, np.float32)
    run(inside, target, a, 3, 11)
    assert (a[3:11] == 7).all() and a.sum() == 56
    a, b = rng.standard_normal((32, 128)).astype(np.float32), np.zeros((32, 128), np.float32)
    run(rows, target, a, b)
    each = np.arange(128) // 4 == np.arange(32)[:, None]
    np.testing.assert_array_equal(b, np.where(each, a, 0))
    a, at = rng.standard_normal(17).astype(np.float32), rng.integers(0, 17, 192).astype(np.int32)
    b = np.zeros(192, np.float32)
    run(gather, target, a, at, b)
    np.testing.assert_array_equal(b, a[at])
    run(variable, target, a, b[:1], 16)
    assert b[0] == a[16]


def of(*shape: int, dtype: str = "float32") -> Any:
    return tilec.spec(shape, dtype)


CALLS = {
    "inside": (inside, (of(1000), 0, 9)),
    "rows": (rows, (of(32, 128), of(32, 128))),
    "gather": (gather, (of(64), of(960, dtype="int32"), of(960))),
    "variable": (variable, (of(64), of(1), 5)),
}


def compares(lowered: str) -> int:
    """Tests of what is accessed; not those of elements that a layout covers beyond the tile."""
    return len(re.findall(r"guard=|= compare.* %[MN]\b", lowered))


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("target", ["cuda:sm_90a", "hip:gfx942"])
def test_no_guard_is_left(name: str, target: str) -> None:
    kernel, args = CALLS[name]
    variant = kernel.compile(*args, target=target)
    if name == "rows" and "hip" in target:  # the other half of a wave is no thread of the author's
        assert compares(variant.stages["pair_halves"])
        return
    assert compares(variant.stages["pair_halves"]) == 0
    if name == "rows" and target == "cuda:sm_90a":
        assert "ld.global.nc.v4" in variant.asm and "st.global.v4" in variant.asm


def test_without_it_there_are_guards() -> None:
    @tilec.kernel
    def kernel(A: T.Tensor((N,), "float32"), B: T.Tensor((1,), "float32"), n: T.int32):
        with T.Kernel(1, threads=32):
            B[0] = A[n]

    variant = kernel.compile(of(64), of(1), 5, target="cuda:sm_90a")
    assert compares(variant.stages["pair_halves"]) > 0


def traced(kernel: Any, *args: Any) -> Any:
    return trace_variant(kernel.signature, kernel.key_of(args, "cuda:sm_90a", {}))


def test_facts() -> None:
    func = traced(gather, *CALLS["gather"][1])
    found = [(o.kind, o.text) for o in walk(func.body) if isinstance(o, Assume)]
    assert found == [("multiple", "N % 96 == 0"), ("le", "0 <= j"), ("lt", "j < M")]
    facts = Facts(func)
    size = {p.value.name: p.value for p in func.params}
    assert facts.divisor(size["N"]) == 32
    (load,) = (o for o in walk(func.body) if isinstance(o, Load) and o.source.name == "A")
    assert facts.inside(load.indices[0], "M") == (True, True)
    assert facts.inside(load.indices[0], "N") == (True, False)
    (block,) = (o.result for o in walk(func.body) if isinstance(o, BlockIndex))
    last = facts.form(block).scaled(96) - facts.form(size["N"])
    assert facts.reach(last)[1] == -96


def test_under_a_condition_it_says_nothing_of_what_is_outside() -> None:
    @tilec.kernel
    def kernel(A: T.Tensor((64,), "float32"), n: T.int32, m: T.int32):
        with T.Kernel(1, threads=32):
            if m > 0:
                T.assume(n < 64)
                T.assume(n >= 0)
            for k in T.serial(m):
                T.assume(k + n < 64)
                T.assume(n % 2 == 0)
            A[n] = 5

    func = traced(kernel, of(64), 1, 1)
    facts = Facts(func)
    n = next(p.value for p in func.params if p.value.name == "n")
    assert facts.range(n) == (-(2**31), 2**31 - 1) and facts.divisor(n) == 1
    assert len(facts.assumed) == 1  # of k + n, which is nowhere else
    a = np.zeros(64, np.float32)
    kernel(a, 64, 0)
    kernel(a, -1, 0)
    assert not a.any()


def test_narrower_ranges() -> None:
    @tilec.kernel
    def kernel(A: T.Tensor((64,), "int32"), n: T.int32):
        with T.Kernel(1, threads=32):
            T.assume(8 <= n <= 15)
            T.assume(n % 4 == 0)
            A[0] = n // 4
            if n < 16:
                A[1] = n

    func = traced(kernel, of(64, dtype="int32"), 8)
    facts = Facts(func)
    n = next(p.value for p in func.params if p.value.name == "n")
    assert facts.range(n) == (8, 15) and facts.divisor(n) == 4
    variant = kernel.compile(of(64, dtype="int32"), 8, target="cuda:sm_90a")
    assert "setp" not in variant.asm
    a = np.zeros(64, np.int32)
    kernel(a, 12)
    assert a[:2].tolist() == [3, 12]


def test_a_launch_looks_at_sizes_and_scalars() -> None:
    a = np.zeros((32, 126), np.float32)
    with pytest.raises(tilec.LaunchError, match="rows assumes N % 4 == 0, and N is 126"):
        rows(a, a.copy())
    with pytest.raises(tilec.LaunchError, match="variable assumes N > n, and N is 64, n is 64"):
        variable(np.zeros(64, np.float32), np.zeros(1, np.float32), 64)
    variable(np.zeros(64, np.float32), np.zeros(1, np.float32), 63)
    with pytest.raises(tilec.LaunchError, match="variable assumes n >= 0, and n is -1"):
        variable(np.zeros(64, np.float32), np.zeros(1, np.float32), -1)


@pytest.mark.parametrize("target", ["cuda:sm_90a", "hip:gfx942"])
def test_the_simulator_reports_what_does_not_hold(target: str) -> None:
    @tilec.kernel
    def kernel(A: T.Tensor((64,), "int32"), B: T.Tensor((64,), "int32")):
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            x = A[tx]
            T.assume(x < 8)
            T.assume(x % 2 == 0)
            B[tx] = x

    a = np.zeros(64, np.int32)
    assert not tilec.simulate(kernel, a, a.copy(), target=target).findings
    a[5] = 8
    (found,) = tilec.simulate(kernel, a, a.copy(), target=target).findings
    assert found.kind == "assertion failed" and found.message == "T.assume(x < 8)"
    assert found.threads == (5,) and found.locations[0].line == kernel.signature.loc.line + 4
    a[5] = 3
    (found,) = tilec.simulate(kernel, a, a.copy(), target=target).findings
    assert found.message == "T.assume(x % 2 == 0)"


DEBUGGED = """
import numpy as np, tilec, tilec.language as T
@tilec.kernel
def kernel(A: T.Tensor((64,), "int32"), B: T.Tensor((64,), "int32")):
    with T.Kernel(1, threads=64):
        for i in T.Parallel(64):
            T.assume(0 <= A[i] < 64)
            B[A[i]] = i
a = np.arange(64, dtype=np.int32)
kernel(a, a.copy())
a[3] = 64
kernel(a, a.copy())
"""


def test_under_debug_it_is_looked_at(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "program.py"
    path.write_text(DEBUGGED)
    monkeypatch.setenv("TILEC_DEBUG", "1")
    done = subprocess.run([sys.executable, path], capture_output=True, text=True)
    assert done.returncode and "program.py:12" in done.stderr
    assert "assertion failed: T.assume(0 <= A[i] < 64)" in done.stderr


def test_copies_stay_copies() -> None:
    """What is said of the elements of a tile takes nothing from how it is moved."""

    @tilec.kernel
    def kernel(A: T.Tensor((N, 64), "float16"), B: T.Tensor((N, 64), "float16")):
        with T.Kernel(T.ceildiv(N, 64), threads=128) as b:
            s = T.alloc_shared((64, 64), "float16")
            for i, j in T.Parallel(64, 64):
                T.assume(b * 64 + i < N)
                s[i, j] = A[b * 64 + i, j]
            T.copy(s, B[b * 64, 0])

    variant = kernel.compile(of(256, 64, dtype="float16"), of(256, 64, dtype="float16"), target="cuda:sm_90a")  # fmt: skip  # noqa: E501
    assert re.search(r"copy %A\[", variant.stages["recognise_idioms"])
