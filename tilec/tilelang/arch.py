"""`tilelang.carver.arch`: the number of multiprocessors, which persistent kernels ask for."""

from __future__ import annotations

from typing import Any

from tilec.runtime.devices import default_target
from tilec.target import find_target
from tilec.tilelang.absent import AbsentName


class driver:  # TileLang's name, a module there
    @staticmethod
    def get_num_sms(device: int = 0) -> int:
        """The multiprocessors that the target of this machine has; of GPUs that are all alike."""
        del device
        return find_target(default_target()).multiprocessors


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return AbsentName(f"tilelang.carver.arch.{name}")
