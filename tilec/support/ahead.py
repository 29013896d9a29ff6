"""Work whose result may be asked for later, done meanwhile by processors that have nothing to do:
runs of an assembler, which are processes of their own."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from tilec.support.settings import processors

Made = TypeVar("Made")


def idle_processors() -> int:
    """How many of the processors that this process may run on have nothing to do."""
    own = processors()
    busy = os.getloadavg()[0] if hasattr(os, "getloadavg") else own
    return int(own - busy)


def begun(tasks: Sequence[Callable[[], Made]]) -> list[Callable[[], Made]]:
    """For each task, what gives its result. They have been begun, in threads, where processors are
    idle; else each is done when it is asked for."""
    if len(tasks) > idle_processors():
        return [*tasks]
    threads = ThreadPoolExecutor(len(tasks))
    futures = [threads.submit(task) for task in tasks]
    threads.shutdown(wait=False)
    return [functools.partial(wait, future) for future in futures]


def wait(future: Future[Made]) -> Made:
    return future.result()


def in_turn(tasks: Sequence[Callable[[], Made]]) -> Iterator[Made]:
    """What the tasks give, in their order; where processors are idle they are done at the same
    time."""
    made = begun(tasks) if len(tasks) > 1 else tasks
    return (result() for result in made)
