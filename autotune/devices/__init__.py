"""What the machine itself can do: peaks and bandwidths."""
