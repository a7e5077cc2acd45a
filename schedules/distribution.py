"""The project's name on the package index, its version, and the commands of pip that errors give."""

from __future__ import annotations

# `autotune` is another project there: docs/adr/0050-a-name-on-the-index.md.
NAME = "autotune-compiler"
VERSION = "0.3.0"
UPGRADE = f"pip install --upgrade {NAME}"


def install(extra: str) -> str:
    """The command that installs an extra of pyproject.toml: ``pip install 'autotune-compiler[cuda]'``."""
    return f"pip install '{NAME}[{extra}]'"
