"""A kernel with several T.Kernel: one launch after the other, on one stream.

Each T.Kernel is compiled as a kernel of its own from the same function. The first allocates what
T.empty and T.alloc_global make, and the outputs of the decorator; the others are given it.

Once each of them has a launch path, their calls stand in a function of their own, which takes what
the kernel takes. For `def k(A, B, n: T.int32)` with `W = T.empty(…)` and two T.Kernel it is

    def call(kernel, A=REQUIRED, B=REQUIRED, n_=REQUIRED, /, *extra, n=REQUIRED, stream=None,
    threads=None, **unknown):
        …  # what is given by name, as in `fastpath`
        anew = True
        try:
            anew = extra or unknown or T is not value0_
        except Exception:
            pass
        try:
            if anew:
                return launch_anew(kernel, None, {"A": A, "B": B, "n": n}, extra, unknown, None)
            W = part0(A, B, n, stream=stream, threads=threads)
            part1(A, B, n, W, stream=stream, threads=threads)
        except Exception as error:
            end(error)  # at who called
            raise

Arguments that are wrong, or missing, are for the first part to tell."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tilec.ir.caller import end_at_caller
from tilec.jit.captured import Reads
from tilec.jit.compiled import CompiledKernel
from tilec.jit.fastpath import LAUNCH_KEYWORDS, function_of, given_by_name, head_of
from tilec.jit.launchpath import Launchable, LaunchPath
from tilec.jit.recipe import Prepared
from tilec.jit.specialise import spec
from tilec.runtime.arguments import REQUIRED, Parameter
from tilec.runtime.expressions import evaluate


class Parts:
    """The kernels (`tilec.Kernel`) that a kernel of this signature is made of, in their order."""

    def __init__(self, signature: Any, kernels: Sequence[Any]) -> None:
        self.signature, self.kernels = signature, tuple(kernels)

    def launch(self, grid: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """A call: all launches, and what the kernel returns."""
        first, *others = self.kernels
        made = self._made(first[grid](*args, **kwargs) if grid else first(*args, **kwargs))
        given = self.given(args, kwargs)
        for kernel in others:
            kernel(**given, **made)
        values = tuple({**given, **made}[name] for name in self.signature.returns)
        return values[0] if len(values) == 1 else values or None

    @property
    def are_launched(self) -> bool:
        """Whether each has a launch path."""
        return all(k.has_path for k in self.kernels)

    def write_path(
        self, parameters: Sequence[Parameter], module: dict[str, Any], reads: Reads
    ) -> LaunchPath:
        """The function in the module's opening, and the one that takes the grid of the first
        part."""
        call, on_grid = (
            self._write_call(parameters, with_grid, module, reads) for with_grid in (False, True)
        )
        return LaunchPath(Prepared(0), call, on_grid)

    def _write_call(
        self, parameters: Sequence[Parameter], with_grid: bool, module: dict[str, Any], reads: Reads
    ) -> Callable[..., Any]:
        names = [p.name for p in parameters]
        tensors = [p.name for p in parameters if p.kind == "tensor"]
        others = [p for p in parameters if p.kind != "tensor"]
        keywords = [k for k in LAUNCH_KEYWORDS if k not in names]
        made = self.kernels[0].signature.returns
        test = reads.test(module, {"kernel_", *LAUNCH_KEYWORDS, *names, *made})
        given = ", ".join(f"{name!r}: {name}" for name in names)
        options = [f"{k}={k}" for k in keywords]
        grid = "grid_" if with_grid else "None"
        calls = [
            f"part{i}_{'[grid_]' if with_grid and not i else ''}"
            f"({', '.join([*(p.name for p in k.parameters), *options])})"
            for i, k in enumerate(self.kernels)
        ]
        if made:
            calls[0] = f"{', '.join(made)} = {calls[0]}"
        text = "\n".join(
            [
                head_of(parameters, keywords, with_grid),
                *given_by_name(tensors, others),
                "    new_ = True",
                "    try:",
                f"        new_ = extra_ or unknown_ or {test.text or False}",
                "    except Exception:",
                "        pass",
                "    try:",
                "        if new_:",
                f"            return anew_(kernel_, {grid}, {{{given}}}, extra_,"
                f" {{**unknown_, {', '.join(f'{k!r}: {k}' for k in keywords)}}}, None)",
                *(f"        {call}" for call in calls),
                "    except Exception as error_:",
                "        end_(error_)",
                "        raise",
                f"    return {', '.join(self.signature.returns) or None}",
            ]
        )
        known = {
            "REQUIRED": REQUIRED,
            "Exception": Exception,
            "end_": end_at_caller,
            "anew_": Launchable.launch_anew,
            **{f"default_{p.name}": p.default for p in parameters},
            **{f"part{i}_": k for i, k in enumerate(self.kernels)},
            **test.values,
            **test.cells,
        }
        called = f"the parts of {self.signature.name}{' with grid' if with_grid else ''}"
        return function_of(called, text + "\n", known, test.cells, module)

    def compile(
        self, args: Sequence[Any], target: str | None, kwargs: Mapping[str, Any]
    ) -> list[CompiledKernel]:
        """The variant of each for these arguments of `Kernel.compile`. Raises CompileError."""
        every = self.described(args, target, kwargs)
        return [k.variant(k.key_of(a, target, named)) for k, a, named in every]

    def described(
        self, args: Sequence[Any], target: str | None, kwargs: Mapping[str, Any]
    ) -> list[tuple[Any, Sequence[Any], Mapping[str, Any]]]:
        """Each kernel with its arguments of `Kernel.compile`: what the first allocates is described
        to the others. Raises CompileError."""
        first, *others = self.kernels
        variant = first.variant(first.key_of(args, target, kwargs))
        call = first.described(args, target, kwargs).call
        sizes = {**call.scalars, **call.sizes.values}
        made = {
            a.name: spec([_extent(e, sizes, a.name) for e in a.shape], a.dtype)
            for a in variant.image.arguments
            if a.output
        }
        facts = {**self.given(args, kwargs), **made}
        return [(first, args, kwargs), *((k, (), facts) for k in others)]

    def given(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments by name."""
        order = [p.name for p in self.kernels[0].parameters]
        return {**dict(zip(order, args)), **kwargs}

    def _made(self, returned: Any) -> dict[str, Any]:
        """What the first kernel has allocated, by name."""
        names = self.kernels[0].signature.returns
        values = returned if len(names) > 1 else (returned,) * len(names)
        return dict(zip(names, values))


def _extent(extent: int | str, sizes: Mapping[str, Any], name: str) -> int:
    return extent if isinstance(extent, int) else int(evaluate(extent, sizes, f"{name}.shape"))
