"""Reports of logs of every kind: what they say, that they are one file, and that nothing of a log is
trusted."""

import json
import re
import time
from html.parser import HTMLParser

import pytest
from cli_runner import run
from needs import imported
from report_cases import HOST, MACHINE, add_task, small_log

from autotune import report
from autotune.errors import ReportError
from autotune.report.data import Limit, read
from autotune.report.page import embedded, page
from autotune.report.parts import prose, thinned
from kernels_db.errors import LogError
from kernels_db.store import Log
from schedules import ops
from schedules.model import Step, Trace


class _Text(HTMLParser):
    """The text of a page, the elements, and all attributes, as a browser reads them."""

    VOID = {"meta", "link", "input", "br", "img"}

    def __init__(self, html):
        super().__init__()
        self.words, self.tags, self.attributes, self.open, self.scripts = [], [], [], [], []
        self.feed(html)
        assert self.open == [], f"not closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, tag

    def handle_data(self, data):
        (self.scripts if self.open and self.open[-1] in ("script", "style") else self.words).append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return small_log(tmp_path_factory.mktemp("log") / "t.db")


def figures_of(html):
    return json.loads(re.search(r'id="figures">(.*?)</script>', html, re.DOTALL)[1])


def test_says_what_a_log_has(small):
    log = read(small)
    html = page(log)
    seen = _Text(html)
    assert log.trials == 84
    matmul = next(t for t in log.tasks if t.workload.op == "matmul")
    best = min(r.time_s for r in matmul.finals)
    for words in (
        "matmul m=64 n=48 k=32 float32, 2 threads",
        f"{best * 1e3:.3g} ms",
        f"{matmul.workload.flops / best / 1e9:,.1f} GFLOP/s",
        f"{2e-4 / best * 100:.1f} %",  # of the limit
        "ran too long 7, wrong result 7",
        "8 trials were stopped early, as far from the best. 14 of 60 trials failed:",
        "Split loop c_i into tiles of",
        "What bounds it",  # of why it is fast
        "Share the iterations of loop c_i_0 among the threads.",
        "parallel",
        "A CPU of a test",
        "as it was logged with each trial",
    ):
        assert words in seen.text, words


def test_every_plot_is_valid_for_plotly(small):
    go = imported("plotly.graph_objects")
    found = figures_of(page(read(small)))
    assert len(found) >= 10
    for figure in found:
        for series in figure["data"]:
            if "texts" in series:
                places = series.pop("text_at")
                series["text"] = [series["texts"][i] for i in places]
                del series["texts"]
            assert len(series["x"]) == len(series["y"])
        go.Figure(figure)  # raises for what Plotly does not know


def test_convergence_has_every_trial_and_every_failure(small):
    log = read(small)
    task = next(t for t in log.tasks if t.workload.op == "matmul")
    from autotune.report.sections.convergence import of_task

    by_trial, by_second = of_task(log, task).figures
    series = {d["name"]: d for d in by_trial.data}
    assert len(series["trial"]["x"]) == task.by_status["ok"]
    assert len(series["stopped early (8)"]["x"]) == 8
    assert len(series["ran too long (7)"]["x"]) == len(series["wrong result (7)"]["x"]) == 7
    assert len(series["final (4)"]["x"]) == 4
    line = series["best so far"]["y"]
    ok = [r.time_s * 1e3 for r in task.trials if r.status == "ok"]
    assert line == sorted(line, reverse=True) and line[-1] == pytest.approx(min(ok), rel=1e-4)
    seconds = {d["name"]: d for d in by_second.data}["trial"]["x"]
    assert seconds == sorted(seconds)
    assert seconds[-1] - seconds[0] == pytest.approx((task.trials[-1].trial - 0) / 4, abs=0.6)


def test_the_roofline_stands_where_the_limit_says(small):
    log = read(small)
    task = next(t for t in log.tasks if t.workload.op == "matmul")
    from autotune.report.sections.roofline import of_task

    series = {d["name"]: d for d in of_task(log, task).figures[0].data}
    assert series["peak: 100 GFLOP/s"]["y"] == [100.0, 100.0]
    x, y = series["bandwidth: 10.0 GB/s"]["x"], series["bandwidth: 10.0 GB/s"]["y"]
    assert y == pytest.approx([10.0 * v for v in x], rel=1e-3)
    assert x[1] == pytest.approx(series["peak: 100 GFLOP/s"]["x"][0], rel=1e-3)
    measured = [r for r in task.trials if r.status == "ok"]
    expected = [task.workload.flops / r.environment["memory_bytes"] for r in measured]
    drawn = series["candidate"]["x"]
    assert sorted(set(drawn)) == pytest.approx(sorted(set(expected)), rel=1e-4) and len(drawn) == len(
        measured
    )


