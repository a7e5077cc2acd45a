"""``autotune evaluate``: how well cost models order the candidates of a log, of tasks they have not seen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.cli import options as opt
from autotune.cli.given import Given, one_of, takes
from autotune.cli.output import console, print_json, table
from autotune.cli.train import announce, needing_extra, places_of, print_read, read, summary

if TYPE_CHECKING:
    from cost_model.evaluation import Evaluation

# Names of models without training: the shipped one, and the analytic estimate.
UNTRAINED = ("xgb", "analytic")
# Columns that are shown.
SHOWN = 10


@takes(opt.LOGS, opt.JUDGED_MODEL, opt.DB, opt.SEED, opt.JSON)
def evaluate(o: Given) -> None:
    """Say how well cost models order the measured candidates of tasks that they have not learnt from.

    The workloads are parted into folds, and what is trained on the others is asked about each: XGBoost after
    the shipped model and from scratch, HistGradientBoosting and a random forest, beside the shipped model and
    the analytic estimate. pairwise: the share of pairs of candidates, 2 % apart or more, that a model orders
    rightly; 0.5 is a guess. top1 and top8: the best of its first picks over the best known. Importance: how
    much pairwise falls when a column is mixed. Needs the extra train.

    \b
    Examples:
      autotune evaluate tuning.db
      autotune evaluate ours.db theirs.db --json
      autotune evaluate theirs.db --cost-model model.json
    """
    from cost_model.models import names_file
    from cost_model.saved import read as read_model

    places = places_of(o.logs, o.db)
    model = None
    if o.cost_model is not None and o.cost_model not in UNTRAINED:  # a file of that name does not change it
        if names_file(o.cost_model):
            model = read_model(o.cost_model)
        else:
            one_of("--cost-model", o.cost_model, UNTRAINED)
    with needing_extra("evaluate"):
        if o.cost_model is None or model is not None:
            import sklearn  # noqa: F401  # before the logs are read, which takes long
        from autotune.targets import usable_cpus
        from cost_model import evaluation

        found = read(places, o.json)
        notes = []
        if model is not None:
            tasks = evaluation.unseen(found.tasks, model)
            if not tasks:
                tasks = list(found.tasks)
                notes.append("the file has learnt from all of these tasks: its figures say nothing of others")
            elif len(tasks) < len(found.tasks):
                seen = len(found.tasks) - len(tasks)
                notes.append(
                    f"the file has learnt from {seen} tasks, which are left out: {len(tasks)} are judged"
                )
            judged = evaluation.of_saved(tasks, model, o.seed)
        elif o.cost_model is not None:
            judged = evaluation.untrained(found.tasks)
        else:
            judged = evaluation.by_folds(
                found.tasks, o.seed, usable_cpus(), progress=lambda what: announce(what, o.json)
            )
    if o.json:
        print_json(document(judged) | {"read": summary(found), "notes": notes, "seed": o.seed})
    else:
        print_read(found)
        _print(judged, notes)


def document(judged: Evaluation) -> dict[str, Any]:
    """The figures as JSON: of all tasks, and of each."""
    models = {}
    for name in judged.figures:
        s = judged.summary(name)
        models[name] = {
            "pairwise": s.pairwise, "pairwise_without_estimate": s.alone, "worst_task": s.worst,
            "top1": s.top1, "top8": s.top8, "tasks_better_than_shipped": s.better,
        }  # fmt: skip
    return {
        "folds": judged.folds,
        "models": models,
        "importance": [{"column": i.column, "mean": i.mean, "std": i.spread} for i in judged.importance],
        "tasks": [
            {
                "task": t.name,
                "workload": t.workload,
                "candidates": len(t),
                "pairwise": {name: each[k].pairwise for name, each in judged.figures.items()},
            }
            for k, t in enumerate(judged.tasks)
        ],
    }


def _print(judged: Evaluation, notes: list[str]) -> None:
    out = console()
    for note in notes:
        out.print(f"  note: {note}")
    folds = f", by {judged.folds} folds of workloads" if judged.folds else ""
    out.print(f"{len(judged.tasks)} tasks{folds}", style="bold")
    rows = []
    for name in judged.figures:
        s = judged.summary(name)
        rows.append((
            name, _share(s.pairwise), _share(s.alone), _share(s.worst), _share(s.top1), _share(s.top8),
            "-" if s.better is None else f"{s.better:.0%}",
        ))  # fmt: skip
    headers = (
        "model", ">pairwise", ">without the estimate", ">worst task", ">top1", ">top8", ">better than shipped"
    )  # fmt: skip
    table(out, headers, rows)
    first = [i for i in judged.importance[:SHOWN] if i.mean > 0]
    if first:
        out.print("importance of columns, the first")
        table(out, ("column", ">pairwise falls by", ">spread"), [
            (i.column, f"{i.mean:.4f}", f"{i.spread:.4f}") for i in first
        ])  # fmt: skip


def _share(x: float | None) -> str:
    return "-" if x is None else f"{x:.3f}"
