"""Layouts that an author gives to buffers and loops: do they fit, and what are they by threads."""

from __future__ import annotations

from tilec.frontend.context import Context
from tilec.frontend.values import Buffer, describe
from tilec.ir.core import squeeze
from tilec.ir.errors import CompileWarning, LayoutError, warn
from tilec.ir.layout import Fragment, FragmentMisfitError, Layout, LayoutRequest
from tilec.ir.loc import Loc
from tilec.ir.ops import AnnotateLayout
from tilec.ir.types import next_power_of_2

_THREADS = 128  # of a block whose threads are tilec's choice; more hold copies


def fragment_layout(
    t: Context, name: str, shape: tuple[int, ...], given: Fragment, loc: Loc
) -> Layout | None:
    """The layout, by threads, that the author wants for a tile of `shape`; None, and a warning,
    where no layout says it."""
    if given.shape != shape:
        if squeeze(given.shape) != squeeze(shape):
            message = f"the fragment has shape {given.shape}, {name} has {shape}"
            hint = "write T.Fragment(x.shape, forward_fn=…), with one coordinate for each dimension"
            raise LayoutError(message, loc, hint)
        given = given.reshape(shape)
    threads = t.threads or max(_THREADS, next_power_of_2(given.get_thread_size()))
    try:
        return given.layout(threads)
    except FragmentMisfitError as e:
        hint = "give each warp as much to hold; tilec lays it out for itself here"
        warn(CompileWarning, f"{name}: {e.message}", loc, hint)
    except LayoutError as e:
        raise LayoutError(f"{name}: {e.message}", loc, e.hint) from None
    return None


def check_layout(t: Context, buffer: Buffer, layout: Layout | LayoutRequest, loc: Loc) -> None:
    """Raise LayoutError for a layout of other extents, one of offsets for registers, and one
    beside another."""
    if buffer.type.space == "fragment" and not (isinstance(layout, Layout) and layout.is_held):
        raise LayoutError(
            f"a layout of offsets in memory for {describe(buffer)}, which is in registers",
            loc,
            f"leave {buffer.name} out: tilec lays fragments out; or write T.Fragment"
            f"({buffer.name}.shape, forward_fn=…)",
        )
    if isinstance(layout, Layout) and layout.shape != buffer.type.static_shape:
        message = f"the layout has shape {layout.shape}, the buffer is {describe(buffer)}"
        hint = f"write T.Layout({buffer.name}.shape, …), with one coordinate for each dimension"
        raise LayoutError(message, loc, hint)
    known, line = t.given_layouts.setdefault(buffer.value, (layout, loc.line))
    if known != layout:
        message = f"{describe(buffer)} has another layout already, from line {line}"
        raise LayoutError(message, loc, "leave one of them out")


def copy_layout(t: Context, sides: tuple[Buffer, ...], given: object, loc: Loc) -> None:
    """Take `given` for the side of a copy that is a fragment; between memories it says nothing."""
    if not isinstance(given, Fragment):
        hint = "write T.Fragment((m, n), forward_fn=lambda i, j: (thread, index))"
        raise LayoutError(f"loop_layout of T.copy is {describe(given)}", loc, hint)
    for b in sides:
        known = t.given_layouts.get(b.value)
        if b.type.space != "fragment" or known is not None:
            continue
        made = fragment_layout(t, b.name, b.type.static_shape, given, loc)
        if made is not None:
            check_layout(t, b, made, loc)
            t.emit(AnnotateLayout, b.value, made)
