"""What every test has: its own cache folder, seeded random numbers, and a word for tests that need
a GPU."""

from __future__ import annotations

import ctypes
import functools
import os
import zlib

import numpy as np
import pytest

try:
    from hypothesis import settings
except ImportError:  # the `test` extra is not installed: the tests that need it skip themselves
    settings = None

if settings is not None:
    settings.register_profile("tilec", deadline=None, derandomize=True, max_examples=50)
    settings.load_profile("tilec")


@functools.cache
def cuda_devices() -> int:
    """How many NVIDIA GPUs the driver shows; 0 where there is no driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests marked `gpu` where there is none."""
    if any(item.get_closest_marker("gpu") for item in items) and cuda_devices() == 0:
        skip = pytest.mark.skip(reason="needs an NVIDIA GPU")
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(skip)


@pytest.fixture(autouse=True, scope="session")
def _own_environment(tmp_path_factory: pytest.TempPathFactory):
    """No test reads or fills the user's cache, or sees his TILEC_ variables."""
    kept = {name: value for name, value in os.environ.items() if name.startswith("TILEC_")}
    for name in kept:
        if name != "TILEC_PTXAS":
            del os.environ[name]
    os.environ["TILEC_CACHE_DIR"] = str(tmp_path_factory.mktemp("cache"))
    yield
    del os.environ["TILEC_CACHE_DIR"]
    os.environ.update(kept)


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers that differ from test to test and are the same in every run."""
    return np.random.default_rng(zlib.crc32(request.node.nodeid.encode()))
