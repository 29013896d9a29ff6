"""Where the user's code called into tilec, for messages about calls rather than kernels.

A kernel's lines come from its syntax tree; a call such as `T.Tensor((N,), "flaot16")` or `add(a)`
is only known by the frame that makes it. `for_users` wraps what users call: an error raised on
purpose leaves it with that place, and without the forty frames of the compiler below; so does a
call that does not fit the function's signature. A bug of tilec's becomes an InternalError with a
line of theirs, whatever was raised inside (`told_as_internal`).
"""

from __future__ import annotations

import functools
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from types import FrameType
from typing import Any, NoReturn, ParamSpec, TypeVar

from tilec.ir.errors import CompileError, InternalError, TilecError
from tilec.ir.loc import Loc

LAUNCHER = "<tilec launch"
"""How the names of the files begin that generated launch paths are from."""

# Whose frames are between a user's line and tilec: an operator's call goes through torch.
_BETWEEN = ("tilec", "torch", "functools", "typing")
_WHY_OPAQUE = (
    "a tilec kernel is launched here, which breaks the graph; tilec.torch.register(kernel, …) "
    "makes an operator of it, which does not"
)

_P = ParamSpec("_P")
_R = TypeVar("_R")


def caller_loc() -> Loc | None:
    """The innermost place outside tilec that is being executed; None where there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _is_ours(frame):
        frame = frame.f_back
    return None if frame is None else _place(frame)


def _is_ours(frame: FrameType) -> bool:
    if frame.f_code.co_filename.startswith(LAUNCHER):  # it has the globals of the user's module
        return True
    module = frame.f_globals.get("__name__") or ""
    return module.split(".")[0] in _BETWEEN


def _place(frame: FrameType) -> Loc:
    code = frame.f_code
    positions = next(islice(code.co_positions(), frame.f_lasti // 2, None), (None,) * 4)
    line, last, start, end = positions
    if line is None or start is None or end is None:
        return Loc(code.co_filename, frame.f_lineno)
    text = Loc(code.co_filename, line).source_line()
    shown = text.encode()  # columns count bytes
    start = len(shown[:start].decode(errors="ignore"))
    stop = len(shown[:end].decode(errors="ignore")) if last == line else len(text)
    return Loc(code.co_filename, line, start, stop)


def for_users(
    function: Callable[_P, _R], behind: Callable[[str], NoReturn] | None = None
) -> Callable[_P, _R]:
    """`function` with its errors made for users: see the module's opening. Bugs of tilec
    (InternalError) keep their whole traceback. torch.compile runs it as it is. `behind`: what
    raises, of its name, where it has taken its arguments."""
    unseen: list[Callable[_P, _R]] = []

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        run = function
        if "torch._dynamo" in sys.modules:
            if not unseen:
                _skip(call)
                unseen.append(sys.modules["torch"].compiler.disable(function))
            run = unseen[0]
        try:
            try:
                found = run(*args, **kwargs)
                return found if behind is None else behind(function.__name__)
            except TypeError as e:
                frames = traceback.walk_tb(e.__traceback__)
                if isinstance(e, TilecError) or any(frame.f_code is code for frame, _ in frames):
                    raise
                # Python's own: an argument too many, too few, or of another name.
                hint = f"write {_shape_of(function)}"
                raise CompileError(str(e), caller_loc(), hint) from None
        except TilecError as e:
            end_at_caller(e)
            raise

    code = getattr(function, "__code__", None)
    return opaque(call)


def opaque(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """`function`, which torch.compile calls without a look into it: what it does with addresses has
    no meaning for a tensor that is being traced. It breaks the graph there, or says why it will
    not."""
    function.__dict__.update(_torchdynamo_disable=True, _torchdynamo_disable_msg=_WHY_OPAQUE)
    if hasattr(function, "__code__"):
        _skip(function)
    return function


def _skip(function: Any) -> None:
    """Let torch.compile, if it is there, run frames of `function` as they are, and what they call:
    a graph that is there already calls a launch path without having met it."""
    if (dynamo := sys.modules.get("torch._dynamo")) is None:
        return
    types: Any = getattr(dynamo, "types", None)
    if hasattr(types, "FrameExecStrategy"):
        skipped = types.FrameExecStrategy(types.FrameAction.SKIP, types.FrameAction.SKIP)
        dynamo.eval_frame.set_code_exec_strategy(function.__code__, skipped)
    else:  # before torch 2.7
        dynamo.eval_frame.skip_code(function.__code__)


opaque(_skip)


def end_at_caller(error: BaseException) -> None:
    """Let an error that was raised on purpose end at who called the function whose `except` asks
    for it, which goes on with a bare `raise`: that alone adds no frame to the traceback."""
    if isinstance(error, TilecError) and not isinstance(error, InternalError):
        if error.loc is None:
            error.loc = caller_loc()
        error.__suppress_context__ = True
        error.__traceback__ = None


def _shape_of(function: Callable[..., object]) -> str:
    """A function's name and the names of its parameters."""
    signature = inspect.signature(function)
    names = [
        p.replace(annotation=inspect.Parameter.empty)
        for p in signature.parameters.values()
        if p.name != "self"
    ]
    bare = signature.replace(parameters=names, return_annotation=inspect.Signature.empty)
    return f"{function.__name__}{bare}"


_CALLED = (sys.stdlib_module_names | {"numpy", "llvmlite", "ml_dtypes"}) - {"__main__"}
"""Whose code raises for who calls it."""

_LINE = "line_of_the_kernel"


@contextmanager
def told_as_internal(doing: str, loc: Loc | None) -> Iterator[None]:
    """Around work of tilec's on a kernel: what it raises that is not meant for users becomes an
    InternalError at the line noted with it, or else at `loc`. What code of the user's raises, which
    tilec calls, stays as it is; and so does what is no fault of anybody's code: a warning that the
    user's filters make an error, a machine without a file, a disk or memory."""
    try:
        yield
    except (TilecError, Warning, OSError, MemoryError):
        raise
    except Exception as e:
        where = _innermost(e)
        if where is None:
            raise
        said = f"{type(e).__name__}: {e}" if str(e) else type(e).__name__
        raise InternalError(
            f"{doing}, tilec met {said} ({where})",
            getattr(e, _LINE, loc),
            "this is a fault of tilec's: please report it with the kernel",
        ) from e


def note_line(error: Exception, loc: Loc) -> None:
    """Keep with an error the innermost statement that it leaves."""
    error.__dict__.setdefault(_LINE, loc)


def _innermost(error: Exception) -> str | None:
    """Where in tilec it was raised; None where that is somebody else's code."""
    for frame, line in reversed([*traceback.walk_tb(error.__traceback__)]):
        module = str(frame.f_globals.get("__name__") or "")
        if module.split(".")[0] in _CALLED:
            continue
        ours = module.split(".")[0] == "tilec" or frame.f_code.co_filename.startswith(LAUNCHER)
        return f"{module}:{line}" if ours else None
    return None
