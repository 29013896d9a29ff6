"""`register`: a kernel as an operator of torch's own library.

What the operator knows of the kernel, torch's tracers need not look for: which arguments it writes
(its schema), what it returns for shapes alone (`tilec.torch.fake`), how its gradient is computed
(`tilec.torch.gradients`). A call goes through torch's dispatcher, and is then the kernel's own.
"""

from __future__ import annotations

import dataclasses
import importlib
import keyword
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from tilec.autotuning import Tuned
from tilec.ir.caller import caller_loc, for_users
from tilec.ir.errors import CompileError, LaunchError, TilecError, did_you_mean, shown
from tilec.jit.declared import constants_of, declared, refuse_untraced
from tilec.jit.launchpath import Sole, spread_grid
from tilec.kernel import Kernel, make_kernel
from tilec.torch import gradients
from tilec.torch.fake import fake_outputs
from tilec.torch.schema import Inputs, read_inputs, write_schema

_NAME = re.compile(r"[A-Za-z_]\w*::[A-Za-z_]\w*", re.ASCII)
_TORCHS = ("aten", "prim", "prims")  # libraries whose operators torch itself calls
_registered: dict[str, Operator] = {}


class Operator(Sole):
    """A kernel as an operator of torch: call it with tensors, also inside `torch.compile`.

    `name` is the operator's in `torch.ops`, `kernel` what it launches, `inputs` and `outputs` the
    names of what it takes and returns, `mutates` those it writes, `overload` torch's own object
    (for `torch.library.opcheck`, say). It is its own copy, and is pickled by name.
    """

    def __init__(
        self,
        name: str,
        kernel: Kernel | Tuned,
        inputs: Inputs,
        mutates: frozenset[str],
        grid: Any,
        module: str,
    ) -> None:
        self.name, self.mutates, self.module = name, mutates, module
        self.kernel = kernel.kernel if isinstance(kernel, Tuned) else kernel
        self._launched: Any = kernel
        self.inputs, self.outputs = inputs.names, tuple(self.kernel.signature.returns)
        self.parameters = inputs.parameters
        self._inputs, self._grid, self._checked = inputs, grid, set[Any]()
        schema = write_schema(inputs, mutates, len(self.outputs))
        made: Any = torch.library.custom_op(name, self._run, mutates_args=mutates, schema=schema)
        made.register_fake(self._fake)
        made.register_vmap(self._refuse_vmap)
        self._defined = made
        self.overload = made._opoverload

    def __repr__(self) -> str:
        return f"<operator {self.overload._schema}>"

    def __reduce__(self) -> tuple[Callable[[str, str], Operator], tuple[str, str]]:
        return _found, (self.module, self.name)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return self.overload(*args, **kwargs)
        try:
            if forward_ad._current_level >= 0:
                self._refuse_tangents(*args, *kwargs.values())
            return self.overload(*args, **kwargs)
        except Exception as e:
            error = e
        return self._raise(error)

    @for_users
    def _raise(self, error: Exception) -> None:
        """Raise what went wrong in a call, in tilec's words and at the user's line."""
        if isinstance(error, TilecError):
            error.loc = caller_loc() if isinstance(error, LaunchError) else error.loc
            raise error
        # torch's own, of arguments that do not fit the schema: nothing has run.
        message = str(error).partition("\n")[0]
        if message.startswith((f"{self.name}() ", "Unknown keyword argument")):
            raise LaunchError(message, hint=f"call it with ({', '.join(self.inputs)})")
        if message.startswith("In order to use an autograd.Function with functorch"):
            message = f"{self.name}: torch takes no operator of a library through torch.func"
            raise LaunchError(message, hint="use torch.autograd.grad, or backward()")
        raise error

    def _refuse_tangents(self, *given: object) -> None:
        """torch takes the derivative of a library's operator, forward, to be zero."""
        unpacked: Any = forward_ad.unpack_dual
        tensors = (x for x in given if isinstance(x, torch.Tensor))
        if any(unpacked(x).tangent is not None for x in tensors):
            message = f"{self.name} has no derivative forward (jvp, jacfwd, dual tensors)"
            raise LaunchError(message, hint="use torch.autograd.grad, or backward()")

    # --- what torch calls -----------------------------------------------------------------------

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        given = self._inputs.bind(args, kwargs)
        chosen = self._inputs.chosen(given)
        if chosen not in self._checked:
            self._check_written(given)
            self._checked.add(chosen)
        launched = self._launched
        if self._grid is not None:
            launched = launched[self._grid_for(given)]
        return launched(**given)

    def _grid_for(self, given: Mapping[str, Any]) -> Any:
        """The grid of this call: `grid` of `register` may be a function of all arguments."""
        if not callable(self._grid):
            return self._grid
        return lambda meta: spread_grid(self._grid, {**given, **meta})

    def _check_written(self, given: Mapping[str, Any]) -> None:
        """Refuse a kernel that writes what its operator does not say it writes: torch would take
        the old value for the new one."""
        if self.kernel.is_sequence:
            variants = self.kernel.parts.compile((), None, given)
        else:
            variants = [self.kernel.compile(**given)]
        made = {a.name for v in variants for a in v.image.arguments if a.output}
        written = {a.name for v in variants for a in v.image.arguments if a.written}
        self.refuse_unsaid(written - made)

    def refuse_unsaid(self, written: Iterable[str]) -> None:
        """Raise LaunchError if the kernel writes more than `mutates`."""
        unsaid = sorted(set(written) - self.mutates)
        if unsaid:
            both = [*sorted(self.mutates), *unsaid]
            raise LaunchError(
                f"{self.name}: the kernel writes {' and '.join(unsaid)}, which mutates does not "
                "name: torch would not see the change",
                hint=f"write mutates={both}, or out={unsaid} for what a call is to allocate",
            )

    def _fake(self, *args: Any, **kwargs: Any) -> Any:
        outputs = fake_outputs(self.kernel, self._inputs.bind(args, kwargs))
        return outputs[0] if len(outputs) == 1 else tuple(outputs) or None

    def _refuse_vmap(self, info: Any, in_dims: Any, *args: Any, **kwargs: Any) -> Any:
        raise LaunchError(
            f"{self.name} is one launch and cannot be taken over a batch by vmap",
            hint="give the kernel a dimension for the batch, or call it in a loop",
        )

    # --- gradients --------------------------------------------------------------------------------

    def differentiate(self, backward: Any, setup_context: Callable[..., Any] | None = None) -> None:
        """Let autograd compute gradients by `backward`; see `register`. Raises LaunchError."""
        if self.mutates:
            raise LaunchError(
                f"{self.name} writes {', '.join(sorted(self.mutates))}: autograd differentiates "
                "operators that return what they compute",
                hint="name the results in out=[…], and the call allocates them",
            )
        if isinstance(backward, Operator):
            if setup_context is not None:
                message = f"{self.name}: setup_context belongs to a backward that is a function"
                raise LaunchError(message, hint="leave it out: an operator takes what it names")
            formula = gradients.by_operator(self, backward)
        elif callable(backward):
            formula = backward, setup_context or gradients.saving_all(self.inputs)
        else:
            message = f"{self.name}: backward is {shown(backward)}"
            raise LaunchError(
                message, hint="pass a registered operator or a function of (ctx, *grads)"
            )
        self._defined.register_autograd(formula[0], setup_context=formula[1])


