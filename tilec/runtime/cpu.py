"""The CPU as a device: the host object in memory, its blocks spread over a pool of threads.

A kernel's entry has the C signature `void (void **args, int32 begin, int32 end, int32 gx, int32
gy, int32 gz)` and runs the blocks [begin, end), counted with x fastest. ctypes gives up the
interpreter lock for the call, so Python threads run blocks at the same time. A launch returns
when all blocks are done. The calls of a long kernel are so short that Ctrl-C ends it between them:
KeyboardInterrupt is raised in the caller when no thread runs a block any more.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import os
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm

from tilec.runtime.block import ArgumentBlock, BlockLayout
from tilec.runtime.driver import DriverError, Grid, Kernel, NoTensorMaps, Ready, check_together
from tilec.runtime.image import Image
from tilec.runtime.workspace import workspace_params
from tilec.support.settings import processors

# A thread takes a share of the blocks that is this much smaller than an even one, so that a
# thread that the system has taken away for a while holds up little.
_SHARES_PER_THREAD = 4
_PATIENCE = 0.05  # seconds that a call should take at most, so that an interrupt is noticed
MOST_TOGETHER = 1024  # blocks that wait for one another, each in a thread of its own
_ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, *[ctypes.c_int32] * 5)


def thread_count() -> int:
    """Threads a launch uses: TILEC_NUM_THREADS, else the processors this process may run on."""
    wanted = os.environ.get("TILEC_NUM_THREADS", "")
    if not wanted:
        return processors()
    if not wanted.isdigit() or int(wanted) == 0:
        raise DriverError(f"TILEC_NUM_THREADS is {wanted!r}, not a positive number")
    return int(wanted)


class Pool:
    """Threads that wait for work.

    `run(task, helpers)` calls `task` in this thread and in up to `helpers` others at the same
    time. It returns when all calls that have begun have ended; a helper that has not begun by the
    time this thread is done is not waited for. An exception of any call is raised here. `stop` is
    called when this thread's call fails or is interrupted, also while it waits for the others.
    """

    def __init__(self) -> None:
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        # A forked child has the queue but not the threads that served it.
        self._lock = threading.Lock()
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._threads = 0

    def _serve(self) -> None:
        work = self._work
        while True:
            work.get()()

    def run(
        self, task: Callable[[], None], helpers: int, stop: Callable[[], None] = lambda: None
    ) -> None:
        with self._lock:
            while self._threads < helpers:
                threading.Thread(target=self._serve, name="tilec-cpu", daemon=True).start()
                self._threads += 1
        run = _Run(task, stop)
        run.lead(self._work, helpers)


class _Run:
    """One call of `Pool.run`."""

    def __init__(self, task: Callable[[], None], stop: Callable[[], None]) -> None:
        self._task, self._stop = task, stop
        self._lock = threading.Lock()
        self._active = 0
        self._closed = False
        self._idle = threading.Lock()
        self._idle.acquire()  # released by the last helper to end after the leader has
        self._failures: list[BaseException] = []

    def help(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._active += 1
        try:
            self._task()
        except BaseException as e:
            self._failures.append(e)
        with self._lock:
            self._active -= 1
            if self._closed and self._active == 0:
                self._idle.release()

    def lead(self, work: queue.SimpleQueue[Callable[[], None]], helpers: int) -> None:
        try:
            for _ in range(helpers):
                work.put(self.help)
            self._task()
        except BaseException:
            self._stop()
            raise
        finally:
            self._wait()
        if self._failures:
            raise self._failures[0]

    def _wait(self) -> None:
        """Until no helper is at work; they may use memory that is the caller's. An interrupt is
        raised after that."""
        interrupt: KeyboardInterrupt | None = None
        waiting = True
        while waiting:
            try:
                with self._lock:
                    self._closed = True
                    busy = self._active > 0
                if busy:
                    self._idle.acquire()
                waiting = False
            except KeyboardInterrupt as e:
                interrupt = e
                self._stop()
        if interrupt is not None:
            raise interrupt


_pool = Pool()


def run_blocks(entry: Callable[..., None], args: int, grid: Grid, threads: int) -> None:
    """Call `entry` for all blocks of `grid`, in contiguous shares, from `threads` threads."""
    total = grid[0] * grid[1] * grid[2]
    threads = min(threads, total)
    share = max(1, total // (threads * _SHARES_PER_THREAD)) if threads > 1 else total
    starts = itertools.count(0, share)  # next() on it is atomic
    stopped: list[bool] = []

    def work() -> None:
        step = 1
        for begin in starts:
            end = min(begin + share, total)
            while begin < end:
                if stopped:
                    return
                count = min(step, end - begin)
                start = time.perf_counter()
                entry(args, begin, begin + count, *grid)
                took = time.perf_counter() - start
                begin += count
                most = step * (16 if took < _PATIENCE / 256 else 2)  # others may take longer
                step = max(1, min(most, int(count * _PATIENCE / max(took, 1e-9))))
            if end >= total:
                return

    if total == 1:
        entry(args, 0, 1, *grid)
    elif threads == 1:
        work()
    else:
        _pool.run(work, threads - 1, lambda: stopped.append(True))


def run_together(entry: Callable[..., None], args: int, grid: Grid) -> None:
    """Call `entry` for each block of `grid` in a thread of its own: they wait for one another. An
    interrupt is raised when all have ended."""
    blocks = range(1, math.prod(grid))
    others = [
        threading.Thread(target=entry, args=(args, b, b + 1, *grid), daemon=True) for b in blocks
    ]
    interrupt: KeyboardInterrupt | None = None
    for other in others:
        other.start()
    entry(args, 0, 1, *grid)
    for other in others:
        while other.is_alive():
            try:
                other.join()
            except KeyboardInterrupt as e:
                interrupt = e
    if interrupt is not None:
        raise interrupt


class CpuDriver:
    """The processor this program runs on."""

    kind = "cpu"

    def __init__(self) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()

    def target_of(self, index: int) -> str:
        return "cpu"

    def current_stream(self, index: int) -> int:
        return 0

    def order(self, index: int, first: int, then: int) -> None:
        """Nothing to do: there are no streams."""

    def load(self, image: Image, index: int) -> Kernel:
        return CpuKernel(image)


class CpuKernel(NoTensorMaps):
    """A kernel's host code in memory; it stays there as long as this object."""

    def __init__(self, image: Image) -> None:
        self.image = image
        self.layout = BlockLayout(image.params, image.target)
        self._engine, address = load_object(image.binary, image.symbol)
        self._entry = _ENTRY(address)
        at = self._engine.get_global_value_address(f"{image.symbol}.failed") if image.debug else 0
        self._failed = ctypes.c_int32.from_address(at) if at else ctypes.c_int32(0)

    def ready(self, grid: Grid, block: ArgumentBlock, stream: int) -> Ready:
        if self.image.cooperative:
            check_together(self.image, grid, MOST_TOGETHER)

        def call() -> int:
            if self.image.cooperative:
                own, words = self._with_words(block)
                run_together(self._entry, own.address, grid)
                assert not any(words)
            else:
                run_blocks(self._entry, block.address, grid, thread_count())
            if self._failed.value:
                text = self.image.asserts[self._failed.value - 1]
                self._failed.value = 0
                raise DriverError(text)
            return 0

        return call

    def _with_words(
        self, block: ArgumentBlock
    ) -> tuple[ArgumentBlock, ctypes.Array[ctypes.c_int32]]:
        """The arguments with words of this launch's own, which are zero."""
        own = self.layout.copy(block)
        ((number, param),) = workspace_params(self.image)
        words = (ctypes.c_int32 * (param.dim // 4))()
        self.layout.put(own, number, ctypes.addressof(words))
        return own, words

    def unloader(self) -> Callable[[], None]:
        return lambda: None  # the engine goes with this object

    def launch(self, ready: Ready) -> None:
        ready()

    def resident_blocks(self) -> int:
        return thread_count()


def load_object(binary: bytes, symbol: str) -> tuple[Any, int]:
    """Link a host object file into this process: the engine that owns the code, and the symbol's
    address."""
    machine = llvm.Target.from_default_triple().create_target_machine()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(binary))
    engine.finalize_object()
    address = engine.get_function_address(symbol)
    if not address:
        raise DriverError(f"the host object has no function {symbol}")
    return engine, address
