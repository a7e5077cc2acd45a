"""Reports opened in Chromium: every plot is drawn, nothing is complained of, and nothing is asked of a
network."""

import pytest
from chromium import Chromium, program
from needs import missing
from report_cases import add_task, small_log

from autotune import report
from autotune.report.data import read
from autotune.report.graph_drawing import Drawing, DrawnNode, svg
from autotune.report.page import page
from kernels_db.store import Log
from schedules import ops

if program() is None:
    missing("chromium")

READY = "document.documentElement.dataset.ready === '1'"
SHOWN = "[...document.querySelectorAll('.plot')].filter(p => p.offsetParent)"
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)><b>\"'`&amp;"


@pytest.fixture(scope="module")
def browser():
    with Chromium() as opened:
        yield opened


def drawn(page):
    """Whether each plot that is seen has been drawn, with its axes and at least a mark."""
    has = "p.querySelector('.main-svg') && p.querySelector('.points path, .lines path')"
    return page.evaluate(f"{SHOWN}.every(p => p.dataset.drawn && {has})")


def opened(browser, path, **more):
    page = browser.open(path.resolve().as_uri(), **more)
    page.until(READY)
    return page


def quiet(page):
    """No error, no warning, no failed load; and no address but that of the file, and data in it."""
    assert page.errors == []
    asked = {r.split("#")[0].split(":")[0] for r in page.requested}
    assert asked <= {"file", "data", "blob"} and len([r for r in page.requested if r.startswith("file")]) == 1


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True])
def test_every_plot_is_drawn(browser, tmp_path, dark):
    """Of a log with hostile texts too, none of which runs."""
    hostile = {"reason": HOSTILE, "sketch": HOSTILE, "machine": {"cpu": HOSTILE, "system": HOSTILE}}
    db = small_log(tmp_path / "t.db", **(hostile if dark else {}))
    seen = opened(browser, report.of_log(tmp_path / "r.html", db).path, dark=dark)
    assert seen.evaluate(f"{SHOWN}.length") >= 7 and drawn(seen)
    for number in (1, 0):  # the other task, by its row
        seen.evaluate(f"document.querySelector('tr[data-task=\"{number}\"] td').click()")
        seen.until(f"!document.querySelector('#task-{number}').hidden")
        assert seen.evaluate("document.querySelectorAll('section.task:not([hidden])').length") == 1
        seen.until(f"{SHOWN}.every(p => p.dataset.drawn)")
        assert drawn(seen)
    back = seen.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, back[4:-1].split(","))) < 200) is dark
    assert seen.evaluate("document.images.length") == 0
    assert (HOSTILE[:50] in seen.evaluate("document.querySelector('.chips').textContent")) is dark
    quiet(seen)
    if dark:  # what escaping would have let through, the policy refuses
        image = "<img src=x onerror=window.ran=1>"
        seen.evaluate(f"document.body.insertAdjacentHTML('beforeend', '{image}')")
        seen.until("document.images.length === 1")
        assert seen.evaluate("new Promise(r => setTimeout(() => r(window.ran === undefined), 100))")


@pytest.mark.slow
def test_the_table_sorts_and_searches(browser, tmp_path):
    with Log(tmp_path / "t.db") as log:
        for n in range(8):
            add_task(
                log, ops.workload("matmul", {"m": 8 + n, "n": 8, "k": 8}), 10 + (n * 5) % 8, seed=n, traces=4
            )
    seen = opened(browser, report.of_log(tmp_path / "r.html", tmp_path / "t.db").path)
    column = "[...document.querySelectorAll('table.tasks tbody tr')].map(r => +r.cells[4].dataset.v)"
    for order in (sorted(range(10, 18), reverse=True), list(range(10, 18))):
        seen.evaluate("document.querySelectorAll('th.sorts')[4].click()")
        assert seen.evaluate(column) == order
    seen.evaluate("document.querySelector('#filter').value = 'm=11 float32'")
    seen.evaluate("document.querySelector('#filter').dispatchEvent(new Event('input'))")
    rows = "[...document.querySelectorAll('table.tasks tbody tr:not([hidden])')]"
    names = f"{rows}.map(r => r.cells[0].textContent)"
    assert seen.evaluate(names) == ["matmul m=11 n=8 k=8 float32, 2 threads"]
    assert seen.evaluate("document.querySelector('#found').textContent") == "1 found"
    quiet(seen)


def test_an_empty_log_opens(browser, tmp_path):
    with Log(tmp_path / "t.db"):
        pass
    seen = opened(browser, report.of_log(tmp_path / "r.html", tmp_path / "t.db").path)
    assert "Nothing to show yet" in seen.evaluate("document.body.innerText")
    quiet(seen)


def test_a_graph_of_hundreds_of_nodes_has_no_overlaps(browser, tmp_path):
    """300 nodes with branches and long edges: no two boxes overlap, and all stand inside."""
    nodes = [DrawnNode(f"node {n} <{'x' * (n % 30)}>", f"{n} × 64") for n in range(300)]
    edges = [(n, n + 1) for n in range(299) if n != 4]
    edges += [(n, n + far) for far in (2, 7) for n in range(0, 290, far + 1)]
    made = svg(Drawing(nodes, edges), "a test")
    (tmp_path / "g.html").write_text(f"<!DOCTYPE html><meta charset=utf-8>{made}", "utf-8")
    seen = browser.open((tmp_path / "g.html").as_uri())
    sizes = "['x', 'y', 'width', 'height'].map(a => r[a].baseVal.value)"
    boxes = seen.evaluate(f"[...document.querySelectorAll('rect')].map(r => {sizes})")
    assert len(boxes) == 300 and len(made) < 300_000
    box = "document.querySelector('svg').viewBox.baseVal"
    width, height = seen.evaluate(f"[{box}.width, {box}.height]")
    for n, (x, y, w, h) in enumerate(boxes):
        assert x >= 0 and y >= 0 and x + w <= width and y + h <= height
        for x2, y2, w2, h2 in boxes[n + 1 :]:
            assert x + w <= x2 or x2 + w2 <= x or y + h <= y2 or y2 + h2 <= y


@pytest.mark.slow
def test_a_page_without_plotly_says_what_to_install(tmp_path, monkeypatch):
    from autotune.report import page as module

    small_log(tmp_path / "t.db")
    module._plotly.cache_clear()
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(report.ReportError, match=r'needs Plotly .* pip install "plotly>=6.0"'):
        page(read(tmp_path / "t.db"))
    module._plotly.cache_clear()
