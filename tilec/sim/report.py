"""The report of a simulation: what was found, what was counted, and what was not run.

`print(report)` is for people. A report holds the text of the lines it speaks of, so that
`Report.load` prints what `save` has seen, whatever has become of the sources."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tilec.ir.errors import TilecError
from tilec.ir.loc import Loc
from tilec.ir.stored import fields_of, read_stored
from tilec.sim.counts import Counts, LineCount
from tilec.sim.findings import Finding, advice, element_name
from tilec.sim.trace import Trace
from tilec.support.rich import html_block, html_code, html_table

FORMAT = "tilec report 1"

Line = tuple[str, int]


class ReportError(TilecError):
    """A file cannot be read or written, or is not a report that `Report.save` wrote."""


@dataclass
class Report:
    """What `tilec.simulate` gives.

    `findings`: empty for a clean kernel. `counts`: per source line. `blocks` of the `launched` ones
    were run, `seconds` in all: fewer than were wanted after the finding of one that does not end
    ("step limit"), and where the run was interrupted, `complete` being False then; the arrays and
    the counts are those of the blocks that were run. `trace`: the values that were asked for.
    `printed`: lines of T.print. `outputs`: the arrays that the call allocated, by name, in the
    order of its return; they are not saved. `notes`: what the reader should know of how this was
    run. `by_hand`: the kernel's author orders barriers and asynchronous copies.
    """

    kernel: str
    target: str
    plan: str
    grid: tuple[int, int, int]
    launched: int
    blocks: int = 0
    seconds: float = 0.0
    complete: bool = True
    schedules: int = 1
    findings: tuple[Finding, ...] = ()
    dropped: int = 0
    counts: Counts = field(default_factory=Counts)
    trace: tuple[Trace, ...] = ()
    printed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    by_hand: bool = False
    outputs: Mapping[str, Any] = field(default_factory=dict, repr=False)
    sources: dict[Line, str] = field(default_factory=dict, repr=False)

    @property
    def ok(self) -> bool:
        """Whether everything was run and nothing was found."""
        return self.complete and not self.findings

    def keep_sources(self) -> None:
        """Read the lines that the report speaks of, so that it can be printed without their
        files."""
        for loc in self._places():
            for place in loc.chain():
                self.sources.setdefault((place.file, place.line), place.source_line())

    def _places(self) -> Iterable[Loc]:
        for finding in self.findings:
            yield from finding.locations
        yield from self.counts.places()
        for trace in self.trace:
            yield from (change.loc for change in trace.changes)

    # --- for people ---

    def __str__(self) -> str:
        parts = [self._head()]
        parts += [self._finding(i, f) for i, f in enumerate(self.findings, 1)]
        if self.dropped:
            parts.append(f"{self.dropped} further findings are not shown.")
        parts += [trace.text(self.sources) for trace in self.trace]
        table = self.counts.table(self.sources)
        return "\n\n".join([*parts, *([table] if table else [])])

    def _head(self) -> str:
        plan = f", plan {self.plan}" if self.plan else ""
        blocks = f"{self.blocks} of {self.launched} blocks"
        again = f", {self.schedules} schedules" if self.schedules > 1 else ""
        found = f"{len(self.findings)} findings" if len(self.findings) != 1 else "1 finding"
        lines = [f"{self.kernel} for {self.target}{plan}"]
        lines.append(f"{blocks}{again} in {self.seconds:.1f} s: {found}")
        if not self.complete:
            lines.append("interrupted: what follows is of the blocks that were run")
        if any(f.kind == "step limit" for f in self.findings):
            lines.append("stopped at a block that does not end: no further one was run")
        return "\n".join([*lines, *self.notes])

    def _finding(self, number: int, f: Finding) -> str:
        """The fault, its lines with carets, then who and where."""
        times = f" ({f.times} times)" if f.times > 1 else ""
        lines = [f"{number}. {f.kind}: {f.message}{times}"]
        for i, loc in enumerate(f.locations):
            lines.append(f"  {'and ' if i else ''}{loc}")
            excerpt = loc.excerpt(self.sources.get((loc.file, loc.line)))
            lines += excerpt.split("\n") if excerpt else []
            lines += [f"    in a macro called at {c}" for c in loc.chain()[1:4]]
        about = _about(f)
        if about:
            lines.append(f"  {about}")
        hint = advice(f, self.by_hand)
        return "\n".join(
            [*lines, *(f"  {line}" for line in f.details), *([f"  help: {hint}"] if hint else [])]
        )

    def _repr_html_(self) -> str:
        """For notebooks: the findings, then the counts as a table."""
        head, *notes = self._head().split("\n")
        parts = [html_code(self._finding(i, f)) for i, f in enumerate(self.findings, 1)]
        if self.dropped:
            parts.append(html_block(f"{self.dropped} further findings are not shown."))
        parts += [html_code(trace.text(self.sources)) for trace in self.trace]
        titles, rows = self.counts.cells(self.sources)
        if rows:
            numbers = range(len(titles) - 1)
            parts.append(html_table(rows, titles, right=numbers, code=[len(titles) - 1]))
        return html_block(head, *parts, about="; ".join(notes))

    # --- files ---

    def save(self, path: str | Path) -> None:
        """Write everything but the arrays to a file that `load` reads. Raises ReportError where
        that cannot be written; a report that was there before then stays as it was."""
        self.keep_sources()
        content = {
            "format": FORMAT,
            **{name: getattr(self, name) for name in _PLAIN},
            "findings": [asdict(f) for f in self.findings],
            "counts": [asdict(line) for line in self.counts.lines],
            "trace": [asdict(t) for t in self.trace],
            "sources": [[file, line, text] for (file, line), text in self.sources.items()],
        }
        try:
            _write(Path(path), json.dumps(content, indent=1))
        except OSError as e:
            raise ReportError(
                f"the report cannot be written to {path}: {e.strerror}",
                hint='name a file in a folder that exists: report.save("report.json")',
            ) from e

    @staticmethod
    def load(path: str | Path) -> Report:
        """The report that `save` wrote. Raises ReportError if the file is none or cannot be
        read."""
        hint = "reports are written by report.save(path)"
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as e:
            raise ReportError(f"{path} cannot be read: {e.strerror}", hint=hint) from e
        except ValueError as e:
            what = f"{path} is damaged, or not a report of tilec.simulate: {e}"
            raise ReportError(what, hint=hint) from e
        found = content.get("format") if isinstance(content, dict) else None
        if found != FORMAT:
            other = f"it has the format {found!r}, not {FORMAT!r}" if found else "it has no format"
            raise ReportError(f"{path} is not a report of tilec.simulate: {other}", hint=hint)
        try:
            return _report_of(content)
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            what = f"no {e}" if isinstance(e, KeyError) else str(e)
            raise ReportError(f"{path} is a damaged report: {what}", hint=hint) from e


def _write(path: Path, text: str) -> None:
    """Write a file as a whole or not at all; what is no file (a pipe, a device) as it comes. Raises
    OSError."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "that is a folder")
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")
        return
    if path.exists() and not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, "it is read-only")
    path = path.resolve()  # a link stays one
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


