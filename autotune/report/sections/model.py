"""Section: a model. Its graph after each rewrite, what runs, and how long each step takes."""

from __future__ import annotations

from collections.abc import Callable

from autotune.report import parts
from autotune.report.graph_drawing import svg
from autotune.report.model_data import ModelData, ModelStep, RewrittenGraph
from schedules.units import percent, size

# Most steps that have a bar.
BARS = 40


def of_model(model: ModelData) -> parts.SectionPart:
    """All of it."""
    figures = [f for f in (_times(model), _operators(model)) if f is not None]
    return parts.SectionPart(
        _rewrites(model) + _drawings(model) + f"<h4>Time of each step</h4>{_reading(model)}",
        figures,
        _table(model),
    )


def _rewrites(model: ModelData) -> str:
    rows, last = [], model.rewrites[0]
    for stage in model.rewrites:
        said = _said(stage) if stage.name != "imported" else ""
        rows.append(
            (
                f"<code>{parts.text(stage.name)}</code>",
                parts.prose(stage.does),
                _with_change(stage.stages, last.stages, str),
                _with_change(stage.written_bytes, last.written_bytes, size),
                _with_change(stage.weight_bytes, last.weight_bytes, size),
                parts.text(said),
            )
        )
        last = stage
    headers = ("rewrite", "what it does", ">stages", ">bytes written", ">weights", "changed here")
    first, end = model.rewrites[0], model.rewrites[-1]
    said = (
        f"The graph had {first.stages:,} stages as imported; {end.stages:,} are left, which run as "
        f"{len(model.steps):,} steps. Stages would write {size(end.written_bytes)} instead of "
        f"{size(first.written_bytes)} if each ran alone."
    )
    return f"<h4>The graph, rewrite by rewrite</h4>{parts.paragraphs(said)}{parts.table(headers, rows)}"


def _with_change(now: int, before: int, shown: Callable[[int], str]) -> str:
    value = parts.text(shown(now))
    return value if shown(now) == shown(before) else f"<b>{value}</b>"


def _said(stage: RewrittenGraph) -> str:
    counts = (("removed", stage.gone), ("made", stage.new), ("changed", stage.changed))
    return ", ".join(f"{n:,} {word}" for word, n in counts if n) or "nothing"


def _drawings(model: ModelData) -> str:
    """What runs, and the graph after each rewrite that changed it, one of them seen at a time."""
    stages = [
        ("runs", f"what runs: {len(model.steps):,} steps", svg(model.drawing, "the steps of the model"))
    ]
    for n, stage in enumerate(model.rewrites):
        if stage.drawing is not None:
            words = "as imported" if n == 0 else f"after {stage.name}"
            stages.append(
                (f"r{n}", f"{words}: {stage.stages:,} stages", svg(stage.drawing, f"the graph {words}"))
            )
    options = "".join(f'<option value="{key}">{parts.text(words)}</option>' for key, words, _ in stages)
    boxes = "".join(
        f'<div data-stage="{key}"{"" if key == "runs" else " hidden"}>{drawn}</div>'
        for key, _, drawn in stages
    )
    zoom = "".join(
        f'<button type="button" data-zoom="{z}">{w}</button>'
        for z, w in (("1.25", "larger"), ("0.8", "smaller"), ("0", "100 %"))
    )
    return (
        "<h4>The graph, drawn</h4>"
        + parts.paragraphs(
            "Data flow from top to bottom; weights are not drawn. Of what runs, each box is a step, named "
            "after the last of its nodes, and the warmer it is, the longer it takes. Point at a box to see "
            "what it computes."
        )
        + '<div class="tools" data-drawing="drawing">'
        + f'<select aria-label="Which graph">{options}</select>{zoom}</div>'
        + f'<div class="drawing" id="drawing">{boxes}</div>'
    )


def _reading(model: ModelData) -> str:
    timed = sum(s.in_place_s is not None for s in model.steps)
    if model.measured:
        how = "Times in place were measured for this report: medians of ten calls on random inputs."
    elif timed:
        how = (
            f"Times in place are those of the log, of {timed:,} of {len(model.steps):,} steps: tuning timed "
            "the best kernels of the heavy ones inside the model. `--profile` measures all."
        )
    else:
        how = "The log has no times in place. `autotune report NET.onnx --profile` measures them."
    return parts.paragraphs(
        "A kernel is tuned alone, with its arrays in the caches. Inside the model its weights come from "
        "memory, and its inputs from where the step before left them, so that the same kernel mostly takes "
        "longer there.",
        how,
    )


