"""`python -m pytest --on-gpu`: what tests simulate without a finding runs on the GPU here, too.

The GPU gets the arrays as they were before, each in the place of its memory that it has here. What
it leaves is compared with what the simulator left, whole numbers exactly and others by their norm,
and with what the launches after it leave. A kernel that does not end takes its process with it:
pytest names the test that was running.
"""

from __future__ import annotations

import ctypes
import os
import time
from typing import Any
from unittest import mock

import apart
import numpy as np
import pytest

import tilec
import tilec.jit.simulate
from tilec.kernel import Kernel, kernel_in

MARK = "launched on the GPU"
LAUNCHES = 4
SECONDS = 20
"""What a launch may take."""
ALLOWED = {"float64": 1e-6, "float32": 1e-3, "float16": 4e-3, "bfloat16": 2e-2}
"""Norm of the differences over that of the numbers, 0.1 for narrower ones: approximations of
exponentials, sums in another order."""
LEFT_OUT = (
    "test_address_tables.py",  # addresses of the host's
    "test_atomic_races.py",
    "test_barrier_mutants.py",
    "test_device_assert.py",
    "test_odd_values.py",  # places of errors, which would be here
    "test_sim_global.py::test_a_view_over_8_gib",
    "test_simulate.py::test_prints",
    "test_unassembled.py",
)
"""Tests whose arrays hold addresses or reach too far, whose kernels are changed, or that look at
what a run has said."""
FIRST_COME = (
    "test_atomic_cas.py::test_one_thread_wins",
    "test_atomics.py::test_previous_values",
    "test_combine_atomics.py::test_conditions_of_threads",
    "test_mixed_words.py::test_numbers[four_halves_at_once",
    "test_owners.py::test_atomics_and_what_counters_give_out",
)
"""Tests whose numbers tell which thread came first."""
ANY_ORDER = (
    "test_collect_atomics.py",
    "test_combine_atomics.py",
    "test_simulate_programs.py::test_example[split_k",
    "test_mixed_words.py::test_numbers[tiles_by_atomics",
    "test_whole_loop_places.py::test_an_index_that_is_read",
    "test_whole_loop_truths.py::test_numbers[shared_sums",
)
"""Tests whose sums are added up in any order."""

_simulate = tilec.jit.simulate.simulate
_test: pytest.Item | None = None


def pytest_runtest_setup(item: pytest.Item) -> None:
    global _test
    _test = item
    called = _simulate if _is_of(LEFT_OUT) else simulate
    tilec.simulate = tilec.jit.simulate.simulate = called


def pytest_terminal_summary(terminalreporter: Any) -> None:
    tests = terminalreporter.stats.get("passed", [])
    count = sum(name == MARK for test in tests for name, _ in test.user_properties)
    terminalreporter.write_line(f"on the GPU: {count} times {LAUNCHES} launches")


def _is_of(tests: tuple[str, ...]) -> bool:
    return _test is not None and _test.nodeid.removeprefix("tests/").startswith(tests)


def simulate(kernel: Any, *args: Any, grid: Any = None, target: str = "cuda:sm_90a", **given: Any):
    """tilec.simulate, and the launch."""
    meta = {name: v for name, v in given.items() if name not in tilec.jit.simulate.OPTIONS}
    memory = None
    if str(target).startswith("cuda") and not {"blocks", "trace", "on_change"} & {*given}:
        if not _is_of(FIRST_COME):
            memory = _memory((args, meta))
    report = _simulate(kernel, *args, grid=grid, target=target, **given)
    if memory is None or not report.ok:
        return report
    whole = mock.patch.multiple(apart.wanted, everything=False, simulated=False)
    cache = mock.patch.dict(os.environ, TILEC_CACHE_DIR=os.environ["TILEC_CACHE_DIR"] + "/gpu")
    with whole, cache:
        _compare(kernel_in(kernel), grid, memory, (args, meta), [*report.outputs.values()])
    if _test is not None:
        _test.user_properties.append((MARK, kernel_in(kernel).name))
    return report


