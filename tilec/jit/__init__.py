"""From a decorated function to launches: what `tilec.kernel` is made of.

specialise         the facts that a call's arguments give
choose             the compile-time arguments and the plan that a call leaves open
captured           what a kernel's names stand for, and whether that has changed
fingerprint        values as text, for keys
revision           the kernel under the values that its names have at one time
disk               the cache on disk
build              tracing, passes, code generation, assembly
collector          Python's collector of cycles stands still meanwhile
attempts           machine code for one plan after another
compiled, export   what they make
stages             the stages as text and files
launchpath, fastpath, recipe   launches that were made before
packing, packer    operands that are copied first, and the kernel that does it
"""

import sys
import types
from typing import NoReturn

from tilec.ir.caller import caller_loc
from tilec.ir.errors import CompileError


class _NoDecorator(types.ModuleType):
    """This package, for those who know `@triton.jit` and `@tilelang.jit` and write `@tilec.jit`."""

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        raise CompileError("tilec.jit is no decorator", caller_loc(), "write @tilec.kernel")


sys.modules[__name__].__class__ = _NoDecorator
