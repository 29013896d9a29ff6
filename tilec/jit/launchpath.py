"""The generated launch path of a kernel, or of one variant, for one kind of array."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from tilec.ir.caller import caller_loc, for_users
from tilec.ir.errors import LaunchError, did_you_mean, shown
from tilec.jit.captured import Reads
from tilec.jit.fastpath import CallText, calls_of
from tilec.jit.recipe import NO_KEYS, Keys, Prepared
from tilec.runtime.arguments import Parameter, as_index
from tilec.runtime.driver import Grid
from tilec.runtime.expressions import names_in
from tilec.runtime.image import Image


@dataclasses.dataclass(frozen=True)
class LaunchPath:
    """`call` and `on_grid`, which take the grid first, launch what they find in `prepared`. `kind`:
    of the arrays; `outputs`: the names of those that a call allocates; `sized`: the scalars that
    the extents of these follow from."""

    prepared: Prepared
    call: Callable[..., Any]
    on_grid: Callable[..., Any]
    kind: str = ""
    outputs: tuple[str, ...] = ()
    sized: frozenset[str] = frozenset()


def write_path(
    parameters: Sequence[Parameter], image: Image, kind: str, module: dict[str, Any], reads: Reads
) -> LaunchPath:
    """The launch path for arrays of `kind`, the outputs of `image` among them; it has the globals
    of `module`, and looks whether `reads` are as they were."""
    outputs = [a.name for a in image.arguments if a.output]
    extents = [e for a in image.arguments if a.output for e in a.shape if isinstance(e, str)]
    scalars = {p.name for p in parameters if p.kind == "scalar"}
    sized = scalars & frozenset[str]().union(*map(names_in, extents))
    prepared = Prepared(image.written)
    names = {
        "memo_": prepared.memo,
        "plans_": prepared.plans,
        "chosen_": prepared.chosen,
        "anew_": Launchable.launch_anew,
        "spread_": spread_grid,
    }
    writer = CallText(parameters, kind, outputs, image.returned, sized, image.written)
    call, on_grid = calls_of(image.name, writer, names, module, reads)
    return LaunchPath(prepared, call, on_grid, kind, tuple(outputs), frozenset(sized))


class Sole:
    """What is its own copy, as a function is."""

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: Any) -> Self:
        return self


class Launchable(Sole):
    """What is called with arrays: a kernel, or one variant of it."""

    __iter__ = None  # indexing gives a launch, not an item

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """What a call passes."""
        raise NotImplementedError

    def _launch(
        self, grid: Any, args: Sequence[Any], kwargs: Mapping[str, Any], keys: Keys = NO_KEYS
    ) -> Any:
        raise NotImplementedError

    @for_users  # a launch path that is older than torch's compiler lets it look in here
    def launch_anew(
        self,
        grid: Any,
        given: Mapping[str, Any],
        extra: Sequence[Any],
        keywords: Mapping[str, Any],
        keys: Sequence[Any] | None,
    ) -> Any:
        """A call that the generated launch path could not serve; `keys`: those of `Keys`. What is
        launched is not remembered where something was given twice, or too much."""
        parameters = self.parameters
        if extra or any(p.name in keywords for p in parameters):
            return self._launch(grid, (*given.values(), *extra), dict(keywords))
        named = {p.name: given[p.name] for p in parameters if given[p.name] is not p.default}
        named |= {n: value for n, value in keywords.items() if value is not None}
        return self._launch(grid, (), named, Keys(*keys or ()))


def name_of(kernel: object, function: Callable[..., Any]) -> str:
    """The name under which the module of `function`, which it was made of, has the kernel: what it
    is pickled as. Raises LaunchError where there is none."""
    name, module = function.__qualname__, function.__module__
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not kernel:
        raise LaunchError(
            f"the kernel {name} of {module} cannot be pickled: it is not found there under "
            "this name",
            caller_loc(),
            "define it at the top of a module, or pickle what kernel.compile(…) gives",
        )
    return name


def spread_grid(grid: Any, meta: Mapping[str, Any]) -> Grid:
    """`grid` of `kernel[grid]` as three ints: an int, a sequence, or a function of the
    meta-parameters."""
    if callable(grid):
        try:
            grid = grid(meta)
        except KeyError as e:
            known = ", ".join(map(str, meta)) or "none"
            near = did_you_mean(str(e.args[0]), meta) if e.args else ""
            message = f"the grid function asks for {e}, which is no compile-time parameter{near}"
            raise LaunchError(message, hint=f"it is given these: {known}") from e
        except Exception as e:
            raise LaunchError(
                f"the grid function failed: {type(e).__name__}: {e}",
                hint='write kernel[lambda meta: (T.cdiv(n, meta["BN"]), 1)](…)',
            ) from e
    extents = tuple(grid) if isinstance(grid, (tuple, list)) else (grid,)
    whole = [n for n in map(as_index, extents) if n is not None and abs(n) < 2**63]
    if not 1 <= len(extents) <= 3 or len(whole) != len(extents):
        hint = "write kernel[gx](…) or kernel[gx, gy](…); T.cdiv(n, block) rounds up"
        raise LaunchError(f"a grid is one to three ints, got {shown(grid)}", hint=hint)
    x, y, z = (*whole, 1, 1)[:3]
    return x, y, z
