"""Functions of float32 as the hardware gives them: one or two instructions, and a part of the
range in which they are exact. In a kernel alone.

NVIDIA's are `ex2`, `lg2`, `sin`, `cos` and `rcp.approx.ftz`, whose errors are those of the PTX ISA
("Floating Point Instructions"), AMD's `v_exp`, `v_log`, `v_sin`, `v_cos` and `v_rcp_f32`; the CPU
has no faster forms than `T.exp` and its like, and takes those. Halves are computed in float32.
Numbers below 2**-126 count as 0. Raises CompileError for float64.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "__cos", "__exp", "__exp10", "__log", "__log10", "__log2", "__pow", "__sin", "__tan",
    "__tanh", "fast_rcp",
]  # fmt: skip


def __exp(x: Any) -> Any:
    """`exp(x)`, CUDA's `__expf`. At most 2 + |x| ulp on GPUs, those of `T.exp` on the CPU."""


def __exp10(x: Any) -> Any:
    """`10**x`, CUDA's `__exp10f`. At most 2 + 3 * |x| ulp on GPUs, those of `T.exp10` on the
    CPU."""


def __log(x: Any) -> Any:
    """`log(x)`, CUDA's `__logf`. Off by at most 2**-21 where `x` is from 0.5 to 2, by 4 ulp
    elsewhere on GPUs."""


def __log2(x: Any) -> Any:
    """`log2(x)`, CUDA's `__log2f`. Off by at most 2**-21 where `x` is from 0.5 to 2, by 4 ulp
    elsewhere on GPUs."""


def __log10(x: Any) -> Any:
    """`log10(x)`, CUDA's `__log10f`. Off by at most 2**-21 where `x` is from 0.5 to 2, by 4 ulp
    elsewhere on GPUs."""


def __sin(x: Any) -> Any:
    """`sin(x)`, CUDA's `__sinf`. Off by at most 2**-20 where `x` is from -pi to pi; beyond, the
    error grows with `x`."""


def __cos(x: Any) -> Any:
    """`cos(x)`, CUDA's `__cosf`. Off by at most 2**-20 where `x` is from -pi to pi; beyond, the
    error grows with `x`."""


def __tan(x: Any) -> Any:
    """`__sin(x) / __cos(x)`, CUDA's `__tanf`. Where the cosine is `c`, off by at most 2**-19 / c**2
    for `x` from -pi to pi."""


def __tanh(x: Any) -> Any:
    """`tanh(x)`, CUDA's `__tanhf`. Off by at most 2**-10.9 of it on NVIDIA's GPUs; elsewhere
    it is `T.tanh`."""


def __pow(x: Any, y: Any) -> Any:
    """`x**y` of a positive `x` as 2 to the power `y * log2(x)`, CUDA's `__powf`. Its relative error
    is at most 2**-21 * (1 + |y| * (1 + |log2(x)|)); nan where `x` is negative."""


def fast_rcp(x: Any) -> Any:
    """`1 / x`. At most 1 ulp."""
