"""The kinds of array that a kernel is called with: functions that give a NumPy array its other
form, for `pytest.mark.parametrize`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest


def from_torch(array: np.ndarray) -> Any:
    """The array as a torch tensor in the same memory."""
    import torch

    return torch.from_numpy(array)


KINDS = [
    pytest.param(np.asarray, id="numpy"),
    pytest.param(from_torch, id="torch", marks=pytest.mark.torch),
]
