"""The drivers of this process, each started when it is first asked for."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from typing import Any

from tilec.ir.errors import LaunchError, TargetError, shown
from tilec.runtime.cuda import CudaDriver
from tilec.runtime.driver import Driver, DriverError
from tilec.runtime.gpu import GpuDriver
from tilec.runtime.hip import HipDriver
from tilec.support.lazy import Lazy
from tilec.target import TARGETS, find_target

cpu = Lazy("tilec.runtime.cpu")  # loads LLVM

_STARTERS: dict[str, Callable[[], Driver]] = {
    "cuda": CudaDriver,
    "hip": HipDriver,
    "cpu": lambda: cpu.CpuDriver(),
}
_drivers: dict[str, Driver] = {}
_lock = threading.Lock()


def driver(kind: str) -> Driver:
    """The driver of "cuda", "hip" or "cpu". Raises DriverError where there is none."""
    found = _drivers.get(kind)
    if found is None:
        with _lock:
            found = _drivers.get(kind) or _STARTERS[kind]()
            _drivers[kind] = found
    return found


@functools.cache
def device_target(kind: str, index: int) -> str:
    """The target that this device runs; asked of the driver once."""
    return driver(kind).target_of(index)


def blocks_at_once(target: str) -> int:
    """How many blocks that fill a multiprocessor surely run at once: on three quarters of those
    that the target's GPUs have, as there are smaller ones of a kind, and of those of each GPU of
    this machine that runs the target, if its driver was asked for before."""
    kind, most = target.partition(":")[0], find_target(target).multiprocessors
    return (_fewest(kind, target, most) if kind in _drivers else most) * 3 // 4


@functools.cache
def _fewest(kind: str, target: str, most: int) -> int:
    found = _drivers[kind]
    if not isinstance(found, GpuDriver):
        return most
    try:
        here = [i for i in range(found.device_count) if device_target(kind, i) == target]
        return min([most, *map(found.multiprocessors, here)])
    except (DriverError, TargetError):  # in a process that was forked, say
        return most


def cuda_device_of(pointer: int) -> int:
    """The ordinal of the CUDA device whose memory holds `pointer`; 0 where no driver can tell."""
    try:
        found = driver("cuda")
    except DriverError:
        return 0
    return found.device_of(pointer) if isinstance(found, CudaDriver) else 0


def default_target() -> str:
    """What specifications without a device are compiled for: TILEC_TARGET, else the GPU found,
    else "cpu"."""
    chosen = os.environ.get("TILEC_TARGET", "")
    if chosen:
        return _target_asked_for(chosen)
    for kind in ("cuda", "hip"):
        try:
            return device_target(kind, 0)
        except DriverError:
            continue
    return "cpu"


def _target_asked_for(chosen: str) -> str:
    """The target that TILEC_TARGET names. Raises TargetError, DriverError."""
    try:
        return resolve_target(chosen)
    except TargetError as e:
        hint = f"set TILEC_TARGET to one of {', '.join((*TARGETS, 'cuda', 'hip'))}, or unset it"
        raise TargetError(f"TILEC_TARGET: {e.message}", hint=hint) from None


def named_place(target: object, device: object) -> tuple[str, int]:
    """Where a launch runs whose arguments are on no device: on `device` ("cpu", "cuda:1", a torch
    device), else on the first one of `target`, else of TILEC_TARGET, else on the CPU.

    Raises LaunchError for another device or one that does not run `target`, TargetError and
    DriverError.
    """
    asked: Any = target
    if target is None and device is None and (chosen := os.environ.get("TILEC_TARGET")):
        asked = _target_asked_for(chosen)
    elif target is None and device is None:
        asked = "cpu"
    wanted = None if asked is None else resolve_target(asked)
    text = str(device) if device is not None else (wanted or "cpu").split(":")[0]
    kind, _, number = text.partition(":")
    if kind not in _STARTERS or not (number or "0").isdecimal():
        hint = 'write device="cpu" or device="cuda:0"'
        raise LaunchError(f"device is {shown(device)}, which is none that tilec knows", hint=hint)
    index = int(number or 0)
    runs = "cpu" if kind == "cpu" else device_target(kind, index)
    if wanted is not None and runs != wanted:
        message = f"the device {text} runs {runs}, not {wanted}"
        raise LaunchError(message, hint="leave target or device out")
    return kind, index


def resolve_target(name: str) -> str:
    """A target's full name: "cuda" and "hip" mean the device found.

    Raises TargetError for an unknown name, DriverError for "cuda" or "hip" without a device.
    """
    if isinstance(name, str) and name in ("cuda", "hip"):
        return device_target(name, 0)
    return find_target(name).name
