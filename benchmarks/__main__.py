"""Measure tilec against its peers.

    python -m benchmarks gemm --quick
    python -m benchmarks gemm llm --only NT --budget 240
    python -m benchmarks --list
    TILEC_TARGET=cuda:sm_90a python -m benchmarks --stale > stale.txt
    python -m benchmarks --rows stale.txt

A row is measured again only if the code that tilec emits for it, a peer or the device is another
one than when it was stored (`--force`: always). Tables go to stdout, progress to stderr, rows to
results/OPERATOR.json as they are made, a figure to results/OPERATOR.svg.
"""

from __future__ import annotations

import argparse
import dataclasses
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks import figures, operators
from benchmarks.ahead import Needed, compile_ahead
from benchmarks.case import Case
from benchmarks.gpu import CudaTimer, device_facts, l2_bytes
from benchmarks.harness import machine
from benchmarks.lost import in_processes
from benchmarks.peers import PACKAGES, why_missing
from benchmarks.report import table
from benchmarks.session import MODES, Session, identity
from benchmarks.store import OURS, RESULTS, PeerStore, ResultFile
from benchmarks.timing import FULL, QUICK
from tilec.autotuning.workers import Processes
from tilec.support.progress import Progress

_AHEAD = 8  # cases that are prepared together
_ASKED = 16  # cases that are asked together whether they are current, where time is short
NEVER = " (never measured)"  # behind the names of such rows


def main(argv: Sequence[str] | None = None) -> int:
    options = read_options(argv)
    if options.stale:
        return tell_stale(wanted(options), options.results)
    if not options.list and not options.show:  # before anything here makes threads, to be forked
        options.run, start = time.strftime("%Y-%m-%d %H:%M:%S"), time.monotonic()
        if code := in_processes(lambda: measure(options, start)):
            return code
    for name, cases in wanted(options).items():
        results = ResultFile(name, options.results)
        rows = [results.rows[c.key] for c in cases if c.key in results.rows]
        if options.list:
            print(f"{name}: {operators.about(name)}")
            for case in cases:
                print(f"    {case.name}{'' if case.quick else '  (not in --quick)'}")
        elif rows:
            print(f"\n{name}: {operators.about(name)}\n{table(rows)}")
            figures.draw(name, options.results)
    return 0


def wanted(options: argparse.Namespace) -> dict[str, list[Case]]:
    names = options.operators or operators.names()
    found = {name: select(operators.cases(name), options.only, options.quick) for name in names}
    if options.rows:  # as `tell_stale` names them
        keys = {line.removesuffix(NEVER) for line in options.rows.read_text().splitlines()}
        found = {name: [c for c in cases if c.key in keys] for name, cases in found.items()}
    return {name: cases for name, cases in found.items() if cases or not options.rows}


def tell_stale(wanted: dict[str, list[Case]], folder: Path) -> int:
    """Name the rows that were measured with other code than tilec emits now for the target here
    (TILEC_TARGET where there is no GPU), and those that never were; how many are current."""
    asked: list[tuple[Needed, str]] = []
    for name, cases in wanted.items():
        rows = ResultFile(name, folder).rows
        for case in cases:
            ours = next(c for c in case.candidates() if c.name == OURS)
            found = rows[case.key]["candidates"][OURS] if case.key in rows else {}
            config, known = found.get("config", ours.configs[0]), found.get("identity", "")
            asked.append(((case, ours, config), known))
    with Processes() as processes:
        compile_ahead([n for n, _ in asked if n[1].on_disk], processes)
    current = 0
    for (case, ours, config), known in asked:
        if known == identity(ours, config):
            current += 1
        else:
            print(f"{case.key}{'' if known else NEVER}")
    print(f"{current} of {len(asked)} rows are current")
    return 0


def measure(options: argparse.Namespace, start: float) -> None:
    if "device" not in device_facts():
        sys.exit("no CUDA device: nothing can be measured (try --list or --show)")
    cases = wanted(options)
    results = {name: ResultFile(name, options.results) for name in cases}
    run(start_session(options), cases, results, options.budget, start)


