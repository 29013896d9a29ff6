"""A failing program as a test file that runs by itself."""

from __future__ import annotations

from pathlib import Path

from tilec.fuzz.arrays import Array
from tilec.fuzz.outcome import Outcome
from tilec.fuzz.program import HEADER, PLAIN, SIZES, Program

_CHECK = """

def test_kernel() -> None:
    check(kernel, ARGUMENTS, {targets!r}{launch})
"""


def test_text(program: Program, outcome: Outcome, seed: int, number: int) -> str:
    """The file's text: what failed, the kernel, its arguments, the check."""
    what = " ".join(f"{outcome.kind} {outcome.detail}".split())
    lines = [line.rstrip() for line in outcome.text.splitlines()[:12]]
    found = "\n".join(lines).replace("\\", "\\\\").replace('"""', "'''")
    opening = (
        f'"""Found by `python -m tilec fuzz --seed {seed} --program {number}` on {outcome.target}: '
        f'{what}.\n\n{found}\n"""\n'
    )
    sizes = [s for s in SIZES if s in program.source]
    imports = HEADER if sizes else HEADER.rpartition("\n\n")[0] + "\n"
    imports = imports.replace(
        "from tilec.layout", "from tilec.fuzz.arrays import Array\nfrom tilec.fuzz.outcome import "
        "check\nfrom tilec.fuzz.program import Launch\nfrom tilec.layout",
    )  # fmt: skip
    if program.launch == PLAIN:
        imports = imports.replace("from tilec.fuzz.program import Launch\n", "")
    if "swizzle" not in program.source:
        imports = "".join(
            line for line in imports.splitlines(True) if not line.startswith("from tilec.layout")
        )
    arguments = ["ARGUMENTS = {"]
    for name, a in program.arguments.items():
        arguments.append(f"    {name!r}: {_spelled(a)},")
    arguments.append("}")
    launch = "" if program.launch == PLAIN else f", {program.launch!r}"
    check = _CHECK.format(targets=(outcome.target,), launch=launch)
    parts = [opening, imports, "\n", program.source, "\n\n", "\n".join(arguments), "\n", check]
    return "".join(parts)


def _spelled(a: Array | int | float) -> str:
    """An argument as Python, defaults left out."""
    if not isinstance(a, Array):
        return repr(a)
    fields = [repr(a.shape), repr(a.dtype)]
    default = Array(a.shape)
    for name in ("view", "content", "seed", "high"):
        if getattr(a, name) != getattr(default, name):
            fields.append(f"{name}={getattr(a, name)!r}")
    return f"Array({', '.join(fields)})"


def write_test(program: Program, outcome: Outcome, seed: int, number: int, folder: Path) -> Path:
    """Write the test file `fuzz_<digest>.py` into `folder`, which is made where it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"fuzz_{program.digest}.py"
    path.write_text(test_text(program, outcome, seed, number))
    return path
