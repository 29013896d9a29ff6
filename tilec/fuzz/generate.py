"""A random program from a seed and a number: the same one in every run and on every machine."""

from __future__ import annotations

import numpy as np

from tilec.fuzz.annotations import annotate_schedule
from tilec.fuzz.assemble import assemble
from tilec.fuzz.copies import filled
from tilec.fuzz.forced import forced, made_in_loops
from tilec.fuzz.launches import grid
from tilec.fuzz.outputs import finish, show
from tilec.fuzz.program import Program
from tilec.fuzz.words import OUTER, STATEMENTS
from tilec.fuzz.writer import DTYPES, THREADS, Writer


def generate(seed: int, number: int) -> Program:
    """Program `number` of `seed`."""
    w = Writer(np.random.default_rng([seed, number]), STATEMENTS)
    w.bm, w.bn = w.size(32), w.size(40)
    w.rows, w.columns = w.one_of(((1, 1), (1, 2), (2, 1), (2, 2), (1, 3), (3, 2)))
    w.threads = w.one_of(THREADS)
    frame = grid(w)
    for _ in range(w.between(1, 3)):
        _input(w)
    if w.chance(0.5):
        w.scalar("int32", w.between(-1, 5))
    if w.chance(0.3):
        w.scalar("float32", w.one_of((0.5, -1.0, 2.0)))
    if w.chance(0.2):
        w.constant(w.between(0, 5))
    for _ in range(w.between(1, 3)):
        filled(w, _tile_shape(w), w.one_of((*DTYPES, "bool")))
    filled(w, (w.bm, w.bn), w.one_of(DTYPES))
    for _ in range(w.between(1, 5)):
        word = w.one_of(STATEMENTS if w.chance(0.65) else OUTER)
        w.words.append(word.__name__)
        word(w)
    if w.chance(0.4) and any("T.Pipelined" in line for line in w.lines):
        w.words.append(annotate_schedule.__name__)
        annotate_schedule(w)
    more = np.random.default_rng([seed, number, 1])
    forced(w, more)
    for tile in w.tiles[::-1][:3]:
        if w.chance(0.6):
            show(w, tile)
    for output in [o for o in w.outputs if o.part == (w.bm, w.bn)]:
        finish(w, output)
    made_in_loops(w, more)
    return assemble(w, frame)


def _input(w: Writer) -> None:
    dtype = w.one_of((*DTYPES, "bool", "float8_e4m3"))
    kind = w.below(8)
    if kind == 0:
        w.input((w.size(60),), dtype)
    elif kind == 1:
        w.input((w.between(1, 3), w.size(20), w.size(30)), dtype)
    elif kind == 2 and w.chance(0.3):
        w.input((w.between(1, 3), w.size(30)), w.one_of(("float16", "int8", "bfloat16", "uint8")))
    else:
        more = w.between(-3, 3), w.between(-3, 3)
        shape = (w.bm * w.rows + more[0], w.bn * w.columns + more[1])
        if w.chance(0.4):
            shape = (w.size(64), w.one_of((16, 32, 64, 8)))
        shape = (max(0, shape[0]), max(1, shape[1]))
        if w.chance(0.08):
            shape = w.one_of(((shape[0], 1), (1, shape[1]), (1, 1), (shape[0], 0), (0, 0)))
        w.input(shape, dtype, _sizes(w, shape))


def _sizes(w: Writer, shape: tuple[int, ...]) -> tuple[str, ...]:
    """Run-time sizes for an input's extents: of its own, or those of the first output."""
    if w.chance(0.5):
        return ()
    first = w.outputs[0]
    if "(M, N)" in w.parameters[first.name] and w.chance(0.3):
        gaps = [mine - other for mine, other in zip(shape, first.shape)]
        if min(gaps) >= 0:
            return tuple(f"{s} + {gap}" if gap else s for s, gap in zip("MN", gaps))
    return () if any("(P," in text for text in w.parameters.values()) else ("P", "Q")


def _tile_shape(w: Writer) -> tuple[int, ...]:
    kind = w.below(8)
    if kind == 0:
        return (w.one_of((w.bm, w.bn, w.size(64))),)
    if kind == 1:
        return (w.between(1, 3), w.size(8), w.size(16))
    if kind < 5:
        return (w.bm, w.bn)
    return (w.size(24), w.size(32))
