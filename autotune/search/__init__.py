"""Search policies: which candidates of a space to measure next."""
