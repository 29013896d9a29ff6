"""The benchmark harness without a GPU: timing by a fake clock, resuming, checking, tables, figures;
and one whole run on the CPU target."""

from __future__ import annotations

import importlib.util
import json
import random
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from bench_fakes import SMALL, Fake, FakeTimer, fake_case, session  # noqa: E402

import tilec  # noqa: E402
from benchmarks import bench_launch, figures, kernels, operators, peers, products, report  # noqa: E402
from benchmarks.__main__ import main, read_options, run, select, tell_stale, wanted  # noqa: E402
from benchmarks.check import ROWS, checker, poison, relative_error, sampled_rows  # noqa: E402
from benchmarks.session import Session  # noqa: E402
from benchmarks.store import PeerStore, ResultFile  # noqa: E402
from benchmarks.timing import (  # noqa: E402
    QUICK,
    Effort,
    calls_per_sample,
    geometric_mean,
    hot,
    ratio,
    spread,
    steady,
)

# --- timing ---------------------------------------------------------------------------------------


def test_hot_runs_every_candidate_in_every_round_in_new_orders() -> None:
    timer = FakeTimer()
    calls = {n: Fake(n, ms) for n, ms in (("a", 1.0), ("b", 2.0), ("c", 4.0))}
    samples = hot(timer, calls, Effort(rounds=20, warm=2, together=0), random.Random(1))
    rounds = [tuple(timer.log[i : i + 3]) for i in range(0, len(timer.log), 3)]
    assert len(rounds) == 22 and all(sorted(r) == ["a", "b", "c"] for r in rounds)
    assert len(set(rounds)) > 3
    assert samples == {"a": [1.0] * 20, "b": [2.0] * 20, "c": [4.0] * 20}


@pytest.mark.parametrize(("together", "want"), [(0.0, 5), (0.07, 10), (9.0, 50)])
def test_hot_lasts_a_while_but_not_for_ever(together, want) -> None:
    effort = Effort(rounds=5, most_rounds=50, warm=1, together=together)
    calls = {n: Fake(n, ms) for n, ms in (("a", 1.0), ("b", 6.0))}
    assert len(hot(FakeTimer(), calls, effort, random.Random(1))["a"]) == want


def test_steady_lasts_as_long_as_asked_even_if_faster_than_expected() -> None:
    timer, rests = FakeTimer(), []
    calls = {n: Fake(n, ms) for n, ms in (("a", 1.0), ("b", 3.0))}
    expected = {"a": 2.5, "b": 3.0}  # "a" is faster alone
    effort = replace(SMALL, passes=6, rest=0.01)
    samples = steady(timer, calls, expected, effort, random.Random(5), rests.append)
    assert samples == {"a": [1.0] * 6, "b": [3.0] * 6}
    enough = [name for name, ms in timer.totals if ms >= 300]
    assert sorted(enough) == ["a"] * 6 + ["b"] * 6
    assert {tuple(enough[i : i + 2]) for i in range(0, 12, 2)} == {("a", "b"), ("b", "a")}
    assert rests == [0.01] * 12


@pytest.mark.parametrize(
    ("ms", "sets", "several", "want"),
    [(1.0, 1, False, 1), (0.05, 1, False, 4), (0.03, 3, False, 9), (1.0, 3, False, 3),
     (1e-9, 7, False, 406)],
)  # fmt: skip
def test_short_calls_are_batched_in_multiples_of_the_sets(ms, sets, several, want) -> None:
    assert calls_per_sample(FakeTimer(), Fake("a", ms), sets, Effort(), several) == want


def test_ratio_is_of_medians_with_the_spread_of_rounds() -> None:
    mine, theirs = [1.0, 2.0, 4.0], [2.0, 2.0, 2.0]
    assert ratio(mine, theirs) == {"median": 1.0, "p10": 0.5, "p90": 2.0}
    assert spread([3.0, 1.0, 2.0])["median"] == 2.0
    assert geometric_mean([0.5, 2.0, 8.0]) == pytest.approx(2.0)
    with pytest.raises(ValueError, match="of nothing"):
        geometric_mean([])


