"""The simulator finds what is broken: a sample of the mutants of every family, and docs/mutants.md,
which has all of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mutant_families import FAMILIES
from mutant_survivors import RULES
from mutants import check, mutants, prepare, try_out

pytestmark = pytest.mark.usefixtures("unassembled")

PAGE = (Path(__file__).parent.parent / "docs" / "mutants.md").read_text()
SURVIVORS = set(re.findall(r"^- (.*)$", PAGE.partition("## Survivors")[2], re.MULTILINE))
EVERY = 40  # one mutant of so many is in the sample

# What the simulator did not find, or not survive, when this suite was first run.
ONCE_MISSED = [
    ("persistent", "no elected thread: all threads go there"),
    ("persistent", "extent + 1: pipelined loop of one role (2)"),
    ("persistent", "wgmma_wait: one more: 2 may be pending"),
    ("clusters with multicast", "remove cluster_barrier: no cluster_barrier (2)"),
    ("split-K shared sums", "arrival count: mbarrier_init parts_written: 3"),
    ("split-K shared sums", "no publish: mbarrier_arrive parts_written"),
    ("split-K shared sums", "no acquire: mbarrier_wait parts_written"),
    ("pipeline without product", "remove proxy_fence: no proxy_fence"),
    ("GEMM, TMA + ldmatrix", "remove proxy_fence: no proxy_fence"),
]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_sample_of_mutants(name: str) -> None:
    """The unmutated kernel has no finding; of the mutants those and only those survive that the
    page explains, which has as many of this family as there are. What was once missed is found."""
    p = prepare(name)
    every = mutants(p)
    check(p)
    names = [m.name for m in every]
    assert len(set(names)) == len(names) >= 9
    row = re.search(rf"^\| {re.escape(name)} \| (\d+) \|", PAGE, re.MULTILINE)
    assert row, f"{name} is not in docs/mutants.md: run `python docs/make_mutants.py`"
    assert int(row[1]) == len(every), f"{name}: run `python docs/make_mutants.py`"
    assert {s for s in SURVIVORS if s.startswith(f"{name}: ")} <= {*names}
    for m in every[list(FAMILIES).index(name) % EVERY :: EVERY]:
        outcome = try_out(m)
        assert outcome.verdict in ("found", "survived", "rejected"), outcome
        assert (outcome.verdict == "survived") == (m.name in SURVIVORS), outcome
        if outcome.verdict == "survived":
            assert outcome.reason is not None, outcome
    for missed in (f"{name}: {text}" for family, text in ONCE_MISSED if family == name):
        outcome = try_out(every[names.index(missed)])
        assert outcome.verdict == "found", outcome


def test_the_page_explains_what_survives() -> None:
    assert {family for family, _ in ONCE_MISSED} <= FAMILIES.keys()
    assert "Not explained" not in PAGE
    words = " ".join(PAGE.split())
    assert all(rule.text in words for rule in RULES), "a rule that explains nothing"


def test_the_kill_rate() -> None:
    found = re.search(r"([\d.]+)% of those that change\s+anything that matters", PAGE)
    assert found and float(found[1]) == 100
    of_all = re.search(r"([\d.]+)% of those that ran are found", " ".join(PAGE.split()))
    assert of_all and float(of_all[1]) >= 93  # the others change nothing that matters
    total = re.search(r"^(\d+) mutants of", PAGE, re.MULTILINE)
    assert total and int(total[1]) >= 100
