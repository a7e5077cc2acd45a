"""Loading a tuned kernel and calling it: on arrays of the host, and on arrays of a device."""