def read_options(argv: Sequence[str] | None) -> argparse.Namespace:
    about, _, more = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=about,
        epilog=more,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("operators", nargs="*", metavar="OPERATOR", help=f"of {', '.join(operators.names())}")
    add("--quick", action="store_true", help="fewer cases, rounds and passes")
    add("--only", default="", metavar="SUBSTRING", help="cases whose name holds this")
    add("--rows", type=Path, metavar="FILE", help="the cases it names, as --stale does")
    add("--mode", choices=[*MODES, "both"], default="both", help="how to time")
    add("--budget", type=float, default=0.0, metavar="SECONDS", help="stop in time")
    add("--force", action="store_true", help="measure every row again")
    add("--list", action="store_true", help="name the cases and stop")
    add("--show", action="store_true", help="print and draw what is stored and stop")
    add("--stale", action="store_true", help="name rows whose code is another now; needs no GPU")
    add("--results", type=Path, default=RESULTS, metavar="FOLDER", help="where results are kept")
    add("--commit", default="", help="what to record where this is no git checkout")
    options = parser.parse_args(argv)
    for name in options.operators:
        if name not in operators.names():
            parser.error(f"no operator {name!r}; there are {', '.join(operators.names())}")
    return options


def select(cases: Sequence[Case], only: str, quick: bool) -> list[Case]:
    return [c for c in cases if only in c.name and (c.quick or not quick)]


def start_session(options: argparse.Namespace) -> Session:
    for peer in PACKAGES:
        if why := why_missing(peer):
            print(f"{peer} is not measured: {why}", file=sys.stderr)
    return Session(
        timer=CudaTimer(),
        device="cuda",
        machine=machine(),
        commit=options.commit or git_commit(),
        cache=l2_bytes(),
        peers=PeerStore(options.results),
        effort=QUICK if options.quick else FULL,
        effort_name="quick" if options.quick else "full",
        modes=MODES if options.mode == "both" else (options.mode,),
        force=options.force,
        run=options.run,
    )


def git_commit() -> str:
    """The commit of this checkout, with "+" if files differ from it; "unknown" without git."""
    here = Path(__file__).parent

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=here, capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else ""

    try:
        head = git("rev-parse", "--short=12", "HEAD")
        return head + ("+" if head and git("status", "--porcelain", "-uno") else "") or "unknown"
    except OSError:
        return "unknown"


def run(
    session: Session,
    wanted: dict[str, list[Case]],
    results: dict[str, ResultFile],
    budget: float = 0.0,
    start: float = 0.0,
) -> None:
    """Measure what is not current, the most wanted first over all operators, until `budget`
    seconds from `start` (or now) would be exceeded; 0 is no limit. What did not fit is said, with
    rows that nobody has asked whether they are current."""
    start = start or time.monotonic()
    asked = [(name, c) for name, cases in wanted.items() for c in cases]
    asked.sort(key=lambda pair: pair[1].priority)
    processes = Processes()
    progress = Progress("measuring", len(asked), "rows", silent=0.0, shown=True, threaded=False)
    session = dataclasses.replace(session, say=progress.say)
    measured: list[str] = []
    left, longest = asked, 0.0
    # A few at a time where time is short: what is compiled for rows that do not fit is lost.
    for name, case in stale(session, asked, results, processes, _ASKED if budget else len(asked)):
        left = left[left.index((name, case)) :]
        if budget and time.monotonic() - start + longest > budget:
            break
        progress.step(f"{name} {case.name}")
        began = time.monotonic()
        results[name].put(session.measure(case))
        longest = max(0.8 * longest, time.monotonic() - began)
        measured.append(name)
        left = left[1:]
    else:
        left = []
    processes.shutdown(cancel_futures=True)
    progress.close()
    spent, current = time.monotonic() - start, len(asked) - len(left) - len(measured)
    progress.say(f"measured {len(measured)} rows in {spent:.0f} s; {current} others are current")
    for name in dict.fromkeys(measured):
        results[name].keep(c.key for c in operators.cases(name))
    if left:
        names = ", ".join(case.name for _, case in left[:8]) + (", …" if len(left) > 8 else "")
        progress.say(f"the budget of {budget:.0f} s left out {len(left)} rows: {names}")


def stale(
    session: Session,
    asked: Sequence[tuple[str, Case]],
    results: dict[str, ResultFile],
    processes: Processes,
    together: int,
) -> Iterator[tuple[str, Case]]:
    """Those that are not current, of so many together; what they take is compiled ahead."""
    for first in range(0, len(asked), max(together, 1)):
        some = asked[first : first + together]
        if not session.force:  # to ask whether a row is current takes its code: a second for each
            own = session.needed([case for _, case in some])
            compile_ahead([n for n in own if n[1].on_disk], processes)
        needed = [pair for pair in some if session.needs(pair[1], results[pair[0]])]
        for i, pair in enumerate(needed):
            if i % _AHEAD == 0:
                ahead = [case for _, case in needed[i : i + _AHEAD]]
                compile_ahead(session.needed(ahead), processes)
            yield pair


if __name__ == "__main__":
    sys.exit(main())
