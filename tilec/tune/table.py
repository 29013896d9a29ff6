"""Configurations as a table, for people."""

from __future__ import annotations

from tilec.support.rich import aligned, html_block, html_table, size_text, time_text
from tilec.tune.rank import Ranked

HEAD = ("predicted", "configuration", "bound by", "tiles", "waves", "filled", "DRAM", "L2",
        "shared", "registers")  # fmt: skip
_RIGHT = (0, 3, 4, 5, 6, 7, 8, 9)


class Recommendations(tuple[Ranked, ...]):
    """Configurations best first, then those that cannot run. A tuple, which prints as a table."""

    __slots__ = ()

    def _rows(self) -> tuple[list[tuple[str, ...]], list[tuple[str, str]]]:
        """The cells of those that can run, and (configuration, reason) of the others."""
        good = [cells(r) for r in self if r.estimate is not None]
        return good, [(r.configuration, r.reason) for r in self if r.estimate is None]

    def __str__(self) -> str:
        good, bad = self._rows()
        parts = [aligned(good, HEAD, _RIGHT)] if good else []
        parts += ["cannot run:\n" + aligned([(f"  {c}", why) for c, why in bad])] if bad else []
        return "\n\n".join(parts) or "nothing to choose"

    def _repr_html_(self) -> str:
        good, bad = self._rows()
        parts = [html_table(good, HEAD, _RIGHT)] if good else []
        parts += [html_block("cannot run", html_table(bad))] if bad else []
        return html_block("configurations, best first", *parts, about="predicted, not measured")


def cells(r: Ranked) -> tuple[str, ...]:
    """A configuration's row below `HEAD`."""
    e = r.estimate
    if e is None:
        return ("", r.configuration, r.reason, *[""] * (len(HEAD) - 3))
    name = r.configuration or "nothing to choose"
    numbers = (f"{e.tiles:,}", f"{e.waves:,}", f"{e.filled:.0%}")
    moved = (size_text(e.dram_bytes), size_text(e.l2_bytes), size_text(e.shared_bytes))
    return (time_text(e.seconds), name, e.limit, *numbers, *moved, str(e.registers))
