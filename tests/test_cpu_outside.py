"""An index outside a buffer on chip has no meaning, but on the CPU it touches nothing else of the
process: it reads 0 and writes nothing, as outside a tensor. What is known to be inside has no
guard."""

import numpy as np
import pytest

import tilec
import tilec.language as T

_FAR = [3, 31, 32, 200, 10**9, -(10**9), -1, 2**31 - 1]


@tilec.kernel
def gather(X: T.Tensor((32,), "float32"), I: T.Tensor((8,), "int32"), Y: T.Tensor((8,), "float32")):
    with T.Kernel(1, threads=32):
        shared = T.alloc_shared((32,), "float32")
        T.copy(X, shared)
        for i in T.Parallel(8):
            Y[i] = shared[I[i]]


@tilec.kernel
def scatter(
    X: T.Tensor((8,), "float16"), I: T.Tensor((8,), "int64"), Y: T.Tensor((32,), "float16")
):
    with T.Kernel(1, threads=32):
        shared = T.alloc_shared((32,), "float16")
        T.clear(shared)
        for i in T.Parallel(8):
            shared[I[i]] = X[i]
        T.copy(shared, Y)


@tilec.kernel
def count(I: T.Tensor((8,), "int32"), Y: T.Tensor((32,), "int32")):
    with T.Kernel(1, threads=32):
        shared = T.alloc_shared((32,), "int32")
        T.clear(shared)
        for i in T.Parallel(8):
            T.atomic_add(shared[I[i]], 1)
        T.copy(shared, Y)


@tilec.kernel
def row(X: T.Tensor((32, 16), "float32"), at: T.int32, Y: T.Tensor((16,), "float32")):
    with T.Kernel(1, threads=32):
        shared = T.alloc_shared((32, 16), "float32")
        T.copy(X, shared)
        T.copy(shared[at, 0:16], Y)


@tilec.kernel
def walk(I: T.Tensor((8,), "int32"), Y: T.Tensor((8,), "int32")):
    """A list in each thread's own memory, followed from one element to the next."""
    with T.Kernel(1, threads=8):
        own = T.alloc_local((8,), "int32")
        t = T.get_thread_binding()
        for i in T.serial(8):
            own[i] = I[i]
        own[I[t]] = 7
        Y[t] = own[I[t]] + own[t]


def _inside(index, size):
    return (index >= 0) & (index < size)


def _indices(dtype="int32"):
    return np.array(_FAR, "int64").astype(dtype)


def test_a_read_outside_gives_zero():
    x, index, y = np.arange(1, 33, dtype="f"), _indices(), np.full(8, -1.0, "f")
    gather(x, index, y)
    ok = _inside(index, 32)
    assert (y == np.where(ok, x[np.where(ok, index, 0)], 0)).all() and ok.sum() == 2


def test_a_write_outside_does_nothing():
    x, index, y = np.arange(1, 9, dtype="float16"), _indices("int64"), np.full(32, -1, "float16")
    scatter(x, index, y)
    want = np.zeros(32, "float16")
    want[index[:2]] = x[:2]
    assert (y == want).all()


def test_an_atomic_outside_does_nothing():
    index, y = _indices(), np.full(32, -1, "int32")
    count(index, y)
    assert (y == np.bincount(index[:2], minlength=32)).all()


@pytest.mark.parametrize("at", _FAR)
def test_a_tile_outside_is_zero(at):
    x, y = np.random.default_rng(0).random((32, 16), "f"), np.full(16, -1, "f")
    row(x, at, y)
    assert (y == (x[at] if 0 <= at < 32 else 0)).all()


def test_memory_of_a_thread():
    index, y = np.array([3, 10**9, -5, 7, 8, 0, 2**31 - 1, 6], "int32"), np.full(8, -1, "int32")
    walk(index, y)
    ok = _inside(index, 8)
    changed = np.where(index == np.arange(8), 7, index)
    assert (y == np.where(ok, 7, 0) + changed).all()


def test_no_guard_where_the_index_is_known():
    """The loop of `gather` compares; that of a copy does not."""

    @tilec.kernel
    def reverse(X: T.Tensor((32,), "float32"), Y: T.Tensor((32,), "float32")):
        with T.Kernel(1, threads=32):
            shared = T.alloc_shared((32,), "float32")
            T.copy(X, shared)
            for i in T.Parallel(32):
                Y[i] = shared[31 - i]

    x = tilec.spec((32,), "float32")
    specs = (x, tilec.spec((8,), "int32"), tilec.spec((8,), "float32"))
    guards = [
        k.compile(*s, target="cpu").stages["llvm"].count("icmp ult")
        for k, s in ((gather, specs), (reverse, (x, x)))
    ]
    assert guards[0] > guards[1] == 0
