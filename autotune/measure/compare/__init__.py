"""Comparing a tuned kernel with other libraries."""
