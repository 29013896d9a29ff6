"""tilec: kernels written on tiles in Python, compiled for GPUs and for the CPU.

`@tilec.kernel` makes a kernel; its builtins are in `tilec.language`. Importing tilec loads neither
torch nor a driver nor LLVM.
"""

import importlib
from typing import TYPE_CHECKING, Any

from tilec.builtins import foreign
from tilec.decorator import kernel, recommend
from tilec.ir.errors import (
    BoundsWarning,
    CompileError,
    CompileWarning,
    InternalError,
    LaunchError,
    LayoutError,
    PerformanceWarning,
    ResourceError,
    TargetError,
    TilecError,
    did_you_mean,
)
from tilec.jit.compiled import CompiledKernel, load
from tilec.jit.specialise import spec
from tilec.kernel import Kernel
from tilec.runtime.driver import DriverError
from tilec.runtime.image import ImageError, Resources

if TYPE_CHECKING:
    from tilec import bench as bench
    from tilec import intrinsics as intrinsics
    from tilec import language as language
    from tilec import layout as layout
    from tilec import sparse as sparse
    from tilec import testing as testing
    from tilec import tilelang as tilelang
    from tilec import torch as torch
    from tilec.autotuning import autotune
    from tilec.jit.simulate import simulate
    from tilec.language import macro

__version__ = "0.1.0"

# Names from modules that load NumPy: the module is loaded when the name is first asked for.
_LATER = {
    "autotune": "tilec.autotuning",
    "macro": "tilec.language",
    "simulate": "tilec.jit.simulate",
}
# Modules for users, imported when they are first named: `tilec.layout` needs no import of its own.
_MODULES = ("bench", "intrinsics", "language", "layout", "sparse", "testing", "tilelang", "torch")

__all__ = [
    "BoundsWarning", "CompileWarning", "CompileError", "CompiledKernel", "DriverError",
    "ImageError", "InternalError", "Kernel", "LaunchError", "LayoutError", "PerformanceWarning",
    "ResourceError", "Resources", "TargetError", "TilecError", "autotune", "kernel", "load",
    "macro", "recommend", "simulate", "spec",
]  # fmt: skip


# What a user sees of a class is where it is imported from: in a traceback, a report, an editor.
for _name in __all__:
    if isinstance(globals().get(_name), type):
        globals()[_name].__module__ = __name__


def __dir__() -> list[str]:
    return sorted((*__all__, *_MODULES, "__version__"))


if not TYPE_CHECKING:  # a name that is none is an error of type checkers

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return importlib.import_module(f"tilec.{name}")
        if name not in _LATER:
            instead = foreign.advice(name)
            near = f"; {instead}" if instead else did_you_mean(name, [*__all__, *_MODULES])
            raise AttributeError(f"module 'tilec' has no attribute {name!r}{near}")
        value = globals()[name] = getattr(importlib.import_module(_LATER[name]), name)
        return value
