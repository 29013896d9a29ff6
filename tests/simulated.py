"""Launches that are simulated: within `simulated(target)` every call of a kernel runs in the
simulator, so that a program's own checks are checks of the simulator. Gives the list of reports."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import tilec
from tilec.ir.printer import print_func
from tilec.jit.revision import Revision
from tilec.jit.simulate import OPTIONS
from tilec.kernel import Kernel


def run(kernel: Any, target: str, *arrays: Any, **given: Any) -> None:
    """Call a kernel on the CPU, or simulate it for a GPU, which finds nothing."""
    if target == "cpu":
        kernel(*arrays, **given)
        return
    report = tilec.simulate(kernel, *arrays, target=target, **given)
    assert report.ok, report


def run_compiled(kernel: Any, target: str, *arrays: Any, **given: Any) -> None:
    """The same; for a GPU it is compiled, too."""
    if target != "cpu":
        kernel.compile(*arrays, target=target, **given)
    run(kernel, target, *arrays, **given)


def traced(kernel: Any, *args: Any, target: str, **given: Any) -> str:
    """The stage "tile" of a kernel for these arguments of `compile`, with what is chosen for them:
    for tests that look at nothing else, and so need no pass."""
    return print_func(kernel.choices.traced(kernel.signature, kernel.key_of(args, target, given)))


def products_in(text: str) -> int:
    """The T.gemms of a kernel, as it is traced: the three that `split_operands` makes of one are
    one."""
    return text.count("gemm") - text.count("allow_tf32") * 2 // 3


def _outputs(report: Any) -> Any:
    made = tuple(report.outputs.values())
    return made[0] if len(made) == 1 else made or None


def _by_position(kernel: Kernel, args: list[Any], given: dict[str, Any]) -> list[Any]:
    """The arguments with those by position that are called like an option of `simulate`."""
    while set(OPTIONS) & set(given):
        p = kernel.parameters[len(args)]
        args.append(given.pop(p.name, p.default))
    return args


@contextmanager
def tiles_near(size: int) -> Iterator[None]:
    """What is left to tilec is not chosen, from fifteen tiles that are traced and compared: it is
    the value next to `size`, the smaller of two. 0: it is chosen."""
    asked = Revision.asked

    def settled(revision: Revision, *args: Any, **given: Any) -> Any:
        found = asked(revision, *args, **given)
        for name, a in found[0].open.items():
            nearest = min(a.values, key=lambda v: (abs(v - size), v))
            found[0].call.constants[name] = nearest
        return found

    with mock.patch.object(Revision, "asked", settled if size else asked):
        yield


@contextmanager
def simulated(target: str) -> Iterator[list[Any]]:
    reports: list[Any] = []

    def launch(kernel: Kernel, grid: Any, args: Any, given: dict[str, Any]) -> Any:
        given.pop("stream", None)
        args = _by_position(kernel, list(args), given)
        reports.append(tilec.simulate(kernel, *args, grid=grid, target=target, **given))
        return _outputs(reports[-1])

    def call(kernel: Kernel, *args: Any, **given: Any) -> Any:
        return launch(kernel, None, args, given)

    def item(kernel: Kernel, grid: Any) -> Callable[..., Any]:
        return lambda *args, **given: launch(kernel, grid, args, given)

    # Kernels that have been launched have a launch path of their own.
    paths = [one for one in Kernel.__subclasses__() if "__call__" in vars(one)]
    with ExitStack() as patched:
        for one in (Kernel, *paths):
            patched.enter_context(mock.patch.object(one, "__call__", call))
        patched.enter_context(mock.patch.object(Kernel, "__getitem__", item))
        yield reports
