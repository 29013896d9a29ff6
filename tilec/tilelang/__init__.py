"""TileLang's spelling of tilec: `import tilec.tilelang as tilelang`.

Programs in TileLang's spelling run as tilec's kernels. Only spelling is translated: `T.prim_func`,
`tilelang.jit` and `tilelang.compile` make kernels of tilec, `T` is `tilec.language`, and what tilec
lacks raises tilec's own message. `install` lets files that say `import tilelang` run as they are,
and so does `python -m tilec.tilelang program.py`. Nothing else of tilec loads this package.
"""

from tilec.language import ceildiv as cdiv
from tilec.tilelang import language, layout, math, profiler, tvm
from tilec.tilelang.hook import install
from tilec.tilelang.math import next_power_of_2
from tilec.tilelang.programs import JITKernel, PassConfigKey, autotune, compile, jit

__all__ = [
    "JITKernel",
    "PassConfigKey",
    "autotune",
    "cdiv",
    "compile",
    "disable_cache",
    "enable_cache",
    "install",
    "jit",
    "language",
    "layout",
    "math",
    "next_power_of_2",
    "profiler",
    "tvm",
]


def enable_cache() -> None:
    """Nothing: TILEC_DISABLE_CACHE says whether compiled kernels are kept."""


def disable_cache() -> None:
    """Nothing: TILEC_DISABLE_CACHE says whether compiled kernels are kept."""
