"""The front end: from the user's Python to TILE IR.

    read_signature(pyfunc)            what the kernel takes      (once per decorated function)
    trace(signature, specialisation)  the kernel as a `Func`     (once per variant)

A kernel's source is interpreted, never executed: `source` finds the syntax tree, and one class,
built up file by file, walks it: `context` (builders, names, places) < `arithmetic` < `memory`
(buffers and regions) < `operators` < `containers` < `expressions` < `functions` (macros, what is
the user's) < `calls` < `branches` < `loops` < `for_loops` < `statements` < `parameters` < `tracer`
(the kernel's own level). What a builtin of `tilec.language` means stands in one function of
`builtins`. Plain functions on known values are the exception: they run as Python
(`plain_python`). Python variables that run-time control flow changes become carried SSA values;
everything that is known at compile time stays a Python value, and a condition known at compile time
is decided here."""

import importlib
from typing import TYPE_CHECKING, Any

from tilec.frontend.signature import (
    REQUIRED,
    Parameter,
    Signature,
    bind_constants,
    optional_tensors,
    read_signature,
)

if TYPE_CHECKING:
    from tilec.frontend.parameters import Specialisation, TensorFact
    from tilec.frontend.recovery import Forms
    from tilec.frontend.tracer import trace

__all__ = [
    "REQUIRED", "Forms", "Parameter", "Signature", "Specialisation", "TensorFact", "bind_constants",
    "optional_tensors", "read_signature", "trace",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    # A launch of a kernel from the disk cache reads its signature and traces nothing.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = {"Forms": "recovery", "trace": "tracer"}.get(name, "parameters")
    return getattr(importlib.import_module(f"tilec.frontend.{module}"), name)
