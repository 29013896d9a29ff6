"""The process that tests ask for LLVM's work."""

from __future__ import annotations

import os

import pytest
from small_process import ALONE, MODULE, SmallProcess

from tilec.codegen.isolated import Ended
from tilec.ir.errors import InternalError
from tilec.target import find_target

CPU = find_target("cpu")
TEXT = "define void @f(ptr %p) {\n  store i32 NUMBER, ptr %p\n  ret void\n}\n"
REFUSED = "define void @f() {\n  ret i32 0\n}\n"
ENDS = """declare void @llvm.amdgcn.s.barrier()
define void @f() {
  call void @llvm.amdgcn.s.barrier()
  ret void
}
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is none without fork")
def test_it_answers_as_tilec_does() -> None:
    """To one text after another, behind one that LLVM refuses, and behind one that ends the process
    which LLVM is in."""
    small = SmallProcess()
    try:
        for number, wrong in enumerate((None, None, REFUSED, ENDS)):
            if wrong is not None:
                said = []
                for made in (small.made, ALONE):
                    with pytest.raises(InternalError) as caught:
                        made(wrong, CPU, MODULE._object)
                    said.append((type(caught.value), caught.value.message))
                assert said[0] == said[1] and (said[0][0] is Ended) == (wrong is ENDS)
            text = TEXT.replace("NUMBER", str(number))
            code, seconds = small.made(text, CPU, MODULE._object)
            assert code == ALONE(text, CPU, MODULE._object)[0] and seconds["emit"] > 0
    finally:
        small.end()
