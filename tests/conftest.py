"""What every test has: its own cache folder, seeded random numbers, and a word for tests that need
a GPU."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import importlib.util
import os
import shutil
import signal
import tempfile
import weakref
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import apart
import numpy as np
import pytest
from assembled_once import Once
from covering import leave_out
from small_process import ALONE, MODULE, SmallProcess

from tilec.codegen import ptxas
from tilec.jit.choose import Choices
from tilec.kernel import Kernel
from tilec.support.tools import find_ptxas

try:
    from hypothesis import settings
except ImportError:  # the `test` extra is not installed: the tests that need it skip themselves
    settings = None

if settings is not None:
    settings.register_profile("tilec", deadline=None, derandomize=True, max_examples=50)
    settings.load_profile("tilec")
    # Hypothesis draws numbers of the sources that a process has loaded, too. Which ones these are
    # differs from worker to worker, so that no run were like another; to read a thousand files, as
    # where nothing of it is kept, takes 4 s of each.
    with contextlib.suppress(ImportError):
        from hypothesis.internal.conjecture import providers

        if hasattr(providers, "_get_local_constants"):
            providers._get_local_constants = lambda: providers._local_constants


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


def pytest_sessionstart(session: pytest.Session) -> None:
    """Before modules are read, which makes this process large, and which import these."""
    config = session.config
    if config.getoption("numprocesses", None):
        return  # the workers do it
    if hasattr(config, "workerinput"):
        folder = Path(config.option.basetemp).parent / "assembled"
    else:
        folder = Path(tempfile.mkdtemp())
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    usual, here = find_ptxas(), MODULE
    ptxas.run_ptxas = Once(ptxas.run_ptxas, folder, lambda found, *_: found != usual)
    here.run_ptxas = ptxas.run_ptxas
    if hasattr(os, "fork"):
        small = SmallProcess(whole=config.option.every_cell)
        here._made = Once(small.made, folder, lambda *_: small.replaced())
        config.add_cleanup(small.end)


@pytest.fixture
def assembled_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of LLVM's work itself: it is done here, and each time."""
    monkeypatch.setattr(MODULE, "_made", ALONE)


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--on-gpu", action="store_true", help="launch what is simulated, see on_gpu")
    parser.addoption("--every-cell", action="store_true", help="whole matrices, see covering")


def pytest_configure(config: pytest.Config) -> None:
    """Passes and interpreters make many objects that live shortly: to look for cycles after every
    700 of them, among thousands of tests that stay, takes a seventh of the time, and after every
    100,000 a twentieth; of the collection of the tests, all of which stay, it takes a third. What
    kernels keep goes without, see `_kept`."""
    gc.set_threshold(1_000_000, 20, 20)
    config.pluginmanager.register(_Cells)
    if config.getoption("--on-gpu"):
        import on_gpu

        config.pluginmanager.register(on_gpu)


MARKED = {"torch": ("torch", "array_kinds"), "gpu": ("gpu",)}
"""Marks, and words of which a file with a test that is marked so has one."""


@functools.cache
def _may_be_marked(file: Path, mark: str) -> bool:
    text = file.read_text()
    return any(word in text for word in MARKED[mark])


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`-m torch` and `-m gpu` read no file that has no such test."""
    mark = config.option.markexpr
    if mark in MARKED and collection_path.match("test_*.py"):
        return not _may_be_marked(collection_path, mark) or None
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that take `torch` or are in a module that does, before `-m torch` chooses.
    Skip those marked `torch` or `gpu` where there is none."""
    for item in items:
        if "torch" in getattr(item, "fixturenames", ()) or hasattr(item.module, "torch"):
            item.add_marker("torch")
        for mark in MARKED:
            if item.get_closest_marker(mark) and not _may_be_marked(item.path, mark):
                message = f"{item.nodeid} is marked {mark}: name in conftest.MARKED what says so"
                raise pytest.UsageError(message)
    if importlib.util.find_spec("torch") is None:
        _skip(items, "torch", "needs torch")
    if any(item.get_closest_marker("gpu") for item in items) and cuda_devices() == 0:
        _skip(items, "gpu", "needs an NVIDIA GPU")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Each worker reads all modules of a folder that it is asked for, and begins with its share of
    them: the others' bytecode, with what pytest makes of assertions, is there when it comes to
    them, which are two thirds of what it takes to read them."""
    report = yield
    worker = getattr(collector.config, "workerinput", None)
    if worker and str(collector.path) in map(os.path.abspath, collector.config.args):
        modules = [x for x in report.result if isinstance(x, pytest.Module)]
        for module in modules[int(worker["workerid"][2:]) :: worker["workercount"]]:
            with contextlib.suppress(Exception, pytest.skip.Exception):  # told where collected
                _ = module.obj
    return report


class _Cells:
    """Behind `-k` and `-m`: of what these choose, each value has its cell."""

    @staticmethod
    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
        leave_out(config, items)


def _skip(items: list[pytest.Item], mark: str, reason: str) -> None:
    for item in items:
        if item.get_closest_marker(mark):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def torch() -> Any:
    """The module, for a test that needs it."""
    return pytest.importorskip("torch")


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


@pytest.fixture(autouse=True, scope="session")
def _interrupts():
    """A run in the background is started with SIGINT ignored, and so would be what it starts."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers that differ from test to test and are the same in every run."""
    return np.random.default_rng(zlib.crc32(request.node.nodeid.encode()))


@pytest.fixture
def unassembled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of numbers and of what passes make: code for GPUs is read and verified by LLVM, and
    nobody asks what ptxas or LLVM's code generator says of it, which takes half of the time of a
    compilation. The stages that LLVM writes are there for who reads them. Tests that run on a GPU
    are as they were."""
    if not request.node.get_closest_marker("gpu"):
        monkeypatch.setattr(apart.wanted, "everything", True)
        monkeypatch.setenv("TILEC_CACHE_DIR", apart.folder())


@pytest.fixture
def assembled() -> None:
    """For tests of what the simulator says of machine code."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """What only the simulator runs is not assembled either, but in every fourth test: what a kernel
    that a test compiles becomes is that test's matter. (A fixture of each test takes longer.)"""
    whole = {"assembled", "unassembled"} & {*getattr(item, "fixturenames", ())}
    apart.wanted.simulated = not whole and bool(zlib.crc32(item.nodeid.encode()) % 4)
    try:
        return (yield)
    finally:
        apart.wanted.simulated = False


_kernels: weakref.WeakSet[Kernel] = weakref.WeakSet()
_init = Kernel.__init__


def _noted(self: Kernel, *args: Any, **kwargs: Any) -> None:
    _init(self, *args, **kwargs)
    _kernels.add(self)


Kernel.__init__ = _noted  # type: ignore[method-assign]


@pytest.fixture(autouse=True, scope="module")
def _kept() -> Iterator[None]:
    """What kernels keep of their compilation goes with the module that has asked for it: together
    it is gigabytes. What is left lives until the end of the session."""
    yield
    for kernel in list(_kernels):
        kernel._variants.clear()
        kernel.choices = Choices(kernel._chosen)
        for revision in kernel._revisions.values():
            revision.forget_launches()
    gc.collect()
    gc.freeze()
