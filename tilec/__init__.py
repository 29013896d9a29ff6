"""tilec: kernels written on tiles in Python, compiled for GPUs and for the CPU.

`@tilec.kernel` makes a kernel; its words are in `tilec.language`. Importing tilec loads neither
torch nor a driver nor LLVM.
"""

from tilec.compiled import CompiledKernel, load
from tilec.ir.errors import (
    CompileError,
    InternalError,
    LaunchError,
    LayoutError,
    ResourceError,
    TilecError,
)
from tilec.kernel import Kernel, kernel
from tilec.language import macro
from tilec.runtime.driver import DriverError
from tilec.runtime.image import ImageError, Resources
from tilec.specialise import spec
from tilec.target import TargetError

__version__ = "0.1.0"

__all__ = [
    "CompileError",
    "CompiledKernel",
    "DriverError",
    "ImageError",
    "InternalError",
    "Kernel",
    "LaunchError",
    "LayoutError",
    "ResourceError",
    "Resources",
    "TargetError",
    "TilecError",
    "kernel",
    "load",
    "macro",
    "spec",
]
