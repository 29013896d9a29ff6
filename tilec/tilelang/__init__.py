"""TileLang's spelling of tilec: `import tilec.tilelang as tilelang`.

Programs in TileLang's spelling run as tilec's kernels. Only spelling is translated: `T.prim_func`,
`tilelang.jit` and `tilelang.compile` make kernels of tilec, `T` is `tilec.language`, and what tilec
lacks raises tilec's own message. `install` lets files that say `import tilelang` run as they are,
and so does `python -m tilec.tilelang program.py`. Nothing else of tilec loads this package.
"""

import logging
from typing import Any

from tilec.language import ceildiv as cdiv
from tilec.tilelang import language, layout, math, profiler, tirx
from tilec.tilelang.absent import HERE, PACKAGES, Absent, AbsentName
from tilec.tilelang.autotuner import AutoTuner, autotune, set_autotune_inputs
from tilec.tilelang.dtypes import dtype as DataType  # noqa: N812 (their name)
from tilec.tilelang.hook import install
from tilec.tilelang.math import next_power_of_2
from tilec.tilelang.profiler import TensorSupplyType
from tilec.tilelang.programs import JITKernel, PassConfigKey, compile, jit, lower, par_compile

__all__ = [
    "AutoTuner", "DataType", "JITKernel", "PassConfigKey", "TensorSupplyType", "autotune", "cdiv",
    "compile", "disable_cache", "enable_cache", "install", "jit", "language", "layout", "lower",
    "math", "next_power_of_2", "par_compile", "profiler", "set_autotune_inputs", "set_log_level",
]  # fmt: skip

HERE |= {
    "AutoTuner": AutoTuner,
    "DataType": DataType,
    "PassConfigKey": PassConfigKey,
    "TensorSupplyType": TensorSupplyType,
    "get_tensor_supply": profiler.get_tensor_supply,
    "lower": lower,
    "tir": tirx,
    "tirx": tirx,
}


def enable_cache() -> None:
    """Nothing: TILEC_DISABLE_CACHE says whether compiled kernels are kept."""


def disable_cache() -> None:
    """Nothing: TILEC_DISABLE_CACHE says whether compiled kernels are kept."""


def set_log_level(level: str | int) -> None:
    """The level of the notes about options that mean nothing to tilec ("INFO" shows them)."""
    logging.getLogger("tilec.tilelang").setLevel(level)


def __getattr__(name: str) -> Any:
    if name not in PACKAGES:
        raise AttributeError(f"tilec.tilelang has no {name!r}", name=name)
    return (Absent if name in PACKAGES else AbsentName)(f"tilelang.{name}")
