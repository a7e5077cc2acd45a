"""Sketch rules: how the structure of a schedule follows from the compute DAG."""
