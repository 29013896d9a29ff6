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


Flags = frozenset[tuple[str, bool]]
"""Pairs of scalar registers that are known to be 0, or all ones: with them LLVM notes by which way
a wave has come, and leaves out what does not lie on it."""

_PAIR = re.compile(r"s\[(\d+):(\d+)\]|s(\d+)|vcc")
_MOST_STATES = 20_000


def _registers(text: str) -> set[int | str]:
    """Scalar registers that are named."""
    found: set[int | str] = set()
    for m in _PAIR.finditer(text):
        first, last, single = m.groups()
        if first:
            found.update(range(int(first), int(last) + 1))
        else:
            found.add(int(single) if single else "vcc")
    return found


def _known(line: str, flags: Flags) -> Flags:
    """What is known of pairs behind an instruction."""
    word, _, rest = line.partition(" ")
    operands = [x.strip() for x in rest.split(",")]
    changed = _registers(" ".join(operands[:2]))  # at most these
    kept = frozenset(f for f in flags if changed.isdisjoint(_registers(f[0])))
    if word == "s_mov_b64" and operands[1] in ("0", "-1"):
        return kept | {(operands[0], operands[1] == "-1")}
    if word in ("s_and_b64", "s_andn2_b64") and operands[:2] == ["vcc", "exec"]:
        on = dict(flags).get(operands[2])
        if on is not None:
            return kept | {("vcc", on == (word == "s_and_b64"))}
    return kept


def _goes_on(line: str, following: list[str], flags: Flags) -> list[str]:
    """Those of the labels behind a block that ends with `line` where a wave may go."""
    vcc = dict(flags).get("vcc")
    if vcc is None or len(following) < 2 or not line.startswith("s_cbranch_vcc"):
        return following
    return following[:1] if vcc == line.startswith("s_cbranch_vccnz") else following[1:]


def unfinished_at_barriers(text: str) -> Iterator[str]:
    """Words for each `s_barrier` that a wave may come to before its accesses to LDS have ended."""
    found, following = _blocks(text)
    begins: dict[tuple[str, Flags], int] = {(label, frozenset()): 0 for label in list(found)[:1]}
    left = list(begins)
    worst: dict[str, int] = {}
    while left:
        label, flags = left.pop()
        pending = begins[label, flags]
        for line in found[label]:
            if line.startswith("s_barrier") and pending:
                worst[label] = max(worst.get(label, 0), pending)
            pending = _after(line, pending)
            flags = _known(line, flags) if len(begins) < _MOST_STATES else frozenset()
        last = found[label][-1] if found[label] else ""
        for n in _goes_on(last, following[label], flags):
            if begins.get((n, flags), -1) < pending:
                begins[n, flags] = pending
                left.append((n, flags))
    for label, pending in worst.items():
        yield f"s_barrier in {label}: a wave may have {pending} LDS accesses on their way"
