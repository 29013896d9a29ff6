"""T.device_assert: looks under TILEC_DEBUG=1 alone on machines, and always in the simulator."""

from __future__ import annotations

import linecache
from typing import Any

import numpy as np
import pytest

import tilec
import tilec.language as T
from tilec.jit.specialise import SpecialisationKey
from tilec.kernel import Kernel
from tilec.runtime.driver import DriverError

N = T.dynamic("N")
TARGETS = ("cuda:sm_80", "cuda:sm_90a", "hip:gfx942")
LIMIT = 3


@tilec.kernel
def bounded(X: T.Tensor((N,), "float32"), Y: T.Tensor((N,), "float32"), most: T.float32):
    with T.Kernel(T.ceildiv(N, 70), threads=128) as bx:
        s = T.alloc_shared((70,), "float32")
        T.copy(X[bx * 70], s)
        for i in T.Parallel(70):
            if s[i] > 0:
                T.device_assert(0 < s[i] <= most, f"limit {LIMIT + 1} of 100%")
            Y[bx * 70 + i] = s[i] * 2


@tilec.kernel
def by_threads(X: T.Tensor((48,), "int32")):
    with T.Kernel(2, threads=48) as bx:
        tx = T.get_thread_binding()
        T.device_assert(X[tx] < 5)
        if bx == 1:
            T.device_assert(tx < 46, msg="the last two")


@tilec.kernel
def constants(Y: T.Tensor((1,), "int32")):
    with T.Kernel(1, threads=32):
        T.device_assert(LIMIT == 3, "this holds")
        for _ in T.serial(Y[0]):
            T.device_assert(LIMIT > 3, "this does not")
        Y[0] = 7


@tilec.kernel
def left_open(
    X: T.Tensor((N, 128), "float16"),
    Y: T.Tensor((N, 128), "float32"),
    BM: T.constexpr = T.auto(32, 64, 128),
):
    with T.Kernel(T.ceildiv(N, BM), threads=128) as by:
        x, y = T.alloc_shared((64, 128), "float16"), T.alloc_shared((BM, 64), "float16")
        f = T.alloc_fragment((BM, 128), "float32")
        T.device_assert(by < 9)
        T.clear(f)
        for k in T.Pipelined(2):
            T.copy(X[by * BM, k * 64], y)
            T.copy(X[k * 64, 0], x)
            T.gemm(y, x, f)
        T.copy(f, Y[by * BM, 0])


def line_of(text: str) -> str:
    """file:line of the line of the test that has `text`."""
    lines = open(__file__).read().splitlines()
    return f"{__file__}:{next(n for n, line in enumerate(lines, 1) if text in line)}"