# --- checking -------------------------------------------------------------------------------------


def test_sampled_rows_hold_the_ends_and_are_different() -> None:
    rows = sampled_rows(5000, 3).tolist()
    assert rows[0] == 0 and rows[-1] == 4999
    assert ROWS <= len(set(rows)) == len(rows) <= ROWS + 2
    assert sampled_rows(1, 0).tolist() == [0]
    assert sampled_rows(5000, 4).tolist() != rows


@pytest.mark.parametrize("dtype", [torch.float16, torch.int32])
def test_what_a_candidate_leaves_out_is_seen(dtype) -> None:
    p = products.Product(37, 21, 16, "NT", "float16" if dtype == torch.float16 else "int8")
    case = products.product_case("test", p)
    tensors = p.make("cpu")
    error_of = checker(case, tensors)
    a, b = p.views(tensors)
    exact = a.double() @ b.double()

    def right():
        return tensors["out"].copy_(exact.to(dtype))

    def first_rows_only():
        tensors["out"][:30] = exact[:30].to(dtype)
        return tensors["out"]

    assert error_of(right) <= case.tolerance
    assert not error_of(first_rows_only) <= case.tolerance  # after a right one, in the same memory
    assert error_of(lambda: tensors["out"].copy_((exact * 1.01).to(dtype))) > case.tolerance


def test_relative_error_of_odd_cases() -> None:
    zero = torch.zeros(2, 3, dtype=torch.float64)
    assert relative_error(zero, zero) == 0
    poison(bad := torch.ones(2, 3))
    assert relative_error(bad, zero + 1) != relative_error(bad, zero + 1)  # NaN
    with pytest.raises(ValueError, match="shape"):
        relative_error(torch.zeros(3, 2), zero)


# --- resuming -------------------------------------------------------------------------------------


def test_a_row_is_measured_again_only_if_something_it_depends_on_changed(tmp_path) -> None:
    hashes, times = {"tilec": "h1", "cuBLAS": "v1"}, {"tilec": 1.0, "cuBLAS": 2.0}
    case, results = fake_case(hashes, times), ResultFile("fake", tmp_path)
    s = session(tmp_path)
    assert s.needs(case, results)
    results.put(s.measure(case))
    again = ResultFile("fake", tmp_path)  # from the file
    assert not s.needs(case, again)
    assert session(tmp_path, force=True).needs(case, again)
    assert session(tmp_path, machine={"device": "another"}).needs(case, again)
    assert not session(tmp_path, effort_name="quick").needs(case, again)
    assert not session(tmp_path, modes=("hot",)).needs(case, again)
    for name in hashes:
        kept, hashes[name] = hashes[name], "h2"
        assert s.needs(case, again)
        hashes[name] = kept
    times["Triton"], hashes["Triton"] = 3.0, "v1"  # a peer that was not there
    assert s.needs(case, again)
    del times["Triton"], times["cuBLAS"]  # one that is not there any more
    assert not s.needs(case, again)


def test_quick_rows_do_not_do_for_a_full_run(tmp_path) -> None:
    case = fake_case({"tilec": "h"}, {"tilec": 1.0})
    results = ResultFile("fake", tmp_path)
    results.put(session(tmp_path, effort_name="quick", modes=("hot",)).measure(case))
    assert session(tmp_path, modes=("hot",)).needs(case, results)
    assert session(tmp_path, effort_name="quick").needs(case, results)  # STEADY is missing
    assert not session(tmp_path, effort_name="quick", modes=("hot",)).needs(case, results)


