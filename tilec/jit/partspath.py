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
            …  # what it has written is told, as in `fastpath`
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
from tilec.jit.fastpath import ENDED, CallText, calls_of
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
    if None in paths or len({path.kind for path in paths if path is not None}) != 1:
        return None
    writer = _Writer(parts, made, returns, parameters)
    known: dict[Any, Any] = {}
    given = {
        "anew_": Launchable.launch_anew,
        "known_": known,
        "learn_": writer.learner(known),
        **{f"part{i}_": part for i, part in enumerate(parts)},
    }
    call, on_grid = calls_of(f"the parts of {name}", writer, given, module, reads)
    return LaunchPath(Prepared(), call, on_grid)


class _Writer(CallText):
    def __init__(
        self,
        parts: Sequence[Part],
        made: Sequence[str],
        returns: Sequence[str],
        parameters: Sequence[Parameter],
    ) -> None:
        first = parts[0].path
        assert first is not None
        super().__init__(parameters, first.kind, made, returns)
        self.parts, self.first, self.own = parts, first, list[CallText]()
        for part in parts:
            path = part.path
            assert path is not None
            told = (path.outputs, (), path.sized, path.prepared.written)
            self.own.append(CallText(part.parameters, path.kind, *told))
        self.opened = self.own[0].is_opened(False)

    @property
    def device(self) -> str:
        return self.own[0].device

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
        count = len(self.parts)
        lines = [
            *self.head(with_grid),
            "    new_, done_, facts_ = True, 0, None",
            "    try:",
            f"        new_ = extra_ or unknown_ or {changed or 'False'}",
            *([] if with_grid else self._at_once()),
            "    except Exception:",
            "        pass",
            f"    if done_ != {count}:",
            "        try:",
            "            if new_:",
            f"                {self.anew('grid_' if with_grid else 'None', 'None')}",
            *self._one_by_one(with_grid),
            *ENDED,
            *([] if with_grid else self._learn()),
            f"    return {', '.join(self.returns) or None}",
        ]
        return "\n".join(lines) + "\n"

    def _at_once(self) -> list[str]:
        """Statements that launch all parts, if that has been made ready."""
        first = self.own[0]
        facts, scalars = first.facts_and_scalars()
        facts = ["device_", "stream_", *facts]
        if self.opened:
            facts = [f"({', '.join([*facts, *first.alignments(), *scalars])},)"]
        lines = [
            "        if new_:",
            "            raise LookupError",
            *self.stream(),
            f"        facts_ = ({', '.join(facts)},)",
            f"        make_, {', '.join(f'launches{i}_' for i in range(len(self.parts)))}"
            " = known_[facts_]",
            *first.allocated(),
        ]
        before = ""
        for i, own in enumerate(self.own):
            values = ", ".join([*own.addresses(), *own.facts_and_scalars()[1]])
            if values != before:  # mostly they are those of the part before
                lines.append(f"        values_ = ({values},)")
            before = values
            lines += [
                f"        if launches{i}_[values_]():",
                "            raise LookupError",
                *(f"    {line}" for line in own.told(f"launches{i}_")),
                f"        done_ = {i + 1}",
            ]
        return lines

    def _one_by_one(self, with_grid: bool) -> list[str]:
        """Statements that call the parts that have not been launched."""
        lines: list[str] = []
        options = [f"{k}={k}" for k in self.keywords]
        for i, own in enumerate(self.own):
            call = f"part{i}_{'[grid_]' * (with_grid and not i)}({', '.join(own.names + options)})"
            results = f"{', '.join(self.outputs)} = " if self.outputs and not i else ""
            lines += [f"            if done_ < {i + 1}:", f"                {results}{call}"]
        return lines

    def _learn(self) -> list[str]:
        """Statements that note what the parts have made ready by now."""
        facts = ["facts_"]
        for own in self.own[1:]:
            facts.append(f"(device_, stream_, {', '.join(own.facts_and_scalars()[0])},)")
        return [
            "        try:",
            f"            learn_({', '.join(facts)})",
            "        except Exception:",  # arrays of another kind; nothing made ready
            "            pass",
        ]
