"""The CPU driver: host objects in memory, blocks over threads."""

from __future__ import annotations

import ctypes
import os
import threading

import numpy as np
import pytest

from tilec.codegen.assemble import assemble
from tilec.runtime.cpu import CpuDriver, Pool, run_blocks, thread_count
from tilec.runtime.driver import DriverError, argument_block
from tilec.runtime.image import AbiParam, Argument, Image, Resources
from tilec.runtime.tensors import read_tensor
from tilec.target import find_target

# out[block] = x * (block + 1) + gx, for the blocks it is given.
SOURCE = """
define void @number(ptr %args, i32 %begin, i32 %end, i32 %gx, i32 %gy, i32 %gz) {
entry:
  %out.at = load ptr, ptr %args
  %out = load ptr, ptr %out.at
  %second = getelementptr ptr, ptr %args, i64 1
  %x.at = load ptr, ptr %second
  %x = load float, ptr %x.at
  %width = sitofp i32 %gx to float
  br label %head
head:
  %b = phi i32 [ %begin, %entry ], [ %next, %body ]
  %more = icmp slt i32 %b, %end
  br i1 %more, label %body, label %done
body:
  %next = add i32 %b, 1
  %f = sitofp i32 %next to float
  %scaled = fmul float %f, %x
  %value = fadd float %scaled, %width
  %to = getelementptr float, ptr %out, i32 %b
  store float %value, ptr %to
  br label %head
done:
  ret void
}
"""


@pytest.fixture(scope="module")
def kernel():
    binary = assemble(SOURCE, find_target("cpu")).binary
    out = Argument("out", "tensor", "float32", ("N",), (1,), 4, True)
    x = Argument("x", "scalar", "float32")
    params = (AbiParam("tensor", "out", -1, "pointer"), AbiParam("scalar", "x", -1, "float32", "x"))
    resources = Resources(None, None, 0, {}, 1, None)
    image = Image("number", "number", "cpu", (out, x), params, "", (), resources, "object", binary)
    return CpuDriver().load(image, 0)


@pytest.mark.parametrize("grid", [(1, 1, 1), (7, 3, 2), (1000, 1, 1), (1, 1, 13)])
@pytest.mark.parametrize("threads", ["1", "2", "5", ""])
def test_every_block_once(kernel, grid, threads, monkeypatch, rng) -> None:
    monkeypatch.setenv("TILEC_NUM_THREADS", threads)
    total = grid[0] * grid[1] * grid[2]
    out = np.full(total, np.nan, np.float32)
    x = float(np.float32(rng.uniform(-2, 2)))
    block = argument_block(kernel, {"out": read_tensor(out, "out")}, {"x": x}, grid)
    kernel.launch(kernel.ready(grid, block, 0))
    want = np.float32(x) * np.arange(1, total + 1, dtype=np.float32) + np.float32(grid[0])
    np.testing.assert_allclose(out, want, rtol=1e-6)


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize("total", [1, 2, 7, 64, 1001])
def test_shares_cover_the_grid(threads: int, total: int) -> None:
    seen: list[int] = []
    lock = threading.Lock()

    def entry(args: int, begin: int, end: int, *grid: int) -> None:
        with lock:
            seen.extend(range(begin, end))

    run_blocks(entry, 0, (total, 1, 1), threads)
    assert sorted(seen) == list(range(total))


def test_calls_run_at_the_same_time() -> None:
    barrier = threading.Barrier(3, timeout=10)
    Pool().run(lambda: barrier.wait() and None, 2)


def test_a_late_helper_is_not_waited_for() -> None:
    pool = Pool()
    held, release = threading.Semaphore(0), threading.Event()

    def hold() -> None:
        held.release()
        release.wait(10)

    other = threading.Thread(target=pool.run, args=(hold, 1))
    other.start()
    held.acquire(), held.acquire()  # the only helper is busy
    calls: list[int] = []
    pool.run(lambda: calls.append(1), 1)
    assert calls == [1]
    release.set()
    other.join()
    pool.run(lambda: None, 1)
    assert calls == [1], "the helper found the work closed"


def test_an_exception_reaches_the_caller() -> None:
    pool = Pool()
    begun = threading.Semaphore(0)

    def fail() -> None:
        if threading.current_thread().name == "tilec-cpu":
            begun.release()
            raise ValueError("in a helper")
        begun.acquire(timeout=10)

    with pytest.raises(ValueError, match="in a helper"):
        pool.run(fail, 2)
    pool.run(lambda: None, 2)


def test_pool_in_a_forked_child() -> None:
    pool = Pool()
    pool.run(lambda: None, 2)
    child = os.fork()
    if child == 0:
        barrier = threading.Barrier(3, timeout=10)
        try:
            pool.run(lambda: barrier.wait() and None, 2)
            os._exit(0)
        except BaseException:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_thread_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEC_NUM_THREADS", "3")
    assert thread_count() == 3
    monkeypatch.delenv("TILEC_NUM_THREADS")
    assert thread_count() == len(os.sched_getaffinity(0))
    monkeypatch.setenv("TILEC_NUM_THREADS", "many")
    with pytest.raises(DriverError, match="TILEC_NUM_THREADS is 'many'"):
        thread_count()


def test_missing_symbol(kernel) -> None:
    from dataclasses import replace

    with pytest.raises(DriverError, match="no function other"):
        CpuDriver().load(replace(kernel.image, symbol="other"), 0)


def test_block_memory_outlives_the_caller(kernel, rng) -> None:
    """A launch made ready keeps its block: the values are still there when it runs later."""
    out = np.zeros(9, np.float32)
    ready = kernel.ready(
        (9, 1, 1),
        argument_block(kernel, {"out": read_tensor(out, "out")}, {"x": 2.0}, (9, 1, 1)),
        0,
    )
    junk = [ctypes.create_string_buffer(256) for _ in range(100)]
    assert ready() == 0 and junk
    np.testing.assert_array_equal(out, 2 * np.arange(1, 10) + 9)
