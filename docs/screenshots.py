"""Makes the pictures of reports in ``docs/images``: tunes for about a minute, writes reports, and photographs
them.

    python docs/screenshots.py [--log LOG] [--seconds 20] [--out docs/images]

Needs Chromium on PATH, and the package ``onnx`` for the picture of a model. Without ``--log`` it tunes a
matrix product and a few other operators into a temporary log. Pictures are at most 250 KB each, which it
checks.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests" / "support"))

from chromium import Chromium, Page  # noqa: E402

import autotune as at  # noqa: E402
from autotune import report  # noqa: E402
from schedules import ops  # noqa: E402

SIZE = 1180, 860  # pixels
MOST = 250_000  # bytes of a picture
SUITE = (
    ("matmul", {"m": 512, "n": 512, "k": 512}),
    ("conv2d_bias_relu", {"h": 28, "w": 28, "ci": 64, "co": 64, "k": 3, "padding": 1}),
    ("softmax", {"m": 1024, "n": 512}),
    ("layer_norm", {"m": 512, "n": 768}),
    ("depthwise_conv2d", {"h": 56, "w": 56, "c": 64, "k": 3, "padding": 1}),
    ("reduce_sum", {"m": 2048, "n": 1024}),
)


def tuned(db: Path, seconds: float) -> None:
    """A log of a matrix product, and of a suite of operators."""
    first, *others = SUITE
    at.tune(first[0], **first[1], threads=1, budget_s=seconds, db=db)
    at.tune_suite([ops.workload(op, params) for op, params in others], threads=1, budget_s=2 * seconds, db=db)


def small_model(folder: Path) -> Path:
    """A network with branches, as ONNX has it, with random weights."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    nodes, weights, last, channels = [], [], "x", 3
    for n, wide in enumerate((16, 16, 32, 32)):
        for k, (ci, kernel) in enumerate(((channels, 3), (wide, 3))):
            weight = (rng.standard_normal((wide, ci, kernel, kernel)) / (3 * ci**0.5)).astype(np.float32)
            weights.append(numpy_helper.from_array(weight, f"w{n}_{k}"))
            made = f"block{n}/conv{k}"
            reads = [last if k == 0 else f"block{n}/relu0", f"w{n}_{k}"]
            nodes.append(helper.make_node("Conv", reads, [made], name=made, pads=[1, 1, 1, 1]))
            relu = f"block{n}/relu{k}"
            nodes.append(helper.make_node("Relu", [made], [relu], name=relu))
        end = f"block{n}/relu1"
        if channels == wide:
            nodes.append(helper.make_node("Add", [end, last], [f"block{n}/add"], name=f"block{n}/add"))
            end = f"block{n}/add"
        last, channels = end, wide
    nodes.append(helper.make_node("GlobalAveragePool", [last], ["pooled"], name="pool"))
    nodes.append(helper.make_node("Flatten", ["pooled"], ["flat"], name="flatten"))
    weights.append(numpy_helper.from_array(rng.standard_normal((32, 10)).astype(np.float32), "head"))
    nodes.append(helper.make_node("MatMul", ["flat", "head"], ["y"], name="classify"))
    graph = helper.make_graph(
        nodes,
        "blocks",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 3, 56, 56))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 10))],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path = folder / "blocks.onnx"
    onnx.save(model, path)
    return path


def ready(browser: Chromium, path: Path, dark: bool = False) -> Page:
    page = browser.open(path.as_uri(), dark=dark, width=SIZE[0], height=SIZE[1])
    page.until("document.documentElement.dataset.ready === '1'")
    return page


def picture(page: Page, out: Path, heading: str | None = None) -> None:
    """What is seen, from a heading on."""
    if heading is not None:
        seen = f"h.checkVisibility() && h.textContent === {heading!r}"
        find = f"[...document.querySelectorAll('h2, h3, h4')].find(h => {seen})"
        page.evaluate("document.documentElement.style.scrollBehavior = 'auto'")
        page.evaluate(f"{find}.scrollIntoView()")
    time.sleep(0.4)  # until what is hovered fades
    page.screenshot(out)
    size = out.stat().st_size
    print(f"{out}: {size / 1000:.0f} KB")
    if size > MOST:
        raise SystemExit(f"{out} has {size} bytes, more than {MOST}")


def main() -> None:
    """Tune, report, photograph."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--log", type=Path, help="a log to show; without it, one is tuned")
    parser.add_argument("--seconds", type=float, default=20.0, help="of tuning the matrix product")
    parser.add_argument("--out", type=Path, default=HERE / "images")
    options = parser.parse_args()
    options.out.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, Chromium(*SIZE) as browser:
        home = Path(folder)
        db = options.log or home / "tuning.db"
        if options.log is None:
            tuned(db, options.seconds)
        report.of_log(home / "report.html", db)
        for dark in (False, True):
            page = ready(browser, home / "report.html", dark)
            mode = "-dark" if dark else ""
            picture(page, options.out / f"report-tasks{mode}.png")
            options_ = "[...document.querySelector('#choose').options]"
            number = page.evaluate(f"{options_}.findIndex(o => o.text.startsWith('matmul'))")
            page.evaluate(f"location.hash = 'task-{number}'")
            time.sleep(0.5)
            picture(page, options.out / f"report-convergence{mode}.png", "Convergence")
        picture(page := ready(browser, home / "report.html"), options.out / "report-roofline.png", "Roofline")
        model = at.import_onnx(small_model(home))
        result = at.tune_model(model, threads=1, budget_s=2 * options.seconds, db=home / "model.db")
        result.report(home / "model.html")
        picture(ready(browser, home / "model.html"), options.out / "report-model.png", "The graph, drawn")
        assert page.errors == []


if __name__ == "__main__":
    main()
