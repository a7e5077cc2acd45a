"""`autotune.torch.inductor`: kernels among the choices of torch's own compiler (ADR 117)."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from autotune.errors import ArgumentError, one_line
from autotune.run.asked import Asked
from autotune.run.describing import describe
from autotune.run.stored import stored
from autotune.run.torch_op import check_torch
from autotune.run.warned import warn
from autotune.settings import duration
from autotune.targets import usable_cpus
from schedules.distribution import VERSION
from schedules.errors import AutotuneError

if TYPE_CHECKING:
    from autotune.models.inductor_clusters import Cluster
    from autotune.models.inductor_kernels import ClusterTask
    from autotune.run.kernel import Kernel
    from schedules.model import Workload

# Versions of torch with which the tests run. What is used of Inductor is private to it.
TESTED = ("2.13",)
MARGIN = 0.1  # of Inductor's time that a kernel must save
REVISION = 2  # of what is added to a graph

NOTHING = (
    "nothing was chosen here: torch compiles at the first call, and takes code that it kept as it is, with "
    "the kernels in it. To choose anew: torch.compiler.reset(), and "
    "torch._inductor.config.force_disable_caches = True"
)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class InductorChoice:
    """What was chosen for one part of a graph. ``operators``: in words, such as "addmm + relu". ``ours_ms``,
    ``inductor_ms``: milliseconds by Inductor's benchmark, None where there is no kernel; then ``why`` says
    why. ``taken``: whether the kernel is called."""

    operators: str
    ours_ms: float | None = None
    inductor_ms: float | None = None
    taken: bool = False
    why: str = ""

    def __str__(self) -> str:
        if self.ours_ms is None or self.inductor_ms is None:
            return f"{self.operators}: Inductor alone: {self.why}"
        taken = "autotune" if self.taken else "Inductor"
        times = f"autotune {self.ours_ms:.4f} ms, Inductor {self.inductor_ms:.4f} ms"
        return f"{self.operators}: {taken} taken ({times})"


class InductorChoices:
    """Kernels among the choices of Inductor, inside of a ``with``, or from `on` to `off`. ``str`` of it, and
    `choices`, say what was chosen."""

    def __init__(self, asked: Callable[[], Asked], tune_s: float | None) -> None:
        """``asked``: what is asked of the log when something is compiled; ``tune_s``: seconds, or None."""
        self.choices: tuple[InductorChoice, ...] = ()
        self.margin = MARGIN
        self._asked, self._tune_s = asked, tune_s
        self._passes: list[Any] = []
        self._kernels: dict[tuple[str, str], Kernel | None] = {}

    def on(self) -> InductorChoices:
        """Offer kernels in all that torch compiles from now on in this process, until `off`. With a version
        of torch in which that is not possible: one warning, and Inductor chooses alone."""
        found = _pass_module()
        if found is not None:
            made = found.ChoicePass(self, self._name)
            self._passes.append(made)
            found.set_passes([*found.passes(), made])
        return self

    def off(self) -> None:
        """End the last `on`. Code that was compiled stays as it is."""
        if self._passes:
            found, ended = _pass_module(), self._passes.pop()
            if found is not None:
                found.set_passes([p for p in found.passes() if p is not ended])

    def __enter__(self) -> InductorChoices:
        return self.on()

    def __exit__(self, *why: object) -> None:
        self.off()

    def __str__(self) -> str:
        return "\n".join(map(str, self.choices)) or NOTHING

    # --- what the lowering asks -----------------------------------------------------------------

    def kernel(self, task: ClusterTask) -> Kernel | None:
        """The kernel that the log has of a task, after a short run where it has none and one was asked for;
        None where it has none. Raises AutotuneError."""
        asked = self._asked()
        key = task.workload.digest, asked.target.json
        if key not in self._kernels:
            found = stored(task.workload, asked)[0]
            if found is None and self._tune_s is not None:
                _tune(task.workload, asked, self._tune_s)
                found = stored(task.workload, asked)[0]
            self._kernels[key] = found
        return self._kernels[key]

    def measured(self, cluster: Cluster, ours_ms: float, theirs_ms: float, taken: bool) -> None:
        """Keep what was measured."""
        self.choices += (InductorChoice(cluster.shown, ours_ms, theirs_ms, taken),)

    def left(self, cluster: Cluster, why: str) -> None:
        """Keep why a part has no kernel."""
        log.debug("Inductor alone makes %s: %s", cluster.shown, why)
        self.choices += (InductorChoice(cluster.shown, why=one_line(why, 300)),)

    def no_python(self) -> None:
        """Warn that code without Python has no choices."""
        warn(
            "autotune offers Inductor no kernels for code without Python (cpp_wrapper, AOTInductor), which "
            "cannot call them; give such a program operators: autotune.torch.op(kernel)"
        )

    def failed(self, err: Exception) -> None:
        """Warn of an error that is none of the user's."""
        log.debug("offering kernels failed", exc_info=err)
        warn(
            "autotune.torch.inductor failed, and Inductor chooses alone where it did: "
            f"{type(err).__name__}: {one_line(err, 300)}"
        )

    def _name(self) -> str:
        """All on which the choices depend but what the log has."""
        tuned = "" if self._tune_s is None else f" tuned {self._tune_s:g} s"
        of = self._asked()
        here = f"{of.target.json} {of.where}"
        return f"autotune {VERSION} choices {REVISION} {self.margin} {here}{tuned}"


