"""An index past a row that is still inside of the buffer: the simulator looks at each index, not at
the place alone."""

from __future__ import annotations

import numpy as np
import pytest

import tilec
import tilec.language as T

pytestmark = pytest.mark.turns

N = T.dynamic("N")
GPUS = ("cuda:sm_80", "cuda:sm_90a", "hip:gfx942")


@tilec.kernel
def read_shared(I: T.Tensor((N,), "int32"), Y: T.Tensor((N,), "float32")):
    with T.Kernel(1, threads=128):
        s = T.alloc_shared((8, 16), "float32")
        T.clear(s)
        for i in T.Parallel(64):
            Y[i] = s[i % 4, I[i]]


@tilec.kernel
def write_shared(I: T.Tensor((N,), "int32"), Y: T.Tensor((N,), "float32")):
    with T.Kernel(1, threads=128):
        s = T.alloc_shared((8, 16), "float32")
        T.clear(s)
        for i in T.Parallel(64):
            s[i % 4, I[i]] = 1.0
        T.copy(s[0, 0], Y[0:16])


@tilec.kernel
def read_local(I: T.Tensor((N,), "int32"), Y: T.Tensor((N,), "float32")):
    with T.Kernel(1, threads=64):
        tx = T.get_thread_binding()
        s = T.alloc_local((8, 16), "float32")
        for a in T.serial(8):
            for b in T.serial(16):
                s[a, b] = a * b
        Y[tx] = s[tx % 4, I[tx]]


@tilec.kernel
def read_serially(I: T.Tensor((N,), "int32"), Y: T.Tensor((N,), "float32")):
    with T.Kernel(1, threads=128):
        s = T.alloc_shared((8, 16), "float32")
        T.clear(s)
        for i in T.serial(1, 3):
            Y[i] = s[i, I[i] + I[5] - 3]


@tilec.kernel
def read_ring(
    I: T.Tensor((N,), "int32"), X: T.Tensor((N,), "float32"), Y: T.Tensor((N,), "float32")
):
    with T.Kernel(1, threads=128):
        s = T.alloc_shared((128,), "float32")
        f = T.alloc_fragment((128,), "float32")
        T.clear(f)
        for k in T.Pipelined(N // 128, num_stages=2):
            T.copy(X[k * 128], s)
            for i in T.Parallel(128):
                f[i] += s[I[i]]
        T.copy(f, Y[0:128])


def simulated(kernel, index: int, target: str):
    indices = np.arange(512, dtype=np.int32) % 4
    indices[5] = index
    x = [np.ones(512, np.float32)] * (kernel is read_ring)
    return tilec.simulate(kernel, indices, *x, np.zeros(512, np.float32), target=target)


@pytest.mark.parametrize("target", GPUS)
@pytest.mark.parametrize("kernel", [read_shared, write_shared, read_local], ids=lambda k: k.name)
def test_past_a_row(kernel, target: str) -> None:
    """Rows have 16 elements: index 16 is the next row's first element."""
    assert simulated(kernel, 15, target).ok
    for index in (16, 17, -1):
        (found,) = simulated(kernel, index, target).findings
        assert found.kind == "out of bounds" and found.buffer == "s" and found.threads == (5,)
        assert found.message == f"s[1, {index}]; s has the shape (8, 16)"
        assert found.indices == ((1, index),) and found.times == 1


@pytest.mark.parametrize("target", GPUS)
def test_past_a_row_in_serial_code(target: str) -> None:
    assert simulated(read_serially, 14, target).ok
    found = simulated(read_serially, 20, target).findings[0]
    assert found.message == "s[1, 18]; s has the shape (8, 16)"


@pytest.mark.parametrize("target", GPUS)
def test_past_a_stage_of_a_ring(target: str) -> None:
    """The next stage lies behind it."""
    assert simulated(read_ring, 127, target).ok
    found = simulated(read_ring, 130, target).findings[0]
    assert found.message == "s[130]; s has the shape (128,)" and found.threads == (5,)


@pytest.mark.parametrize("target", GPUS)
def test_the_check_is_no_code(target: str) -> None:
    """To LLVM it is a comment; what is proved inside has none."""
    specs = [tilec.spec((512,), "int32"), tilec.spec((512,), "float32")]
    stages = read_shared.compile(*specs, target=target).stages
    assert stages["llvm"].count("; within 8 x 16") >= 1
    assert "within" not in stages["llvm-opt"]

    @tilec.kernel
    def proved(X: T.Tensor((N,), "float32"), Y: T.Tensor((N,), "float32")):
        with T.Kernel(1, threads=128):
            s = T.alloc_shared((8, 64), "float32")
            for i, j in T.Parallel(8, 64):
                s[i, j] = X[i * 64 + j]
            for i, j in T.Parallel(8, 64):
                Y[i * 64 + j] = s[7 - i, (j + 3) % 64]

    specs = [tilec.spec((512,), "float32")] * 2
    assert "within" not in proved.compile(*specs, target=target).stages["llvm"]


@tilec.kernel
def behind(Y: T.Tensor((64,), "float32"), i: T.int32):
    with T.Kernel(1, threads=64):
        tx = T.get_thread_binding()
        s, t = T.alloc_shared((7,), "float32"), T.alloc_shared((7,), "float32")
        s[tx % 7] = 1.0
        t[tx % 7] = 2.0
        T.sync_threads()
        if tx == 0:
            s[i] = 5.0
        T.sync_threads()
        Y[tx] = s[tx % 7] + t[tx % 7]


@pytest.mark.parametrize("target", GPUS)
def test_what_lies_between_buffers_is_nobodys(target: str) -> None:
    """Buffers begin at multiples of more bytes than the one before has."""
    for i in (6, 7, 20, 31, 32):
        y = np.zeros(64, np.float32)
        report = tilec.simulate(behind, y, i, target=target)
        assert {*y} == ({3, 7} if i < 7 else {3})
        said = [f.message for f in report.findings]
        assert said == ([] if i < 7 else [f"s[{i}]; s has the shape (7,)"])
