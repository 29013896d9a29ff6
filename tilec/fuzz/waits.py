"""What a wave of an AMD program has on its way when it comes to a barrier: a walk over the control
flow of the assembly (MI300 ISA, "Data Dependency Resolution": the counter LGKM_CNT)."""

from __future__ import annotations

import re
from collections.abc import Iterator

_MANY = 16  # the counter ends at 15
_NO_MEMORY = ("ds_swizzle", "ds_bpermute", "ds_permute", "ds_nop")  # they use the pipe only


def _blocks(text: str) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """The instructions of each block, by label, and the labels of those that may follow it."""
    found: dict[str, list[str]] = {}
    following: dict[str, list[str]] = {}
    here: str | None = None
    for line in text.splitlines():
        line = line.split(";")[0].strip()
        label = re.fullmatch(r"([.\w$@]+):", line)
        if label:
            if here is not None:
                following[here].append(label[1])
            here = label[1]
            found[here], following[here] = [], []
        elif here is not None and re.match(r"[a-z]", line):
            found[here].append(line)
            jump = re.match(r"s_c?branch\w*\s+(\S+)", line)
            if jump:
                following[here].append(jump[1])
            if re.match(r"s_(branch|endpgm|setpc)", line):
                here = None
            elif jump:
                after = f"{here}+"
                following[here].append(after)
                here = after
                found[here], following[here] = [], []
    return found, following


def _after(line: str, pending: int) -> int:
    """LDS accesses that may be unfinished behind an instruction, given those before it."""
    if line.startswith("ds_") and not line.startswith(_NO_MEMORY):
        return min(_MANY, pending + 1)
    wait = re.match(r"s_waitcnt\b.*lgkmcnt\((\d+)\)", line)
    if wait:
        return min(pending, int(wait[1]))
    if re.match(r"s_waitcnt\s+0(x0)?$", line):
        return 0
    return pending


def unfinished_at_barriers(text: str) -> Iterator[str]:
    """Words for each `s_barrier` that a wave may come to before its accesses to LDS have ended."""
    found, following = _blocks(text)
    begins = dict.fromkeys(found, 0)
    left = list(found)
    while left:
        label = left.pop()
        pending = begins[label]
        for line in found[label]:
            pending = _after(line, pending)
        for n in following[label]:
            if begins.get(n, _MANY) < pending:
                begins[n] = pending
                left.append(n)
    for label, lines in found.items():
        pending = begins[label]
        for line in lines:
            if line.startswith("s_barrier") and pending:
                yield f"s_barrier in {label}: a wave may have {pending} LDS accesses on their way"
            pending = _after(line, pending)
