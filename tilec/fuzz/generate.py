"""A random program from a seed and a number: the same one in every run and on every machine."""

from __future__ import annotations

import numpy as np

from tilec.fuzz.program import Program
from tilec.fuzz.words import OUTER, STATEMENTS, annotate_schedule, filled, finish, show
from tilec.fuzz.writer import DTYPES, THREADS, Writer


def generate(seed: int, number: int) -> Program:
    """Program `number` of `seed`."""
    w = Writer(np.random.default_rng([seed, number]))
    w.bm, w.bn = w.size(32), w.size(40)
    w.rows, w.columns = w.one_of(((1, 1), (1, 2), (2, 1), (2, 2), (1, 3), (3, 2)))
    w.threads = w.one_of(THREADS)
    header = _grid(w)
    for _ in range(w.between(1, 3)):
        _input(w)
    if w.chance(0.5):
        w.scalar("int32", w.between(-1, 5))
    if w.chance(0.3):
        w.scalar("float32", w.one_of((0.5, -1.0, 2.0)))
    for _ in range(w.between(1, 3)):
        filled(w, _tile_shape(w), w.one_of(DTYPES))
    filled(w, (w.bm, w.bn), w.one_of(DTYPES))
    for _ in range(w.between(1, 5)):
        word = w.one_of(STATEMENTS if w.chance(0.65) else OUTER)
        w.words.append(word.__name__)
        word(w)
    if w.chance(0.4) and any("T.Pipelined" in line for line in w.lines):
        w.words.append(annotate_schedule.__name__)
        annotate_schedule(w)
    for tile in w.tiles[::-1][:3]:
        if w.chance(0.6):
            show(w, tile)
    for output in [o for o in w.outputs if o.part == (w.bm, w.bn)]:
        finish(w, output)
    return w.program(header)


def _grid(w: Writer) -> list[str]:
    """The lines up to the block's body. The first output has one element for each of the grid's,
    less some at its edges."""
    missing = (w.below(w.bm) if w.chance(0.6) else 0, w.below(w.bn) if w.chance(0.6) else 0)
    shape = (w.bm * w.rows - missing[0], w.bn * w.columns - missing[1])
    if w.chance(0.04):
        shape = (0, shape[1])
    named = w.chance(0.6)
    at = (f"by * {w.bm}", f"bx * {w.bn}")
    sizes = ("M", "N") if named else ()
    dtype = w.one_of(DTYPES)
    w.output(shape, dtype, at, (w.bm, w.bn), sizes)
    if w.chance(0.3):
        w.output(shape, w.one_of(DTYPES), at, (w.bm, w.bn), sizes)
    rows, columns = (
        (f"T.ceildiv(M, {w.bm})", f"T.ceildiv(N, {w.bn})") if named else (w.rows, w.columns)
    )
    if w.chance(0.12):
        w.depth = 3
        blocks = w.between(1, 5)
        group = w.between(1, 3)
        w.words.append("persistent")
        return [
            f"    with T.Kernel({blocks}, threads={w.threads}) as block:",
            f"        for by, bx in T.Persistent([{rows}, {columns}], {blocks}, block, {group}):",
        ]
    return [f"    with T.Kernel({columns}, {rows}, threads={w.threads}) as (bx, by):"]


def _input(w: Writer) -> None:
    dtype = w.one_of((*DTYPES, "bool", "float8_e4m3"))
    kind = w.below(8)
    if kind == 0:
        w.input((w.size(60),), dtype)
    elif kind == 1:
        w.input((w.between(1, 3), w.size(20), w.size(30)), dtype)
    elif kind == 2 and w.chance(0.3):
        w.input((w.between(1, 3), w.size(30)), w.one_of(("float16", "int8")))
    else:
        shape = (w.bm * w.rows + w.between(-3, 3), w.bn * w.columns + w.between(-3, 3))
        if w.chance(0.4):
            shape = (w.size(64), w.one_of((16, 32, 64, 8)))
        shape = (max(0, shape[0]), max(1, shape[1]))
        sizes = ("P", "Q") if w.chance(0.4) and not _named(w, "P") else ()
        w.input(shape, dtype, sizes)


def _named(w: Writer, size: str) -> bool:
    return any(f"(({size}," in p for p in w.parameters)


def _tile_shape(w: Writer) -> tuple[int, ...]:
    kind = w.below(8)
    if kind == 0:
        return (w.one_of((w.bm, w.bn, w.size(64))),)
    if kind == 1:
        return (w.between(1, 3), w.size(8), w.size(16))
    if kind < 5:
        return (w.bm, w.bn)
    return (w.size(24), w.size(32))