_PLAIN = (
    "kernel", "target", "plan", "grid", "launched", "blocks", "seconds", "complete", "schedules",
    "dropped", "printed", "notes", "by_hand",
)  # fmt: skip


def _report_of(content: Mapping[str, Any]) -> Report:
    given = {"by_hand": False, **content}  # reports of before have none
    declared = {**fields_of(Report), "counts": tuple[LineCount, ...]}
    named = (*_PLAIN, "findings", "trace", "counts")
    read = {name: read_stored(given[name], declared[name], name) for name in named}
    sources = {(file, line): text for file, line, text in content["sources"]}
    return Report(**{**read, "counts": Counts(read["counts"]), "sources": sources})


def _about(f: Finding) -> str:
    """Who and where, in one line: "A_shared[0, 3]; threads 3, 4 of warp 0 (producer); block
    (0, 1, 0)"."""
    parts = []
    if f.buffer:
        shown = ", ".join(element_name(f.buffer, i) for i in f.indices)
        parts.append(shown or f.buffer)
    if f.threads:
        parts.append(f"thread{_plural(f.threads)}")
    if f.warps:
        roles = f" ({', '.join(f.roles)})" if f.roles else ""
        parts.append(f"warp{_plural(f.warps)}{roles}")
    elif f.roles:
        parts.append(", ".join(f.roles))
    if f.block:
        parts.append(f"block ({', '.join(map(str, f.block))})")
    return "; ".join(parts)


def _plural(numbers: tuple[int, ...]) -> str:
    """ " 3" or "s 3, 4, 5"."""
    return f"{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"
