"""What a user does with a kernel, on the CPU target: call it in every form, compile, look, save,
load."""

import gc
import mmap
import os
import subprocess
import sys
import tempfile
import threading
import weakref
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from array_kinds import KINDS, from_torch

import tilec
import tilec.language as T
from tilec.runtime.cache import DiskCache

M, N, K = T.dynamic("M, N, K")
ROOT = Path(__file__).resolve().parent.parent


@tilec.kernel
def add(
    A: T.Tensor((M, N), "float32"),
    B: T.Tensor((M, N), "float32"),
    C: T.Tensor((M, N), "float32"),
    BM: T.constexpr = 4,
    BN: T.constexpr = 32,
):
    with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM), threads=64) as (bx, by):
        for i, j in T.Parallel(BM, BN):
            C[by * BM + i, bx * BN + j] = A[by * BM + i, bx * BN + j] + B[by * BM + i, bx * BN + j]


@tilec.kernel
def axpy(
    X: T.Tensor((N,), "float32"),
    Y: T.Tensor((N,), "float32"),
    a: T.float32,
    n: T.int32,
    BN: T.constexpr,
):
    bx = T.program_id(0)
    with T.Kernel(threads=64):
        for i in T.Parallel(BN):
            if bx * BN + i < n:
                Y[bx * BN + i] = a * X[bx * BN + i] + Y[bx * BN + i]


@tilec.kernel(out=["C"])
def outer(
    A: T.Tensor((M,), "float32"), B: T.Tensor((N,), "float32"), C: T.Tensor((M, N), "float32")
):
    with T.Kernel(T.ceildiv(N, 8), M, threads=64) as (bx, by):
        for j in T.Parallel(8):
            C[by, bx * 8 + j] = A[by] * B[bx * 8 + j]


@tilec.kernel
def eager(A, B, BM: T.constexpr = 8):
    M, N = T.const("M, N")
    A: T.Tensor((M, N), "float32")
    B: T.Tensor((M, N), "float32")
    C = T.empty((M, N), "float32")
    D = T.empty((N,), "bfloat16")
    with T.Kernel(T.ceildiv(M, BM), threads=64) as bx:
        for i, j in T.Parallel(BM, N):
            C[bx * BM + i, j] = A[bx * BM + i, j] - B[bx * BM + i, j]
        for j in T.Parallel(N):
            D[j] = A[0, j]
    return C, D


def make_scale(M: int, N: int, factor: float, dtype: str):
    @tilec.kernel
    def main(A: T.Tensor((M, N), dtype), B: T.Tensor((M, N), dtype)):
        with T.Kernel(M, threads=64) as bx:
            for j in T.Parallel(N):
                B[bx, j] = A[bx, j] * factor

    return main


