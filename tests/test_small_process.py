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
LOOP = """define void @f(ptr %p) {
entry:
  br label %loop
loop:
  %i = phi i32 [0, %entry], [%next, %loop]
  %sum = phi i32 [NUMBER, %entry], [%more, %loop]
  %more = add i32 %sum, %i
  %next = add i32 %i, 1
  %last = icmp eq i32 %next, 100
  br i1 %last, label %end, label %loop
end:
  store i32 %more, ptr %p
  ret void
}
"""
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
    small = SmallProcess(whole=True)
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


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is none without fork")
def test_most_objects_for_the_cpu_are_made_by_few_passes() -> None:
    """A sum that LLVM computes when it has all passes. What is read is as tilec makes it."""
    small = SmallProcess()
    try:
        few = 0
        for number in range(24):
            text = LOOP.replace("NUMBER", str(number))
            whole = ALONE(text, CPU, MODULE._object)[0]
            few += small.made(text, CPU, MODULE._object)[0] != whole
            asm = small.made(text, CPU, MODULE._assembly)[0]
            assert asm == ALONE(text, CPU, MODULE._assembly)[0]
        assert 12 <= few < 24
    finally:
        small.end()
