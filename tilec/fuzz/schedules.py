"""What changes no number: layouts, orders of blocks, schedules, how often loops run, said by the
call, where tiles are made; and the safe value."""

from __future__ import annotations

import re

import numpy as np

from tilec.fuzz.expressions import converted
from tilec.fuzz.writer import Writer, planes, statement
from tilec.ir.types import DTYPES


@statement(weight=0, outer=1)
def annotate_layout(w: Writer) -> None:
    """A layout for a shared tile that has none yet."""
    text = "\n".join(w.head)
    shared = [t for t in planes(w.tiles) if t.space == "shared"]
    tile = w.one_of([t for t in shared if f"{{{t.name}:" not in text])
    m, n = tile.shape
    pad = w.between(1, 8)
    layout = w.one_of(
        (
            f"make_swizzled_layout({tile.name})",
            f"make_mma_swizzle_layout({tile.name})",
            f"T.Layout(({m}, {n}), lambda i, j: j * {m} + i)",
            f"T.Layout(({m}, {n}), lambda i, j: i * {n + pad} + j)",
        )
    )
    w.head.append(f"T.annotate_layout({{{tile.name}: {layout}}})")


@statement(weight=0, outer=1)
def annotate_safe_value(w: Writer) -> None:
    text = "\n".join(w.head)
    tensor = w.one_of([t for t in w.inputs if f"{{{t.name}:" not in text])
    amount = str(w.between(0, 5) if DTYPES[tensor.dtype].is_int else w.one_of((1.5, -2.0, 4.0)))
    if DTYPES[tensor.dtype].is_float and tensor.counts and w.chance(0.3):
        amount = f'-T.infinity("{tensor.dtype}")'
    w.head.append(f"T.annotate_safe_value({{{tensor.name}: {amount}}})")


@statement(weight=0, outer=1)
def use_swizzle(w: Writer) -> None:
    if not w.scheduled:
        order = w.one_of(("row", "column"))
        off = ", enable=False" if w.chance(0.1) else ""
        w.head.append(f'T.use_swizzle({w.between(1, 4)}, order="{order}"{off})')


@statement(weight=0, outer=1)
def annotate_schedule(w: Writer) -> None:
    if w.scheduled:
        return
    walks = w.pipelines and w.depth == 2  # what a persistent schedule takes
    groups = walks and w.products and w.threads == 128
    even = not w.columns % 2 and not w.rows % 2
    cluster = w.one_of(("1", "2", "(1, 2)")) if even else "1"
    choices = (
        f"persistent={walks and w.chance(0.7)}",
        f"specialise={w.pipelines and w.chance(0.5)}",
        f'consumers="{"pingpong" if groups and w.chance(0.5) else "cooperative"}"',
        f"raster_group={w.between(1, 4)}",
        f'store="{w.one_of(("tma", "direct"))}"',
        f"stages={w.between(1, 4)}",
        f"cluster={cluster}",
        "split=1",
    )
    count = w.between(1, 2)
    picked = sorted({w.below(len(choices)) for _ in range(count)})
    w.head.append(f"T.annotate_schedule({', '.join(choices[p] for p in picked)})")


@statement(weight=0, outer=1)
def chosen_tile(w: Writer) -> None:
    """Rows in tiles whose height tilec chooses: no number hangs on it."""
    tensors = [t for t in planes(w.inputs) if "float8" not in t.dtype]
    if not tensors or w.constants or w.launch:  # a launch's grid does not follow a choice
        return
    source, output = w.one_of(tensors), w.outputs[0]
    rows = w.name("B")
    choice = w.one_of(("T.auto", "T.auto(4, 8)", "T.auto(8, 3, 16)"))
    w.constants.append(f"{rows}: T.constexpr = {choice}")
    tile, name = w.name("S"), w.name("t")
    w.head.append(f'{tile} = T.alloc_shared(({rows}, {w.bn}), "{source.dtype}")')
    i, j = w.indices(2)
    with w.block(f"for {name} in T.serial(T.ceildiv({w.bm}, {rows})):"):
        w.emit(f"T.copy({source.name}[by * {w.bm} + {name} * {rows}, bx * {w.bn}], {tile})")
        with w.block(f"for {i}, {j} in T.Parallel({rows}, {w.bn}):"):
            with w.block(f"if {name} * {rows} + {i} < {w.bm}:"):
                item = converted(w, f"{tile}[{i}, {j}]", output.dtype)
                w.emit(f"{output.own((f'{name} * {rows} + {i}', j))} = {item}")


# --- what may be changed in a program that is written, by random numbers of its own ---------------

_COUNTED = re.compile(r"^(\s*for \w+ in (?:range|T\.serial|T\.Pipelined)\()(\d+)(?=\)|, \w+=)")
_MADE = re.compile(r"(\w+) = T\.alloc_(?:shared|fragment)\(")
_LOOP = re.compile(r"\s*(?:while |for .* in (?!T\.Parallel|T\.vectorized))")


def made_in_loops(w: Writer, rng: np.random.Generator) -> None:
    """A tile that one loop uses, and fills before all else, is made in that loop."""
    for line in w.head.copy():
        name = found[1] if (found := _MADE.match(line)) else ""
        word = re.compile(rf"\b{name}\b")
        uses = [k for k, text in enumerate(w.lines) if word.search(text)]
        if not name or not uses or sum(bool(word.search(text)) for text in w.head) > 1:
            continue
        fills = rf"T\.(copy\(.*, {name}[,)]|(clear|fill)\({name}\b)"
        loop = _innermost(w.lines, uses)
        if loop is None or not re.match(fills, w.lines[uses[0]].strip()) or rng.random() < 0.4:
            continue
        w.head.remove(line)
        w.lines.insert(loop + 1, " " * (_indent(w.lines[loop]) + 4) + line)
        w.words.append("made_in_loop")


def _innermost(lines: list[str], uses: list[int]) -> int | None:
    """The line of the innermost loop, none over elements, that all these lines stand in."""
    for k in range(uses[0] - 1, -1, -1):
        inside = all(_indent(text) > _indent(lines[k]) for text in lines[k + 1 : uses[-1] + 1])
        if inside and _LOOP.match(lines[k]):
            return k
    return None


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def forced(w: Writer, rng: np.random.Generator) -> None:
    """Known numbers of iterations become 0, 1 or 2, which only the call knows, and a schedule is
    fixed: producer warps, and all that may be chosen with them. Leaves programs as they are whose
    schedule is fixed already."""
    if w.scheduled:
        return
    if rng.random() < 0.4:
        for at, line in enumerate(w.lines):
            found = _COUNTED.match(line)
            if found and rng.random() < 0.7:
                name = w.told(int(rng.integers(min(2, int(found[2])) + 1)))
                w.lines[at] = f"{found[1]}{name}{line[found.end() :]}"
                w.words.append("trips")
    if not w.pipelines or rng.random() >= 0.4:
        return
    choices = [
        "persistent=True",
        f"stages={rng.integers(2, 6)}",
        f'store="{rng.choice(("tma", "direct"))}"',
        f"raster_group={rng.integers(1, 5)}",
    ]
    if w.products:
        if w.threads == 128:
            choices.append('consumers="pingpong"')
        if not w.columns % 2:
            choices += ["cluster=2"] * 2
        if not w.rows % 2:
            choices += ["cluster=(1, 2)"] * 2
    count = int(rng.integers(4))
    picked = {text.split("=")[0]: text for text in rng.permutation(choices)[:count]}
    w.head.append(f"T.annotate_schedule({', '.join(['specialise=True', *picked.values()])})")
    w.words.append("forced_schedule")
