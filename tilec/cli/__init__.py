"""Commands of `python -m tilec` that take a user's file, and what they have in common.

usage      errors of wrong calls, and a parser that suggests the option that was meant
kernels    the kernel that `FILE.py:name` means
arguments  arrays and numbers to call it with, from the command line
simulate   `python -m tilec simulate`
"""