def _found(module: str, name: str) -> Operator:
    """The operator of that name, which importing `module` registers."""
    if name not in _registered and module != "__main__":
        importlib.import_module(module)
    if name not in _registered:
        raise LaunchError(
            f"the operator {name} is not registered in this process",
            hint=f"run what registers it first: tilec.torch.register(…) of {module}",
        )
    return _registered[name]


@for_users
def register(
    kernel: Kernel | Tuned,
    name: str | None = None,
    *,
    out: Sequence[str] | None = None,
    mutates: Sequence[str] | None = None,
    backward: Operator | Callable[..., Any] | None = None,
    setup_context: Callable[..., Any] | None = None,
    constants: Mapping[str, Any] | None = None,
    grid: Any = None,
) -> Operator:
    """Make an operator of torch's of a kernel.

    kernel         what `@tilec.kernel` made, or `@tilec.autotune`: then its compile-time parameters
                   are what is tuned, and no arguments of the operator.
    name           "library::name" in `torch.ops`; "tilec::" and the kernel's name without it.
    out            tensor parameters that a call allocates and returns, as in
                   `@tilec.kernel(out=…)`: their shapes follow from those of the arguments.
                   Without it, those of the kernel.
    mutates        tensor parameters that the kernel writes. Without it they are read from the
                   kernel; a kernel that writes others is refused.
    backward       the gradient: a registered operator, or a function `backward(ctx, *grads)` as
                   `torch.library.register_autograd` takes it. An operator is given by name what it
                   takes: arguments and results of the forward by their own names, the gradient of
                   the result `C` as `dC`, `d_C`, `grad_C` or `C_grad`; it returns gradients of
                   arguments under such names.
    setup_context  for a function: `setup_context(ctx, inputs, output)` keeps what it needs. Without
                   it `ctx.saved_tensors` are all tensors given, then all returned, and
                   `ctx.arguments` has the other arguments by name.
    constants      compile-time parameters that no call gives, with their values.
    grid           for a kernel that leaves its grid to the launch: a tuple, or a function of a
                   mapping of all arguments by name.

    Compile-time parameters with a default of int, float, bool or str are arguments of the operator;
    T.auto is an optional int. Raises LaunchError, and CompileError of the kernel itself.
    """
    tuned = kernel if isinstance(kernel, Tuned) else None
    if tuned is not None:
        kernel = tuned.kernel
    if not isinstance(kernel, Kernel):
        message = f"tilec.torch.register takes a kernel, not {shown(kernel)}"
        raise LaunchError(message, hint="put @tilec.kernel above the function")
    wanted = _names("mutates", mutates, kernel)
    if out is not None:
        names = _names("out", out, kernel)
        own = kernel.options.out
        if own and set(names) != set(own):
            message = f"{kernel.name} allocates {', '.join(own)} by its own decorator"
            raise LaunchError(message, hint="name outputs there or in register, not in both")
        if not own:
            kernel = make_kernel(kernel.function, dataclasses.replace(kernel.options, out=names))
    name = _checked_name(name or f"tilec::{kernel.name}", kernel)
    inputs = read_inputs(kernel.name, kernel.parameters, constants or {}, tuned is not None)
    written = _written(kernel, inputs, wanted if mutates is not None else None)
    _check_returns(kernel)
    launched = kernel if tuned is None else Tuned(kernel, tuned.options)
    module = _module_of_caller(kernel)
    operator = Operator(name, launched, inputs, frozenset(wanted) or written, grid, module)
    operator.refuse_unsaid(written)
    if backward is not None:
        operator.differentiate(backward, setup_context)
    _registered[name] = operator
    return operator