@tilec.kernel
def shift(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
    with T.Kernel(1, threads=64):
        for i in T.serial(N - 1):
            B[i] = A[i + 1]


@tilec.kernel
def double(A: T.Tensor):
    with T.Kernel(1, threads=64):
        for i in T.serial(A.shape[0]):
            for j in T.serial(A.shape[1]):
                A[i, j] = A[i, j] * 2


SHAPES = [(1, 1), (3, 7), (5, 33), (17, 96), (4, 31)]


# --- calling -----------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_numpy(shape: tuple[int, int], rng: np.random.Generator) -> None:
    a, b = (rng.standard_normal(shape, np.float32) for _ in range(2))
    c = np.full(shape, np.nan, np.float32)
    assert add(a, b, c) is None
    np.testing.assert_array_equal(c, a + b)


@pytest.mark.parametrize("kind", KINDS)
def test_repeated_launches(kind: Any, rng: np.random.Generator) -> None:
    for i in range(5):  # the third and later ones go the generated way
        for shape in ((3, 7), (3, 8)):
            a, b = (kind(rng.standard_normal(shape, np.float32)) for _ in range(2))
            c = kind(np.full(shape, np.nan, np.float32))
            want = a + b
            add(a, b, c, BN=(16, 32)[i % 2])
            add(A=b, B=b, C=a)
            assert (c == want).all() and (a == 2 * b).all()


@pytest.mark.parametrize("kind", KINDS)
def test_same_addresses_other_values(kind: Any, rng: np.random.Generator) -> None:
    a, b, c = (kind(np.empty((5, 9), np.float32)) for _ in range(3))
    for _ in range(6):
        a[...] = kind(rng.standard_normal((5, 9), np.float32))
        b[...] = kind(rng.standard_normal((5, 9), np.float32))
        add(a, b, c)
        assert (c == a + b).all()


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_memory_in_another_shape(kind: Any, rng: np.random.Generator) -> None:
    memory = [rng.standard_normal(60, np.float32) for _ in range(3)]
    for _ in range(3):
        for shape, strides in (
            ((6, 10), (10, 1)),
            ((10, 6), (6, 1)),
            ((5, 6), (1, 5)),
            ((6, 5), (7, 1)),
        ):
            in_bytes = [4 * s for s in strides]
            views = [np.lib.stride_tricks.as_strided(m, shape, in_bytes) for m in memory]
            views[2][...] = np.nan
            a, b, c = map(kind, views)
            add(a, b, c)
            assert (c == a + b).all(), (shape, strides)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("grid", [3, (3,), [3, 1], lambda meta: (T.cdiv(90, meta["BN"]),)])
def test_grid_from_the_launch(grid: Any, kind: Any, rng: np.random.Generator) -> None:
    for _ in range(3):
        x, y = (kind(rng.standard_normal(90, np.float32)) for _ in range(2))
        before = y + 0
        axpy[grid](x, y, 0.5, 77, BN=32)
        want = before + 0
        want[:77] += x[:77] * 0.5
        np.testing.assert_allclose(np.asarray(y), np.asarray(want), rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_scalars_are_run_time_values(kind: Any, rng: np.random.Generator) -> None:
    x = kind(rng.standard_normal(64, np.float32))
    y = kind(np.zeros(64, np.float32))
    variants = len(axpy._variants)
    for n, a in ((64, 2.0), (3, -1.5), (5, 0.0), (5, -0.0), (64, float("inf"))):
        y[...] = 0
        axpy[2](x, y, a, n, BN=32)
        np.testing.assert_array_equal(y[:n], x[:n] * a)
        assert not y[n:].any()
    assert len(axpy._variants) <= variants + 1


@pytest.mark.parametrize("kind", KINDS)
def test_out(kind: Any, rng: np.random.Generator) -> None:
    for size in (5, 5, 5, 13):
        a, b = kind(rng.standard_normal(size, np.float32)), kind(rng.standard_normal(9, np.float32))
        c = outer(a, b)
        assert type(c) is type(a) and tuple(c.shape) == (size, 9)
        np.testing.assert_array_equal(np.asarray(c), np.outer(a, b))


@pytest.mark.parametrize("kind", KINDS)
def test_eager_outputs(kind: Any, rng: np.random.Generator) -> None:
    for rows in (3, 3, 3, 20):
        a, b = (kind(rng.standard_normal((rows, 7), np.float32)) for _ in range(2))
        c, d = eager(a, b)
        np.testing.assert_array_equal(np.asarray(c), np.asarray(a - b))
        want = np.asarray(a[0]).astype(ml_dtypes.bfloat16).astype(np.float32)
        got = d.float().numpy() if kind is from_torch else d.astype(np.float32)
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_factory(dtype: str, rng: np.random.Generator) -> None:
    for factor in (2.0, -0.5):
        kernel = make_scale(3, 21, factor, dtype)
        values = rng.standard_normal((3, 21)).astype(getattr(ml_dtypes, dtype, None) or dtype)
        result = np.zeros_like(values)
        kernel(values, result)
        np.testing.assert_array_equal(result, values * values.dtype.type(factor))


def test_strided_and_misaligned(rng: np.random.Generator) -> None:
    big = rng.standard_normal((40, 60)).astype(np.float32)
    a, b = big[1:8, 3:20], big[20:34:2, 59:25:-2]
    c = np.full((7, 40), np.nan, np.float32)[:, 1:18]
    add(a, b, c)
    np.testing.assert_array_equal(c, a + b)


@tilec.kernel
def ramp(X: T.Tensor((N,), "float32"), n: T.int32, step: T.float32):
    with T.Kernel(n, threads=64) as bx:
        X[bx] = bx * step


@pytest.mark.parametrize("kind", KINDS)
def test_new_addresses_and_scalars(
    kind: Any, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = []

    def check(n: int) -> None:
        x = kind(np.full(90, -1, np.float32))
        kept.append(x)
        step = float(np.float32(rng.uniform(-3, 3)))
        ramp(x, n, step)
        want = np.arange(n, dtype=np.float32) * np.float32(step)
        np.testing.assert_allclose(np.asarray(x)[:n], want, rtol=1e-6)
        assert (np.asarray(x)[n:] == -1).all()

    for n in (90, 0, 3, 90):
        check(n)
    with monkeypatch.context() as m:
        m.setattr(tilec.Kernel, "_launch", None)  # whoever asks for it fails
        for n in (7, 90, 1, 90, 3, 90):
            check(n)
    for wrong, message in (
        (2**31, "n: 2147483648 does not fit"),
        (-90, "blocks in x"),
        (1.5, "n: exp"),
    ):
        with pytest.raises(tilec.LaunchError, match=message):
            ramp(kind(np.zeros(90, np.float32)), wrong, 1.0)
    with pytest.raises(tilec.LaunchError, match="step: 1e\\+300 does not fit in float32"):
        ramp(kind(np.zeros(90, np.float32)), 3, 1e300)


@pytest.mark.parametrize("kind", KINDS)
def test_an_argument_given_twice(kind: Any) -> None:
    """Before and after there is a launch path, which Python binds the arguments for."""
    kernel, on_grid = tilec.kernel(add.function), tilec.kernel(axpy.function)
    a, b, c = (kind(np.ones((3, 9), np.float32)) for _ in range(3))
    x, y = kind(np.ones(8, np.float32)), kind(np.ones(8, np.float32))
    for _ in range(3):
        for call, name in (
            (lambda: kernel(a, b, c, A=a), "A"),
            (lambda: kernel(a, b, c, 4, BM=4), "BM"),
            (lambda: kernel(a, b, c, 4, C=c, BN=8), "C"),
            (lambda: on_grid[1](x, y, 2.0, 3, n=3, BN=8), "n"),
            (lambda: on_grid[1](x, y, 2.0, 3, X=x, BN=8), "X"),
        ):
            with pytest.raises(tilec.LaunchError, match=f": {name} was given twice, by position"):
                call()
        kernel(a, C=c, B=b, BN=8)
        kernel(C=c, BM=2, A=a, B=b)
        kernel(a, b, c, 2, BN=8)
        on_grid[1](x, Y=y, a=2.0, n=3, BN=8)
        on_grid[1](x, y, 2.0, BN=8, n=3)
    assert len(kernel._variants) == 3 and (np.asarray(c) == 2).all()
    assert [*np.asarray(y)] == [13.0] * 3 + [1.0] * 5


@pytest.mark.parametrize("kind", KINDS)
def test_new_addresses_of_another_alignment_or_that_overlap(
    kind: Any, rng: np.random.Generator
) -> None:
    kernel = tilec.kernel(shift.function)
    memory = kind(rng.standard_normal(400).astype(np.float32))
    for _ in range(3):
        kernel(memory[:50], memory[100:150])
    for first, second in ((4, 200), (1, 203), (0, 30), (30, 0), (0, 50), (8, 8), (12, 250)):
        before = np.asarray(memory[first : first + 50]).copy()
        kernel(memory[first : first + 50], memory[second : second + 50])
        done = np.asarray(memory)[second : second + 49]
        if abs(first - second) >= 50 or first == second:
            np.testing.assert_array_equal(done, before[1:])
    aliased = [v.image.may_alias for v in kernel._variants.values()]
    assert True in aliased and False in aliased


@pytest.mark.parametrize("kind", KINDS)
def test_new_addresses_in_place_go_the_short_way(
    kind: Any, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = tilec.kernel(add.function)
    pools = [[kind(rng.standard_normal((3, 9), np.float32)) for _ in range(8)] for _ in range(3)]

    def check(a: Any, b: Any, c: Any) -> None:
        want = np.asarray(a + b)
        kernel(a, b, c)
        np.testing.assert_array_equal(np.asarray(c), want)

    for i in range(3):
        check(*(pool[i] for pool in pools))
        check(pools[0][i], pools[1][i], pools[0][i])
    monkeypatch.setattr(tilec.Kernel, "_launch", None)  # whoever asks for it fails
    for i in range(3, 8):
        check(*(pool[i] for pool in pools))
        check(pools[0][i], pools[1][i], pools[0][i])


def test_the_same_address_with_other_facts(rng: np.random.Generator) -> None:
    """Memory that is freed and given out again may hold an array of another kind."""
    kernel = tilec.kernel(double.function)
    for _ in range(3):
        for dtype in ("float32", "float64", "int32"):
            for at in (0, 4, 16):  # alignments
                for shape, order in (((6, 6), "C"), ((6, 6), "F"), ((4, 9), "C"), ((1, 36), "F")):
                    memory = np.zeros(1024, np.uint8)
                    at += -(memory.ctypes.data + at) % np.dtype(dtype).itemsize
                    a = np.ndarray(shape, dtype, memory[at:], order=order)  # type: ignore[arg-type]
                    a[:] = rng.integers(-99, 99, shape)
                    want = a * 2
                    kernel(a)
                    np.testing.assert_array_equal(a, want)


@pytest.mark.torch
def test_an_address_of_another_contiguity() -> None:
    import torch

    kernel = tilec.kernel(add.function)
    a, c = torch.arange(36.0).reshape(6, 6), torch.zeros(6, 6)
    for _ in range(3):
        for x in (a, a.t(), a[:, :1].expand(6, 6), a[:1], a.t()[:1]):
            kernel(x, x, c[: len(x)])
            assert torch.equal(c[: len(x)], x + x)


def test_what_a_kernel_remembers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["tilec.jit.recipe"], "LIMIT", 50)
    kernel = tilec.kernel(double.function)
    memory = np.ones(4096, np.float32)
    for i in range(4, 700):
        kernel(memory[None, i : i + 2 + i % 5])
        assert sum(map(len, kernel.prepared.values())) <= 51
    kernel(memory[None, 710:])
    assert (memory[710:] == 2).all()


@pytest.mark.torch
def test_the_kind_of_array_may_change(rng: np.random.Generator) -> None:
    kernel = tilec.kernel(add.function)
    for kind in (np.asarray, from_torch, np.asarray, from_torch, from_torch):
        for _ in range(3):
            a, b = (kind(rng.standard_normal((3, 9), np.float32)) for _ in range(2))
            c = kind(np.zeros((3, 9), np.float32))
            kernel(a, b, c)
            np.testing.assert_array_equal(np.asarray(c), np.asarray(a + b))
            kernel(a, b, c)
        assert kernel.prepared, "the same call is found the next time"
    kernel(np.asarray(a), b, np.asarray(c))
    np.testing.assert_array_equal(np.asarray(c), np.asarray(a + b))


def test_offsets_beyond_31_bits() -> None:
    stride = 2**31 + 7
    with tempfile.TemporaryFile() as file:  # sparse: only the pages that are written exist
        file.truncate((stride + 5) * 4)
        with mmap.mmap(file.fileno(), 0) as memory:
            whole = np.frombuffer(memory, np.float32)
            far = np.lib.stride_tricks.as_strided(whole, (2, 5), (stride * 4, 4))
            a = np.arange(10, dtype=np.float32).reshape(2, 5)
            add(a, a + 1, far)
            got = far.copy()
            wide = [f.wide for f in add._variants]
            del far, whole
    np.testing.assert_array_equal(got, 2 * a + 1)
    assert wide[-1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_launch_keeps_no_array_alive(kind: Any) -> None:
    kernel = tilec.kernel(add.function)
    arrays = [kind(np.ones((5, 6), np.float32)) for _ in range(3)]
    for _ in range(4):
        kernel(*arrays)
    watched = [weakref.ref(a) for a in arrays]
    arrays.clear()
    gc.collect()
    assert [w() for w in watched] == [None] * 3


def test_facts_not_values_make_variants() -> None:
    kernel = make_scale(4, 16, 3.0, "float32")
    start = np.zeros(300, np.float32)
    base = -start.ctypes.data % 16 // 4
    kernel(start[base : base + 64].reshape(4, 16), start[base + 64 : base + 128].reshape(4, 16))
    kernel(start[base + 128 : base + 192].reshape(4, 16), start[base : base + 64].reshape(4, 16))
    assert len(kernel._variants) == 1
    kernel(
        start[base + 1 : base + 65].reshape(4, 16), start[base + 128 : base + 192].reshape(4, 16)
    )
    assert len(kernel._variants) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_overlapping_arguments_compile_the_overlapping_variant(
    kind: Any, rng: np.random.Generator
) -> None:
    kernel = tilec.kernel(shift.function)
    memory = kind(rng.standard_normal(50, np.float32))
    want = memory[1:] + 0
    kernel(memory, memory)
    assert (memory[:-1] == want).all()
    assert [v.image.may_alias for v in kernel._variants.values()].count(True) == 1


def test_reading_one_array_twice_is_not_overlap(rng: np.random.Generator) -> None:
    a = rng.standard_normal((3, 5), np.float32)
    c = np.empty_like(a)
    kernel = tilec.kernel(add.function)
    kernel(a, a, c)
    np.testing.assert_array_equal(c, a + a)
    assert not any(v.image.may_alias for v in kernel._variants.values())


@pytest.mark.parametrize("kind", KINDS)
def test_many_threads(kind: Any, rng: np.random.Generator) -> None:
    kernel = tilec.kernel(add.function)
    failures: list[Any] = []

    def work(seed: int) -> None:
        g = np.random.default_rng(seed)
        for i in range(20):
            shape = (3 + i % 3 + seed, 5)
            a, b = (kind(g.standard_normal(shape, np.float32)) for _ in range(2))
            c = kind(np.empty(shape, np.float32))
            kernel(a, b, c)
            if not (c == a + b).all():
                failures.append((seed, i))

    threads = [threading.Thread(target=work, args=(s,)) for s in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures
    assert len(kernel._variants) == 1


# --- compiling, looking, keeping ------------------------------------------------------------------


def specs(*shape: int, dtype: str = "float32", count: int = 3) -> list[Any]:
    return [tilec.spec(shape, dtype) for _ in range(count)]


@pytest.mark.parametrize(
    ("target", "last"),
    [("cpu", "asm"), ("cuda:sm_90a", "ptx"), ("cuda:sm_80", "ptx"), ("hip:gfx942", "gcn")],
)
def test_stages(target: str, last: str) -> None:
    compiled = add.compile(*specs(64, 96), target=target)
    names = list(compiled.stages)
    assert names[0] == "tile"
    at = [names.index(n) for n in ("tile", "simplify", "llvm", "llvm-opt", last)]
    assert at == sorted(at)
    assert "define" in compiled.stages["llvm"] and "define" in compiled.stages["llvm-opt"]
    assert compiled.asm == compiled.stages[last]
    assert compiled.target == target and compiled.binary


def test_compile_takes_meta_tensors_and_specs(torch: Any) -> None:
    by_spec = add.compile(*specs(3, 7), target="cpu", BN=16)
    meta = [torch.empty(3, 7, device="meta") for _ in range(3)]
    assert add.compile(*meta, target="cpu", BN=16) is by_spec


def test_compile_takes_arrays() -> None:
    on_gpu = add.compile(*(np.zeros((3, 7), np.float32) for _ in range(3)), target="cuda:sm_80")
    assert on_gpu.target == "cuda:sm_80"


def test_default_target_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEC_TARGET", "cuda:sm_80")
    assert add.compile(*specs(3, 7)).target == "cuda:sm_80"
    assert add.compile(*(np.zeros((3, 7), np.float32) for _ in range(3))).target == "cpu"


def test_unknown_targets() -> None:
    with pytest.raises(tilec.TargetError, match="did you mean 'cuda:sm_90a'"):
        add.compile(*specs(3, 7), target="cuda:sm90a")
    with pytest.raises(tilec.TargetError, match="did you mean 'cpu'"):
        add.compile(*specs(3, 7), target="CPU")
    with pytest.raises(tilec.TargetError, match="unknown target 'hip:gfx1200'"):
        add.compile(*specs(3, 7), target="hip:gfx1200")


def test_a_misspelt_stage() -> None:
    stages = add.compile(*specs(3, 7), target="cpu").stages
    with pytest.raises(KeyError, match="no stage 'llmv'; did you mean 'llvm'"):
        stages["llmv"]
    with pytest.raises(KeyError, match="no stage 'qqq'; they are tile, "):
        stages["qqq"]


def test_a_size_is_divided_by_floordiv() -> None:
    for wrong in (lambda: T.dynamic("M") / 2, lambda: 2 / T.dynamic("M")):
        with pytest.raises(tilec.CompileError, match="the size M / 2: that is no extent") as e:
            wrong()
        assert "//" in e.value.hint


def test_resources() -> None:
    resources = add.compile(*specs(64, 96), target="cpu").resources
    assert resources.registers is None and resources.spilled_bytes is None
    with pytest.raises(AttributeError):
        resources.threads = 3  # type: ignore[misc]


@pytest.mark.parametrize("kind", KINDS)
def test_save_and_load(kind: Any, tmp_path: Path, rng: np.random.Generator) -> None:
    compiled = add.compile(*specs(64, 96), target="cpu")
    compiled.save(tmp_path / "add.tilec")
    loaded = tilec.load(tmp_path / "add.tilec")
    assert dict(loaded.stages) == dict(compiled.stages)
    assert loaded.resources == compiled.resources
    a, b = (kind(rng.standard_normal((6, 40), np.float32)) for _ in range(2))
    c = kind(np.empty((6, 40), np.float32))
    loaded(a, b, c)
    assert (c == a + b).all()
    with pytest.raises(tilec.LaunchError, match="A: expected float32, got float16"):
        loaded(kind(np.zeros((6, 40), np.float16)), b, c)
    with pytest.raises(tilec.LaunchError, match="A: .*divisible by 16 bytes, got 4"):
        loaded(kind(np.empty(300, np.float32)[1:241].reshape(6, 40)), b, c)
    with pytest.raises(tilec.LaunchError, match="B and C share memory"):
        loaded(a, c, c)


@pytest.mark.parametrize("kind", KINDS)
def test_a_variant_finds_its_launches(
    kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All forms of a call, the second time, and with new arrays and scalars, without a look at
    what does not change; what breaks the variant's facts is still refused."""
    rng = np.random.default_rng(0)

    def arrays(n: int = 96) -> list[Any]:
        memory = rng.random(2 * n + 16).astype("float32")
        at = -memory.ctypes.data % 64 // 4
        return [kind(memory[at + i * n :][:n]) for i in range(2)]

    axpy.compile(*specs(96, count=2), BN=32, target="cpu").save(tmp_path / "axpy.tilec")
    loaded = tilec.load(tmp_path / "axpy.tilec")
    x, y = arrays()

    def check(run: Any, x: Any, y: Any, a: float) -> None:
        want = a * np.asarray(x) + np.asarray(y)
        run()
        np.testing.assert_allclose(np.asarray(y), want, rtol=1e-6)

    for _ in range(2):
        check(lambda: loaded[3](x, y, 2.0, 96), x, y, 2.0)
        check(lambda: loaded[3](x, Y=y, n=96, a=1.5), x, y, 1.5)
    with monkeypatch.context() as m:
        m.setattr(type(loaded), "_launch", None)  # whoever asks for it fails
        check(lambda: loaded[3](x, y, 2.0, 96), x, y, 2.0)
        check(lambda: loaded[3](x, n=96, a=1.5, Y=y), x, y, 1.5)
        v, w = arrays()
        check(lambda: loaded[3](v, w, 0.25, 96), v, w, 0.25)
    with pytest.raises(tilec.LaunchError, match="missing n"):
        loaded[3](x, y, 2.0)
    with pytest.raises(tilec.LaunchError, match="no parameter 'threads'"):
        loaded[3](x, y, 2.0, 96, threads=32)
    with pytest.raises(tilec.LaunchError, match="leaves its grid to the launch"):
        loaded(x, y, 2.0, 96)
    with pytest.raises(tilec.LaunchError, match="share memory"):
        loaded[3](x, x, 2.0, 96)


def test_a_variant_allocates_outputs() -> None:
    """The ones that a call gives are its own."""
    made = outer.compile(*specs(5, count=1), *specs(9, count=1), target="cpu")
    a, b = (np.arange(n, dtype=np.float32) for n in (5, 9))
    kept = [made(a + i, b) for i in range(6)]
    for i, c in enumerate(kept):
        np.testing.assert_array_equal(c, np.outer(a + i, b))


def test_load_needs_no_compiler(tmp_path: Path) -> None:
    axpy.compile(*specs(90, count=2), BN=32, target="cpu").save(tmp_path / "axpy.tilec")
    code = f"""
import sys
import numpy as np
import tilec
kernel = tilec.load({str(tmp_path / "axpy.tilec")!r})
x, y = np.arange(90, dtype=np.float32), np.ones(90, np.float32)
kernel[3](x, y, 2.0, 90)
assert (y == 2 * x + 1).all()
assert "tilec.jit.build" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_load_refuses_a_damaged_file(tmp_path: Path) -> None:
    path = tmp_path / "add.tilec"
    add.compile(*specs(64, 96), target="cpu").save(path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(tilec.ImageError, match="add.tilec is damaged"):
        tilec.load(path)


def test_dump(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setenv("TILEC_DUMP", "all")
    monkeypatch.setenv("TILEC_DUMP_DIR", str(tmp_path / "dump"))
    make_scale(3, 5, 7.0, "float32").compile(*specs(3, 5, count=2), target="cpu")
    files = sorted(p.name for p in (tmp_path / "dump").iterdir())
    first = ["00-tile.txt", "01-group_threads.txt", "02-join_blocks.txt"]
    assert files[:3] == first and files[-1].endswith("-asm.txt")
    monkeypatch.delenv("TILEC_DUMP_DIR")
    monkeypatch.setenv("TILEC_DUMP", "tile,llvm")
    make_scale(3, 5, 8.0, "float32").compile(*specs(3, 5, count=2), target="cpu")
    shown = capsys.readouterr().err
    assert "00-tile" in shown and "define" in shown and "mem2reg" not in shown


# --- the disk cache -------------------------------------------------------------------------------


def test_disk_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path / "cache"))
    a, c = rng.standard_normal((3, 21), np.float32), np.empty((3, 21), np.float32)
    make_scale(3, 21, 4.0, "float32")(a, c)
    (entry,) = DiskCache(tmp_path / "cache").entries()
    again = make_scale(3, 21, 4.0, "float32")
    monkeypatch.setattr(tilec.Kernel, "_build", None)  # a hit neither traces nor compiles
    again(a, c)
    np.testing.assert_array_equal(c, a * 4)
    with pytest.raises(TypeError):
        make_scale(3, 21, 5.0, "float32")(a, c)  # another closure value is another kernel
    monkeypatch.undo()
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path / "cache"))
    assert "tile" in again._variants.popitem()[1].stages
    entry.write_bytes(b"damaged")
    c[:] = 0
    make_scale(3, 21, 4.0, "float32")(a, c)
    np.testing.assert_array_equal(c, a * 4)
    assert entry.read_bytes() != b"damaged"


def test_disabled_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TILEC_DISABLE_CACHE", "1")
    make_scale(3, 5, 9.0, "float32").compile(*specs(3, 5, count=2), target="cpu")
    assert not (tmp_path / "cache").exists()


def test_kernels_are_made_by_the_decorator() -> None:
    for given in ((), (add.function,), (add.function, (), None)):
        with pytest.raises(tilec.CompileError, match="test_kernel_api.py:.*tilec.Kernel is what @"):
            tilec.Kernel(*given)  # type: ignore[call-arg]
    assert isinstance(tilec.kernel(add.function), tilec.Kernel)


# --- import ---------------------------------------------------------------------------------------


def test_clear_begins_anew(rng: np.random.Generator) -> None:
    kernel = make_scale(3, 21, 2.0, "float32")
    values = rng.standard_normal((3, 21), np.float32)
    dropped: list[Any] = []
    for _ in range(3):
        result = np.zeros_like(values)
        for _ in range(3):
            kernel(values, result)
        np.testing.assert_array_equal(result, values * 2)
        assert len(kernel._variants) == 1 and kernel.prepared
        assert not any(reference() for reference in dropped)
        variant = next(iter(kernel._variants.values()))
        dropped += [weakref.ref(variant), weakref.ref(variant.loaded(0))]
        del variant
        kernel.clear()
        assert not kernel._variants and not kernel.prepared


def test_a_kernel_keeps_the_variants_asked_for_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["tilec.kernel"], "MOST_KEPT", 8)
    kernel = tilec.kernel(add.function)
    arrays = [np.ones((2, 3), np.float32) for _ in range(3)]
    for width in (*range(1, 9), 1, 9):
        kernel(*arrays, BN=width)
    kept = [f.values["BN"] for f in kernel._variants]
    assert kept == [4, 5, 6, 7, 8, 1, 9], "a quarter at a time"
    for width in range(1, 10):
        arrays[2].fill(0)
        kernel(*arrays, BN=width)
        assert (arrays[2] == 2).all()
        assert len(kernel._variants) <= 8


def test_import_is_light() -> None:
    code = (
        "import sys, tilec\n"
        "heavy = {'torch', 'numpy', 'llvmlite', 'cuda', 'hip', 'ml_dtypes'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, env=environment)


CACHED = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
import tilec
from test_changes import by_macro
array = tilec.spec((64,), "float32")
compiled = by_macro.compile(array, array, target="cuda:sm_90a")
parts = ("llvmlite", "tilec.codegen", "tilec.passes", "tilec.tune", "tilec.ir.instr")
print([m for m in (*parts, "tilec.frontend.tracer", "tilec.jit.build") if m in sys.modules])
"""


def test_a_variant_from_the_disk_cache_loads_no_compiler() -> None:
    code = CACHED.format(tests=str(ROOT / "tests"))
    runs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
        for _ in range(2)
    ]
    assert "tilec.codegen" in runs[0].stdout, runs[0].stderr
    assert runs[1].stdout.strip() == "[]", runs[1].stderr
