"""Estimates of candidates for GPUs."""
