"""The CPU driver: host objects in memory, blocks over threads."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

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


INTERRUPTED = """
import sys, time
import numpy as np
import tilec
import tilec.language as T

@tilec.kernel
def slow(out: T.Tensor((T.dynamic("N"),), "float32"), n: T.int32):
    with T.Kernel(out.shape[0]) as bx:
        v = T.alloc_var("float32", 1.0)
        for i in T.serial(n):
            v = v * 0.999 + 0.5
        out[bx] = v

out = np.zeros(20000, np.float32)
slow(out[:8], 10)  # compiled, and the threads are there
out[:] = 0
print("go", flush=True)
start = time.perf_counter()
try:
    slow(out, 2_000_000)
except KeyboardInterrupt:
    seconds = time.perf_counter() - start
    then = out.copy()
    time.sleep(0.3)
    assert (out == then).all(), "a thread goes on"
    assert 0 < np.count_nonzero(out) < len(out)
    slow(out, 0)
    assert (out == 1).all()
    print(seconds)
"""


@pytest.mark.parametrize("threads", ["1", "2"])
def test_an_interrupt_ends_a_long_kernel(threads: str, tmp_path: Path) -> None:
    file = tmp_path / "interrupted.py"
    file.write_text(INTERRUPTED)
    env = os.environ | {"TILEC_NUM_THREADS": threads, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as child:
        assert child.stdout is not None and child.stdout.readline() == "go\n"
        time.sleep(0.4)
        child.send_signal(signal.SIGINT)
        try:
            rest, _ = child.communicate(timeout=60)
        finally:
            child.kill()
    assert child.returncode == 0
    assert float(rest) < 20  # all of it takes minutes


def test_a_long_share_is_run_in_pieces() -> None:
    """However it begins: the first blocks may be quick, and others not."""
    calls: list[tuple[int, int]] = []

    def entry(args: int, begin: int, end: int, *grid: int) -> None:
        time.sleep(sum(1e-5 if b < 300 else 2e-3 for b in range(begin, end)))
        calls.append((begin, end))

    run_blocks(entry, 0, (1200, 1, 1), 1)
    assert calls[0] == (0, 1) and len(calls) < 40
    assert max(end - begin for begin, end in calls if begin > 800) < 60


def test_an_interrupt_while_waiting_is_raised_when_all_have_ended() -> None:
    pool, ended, stopped = Pool(), threading.Event(), threading.Event()
    begun = threading.Event()

    def task() -> None:
        if threading.current_thread().name == "tilec-cpu":
            begun.set()
            assert stopped.wait(20)
            ended.set()
        else:
            assert begun.wait(20)
            to_here = (threading.get_ident(), signal.SIGINT)
            threading.Timer(0.2, signal.pthread_kill, to_here).start()

    with pytest.raises(KeyboardInterrupt):
        pool.run(task, 1, stopped.set)
    assert ended.is_set()
    pool.run(lambda: None, 1)
