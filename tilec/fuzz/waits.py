"""What a wave of an AMD program has on its way when it comes to a barrier: a walk over the control
flow of the assembly (MI300 ISA, "Data Dependency Resolution": the counter LGKM_CNT)."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence

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


Flags = frozenset[tuple[str, str]]
"""What is known of pairs of scalar registers: "0"; "-1", all ones; "some", not 0; or the name of
another pair, of which one or the other is not 0. With pairs that are 0 or all ones LLVM notes by
which way a wave has come, and leaves out what does not lie on it. In code that all threads run it
may write a jump as `s_cbranch_execnz`, and takes for sure that no wave goes on behind it: a wave
begins with lanes, those that a condition turns off are kept in a pair, and come back from it."""

_LANES = re.compile(r"\b(s_(?:and_|or_|andn2_)?(?:mov|and|andn2|or|xor|saveexec))_b32\b")


def _of_waves(text: str) -> str:
    """Code of waves of 32 lanes, whose masks are single registers, in the words of those of 64."""
    if ".amdhsa_wavefront_size32 1" not in text:
        return text
    text = re.sub(r"\b(vcc|exec)_lo\b", r"\1", text.replace("s_and_not1_", "s_andn2_"))
    return _LANES.sub(r"\1_b64", text)


_PAIR = re.compile(r"s\[(\d+):(\d+)\]|s(\d+)|vcc|exec")
_MOST_STATES = 20_000


@functools.lru_cache(maxsize=1 << 14)
def _registers(text: str) -> frozenset[int | str]:
    """Scalar registers that are named."""
    found: set[int | str] = set()
    for m in _PAIR.finditer(text):
        first, last, single = m.groups()
        if first:
            found.update(range(int(first), int(last) + 1))
        else:
            found.add(int(single) if single else m[0])
    return frozenset(found)


@functools.lru_cache(maxsize=1 << 14)
def _changes(line: str) -> tuple[frozenset[int | str], str, tuple[str, ...]]:
    """The scalar registers that an instruction changes, at most, and the word and operands of one
    whose results may be known ("": they are not). A line is met in many states."""
    word, _, rest = line.partition(" ")
    operands = tuple(x.strip() for x in rest.split(","))
    saves = "saveexec" in word
    changed = _registers(" ".join(operands[: 1 if word.startswith("s_") else 2]))
    if saves or word.startswith("v_cmpx") or "wrexec" in word:
        changed |= {"exec"}
    known = word in ("s_mov_b64", "s_and_b64", "s_andn2_b64", "s_or_b64", "s_xor_b64") or saves
    return changed, word.removeprefix("s_").removesuffix("_b64") if known else "", operands


def _known(line: str, flags: Flags) -> Flags:
    """What is known of pairs behind an instruction."""
    changed, word, operands = _changes(line)
    if not changed and not word:
        return flags
    kept = {pair: x for pair, x in flags if changed.isdisjoint(_registers(f"{pair} {x}"))}
    if word:
        kept |= _computed(word, operands, dict(flags))
    return frozenset(kept.items())


def _computed(word: str, operands: Sequence[str], flags: dict[str, str]) -> dict[str, str]:
    """What is known of the results of a scalar instruction, of what was known before it."""
    to, a, b = operands[0], operands[1], operands[-1]

    def value(x: str) -> str | None:
        known = x if x in ("0", "-1") else flags.get(x)
        return known if known in ("0", "-1", "some") else None

    def lanes(*pairs: str) -> bool:
        """One of the pairs is not 0."""
        return any(value(x) in ("-1", "some") or flags.get(x) in pairs for x in pairs)

    def masked(by: str | None) -> str | None:
        return value("exec") if by == "-1" else by if by == "0" else None

    found: dict[str, str | None] = {}
    match word:
        case "mov":
            found[to] = value(a)
        case "and" if a == "exec":
            found[to] = masked(value(b))
        case "andn2" if a == "exec" and value(b) in ("0", "-1"):
            found[to] = masked("0" if value(b) == "-1" else "-1")
        case "or" if lanes(a, b):
            found[to] = "some"
        case "andn2" | "xor" if to == a == "exec" != b and lanes(a, b):
            found[to] = b  # where what left it is
        case "xor" if a == "exec" != to and not lanes(a) and lanes(a, b):
            found["exec"] = to  # where what of b it lacks is
        case "and_saveexec":
            found[to], found["exec"] = value("exec"), masked(value(a))
        case "or_saveexec" if lanes("exec", a):
            found[to], found["exec"] = value("exec"), "some"
        case "andn2_saveexec" if lanes("exec", a):
            found["exec"] = to  # which holds what it was
    return {pair: known for pair, known in found.items() if known}


def _goes_on(line: str, following: list[str], flags: Flags) -> Iterator[tuple[str, Flags]]:
    """Those of the labels behind a block that ends with `line` where a wave may go, and what is
    known there."""
    jump = re.match(r"s_cbranch_(vcc|exec)(n?)z", line)
    if jump is None or len(following) < 2:
        yield from ((label, flags) for label in following)
        return
    pair = jump[1]
    known = dict(flags).get(pair)
    for label, on in zip(following, (jump[2] == "n", jump[2] != "n")):
        if known in ("-1", "some", "0"):
            if on != (known == "0"):
                yield label, flags
        elif pair == "vcc":
            yield label, flags
        else:
            there = {f for f in flags if f[0] != pair} | {(pair, "some" if on else "0")}
            if known and not on:
                there = {f for f in there if f[0] != known} | {(known, "some")}
            yield label, frozenset(there)


@functools.lru_cache(maxsize=1 << 14)
def _tells(line: str) -> bool:
    """Whether an instruction says something of what is on its way, or of scalar registers."""
    changed, word, _ = _changes(line)
    return bool(changed or word or line.startswith(("s_barrier", "s_waitcnt", "ds_")))


def unfinished_at_barriers(text: str) -> Iterator[str]:
    """Words for each `s_barrier` that a wave may come to before its accesses to LDS have ended."""
    found, following = _blocks(_of_waves(text))
    told = {label: [line for line in lines if _tells(line)] for label, lines in found.items()}
    at_first: Flags = frozenset({("exec", "some")})
    begins: dict[tuple[str, Flags], int] = {(label, at_first): 0 for label in list(found)[:1]}
    left = list(begins)
    worst: dict[str, int] = {}
    while left:
        label, flags = left.pop()
        pending = begins[label, flags]
        for line in told[label]:
            if line.startswith("s_barrier") and pending:
                worst[label] = max(worst.get(label, 0), pending)
            pending = _after(line, pending)
            flags = _known(line, flags) if len(begins) < _MOST_STATES else frozenset()
        last = found[label][-1] if found[label] else ""
        for there in _goes_on(last, following[label], flags):
            if begins.get(there, -1) < pending:
                begins[there] = pending
                left.append(there)
    for label, pending in worst.items():
        yield f"s_barrier in {label}: a wave may have {pending} LDS accesses on their way"
