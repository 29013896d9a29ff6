"""The differential fuzzer: random tile programs, whose results on every target are compared with
what their source means in NumPy.

Writing programs, as the source of a `@tilec.kernel`:

    generate     a program from a seed and a number: its grid, its inputs, its parts put together
    writer       the state of a program that is being written; the table of statements
    tiles, blocks, products, schedules
                 statements, by subject
    expressions  numbers: of what the program has, and functions of them
    program      a program: source, launch, arguments, of many strides

What they mean:

    prepared      changes the kernel's source into what Python can run, and runs it on the words of
    meaning, maths
                  the language in NumPy
    numbers       NumPy arrays of a dtype, with bounds of their errors
    buffers       tensors and tiles; what several iterations or blocks may not both touch

What becomes of them:

    outcome       runs a program on the CPU target, the simulator and a GPU, and compares
    gpu           by way of torch
    session       programs one after the other
    workers       processes that run them, and may be lost
    shrink        makes a failing program smaller
    cli           `python -m tilec fuzz`; writes a failing program as a test
"""