def test_bytes_are_computed_again_from_decisions_where_the_log_has_none(tmp_path):
    from autotune.report.sections.roofline import of_task
    from kernels_db.records import NewRecord
    from schedules.space import derive
    from schedules.space.base import Candidate, trace_of

    workload = ops.workload("matmul", {"m": 256, "n": 256, "k": 256})
    space = derive(workload.canonical, HOST)
    import numpy as np

    rows = space.sample(0, 40, np.random.default_rng(0))
    rows = rows[space.valid(0, rows)]
    assert len(rows) > 3
    with Log(tmp_path / "t.db") as log:
        run_ = log.start_run(workload, HOST, MACHINE, seed=0)
        for n, row in enumerate(rows):
            c = Candidate(0, tuple(int(v) for v in row))
            log.add(
                NewRecord(
                    run_.uid, n, space.sketches[0], trace_of(space, c), "ok", times_s=(1e-3,),
                    environment={"decisions": list(c.row)},
                )
            )  # fmt: skip
    log = read(tmp_path / "t.db")
    part = of_task(log, log.tasks[0])
    expected = space.features(0, rows)[:, space.feature_names.index("total.memory_bytes")]
    got = [log.memory_bytes(log.tasks[0], r) for r in log.tasks[0].trials]
    assert got == pytest.approx([float(v) for v in expected])
    assert "computed again from the decisions of the records" in part.after
    assert part.figures[0].data[-2]["x"] == pytest.approx(
        [workload.flops / float(v) for v in expected], rel=1e-4
    )


HOSTILE = "</script><script>alert(1)</script><!--<img src=x onerror=alert(2)>\"'`&amp;${7*7}"


def test_nothing_of_a_log_is_trusted(tmp_path):
    machine = {"cpu": HOSTILE, "system": HOSTILE, "autotune": HOSTILE}
    small_log(tmp_path / "t.db", reason=HOSTILE, sketch=HOSTILE, machine=machine)
    with Log(tmp_path / "t.db") as log:
        from schedules import te

        x = te.placeholder((8, 16), "float32", "x")
        y = te.compute((8, 16), lambda i, j: x[i, j] * 2.0, "y")
        from schedules.model import Workload

        strange = Workload(te.dag([x, y]), HOSTILE, (("n", HOSTILE),), 128)
        add_task(log, strange, 20, reason=HOSTILE, machine=machine)
    written = report.of_log(tmp_path / "r.html", tmp_path / "t.db")
    html = written.path.read_text("utf-8")
    seen = _Text(html)
    assert seen.tags.count("script") == 3 and "img" not in seen.tags
    assert not [a for a in seen.attributes if a[1].startswith("on")]
    assert "alert(1)" in seen.text  # it is shown, as text
    for figure in figures_of(html):
        for series in figure["data"]:
            shown = [
                series["name"],
                *series.get("text", ()),
                *series.get("texts", ()),
                *map(str, series["y"]),
            ]
            assert not any("<script" in s or "<img" in s for s in shown)
    raw = re.search(r'id="figures">(.*?)</script>', html, re.DOTALL)[1]
    assert "<" not in raw and ">" not in raw


def test_json_in_a_script_ends_nothing():
    value = {"a": "</script><!--<script>&\u2028", "b": [1.5, None]}
    made = embedded(value)
    assert json.loads(made) == value and not set("<>&\u2028") & set(made)


def test_asks_no_network(small):
    seen = _Text(page(read(small)))
    for tag, name, value in seen.attributes:
        if name in ("src", "href", "srcset", "action", "data"):
            assert value.startswith(("#", "data:")), (tag, name, value)
    policy = next(v for tag, name, v in seen.attributes if name == "content" and "default-src" in v)
    assert policy.startswith("default-src 'none';") and "http" not in policy and "unsafe-eval" not in policy
    assert "'unsafe-inline'" not in policy.split("script-src")[1].split(";")[0]


def test_an_empty_log_says_what_to_do(tmp_path):
    with Log(tmp_path / "t.db"):
        pass
    found = run("report", "--db", tmp_path / "t.db", "-o", tmp_path / "r.html", "--json")
    assert found.status == 0 and found.json["tasks"] == found.json["trials"] == 0
    html = (tmp_path / "r.html").read_text("utf-8")
    assert "autotune tune matmul" in _Text(html).text and found.json["bytes"] == len(html.encode())


