"""Measurements of tilec against its peers, each in the peers' own process; results are committed as JSON."""