def _names(what: str, given: Any, kernel: Kernel) -> tuple[str, ...]:
    """`out` or `mutates` as a tuple of names of tensors. Raises LaunchError."""
    if given is None:
        return ()
    tensors = [p.name for p in kernel.signature.parameters if p.kind == "tensor"]
    if isinstance(given, str) or not isinstance(given, Iterable):
        named = [given] if isinstance(given, str) else tensors[-1:]
        message = f"{what} of tilec.torch.register is {shown(given)}, not a list of names"
        raise LaunchError(message, hint=f"write {what}={named!r}")
    for name in (names := tuple(given)):
        if name not in tensors:
            near = did_you_mean(str(name), tensors)
            message = f"{what} names {name!r}, which is no tensor of {kernel.name}{near}"
            raise LaunchError(message, hint=f"its tensors are {', '.join(tensors)}")
    return names


def _checked_name(name: Any, kernel: Kernel) -> str:
    """The operator's name, which no other kernel has. Raises LaunchError."""
    parts = name.split("::") if isinstance(name, str) and _NAME.fullmatch(name) else ()
    if not parts or parts[0] in _TORCHS or any(map(keyword.iskeyword, parts)):
        message = f"an operator cannot be called {shown(name)}"
        raise LaunchError(
            message, hint=f'write "mylib::{kernel.name}": a library, and a name in it'
        )
    other = _registered.get(name)
    if other is not None:
        same = other.kernel.function.__qualname__ == kernel.function.__qualname__
        local = "<locals>" in kernel.function.__qualname__
        again = other.kernel.function.__module__ == kernel.function.__module__
        if not (same and again) or local:  # a module that is read again, a notebook's cell
            message = f"{name} is an operator already, of the kernel {other.kernel.name}"
            raise LaunchError(message, hint=f'give this one a name: "mylib::{kernel.name}_2"')
    return str(name)


def _written(kernel: Kernel, inputs: Inputs, said: Sequence[str] | None) -> frozenset[str]:
    """The arguments that the kernel writes, read from its TILE form; where that cannot be traced
    before a call, those that were `said`."""
    constants = constants_of(kernel, inputs.fixed)
    try:
        return declared(kernel, constants).written
    except (CompileError, LaunchError) as e:
        if said is None:
            raise refuse_untraced(kernel.name, e) from None
        return frozenset(said)


def _check_returns(kernel: Kernel) -> None:
    signature = kernel.signature
    made = {*signature.allocated, *signature.options.out}
    given = [name for name in signature.returns if name not in made]
    if given:
        raise LaunchError(
            f"{kernel.name} returns its argument {given[0]}; an operator returns new tensors",
            hint="return what T.empty makes, or nothing",
        )


def _module_of_caller(kernel: Kernel) -> str:
    """The module that registers, by which the operator is found after unpickling."""
    frame = sys._getframe(1)
    while frame is not None and (frame.f_globals.get("__name__") or "").split(".")[0] in (
        "tilec",
        "torch",
    ):
        frame = frame.f_back  # type: ignore[assignment]
    found = None if frame is None else frame.f_globals.get("__name__")
    return str(found or kernel.function.__module__)
