"""What changes no number: layouts, orders of blocks, schedules. And the safe value."""

from __future__ import annotations

from tilec.fuzz.functions import converted
from tilec.fuzz.writer import Writer, indices
from tilec.ir.types import DTYPES


def annotate_layout(w: Writer) -> None:
    """A layout for a shared tile that has none yet."""
    text = "\n".join(w.head)
    tiles = [t for t in w.tiles if t.space == "shared" and f"{{{t.name}:" not in text]
    tiles = [t for t in tiles if len(t.shape) == 2]
    if not tiles:
        return
    tile = w.one_of(tiles)
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


def annotate_safe_value(w: Writer) -> None:
    text = "\n".join(w.head)
    tensors = [t for t in w.inputs if f"{{{t.name}:" not in text]
    if tensors:
        tensor = w.one_of(tensors)
        amount = str(w.between(0, 5) if DTYPES[tensor.dtype].is_int else w.one_of((1.5, -2.0, 4.0)))
        if DTYPES[tensor.dtype].is_float and "float8" not in tensor.dtype and w.chance(0.3):
            amount = f'-T.infinity("{tensor.dtype}")'
        w.head.append(f"T.annotate_safe_value({{{tensor.name}: {amount}}})")


def use_swizzle(w: Writer) -> None:
    if not any("use_swizzle" in line or "annotate_schedule" in line for line in w.head):
        order = w.one_of(("row", "column"))
        off = ", enable=False" if w.chance(0.1) else ""
        w.head.append(f'T.use_swizzle({w.between(1, 4)}, order="{order}"{off})')


def annotate_schedule(w: Writer) -> None:
    if any("use_swizzle" in line or "annotate_schedule" in line for line in w.head):
        return
    pipelines = any("T.Pipelined" in line for line in w.lines)
    walks = pipelines and w.depth == 2  # what a persistent schedule takes
    teams = walks and w.products and w.threads == 128
    even = not w.columns % 2 and not w.rows % 2
    cluster = w.one_of(("1", "2", "(1, 2)")) if even else "1"
    choices = (
        f"persistent={walks and w.chance(0.7)}",
        f"specialise={pipelines and w.chance(0.5)}",
        f'consumers="{"pingpong" if teams and w.chance(0.5) else "cooperative"}"',
        f"panel={w.between(1, 4)}",
        f'store="{w.one_of(("tma", "direct"))}"',
        f"stages={w.between(1, 4)}",
        f"cluster={cluster}",
        "split=1",
    )
    count = w.between(1, 2)
    picked = sorted({w.below(len(choices)) for _ in range(count)})
    w.head.append(f"T.annotate_schedule({', '.join(choices[p] for p in picked)})")


def chosen_tile(w: Writer) -> None:
    """Rows in tiles whose height tilec chooses: no number hangs on it."""
    tensors = [t for t in w.inputs if len(t.shape) == 2 and "float8" not in t.dtype]
    if not tensors or w.constants or w.launch:  # a launch's grid does not follow a choice
        return
    source, output = w.one_of(tensors), w.outputs[0]
    rows = w.name("B")
    choice = w.one_of(("T.auto", "T.auto(4, 8)", "T.auto(8, 3, 16)"))
    w.constants.append(f"{rows}: T.constexpr = {choice}")
    tile, name = w.name("S"), w.name("t")
    w.head.append(f'{tile} = T.alloc_shared(({rows}, {w.bn}), "{source.dtype}")')
    i, j = indices(w, 2)
    with w.block(f"for {name} in T.serial(T.ceildiv({w.bm}, {rows})):"):
        w.emit(f"T.copy({source.name}[by * {w.bm} + {name} * {rows}, bx * {w.bn}], {tile})")
        with w.block(f"for {i}, {j} in T.Parallel({rows}, {w.bn}):"):
            with w.block(f"if {name} * {rows} + {i} < {w.bm}:"):
                place = f"by * {w.bm} + {name} * {rows} + {i}, bx * {w.bn} + {j}"
                item = converted(w, f"{tile}[{i}, {j}]", output.dtype)
                w.emit(f"{output.name}[{place}] = {item}")
