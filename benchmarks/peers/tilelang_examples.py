"""The programs of TileLang's own examples, loaded from a checkout: TILELANG_SOURCE names it.

Importing this module fails where the variable, TileLang or the folder is missing: then the peer is
not measured.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
import logging
import os
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import tilelang

logging.getLogger("tilelang").setLevel(logging.WARNING)

SOURCE = Path(os.environ["TILELANG_SOURCE"]).resolve()
_TRACING = threading.Lock()  # compiling is for several threads at a time, tracing for one
_ABSENT = "example_gqa_sink_fwd_bhsd"  # a benchmark imports it, to compare; no checkout has it


@functools.cache
def program(path: str) -> ModuleType:
    """A file of the checkout's examples, by its path there; it finds the files beside it."""
    file = SOURCE / "examples" / f"{path}.py"
    if not file.exists():
        raise FileNotFoundError(f"TILELANG_SOURCE has no {file.relative_to(SOURCE)}")
    if _ABSENT not in sys.modules:
        stand_in = ModuleType(_ABSENT)
        stand_in.__getattr__ = lambda name: None  # type: ignore[method-assign]
        sys.modules[_ABSENT] = stand_in
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(file.parent))
    try:
        sys.modules[file.stem] = module
        with contextlib.redirect_stdout(io.StringIO()):
            spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(file.parent))
    return module


@functools.cache
def compiled(path: str, function: str, *args: Any, **settings: Any) -> Any:
    """What the program's function, under tilelang.jit, gives for these arguments; a tuner around it
    is passed by: `settings` say what it would try."""
    with _TRACING:
        made = getattr(program(path), function)
        made = getattr(made, "jit_impl", made)
        traced = made.get_tir(*args, **settings)
    return tilelang.compile(
        traced,
        out_idx=made.out_idx,
        pass_configs=made.pass_configs,
        compile_flags=made.compile_flags,
    )
