"""Files of kernels that are damaged, forged or of another version: an error with words, never a
hang, never an error of Python's own."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import pickle
import random
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilec
import tilec.language as T
from tilec.ir import schedule
from tilec.ir.errors import LaunchError
from tilec.jit.compiled import CompiledKernel
from tilec.jit.stages import Stages
from tilec.runtime.expressions import evaluate
from tilec.runtime.image import _LENGTHS, MAGIC, Image, ImageError, _header

M, N = T.dynamic("M, N")


@tilec.kernel
def scale(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32"), s: T.float32 = 2.0):
    with T.Kernel(T.ceildiv(N, 64), threads=64) as b:
        for i in T.Parallel(64):
            B[b * 64 + i] = A[b * 64 + i] * s


@tilec.kernel
def gemm(
    A: T.Tensor((M, 64), "float16"), B: T.Tensor((64, N), "float16"), C: T.Tensor((M, N), "float16")
):
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
        A_s = T.alloc_shared((64, 64), "float16")
        B_s = T.alloc_shared((64, 64), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        T.clear(acc)
        T.copy(A[by * 64, 0], A_s)
        T.copy(B[0, bx * 64], B_s)
        T.gemm(A_s, B_s, acc)
        T.copy(acc, C[by * 64, bx * 64])


def compiled(target: str = "cpu") -> CompiledKernel:
    if target == "cpu":
        return scale.compile(*[tilec.spec((1000,), "float32")] * 2, target=target)
    shapes = (256, 64), (64, 512), (256, 512)
    return gemm.compile(*[tilec.spec(s, "float16") for s in shapes], target=target)


def forged(header: Any, binary: bytes, stages: bytes = b"", lengths: Any = None) -> bytes:
    """A file with the right checksum."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    body = _LENGTHS.pack(*(lengths or (len(text), len(binary), len(stages))))
    body += text + binary + stages
    return MAGIC + hashlib.sha256(body).digest() + body


def refused(content: bytes) -> None:
    with pytest.raises(ImageError) as error:
        Image.from_bytes(content, "k.tilec")
    assert "k.tilec" in error.value.message and error.value.hint


def test_every_byte_counts(tmp_path: Path) -> None:
    compiled().save(tmp_path / "k.tilec")
    whole = (tmp_path / "k.tilec").read_bytes()
    bits = random.Random(7)
    for at in range(len(whole)):
        refused(whole[:at] + bytes([whole[at] ^ 1 << bits.randrange(8)]) + whole[at + 1 :])
    for length in range(len(whole)):
        refused(whole[:length])
    for length in range(100):
        refused(bits.randbytes(length))


ODD = [None, 0, -1, 1.5, "x", "", [], {}, [[]], ["x"], {"a": 1}, True, 10**30, [1, 2, 3],
       ["a", "b", "c"], [0, 0, 0], "tensor", float("inf")]  # fmt: skip


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if at:
        yield at
    parts = (
        value if isinstance(value, dict) else range(len(value) if isinstance(value, list) else 0)
    )
    for key, part in ((key, value[key]) for key in parts):
        yield from places(part, (*at, key))


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90a"])
def test_forged_headers(target: str) -> None:
    """Every field with every odd value, left out, and one too many: refused, or an image whose
    parts can be looked at."""
    image = compiled(target).image
    header = json.loads(json.dumps(_header(image)))
    for at in places(header):
        for change in (*ODD, "left out", "one more"):
            changed = copy.deepcopy(header)
            owner: Any = changed
            for key in at[:-1]:
                owner = owner[key]
            if change == "left out":
                del owner[at[-1]]
            elif change == "one more" and isinstance(owner, list):
                owner.insert(at[-1], 1)
            else:
                owner["new" if change == "one more" else at[-1]] = change
            try:
                found = Image.from_bytes(forged(changed, image.binary), "k.tilec")
                kernel = CompiledKernel(found, Stages())
                assert kernel.name in repr(kernel)
                assert kernel.plan is None or kernel.plan.describe()
            except tilec.TilecError as e:
                assert isinstance(e, ImageError | LaunchError)
    for odd in ODD:
        refused(forged(odd, b""))
    refused(forged({**header, "future": 1}, image.binary))
    for text in (b"", b"\xff\xfe", b"[" * 100_000, b"{", b"nul"):
        refused(forged(text, b""))
    for lengths in ((10**18, 0, 0), (5, 5, 5), (2**63, 2**63, 2**63), (0, 0, 10)):
        refused(forged(header, image.binary, lengths=lengths))
    for stages in (b"x", zlib.compress(b"["), zlib.compress(b"[]"), zlib.compress(b'{"a": 1}')):
        refused(forged(header, image.binary, stages))