def inductor(
    db: str | os.PathLike[str] | None = None, tune: str | float | None = None, threads: int | None = None
) -> InductorChoices:
    """Kernels among the choices of torch.compile's own backend, Inductor, on CPUs.

    Products (mm, addmm, bmm, baddbmm and what is made of them, such as nn.Linear) and convolutions, with what
    follows element by element, may be computed by a kernel that the log has. Inductor's benchmark times it
    beside what Inductor makes, on arrays of Inductor's. It is called where it takes 10 % less time. All else
    stays as Inductor makes it. What is compiled inside a ``with``, or between ``on()`` and ``off()``, has the
    choices; torch compiles at the first call. torch keeps the code, and a new process takes it without runs
    and benchmarks; it needs autotune to be installed.

    ``db``: the log; None takes ``AUTOTUNE_DB``, else the user's own. ``tune``: seconds, or text such as
    "30s": for each part that the log has no kernel of, a run of that length comes first. None: no run;
    Inductor makes such parts. ``threads``: those of the kernels; None takes ``torch.get_num_threads()`` when
    something is compiled. Of several that are on, the last one offers kernels. Where offering one fails, one
    warning says so, and Inductor chooses alone.

    Inductor's interface for this is private to torch: it is tested with torch 2.13. Elsewhere one warning
    says that Inductor chooses alone.

    Raises `MissingExtraError` without torch, `SettingsError` for a ``tune`` that is no time, `ArgumentError`
    for one that is not above 0.

        >>> with at.torch.inductor(tune="30s") as choices, torch.no_grad():
        ...     y = torch.compile(module.eval())(x)
        >>> print(choices)
        addmm + relu: autotune taken (autotune 0.1120 ms, Inductor 0.1430 ms)
    """
    check_torch("autotune.torch.inductor")
    import torch

    tune_s = duration(tune) if isinstance(tune, str) else tune
    if tune_s is not None and not tune_s > 0:
        raise ArgumentError(f"tune={tune!r} is no time above 0: give seconds, such as tune='30s', or None")

    def asked() -> Asked:
        many = threads or min(torch.get_num_threads(), usable_cpus())
        return replace(Asked.of("cpu", many, db), exactly=many)

    asked()  # which raises for what cannot be asked
    return InductorChoices(asked, tune_s)


def _pass_module() -> Any:
    """What speaks to Inductor; None, with a warning, where torch is not as it is known here."""
    import torch

    version = str(torch.__version__)
    why = f"it is tested with torch {', '.join(TESTED)}, and this is {version}"
    if version.startswith(tuple(f"{v}." for v in TESTED)):
        try:
            from autotune.models import inductor_pass

            return inductor_pass
        except (ImportError, AttributeError) as err:
            why = f"torch {version} has another Inductor: {one_line(err, 200)}"
    warn(f"autotune.torch.inductor offers no kernels, and Inductor chooses alone: {why}")
    return None


def _tune(workload: Workload, asked: Asked, seconds: float) -> None:
    """A run of a task that the log has no kernel of."""
    from autotune.results.tuned import as_one
    from autotune.tuning.dynamic_tuner import tuning_of
    from autotune.tuning.options import TuneOptions
    from autotune.tuning.request import TuneRequest, tuned

    log.info("the log has no kernel of %s: a run of %g s comes first", describe(workload), seconds)
    options = TuneOptions(budget_s=seconds)
    request = TuneRequest.of(options, asked.target, asked.exactly, asked.where)
    try:
        tuned(request, tuning_of(workload, request), as_one, "auto", alone=True)
    except AutotuneError as err:
        warn(f"no kernel for Inductor was tuned: {one_line(err, 300)}")
