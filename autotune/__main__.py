"""``python -m autotune`` is the command line."""

from __future__ import annotations

from autotune.cli import main

if __name__ == "__main__":
    main()
