"""What the names of `tilec.language` are made of that do not stand for an op.

annotations   parameters and sizes, macros, what can be said only inside of a kernel
choices       what an author leaves to tilec, or takes from it
elementwise   functions of numbers, outside of a kernel too
foreign       what to write for the builtins of Triton, TileLang, CUDA, torch and math
"""
