"""What every part may use, and what uses no part.

ahead   work that may be needed, done where processors are idle
lazy    modules that are loaded at their first use
tools   programs beside tilec
"""
