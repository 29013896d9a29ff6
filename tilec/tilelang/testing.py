"""`tilelang.testing`: what TileLang's own tests import."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tilec.ir.errors import TilecError
from tilec.runtime.devices import default_target


def _on_cuda() -> bool:
    try:
        return str(default_target()).startswith("cuda")
    except TilecError:
        return False


def requires_cuda(test: Callable[..., Any]) -> Any:
    """Skip the test where there is no NVIDIA GPU."""
    return pytest.mark.skipif(not _on_cuda(), reason="no NVIDIA GPU")(test)


def set_random_seed(seed: int = 42) -> None:
    """Seed Python's and torch's generators."""
    import torch

    random.seed(seed)
    torch.manual_seed(seed)


def main() -> None:
    """Run the tests of the file that calls this."""
    sys.exit(pytest.main([sys._getframe(1).f_code.co_filename]))
