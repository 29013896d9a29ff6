"""The same text is assembled once in a run of the tests, in whichever worker it comes first: more
than a third of what tests compile for other reasons is."""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Once:
    """Calls of `function`, whose results for the same arguments are kept in `folder`. Where it
    raises, or `leaves_out` its arguments, nothing is kept."""

    def __init__(
        self, function: Callable[..., Any], folder: Path, leaves_out: Callable[..., bool]
    ) -> None:
        self._function, self._folder, self._leaves_out = function, folder, leaves_out
        folder.mkdir(parents=True, exist_ok=True)

    def __call__(self, *args: Any) -> Any:
        if self._leaves_out(*args):
            return self._function(*args)
        text = pickle.dumps([getattr(a, "__name__", a) for a in args])
        kept = self._folder / hashlib.sha256(text).hexdigest()
        if kept.exists():
            return pickle.loads(kept.read_bytes())
        made = self._function(*args)
        written = kept.with_suffix(f".{os.getpid()}")
        written.write_bytes(pickle.dumps(made))
        written.replace(kept)
        return made
