"""Pages that are generated stay what the compiler says."""

from __future__ import annotations

import importlib.util
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"


def test_the_stages_page_is_current():
    spec = importlib.util.spec_from_file_location("make_stages", DOCS / "make_stages.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    want = module.page()
    got = (DOCS / "stages.md").read_text()
    assert got == want, "run `python docs/make_stages.py`"
