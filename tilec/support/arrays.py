"""Arrays that a kernel may ask for what is known when it is compiled."""

from __future__ import annotations

import sys

ASKED = frozenset({"shape", "dtype", "ndim"})


def is_array(value: object) -> bool:
    """Whether `value` is NumPy's array or torch's tensor, which nothing here imports."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    kinds = (getattr(numpy, "ndarray", ()), getattr(torch, "Tensor", ()))
    return isinstance(value, kinds)
