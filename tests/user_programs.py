"""Kernels as users write them, with the arrays they are called with and what NumPy says they give:
`CASES` holds the programs of all the modules named here."""

import control_programs as control_programs
import product_form_programs as product_form_programs
import product_programs as product_programs
import product_step_programs as product_step_programs
import tile_programs as tile_programs
from user_case import CASES, Arrays, Case

__all__ = ["CASES", "Arrays", "Case"]
