"""Code of single threads that exchange values within their warps, and meet.

Warps have 32 or 64 lanes: what is written means the same for both."""

from __future__ import annotations

from tilec.fuzz.blocks import for_threads, thread_index
from tilec.fuzz.writer import INTS, Writer, statement
from tilec.ir.types import DTYPES

WIDTHS = (2, 4, 8, 16, 32)
WARP = 64  # the first half of so many threads lie in one warp everywhere


@statement(weight=2, deepest=4)
def shuffles(w: Writer) -> None:
    """A value of each thread goes from lane to lane, and to a shared tile in the end."""
    dtype = w.one_of(("float32", "float32", "float16", "float64", "int32", *INTS))
    tile = w.tile((w.threads,), dtype, "shared")
    tx, v = thread_index(w), w.name("v")
    lane, warp, at = _indices(w, tx)
    w.emit(f"{v} = {for_threads(w, tx, w.threads, dtype)}")
    for _ in range(w.between(1, 3)):
        if w.chance(0.3):
            _reduced(w, tx, v, dtype)
            continue
        word = w.one_of(("shfl_xor", "shfl_up", "shfl_down", "shfl_sync"))
        width = w.one_of(WIDTHS)
        there = str(w.between(0, width)) if w.chance(0.7) else f"{lane} % {w.between(1, 5)}"
        if word == "shfl_sync" and w.chance(0.5):
            there = w.one_of((f"{lane} + 1", f"{warp} + {lane} // 2", f"{tx} * 3"))
        wide = w.one_of(("", ", width=32")) if width == 32 else f", width={width}"
        mask = ", mask=0xFFFFFFFF" if w.chance(0.1) else ""
        found = f"T.{word}({v}, {there}{wide}{mask})"
        w.emit(f"{v} = {w.one_of((found, f'T.max({v}, {found})', f'T.min({found}, {v})'))}")
        if w.chance(0.2):
            w.emit(w.one_of(("T.sync_threads()", "T.sync_warp()", "T.sync_warp(0xFFFFFFFF)")))
    w.emit(f"{tile.name}[{at}] = {v}")
    w.tiles.append(tile)


def _indices(w: Writer, tx: str) -> tuple[str, str, str]:
    """A thread's lane and its warp, of 32 lanes, and its own number, which they make together."""
    lane, warp, group = w.name("lane"), w.name("warp"), w.name("group")
    w.emit(f"{lane} = T.get_lane_idx({w.one_of(('32', 'warp_size=32'))})")
    if w.chance(0.3):
        w.emit(f"{group} = T.get_warp_group_idx(32, warps_per_group=2)")
        w.emit(f"{warp} = {group} * 2 + {tx} // 32 % 2")
    else:
        word = w.one_of(("get_warp_idx", "get_warp_idx_sync"))
        w.emit(f"{warp} = T.{word}({w.one_of(('32', 'warp_size=32'))})")
    return lane, warp, w.one_of((tx, f"{warp} * 32 + {lane}"))


def _reduced(w: Writer, tx: str, v: str, dtype: str) -> None:
    """What the first half of each 64 threads has, combined; others add nothing, and get 0."""
    unchanged = {
        "sum": f'T.cast(0, "{dtype}")',
        "max": f'T.min_value("{dtype}")',
        "min": f'T.max_value("{dtype}")',
        "bitand": f'T.max_value("{dtype}")' if DTYPES[dtype].kind == "uint" else "-1",
        "bitor": f'T.cast(0, "{dtype}")',
    }
    kind = w.one_of(("sum", "max", "min") if DTYPES[dtype].is_float else (*unchanged,))
    half = f"{tx} % {WARP} < {WARP // 2}"
    w.emit(f"{v} = T.if_then_else({half}, {v}, {unchanged[kind]})")
    w.emit(f"{v} = T.warp_reduce_{kind}({v})")
    w.emit(f'{v} = T.if_then_else({half}, {v}, T.cast(0, "{dtype}"))')
