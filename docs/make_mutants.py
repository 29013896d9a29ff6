"""Writes docs/mutants.md: what the simulator finds in kernels that have been broken on purpose.

    python docs/make_mutants.py

This runs all mutants of tests/mutants.py, which takes minutes; a test runs some of them and
compares.
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

PAGE = Path(__file__).with_name("mutants.md")
RESULTS = PAGE.parent.parent / "benchmarks" / "results" / "mutants.json"
sys.path[:0] = [str(PAGE.parent.parent), str(PAGE.parent.parent / "tests")]

from mutant_families import FAMILIES  # noqa: E402
from mutant_survivors import RULES  # noqa: E402
from mutants import Outcome, run_all, summary  # noqa: E402
from mutants_gpu import RUNS, SECONDS  # noqa: E402

INTRODUCTION = """# Mutants

Written by `docs/make_mutants.py`. A suite of broken kernels shows whether the simulator
(`tilec.simulate`) finds what it should: a program takes kernels of every kind that tilec compiles,
and in each of them removes, weakens or misplaces every barrier, wait, arrival, fence, count, phase,
slot and bound in turn. The change is made behind the pass that inserts barriers, so that no pass
mends it; what follows is the compiler's own, down to the records that print as LLVM. A mutant is
found if the simulator reports anything at all; each runs once in order and, if nothing is found,
three times in another order of the warps. None of the kernels, unbroken, may have a finding.
"""

SURVIVORS = """## Survivors

Each mutant that is not found is listed here, under the reason why what it changes orders nothing
that is not ordered anyway.
"""


ON_A_GPU = """## On a GPU

Ten of them, and the kernels as they are, on an {device} ({date}, driver {driver};
`python tests/mutants.py --gpu`): each compiled in the usual way and run {runs} times on arrays of
many blocks, outputs filled before. "Hung": no end within {seconds} s.

| kernel | mutant | runs | what the simulator reports |
|---|---|---|---|
"""


def page(outcomes: Sequence[Outcome]) -> str:
    """The whole page."""
    parts = [
        INTRODUCTION,
        wrapped(summary(outcomes)),
        "## By change\n",
        table("change", outcomes, lambda o: o.mutant.change.operator),
        "## By kernel\n",
        table("kernel", outcomes, lambda o: o.mutant.prepared.name),
        on_a_gpu(),
        SURVIVORS,
        *survivors(outcomes),
    ]
    return "\n".join(parts)


def wrapped(text: str) -> str:
    """A paragraph in lines of the page's width."""
    return textwrap.fill(text, 100, break_on_hyphens=False) + "\n"


def table(word: str, outcomes: Sequence[Outcome], key: Callable[[Outcome], str]) -> str:
    """Counts of verdicts for each value of `key`, and the kinds of findings."""
    lines = [
        f"| {word} | mutants | found | refused | survived | findings, most frequent first |",
        "|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(key(o) for o in outcomes):
        mine = [o for o in outcomes if key(o) == name]
        count = Counter(o.verdict for o in mine)
        kinds = Counter(kind for o in mine for kind in o.kinds)
        most = ", ".join(kind for kind, _ in kinds.most_common(3))
        lines.append(
            f"| {name} | {len(mine)} | {count['found']} | {count['rejected']} | "
            f"{count['survived']} | {most} |"
        )
    return "\n".join(lines) + "\n"


def on_a_gpu() -> str:
    """What the hardware made of ten mutants."""
    measured = json.loads(RESULTS.read_text())
    lines = ON_A_GPU.format(**measured["machine"], runs=RUNS, seconds=SECONDS).splitlines()
    for r in measured["rows"]:
        name = r["mutant"] or "none"
        lines.append(f"| {r['kernel']} | {name} | {r['gpu']} | {r['simulator']} |")
    return "\n".join(lines) + "\n"


def survivors(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """The survivors by reason; those without one last."""
    left = [o for o in outcomes if o.verdict == "survived"]
    for rule in RULES:
        mine = [o for o in left if o.reason is rule]
        if mine:
            yield wrapped(f"**{rule.title[0].upper()}{rule.title[1:]}.** {rule.text}")
            yield "\n".join(f"- {o.mutant.name}" for o in mine) + "\n"
    rest = [o for o in outcomes if o.verdict == "crashed" or (o in left and o.reason is None)]
    if rest:
        yield "**Not explained.**\n"
        yield "\n".join(f"- {o.mutant.name}" for o in rest) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(run_all(FAMILIES)))
    sys.stdout.write(f"wrote {PAGE.name}\n")
