"""Errors of the public interface. Each message names the thing, the reason and the remedy."""

from __future__ import annotations

import errno

from schedules.errors import AutotuneError

__all__ = [
    "ArgumentError", "AutotuneError", "CompileError", "KernelNotFound", "MissingExtraError", "ModelError",
    "ReportError",
]  # fmt: skip


class ArgumentError(AutotuneError, ValueError):
    """An array given to a kernel does not fit it: count, shape, dtype, device, layout or overlap.

    >>> kernel = at.load("matmul", m=64, n=64, k=64, threads=1)
    >>> kernel(np.ones((3, 3), "float32"), np.ones((64, 64), "float32"))
    Traceback (most recent call last):
        ...
    autotune.errors.ArgumentError: input 'a' has shape (3, 3), but the kernel is compiled for (64, 64): ...
    """


class CompileError(AutotuneError):
    """Generated code was refused by the compiler, or compiled code could not be loaded.

    Its message has the compiler's words. Generated code that a compiler refuses is a mistake of this project.
    """


class KernelNotFound(AutotuneError, LookupError):
    """Nothing is stored for a workload on this machine, or what it is pinned to was found wrong since.

    >>> at.load("matmul", m=63, n=64, k=64)
    Traceback (most recent call last):
        ...
    autotune.errors.KernelNotFound: no tuned kernel of matmul m=63 n=64 k=64 float32 for this machine in ...

    ``message``: its text without ``in_python``, a remedy that calls have and commands have not.
    """

    def __init__(self, message: str, in_python: str = "") -> None:
        super().__init__(f"{message}\n{in_python}" if in_python else message)
        self.message = message


class MissingExtraError(AutotuneError, ImportError):
    """A library is not installed that is optional: the message has the command that installs it."""


class ModelError(AutotuneError, ValueError):
    """A model's file cannot be read, or holds what cannot be imported: it names the file, the node and the
    reason.

    >>> at.load_model("missing.at")
    Traceback (most recent call last):
        ...
    autotune.errors.ModelError: ...
    """


class ReportError(AutotuneError):
    """A report cannot be made or written: the message names the file, the reason and the remedy.

    >>> at.tune("matmul", m=64, n=64, k=64, threads=1, trials=0, progress=None).report(".")
    Traceback (most recent call last):
        ...
    autotune.errors.ReportError: the report cannot be written to ...: it is a directory; give a file in it
    """


def one_line(err: BaseException | str, most: int | None = None) -> str:
    """What an error of a library says, on one line, of at most so many characters."""
    return " ".join(str(err).split())[:most]


def refused(err: OSError) -> str:
    """Why the system refused something, with a remedy where there is one."""
    many = err.errno in (errno.EMFILE, errno.ENFILE)
    return (err.strerror or str(err)) + "; allow more: ulimit -n 1024" * many