@pytest.fixture(params=[False, True], ids=["release", "debug"])
def debug(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether TILEC_DEBUG is set; kernels forget what was launched without it, or with it."""
    monkeypatch.setenv("TILEC_DEBUG", "1" if request.param else "0")
    for kernel in (bounded, by_threads, constants):
        kernel.clear()
    return bool(request.param)


def numbers(n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(n)
    return rng.standard_normal(n).astype(np.float32), np.zeros(n, np.float32)


@pytest.mark.parametrize("n", [1, 70, 333])
def test_on_the_cpu(debug: bool, n: int) -> None:
    X, Y = numbers(n)
    bounded(X, Y, 10.0)
    np.testing.assert_array_equal(Y, X * 2)
    X[n // 2], Y[:] = 11, 0
    if debug:
        with pytest.raises(DriverError) as caught:
            bounded(X, Y, 10.0)
        where = line_of("0 < s[i] <= most")
        text = "assertion failed: 0 < s[i] <= most: limit 4 of 100%"
        assert f"{where}:17: {text}" in str(caught.value)
    else:
        bounded(X, Y, 10.0)
    np.testing.assert_array_equal(Y, X * 2)  # the kernel went on
    X[n // 2] = 1
    bounded(X, Y, 10.0)  # the failure is forgotten


def test_threads_on_the_cpu(debug: bool) -> None:
    X = np.full(48, 5, np.int32)
    if not debug:
        by_threads(X)
        return
    with pytest.raises(DriverError, match=r"assertion failed: (X\[tx\] < 5\n|tx < 46)"):
        by_threads(X)
    with pytest.raises(DriverError, match="tx < 46: the last two"):
        by_threads(X - 1)


def test_conditions_known_when_it_is_compiled(debug: bool) -> None:
    Y = np.zeros(1, np.int32)
    constants(Y)
    assert Y == 7
    if debug:
        with pytest.raises(DriverError, match="LIMIT > 3: this does not"):
            constants(Y)
    for target in TARGETS:
        assert tilec.simulate(constants, np.zeros(1, np.int32), target=target).ok
        (finding,) = tilec.simulate(constants, np.ones(1, np.int32), target=target).findings
        assert (finding.kind, finding.message) == ("assertion failed", "LIMIT > 3: this does not")


@pytest.mark.parametrize("target", TARGETS)
def test_the_simulator_looks_always_and_goes_on(debug: bool, target: str) -> None:
    X, Y = numbers(150)
    assert tilec.simulate(bounded, X, Y, 10.0, target=target).ok
    X[[3, 75, 76]] = 11
    report = tilec.simulate(bounded, X, Y, 10.0, target=target)
    np.testing.assert_array_equal(Y, X * 2)
    (finding,) = report.findings
    assert finding.kind == "assertion failed" and finding.times >= 2
    assert finding.message == "0 < s[i] <= most: limit 4 of 100%"
    assert (finding.threads, finding.block) == ((3,), (0, 0, 0))
    assert str(finding.locations[0]) == line_of("0 < s[i] <= most") + ":17"
    assert "T.device_assert(0 < s[i] <= most" in str(report)


@pytest.mark.parametrize("target", TARGETS)
def test_findings_of_threads(debug: bool, target: str) -> None:
    X = np.zeros(48, np.int32)
    X[17] = 5
    first, second = tilec.simulate(by_threads, X, target=target).findings
    assert (first.message, first.threads, first.times) == ("X[tx] < 5", (17,), 2)
    assert (second.threads, second.block) == ((46, 47), (1, 0, 0))


@pytest.mark.parametrize("target", TARGETS)
def test_machine_code_looks_when_debugging(debug: bool, target: str) -> None:
    specs = tilec.spec((140,), "float32"), tilec.spec((140,), "float32")
    made = bounded.compile(*specs, target=target)
    assert ("trap" in made.asm) == debug
    assert ("vprintf" in made.asm) == (debug and target.startswith("cuda"))
    assert ("device_assert %" in made.stages["tile"]) == debug


def test_variants_are_cached_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y = numbers(70)
    keys = []
    for value in ("", "0", "1"):
        monkeypatch.setenv("TILEC_DEBUG", value)
        keys.append(bounded.key_of((X, Y), "cpu", {"most": 1.0}))
    assert keys[0] == keys[1] != keys[2]
    assert keys[1].text() != keys[2].text()


@pytest.mark.parametrize("target", TARGETS)
def test_it_is_compiled_for_the_simulator_only_if_simulated(
    monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    monkeypatch.setenv("TILEC_DISABLE_CACHE", "1")
    built, keys = Kernel._build, list[SpecialisationKey]()

    def build(self: Kernel, key: SpecialisationKey, *args: Any) -> tilec.CompiledKernel:
        keys.append(key)
        return built(self, key, *args)

    monkeypatch.setattr(Kernel, "_build", build)
    left_open.clear()
    X, Y = np.ones((256, 128), np.float16), np.zeros((256, 128), np.float32)
    specs = tilec.spec(X.shape, "float16"), tilec.spec(Y.shape, "float32")
    left_open.compile(*specs, target=target)
    assert [key.simulated for key in keys] == [False]
    assert tilec.simulate(left_open, X, Y, target=target).ok
    assert [key.simulated for key in keys] == [False, True]


def test_a_condition_costs_nothing_without_debugging() -> None:
    """What it reads is not read, nor waited for."""
    spec = tilec.spec((48,), "int32")
    for target in TARGETS:
        stages = by_threads.compile(spec, target=target).stages
        assert "load" not in stages["tile"] and "icmp" not in stages["llvm"]


MISTAKES = [
    ("T.device_assert(X, 'no')", 25, "condition of T.device_assert is X"),
    ("T.device_assert(bx < 1, 5)", 33, "msg of T.device_assert is the int 5, not a string"),
    ("T.device_assert(bx < 1, f'{bx}')", 36, "an f-string of"),
    ("T.device_assert()", 9, "T.device_assert"),
]


@pytest.mark.parametrize(("line", "column", "message"), MISTAKES)
def test_mistakes(line: str, column: int, message: str) -> None:
    text = (
        "@tilec.kernel\n"
        "def kernel(X: T.Tensor((48,), 'int32')):\n"
        f"    with T.Kernel(2, threads=48) as bx:\n        {line}\n"
    )
    scope: dict[str, Any]
    name, scope = f"<mistake {line}>", {"tilec": tilec, "T": T}
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    exec(compile(text, name, "exec"), scope)
    with pytest.raises(tilec.CompileError) as caught:
        scope["kernel"].compile(tilec.spec((48,), "int32"), target="cpu")
    assert f":4:{column}: " in str(caught.value) and message in str(caught.value)
