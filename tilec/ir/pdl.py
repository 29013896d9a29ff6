"""Programmatic dependent launch: a kernel whose blocks start while the launch before it on its
stream still runs. Numbers and names only, read from a function's attribute "pdl"."""

from __future__ import annotations

from tilec.ir.core import Func
from tilec.target import Target

PDL = ("trigger", "wait")
"""What all threads do before anything else, in this order: let the next launch begin, if it is one
that waits; wait until the launches before this one are done, and their writes are seen."""


def first_of_all(func: Func, target: Target) -> tuple[str, ...]:
    """The words of PDL that the code for `target` begins with: none where launches follow one
    another anyway."""
    asked = func.attrs.get("pdl", ()) if target.has("pdl") else ()
    return tuple(word for word in PDL if word in asked)