def test_a_log_of_failures_alone(tmp_path):
    with Log(tmp_path / "t.db") as log:
        add_task(
            log, ops.workload("matmul", {"m": 8, "n": 8, "k": 8}), 30, statuses=("crash", "timeout"), traces=4
        )
    seen = _Text(page(read(tmp_path / "t.db")))
    assert "No trial of this task gave a kernel" in seen.text
    assert "30 of 30 trials failed" in seen.text and "crashed 15, ran too long 15" in seen.text


def test_a_trace_of_another_version_is_named(tmp_path):
    with Log(tmp_path / "t.db") as log:
        workload = ops.workload("matmul", {"m": 8, "n": 8, "k": 8})
        run_ = log.start_run(workload, HOST, MACHINE, seed=0)
        from kernels_db.records import NewRecord

        log.add(
            NewRecord(run_.uid, 0, "s", Trace((Step("teleport", (("loop", "i"),)),)), "ok", times_s=(1e-3,))
        )
    seen = _Text(page(read(tmp_path / "t.db")))
    assert "A step that this version does not know: teleport." in seen.text
    assert "The schedule cannot be replayed by this version" in seen.text


def test_places_that_cannot_be_written(small, tmp_path):
    with pytest.raises(ReportError, match=r"is a directory; give a file in it"):
        report.of_log(tmp_path, small)
    with pytest.raises(ReportError, match=r"missing does not exist; make the directory first"):
        report.of_log(tmp_path / "missing" / "r.html", small)
    (tmp_path / "file").write_text("x")
    with pytest.raises(ReportError, match=r"file is no directory"):
        report.of_log(tmp_path / "file" / "r.html", small)
    found = run("report", "--db", small, "-o", tmp_path / "missing" / "r.html")
    assert found.status == 2 and "make the directory first" in found.err
    with pytest.raises(LogError, match="nowhere"):
        report.of_log(tmp_path / "r.html", tmp_path / "nowhere.db")
    assert not (tmp_path / "r.html").exists()


def test_a_log_is_never_replaced(small, tmp_path):
    copy = tmp_path / "t.db"
    with Log(copy) as log:
        log.merge(small)
    (tmp_path / "link.html").symlink_to(copy)
    before = copy.read_bytes()
    for name in ("t.db", "t.db-wal", "link.html"):
        found = run("report", "--db", copy, "-o", tmp_path / name)
        assert found.status == 2 and "would be overwritten; choose another file" in found.err
    with pytest.raises(ReportError, match="is a database and would be overwritten"):
        report.of_log(copy, small)
    assert copy.read_bytes() == before and not (tmp_path / "t.db-wal").exists()


