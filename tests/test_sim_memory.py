"""The simulator's memory: values of every type and width, bounds, alignment, strides, tensors that
blocks share."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from sim_accesses import Block, buffer, numbers, tensor
from test_lowering import matmul_text

from tilec.codegen import emit_records
from tilec.ir.parser import parse_func
from tilec.sim.buffers import SharedBuffer, SharedPlaces, shared_buffers
from tilec.sim.clocks import Clocks
from tilec.sim.findings import Findings
from tilec.sim.memory import harmless, lost
from tilec.sim.numbers import KINDS
from tilec.sim.records import read_program
from tilec.sim.tensors import Storage
from tilec.target import find_target
from tilec.tune.fit import first_fit

T = np.arange(64)
KIND_OF = {"float32": "float", "float16": "half", "int32": "i32", "uint8": "i8"}


def address(block: Block, name: str = "x") -> int:
    return block.globals._by_name[name].tensor.address


# --- bytes ---


@pytest.mark.parametrize("size", [1, 2, 3, 4, 6, 8, 12, 16, 20, 32])
@pytest.mark.parametrize("align", [1, 2, 4, 16])
def test_gather_and_scatter_of_any_size_and_alignment(size: int, align: int):
    rng = np.random.default_rng(size * 100 + align)
    data = rng.integers(0, 256, 997, np.uint8)
    storage, plain = Storage(data.copy()), data.copy()
    places = rng.permutation(np.arange(0, 997 - size, -(-size // align) * align))[:17]
    expected = np.stack([plain[p : p + size] for p in places])
    assert (storage.gather(places, size) == expected).all()
    new = rng.integers(0, 256, (len(places), size), np.uint8)
    storage.scatter(places, new)
    for p, n in zip(places, new):
        plain[p : p + size] = n
    assert (storage.data == plain).all() and not storage.differs(places, new).any()


@pytest.mark.parametrize("kind", ["i8", "i16", "i32", "i64", "half", "bfloat", "float", "double"])
@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_values_come_back(kind: str, count: int):
    block = Block(granule=1)
    bits = np.random.default_rng(count).integers(0, 256, (count, 64, 8), np.uint8)
    columns = [
        np.ascontiguousarray(b[:, : np.dtype(KINDS[kind]).itemsize]).view(KINDS[kind])[:, 0]
        for b in bits
    ]
    value = tuple(columns) if count > 1 else columns[0]
    step = columns[0].itemsize * count
    block.store(T, T * step, value, kind, count)
    got = block.load(T, T * step, kind, count)
    for g, want in zip(got if count > 1 else [got], columns):
        assert g.dtype == want.dtype and g.tobytes() == want.tobytes()
    block.barrier()
    one = block.load(T, np.int64(step), kind, count)
    assert np.ndim(one[0] if count > 1 else one) == 0
    block.barrier()
    block.store(T, np.int64(0), one, kind, count)
    again = block.load(T, np.int64(0), kind, count)
    assert np.asarray(again).tobytes() == np.asarray(one).tobytes() and not block.kinds()


def test_bfloat_vectors_in_a_tensor():
    array = numbers(128).astype(ml_dtypes.bfloat16)
    block = Block(tensors=[tensor(array)])
    start = address(block)
    a, b = block.load(T, start + T * 4, "bfloat", 2, space="global")
    assert a.dtype == ml_dtypes.bfloat16 and (np.stack([a, b], 1).ravel() == array).all()
    block.store(T, start + T * 4, (b, a), "bfloat", 2, space="global")
    assert (array.reshape(-1, 2) == np.stack([b, a], 1)).all() and not block.kinds()


# --- bounds ---


def test_out_of_bounds_of_shared_memory():
    block = Block(size=256)
    values = numbers(64)
    block.store(T, T * 4, values)
    assert not block.kinds()
    block.store(T, 128 + T * 4, np.ones(64, np.float32))
    got = block.load(T, T * 4 - 16)
    assert (got[:4] == 0).all()
    found = list(block.findings)
    assert {f.kind for f in found} == {"out of bounds", "data race"}
    assert found[0].kind == "out of bounds" and found[0].threads[0] == 32
    assert block.load(T, np.int64(4096)) == 0


def test_out_of_bounds_of_the_buffer_that_the_record_names():
    both = [buffer("a", 0, (16,)), buffer("b", 64, (16,))]
    block = Block(buffers=both)
    block.store(T[:16], T[:16] * 4, numbers(16), buffer="a")
    block.store(T[:16], 64 + T[:16] * 4, numbers(16), buffer="b")
    block.barrier()
    block.load(T[:16], T[:16] * 4, buffer="a")
    assert not block.kinds()
    got = block.load(T[:16], 4 + T[:16] * 4, buffer="a")
    (found,) = block.findings
    assert found.kind == "out of bounds" and found.buffer == "a" and found.threads == (15,)
    assert found.message == "a[16]; a has the shape (16,)"
    assert got[15] == 0 and (got[:15] == numbers(16)[1:]).all()


def test_out_of_bounds_in_elements():
    plain = buffer("a", 64, (6, 5, 2), bits=16)
    assert plain.outside(64 + 2 * 60, 2) == "a[6, 0, 0]; a has the shape (6, 5, 2)"
    assert plain.outside(64 + 2 * 57, 16) == "a[5, 3, 1] and 7 after it; a has the shape (6, 5, 2)"
    assert plain.outside(62, 2) == "a[-1, 4, 1]; a has the shape (6, 5, 2)"
    assert buffer("n", 0, (7,), bits=4).outside(4, 1).startswith("n[8] and 1 after it")
    ring = SharedBuffer("r", 0, 384, 32, (8, 4), stages=3, stride=128)
    assert ring.outside(400, 4) == (
        "element 100 of r, as it lies in memory, which has 96 (3 times the shape (8, 4))"
    )


def test_out_of_bounds_of_a_tensor():
    array = numbers(63)
    block = Block(tensors=[tensor(array)])
    start, before = address(block), array.copy()
    got = block.load(T, start + T * 4 - 4, space="global")
    assert (got[1:] == array).all() and got[0] == 0
    block.store(T, start + T * 4, numbers(64, 1), space="global")
    assert (array == numbers(64, 1)[:63]).all() and not (array == before).all()
    assert [f.kind for f in block.findings].count("out of bounds") == 2
    found = list(block.findings)
    assert found[0].buffer == "x" and found[0].threads == (0,)
    assert "63" in found[0].message
    block.load(T, np.int64(5), space="global")
    assert "none of the kernel's tensors" in list(block.findings)[-1].message


def test_lanes_in_two_tensors():
    a, b = numbers(32), numbers(32, 1)
    block = Block(tensors=[tensor(a, 0, name="a"), tensor(b, 1, name="b")])
    at = np.where(T < 32, address(block, "a") + T * 4, address(block, "b") + T * 4 - 128)
    assert (block.load(T, at, space="global") == np.concatenate([a, b])).all()
    assert not block.kinds()


def test_views_of_any_stride():
    base = numbers(40 * 30).reshape(40, 30)
    views = [base[::2, ::3], base.T, base[::-1, 1:9], base[5:6, ::-2], base[3, 4:5]]
    for view in views:
        block = Block(threads=view.size, tensors=[tensor(view)])
        steps = np.zeros(view.shape, np.int64)
        for index in np.ndindex(view.shape):
            steps[index] = np.dot(index, view.strides)
        at = address(block) + steps.ravel()
        lanes, before = np.arange(view.size), base.copy()
        assert (block.load(lanes, at, space="global") == view.ravel()).all()
        block.store(lanes, at, numbers(view.size, 7), space="global")
        assert (view.ravel() == numbers(view.size, 7)).all() and not block.kinds()
        assert (base != before).sum() == view.size
        block.barrier()
        if not (view.flags.c_contiguous or view.flags.f_contiguous):
            holes = np.setdiff1d(np.arange(at.min(), at.max(), 4), at)
            assert block.load([0], holes[-1:], space="global") == 0
            assert block.kinds() == ["out of bounds"]
        base[...] = before


def test_misaligned_access():
    array = numbers(256)
    block = Block(tensors=[tensor(array)])
    block.load(T, address(block) + T * 8, "float", 2, space="global")
    assert not block.kinds()
    a, _ = block.load(T, address(block) + 4 + T * 8, "float", 2, space="global")
    assert (a == array[1:129:2]).all() and block.kinds() == ["misaligned access"]
    block.load(T, address(block) + 4 + T * 8, "float", 2, align=4, space="global")
    block.store(T, 8 + T * 16, tuple(numbers(64, i) for i in range(4)), count=4)
    assert block.kinds() == ["misaligned access"] * 2


# --- who, when, in global memory ---


def pair(**options) -> tuple[Block, Block, np.ndarray]:
    """Two blocks, one after the other, of one launch."""
    array = numbers(64)
    first = Block(tensors=[tensor(array, **options)])
    second = Block(globals=first.globals, clocks=Clocks(64, 32, party=2), findings=first.findings)
    second.line = 100
    return first, second, array


def test_blocks_write_different_elements():
    a, b, array = pair()
    start, half = address(a), T[:32]
    a.store(half, start + half * 4, numbers(32, 1), space="global")
    b.store(half, start + 128 + half * 4, numbers(32, 2), space="global")
    assert not a.kinds() and (array == np.concatenate([numbers(32, 1), numbers(32, 2)])).all()


@pytest.mark.parametrize("order", ["store store", "store load", "load store"])
def test_blocks_meet_in_one_element(order: str):
    first, second = order.split()
    a, b, _ = pair()
    start = address(a)
    for block, what, seed in ((a, first, 1), (b, second, 2)):
        at = start + 4 * T[:8] + 28 * (block is b)
        if what == "store":
            block.store(T[:8], at, numbers(8, seed), space="global")
        else:
            block.load(T[:8], at, space="global")
    (found,) = a.findings
    assert found.kind == "data race" and found.buffer == "x" and found.indices == ((7,),)
    assert [loc.line for loc in found.locations] == [101, 1]
    assert "another block" in found.message


def test_blocks_write_the_same_value():
    a, b, _ = pair()
    for block in (a, b):
        block.store(T, address(a) + T * 4, numbers(64, 5), space="global")
    assert not a.kinds()


def test_blocks_read_the_same_elements():
    a, b, array = pair()
    for block in (a, b):
        assert (block.load(T, address(a) + (T ^ 3) * 4, space="global") == array[T ^ 3]).all()
    assert not a.kinds()


def test_threads_of_a_block_meet_in_a_tensor():
    for ordered in (True, False):
        block, _, _ = pair()
        start = address(block)
        block.store(T, start + T * 4, numbers(64, 1), space="global")
        if ordered:
            block.barrier()
        block.load(T, start + (T ^ 33) * 4, space="global")
        if ordered:
            block.barrier()
        block.store(T, start + T * 4, numbers(64, 2), space="global")
        kinds = block.kinds()
        assert kinds == ([] if ordered else ["data race"] * 2)


def test_two_readers_before_a_writer():
    block, _, _ = pair()
    start = address(block)
    block.load([3], [start], space="global")
    block.load([40], [start], space="global")
    block.store([40], [start], numbers(1, 4), space="global")
    (found,) = block.findings
    assert found.kind == "data race" and 3 in found.threads


def test_a_tensor_that_is_only_read_has_no_history():
    block, _, _ = pair(written=False)
    block.load(T, address(block) + T * 4, space="global")
    assert block.globals._by_name["x"].shadow is None


def test_outputs():
    block, _, _ = pair(output=True)
    start = address(block)
    block.store(T[:60], start + T[:60] * 4, numbers(60), space="global")
    block.globals.finish(block.findings)
    (found,) = block.findings
    assert found.kind == "never written" and found.indices == ((60,), (61,), (62,), (63,))
    assert "4 of 64" in found.message
    block.store(T[60:], start + T[60:] * 4, numbers(4), space="global")
    whole = Findings()
    block.globals.finish(whole)
    assert not list(whole)


def test_read_of_an_output_that_nobody_wrote():
    block, _, _ = pair(output=True)
    block.store(T[:60], address(block) + T[:60] * 4, numbers(60), space="global")
    block.load(T[:60], address(block) + T[:60] * 4, space="global")
    assert not block.kinds()
    block.load(T, address(block) + T * 4, space="global")
    (found,) = block.findings
    assert found.kind == "uninitialised read" and found.indices == ((60,),)


def test_engines_between_tensor_and_shared_memory():
    block, _, array = pair()
    start, pieces = address(block), np.arange(16) * 16
    active = block.active([0])
    load, out = block.order.engine(("mbarrier", 0)), block.order.engine(("tma store", 0, "out"))
    data = block.memory.engine_read(active, start + pieces, 16, load, space="global")
    assert data.tobytes() == array.tobytes()
    block.memory.engine_write(active, 1024 + pieces, data[::-1], load)
    block.order.acquire(T[:1], block.order.completion(load))
    block.memory.engine_write(active, start + pieces, data[::-1], out, space="global")
    assert (array.reshape(16, 4)[::-1].tobytes()) == data.tobytes() and not block.kinds()
    block.load(T, start + T * 4, space="global")
    assert block.kinds() == ["read before wait"]


def test_without_checks_bytes_move_all_the_same():
    block = Block(checks=False, tensors=[tensor(numbers(64))])
    values = numbers(64, 1)
    block.store(T, T * 4, values)
    assert (block.load(T, (T ^ 1) * 4) == values[T ^ 1]).all()
    block.store(T, address(block) + T * 4, values, space="global")
    assert (block.load(T, address(block) + (63 - T) * 4, space="global") == values[::-1]).all()
    assert not block.kinds() and block.shadow is None


def test_shared_memory_starts_as_noise():
    a, b = Block(checks=False), Block(checks=False)
    got = a.load(T, T * 4, "i32")
    assert len(set(got.tolist())) > 60 and (got == b.load(T, T * 4, "i32")).all()


# --- names ---


@pytest.mark.parametrize("target", ["cuda:sm_80", "cuda:sm_90a", "hip:gfx942"])
def test_buffers_and_granules_of_a_kernel(target: str):
    """Every element of every buffer is found at the byte where its layout puts it."""
    found = find_target(target)
    func = first_fit(parse_func(matmul_text(128, 128, 64, 3, 128, False, False)), found)
    function = emit_records(func, found)[0].f
    buffers = [b for b in shared_buffers(func) if b.bits < 64]
    assert len(buffers) >= 2
    for b in buffers:
        assert b.end - b.start == b.stride * b.stages
        step = b.bits // 8
        indices = [b.index_of(at) for at in range(b.start, b.end, step)]
        seen = [i for i in indices if i is not None]
        assert len(set(seen)) == len(seen) == int(np.prod(b.shape)) * b.stages
        assert max(seen) == ((b.stages - 1,) if b.stages > 1 else ()) + tuple(
            n - 1 for n in b.shape
        )
    assert read_program(function).granule in (1, 2, 4, 8, 16)
    places = SharedPlaces(buffers)
    assert places.find(buffers[0].start, buffers[0].name)[0] == buffers[0].name


def test_an_update_is_not_harmless_where_it_writes_what_is_there() -> None:
    """Threads that come one after the other have each computed it from what was there before."""
    storage, at = Storage(np.arange(16, dtype=np.uint8)), np.array([0, 4, 8, 4])
    there = storage.gather(at, 4)
    for update, before, after in ((True, [0, 0, 0, 0], [0, 1, 0, 1]), (False, [1] * 4, [0] * 4)):
        assert harmless(storage, at, there, update).tolist() == before
        assert lost(storage, at, there, update).tolist() == after
