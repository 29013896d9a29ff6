"""What the cache of compiled kernels holds: how many, how large, and with --list which. --clear
deletes them, with --older-than those that were written so many days ago. Notes, which stand beside
the kernels, have what was predicted and what tuning has measured."""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from tilec.cli.options import UsageError
from tilec.runtime.cache import DiskCache, cache_root
from tilec.runtime.image import Image, ImageError
from tilec.support.rich import aligned, size_text

_DAY = 86_400.0  # seconds


@dataclass
class Entry:
    """A compiled kernel: its name and target ("" where its file is damaged), its bytes, and how
    many days ago it was written."""

    kernel: str
    target: str
    bytes: int
    days: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the subcommand."""
    parser.add_argument("--list", action="store_true", help="each kernel, the newest first")
    parser.add_argument("--clear", action="store_true", help="delete kernels and notes")
    parser.add_argument(
        "--older-than", type=float, metavar="DAYS", help="only what was written before"
    )
    parser.add_argument("--json", action="store_true", help="as JSON, for programs")


def main(options: argparse.Namespace) -> int:
    """Count, list or delete, and print."""
    root, days = cache_root(), options.older_than
    if root is None:
        raise UsageError("there is no cache: TILEC_DISABLE_CACHE is set, or the user has no home")
    if days is not None and not 0 <= days < math.inf:
        raise UsageError(f"--older-than {days:g} is no number of days")
    cache, now = DiskCache(root), time.time()
    before = math.inf if days is None else now - days * _DAY
    kernels, notes = cache.images(before), cache.notes(before)
    told = {
        "folder": str(root),
        "kernels": len(kernels),
        "notes": len(notes),
        "bytes": sum(facts.st_size for _, facts in (*kernels, *notes)),
        "cleared": options.clear,
    }
    listed = []
    if options.list:
        listed = [_entry(p, facts.st_size, (now - facts.st_mtime) / _DAY) for p, facts in kernels]
    if options.clear:
        cache.clear(before)
    if options.json:
        more = {"entries": [asdict(e) for e in listed]} if options.list else {}
        print(json.dumps({**told, **more}, indent=2))
        return 0
    if listed:
        rows = [(e.kernel or "damaged", e.target, size_text(e.bytes), _age(e.days)) for e in listed]
        print(aligned(rows, ("kernel", "target", "size", "age"), right=(2, 3)))
    print(
        f"{told['kernels']} kernels and {told['notes']} notes, {size_text(told['bytes'])}, "
        f"{'deleted from' if options.clear else 'in'} {root}"
    )
    return 0


def _entry(path: Path, size: int, days: float) -> Entry:
    try:
        image = Image.from_bytes(path.read_bytes(), str(path))
    except (OSError, ImageError):
        return Entry("", "", size, days)
    return Entry(image.name, image.target, size, days)


def _age(days: float) -> str:
    return f"{days:.0f} days" if days >= 2 else f"{days * 24:.0f} h"
