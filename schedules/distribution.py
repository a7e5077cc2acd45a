"""The project's name on the package index, and the commands of pip that errors and hints give."""

from __future__ import annotations

# `autotune` is another project there: docs/adr/0050-a-name-on-the-index.md.
NAME = "autotune-compiler"
UPGRADE = f"pip install --upgrade {NAME}"


def install(extra: str) -> str:
    """The command that installs an extra of pyproject.toml: ``pip install 'autotune-compiler[cuda]'``."""
    return f"pip install '{NAME}[{extra}]'"