def test_a_row_holds_rates_ratios_errors_and_where_it_comes_from(tmp_path) -> None:
    case = fake_case({"tilec": "h", "cuBLAS": "v"}, {"tilec": 1.0, "cuBLAS": 1.5})
    row = json.loads(json.dumps(session(tmp_path).measure(case)))
    mine, theirs = row["candidates"]["tilec"], row["candidates"]["cuBLAS"]
    assert theirs["hot_ratio"]["median"] == theirs["steady_ratio"]["median"] == 1.5
    assert mine["hot"]["median"] == 1.0 and mine["hot_tera"] == pytest.approx(64 / 1e9)
    assert mine["error"] < 1e-6 and row["commit"] == "c0ffee"
    assert row["machine"] == {"device": "a chip"}
    assert row["signature"] == {"tilec": "h {}", "cuBLAS": "v {}"}


def test_peers_are_tuned_once(tmp_path) -> None:
    configs = {
        "Triton": ({"slow": 3}, {"slow": 1, "wrong": 1}, {"slow": 2}, {"slow": 1, "broken": 1})
    }
    hashes, times = {"tilec": "h", "Triton": "v"}, {"tilec": 1.0, "Triton": 1.0}
    case = fake_case(hashes, times, configs)
    row = session(tmp_path).measure(case)
    assert row["candidates"]["Triton"]["config"] == {"slow": 2}  # the fastest that is right
    stored = PeerStore(tmp_path).entry("Triton", "a chip")
    assert stored["tried"] == 4 and stored["worked"] == 2 and stored["ms"] == 2.0
    s = session(tmp_path)
    s.tune = None  # would raise
    assert s.measure(case)["candidates"]["Triton"]["config"] == {"slow": 2}
    assert PeerStore(tmp_path).entry("Triton", "another chip") == {}


def test_a_yardstick_of_several_configurations_is_tuned_unchecked(tmp_path) -> None:
    configs = {"Triton": ({"slow": 3}, {"slow": 1, "wrong": 1})}
    case = fake_case({"tilec": "h", "Triton": "v"}, {"tilec": 1.0, "Triton": 1.0}, configs)
    made = case.candidates()
    made = [replace(c, yardstick=c.name == "Triton") for c in made]
    case = replace(case, candidates=lambda: made)
    found = session(tmp_path).measure(case)["candidates"]["Triton"]
    assert found["config"] == {"slow": 1, "wrong": 1} and "error" not in found


def test_a_peer_that_cannot_is_told_and_not_tried_again(tmp_path) -> None:
    said: list[str] = []
    configs = {"Triton": ({"broken": 1}, {"wrong": 1})}
    hashes, times = {"tilec": "h", "Triton": "v"}, {"tilec": 1.0, "Triton": 1.0}
    case, results = fake_case(hashes, times, configs), ResultFile("fake", tmp_path)
    s = session(tmp_path, say=said.append)
    results.put(s.measure(case))
    entry = results.rows[case.key]["candidates"]["Triton"]
    assert "no configuration of Triton works" in entry["failed"] and "hot" not in entry
    assert any("Triton failed" in text for text in said)
    assert not s.needs(case, results)
    hashes["Triton"] = "v2"
    assert s.needs(case, results)


def test_a_wrong_result_is_not_timed(tmp_path) -> None:
    case = fake_case({"tilec": "h", "cuBLAS": "v"}, {"tilec": 1.0, "cuBLAS": 2.0},
                     {"tilec": ({"wrong": 1},)})  # fmt: skip
    row = session(tmp_path).measure(case)
    assert "wrong result" in row["candidates"]["tilec"]["failed"]
    assert "hot" not in row["candidates"]["tilec"]
    assert "hot_ratio" not in row["candidates"]["cuBLAS"]
    assert "failed" in report.table([row])


