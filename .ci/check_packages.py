"""What a wheel and an sdist hold, beside what git tracks.

python check_packages.py TREE WHEEL SDIST
"""

import sys
import tarfile
import zipfile
from email import message_from_string
from pathlib import Path


def wheel_misses(tree: Path, wheel: Path) -> list[str]:
    """What is wrong with the wheel: it holds the whole package, and nothing else."""
    with zipfile.ZipFile(wheel) as z:
        names = {n for n in z.namelist() if ".dist-info/" not in n}
        (described,) = (n for n in z.namelist() if n.endswith(".dist-info/METADATA"))
        metadata = message_from_string(z.read(described).decode())
    package = {
        str(p.relative_to(tree))
        for p in (tree / "tilec").rglob("*")
        if p.is_file() and "__pycache__" not in p.parts
    }
    wrong = [f"the wheel lacks {n}" for n in sorted(package - names)]
    wrong += [f"the wheel has {n}" for n in sorted(names - package)]
    if "tilec/py.typed" not in names:
        wrong.append("the wheel says nothing of its types: py.typed")
    for field in ("Version", "License-Expression", "License-File", "Requires-Python", "Summary"):
        if not metadata[field]:
            wrong.append(f"the wheel's metadata has no {field}")
    extras = {*(metadata.get_all("Provides-Extra") or ())}
    wrong += [f"no extra {x}" for x in ("cuda", "hip", "torch", "test", "dev") if x not in extras]
    return wrong


def sdist_misses(tree: Path, sdist: Path) -> list[str]:
    """What is wrong with the sdist: it holds all that git tracks, but git's own files."""
    with tarfile.open(sdist) as t:
        names = {n.partition("/")[2] for n in t.getnames()}
    tracked = {str(p.relative_to(tree)) for p in tree.rglob("*") if p.is_file()}
    own = {n for n in tracked if n.startswith(".git") or ".egg-info/" in n or "__pycache__" in n}
    return [f"the sdist lacks {n}" for n in sorted(tracked - own - names)]


def main() -> int:
    tree, wheel, sdist = map(Path, sys.argv[1:])
    wrong = wheel_misses(tree, wheel) + sdist_misses(tree, sdist)
    print("\n".join(wrong) or f"{wheel.name}, {sdist.name}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
