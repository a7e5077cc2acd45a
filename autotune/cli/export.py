"""``autotune export``: a tuned kernel, or a whole model, for programs without Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.cli import options as opt
from autotune.cli.given import Given, takes
from autotune.cli.output import console, print_json, warnings_told

if TYPE_CHECKING:
    from autotune.models.export import ExportedModel
    from autotune.run.export import Exported

PARTS = ("library", "header", "contract", "example", "python_example", "weights")


@takes(
    opt.OP_OR_MODEL, opt.DIRECTORY, *opt.WHAT, *opt.OF_GGUF, *opt.TUNED, opt.FALLBACK, opt.FILES_NAME,
    opt.TARGETS, opt.WEIGHTS, opt.JSON,
)  # fmt: skip
def export(o: Given) -> None:
    """Write a kernel or a model as a shared object, with a C header, a contract in JSON and an example in C.

    A model has its weights in the object, or in a file beside it, and an example in Python too.
    With --targets it has code for several processors, and takes that for the one it runs on. Each needs
    trials of such a processor in the log; else a schedule that is not tuned is taken, with a warning.
    It needs a linker: gcc, or the extra emulator. Exit status 1: the log has no such kernel.

    \b
    Examples:
      autotune export matmul --shape m=512,n=512,k=512 build
      autotune export softmax --shape m=64,n=1000 --threads 1 --name softmax_64 build
      autotune export matmul --shape m=512,n=512,k=512 --targets x86-64-v3,x86-64-v4,znver5 build
      autotune export net.onnx --threads 1 build
      autotune export net.onnx --threads 1 --targets cpu,x86-64-v3 --weights beside build
    """
    with warnings_told():
        files: object = _model(o) if o.on_model else _kernel(o)
    written = {part: str(path) for part in PARTS if (path := getattr(files, part, None)) is not None}
    if o.json:
        print_json(written)
        return
    out = console()
    for path in written.values():
        out.print(path, highlight=False, soft_wrap=True)


def _model(o: Given) -> ExportedModel:
    from autotune.cli.models import compiled, model_of

    o.check_model()
    remedy = "\nor take schedules that are not tuned: --fallback"
    net = compiled(o, model_of(o), remedy, target=o.target, fallback=o.fallback)
    return net.export(o.directory, o.name, weights=o.weights, targets=_targets(o), db=o.where)


def _kernel(o: Given) -> Exported:
    o.refuse(["weights"], "goes with a model alone")
    from autotune.errors import KernelNotFound
    from autotune.run.asked import Asked
    from autotune.run.export import export as write
    from autotune.run.loading import load_workload

    try:
        kernel = load_workload(o.workload(), Asked.of(o.target, o.threads, o.where, o.fallback))
    except KernelNotFound as err:
        raise KernelNotFound(f"{err.message}\nor take a schedule that is not tuned: --fallback") from None
    return write(kernel, o.directory, o.name, targets=_targets(o), db=o.where)


def _targets(o: Given) -> list[str] | None:
    """The names of ``--targets``, of which an empty text has none."""
    return None if o.targets is None else [t for word in o.targets.split(",") if (t := word.strip())]
