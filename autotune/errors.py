"""Errors of the public interface. Each message names the thing, the reason and the remedy."""

from __future__ import annotations

from schedules.errors import AutotuneError

__all__ = ["ArgumentError", "AutotuneError", "CompileError", "KernelNotFound", "ModelError", "ReportError"]


class ArgumentError(AutotuneError, ValueError):
    """An array given to a kernel does not fit it: count, shape, dtype, device, layout or overlap."""


class CompileError(AutotuneError):
    """Generated code was refused by the compiler, or compiled code could not be loaded."""


class KernelNotFound(AutotuneError, LookupError):
    """Nothing is stored for a workload on this machine, or what it is pinned to was found wrong since."""


class ModelError(AutotuneError, ValueError):
    """A model's file cannot be read, or holds what cannot be imported: it names the file, the node and the
    reason."""


class ReportError(AutotuneError):
    """A report cannot be made or written: the message names the file, the reason and the remedy."""
