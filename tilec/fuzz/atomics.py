"""Statements that update ints of memory by atomics: what comes of them is the same in any order."""

from __future__ import annotations

import math

from tilec.fuzz.blocks import thread_index
from tilec.fuzz.expressions import condition, position, value
from tilec.fuzz.tiles import filled
from tilec.fuzz.writer import INTS, Buffer, Scope, Writer, statement

KINDS = ("add", "add", "add", "max", "min", "and", "or", "xor")
ORDERS = ("relaxed", "release", "acquire", "acq_rel", "seq_cst")
MOST_ITERATIONS = 512


def _counters(w: Writer) -> Buffer:
    """What is updated: a tensor that blocks share and nobody reads, or a shared tile."""
    dtype = w.one_of(("int32", "int32", "uint32", "int64", *INTS))
    shape = w.one_of(((w.size(70),), (w.size(9), w.size(12))))
    if w.chance(0.5):
        return Buffer(w.tensor("H", shape, dtype, "ints"), shape, dtype)
    tiles = [t for t in w.tiles if t.space == "shared" and t.dtype in INTS]
    if tiles and w.chance(0.5):
        return w.one_of(tiles)
    made = w.tile(shape, dtype, "shared")
    w.emit(f"T.fill({made.name}, {w.between(0, 5)})")
    w.tiles.append(made)
    return made


def _place(w: Writer, s: Scope, to: Buffer) -> str:
    """An element that several iterations may mean, or all; of a tensor it may not exist."""
    entries = []
    for extent in to.shape:
        at = position(w, s) if w.chance(0.7) else w.one_of(("bx", "1"))
        wrapped = f"({at} * {w.one_of((1, 1, 3))}) % {extent}"
        entries.append(wrapped if to.space or w.chance(0.8) else f"{at} - 2")
    return to.element(entries)


def _options(w: Writer, chance: float = 0.15) -> str:
    return f', memory_order="{w.one_of(ORDERS)}"' if w.chance(chance) else ""


@statement(weight=2)
def atomic_updates(w: Writer) -> None:
    """Elements that many iterations of a T.Parallel mean, sometimes under a condition."""
    to, kind = _counters(w), w.one_of(KINDS)
    tiles = [
        t for t in w.tiles if t.counts and t is not to and math.prod(t.shape) < MOST_ITERATIONS
    ]
    shape = w.one_of(tiles).shape if tiles else (w.size(40), w.size(12))
    with w.elements(shape) as s:
        scope = Scope(s.index, to.name)
        line = f"T.atomic_{kind}({_place(w, s, to)}, {value(w, scope, to.dtype, 1)}"
        if w.chance(0.3):
            with w.block(f"if {condition(w, s)}:"):
                w.emit(f"{line}{_options(w)})")
        else:
            w.emit(f"{line}{_options(w)})")


@statement()
def atomic_tile(w: Writer) -> None:
    """A tile into the tile that starts somewhere, of a tensor over its edge, too."""
    to = _counters(w)
    tiles = [
        t for t in w.tiles if len(t.shape) == len(to.shape) and t.dtype in INTS and t is not to
    ]
    if to.space:
        tiles = [t for t in tiles if all(a <= b for a, b in zip(t.shape, to.shape))]
    shape = tuple(w.between(1, e) for e in to.shape)
    source = w.one_of(tiles) if tiles and w.chance(0.7) else filled(w, shape, w.one_of(INTS))
    starts = [str(w.between(0, e - n if to.space else e)) for e, n in zip(to.shape, source.shape)]
    if not to.space and w.chance(0.4):
        starts[0] = f"bx * {w.between(1, 9)}"
    kind = w.one_of(KINDS)
    by = ", use_tma=True" if w.chance(0.5) else ""
    w.emit(f"T.atomic_{kind}({to.element(starts)}, {source.name}{_options(w)}{by})")


@statement()
def atomic_previous(w: Writer) -> None:
    """Each iteration updates one element of its own, and keeps what was there."""
    tiles = [t for t in w.tiles if t.space == "shared" and t.dtype in INTS]
    to = w.one_of(tiles) if tiles and w.chance(0.6) else _ints(w)
    kept = w.tile(to.shape, w.one_of((to.dtype, "int64")), "shared")
    kind = w.one_of((*KINDS, "exchange", "load", "store", "cas"))
    with w.elements(to.shape, to, reads=False) as s:
        mine, x, order = to.element(s.names), value(w, s, to.dtype, 1), _options(w, 0.3)
        found = f"T.atomic_{kind}({mine}, {x}, return_prev=True{order})"
        if kind == "exchange" and w.chance(0.5):
            found = f"T.atomic_exchange({mine}, {x}{order})"
        if kind == "cas":
            found = f"T.atomic_cas({mine}, {w.between(0, 9)}, T.cast({x}, {to.dtype!r}){order})"
        if kind in ("load", "store"):
            if kind == "store":
                w.emit(f"T.atomic_store({mine}, {x}{order})")
            found = f"T.atomic_load({mine}{order})"
        w.emit(f"{kept.element(s.names)} = {found}")
    w.tiles.append(kept)


def _ints(w: Writer) -> Buffer:
    made = w.tile((w.size(24), w.size(16)), w.one_of(INTS), "shared")
    w.emit(f"T.fill({made.name}, {w.between(0, 9)})")
    w.tiles.append(made)
    return made


@statement()
def atomic_threads(w: Writer) -> None:
    """Every thread, or some of them, update elements that others update, too."""
    to, tx = _counters(w), thread_index(w)
    s = Scope(((tx, w.threads),), to.name)
    amount = f"{tx} % {w.between(1, 9)} + {w.between(-2, 2)}"
    kind, at = w.one_of(KINDS), _place(w, s, to)
    # What all threads say alike the reference does once.
    amounts = (amount, tx, "1") if tx in at else (amount, tx)
    line = f"T.atomic_{kind}({at}, {w.one_of(amounts)})"
    if w.chance(0.4):
        with w.block(f"if {tx} % {w.between(2, 5)} == {w.below(2)}:"):
            w.emit(line)
    elif w.chance(0.4):
        with w.block(f"for {w.name('r')} in T.serial({w.between(0, 3)}):"):
            w.emit(line)
    else:
        w.emit(line)
