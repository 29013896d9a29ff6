"""Measurements of tilec against its peers, in one process with them; results are JSON files."""
