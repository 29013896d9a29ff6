"""T.Pipelined(order=, stage=) of a loop whose products run beside what threads compute: the steady
state is the one that its author wrote, or he is told why not."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from form_help import GFX942, SM80, on_cpu, on_threads, tile_func
from test_arrange import arrays, attended, attention

import tilec
from tilec.ir.errors import CompileError, PerformanceWarning
from tilec.ir.schedule import Arrangement

F = -1  # tilec's choice
# copy k, mask, S = Q K, copy, max, scale, exp, sum, total, P = S, O *= scale, copy v, O += P V
LATE = {  # Shah et al.: the product and the scaling of the iteration before, then the softmax
    "order": (F, 0, 1, 4, 5, 6, 7, 8, 9, 10, 2, F, 3),
    "stage": (F, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, F, 1),
}
ONE_STAGE = {"stage": (0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 1)}
AS_WRITTEN = {"order": tuple(range(13))}
AGAINST = {  # P of an iteration is overwritten before the product of the one before has read it
    "order": (F, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, F, 10),
    "stage": (F, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, F, 1),
}
FAR = {"stage": (0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2)}


def compiled(**how: Any) -> Any:
    spec = [tilec.spec((4096, 64), "float16")] * 4
    return tilec.kernel(attention(**how)).compile(*spec, target="cuda:sm_90a")


def table(**how: Any) -> list[str]:
    """What the dump says of the loop: its statements in the order of the steady state."""
    text = str(compiled(**how).stages["plan"]).splitlines()
    at = next((i for i, x in enumerate(text) if x.startswith("  stage  line")), None)
    return [] if at is None else [x for x in text[at + 1 :] if x.startswith("      ")]


@pytest.mark.usefixtures("unassembled")
def test_the_order_of_the_steady_state_is_the_authors() -> None:
    found = [(x.split()[0], " ".join(x.split()[2:5])) for x in table(**LATE)]
    assert [x for x in found if "ahead" not in x[1]] == [
        ("0", "if -> s"), ("0", "gemm -> s"),
        ("1", "parallel -> o"), ("1", "gemm -> o"),
        ("0", "copy -> before"), ("0", "reduce -> high"), ("0", "parallel -> scale"),
        ("0", "parallel -> s"), ("0", "reduce -> more"), ("0", "parallel -> total"),
        ("0", "copy -> p"),
    ]  # fmt: skip
    own = [" ".join(x.split()[2:5]) for x in table()]  # tilec's: the scaling behind the softmax
    assert own.index("parallel -> o") > own.index("parallel -> total")


@pytest.mark.usefixtures("unassembled")
@pytest.mark.parametrize("how", [ONE_STAGE, AS_WRITTEN], ids=["one stage", "as written"])
def test_what_an_author_puts_together_stays_together(how: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", PerformanceWarning)
        made = compiled(**how)
    assert not made.plan.overlap and "iterations overlap" not in str(made.stages["plan"])


@pytest.mark.parametrize("sizes", [(128, 0), (128, 64), (200, 128), (130, 300)])
def test_numbers(sizes: tuple[int, int], rng: np.random.Generator) -> None:
    """No, one, two and several iterations."""
    q, k, v = (rng.standard_normal((n, 64)).astype(np.float16) for n in (sizes[0], *sizes[1:] * 2))
    o = np.full_like(q, np.nan)
    kernel = tilec.kernel(attention(**LATE))
    report = tilec.simulate(kernel, q, k, v, o, target="cuda:sm_90a")
    assert report.ok, report
    if sizes[1]:
        assert np.abs(o - attended(q, k, v, False)).max() < 2e-3


def test_numbers_elsewhere(rng: np.random.Generator) -> None:
    """Other targets start no products beside threads: they do what an iteration computes."""
    q, k, v = (rng.standard_normal((n, 64)).astype(np.float16) for n in (40, 70, 70))
    held, want = {"Q": q, "K": k, "V": v, "O": np.zeros_like(q)}, attended(q, k, v, False)
    kernel = attention(**LATE)
    assert np.abs(on_cpu(kernel, held)["O"] - want).max() < 2e-3
    for target in (SM80, GFX942):
        for _, _, got in on_threads(tile_func(kernel, held), target, held):
            assert np.abs(got["O"] - want).max() < 2e-3


@pytest.mark.usefixtures("unassembled")
@pytest.mark.parametrize(
    ("how", "why"),
    [(AGAINST, "what its statements owe one another"), (FAR, "further apart than neighbouring")],
    ids=["against", "far"],
)
def test_what_cannot_hold_is_told(how: dict[str, Any], why: str) -> None:
    kernel = attention(**({"num_stages": None} | how) if how is FAR else how)
    spec = [tilec.spec((4096, 64), "float16")] * 4
    with pytest.warns(PerformanceWarning, match=why) as told:
        made = tilec.kernel(kernel).compile(*spec, target="cuda:sm_90a")
    assert not made.plan.overlap
    (one,) = [w for w in told if "stage puts" in str(w.message)]
    assert "for n in T.Pipelined" in str(one.message)


def test_a_statement_before_what_it_needs() -> None:
    early = {"stage": (0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0)}
    message = r"puts statement 12 \(gemm o\) into stage 0, before statement 9 \(copy p\)"
    with pytest.raises(CompileError, match=message) as told:
        tile_func(attention(**early), arrays("QKVO", *[(128, 64)] * 4))
    assert "for n in T.Pipelined" in str(told.value) and "stage 1 or a later" in str(told.value)


# --- the dump -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("unassembled")
def test_the_dump_has_the_bounds_and_the_next_best() -> None:
    made = compiled()
    text = str(made.stages["plan"])
    (line,) = [x for x in text.splitlines() if x.startswith("  no fewer for: ")]
    bounds, binds = line.removeprefix("  no fewer for: ").split("; bound by ")
    found = {name: int(n) for name, n in (x.split() for x in bounds.split(", "))}
    assert list(found)[1:] == ["cycle", "stream", "ring"] and len(found) == 4
    assert found[binds] == max(found.values())
    depth = made.plan.stages
    assert f"  versions: k {depth}, v {depth}" in text
    (other,) = [x for x in text.splitlines() if x.startswith("  best of ")]
    assert " in stage " in other or " before " in other
    assert other.split(": ")[2]


def test_bounds_are_what_they_say() -> None:
    """Of four numbers the largest binds; a ring of more versions is no longer a bound."""
    a = Arrangement((0,), (0,), (), False, 8, (("tensor", 90), ("shared", 40)), 70, 80, (), 60, 50)
    assert a.bounds == (("tensor", 90), ("cycle", 60), ("stream", 70), ("ring", 50))
    assert a.clocks == 90


SEEDS = """
import sys
sys.path[:0] = sys.argv[1:]
import tilec
from test_arrange import attention
from test_asked_order import LATE
for how in ({"causal": True}, LATE):
    spec = [tilec.spec((4096, 64), "float16")] * 4
    made = tilec.kernel(attention(**how)).compile(*spec, target="cuda:sm_90a")
    print(made.stages["plan"], made.asm)
"""


def test_the_same_under_every_hash_seed(tmp_path: Path) -> None:
    here = Path(__file__).parent
    paths = [str(here), str(here.parent)]
    running = [
        subprocess.Popen(
            [sys.executable, "-c", SEEDS, *paths],
            env=os.environ
            | {"PYTHONHASHSEED": seed, "TILEC_CACHE_DIR": str(tmp_path / seed)}
            | {"TILEC_PTXAS": "off"},  # what it is given is what is compared
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in ("0", "77")
    ]
    first, second = (one.communicate()[0] for one in running)
    assert [one.returncode for one in running] == [0, 0]
    assert first == second and first.count("iterations overlap") == 2
