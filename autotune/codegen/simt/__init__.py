"""Code for GPUs: one C generator, and a dialect for each language."""
