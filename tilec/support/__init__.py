"""What every part may use, and what uses no part.

lazy    modules that are loaded at their first use
tools   programs beside tilec
"""
