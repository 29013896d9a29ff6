"""What reports, compiled kernels and recommendations print, and show in a notebook: escaped."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import numpy as np

import tilec
import tilec.language as T
from tilec.ir.loc import Loc
from tilec.jit.describe import rows_of
from tilec.sim.counts import Counts, LineCount
from tilec.sim.findings import Finding
from tilec.sim.report import Report
from tilec.support.rich import aligned, escape, html_table, size_text, time_text
from tilec.tune import Ranked, Recommendations

M, N, K = T.dynamic("M, N, K")
SPECS = [tilec.spec((1024, 1024), "float16")] * 3


@tilec.kernel
def product(
    A: T.Tensor((M, K), "float16"),
    B: T.Tensor((K, N), "float16"),
    C: T.Tensor((M, N), "float16"),
    BM: T.constexpr = 128,
):
    with T.Kernel(T.ceildiv(N, 128), T.ceildiv(M, BM), threads=128) as (bx, by):
        a = T.alloc_shared((BM, 64), "float16")
        b = T.alloc_shared((64, 128), "float16")
        acc = T.alloc_fragment((BM, 128), "float32")
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(K, 64), num_stages=2):
            T.copy(A[by * BM, k * 64], a)
            T.copy(B[k * 64, bx * 128], b)
            T.gemm(a, b, acc)
        T.copy(acc, C[by * BM, bx * 128])


class Page(HTMLParser):
    """The text of HTML, and whether its tags close one another."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.tags: list[str] = []
        self.feed(html)
        assert self.open == [], self.open

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.open.append(tag)
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_cells_are_escaped() -> None:
    page = Page(html_table([("<script>x</script>", 'a"b&c')], ("<h>", "'")))
    assert "script" not in page.tags and "<script>x</script>" in page.text
    assert escape("""<a b="c'">&""") == "&lt;a b=&quot;c&#x27;&quot;&gt;&amp;"


def test_columns_stand_below_one_another() -> None:
    text = aligned([("a", "10", "x"), ("long", "9", "y z")], ("name", "n", ""), right=(1,))
    assert text == "name   n\na     10  x\nlong   9  y z"
    assert aligned([]) == ""


def test_numbers_for_people() -> None:
    assert [size_text(n) for n in (0, 213_056, 1.24e6, 3e9)] == [
        "0 B", "213,056 B", "1.2 MB", "3.0 GB",
    ]  # fmt: skip
    assert [time_text(s) for s in (6.14e-6, 1.523e-3, 2.34, 4000)] == [
        "6.14 us", "1.52 ms", "2.34 s", "4,000 s",
    ]  # fmt: skip


def test_a_compiled_kernel_says_what_it_takes() -> None:
    compiled = product.compile(*SPECS, target="cuda:sm_90a")
    text, page = str(compiled), Page(compiled._repr_html_())
    r = compiled.resources
    for said in (
        "product for cuda:sm_90a",
        "C: float16 (M, N), written",
        compiled.plan.describe(),
        f"{r.registers} of each of {r.threads} threads",
        f"{r.shared_bytes:,} of 232,448 bytes",
        f"a {r.buffers['a']:,}, ",
    ):
        assert said in text
    rows = rows_of(compiled.image, compiled.plan.describe())
    assert len(rows) >= 8 and all(cell in page.text and cell in text for r in rows for cell in r)
    assert repr(compiled).startswith("<product(")
    on_cpu = str(product.compile(*SPECS, target="cpu"))
    assert "registers" not in on_cpu and "object, " in on_cpu


def test_recommendations_are_a_table_and_still_a_tuple() -> None:
    found = tilec.recommend(product, *SPECS, target="cuda:sm_90a", topk=3)
    assert isinstance(found, tuple) and isinstance(found[0], Ranked)
    lines = str(found).splitlines()
    assert lines[0].split()[:2] == ["predicted", "configuration"]
    assert found[0].configuration in lines[1] and "matrix unit" in str(found)
    page = Page(found._repr_html_())
    assert found[0].configuration in page.text and "predicted, not measured" in page.text
    assert page.text.count("specialised") >= 3
    rejected = [r for r in found if r.estimate is None]
    assert all(r.reason in page.text and r.reason in str(found) for r in rejected)
    assert Page(found[0]._repr_html_()).text.startswith(found[0].configuration)
    assert str(Recommendations()) == "nothing to choose" and Recommendations() == ()
    odd = Recommendations((Ranked({"<b>": 1}, None, reason="<i>"),))
    assert not {"b", "i"} & {*Page(odd._repr_html_()).tags}


def test_a_report_shows_findings_and_counts() -> None:
    loc = Loc("<k>.py", 3, 0, 4)
    report = Report("k<1>", "cuda:sm_80", "plain", (1, 1, 1), 1, 1)
    report.findings = (Finding("data race", "two <b>writes</b> & a read", (loc,), buffer="s"),)
    report.counts = Counts([LineCount(loc, wavefronts=8, ideal_wavefronts=2, ways=4)])
    report.sources = {("<k>.py", 3): 'x = "<script>"'}
    page = Page(report._repr_html_())
    assert not {"b", "script", "k"} & {*page.tags}
    for said in (
        "k<1> for cuda:sm_80",
        "two <b>writes</b> & a read",
        '3: x = "<script>"',
        "8 (4x)",
    ):
        assert said in page.text, said
    assert re.search(r"8 \(4x\) \(4 ways\)  3: x", str(report))


def test_the_report_of_a_run_prints_and_shows_the_same_counts() -> None:
    a = np.ones((64, 64), np.float16)
    report = tilec.simulate(product, a, a, a.copy(), target="cuda:sm_80", BM=64)
    page = Page(report._repr_html_())
    titles, rows = report.counts.cells()
    assert "shared wavefronts" in titles and len(rows) > 3
    assert all(cell.strip() in page.text for row in rows for cell in row)
    assert all(cell.strip() in str(report) for row in rows for cell in row)
