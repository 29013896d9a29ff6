"""A fuzzed program: the source of a kernel and the arguments it is called with."""

from __future__ import annotations

import hashlib
import linecache
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tilec.language as T
from tilec.decorator import kernel
from tilec.fuzz.arrays import Array, Made
from tilec.jit.simulate import simulate
from tilec.kernel import Kernel
from tilec.layout import make_mma_swizzle_layout, make_swizzled_layout
from tilec.sim.report import Report

SIZES = ("M", "N", "K", "P", "Q")
HEADER = f"""\
import tilec
import tilec.language as T
from tilec.layout import make_mma_swizzle_layout, make_swizzled_layout

{", ".join(SIZES)} = T.dynamic("{", ".join(SIZES)}")
"""


@dataclass(frozen=True)
class Launch:
    """How a kernel is called: `kernel[grid](…, **keywords)`; no grid where its source has one."""

    grid: tuple[int, ...] = ()
    keywords: Mapping[str, Any] = field(default_factory=dict)

    def call(self, kernel: Kernel, given: Sequence[Any]) -> list[Any]:
        """Call the kernel; the arrays that it makes, in the order in which it returns them."""
        called = kernel[self.grid] if self.grid else kernel
        made = called(*given, **self.keywords)
        return [] if made is None else list(made) if isinstance(made, tuple) else [made]

    def simulate(
        self, kernel: Kernel, given: Sequence[Any], target: str, optimised: bool = False
    ) -> Report:
        """Run the kernel in the simulator."""
        grid = self.grid or None
        return simulate(
            kernel, *given, grid=grid, target=target, optimised=optimised, **self.keywords
        )

    def assembly(self, kernel: Kernel, given: Sequence[Any], target: str) -> str:
        """The assembly of the variant that the call runs."""
        planned = kernel.plan_launch(target, self.grid or None, given, self.keywords)
        return planned.variant.asm


PLAIN = Launch()


@dataclass(frozen=True)
class Program:
    """`source`: the kernel as a `def`, decorator included, and the macros before it. `arguments`:
    what a call passes, by name, in the order of the parameters; ints and floats for scalars.
    `words`: what the generator wrote it from."""

    source: str
    arguments: Mapping[str, Array | int | float]
    words: tuple[str, ...] = field(default=(), compare=False)
    launch: Launch = PLAIN

    @property
    def digest(self) -> str:
        """A short name of the program."""
        text = f"{self.source}\n{dict(self.arguments)!r}\n{self.launch!r}"
        return hashlib.sha256(text.encode()).hexdigest()[:10]

    def load(self) -> Kernel:
        """The kernel. Raises SyntaxError, and CompileError for its annotations."""
        file = f"<fuzz {self.digest}>"
        lines = self.source.splitlines(keepends=True)
        linecache.cache[file] = (len(self.source), None, lines, file)
        sizes = dict(zip(SIZES, T.dynamic(", ".join(SIZES))))
        scope: dict[str, Any] = {
            "T": T,
            "kernel": kernel,
            "make_swizzled_layout": make_swizzled_layout,
            "make_mma_swizzle_layout": make_mma_swizzle_layout,
            "tilec": _Tilec,
            **sizes,
        }
        exec(compile(self.source, file, "exec", dont_inherit=True), scope)
        made = [v for v in scope.values() if isinstance(v, Kernel)]
        return made[-1]

    def forget(self) -> None:
        """Drop the source that `load` registered."""
        linecache.cache.pop(f"<fuzz {self.digest}>", None)

    def make(self, fnuz: bool = False) -> dict[str, Made | int | float]:
        """New arguments. `fnuz`: float8 is AMD's."""
        return make_arguments(self.arguments, fnuz)


class _Tilec:
    """What `tilec` is in the source of a program."""

    kernel = staticmethod(kernel)


def make_arguments(
    arguments: Mapping[str, Array | int | float], fnuz: bool = False
) -> dict[str, Made | int | float]:
    """New arrays for those described; numbers as they are."""
    return {n: a.make(fnuz) if isinstance(a, Array) else a for n, a in arguments.items()}