def test_a_page_on_stdout(small, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = run("report", "--db", small, "-o", "-")
    assert found.status == 0 and found.out.startswith("<!DOCTYPE html>") and found.out.endswith("</html>\n")
    assert "stdout: 2 tasks, 84 trials" in " ".join(found.err.split()) and [*tmp_path.iterdir()] == []
    for wrong in ("--json", "--open"):
        assert run("report", "--db", small, "-o", "-", wrong).status == 2


def test_what_is_there_is_replaced_whole(small, tmp_path, monkeypatch):
    place = tmp_path / "r.html"
    place.write_text("old")
    import os

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as m:
        m.setattr(os, "replace", full)
        with pytest.raises(ReportError, match="No space left on device; choose another place with -o"):
            report.of_log(place, small)
    assert place.read_text() == "old" and [*tmp_path.iterdir()] == [place]
    written = report.of_log(place, small)
    assert place.stat().st_size == written.bytes and [*tmp_path.iterdir()] == [place]


def test_the_command(small, tmp_path):
    found = run("report", "--db", small, "-o", tmp_path / "r.html")
    assert found.status == 0 and re.search(r"r\.html: 2 tasks, 84 trials, \d\.\d+ MB; open it", found.out)
    one = run(
        "report", "matmul", "--shape", "m=64,n=48,k=32", "--db", small, "-o", tmp_path / "1.html", "--json"
    )
    assert one.json["tasks"] == 1 and one.json["trials"] == 60
    none = run("report", "matmul", "--shape", "m=1,n=1,k=1", "--db", small, "-o", tmp_path / "0.html")
    said = f"no trials of matmul m=1 n=1 k=1 float32 in {small}; tune it first: autotune tune matmul --shape"
    assert none.status == 1 and said in none.err and none.err.rstrip().endswith("autotune log list")
    apart = run("report", "matmul", "--shape", "m=64,n=48,k=32", "--threads", "7", "--target", "x86-64-v3",
                "--db", small, "-o", tmp_path / "0.html")  # fmt: skip
    assert apart.status == 1 and "no trials of matmul m=64 n=48 k=32 float32, 7 threads for x86" in apart.err
    assert not (tmp_path / "0.html").exists()
    report.of_log(tmp_path / "0.html", small, ["0" * 32])
    assert "nothing of what was asked for" in _Text((tmp_path / "0.html").read_text("utf-8")).text
    for wrong in (("--shape", "m=1"), ("--threads", "1"), ("--profile",), ("--against", "numpy")):
        assert run("report", "--db", small, "-o", tmp_path / "x.html", *wrong).status == 2
    assert not (tmp_path / "x.html").exists()


@pytest.mark.slow
def test_points_are_left_out_in_words_only(tmp_path):
    assert thinned(10) == list(range(10))
    kept = thinned(100_000, (7, 99_998), 1000)
    assert {7, 99_998, 99_999} <= {*kept} and len(kept) <= 1003
    with Log(tmp_path / "t.db") as log:
        add_task(
            log, ops.workload("matmul", {"m": 8, "n": 8, "k": 8}), 4000, statuses=("ok", "crash"), traces=4
        )
    log = read(tmp_path / "t.db")
    from autotune.report.sections.convergence import of_task

    figure = of_task(log, log.tasks[0]).figures[0]
    assert "1,501 of 2,000 failures (crashed) are drawn" in figure.note
    assert re.search(
        r"1,5\d\d of 2,000 trials are drawn, evenly spaced, with each that was the best", figure.note
    )


def test_backquotes_become_code_after_escaping():
    assert prose("a `<b>` & `c`") == "a <code>&lt;b&gt;</code> &amp; <code>c</code>"


@pytest.mark.parametrize(
    "value",
    [None, 3, [], {}, {"seconds": "x"}, {"seconds": -1.0}, {"seconds": float("nan")}, {"seconds": 10**400}],
)
def test_a_limit_of_a_log_may_be_anything(value):
    assert Limit.of(value) is None


def test_rates_of_a_log_may_be_anything():
    odd = {"vpdpbusd_a_second": "x", "vdpbf16ps_a_second": -1, "evil_a_second": 1e9, "sdot_a_second": 2e9}
    limit = Limit.of({"seconds": 1.0, **odd})
    assert limit is not None and limit.instructions == {"sdot_a_second": 2e9} and limit.by == "sdot"
    assert Limit.of({"seconds": 1.0}).by is None


@pytest.mark.slow
def test_many_trials_in_time(tmp_path):
    """20,000 trials of 40 tasks in 15 MB. It takes 1.8 s of processor time alone, and longer beside others,
    which share the caches and the core."""
    with Log(tmp_path / "t.db") as log:
        for n in range(40):
            add_task(log, ops.workload("matmul", {"m": 32 + n, "n": 64, "k": 64}), 500, seed=n)
    begin = time.process_time()
    written = report.of_log(tmp_path / "r.html", tmp_path / "t.db")
    took = time.process_time() - begin
    assert written.trials == 20_000 and written.tasks == 40
    assert written.bytes < 15e6, written.bytes
    assert took < 10.0, took


def test_results_write_their_own_tasks(small, tmp_path):
    from autotune.results.tuned import SuiteResult, SuiteTask, TaskResult
    from autotune.tuning.frozen import frozen

    workload = ops.workload("matmul", {"m": 64, "n": 48, "k": 32})
    with Log(small) as log:
        one = frozen(workload, HOST, log)
    written = one.report(tmp_path / "r.html")
    assert (written.tasks, written.trials) == (1, 60)
    suite = SuiteResult((TaskResult(SuiteTask(workload), one, 1.0),), None, 0, 1.0, 1.0, 0, "budget")
    assert suite.report(tmp_path / "s.html").trials == 60
    from dataclasses import replace

    with pytest.raises(ReportError, match="does not say which log it is of"):
        replace(one, place=None).report(tmp_path / "x.html")
    assert "place" not in repr(one)


@pytest.mark.slow
def test_no_password_of_a_database(postgres, tmp_path):
    """A report of a PostgreSQL log, whose place is shown without its password."""
    url = postgres.database()
    with Log(url) as log:
        add_task(log, ops.workload("matmul", {"m": 8, "n": 8, "k": 8}), 12, traces=4)
    secret = url.replace("postgres@", "postgres:hunter2@")
    written = report.of_log(tmp_path / "r.html", secret)
    html = written.path.read_text("utf-8")
    assert written.trials == 12 and "postgres:***@" in html and "hunter2" not in html