GRIDS = ["9**9**9**9", "1 << (1 << 60)", "(1,) * 10**12", "1 << -1", "(1, 1, 1.5)",
         "(nowhere, 1, 1)", "(N // 0, 1, 1)", "(" * 3000, "(" + "1, " * 50_000 + ")", "-" * 50_000,
         "9" * 5000, "(10**30, 1, 1)", "__import__('os')", "[1]", "'1'", "((N, 1), 1, 1)",
         "(N < (1, 2), 1, 1)", "abs(1, 2)", "min(N)", "(-1, 1, 1)", "(1e300, 1, 1)"]  # fmt: skip


@pytest.mark.parametrize("grid", GRIDS, ids=lambda g: g[:16])
def test_forged_grids(grid: str) -> None:
    image = compiled().image
    changed = {**_header(image), "grid": grid}
    array = np.zeros(1000, np.float32)
    with pytest.raises(tilec.TilecError) as error:
        found = Image.from_bytes(forged(changed, image.binary), "k.tilec")
        CompiledKernel(found, Stages())(array, array + 1)
    assert len(str(error.value)) < 1500


def test_arithmetic_of_sizes_is_kept() -> None:
    for text, want in (("(M + 7) // 8 << 2", 8), ("min(M, 3) if M > 4 else abs(-M)", 3)):
        assert evaluate(text, {"M": 9}, "size") == want


def test_paths(tmp_path: Path) -> None:
    kernel = compiled()
    for use in (tilec.load, kernel.save, kernel.export_c):
        for path in (tmp_path / "no" / "file", "a\0b", tmp_path):
            if path == tmp_path and use == kernel.export_c:
                continue  # its files are beside it
            with pytest.raises(ImageError, match="cannot be (read|written): ") as error:
                use(path)
            assert isinstance(error.value, OSError) and error.value.loc is not None
        for path in (None, 3, b"file", ["file"]):
            with pytest.raises(ImageError, match="the path of a kernel's file is "):
                use(path)  # type: ignore[operator]


def test_a_loaded_file_says_that_it_is_code() -> None:
    assert tilec.load.__doc__ and "load only what you trust" in tilec.load.__doc__


def test_compiled_kernels_are_pickled_as_they_are_saved() -> None:
    kernel = compiled()
    again = pickle.loads(pickle.dumps(kernel))
    assert dict(again.stages) == dict(kernel.stages) and again.image.grid == kernel.image.grid
    a, b = np.arange(100, dtype=np.float32), np.zeros(100, np.float32)
    again(a, b)
    np.testing.assert_array_equal(b, 2 * a)
    assert copy.deepcopy(kernel) is kernel and copy.copy(kernel) is kernel


def test_damaged_choices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A note in the disk cache that is no choice counts as absent, and is written anew."""
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path))

    def chosen() -> Any:
        @tilec.kernel
        def fill(A: T.Tensor((N,), "float32"), BN: T.constexpr = T.auto(32, 64)):
            with T.Kernel(T.ceildiv(N, BN), threads=32) as b:
                for i in T.Parallel(BN):
                    A[b * BN + i] = 1.0

        return fill

    spec = tilec.spec((1000,), "float32")
    chosen().compile(spec, target="cuda:sm_80")
    (note,) = tmp_path.glob("??/*.json")
    whole = note.read_text()
    ((where, choice),) = json.loads(whole).items()
    constants = choice[0]
    plan = dataclasses.asdict(schedule.Plan("plain"))
    odd = [*ODD, [], [1, 2], [constants], [constants, 1], [{}, None], [{"BN": "x"}, plan],
           [{"BN": 0}, plan], [{"BN": 32, "BM": 1}, plan], [constants, {}],
           [constants, {**plan, "new": 1}], [constants, {**plan, "stages": "x"}],
           [constants, {**plan, "cluster": [1]}]]  # fmt: skip
    for entry in (*odd, *(json.dumps({where: o}) for o in odd), "", "{", "\0", "[1]", "nan"):
        note.write_text(entry if isinstance(entry, str) else json.dumps(entry))
        assert chosen().compile(spec, target="cuda:sm_80").image.grid
        assert json.loads(note.read_text())[where] == choice
