"""T.Pipelined around element-wise work; that around products is in `products`."""

from __future__ import annotations

from tilec.fuzz.control import inner
from tilec.fuzz.expressions import own_element
from tilec.fuzz.functions import converted
from tilec.fuzz.writer import Writer, head, indices


def pipelined(w: Writer) -> None:
    """Tiles of an input, one after the other, added up."""
    tensors = [t for t in w.inputs if len(t.shape) == 2]
    tiles = [t for t in w.tiles if len(t.shape) == 2 and t.counts]
    if not tensors or not tiles or w.depth > 3:
        return
    source, total = w.one_of(tensors), w.one_of(tiles)
    stage = w.tile(
        total.shape,
        w.one_of((source.dtype, total.dtype)),
        w.one_of(("shared",) * 3 + ("fragment",)),
    )
    name, across = w.name("k"), w.below(2)
    steps = -(-source.shape[across] // stage.shape[across])
    bound = w.one_of((str(min(steps, 5)), str(w.between(0, 4)), "bx + 1", f"1, {w.between(1, 4)}"))
    i, j = names = indices(w, 2)
    with w.block(f"for {name} in T.Pipelined({bound}{arranged(w, 2)}):"):
        w.counters.append(name)
        start = [f"{w.one_of(('bx', 'by'))} * {stage.shape[1 - across]}"] * 2
        start[across] = f"{name} * {stage.shape[across]}"
        w.emit(f"T.copy({source.name}[{', '.join(start)}], {stage.name})")
        if w.chance(0.2) and "order" not in w.lines[-2] and "stage=" not in w.lines[-2]:
            inner(w)
        with w.block(head(names, total.shape)):
            own = own_element(total, names)
            shift = f"({j} + {w.between(0, 2)}) % {total.shape[1]}" if w.chance(0.4) else j
            item = f'T.cast({stage.name}[{i}, {shift}], "{total.dtype}")'
            w.emit(f"{own} = {own} + {item}")


def arranged(w: Writer, statements: int) -> str:
    """Keywords of a T.Pipelined whose body has so many statements that act."""
    kind = w.below(12)
    if kind == 0:
        copies = list(range(statements - 1))  # the last one needs what they bring
        w.rng.shuffle(copies)
        order = [*copies, statements - 1] if w.chance(0.7) else [*copies[1:], -1, -1]
        return f", num_stages={w.between(1, 4)}, order={order}"
    if kind in (1, 2):
        last = w.between(1, 3)
        stage = [w.one_of((0, last)) for _ in range(statements - 1)] + [last]
        return f", stage={stage}"
    if kind == 3:
        return f", num_stages={w.between(1, 4)}, reversible=True"
    return "" if kind == 4 else f", num_stages={w.between(0, 5)}"


def pipelined_pair(w: Writer) -> None:
    """Tiles of two inputs side by side, of rows that TMA can bring or not; maybe left early."""
    tensors = [t for t in w.inputs if len(t.shape) == 2 and "float8" not in t.dtype]
    if not tensors or w.depth > 3:
        return
    first, second = w.one_of(tensors), w.one_of(tensors)
    shape = (w.one_of((4, 8, 16, 5)), w.one_of((8, 16, 32, 7)))
    one, two = (w.tile(shape, t.dtype, "shared") for t in (first, second))
    total = w.tile(shape, w.one_of(("float32", "int32", "float64")), "fragment")
    w.emit(f"T.clear({total.name})")
    name = w.name("k")
    i, j = names = indices(w, 2)
    early = w.chance(0.2)
    how = f", num_stages={w.between(1, 4)}" if early else arranged(w, 3)
    with w.block(f"for {name} in T.Pipelined({w.between(1, 5)}{how}):"):
        if early:
            with w.block(f"if {name} >= {w.between(1, 3)}:"):
                w.emit("break")
        w.emit(f"T.copy({first.name}[by * {shape[0]}, {name} * {shape[1]}], {one.name})")
        w.emit(f"T.copy({second.name}[{name} * {shape[0]}, bx * {shape[1]}], {two.name})")
        with w.block(head(names, shape)):
            parts = (converted(w, f"{t.name}[{i}, {j}]", total.dtype) for t in (one, two))
            low, high = (f'T.cast({n}, "{total.dtype}")' for n in (-9, 9))
            both = f" {w.one_of('+-*')} ".join(parts)
            made = f"T.max(T.min({both}, {high}), {low})"
            w.emit(f"{total.name}[{i}, {j}] += {made}")
    w.tiles.append(total)
