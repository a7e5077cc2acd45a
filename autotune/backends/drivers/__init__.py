"""Devices: what loads, runs and times code on them (`protocol`), and what the machine itself can do."""