def _name(n: int, step: ModelStep) -> str:
    return f"{n} {parts.short(step.nodes[-1] if step.nodes else step.what, 34)}"


def _times(model: ModelData) -> parts.Figure | None:
    steps = [(n, s) for n, s in enumerate(model.steps) if s.in_place_s or s.tuned_s]
    if not steps:
        return None
    longest = sorted(steps, key=lambda x: -(x[1].in_place_s or x[1].tuned_s or 0.0))[:BARS]
    shown = sorted(longest)[::-1]
    names = [_name(n, s) for n, s in shown]

    def series(name: str, values: list[float | None], colour: str) -> dict[str, object]:
        ms = [parts.rounded(None if v is None else v * 1e3) for v in values]
        return parts.bars(name, names, ms, colour, f"{name}: %{{x:.4g}} ms")

    rest = len(model.steps) - len(shown)
    return parts.Figure(
        "Time of each step, in the order in which they run",
        [
            series("tuned, alone", [s.tuned_s for _, s in shown], parts.GREY),
            series("in place", [s.in_place_s for _, s in shown], parts.BLUE),
        ],
        {"barmode": "group", "xaxis": parts.axis("ms"), "yaxis": {"automargin": True}},
        f"The {len(shown)} longest of {len(model.steps):,} steps have bars; the table below has all."
        if rest
        else "",
        150 + 24 * len(shown),
    )


def _operators(model: ModelData) -> parts.Figure | None:
    if not model.operators:
        return None
    shown = list(model.operators[:BARS])[::-1]
    total = sum(o.seconds for o in model.operators)
    ours = sum(s.in_place_s or 0.0 for s in model.steps)
    names, ms = (
        [f"{parts.short(o.op, 40)} ({o.count})" for o in shown],
        [parts.rounded(o.seconds * 1e3) for o in shown],
    )
    return parts.Figure(
        "ONNX Runtime's own profile, by operator",
        [parts.bars("ONNX Runtime", names, ms, parts.ORANGE, "%{y}: %{x:.4g} ms a call")],
        {"xaxis": parts.axis("ms a call"), "yaxis": {"automargin": True}},
        f"Its operators take {parts.seconds(total)} together, the steps of the tuned model "
        f"{parts.seconds(ours)}. Profiling adds to both; `autotune bench NET.onnx --against onnxruntime` "
        "compares whole calls.",
        140 + 24 * len(shown),
    )


def _table(model: ModelData) -> str:
    whole = sum(s.in_place_s or s.tuned_s or 0.0 for s in model.steps)

    def row(n: int, s: ModelStep) -> tuple[str, ...]:
        ratio = f"{s.in_place_s / s.tuned_s:.2f}" if s.in_place_s and s.tuned_s else ""
        share = percent((s.in_place_s or s.tuned_s or 0.0) / whole) if whole else ""
        return (
            str(n),
            parts.short(", ".join(s.nodes), 120),
            parts.short(s.what, 110),
            parts.seconds(s.tuned_s),
            parts.seconds(s.in_place_s),
            ratio,
            share,
            str(s.candidates or ""),
        )

    headers = (">step", "nodes", "computes", ">tuned", ">in place", ">ratio", ">share", ">tried in place")
    rows = [row(n, s) for n, s in enumerate(model.steps)]
    call = f"A call took {parts.seconds(model.call_s)} by the clock." if model.call_s else ""
    missing = sum(s.tuned_s is None and s.task is not None for s in model.steps)
    lacking = f"{missing:,} steps have no tuned kernel in the log." if missing else ""
    return parts.paragraphs(call, lacking) + parts.table(headers, rows).replace(
        'class="scroll"', 'class="scroll tall"', 1
    )


SECTION = parts.ReportSection(
    "model",
    "The model",
    "A model is imported as one graph of tensor expressions. Rewrites make it smaller, and what is left is "
    "cut into groups, each of which is one kernel. Groups that compute the same are one task, tuned once.",
)
