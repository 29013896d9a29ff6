"""CUDA: timing by events, CUDA graphs, and what the device is."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

import torch

from benchmarks.timing import Call

_AHEAD = 256  # calls that are queued before the host waits: the driver takes about a thousand


class CudaTimer:
    """`timing.Timer` by CUDA events on the current stream.

    No call is launched before the queue holds work for the GPU (the write of a buffer larger than
    the L2 cache), so the host's time to launch is not seen.
    """

    def __init__(self) -> None:
        self._buffer = torch.empty(2 * l2_bytes(), dtype=torch.uint8, device="cuda")

    def each(self, calls: Sequence[Call]) -> list[float]:
        times: list[float] = []
        for first in range(0, len(calls), _AHEAD):
            times += self._each(calls[first : first + _AHEAD])
        return times

    def _each(self, calls: Sequence[Call]) -> list[float]:
        events = [_event() for _ in range(2 * len(calls))]
        self._lead_in()
        for number, call in enumerate(calls):
            events[2 * number].record()
            call()
            events[2 * number + 1].record()
        torch.cuda.synchronize()
        pairs = zip(events[::2], events[1::2])
        return [start.elapsed_time(end) for start, end in pairs]

    def all(self, settle: Sequence[Call], calls: Sequence[Call]) -> float:
        start, end = _event(), _event()
        self._lead_in()
        for call in settle:
            call()
        start.record()
        for call in calls:
            call()
        end.record()
        torch.cuda.synchronize()
        return float(start.elapsed_time(end))

    def batch(self, calls: Sequence[Call]) -> Call:
        for call in calls:
            call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kept = [call() for call in calls]  # results that calls allocate stay apart
        del kept
        return Replay(graph, tuple(calls))

    def _lead_in(self) -> None:
        torch.cuda.synchronize()
        for _ in range(4):
            self._buffer.zero_()


class Replay:
    """A graph, with the calls in it: what they hold is what the graph's kernels read and write, and
    memory that nobody holds is given back to the device before the next graph is made."""

    def __init__(self, graph: torch.cuda.CUDAGraph, calls: tuple[Call, ...]) -> None:
        self._graph, self._calls = graph, calls

    def __call__(self) -> None:
        self._graph.replay()


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def l2_bytes() -> int:
    """Size of the current device's L2 cache."""
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return int(getattr(properties, "L2_cache_size", 0)) or 64 << 20


def device_facts() -> dict[str, str]:
    """Name, driver and CUDA version; empty without a GPU."""
    if not torch.cuda.is_available():
        return {}
    asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        driver = subprocess.run(asked, capture_output=True, text=True).stdout.split("\n")[0]
    except OSError:
        driver = "unknown"
    return {
        "device": torch.cuda.get_device_name(),
        "cuda": str(torch.version.cuda),
        "driver": driver.strip(),
    }
