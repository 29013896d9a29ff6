"""How long calls take on a GPU, by the driver's own events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilec.runtime.gpu import GpuDriver
from tilec.target import find_target

_AHEAD = 256  # calls that are queued before the host waits: the driver takes about a thousand
_LEAST_FLUSH = 64 << 20  # bytes


class GpuTimer:
    """Times calls on device `index`, on torch's current stream or the default one.

    Before each call a buffer twice as large as the L2 cache is written (`flush`): a call finds
    nothing there of the one before, and is queued while the GPU still writes, so that the host's
    time to launch it is not seen.
    """

    def __init__(self, driver: GpuDriver, index: int, flush: bool = True) -> None:
        self._driver, self._index, self._flush = driver, index, flush
        size = int(2 * find_target(driver.target_of(index)).speeds.l2_bytes)
        self._size = max(size, _LEAST_FLUSH)

    def each(
        self, call: Callable[[], Any], count: int, before: Callable[[], None] = lambda: None
    ) -> list[float]:
        """Milliseconds of each of `count` calls; `before` runs ahead of each and is not timed.
        Raises DriverError."""
        driver, taken = self._driver, list[float]()
        stream = driver.current_stream(self._index)
        with driver.on_device(self._index):
            buffer = self._do("MemAlloc", self._size) if self._flush else None
            events = [self._do("EventCreate", 0) for _ in range(2 * min(count, _AHEAD))]
            try:
                while len(taken) < count:
                    pairs = list(zip(events[::2], events[1::2]))[: count - len(taken)]
                    for start, end in pairs:
                        before()
                        if buffer is not None:
                            self._do("MemsetAsync", buffer, 0, self._size, stream)
                        self._do("EventRecord", start, stream)
                        call()
                        self._do("EventRecord", end, stream)
                    self._do("Synchronize")
                    taken += [float(self._do("EventElapsedTime", *pair)) for pair in pairs]
            finally:
                for event in events:
                    self._do("EventDestroy", event)
                if buffer is not None:
                    self._do("Synchronize")
                    self._do("MemFree", buffer)
        return taken

    def _do(self, name: str, *args: Any) -> Any:
        place = f"{self._driver.kind}:{self._index}"
        return self._driver.call(name, *args, doing=f"timing on {place}")
