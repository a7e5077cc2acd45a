"""What this CPU can do at most: arithmetic, traffic, and the roofline of both."""
