"""The disk cache and image files: round trip, damage, read-only, many processes, keys."""

from __future__ import annotations

import importlib
import os
import random
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tilec.ir.options import PLAIN
from tilec.ir.types import BFLOAT16, FLOAT16, FLOAT32, TensorMapType
from tilec.jit.revision import read_revision
from tilec.runtime.cache import DiskCache, cache_root, compiler_fingerprint, hash_parts
from tilec.runtime.image import AbiParam, Argument, Image, ImageError, Resources

RANDOM = random.Random(7)


def sample(binary_bytes: int = 5000) -> Image:
    return Image(
        name="attention",
        symbol="attention_0",
        target="cuda:sm_90a",
        arguments=(
            Argument("A", "tensor", "float16", ("M", 64), ("A_stride0", 1), 16, False),
            Argument("s", "scalar", "float32", default=0.125),
            Argument("C", "tensor", "bfloat16", ("M", "N // 2"), ("C_stride0", 1), 8, True, True),
        ),
        params=(
            AbiParam("tensor", "A", -1, "pointer"),
            AbiParam("size", "A", 0, "int64", "M"),
            AbiParam(
                "tensor_map",
                "C",
                -1,
                "tensor_map",
                "",
                TensorMapType("C", (1, 0), (64, 7), 64, BFLOAT16),
            ),
        ),
        grid="((M + 63) // 64, 1, 1)",
        returned=("C",),
        resources=Resources(168, 0, 40_960, {"A_s": 32768, "full": 64}, 384, 1),
        format="cubin",
        binary=RANDOM.randbytes(binary_bytes),
        persistent=True,
        wide=True,
        stages={"tile": "kernel attention …\n", "ptx": ".version 8.0\n"},
    )


def test_image_round_trip() -> None:
    image = sample()
    assert Image.from_bytes(image.to_bytes(), "here") == image


@pytest.mark.parametrize("at", [20, 60, 400, -1, -700])
def test_a_flipped_bit_is_found(at: int) -> None:
    data = bytearray(sample().to_bytes())
    data[at] ^= 1 << RANDOM.randrange(8)
    with pytest.raises(ImageError, match="here is damaged"):
        Image.from_bytes(bytes(data), "here")


@pytest.mark.parametrize("size", [0, 5, 14, 40, 90, 1000])
def test_a_cut_file_is_found(size: int) -> None:
    with pytest.raises(ImageError, match="here is (damaged|not a tilec image)"):
        Image.from_bytes(sample().to_bytes()[:size], "here")


def test_get_and_put(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "deep" / "cache")
    image = sample()
    assert cache.get("ab" * 32) is None
    cache.put("ab" * 32, image)
    assert cache.get("ab" * 32) == image
    assert cache.get("cd" * 32) is None
    assert [p.name for p in cache.entries()] == ["ab" * 32 + ".tilec"]
    assert cache.clear() == 1 and cache.entries() == []


