"""What `import autotune` offers besides loading: tune, build, and the operator library."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from autotune import backends
from autotune.errors import ArgumentError
from autotune.run.dynamic_workload import DynamicWorkload
from autotune.run.varying import as_asked
from autotune.run.workloads import (
    Program,
    ahead,
    as_workload,
    named,
    with_constants_each,
    with_strides_each,
)
from autotune.settings import SettingsError, seconds_of
from schedules import ops as ops
from schedules.errors import ScheduleError
from schedules.model import Target, Workload
from schedules.schedule import Schedule
from schedules.te.strided import Strides

if TYPE_CHECKING:
    from autotune.results.tuned import Progress, SuiteProgress, SuiteResult, TuneResult
    from autotune.run.kernel import Kernel

DEFAULT_S = 60.0  # seconds of a budget that is not given


def tune(
    program: Program,
    *,
    dtype: str | None = None,
    layout: str | None = None,
    constant_weights: bool | Sequence[str] = False,
    strides: Strides | None = None,
    target: str | Target | Sequence[str | Target] | None = None,
    threads: int | None = None,
    trials: int | None = None,
    budget_s: float | None = None,
    budget: str | float | None = None,
    until: str | float | None = None,
    in_place: Mapping[str, str] | None = None,
    search: str = "evolutionary",
    cost_model: str | os.PathLike[str] | None = None,
    model: str | os.PathLike[str] = "xgb",
    db: str | os.PathLike[str] | None = None,
    seed: int = 0,
    rtol: float | None = None,
    atol: float | None = None,
    name: str | None = None,
    fleet: str | None = None,
    progress: Callable[[Progress], None] | Literal["auto"] | None = "auto",
    **params: Any,
) -> TuneResult:
    """Tune an operator (``"matmul", m=512, n=512, k=512``) or a list of tensors, inputs then outputs.

    Ends after the budget or the number of trials, whichever comes first. Every trial is committed to the
    tuning log as it happens; earlier ones are reused. The result's ``best`` is None when nothing valid was
    found.

    - ``dtype``, ``layout``: of an operator; `autotune ops OP` lists them. Tensors have their own.
      ``dtype=None`` is float32, or the operator's first where it has no float32.
    - ``constant_weights``: weights are known ahead of the calls, so that packing them costs a call nothing;
      `Kernel.pack_weights` does it. True: those of the operator. Else names of inputs.
    - ``strides``: of arguments that are not row-major, by name, in elements: ``{"a": (1, 512)}`` takes a
      transposed array, ``x.stride()`` of torch is that of any view. An input may repeat elements (0) or walk
      backwards (below 0); no two elements of an output may lie in one place.
    - ``target``: "cpu", "cuda", "opencl", "cuda-emulator", the name of a described target such as
      "h100-emulator", or a `Target`; None is this CPU.
    - ``threads``: those of the kernel; None takes the CPUs that the process may use.
    - ``fleet``: the address of a scheduler of Dask, ``tcp://HOST:PORT`` or ``tls://HOST:PORT``; its workers
      measure in place of this machine. ``local:N``: N workers on this machine. Then ``target`` may be
      several, ``"znver4,x86-64-v3"`` or a list, and None means all that workers offer; for several the result
      is a `FleetResult`.
    - ``trials``: new trials at most. 0: no search, only a first pick.
    - ``budget_s``: seconds (default: 60). ``budget``: the same as the command line has it, such as "2m".
    - ``until``: ends the run early once the best kernel reaches it: a time of a call, as text with its unit
      ("200us", "1.5ms"), or a share of the machine's limit, a number from 0 to 1 (0.9), that `report` and
      `explain` show. A kernel counts once it was timed again with others; the result's ``aimed`` says how
      far it was. Of several sizes with a kernel each the time is that of the largest, the share that of all.
    - ``in_place``: ``{"y": "x"}``: calls will give input ``x`` as output ``y`` too. Only schedules count that
      read each element before they overwrite it, so that `load` with the same ``in_place`` has one. They are
      timed with arrays of their own. For one size on CPUs.
    - ``search``: the name of a search policy, "evolutionary" or another (docs/how-to/search.md).
    - ``cost_model``: the name of a cost model, "xgb" or another, or the path of a file that ``autotune
      train`` made of a log of your own. ``model`` is another name of it.
    - ``db``: the log, a path or the URL of a database; None takes ``AUTOTUNE_DB``, else the user's own.
    - ``seed``: of every random choice.
    - ``rtol``, ``atol``: an output is right within ``atol + rtol * |reference|``; without them, within what
      rounding explains.
    - ``name``: of your own expression, such as "geglu". Every command shows it, and takes it in the place of
      an operator's; kernels have it too. It is no part of what identifies an expression; of several that
      one was given, a log keeps the last by alphabet.
    - ``progress``: left out, progress is shown: a line in a terminal, a bar in a notebook, a line every five
      seconds in a pipe, all on stderr. None: nothing is shown. A function is called with each `Progress`.
    - ``params``: the operator's sizes and options by name, such as ``m=512``.

    A size may vary: ``m=at.dim(1, 512)``, or an extent of tensors (see `dim`). That is one task as a number
    is: its kernel is for all sizes, and is timed at the largest. Where the program or the target refuses
    that, and with ``open=False``, each size has a kernel of its own. Then some sizes in the range share the
    budget, and the result is a `DynamicResult`: that of the largest size, with those of all in ``by_size``.

    Raises `WorkloadError`, `TargetError`, `SettingsError`, `FleetError` or `LogError` for input that cannot
    be used, and `ArgumentError` for an ``in_place`` that no schedule allows.

    >>> result = at.tune("matmul", m=64, n=64, k=64, threads=1, trials=0, progress=None)
    >>> result.best.time_s < 1.0
    True
    """
    started = time.monotonic()
    from autotune.results.tuned import as_one
    from autotune.tuning.dynamic_tuner import tuning_of
    from autotune.tuning.options import TuneOptions
    from autotune.tuning.request import TuneRequest, tuned

    options = TuneOptions(
        trials=trials, budget_s=seconds_of(budget, budget_s, DEFAULT_S), search=search, seed=seed,
        rtol=rtol, atol=atol, until=until, model=_cost_model(cost_model, model), started=started,
        in_place=in_place or {},
    )  # fmt: skip
    asked = TuneRequest.of(options, target, threads, db, fleet)
    constant_weights = ahead(constant_weights)
    found = as_asked(program, params, dtype, layout, constant_weights, tune, strides, asked.grid)
    if in_place and isinstance(found, DynamicWorkload):
        raise ArgumentError("in_place is of one size, and this program has a range of them; give a number")
    if name is not None:
        found = found.named(name) if isinstance(found, DynamicWorkload) else named(found, name)
    return tuned(asked, tuning_of(found, asked), as_one, progress, alone=True)


def tune_suite(
    suite: str | os.PathLike[str] | Sequence[Program],
    *,
    weights: Sequence[float] | None = None,
    constant_weights: bool | Sequence[bool | str | Sequence[str]] = False,
    strides: Sequence[Strides | None] | None = None,
    target: str | Target | Sequence[str | Target] | None = None,
    threads: int | None = None,
    trials: int | None = None,
    budget_s: float | None = None,
    budget: str | float | None = None,
    until: str | float | None = None,
    search: str = "evolutionary",
    cost_model: str | os.PathLike[str] | None = None,
    model: str | os.PathLike[str] = "xgb",
    db: str | os.PathLike[str] | None = None,
    seed: int = 0,
    rtol: float | None = None,
    atol: float | None = None,
    fleet: str | None = None,
    progress: Callable[[SuiteProgress], None] | Literal["auto"] | None = "auto",
) -> SuiteResult:
    """Tune many tasks under one budget, shared so that Σ weight · time falls fastest.

    ``suite``: a suite file, ``FILE`` or ``FILE:NAME`` (see `autotune.tuning.suites`), or a list of
    programs, each a `Workload` (``at.ops.workload("matmul", {"m": 64, "n": 64, "k": 64})``) or tensors.
    ``weights``: how often each kernel runs; default: those of the file, else 1. ``trials``: new trials of
    each task at most. ``until``: as of `tune`; its time is the weighted sum of all. ``constant_weights``: as
    of `tune` for all tasks, or one for each: ``[True, ("w", "v"), False]``. True and False leave the
    constants that a `Workload` has already, so that tasks which state theirs need nothing here. Otherwise as
    `tune`; Ctrl-C keeps everything, and a second call goes on where the first stopped.

    ``strides``: a list with those of each task, as of `tune`, or None.

    ``fleet``: as of `tune`; tasks are shared out among the machines of a target. With several targets the
    result has the tasks for the first, then those for the next.

    ``progress``: as of `tune`; a function is called with each `SuiteProgress`.

    Raises `SuiteError`, `WorkloadError`, `TargetError`, `SettingsError`, `FleetError` or `LogError` for input
    that cannot be used. A task that cannot be tuned has an ``error`` in its result.

    >>> task = at.ops.workload("matmul", {"m": 64, "n": 64, "k": 64})
    >>> result = at.tune_suite([task], weights=[2.0], threads=1, trials=0, progress=None)
    >>> result.tasks[0].error is None
    True
    """
    started = time.monotonic()
    from autotune.results.tuned import SuiteTask, merged_results
    from autotune.tuning import suites
    from autotune.tuning.makers import Tasks
    from autotune.tuning.options import TuneOptions
    from autotune.tuning.request import TuneRequest, tuned

    seconds = seconds_of(budget, budget_s, DEFAULT_S)
    if isinstance(suite, (str, os.PathLike)):
        read = suites.read(os.fspath(suite), constant_weights is True)
        tasks = [SuiteTask(t.workload, t.weight, t.group) for t in read]
    else:
        tasks = [SuiteTask(as_workload(w, {})) for w in suite]
    if constant_weights is not True or not isinstance(suite, (str, os.PathLike)):
        known = with_constants_each([t.workload for t in tasks], constant_weights)
        tasks = [replace(t, workload=w) for t, w in zip(tasks, known, strict=True)]
    if strides is not None:
        lying = with_strides_each([t.workload for t in tasks], strides)
        tasks = [replace(t, workload=w) for t, w in zip(tasks, lying, strict=True)]
    if weights is not None:
        if len(weights) != len(tasks) or not all(0 < w < float("inf") for w in weights):
            raise SettingsError(f"weights must be a positive, finite number for each of {len(tasks)} tasks")
        tasks = [replace(t, weight=float(w)) for t, w in zip(tasks, weights, strict=True)]
    if not tasks:
        raise SettingsError("the suite has no tasks; give at least one")
    options = TuneOptions(
        trials=trials, budget_s=seconds, search=search, seed=seed, rtol=rtol, atol=atol, until=until,
        model=_cost_model(cost_model, model), started=started,
    )  # fmt: skip
    asked = TuneRequest.of(options, target, threads, db, fleet)
    return tuned(asked, asked.tuning(Tasks(tasks, options)), lambda r: merged_results(r, seconds), progress)


def _cost_model(
    cost_model: str | os.PathLike[str] | None, model: str | os.PathLike[str]
) -> str | os.PathLike[str]:
    """The one that is given of two names of a setting. Raises `SettingsError` for two of them."""
    if cost_model is not None and model not in ("xgb", cost_model):
        raise SettingsError("cost_model and model are names of one setting; give cost_model alone")
    return model if cost_model is None else cost_model


def build(
    schedule: Schedule,
    target: str | Target = "cpu",
    threads: int | None = None,
    in_place: Mapping[str, str] | None = None,
) -> Kernel:
    """Compile a schedule written by hand. Raises `ScheduleError` for anything else, `CompileError`, or
    `TargetError` for a target whose instructions this CPU lacks.

    ``target``: "cpu", "cuda", "opencl", the name of a described target, or a `Target`. ``threads``: those
    of the kernel; None takes the CPUs that the process may use. ``in_place``: ``{output: input}``, the
    outputs that calls give an input for (``kernel(x, out=x)``). That is proved now, and `ArgumentError` names
    what is in the way. Without it, it is proved at the first such call.

    >>> x = te.placeholder((64,), name="x")
    >>> schedule = at.Schedule([x, te.compute((64,), lambda i: x[i] + 1.0, name="y")])
    >>> schedule.vectorize(schedule.split("y_i", 8)[1])
    >>> kernel = at.build(schedule, threads=1)
    >>> kernel(np.zeros(64, "float32"))[0]
    np.float32(1.0)
    """
    from autotune.run.in_place import prepare
    from autotune.run.kernels import kernel_of
    from schedules.te.flops import count_flops

    if not isinstance(schedule, Schedule):
        raise ScheduleError(
            f"build takes a Schedule, not a {type(schedule).__name__}; make one of tensors by Schedule([...])"
        )

    goal = backends.parse(target, threads)
    backends.check_here(goal)
    workload = Workload(schedule.dag, flops=count_flops(schedule.dag))
    kernel = kernel_of(workload, goal, schedule.trace, None)
    if in_place:
        prepare(kernel, in_place)
    return kernel
