"""Lowering passes: each takes a statement to a statement with the same meaning. `lower.py` lists
them in order."""
