"""The way of a call of a kernel with several T.Kernel that has been made before.

What the parts' own paths would read again for each of them is read once: the facts of the
arguments, from which those of what the call allocates follow. For `def k(A, B, n: T.int32)` with
`W = T.empty(…)`, two T.Kernel and torch tensors it is

    def call(kernel, A=REQUIRED, B=REQUIRED, n_=REQUIRED, /, *extra, n=REQUIRED, stream=None,
    threads=None, **unknown):
        …  # what is given by name, as in `fastpath`
        anew, done, facts = True, 0, None
        try:
            anew = extra or unknown or T is not value0_
            if anew: raise LookupError
            …  # device, stream and facts, as in `fastpath`
            make, launches0, launches1 = known[facts]
            W = make[0]()
            if launches0[A.data_ptr(), B.data_ptr(), W.data_ptr(), n](): raise LookupError
            done = 1
            if launches1[A.data_ptr(), B.data_ptr(), W.data_ptr(), n](): raise LookupError
            done = 2
        except Exception:
            pass
        if done != 2:
            try:
                if anew:
                    return launch_anew(kernel, None, {"A": A, "B": B, "n": n}, extra, unknown, None)
                if done < 1:
                    W = part0(A, B, n, stream=stream, threads=threads)
                if done < 2:
                    part1(A, B, n, W, stream=stream, threads=threads)
                learn(facts, …)  # what the parts have made ready by now
            except Exception as error:
                end(error)  # at who called
                raise

What is wrong with arguments, or missing, is for the parts to tell.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tilec.jit.captured import Reads
from tilec.jit.fastpath import (
    ARRAY_KINDS,
    LAUNCH_KEYWORDS,
    address_texts,
    alignment_texts,
    asked_for,
    device_text,
    facts_and_scalars,
    function_of,
    given_by_name,
    head_of,
    is_opened,
    stream_text,
)
from tilec.jit.launchpath import Launchable, LaunchPath
from tilec.jit.recipe import LIMIT, Prepared, put
from tilec.runtime.arguments import Parameter


class Part(Protocol):
    """A kernel with one T.Kernel: `tilec.Kernel`."""

    @property
    def path(self) -> LaunchPath | None: ...

    @property
    def parameters(self) -> tuple[Parameter, ...]: ...


def write_parts_path(
    name: str,
    parts: Sequence[Part],
    made: Sequence[str],
    returns: Sequence[str],
    parameters: Sequence[Parameter],
    module: dict[str, Any],
    reads: Reads,
) -> LaunchPath | None:
    """The launch path of the kernel `name` that is `parts`, of which the first gives the arrays
    `made`; it has the globals of `module`, and looks whether `reads` are as they were. None while a
    part has no path, or they are for different kinds of array."""
    paths = [part.path for part in parts]
    if any(path is None or path.kind != paths[0].kind for path in paths if paths[0]):
        return None
    writer = _Writer(parts, made, returns, parameters)
    test = reads.test(module, {"kernel_", *LAUNCH_KEYWORDS, *made, *(p.name for p in parameters)})
    known: dict[Any, Any] = {}
    given = {
        **asked_for(parameters),
        "anew_": Launchable.launch_anew,
        "known_": known,
        "learn_": writer.learner(known),
        **{f"part{i}_": part for i, part in enumerate(parts)},
        **test.values,
        **test.cells,
    }
    call, on_grid = (
        function_of(
            f"the parts of {name}{' with grid' if with_grid else ''}",
            writer.text(with_grid, test.text or "False"),
            given,
            test.cells,
            module,
        )
        for with_grid in (False, True)
    )
    return LaunchPath(Prepared(), call, on_grid)


class _Writer:
    """Writes `call`."""

    def __init__(
        self,
        parts: Sequence[Part],
        made: Sequence[str],
        returns: Sequence[str],
        parameters: Sequence[Parameter],
    ) -> None:
        self.parts, self.made, self.returns, self.parameters = parts, made, returns, parameters
        names = [p.name for p in parameters]
        self.keywords = [k for k in LAUNCH_KEYWORDS if k not in names]
        first = parts[0].path
        assert first is not None
        self.first, self.reads = first, ARRAY_KINDS[first.kind]
        self.opened = is_opened(parts[0].parameters, False, first.outputs)

    def learner(self, known: dict[Any, Any]) -> Callable[..., None]:
        """What notes in `known`, for the facts of the first part, what makes the outputs and the
        launches that each part has made ready for its own facts. Raises KeyError if there are none
        yet."""

        def learn(*facts: Any) -> None:
            every = zip((part.path for part in self.parts), facts)
            launches = [path.prepared.memo[own] for path, own in every if path is not None]
            key = facts[0][0] if self.opened else facts[0]
            make = self.first.prepared.plans[key] if self.first.outputs else ()
            put(known, facts[0], (make, *launches), LIMIT)

        return learn

    def text(self, with_grid: bool, changed: str) -> str:
        given = ", ".join(f"{p.name!r}: {p.name}" for p in self.parameters)
        options = ", ".join(f"{k!r}: {k}" for k in self.keywords)
        count = len(self.parts)
        lines = [
            head_of(self.parameters, self.keywords, with_grid),
            *given_by_name(self.parameters),
            "    new_, done_, facts_ = True, 0, None",
            "    try:",
            f"        new_ = extra_ or unknown_ or {changed}",
            *([] if with_grid else self._at_once()),
            "    except Exception:",
            "        pass",
            f"    if done_ != {count}:",
            "        try:",
            "            if new_:",
            f"                return anew_(kernel_, {'grid_' if with_grid else 'None'},"
            f" {{{given}}}, extra_, {{**unknown_, {options}}}, None)",
            *self._one_by_one(with_grid),
            "        except Exception as error_:",
            "            end_(error_)",
            "            raise",
            *([] if with_grid else self._learn()),
            f"    return {', '.join(self.returns) or None}",
        ]
        return "\n".join(lines) + "\n"

    def _at_once(self) -> list[str]:
        """Statements that launch all parts, if that has been made ready."""
        first = self.parts[0].parameters
        device = device_text(first, self.reads)
        facts, scalars = facts_and_scalars(first, self.reads, self.first.sized)
        facts = ["device_", "stream_", *facts]
        if self.opened:
            facts += alignment_texts(first, self.reads)
            facts = [f"({', '.join([*facts, *scalars])},)"]
        lines = [
            "        if new_:",
            "            raise LookupError",
            *stream_text(device, self.keywords),
            f"        facts_ = ({', '.join(facts)},)",
            f"        make_, {', '.join(f'launches{i}_' for i in range(len(self.parts)))}"
            " = known_[facts_]",
            *(f"        {name} = make_[{i}]()" for i, name in enumerate(self.first.outputs)),
        ]
        before = ""
        for i, part in enumerate(self.parts):
            outputs = () if i else self.first.outputs
            scalars = facts_and_scalars(part.parameters, self.reads, ())[1]
            addresses = address_texts(part.parameters, self.reads)
            addresses += [self.reads.of(name, self.reads.address) for name in outputs]
            values = ", ".join([*addresses, *scalars])
            if values != before:  # mostly they are those of the part before
                lines.append(f"        values_ = ({values},)")
            before = values
            lines += [
                f"        if launches{i}_[values_]():",
                "            raise LookupError",
                f"        done_ = {i + 1}",
            ]
        return lines

    def _one_by_one(self, with_grid: bool) -> list[str]:
        """Statements that call the parts that have not been launched."""
        lines: list[str] = []
        options = [f"{k}={k}" for k in self.keywords]
        for i, part in enumerate(self.parts):
            names = ", ".join([*(p.name for p in part.parameters), *options])
            call = f"part{i}_{'[grid_]' if with_grid and not i else ''}({names})"
            results = f"{', '.join(self.made)} = " if self.made and not i else ""
            lines += [f"            if done_ < {i + 1}:", f"                {results}{call}"]
        return lines

    def _learn(self) -> list[str]:
        """Statements that note what the parts have made ready by now."""
        facts = ["facts_"]
        for part in self.parts[1:]:
            own = facts_and_scalars(part.parameters, self.reads, ())[0]
            facts.append(f"(device_, stream_, {', '.join(own)},)")
        return [
            "        try:",
            f"            learn_({', '.join(facts)})",
            "        except Exception:",  # arrays of another kind; nothing made ready
            "            pass",
        ]
