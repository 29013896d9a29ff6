"""One candidate, compiled wherever an executor likes to.

A kernel that was made in a function or a notebook's cell cannot be pickled; what the compiler needs
of it can: its TILE form, and which of its parameters are what. The machine code comes back.
"""

from __future__ import annotations

import ast
import dataclasses
from typing import TYPE_CHECKING

from tilec.builtins.choices import Auto
from tilec.frontend import REQUIRED, Signature, bind_constants
from tilec.frontend.source import Source
from tilec.ir.errors import TilecError
from tilec.support.lazy import Lazy

if TYPE_CHECKING:
    from tilec.ir.core import Func
    from tilec.ir.schedule import Plan
    from tilec.jit import build
    from tilec.jit.specialise import SpecialisationKey
else:
    build = Lazy("tilec.jit.build")


@dataclasses.dataclass(frozen=True)
class Job:
    """What is compiled: a kernel traced under `key`, with `plan` (None: the safe order)."""

    signature: Signature
    key: SpecialisationKey
    func: Func
    plan: Plan | None


@dataclasses.dataclass(frozen=True)
class Made:
    """What came of a job: an image's bytes, or why there is none."""

    image: bytes = b""
    reason: str = ""


def make_job(signature: Signature, key: SpecialisationKey, func: Func, plan: Plan | None) -> Job:
    """A job that can be pickled whatever the kernel's source names."""
    bound = bind_constants(signature, key.values)
    source = bound.source
    header = ast.parse(f"def {source.name}(): pass").body[0]
    assert isinstance(header, ast.FunctionDef)
    bare = Source(_nothing, source.file, header, (), source.first_line, {}, {}, {})
    parameters = tuple(
        p if isinstance(p.default, Auto) else dataclasses.replace(p, default=REQUIRED)
        for p in bound.parameters
    )
    signature = dataclasses.replace(bound, source=bare, parameters=parameters, pending=False)
    key = dataclasses.replace(key, choice=str, values={})
    return Job(signature, key, func, plan)


def _nothing() -> None:
    """In the place of a kernel's function, which nothing asks for once it is traced."""


def load_compiler() -> None:
    """What the first job would wait for, beside what predicts which jobs there are."""
    _ = build.compile_variant


def compile_job(job: Job) -> Made:
    """Compile it, here. What the compiler refuses is a reason, not an exception."""
    try:
        made = build.compile_variant(job.signature, job.key, job.func, job.plan)
        return Made(made.image.to_bytes())
    except TilecError as error:
        return Made(reason=error.message)
