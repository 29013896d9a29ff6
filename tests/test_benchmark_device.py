"""What the benchmark does around the device: what graphs hold, a device that is lost, and what is
compiled ahead."""

from __future__ import annotations

import contextlib
import sys
import weakref
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from bench_fakes import FakeTimer, fake_case, session  # noqa: E402

from benchmarks import lost, operators  # noqa: E402
from benchmarks.ahead import compile_ahead  # noqa: E402
from benchmarks.case import Candidate  # noqa: E402
from benchmarks.gpu import CudaTimer  # noqa: E402
from benchmarks.lost import DeviceLost, in_processes  # noqa: E402
from benchmarks.store import ResultFile  # noqa: E402
from tilec.autotuning.workers import Processes  # noqa: E402


class Graph:
    """Of torch.cuda, and `with torch.cuda.graph`."""

    replayed = 0

    def replay(self) -> None:
        self.replayed += 1


def test_a_graph_holds_what_its_calls_read(monkeypatch) -> None:
    graph = Graph()
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: graph)
    monkeypatch.setattr(torch.cuda, "graph", contextlib.nullcontext)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    scratch = torch.zeros(4)
    held = weakref.ref(scratch)

    def call(scratch=scratch):
        return scratch + 1

    batch = CudaTimer.batch(object.__new__(CudaTimer), [call])
    del scratch, call
    batch()
    assert graph.replayed == 1 and held() is not None
    del batch
    assert held() is None


# --- a device that is lost ------------------------------------------------------------------------


class Losing(FakeTimer):
    """A device that a call by the name of `culprit` ends: at once, or once it runs among others."""

    def __init__(self, culprit: str, together: bool = False) -> None:
        super().__init__()
        self.culprit, self.together, self.gone = culprit, together, False

    def _run(self, call) -> float:
        name = getattr(call, "name", "?")
        self.gone |= name == self.culprit and not self.together
        return super()._run(call)

    def each(self, calls):
        names = {getattr(call, "name", "?") for call in calls}
        self.gone |= self.together and self.culprit in names and len(names) > 1
        times = super().each(calls)
        self.all([], [])
        return times

    def all(self, settle, calls):
        total = super().all(settle, calls)
        if self.gone:
            raise RuntimeError("an illegal memory access was encountered")
        return total


@pytest.mark.parametrize("together", [False, True])
def test_a_peer_that_loses_the_device_is_left_out_of_the_next_run(together, tmp_path) -> None:
    hashes, times = {"tilec": "h", "Triton": "v"}, {"tilec": 1.0, "Triton": 2.0}
    case = fake_case(hashes, times)
    with pytest.raises(DeviceLost, match=r"^one: Triton \{\} lost the device: .*illegal memory"):
        session(tmp_path, timer=Losing("Triton", together)).measure(case)
    timer = Losing("Triton", together)
    row = session(tmp_path, timer=timer).measure(case)
    assert row["candidates"]["Triton"]["failed"].endswith(
        "an illegal memory access was encountered"
    )
    assert row["candidates"]["tilec"]["hot"]["median"] == 1.0 and not timer.gone
    hashes["Triton"] = "v2"  # another version is another chance
    row = session(tmp_path).measure(case)
    assert row["candidates"]["Triton"]["hot"]["median"] == 2.0


def test_a_configuration_that_loses_the_device_is_not_tuned_again(tmp_path) -> None:
    configs = {"Triton": ({"slow": 1}, {"slow": 2})}
    case = fake_case({"tilec": "h", "Triton": "v"}, {"tilec": 1.0, "Triton": 1.0}, configs)

    class First(Losing):
        """Only what takes as long as the first configuration is at fault."""

        def _run(self, call) -> float:
            self.gone |= (call.name, call.ms) == ("Triton", 4.0)  # four calls in a sample
            return FakeTimer._run(self, call)

    with pytest.raises(DeviceLost, match=r"Triton \{'slow': 1\}"):
        session(tmp_path, timer=First("")).measure(case)
    row = session(tmp_path, timer=First("")).measure(case)
    assert row["candidates"]["Triton"]["config"] == {"slow": 2}


def test_tilec_itself_is_to_blame_where_it_is_alone(tmp_path) -> None:
    case = fake_case({"tilec": "h"}, {"tilec": 1.0})
    with pytest.raises(DeviceLost, match=r"tilec \{\} lost"):
        session(tmp_path, timer=Losing("tilec")).measure(case)
    row = session(tmp_path, timer=Losing("tilec")).measure(case)
    assert "lost the device" in row["candidates"]["tilec"]["failed"]


def test_a_forced_run_goes_on_behind_the_rows_it_has(tmp_path) -> None:
    case, results = fake_case({"tilec": "h"}, {"tilec": 1.0}), ResultFile("fake", tmp_path)
    results.put(session(tmp_path, run="at one").measure(case))
    assert not session(tmp_path, force=True, run="at one").needs(case, results)
    assert session(tmp_path, force=True, run="at two").needs(case, results)


def test_work_goes_on_in_another_process(tmp_path, capfd) -> None:
    tries = tmp_path / "tries"

    def work() -> None:
        with tries.open("a") as file:
            file.write("x")
        if len(tries.read_text()) < 3:
            raise DeviceLost("one: Triton {} lost the device")

    assert in_processes(work) == 0 and tries.read_text() == "xxx"
    assert capfd.readouterr().err == "one: Triton {} lost the device; going on without it\n" * 2


@pytest.mark.parametrize(
    ("failure", "told"), [(SystemExit("no device"), "no device\n"), (OSError("full"), "OSError")]
)
def test_other_failures_end_it(failure, told, capfd) -> None:
    def work() -> None:
        raise failure

    assert in_processes(work) == 1
    assert told in capfd.readouterr().err


def test_the_status_of_lost_is_no_other(capfd) -> None:
    assert in_processes(lambda: sys.stdout.flush()) == 0
    assert lost._AGAIN not in (0, 1, 2)


# --- what is compiled ahead -----------------------------------------------------------------------


def test_tilec_is_compiled_in_a_process_that_leaves_it_on_disk(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("TILEC_TARGET", "cpu")
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path))
    case = operators.cases("backward")[0]
    ours = next(c for c in case.candidates() if c.name == "tilec")
    done: list[object] = []
    theirs = Candidate("peer", str, lambda t, config: lambda: t["out"], prepare=done.append)
    broken = Candidate("broken", str, theirs.bind, prepare=lambda config: 1 / 0)
    with Processes(1) as processes:
        config = ours.configs[0]
        compile_ahead([(case, ours, config), (case, theirs, {}), (case, broken, {})], processes)
    assert done == [{}]
    found = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.tilec")}
    assert len(found) == 3  # of the atomic form: sums, by keys, rounding
    ours.prepare(config)
    assert found == {path: path.stat().st_mtime_ns for path in Path(tmp_path).rglob("*.tilec")}