def test_the_budget_leaves_out_the_last_and_says_so(tmp_path, capsys, monkeypatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    cases = [fake_case({"tilec": "h"}, {"tilec": 1.0}, name=f"case{i}") for i in range(5)]
    cases = [replace(c, priority=-i) for i, c in enumerate(cases)]
    results = {"fake": ResultFile("fake", tmp_path)}
    s = session(tmp_path)
    measure = Session.measure

    def slow(self, case):
        clock[0] += 10
        return measure(self, case)

    monkeypatch.setattr(Session, "measure", slow)
    monkeypatch.setattr(operators, "cases", lambda name: cases)
    run(s, {"fake": cases}, results, budget=35)
    told = capsys.readouterr().err
    assert [r["case"] for r in results["fake"].rows.values()] == ["case2", "case3", "case4"]
    monkeypatch.setattr(operators, "cases", lambda name: cases[3:])  # the others are no more
    run(s, {"fake": cases[4:]}, results)
    assert len(results["fake"].rows) == 3  # nothing was measured, nothing is written
    run(replace(s, force=True), {"fake": cases[4:]}, results)
    assert [r["case"] for r in ResultFile("fake", tmp_path).rows.values()] == ["case3", "case4"]
    assert "left out 2 rows: case1, case0" in told


def test_whether_rows_are_current_is_asked_of_code_that_was_compiled_ahead(
    tmp_path, monkeypatch
) -> None:
    """One after the other, 147 rows took 137 s of a GPU's time before the first was measured."""
    log: list[str] = []
    ours = fake_case({"tilec": "h"}, {"tilec": 1.0}).candidates()[0]

    def identity(config):
        log.append("asked")
        return "h"

    ours = replace(ours, identity=identity, prepare=lambda config: None, on_disk=True)
    cases = [
        replace(fake_case({}, {}, name=f"case{i}"), candidates=lambda: [ours]) for i in range(3)
    ]

    def ahead(needed, processes):
        log.append(f"{len(needed)} ahead")

    monkeypatch.setattr("benchmarks.__main__.compile_ahead", ahead)
    monkeypatch.setattr(operators, "cases", lambda name: cases)
    run(session(tmp_path), {"fake": cases}, {"fake": ResultFile("fake", tmp_path)})
    assert log[0] == "3 ahead" and "asked" in log
    log.clear()
    monkeypatch.setattr("benchmarks.__main__._ASKED", 2)  # of those that a budget may leave out
    run(session(tmp_path), {"fake": cases}, {"fake": ResultFile("fake", tmp_path / "again")}, 1e9)
    assert log[0] == "2 ahead" and "1 ahead" in log[log.index("asked") :]


def test_rows_whose_code_is_another_are_named(tmp_path, capsys, monkeypatch) -> None:
    hashes = {"tilec": "h"}
    same, other, never = (fake_case(hashes, {"tilec": 1.0}, name=n) for n in ("s", "o", "n"))
    results = ResultFile("fake", tmp_path)
    results.put(session(tmp_path).measure(same))
    hashes["tilec"] = "before"
    results.put(session(tmp_path).measure(other))
    hashes["tilec"] = "h"
    assert tell_stale({"fake": [same, other, never]}, tmp_path) == 0
    told = capsys.readouterr().out.splitlines()
    assert told == ["fake: o", "fake: n (never measured)", "1 of 3 rows are current"]
    (tmp_path / "stale.txt").write_text("\n".join(told))
    monkeypatch.setattr(operators, "names", lambda: ["fake", "empty"])
    monkeypatch.setattr(operators, "cases", {"fake": [same, other, never], "empty": []}.get)
    assert wanted(read_options(["--rows", str(tmp_path / "stale.txt")])) == {"fake": [other, never]}


def test_a_figure_of_rows_without_peers(tmp_path) -> None:
    row = session(tmp_path).measure(fake_case({"tilec": "h"}, {"tilec": 1.0}))
    assert "tilec" in figures.ratios("fake", [row]).text_of()


def test_copies_of_the_inputs_are_twice_the_cache() -> None:
    p = products.Product(64, 64, 64)
    case = products.product_case("test", p)
    s = session(Path("."), cache=p.bytes)
    sets = s.copies(case, p.make("cpu"))
    assert len(sets) == 2 and torch.equal(sets[0]["a"], sets[1]["a"])
    assert sets[0]["a"].data_ptr() != sets[1]["a"].data_ptr()
    assert len(session(Path("."), cache=1).copies(case, p.make("cpu"))) == 1


@pytest.mark.parametrize("rows", ["dense", "padded", "odd"])
def test_copies_have_the_rows_of_their_case(rows: str) -> None:
    p = products.Product(40, 50, 60, "NT", rows=rows)
    first, second = session(Path("."), cache=p.bytes).copies(
        products.product_case("test", p), p.make("cpu")
    )
    assert {k: v.stride() for k, v in first.items()} == {k: v.stride() for k, v in second.items()}
    assert first["a"].stride() == (p.pitch(60), 1) and torch.equal(first["a"], second["a"])


# --- tables and figures ---------------------------------------------------------------------------


def test_the_table_has_ratios_means_and_the_least(tmp_path) -> None:
    rows = [
        session(tmp_path).measure(
            fake_case({"tilec": "h", "cuBLAS": "v"}, {"tilec": 1.0, "cuBLAS": t}, name=f"at{t}")
        )
        for t in (0.5, 2.0)
    ]
    lines = report.table(rows).splitlines()
    assert lines[1].startswith("at0.5") and "0.500 ±0.000" in lines[1]
    assert lines[3].startswith("geometric mean") and lines[3].split()[-2:] == ["1.000", "1.000"]
    assert lines[4].split() == ["least", "0.500", "0.500"]
    assert lines[5].split() == ["rows", "2", "2"]


def test_figures_are_well_formed(tmp_path) -> None:
    results = ResultFile("fake", tmp_path)
    for name in ("a < b & c", "two"):
        results.put(
            session(tmp_path).measure(
                fake_case({"tilec": "h", "cuBLAS": "v"}, {"tilec": 1.0, "cuBLAS": 1.2}, name=name)
            )
        )
    path = figures.draw("fake", tmp_path)
    root = ElementTree.fromstring(path.read_text())
    texts = [e.text for e in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "a < b & c" in texts and "cuBLAS" in texts
    assert len(list(root.iter("{http://www.w3.org/2000/svg}circle"))) == 1 + 2 * 2
    assert figures.draw("absent", tmp_path) is None


@pytest.mark.parametrize(
    "name, parts", [("launch", 0), ("compile", 0), ("cpu", 0), ("compile_parts", 8)]
)
def test_the_other_results_have_figures_too(name, parts, tmp_path) -> None:
    stored = Path(figures.RESULTS / f"{name}.json").read_text()
    (tmp_path / f"{name}.json").write_text(stored)
    root = ElementTree.fromstring(figures.draw(name, tmp_path).read_text())
    boxes = list(root.iter("{http://www.w3.org/2000/svg}rect"))
    # The ground, what the colours mean, and the bars.
    assert len(boxes) == 1 + parts + len(json.loads(stored)["rows"]) * (parts or 1)


def test_launches_with_tensors_that_no_call_had_before(monkeypatch) -> None:
    monkeypatch.setattr(bench_launch, "CALLS", 30)
    monkeypatch.setattr(bench_launch, "ROUNDS", 2)
    monkeypatch.setattr(bench_launch, "EXTENT", 64)
    found = bench_launch.candidates("cpu")
    names = [name for name in found if name.endswith(bench_launch.NEW)]
    assert [name.split(",")[0] for name in names] == ["sum", "matmul"]
    kept = bench_launch.add.prepared
    assert [*map(len, kept.values())] == [1]
    samples = bench_launch.timed(found, on_gpu=False)
    assert all(len(taken) == 2 and min(taken) > 0 for taken in samples.values())
    assert [*map(len, kept.values())] == [1], "they come once each"


# --- operators ------------------------------------------------------------------------------------


@pytest.mark.parametrize("operator", operators.names())
def test_cases_are_well_formed(operator) -> None:
    found = operators.cases(operator)
    assert operators.about(operator)
    assert len({c.key for c in found}) == len(found) > 0
    assert [c.priority for c in found] == sorted(c.priority for c in found)
    for c in found:
        assert c.operator == operator and c.work > 0 and c.bytes > 0 and c.tolerance >= 0


def test_quick_has_the_papers_shapes_and_the_regression_set() -> None:
    names = {c.name for c in select(operators.cases("gemm"), "", quick=True)}
    for shape in ("8192x1024x8192", "8192x8192x8192", "8192x28672x8192", "8192x8192x28672"):
        assert {f"{d} {k} {shape}" for d in ("fp16", "bf16") for k in ("NN", "NT")} <= names
    for shape in ("4096x4096x4096", "1024x1024x1024", "4000x3000x2008"):
        assert {f"fp16 {k} {shape}" for k in ("NN", "NT", "TN", "TT")} <= names


def test_list_needs_no_gpu(capsys) -> None:
    assert main(["gemm", "llm", "--list", "--only", "NT 16x"]) == 0
    told = capsys.readouterr().out
    assert "fp16 NT 16x4096x4096" in told and "8192x8192" not in told
    with pytest.raises(SystemExit):
        main(["gem", "--list"])
    assert "no operator 'gem'; there are " in capsys.readouterr().err


@pytest.mark.covering(1)
@pytest.mark.parametrize("kind", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_whole_run_on_the_cpu(kind, dtype, tmp_path, monkeypatch) -> None:
    """tilec's kernels and torch's products, checked against float64, into a file and a table."""
    monkeypatch.setenv("TILEC_TARGET", "cpu")
    monkeypatch.setattr(peers, "module_of", lambda peer: None)
    monkeypatch.setattr(products, "module_of", lambda peer: None)
    case = products.product_case("test", products.Product(65, 40, 33, kind, dtype))
    s = session(tmp_path, cache=case.bytes, effort=replace(SMALL, seconds=0.003, settle=0.001))
    results = ResultFile("test", tmp_path)
    results.put(s.measure(case))
    row = results.rows[case.key]
    assert set(row["candidates"]) == {"tilec", "cuBLAS"}
    assert all("failed" not in c and c["calls"] == 2 for c in row["candidates"].values()), row
    assert row["signature"]["tilec"].startswith("cpu ")
    assert not s.needs(case, results)
    assert "tilec hot" in report.table([row])


def test_the_codes_hash_knows_no_lines_but_knows_tiles(tmp_path) -> None:
    specs = [tilec.spec((64, 64), "float16")] * 3
    kernels.product.cache_clear()
    one = kernels.product("float16").compile(*specs, target="cuda:sm_80", BM=64, BN=64, BK=32)
    path = tmp_path / "moved_kernels.py"
    path.write_text("# one line more\n" + Path(kernels.__file__).read_text())
    spec = importlib.util.spec_from_file_location("moved_kernels", path)
    moved = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(moved)
    two = moved.product("float16").compile(*specs, target="cuda:sm_80", BM=64, BN=64, BK=32)
    other = kernels.product("float16").compile(*specs, target="cuda:sm_80", BM=64, BN=32, BK=32)
    assert one.asm != two.asm
    assert products.code_hash(one) == products.code_hash(two) != products.code_hash(other)


def test_quick_effort_still_lasts() -> None:
    assert QUICK.seconds >= 0.3 and QUICK.passes >= 2


def test_the_best_of_all_schedules_is_what_a_choice_is_compared_with(tmp_path) -> None:
    times = {"tilec": 2.0, "one": 4.0, "two": 1.8, "three": 3.0}
    case = replace(fake_case(dict.fromkeys(times, "h"), times), baseline="best")
    row = report.shown(session(tmp_path).measure(case))
    assert list(row["candidates"]) == ["tilec", "best"]
    best = row["candidates"]["best"]
    assert best["config"] == "two" and best["hot_ratio"]["median"] == pytest.approx(0.9)
    text = report.table([session(tmp_path).measure(case)])
    assert "/best hot" in text and text.splitlines()[1].endswith("two")