def test_private_modes_and_no_temporary_files(tmp_path: Path) -> None:
    root = tmp_path / "cache"
    DiskCache(root).put("ab" * 32, sample())
    for path in (root, root / "ab"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    (entry,) = (root / "ab").iterdir()
    assert stat.S_IMODE(entry.stat().st_mode) == 0o600


def test_a_damaged_entry_is_absent_and_replaced(tmp_path: Path) -> None:
    cache, key = DiskCache(tmp_path / "cache"), "ef" * 32
    image = sample()
    cache.put(key, image)
    cache.path(key).write_bytes(cache.path(key).read_bytes()[:-3] + b"xyz")
    assert cache.get(key) is None
    cache.put(key, image)
    assert cache.get(key) == image


def test_an_unusable_directory_warns_once(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("not a directory")
    cache = DiskCache(blocker / "cache")
    with pytest.warns(
        UserWarning, match=r"tilec compiles without its cache: .*file.cache: .*TILEC_"
    ):
        cache.put("ab" * 32, sample())
    cache.put("cd" * 32, sample())  # a second warning would fail: warnings are errors below
    assert cache.get("ab" * 32) is None


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="POSIX permissions")
def test_a_directory_others_can_write_is_not_trusted(tmp_path: Path) -> None:
    root = tmp_path / "shared"
    cache = DiskCache(root)
    cache.put("ab" * 32, sample())
    root.chmod(0o777)
    with pytest.warns(UserWarning, match="others can write to it"):
        assert DiskCache(root).get("ab" * 32) is None


WRITER = """
import sys
from pathlib import Path
from typing import Any
sys.path.insert(0, {tests!r})
from test_cache import sample
from tilec.runtime.cache import DiskCache
cache, key = DiskCache(Path({root!r})), "ab" * 32
for i in range(60):
    cache.put(key, sample(1000 + int(sys.argv[1]) * 7))
    assert cache.get(key) is not None, "a reader saw half a file"
"""


def test_many_processes_share_a_cache(tmp_path: Path) -> None:
    script = WRITER.format(tests=str(Path(__file__).parent), root=str(tmp_path / "cache"))
    writers = [subprocess.Popen([sys.executable, "-c", script, str(i)]) for i in range(3)]
    assert [w.wait(timeout=120) for w in writers] == [0, 0, 0]
    assert len(list((tmp_path / "cache" / "ab").iterdir())) == 1


def test_cache_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path))
    assert cache_root() == tmp_path
    monkeypatch.setenv("TILEC_DISABLE_CACHE", "1")
    assert cache_root() is None
    monkeypatch.setenv("TILEC_DISABLE_CACHE", "0")
    monkeypatch.delenv("TILEC_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_root() == tmp_path / "xdg" / "tilec"
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TILEC_CACHE_DIR", "~/kernels")
    assert cache_root() == tmp_path / "kernels"


def test_a_user_without_a_home_has_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TILEC_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # a container's user has no entry
    assert cache_root() is None


def test_compiler_fingerprint_is_remembered(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "cache")
    found = compiler_fingerprint(cache)
    (note,) = cache.root.glob("compiler-*")
    assert note.read_text() == found == compiler_fingerprint(None)
    note.write_text("f" * 64)
    assert compiler_fingerprint(cache) == "f" * 64, "the files are hashed once"
    note.write_text("damaged")
    assert compiler_fingerprint(cache) == found
    note.write_bytes(b"\xff\xfe of a disk that was full")
    assert compiler_fingerprint(cache) == found


# --- keys -------------------------------------------------------------------------------------


def test_hash_parts_keeps_borders() -> None:
    assert hash_parts(["ab", "c"]) != hash_parts(["a", "bc"])
    assert hash_parts(["", "a"]) != hash_parts(["a", ""])
    assert hash_parts(iter(["a"])) == hash_parts(["a"])


BLOCK = 64
ELEMENT = FLOAT16
TABLE = {"a": [1, 2.5, FLOAT16]}


def helper(x):
    return x * BLOCK


def make(scale):
    def kernel(A, B):
        y: ELEMENT = helper(A) * scale
        return y, TABLE

    return kernel


def fingerprint(function: Any) -> str:
    return read_revision(function, PLAIN).source


def test_fingerprint_covers_closure_globals_and_helpers(monkeypatch: pytest.MonkeyPatch) -> None:
    base = fingerprint(make(3))
    assert fingerprint(make(3)) == base
    assert fingerprint(make(4)) != base
    assert fingerprint(make(3.0)) != base, "3 and 3.0 are different constants"
    monkeypatch.setitem(globals(), "BLOCK", 65)
    changed = fingerprint(make(3))
    assert changed != base, "a global that a called function reads"
    monkeypatch.setitem(TABLE, "a", [1, 2.5, FLOAT32])
    assert fingerprint(make(3)) != changed


def test_fingerprint_covers_local_annotations(monkeypatch: pytest.MonkeyPatch) -> None:
    base = fingerprint(make(3))
    monkeypatch.setitem(globals(), "ELEMENT", FLOAT32)
    assert fingerprint(make(3)) != base, "Python itself drops the annotation of a local name"


def test_a_stored_kernel_shows_the_code_that_was_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the plans that were predicted best did not hold."""
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend("examples/attention")
    example = importlib.import_module("gqa_fwd")
    first = example.gqa.__wrapped__(96).compile(*example.specs(96), target="cuda:sm_90a")
    assert "tried: " in first.stages["plan"]
    again = example.gqa.__wrapped__(96).compile(*example.specs(96), target="cuda:sm_90a")
    assert again.plan == first.plan and again.binary == first.binary
    locations = re.compile(r"\.loc.*|\.file.*")
    assert locations.sub("", again.asm) == locations.sub("", first.asm)
