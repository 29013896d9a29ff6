"""Functions of floats on GPUs: what the hardware gives fast, made accurate.

A GPU has 2**x, 1/x and 1/sqrt(x) to about 2 ulp. Its fast logarithm is wrong near 1 and its fast
sine nearly everywhere, so those, tanh and erf are the polynomials that the CPU target uses too.
Against float64 the tests measure, in float32: exp, exp2, exp10, log, log2, log10, log1p, sqrt,
rsqrt, sin, cos, tan, tanh, erf, pow, atan2 within 2.5 ulp, sigmoid within 4. Results and operands
below 2**-126 may be taken as zero; sin, cos and tan give nan for |x| > 2**40. Narrower types are
computed in float32; float64 is in `tilec.codegen.gpu_doubles`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from tilec.codegen.cpu_elementary import FUNCTIONS
from tilec.codegen.gpu_doubles import GpuDoubles
from tilec.codegen.gpu_elementary import GpuElementary
from tilec.codegen.scalars import Scalars
from tilec.ir.llvm import Val, float_val
from tilec.ir.types import FLOAT64, DType


class GpuScalars(Scalars):
    """Scalars with functions; a vendor adds its fast forms."""

    fast_forms: Mapping[str, str]
    """LLVM's intrinsics. Of a float: 2 ** x to 2 ulp and 1 / x to 1 ulp, results below 2 ** -126
    may be zero; 1 / sqrt(x) to 2 ulp; the logarithm to base 2 to 2**-22 near 1, of what is below
    2 ** -126 as of 0; sine and cosine to 2**-20 from -pi to pi."""

    def fast(self, kind: str, x: Val) -> Val:
        """One of `fast_forms`."""
        return self.f.intrinsic("float", self.fast_forms[kind], [x])

    def elementary(self, dtype: DType) -> GpuElementary:
        """The functions of float32 or float64."""
        kind = GpuDoubles if dtype == FLOAT64 else GpuElementary
        return kind(self.f, True, self.fast)

    def unary_roughly(self, kind: str, x: Val) -> Val:
        """See Scalars."""
        if kind != "exp":
            return super().unary_roughly(kind, x)
        return self.fast("exp2", self.f.binary("fmul", x, math.log2(math.e)))

    def maths1(self, kind: str, x: Val, dtype: DType) -> Val:
        """See Scalars."""
        if dtype == FLOAT64 and kind == "rsqrt":
            return self.f.binary("fdiv", float_val(1.0, x.type), self.call("sqrt", x))
        if kind == "fast_tanh":  # a vendor that has one makes it before it comes here
            kind = "tanh"
        fast = kind == "rsqrt" or kind.startswith("fast_")
        if fast and dtype != FLOAT64:
            return self.fast(kind.removeprefix("fast_"), x)
        if kind not in FUNCTIONS:
            raise self.unsupported(kind, dtype)
        made: Val = getattr(self.elementary(dtype), kind)(x)
        return made

    def maths2(self, kind: str, a: Val, b: Val, dtype: DType) -> Val:
        """See Scalars."""
        if kind not in ("pow", "atan2"):
            raise self.unsupported(kind, dtype)
        elementary = self.elementary(dtype)
        return elementary.pow(a, b) if kind == "pow" else elementary.atan2(a, b)
