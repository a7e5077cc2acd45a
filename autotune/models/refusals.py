"""What an importer says of nodes that it cannot import: all of them, in one error."""

from __future__ import annotations

from collections.abc import Mapping

from autotune.errors import ModelError

SHOWN = 5  # nodes that are named for each operator and reason


def refusal(label: str, unsupported: Mapping[str, Mapping[str, str]], remedy: str = "") -> ModelError:
    """The error for a model. ``label``: what the model is called. ``unsupported``: {operator: {node: why}}.
    ``remedy``: what ends the message."""
    lines = []
    for op, nodes in sorted(unsupported.items()):
        reasons: dict[str, list[str]] = {}
        for node, why in nodes.items():
            reasons.setdefault(why, []).append(node)
        for why, names in reasons.items():
            more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            lines.append(f"  {op} ({len(names)}): {', '.join(names[:SHOWN])}{more}: {why}")
    count = sum(map(len, unsupported.values()))
    return ModelError(
        f"{label}: {count} node{'s' * (count != 1)} cannot be imported:\n" + "\n".join(lines) + remedy
    )
