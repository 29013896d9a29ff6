"""What programs ask of the machine before they choose how to compute: `tilelang.contrib.nvcc`, and
the checks of `tilelang.cuda.target` and `tilelang.rocm.target`."""

from __future__ import annotations

import re

from tilec.runtime.devices import default_target


def get_target_compute_version(target: object = None) -> str:
    """The compute capability of a target, or of this machine's GPU: "9.0". Without one it is that
    of `cuda:sm_80`, as every CUDA target computes what it does."""
    found = re.search(r"sm_(\d+)(\d)", str(target or default_target()))
    return f"{found[1]}.{found[2]}" if found else "8.0"


def determine_target(target: object = "auto", return_object: bool = False) -> str:
    """A target as text, "auto" as the one that kernels are compiled for where nothing else is
    said."""
    return default_target() if target in ("auto", None) else str(target)


def parse_compute_version(compute_version: str) -> tuple[int, int]:
    """(major, minor) of a compute capability."""
    major, _, minor = compute_version.partition(".")
    return int(major), int(minor or 0)


def have_tma(target: object = None) -> bool:
    """Whether a target has TMA."""
    return parse_compute_version(get_target_compute_version(target)) >= (9, 0)


def check_cuda_availability() -> bool:
    """Whether kernels run on an NVIDIA GPU where nothing else is said."""
    return default_target().startswith("cuda")


def check_hip_availability() -> bool:
    """Whether kernels run on an AMD GPU where nothing else is said."""
    return default_target().startswith("hip")
