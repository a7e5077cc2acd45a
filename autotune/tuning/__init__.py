"""Tuning: what a run is given, its rounds, what it stores, and what it gives back."""
