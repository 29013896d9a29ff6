"""What a compiled kernel is, in rows: for `print(compiled)` and for notebooks."""

from __future__ import annotations

from tilec.runtime.image import Argument, Image
from tilec.support.rich import aligned, html_block, html_table, size_text
from tilec.target import find_target

Row = tuple[str, str]


def text_of(image: Image, plan: str) -> str:
    """For people; `plan` describes the plan that it was compiled with, "" where there is none."""
    return f"{image.name} for {image.target}\n{aligned(rows_of(image, plan))}"


def html_of(image: Image, plan: str) -> str:
    """The same for a notebook."""
    table = html_table(rows_of(image, plan), code=(1,))
    return html_block(image.name, table, about=f"compiled for {image.target}")


def rows_of(image: Image, plan: str) -> list[Row]:
    """What it takes, the plan, the grid, what the machine gives it, the code."""
    r, rows = image.resources, list[Row]()
    rows += [("" if n else "arguments", _argument(a)) for n, a in enumerate(image.arguments)]
    rows += [("plan", plan)] if plan else []
    rows.append(("grid", image.grid or "given by the launch"))
    if image.packed:
        rows.append(("packed", f"{', '.join(image.packed)}: copied before each launch"))
    if r.registers is not None:
        spilled = f", {r.spilled_bytes:,} bytes spilled" if r.spilled_bytes else ", none spilled"
        rows.append(("registers", f"{r.registers} of each of {r.threads} threads{spilled}"))
    elif find_target(image.target).kind != "cpu":
        rows.append(("registers", "not known: no assembler was found"))
    if r.shared_bytes:
        limit = find_target(image.target).shared_bytes
        each = ", ".join(f"{name} {size:,}" for name, size in r.buffers.items())
        of = f" of {limit:,}" if limit else ""
        rows.append(("shared memory", f"{r.shared_bytes:,}{of} bytes: {each}"))
    if r.blocks_per_sm is not None:
        plural = "s" if r.blocks_per_sm != 1 else ""
        rows.append(("occupancy", f"{r.blocks_per_sm} block{plural} a multiprocessor"))
    rows.append(("code", f"{image.format}, {size_text(len(image.binary))}"))
    return rows


def _argument(a: Argument) -> str:
    if a.kind != "tensor":
        default = "" if a.default is None else f" = {a.default}"
        return f"{a.name}: {a.dtype}{default}"
    shape = ", ".join(map(str, a.shape)) + ("," if len(a.shape) == 1 else "")
    does = "made by the call" if a.output else "written" if a.written else "read"
    return f"{a.name}: {a.dtype} ({shape}), {does}"
