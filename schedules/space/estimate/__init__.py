"""Estimates: static limits and features of candidates, for CPUs and for GPUs."""