class Memory:
    """Copies on the GPU of the memory that arrays lie in."""

    def __init__(self, values: Any) -> None:
        self._copies: dict[int, Any] = {}
        for array in _arrays(values):
            address, size, _ = _place(array)
            here = bytearray(ctypes.string_at(address, size)) or bytearray(1)
            self._copies[address] = _torch().frombuffer(here, dtype=_torch().uint8).cuda()

    def arrays(self, values: Any) -> Any:
        """`values` with their arrays in new copies of that memory."""
        copies = {address: copy.clone() for address, copy in self._copies.items()}

        def moved(value: Any) -> Any:
            if not _is_array(value):
                return value
            address, size, at = _place(value)
            end = at + (size - at) // value.itemsize * value.itemsize
            dtype = getattr(_torch(), str(value.dtype).removeprefix("torch."))
            strides = value.stride() if hasattr(value, "stride") else _steps(value)
            return copies[address][at:end].view(dtype).as_strided(value.shape, strides)

        return _torch().utils._pytree.tree_map(moved, values)


def _memory(values: Any) -> Memory | None:
    """None without arrays, and for those that torch has none of: of steps back, of parts of a
    number."""
    try:
        return Memory(values) if _arrays(values) else None
    except NotImplementedError:
        return None


def _place(array: Any) -> tuple[int, int, int]:
    """Address and size of the memory that an array lies in, and where in it, in bytes."""
    if not isinstance(array, np.ndarray):
        if array.device.type != "cpu" or array.requires_grad:
            raise NotImplementedError(array.device)
        storage = array.untyped_storage()
        return storage.data_ptr(), storage.nbytes(), array.storage_offset() * array.itemsize
    _steps(array)
    owner = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    size = sum((n - 1) * s * owner.itemsize for n, s in zip(owner.shape, _steps(owner)))
    start = owner.ctypes.data
    return start, size + owner.itemsize if owner.size else 0, array.ctypes.data - start


def _steps(array: np.ndarray) -> list[int]:
    if any(s < 0 or s % array.itemsize for s in array.strides):
        raise NotImplementedError(array.strides)
    return [s // array.itemsize for s in array.strides]


def _compare(kernel: Kernel, grid: Any, memory: Memory, given: Any, outputs: list[Any]) -> None:
    first: list[bytes] = []
    for launch in range(LAUNCHES):
        arrays = memory.arrays(given)
        made = _launched(kernel, grid, arrays)
        left = [a.detach().cpu().contiguous() for a in _arrays((arrays, made))]
        last = outputs[len(outputs) - len(_arrays(made)) :]  # before: what is between launches
        for i, (got, want) in enumerate(zip(left, _arrays((given, last)))):
            wrong = "" if launch else _difference(got, want)
            assert not wrong, f"{kernel.name} on the GPU, array {i}: {wrong}"
        whole = [a.clone(memory_format=_torch().contiguous_format) for a in left]
        found = [bytes(a.untyped_storage()) for a in whole]
        first = first or found
        same = found == first or _is_of(ANY_ORDER)
        assert same, f"{kernel.name} on the GPU: launch {launch} is not as the first"


def _launched(kernel: Kernel, grid: Any, given: Any) -> Any:
    """What a launch made; waited for."""
    made = kernel._launch(grid, *given)
    done = _torch().cuda.Event()
    done.record()
    end = time.monotonic() + SECONDS
    while not done.query():
        if time.monotonic() > end:
            os.write(2, f"{kernel.name} does not end\n".encode())
            os._exit(17)
        time.sleep(0.0002)
    return made


def _difference(got: Any, want: Any) -> str:
    """What is wrong with what the GPU left, "" for nothing."""
    if not got.dtype.is_floating_point:
        differ = int((got.numpy() != np.asarray(want)).sum())
        return f"{differ} of {got.numel()} numbers differ" if differ else ""
    dtype = str(got.dtype).removeprefix("torch.")
    a = got.double().numpy()
    b = want.astype(np.float64) if isinstance(want, np.ndarray) else want.double().numpy()
    finite = np.isfinite(b)
    if (
        not np.array_equal(a[~finite], b[~finite], equal_nan=True)
        or not np.isfinite(a[finite]).all()
    ):
        return "other numbers are not finite"
    norm = np.linalg.norm(b[finite]) or 1
    error = float(np.linalg.norm(a[finite] - b[finite]) / norm)
    return f"the norm of the differences is {error:.2g}" if error > ALLOWED.get(dtype, 0.1) else ""


def _arrays(values: Any) -> list[Any]:
    return [x for x in _torch().utils._pytree.tree_leaves(values) if _is_array(x)]


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray | _torch().Tensor)


def _torch() -> Any:
    import torch
    import torch.utils._pytree

    return torch
