"""The disk cache: one file per compiled variant, named by the hash of everything that went into it.

Many processes may use one directory: a file is written under a temporary name and renamed into
place, so a reader sees all of it or nothing, and the image's own checksum tells a damaged file
from a whole one. A damaged entry counts as absent and is written anew. The directory belongs to
the user alone (mode 0700), because what it holds is executed.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import math
import os
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tilec.runtime.image import Image, ImageError
from tilec.support.lazy import Lazy
from tilec.support.settings import is_on

tempfile = Lazy("tempfile")  # needed by the first write only

_SUFFIX = ".tilec"
_NOTE = ".json"
_PACKAGE = Path(__file__).resolve().parent.parent


def cache_root() -> Path | None:
    """The directory of the cache (TILEC_CACHE_DIR, else the user's cache directory); None if it
    is disabled, and for a user without a home."""
    if is_on("TILEC_DISABLE_CACHE"):
        return None
    chosen = os.environ.get("TILEC_CACHE_DIR")
    if chosen:
        return Path(os.path.expanduser(chosen))
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return None if caches.startswith("~") else Path(caches) / "tilec"


def hash_parts(parts: Iterable[str | bytes]) -> str:
    """A key for these texts (as they are or in UTF-8), which no other sequence of texts has."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


class DiskCache:
    """Images by key, under `root`. A cache that cannot be written warns once and then does
    nothing."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._broken = False

    def path(self, key: str) -> Path:
        return self.root / key[:2] / (key + _SUFFIX)

    def get(self, key: str) -> Image | None:
        """The image stored under `key`; None if there is none or it is damaged."""
        path = self.path(key)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        if not self._owned():
            return None
        try:
            return Image.from_bytes(data, str(path))
        except ImageError:
            return None

    def put(self, key: str, image: Image) -> None:
        """Store `image` under `key`, in place of whatever is there."""
        self.write(self.path(key), image.to_bytes())

    def read_note(self, key: str) -> Any:
        """The JSON value stored under `key` by `write_note`; None if there is none."""
        try:
            return json.loads(self._note(key).read_text()) if self._owned() else None
        except (OSError, ValueError):
            return None

    def write_note(self, key: str, value: Any) -> None:
        """Store a JSON value under `key`, beside the images."""
        self.write(self._note(key), json.dumps(value).encode())

    def _note(self, key: str) -> Path:
        return self.root / key[:2] / (key + _NOTE)

    def write(self, path: Path, data: bytes) -> None:
        """Put `data` at `path` (inside the cache) in one step, or warn that the cache is
        unusable."""
        if self._broken or not self._owned():
            return
        temporary = ""
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.parent.mkdir(mode=0o700, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=path.parent)
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.replace(temporary, path)
        except OSError as e:
            self._give_up(str(e))
            if temporary:
                Path(temporary).unlink(missing_ok=True)

    def _owned(self) -> bool:
        """Whether nobody else can have put code into the cache."""
        try:
            facts = self.root.stat()
        except OSError:
            return True
        if hasattr(os, "getuid") and (facts.st_uid != os.getuid() or facts.st_mode & 0o022):
            self._give_up("others can write to it")
            return False
        return True

    def _give_up(self, why: str) -> None:
        if not self._broken:
            warnings.warn(
                f"tilec compiles without its cache: {self.root}: {why}; set TILEC_CACHE_DIR to "
                "another directory or TILEC_DISABLE_CACHE=1",
                stacklevel=2,
            )
        self._broken = True

    def entries(self) -> list[Path]:
        """The files of all stored images, the newest first."""
        return [path for path, _ in self.images()]

    def images(self, before: float = math.inf) -> list[tuple[Path, os.stat_result]]:
        """The files of images that were written before a time (seconds since the epoch), the newest
        first."""
        return self._files(_SUFFIX, before)

    def notes(self, before: float = math.inf) -> list[tuple[Path, os.stat_result]]:
        """The same of notes."""
        return self._files(_NOTE, before)

    def _files(self, suffix: str, before: float) -> list[tuple[Path, os.stat_result]]:
        found = []
        for path in self.root.glob(f"??/*{suffix}"):
            with contextlib.suppress(OSError):  # another process has just replaced it
                facts = path.stat()
                if facts.st_mtime < before:
                    found.append((path, facts))
        return sorted(found, key=lambda f: (-f[1].st_mtime, f[0]))

    def clear(self, before: float = math.inf) -> int:
        """Delete the images and notes that were written before a time; returns how many images
        there were."""
        images = self.images(before)
        for path, _ in (*images, *self.notes(before)):
            path.unlink(missing_ok=True)
        return len(images)


def file_identity(path: str | Path | None) -> str:
    """What tells one version of a file from another without reading it; "absent" if there is no
    file."""
    if path is None:
        return "absent"
    try:
        facts = os.stat(path)
    except OSError:
        return "absent"
    return f"{path}:{facts.st_size}:{facts.st_mtime_ns}"


def _python_files(folder: Path | str) -> Iterator[tuple[str, int, int]]:
    """Path, size and time of change of each Python file below `folder`."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from _python_files(entry.path)
            elif entry.name.endswith(".py"):
                facts = entry.stat()
                yield entry.path, facts.st_size, facts.st_mtime_ns


def _source(path: str) -> bytes:
    """Where in the package a Python file is, and what is in it."""
    with open(path, "rb", buffering=0) as file:
        return path.removeprefix(str(_PACKAGE)).encode() + b"\n" + file.read()


def compiler_fingerprint(cache: DiskCache | None) -> str:
    """A hash of tilec's own code and of LLVM's version: two compilers with equal ones make equal
    code.

    The files' contents are hashed once; afterwards `cache` remembers the result under the files'
    sizes and times.
    """
    sources = sorted(_python_files(_PACKAGE))
    llvmlite = importlib.util.find_spec("llvmlite")
    version = (
        Path(llvmlite.origin).with_name("_version.py") if llvmlite and llvmlite.origin else None
    )
    identities = (f"{path}:{size}:{time}" for path, size, time in sources)
    identity = hash_parts([*identities, file_identity(version)])
    note = cache.root / f"compiler-{identity[:32]}" if cache else None
    if note is not None:
        try:
            known = note.read_text()
        except (OSError, ValueError):  # ValueError: it is damaged
            known = ""
        if len(known) == 64:
            return known
    texts = (_source(path) for path, _, _ in sources)
    found = hash_parts([*texts, version.read_bytes() if version else b""])
    if cache is not None and note is not None:
        cache.write(note, found.encode())
    return found
