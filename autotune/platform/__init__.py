"""What this operating system gives beside Python's library: the only room that asks it.

Each function says what it needs, and answers where the system lacks that: with nothing known, in a plainer
way, or with an `OSError` that names what is missing. No other room names files below /proc and /sys, the CPUs
of a thread, cgroups, forks, limits of processes, locks of files, pages of memory or the system's name. Code
for a target's system is another matter: `autotune/codegen/runtime/` has it.
"""
