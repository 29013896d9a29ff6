"""A shared tile that leaves by TMA in a loop is waited for where its threads meet next."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

import tilec
import tilec.language as T
from tilec.ir.core import Op

pytestmark = pytest.mark.usefixtures("unassembled")
SM90 = "cuda:sm_90a"
P = T.dynamic("P")
TRIPS = [0, 1, 2, 7]


def sending(form: str, threads: int = 64) -> Any:
    """`form`: of one tile, with a "barrier" behind it or "none"; "two" tiles in turn; a tile that
    comes "whole" and leaves, with no thread that writes it; one sent "twice"; one that leaves
    "sometimes"; one that is written "inside" a loop of its own."""

    @tilec.kernel
    def sent(
        A: T.Tensor((P, 16, 32), "float32"),
        C: T.Tensor((P, 16, 32), "float32"),
        D: T.Tensor((P, 16, 32), "float32"),
        S: T.Tensor((16, 32), "float32"),
    ):
        with T.Kernel(1, threads=threads):
            a, b = T.alloc_shared((16, 32), "float32"), T.alloc_shared((16, 32), "float32")
            for p in T.serial(P):
                if form == "whole":
                    T.copy(A[p, :, :], a)
                elif form == "inside":
                    for r in T.serial(2):
                        for i, j in T.Parallel(16, 32):
                            a[i, j] = A[p, i, j] + r
                else:
                    for i, j in T.Parallel(16, 32):
                        a[i, j] = A[p, i, j] + 1
                if form == "sometimes":
                    if p % 2 == 0:
                        T.copy(a, C[p, :, :])
                else:
                    T.copy(a, C[p, :, :])
                if form == "barrier":
                    T.sync_threads()
                if form == "two":
                    for i, j in T.Parallel(16, 32):
                        b[i, j] = A[p, i, j] * 2
                    T.copy(b, D[p, :, :])
                if form == "twice":
                    T.copy(a, D[p, :, :])
                T.atomic_add(S[0, 0], a, use_tma=True)
            for i, j in T.Parallel(16, 32):  # what is behind the loop writes the tile, too
                a[i, j] = 1
            T.atomic_add(S[0, 0], a, use_tma=True)

    return sent


FORMS = ["none", "barrier", "two", "whole", "twice", "sometimes", "inside"]


def run(form: str, trips: int, threads: int = 64) -> Any:
    """The simulator's report; where it found nothing the numbers are right."""
    a = np.arange(trips * 512, dtype=np.float32).reshape(trips, 16, 32) % 97
    c, d, total = np.zeros_like(a), np.zeros_like(a), np.zeros((16, 32), np.float32)
    report = tilec.simulate(sending(form, threads), a, c, d, total, target=SM90)
    if report.ok:
        tile = a if form == "whole" else a + 1
        left = tile[::2] if form == "sometimes" else tile
        np.testing.assert_array_equal(c[:: 2 if form == "sometimes" else 1], left)
        np.testing.assert_array_equal(total, tile.sum(0) + 1)
        if form in ("two", "twice"):
            np.testing.assert_array_equal(d, a * 2 if form == "two" else tile)
    return report


def order(form: str) -> list[str]:
    """Barriers, boxes and waits of the loop over `p` and of what is behind it: what it ends with is
    "end"."""
    x = tilec.spec((4, 16, 32), "float32")
    made = sending(form).compile(x, x, x, tilec.spec((16, 32), "float32"), target=SM90)
    words = {"barrier": "barrier", "tma_store_wait": "wait", "tma_store": "box", "}": "end"}
    found, inside = [], False
    for line in str(made.stages["lower_stores"]).splitlines():
        inside = inside or line.startswith("  for.serial")
        word = line.split()[0] if line.split() else ""
        if inside and word in words and (word != "}" or line == "  }"):
            found.append(words[word])
    return found


BEHIND = ["end", "wait", "end", "barrier", "barrier", "box", "wait", "end"]  # one more tile leaves


@pytest.mark.parametrize(
    ("form", "loop"),
    [
        ("none", "wait barrier barrier box box"),
        ("barrier", "wait barrier barrier box wait barrier box"),
        ("two", "wait barrier barrier box wait barrier box box"),
        ("whole", "wait barrier barrier box box"),
        ("twice", "wait barrier barrier box box box"),
        ("sometimes", "wait barrier barrier box wait barrier box"),  # a condition's waits at once
    ],
)
def test_where_it_is_waited_for(form: str, loop: str) -> None:
    """In front of the barrier behind which the tile is written again, and behind the loop."""
    found = order(form)
    assert found[: found.index("end")] == loop.split() and found[found.index("end") :] == BEHIND


def test_where_threads_meet_in_another_loop_it_is_waited_for_at_once() -> None:
    found = order("inside")
    assert found[: found.index("end")] == "barrier barrier box wait box wait".split()
    assert found[found.index("end") + 1] == "barrier"


@pytest.mark.covering(2)
@pytest.mark.parametrize("threads", [32, 64, 256])
@pytest.mark.parametrize("trips", TRIPS)
@pytest.mark.parametrize("form", FORMS)
def test_numbers(form: str, trips: int, threads: int) -> None:
    report = run(form, trips, threads)
    assert report.ok, report


@pytest.mark.parametrize("form", [x for x in FORMS if x != "inside"])
def test_without_the_wait_it_is_found(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the simulator."""
    module = sys.modules["tilec.passes.lower_stores"]

    def never(o: Op) -> list[Op]:
        return []

    monkeypatch.setattr(module, "_read", never)
    report = run(form, 3)
    assert not report.ok and "overwritten before read" in {f.kind for f in report.findings}
