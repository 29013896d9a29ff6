"""`tilec.bench.do_bench`: what it counts, how it asks a GPU's driver, what it says of mistakes."""

from __future__ import annotations

import contextlib
import gc
import pickle
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tilec
import tilec.language as T
from tilec.bench import Timing, do_bench, quantile
from tilec.runtime.timing import GpuTimer

N = T.dynamic("N")


@tilec.kernel
def double(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
    with T.Kernel(T.ceildiv(N, 1024), threads=128) as b:
        for i in T.Parallel(1024):
            B[b * 1024 + i] = A[b * 1024 + i] * 2


def test_a_call_of_known_length() -> None:
    timing = do_bench(lambda: time.sleep(0.004), warmup=1, rep=40, device="cpu")
    assert 4.0 <= timing.min <= timing <= timing.max and timing == timing.median
    assert len(timing.samples) <= 10 and timing.device == "cpu"
    low, high = timing.spread
    assert timing.min <= low <= high <= timing.max
    assert "ms (10 % to 90 %: " in str(timing) and "on cpu" in str(timing)
    assert pickle.loads(pickle.dumps(timing)).samples == timing.samples


def test_short_calls_are_timed_several_at_a_time() -> None:
    calls = 0

    def call() -> None:
        nonlocal calls
        calls += 1

    timing = do_bench(call, warmup=1, rep=5, device="cpu")
    assert calls > 20 * len(timing.samples) and timing < 0.05
    assert gc.isenabled()


def test_a_kernel_on_the_cpu() -> None:
    a = np.ones(1 << 16, np.float32)
    b = np.zeros_like(a)
    assert 0 < do_bench(lambda: double(a, b), warmup=2, rep=10, device="cpu") < 1000
    assert (b == 2).all()


def test_what_is_returned() -> None:
    def bench(**given: Any) -> Any:
        return do_bench(lambda: time.sleep(0.001), warmup=0, rep=5, device="cpu", **given)

    low, middle, high = bench(quantiles=[0.2, 0.5, 0.8])
    assert 1.0 <= low <= middle <= high
    samples = bench(return_mode="all")
    assert isinstance(samples, list) and len(samples) >= 3
    for mode in ("min", "max", "mean", "median"):
        timing = bench(return_mode=mode)
        assert timing == getattr(timing, mode)


def test_quantiles_are_linear_between_samples() -> None:
    assert [quantile([4.0, 1.0, 2.0], q) for q in (0, 0.25, 0.5, 0.75, 1)] == [1, 1.5, 2, 3, 4]
    assert quantile([7.0], 0.9) == 7.0 and Timing(7.0, [7.0], "cpu").spread == (7.0, 7.0)


def test_gradients_are_dropped_before_each_call() -> None:
    class Parameter:
        grad: Any = None

    p, seen = Parameter(), []

    def call() -> None:
        seen.append(p.grad)
        p.grad = 1
        time.sleep(0.001)

    do_bench(call, warmup=0, rep=3, grad_to_none=[p], device="cpu")
    assert set(seen) == {None}


@pytest.mark.parametrize(
    ("given", "message", "hint"),
    [
        ({"fn": 3}, "times a function, not 3", "lambda"),
        ({"warmup": -1}, "warmup of do_bench is -1", "milliseconds"),
        ({"rep": float("inf")}, "rep of do_bench is inf", "milliseconds"),
        ({"rep": "long"}, "rep of do_bench is 'long'", "milliseconds"),
        ({"quantiles": 0.5}, "quantiles of do_bench are 0.5", "0 to 1"),
        ({"quantiles": [50]}, "quantiles of do_bench are", "0 to 1"),
        ({"return_mode": "avg"}, "return_mode of do_bench is 'avg'", "median, mean"),
        ({"return_mode": "medain"}, "did you mean", "median, mean"),
        ({"device": "tpu"}, "device of do_bench is 'tpu'", 'device="cpu"'),
    ],
)
def test_mistakes(given: dict[str, Any], message: str, hint: str) -> None:
    with pytest.raises(tilec.LaunchError, match=message) as e:
        do_bench(**{"fn": time.time, "device": "cpu", **given})
    assert hint in e.value.hint and e.value.loc.file == __file__


# --- a GPU's driver, played ---------------------------------------------------------------------


class Driver:
    """Notes what it is asked for; event n is recorded n milliseconds after the first."""

    kind = "cuda"

    def __init__(self) -> None:
        self.said: list[str] = []
        self.events = 0
        self.times: dict[int, int] = {}
        self.alive: set[Any] = set()

    def target_of(self, index: int) -> str:
        return "cuda:sm_90a"

    def current_stream(self, index: int) -> int:
        return 5

    @contextlib.contextmanager
    def on_device(self, index: int) -> Iterator[None]:
        self.said.append(f"on {index}")
        yield
        self.said.append("off")

    def call(self, name: str, *args: Any, doing: str) -> Any:
        match name:
            case "EventCreate":
                self.events += 1
                self.alive.add(self.events)
                return self.events
            case "EventDestroy":
                self.alive.remove(args[0])
            case "MemAlloc":
                assert args[0] >= 100e6, "twice the L2 cache of an H100"
                self.alive.add("memory")
                return "memory"
            case "MemFree":
                self.alive.remove("memory")
            case "EventRecord":
                self.said.append("record")
                self.times[args[0]] = len(self.times) if args[0] not in self.times else 7
                assert args[1] == 5
            case "EventElapsedTime":
                return self.times[args[1]] - self.times[args[0]]
            case "MemsetAsync":
                self.said.append("flush")
            case "Synchronize":
                self.said.append("wait")
        return None


@pytest.mark.parametrize("flush", [True, False])
def test_what_a_gpu_is_asked_for(flush: bool) -> None:
    driver: Any = Driver()
    timer = GpuTimer(driver, 1, flush)
    taken = timer.each(lambda: driver.said.append("call"), 3, lambda: driver.said.append("before"))
    assert taken == [1.0, 1.0, 1.0] and not driver.alive
    each = ["before", *["flush"] * flush, "record", "call", "record"]
    assert driver.said == ["on 1", *each * 3, "wait", *["wait"] * flush, "off"]


def test_many_calls_wait_in_between() -> None:
    driver: Any = Driver()
    assert len(GpuTimer(driver, 0, False).each(lambda: None, 600)) == 600
    assert driver.said.count("wait") == 3 and driver.events == 512 and not driver.alive


def test_what_fails_leaves_nothing_behind() -> None:
    driver: Any = Driver()
    with pytest.raises(ZeroDivisionError):
        GpuTimer(driver, 0).each(lambda: 1 / 0, 3)
    assert not driver.alive


@pytest.mark.gpu
def test_a_gpu_agrees_with_torch(torch: Any) -> None:
    x = torch.randn(1 << 26, device="cuda")
    y = torch.empty_like(x)
    mine = do_bench(lambda: double(x, y))
    assert mine.device == "cuda:0"
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(20):
        double(x, y)
    end.record()
    torch.cuda.synchronize()
    theirs = start.elapsed_time(end) / 20
    assert 0.7 * theirs < mine < 1.4 * theirs


@pytest.mark.gpu
def test_a_gpu_without_torch(tmp_path: Any) -> None:
    import subprocess
    import sys

    program = tmp_path / "program.py"
    program.write_text("""
import sys, tilec, tilec.language as T
N = T.dynamic("N")
@tilec.kernel
def nothing(n: T.int32):
    with T.Kernel(n, threads=32):
        pass
timing = tilec.bench.do_bench(lambda: nothing(1000, device="cuda"), warmup=1, rep=5)
assert "torch" not in sys.modules and timing.device == "cuda:0" and 0 < timing < 1
""")
    subprocess.run([sys.executable, str(program)], check=True)
