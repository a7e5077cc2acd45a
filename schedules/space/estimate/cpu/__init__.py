"""Estimates of candidates for CPUs."""
