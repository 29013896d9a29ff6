"""The differential fuzzer: random tile programs, whose results on every target are compared with
what their source means in NumPy.

    writer, words   write a random program as the source of a `@tilec.kernel`
    arrays          the arguments it is called with, of many strides
    numbers         NumPy arrays of a dtype, with bounds of their errors
    buffers         tensors and tiles; what several iterations or blocks may not both touch
    meaning         the words of the language on these
    prepared        runs the source of a kernel on them
    outcome         runs a program on the CPU target, the simulator and a GPU, and compares
    shrink          makes a failing program smaller
    cli             `python -m tilec fuzz`
"""
