"""What both importers share: where nodes are noted, what is told of those that cannot be imported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from autotune.errors import ModelError
from autotune.models.operators.base import Array, UnsupportedForm
from autotune.models.operators.known import KnownTensor
from schedules import te
from schedules.errors import AutotuneError
from schedules.te.tensors import Op
from schedules.units import some

SHOWN = 5  # nodes that are named for each operator and reason


@dataclass(frozen=True)
class Gap:
    """Stands for what a node makes that has no expression, and why."""

    why: str = ""


@dataclass
class Frame:
    """State of one import. ``label``: what messages call the model. ``constants``: {input of the graph: its
    values}. ``origins``: {stage: path of its node}. ``unsupported``: {operator: {path: reason}}."""

    label: str
    constants: dict[te.Tensor, Array] = field(default_factory=dict)
    origins: dict[Op, str] = field(default_factory=dict)
    unsupported: dict[str, dict[str, str]] = field(default_factory=dict)
    # {place: what lies there, which must stay, and its input}.
    _placeholders: dict[Any, tuple[KnownTensor, te.Tensor]] = field(default_factory=dict)

    def constant(self, known: KnownTensor) -> te.Tensor:
        """The input of the graph that has the values of what is known. Raises ModelError."""
        found = self._placeholders.get(known.place)
        if found is None:
            name = known.name or "known"
            self.check_constant(known, name)
            found = self._placeholders[known.place] = known, te.placeholder(known.shape, known.dtype, name)
            self.constants[found[1]] = known.array()
        return found[1]

    def check_constant(self, known: KnownTensor, name: str) -> None:
        """Raise ModelError for values that no input of a graph has."""
        raise NotImplementedError

    def lowered(self, op: str, path: str, make: Callable[[], Any], kind: str = "") -> Any:
        """What ``make`` states for a node; a `Gap`, which is remembered, where it has no expression.
        ``kind``: what the operator is called then, if not ``op``. Raises ModelError, which names the node
        once."""
        try:
            made = make()
        except UnsupportedForm as err:
            return self.gap(kind or op, path, str(err))
        except (ModelError, AutotuneError, ValueError, TypeError, LookupError, ArithmeticError) as err:
            named = str(err).startswith(f"{self.label}: ")
            raise ModelError(str(err) if named else f"{self.label}: node {path} ({op}): {err}") from err
        for x in made if isinstance(made, (list, tuple)) else (made,):
            t = getattr(x, "parts", x)  # of complex numbers
            if isinstance(t, te.Tensor):
                self.settle(t, path)
        return made

    def gap(self, op: str, path: str, why: str) -> Gap:
        """Remember a node that is not supported."""
        self.unsupported.setdefault(op, {})[path] = why
        return Gap(why)

    def settle(self, made: te.Tensor, path: str) -> None:
        """Note from which node stages are."""
        stack = [made.op]
        while stack:
            op = stack.pop()
            if op is not None and op not in self.origins:
                self.origins[op] = path
                stack += [t.op for t in op.reads()]

    def refusal(self, remedy: str = "") -> ModelError:
        """All that is not supported, as one error, which ends with the ``remedy``."""
        lines = []
        for op, nodes in sorted(self.unsupported.items()):
            reasons: dict[str, list[str]] = {}
            for node, why in nodes.items():
                reasons.setdefault(why, []).append(node)
            for why, names in reasons.items():
                lines.append(f"  {op} ({len(names)}): {some(names, SHOWN)}: {why}")
        count = sum(map(len, self.unsupported.values()))
        head = f"{self.label}: {count} node{'s' * (count != 1)} cannot be imported:\n"
        return ModelError(head + "\n".join(lines) + remedy)
