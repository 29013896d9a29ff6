"""T.atomic_cas: compare and swap, on every target, and what is made of it."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from simulated import run

import tilec
import tilec.language as T
from tilec.ir.errors import CompileError

pytestmark = pytest.mark.usefixtures("unassembled")

TARGETS = ["cuda:sm_90a", "cuda:sm_80", "hip:gfx942", "cpu"]
INTS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
N = T.dynamic("N")


def swapping(dtype: str, space: str) -> Any:
    @tilec.kernel
    def swapped(
        X: T.Tensor((N,), dtype),
        C: T.Tensor((N,), dtype),
        Y: T.Tensor((N,), dtype),
        Old: T.Tensor((N,), dtype),
    ):
        with T.Kernel(T.ceildiv(N, 70), threads=64) as bx:
            if space == "shared":
                s = T.alloc_shared((70,), dtype)
                T.copy(Y[bx * 70], s)
                for i in T.Parallel(70):
                    if bx * 70 + i < N:
                        at = bx * 70 + i
                        Old[at] = T.atomic_cas(s[i], C[at], X[at], memory_order="acq_rel")
                T.copy(s, Y[bx * 70])
            else:
                for i in T.Parallel(70):
                    if bx * 70 + i < N:
                        at = bx * 70 + i
                        Old[at] = T.atomic_cas(Y[at], C[at], X[at])

    return swapped


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", INTS)
def test_each_element(dtype: str, target: str, rng: np.random.Generator) -> None:
    for space, n in (("global", 150), ("shared", 150), ("global", 1)):
        low = np.iinfo(dtype).min
        x, c, y = (rng.integers(low, low + 3, n).astype(dtype) for _ in range(3))
        want, old = np.where(y == c, x, y), np.zeros(n, dtype)
        before = y.copy()
        run(swapping(dtype, space), target, x, c, y, old)
        np.testing.assert_array_equal(y, want)
        np.testing.assert_array_equal(old, before)


@tilec.kernel
def largest(X: T.Tensor((N,), "float32"), Y: T.Tensor((1,), "float32"), B: T.Tensor((1,), "int32")):
    """The largest float, by a loop of compare and swap of its bits; no nan among them."""
    with T.Kernel(T.ceildiv(N, 64), threads=64) as bx:
        tx = T.get_thread_binding()
        if bx * 64 + tx < N:
            x = X[bx * 64 + tx]
            seen = T.alloc_var("int32", 0)
            done = T.alloc_var("bool", False)
            seen = T.atomic_load(B[0], memory_order="relaxed")
            while not done:
                if T.reinterpret(seen, "float32") >= x:
                    done = True
                else:
                    old = T.atomic_cas(B[0], seen, T.reinterpret(x, "int32"))
                    done = old == seen
                    seen = old


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("n", [1, 64, 201])
def test_a_maximum_by_a_loop(n: int, target: str, rng: np.random.Generator) -> None:
    x = rng.standard_normal(n).astype(np.float32)
    bits = np.full(1, -np.inf, np.float32).view(np.int32)
    run(largest, target, x, np.zeros(1, np.float32), bits)
    assert bits.view(np.float32)[0] == x.max()


@tilec.kernel
def under_lock(
    X: T.Tensor((N,), "float32"), L: T.Tensor((1,), "uint32"), Y: T.Tensor((2,), "float32")
):
    """Each block adds to what lies behind a lock."""
    with T.Kernel(N, threads=32) as bx:
        tx = T.get_thread_binding()
        if tx == 0:
            while T.atomic_cas(L[0], 0, 1, memory_order="acquire") != 0:
                pass
            Y[0] = Y[0] + X[bx]
            Y[1] = T.max(Y[1], X[bx])
            T.atomic_store(L[0], 0, memory_order="release")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("n", [1, 37])
def test_a_lock(n: int, target: str, rng: np.random.Generator) -> None:
    x, y, lock = rng.integers(-9, 9, n).astype(np.float32), np.zeros(2, np.float32), np.zeros(1)
    lock = lock.astype(np.uint32)
    run(under_lock, target, x, lock, y)
    assert lock[0] == 0 and y[0] == x.sum() and y[1] == max(x.max(), 0)


@tilec.kernel
def without_order(
    X: T.Tensor((N,), "float32"), L: T.Tensor((1,), "int32"), Y: T.Tensor((1,), "float32")
):
    with T.Kernel(N, threads=32) as bx:
        tx = T.get_thread_binding()
        if tx == 0:
            while T.atomic_cas(L[0], 0, 1) != 0:
                pass
            Y[0] = Y[0] + X[bx]
            T.atomic_store(L[0], 0, memory_order="relaxed")


@pytest.mark.parametrize("target", TARGETS[:3])
def test_a_lock_without_order_is_a_race(target: str) -> None:
    lock, y = np.zeros(1, np.int32), np.zeros(1, np.float32)
    report = tilec.simulate(without_order, np.ones(5, np.float32), lock, y, target=target)
    assert {f.kind for f in report.findings} == {"data race"}


@tilec.kernel
def first_of_each(K: T.Tensor((N,), "int32"), Won: T.Tensor((N,), "int32")):
    """One thread of those with a key wins; all see who, in shared memory."""
    with T.Kernel(1, threads=128):
        owner = T.alloc_shared((8,), "int32")
        T.fill(owner, -1)
        tx = T.get_thread_binding()
        if tx < N:
            old = T.atomic_cas(owner[K[tx]], -1, tx)
            Won[tx] = T.Select(old == -1, 1, 0)


@pytest.mark.parametrize("target", TARGETS)
def test_one_thread_wins(target: str, rng: np.random.Generator) -> None:
    keys, won = rng.integers(0, 8, 100).astype(np.int32), np.zeros(100, np.int32)
    run(first_of_each, target, keys, won)
    assert [won[keys == k].sum() for k in np.unique(keys)] == [1] * len(np.unique(keys))


@pytest.mark.parametrize("target", TARGETS[:3])
def test_what_the_optimiser_leaves(target: str, rng: np.random.Generator) -> None:
    x, bits = rng.standard_normal(90).astype(np.float32), np.zeros(1, np.int32)
    run(largest, target, x, np.zeros(1, np.float32), bits, optimised=True)
    assert bits.view(np.float32)[0] == x.max()


ASSEMBLED = {"cuda:sm_80": r"atom\.\S*cas\.b32", "hip:gfx942": r"(global|flat)_atomic_cmpswap"}


@pytest.mark.parametrize("target", ASSEMBLED)
def test_one_instruction(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = tilec.spec((5,), "float32"), tilec.spec((1,), "uint32"), tilec.spec((2,), "float32")
    monkeypatch.undo()  # assembled
    assert re.search(ASSEMBLED[target], under_lock.compile(*spec, target=target).asm)


ERRORS = {
    "float": ("T.atomic_cas(A[0], 0, 1)", "T.atomic_cas compares ints, not elements of A"),
    "compare": ("T.atomic_cas(I[0], 0.5, 1)", "compare of T.atomic_cas is .*0.5, not an int"),
    "value": ("T.atomic_cas(I[0], 0, A[0])", "value of T.atomic_cas is .*, not an int"),
    "fragment": ("T.atomic_cas(f[0], 0, 1)", "dst of T.atomic_cas is in f .*no other thread sees"),
    "order": ("T.atomic_cas(I[0], 0, 1, memory_order='strong')", "memory_order of T.atomic_cas"),
    "tile": ("T.atomic_cas(I[0:4], 0, 1)", "dst of T.atomic_cas is"),
    "missing": ("T.atomic_cas(I[0], 0)", "T.atomic_cas"),
    "text": ("T.atomic_cas(I[0], 'x', 1)", "compare of T.atomic_cas"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str, tmp_path: Any) -> None:
    line, message = ERRORS[name]
    path, scope = tmp_path / "kernel.py", dict[str, Any]()
    path.write_text(
        "import tilec, tilec.language as T\n"
        "@tilec.kernel\n"
        "def kernel(A: T.Tensor((64,), 'float32'), I: T.Tensor((64,), 'int32')):\n"
        "    with T.Kernel(1, threads=32):\n"
        "        f = T.alloc_fragment((4,), 'int32')\n"
        "        T.clear(f)\n"
        f"        {line}\n"
    )
    exec(compile(path.read_text(), str(path), "exec"), scope)
    specs = tilec.spec((64,), "float32"), tilec.spec((64,), "int32")
    with pytest.raises(CompileError, match=message) as caught:
        scope["kernel"].compile(*specs, target="cuda:sm_90a")
    assert caught.value.loc is not None and caught.value.loc.line == 7
