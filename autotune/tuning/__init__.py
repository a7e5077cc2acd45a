"""Tuning: the options of a run, its rounds, its records and its result."""
