"""Processes that call functions, as an executor of `concurrent.futures`.

The executors of the standard library either fork, which a process with a GPU's driver or torch's
threads had better not, or run the user's main module again in every child, which a script without
`if __name__ == "__main__"` and a notebook do not survive. These start Python alone and import what
the function that they are sent belongs to.
"""

from __future__ import annotations

import os
import pickle
import queue
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import IO, Any, ParamSpec, TypeVar

from tilec.support.settings import processors

_P = ParamSpec("_P")
_T = TypeVar("_T")
_START = "import sys; sys.path[:] = {path!r}; from tilec.autotuning.workers import serve; serve()"
_Job = tuple["Future[Any]", bytes]


class Processes(Executor):
    """Up to `count` processes, started when there is work for them. What is submitted is pickled:
    a function of a module and its arguments."""

    def __init__(self, count: int | None = None) -> None:
        self._count = max(1, count or processors())
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._waiting = 0
        self._lock = threading.Lock()
        self._closed = False
        self._running: set[subprocess.Popen[bytes]] = set()

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        data = pickle.dumps((fn, args, kwargs))
        future: Future[_T] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError("the processes have been shut down")
            self._waiting += 1
            if len(self._threads) < min(self._count, self._waiting):
                thread = threading.Thread(target=self._serve, daemon=True)
                self._threads.append(thread)
                thread.start()
        self._jobs.put((future, data))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the processes when they are done; at once, whatever they do, where what waits is
        cancelled."""
        with self._lock:
            self._closed = True
            running = [*self._running] if cancel_futures else []
        while cancel_futures:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                break
            if job is not None:
                job[0].cancel()
        for process in running:
            process.kill()
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads if wait else ():
            thread.join()

    def _serve(self) -> None:
        """One thread: hands jobs to its process, which is replaced if it ends."""
        process: subprocess.Popen[bytes] | None = None
        while (job := self._jobs.get()) is not None:
            future, data = job
            if future.set_running_or_notify_cancel():
                try:
                    if process is None:
                        process = self._start()
                    ok, value = _exchange(process, data)
                except Exception as error:
                    if process is not None:
                        self._end(process)
                    process = None
                    future.set_exception(error)
                else:
                    if ok:
                        future.set_result(value)
                    else:
                        future.set_exception(value)
            with self._lock:
                self._waiting -= 1
        if process is not None:
            self._end(process)

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", _START.format(path=sys.path)]
        pipe = subprocess.PIPE
        # Ctrl-C is for this process, which ends the others.
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, start_new_session=True)
        with self._lock:
            self._running.add(process)
        return process

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        with self._lock:
            self._running.discard(process)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:  # what was left in it had nowhere to go
                    pass
        process.wait()


def _exchange(process: subprocess.Popen[bytes], data: bytes) -> tuple[bool, Any]:
    assert process.stdin is not None and process.stdout is not None
    try:
        _send(process.stdin, data)
        answer = _receive(process.stdout)
    except OSError:
        answer = None
    if answer is None:
        status = process.wait()
        raise RuntimeError(f"the process that compiled ended (status {status})")
    ok, value = pickle.loads(answer)
    return ok, value


def _send(pipe: IO[bytes], data: bytes) -> None:
    pipe.write(struct.pack("<Q", len(data)) + data)
    pipe.flush()


def _receive(pipe: IO[bytes]) -> bytes | None:
    head = pipe.read(8)
    if len(head) < 8:
        return None
    (size,) = struct.unpack("<Q", head)
    data = pipe.read(size)
    return data if len(data) == size else None


def serve() -> None:
    """The process: answers until its input ends. What functions print goes to stderr."""
    jobs, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while (data := _receive(jobs)) is not None:
        try:
            fn, args, kwargs = pickle.loads(data)
            answer = pickle.dumps((True, fn(*args, **kwargs)))
        except Exception as error:
            try:
                answer = pickle.dumps((False, error))
                pickle.loads(answer)
            except Exception:  # an error that cannot travel
                answer = pickle.dumps((False, RuntimeError(f"{type(error).__name__}: {error}")))
        try:
            _send(answers, answer)
        except BrokenPipeError:  # nobody waits for it any more
            os._exit(0)
