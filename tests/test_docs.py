"""Pages that are generated stay what the compiler says."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"


@pytest.mark.parametrize("name", ["stages", "debugging"])
def test_the_page_is_current(name):
    spec = importlib.util.spec_from_file_location(f"make_{name}", DOCS / f"make_{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    want = module.page()
    got = (DOCS / f"{name}.md").read_text()
    assert got == want, f"run `python docs/make_{name}.py`"


def test_the_page_of_messages_is_current():
    spec = importlib.util.spec_from_file_location("make_errors", DOCS / "make_errors.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    got = (DOCS / "errors.md").read_text()
    assert got == module.page(), "run `python docs/make_errors.py`"


def test_what_editors_know_of_functions_of_numbers_is_current():
    spec = importlib.util.spec_from_file_location("make_words", DOCS / "make_words.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.FILE.read_text() == module.text(), "run `python docs/make_words.py`"


def test_the_table_of_schedules_is_made_from_measured_rows():
    spec = importlib.util.spec_from_file_location("make_schedules", DOCS / "make_schedules.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    about = {
        "grid": "(((N + 255) // 256), ((M + 127) // 128), 1)",
        "plan": "specialised persistent (threads=256, stages=4)",
    }
    entry = {"hot": {"median": 0.21}, "about": about}
    row = {
        "operator": "gemm",
        "case": "fp16 NN 4096x4096x4096",
        "shape": [4096, 4096, 4096],
        "kind": "NN",
        "dtype": "float16",
        "candidates": {"tilec": entry},
    }
    text = (DOCS / "schedules.md").read_text()
    made = module.page(text, [row, {**row, "candidates": {}}])
    line = next(x for x in made.splitlines() if x.startswith("| fp16 NN 4096x4096x4096 |"))
    cells = [c.strip() for c in line.strip("|").split("|")]
    assert cells[1] == "128x256" and cells[4] == "210.0"
    assert 150 < float(cells[3]) < 300
    assert "1 products" in made and module.page(made, [row]) == made


def test_figures_are_those_of_the_stored_results():
    module = _made("make_results")
    again = "run `python docs/make_results.py`"
    assert module.PAGE.read_text() == module.page(), again
    assert module.README.read_text() == module.readme(), again
    assert module.PICTURE.read_text() == module.picture().text_of(), again


def test_the_fastest_peer_of_each_case_counts():
    module = _made("make_results")
    row = {"candidates": {"a": {"hot_ratio": {"median": 1.5}}, "b": {"hot_ratio": {"median": 0.5}}}}
    assert module.ratios([row, {"candidates": {}}], ("a", "b")) == [0.5]
    assert module.spread([0.5, 2.0]) == "**1.00** (0.50 to 2.00)"


def _made(name: str):
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
