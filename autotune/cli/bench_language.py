"""``autotune bench x.gguf``: a language model beside llama.cpp, and beside the rate of reading memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from autotune.cli import models
from autotune.cli.given import Given
from autotune.cli.output import console, hang, print_json, say_ratio, table
from schedules.units import number, percent, seconds, size

if TYPE_CHECKING:
    from autotune.models.decoding import DecodingTask, DecodingTimes, StepShares
    from autotune.models.module import Module

TUNED = "autotune"
PEER = "llama.cpp"


@dataclass(frozen=True)
class TaskRows:
    """A prompt that was read, or tokens that were made. ``what``: in words. ``moved``: bytes that a call
    reads."""

    what: str
    times: DecodingTimes
    moved: float
    shares: StepShares | None

    @property
    def peers(self) -> list[str]:
        """Those beside which the model was timed."""
        return [name for name in self.times.spent if name != TUNED]

    def ratio(self, peer: str) -> float:
        """How many times as fast as a peer: the median over the rounds."""
        return self.times.comparison.ratio(TUNED, peer)

    def rows(self) -> Iterator[dict[str, Any]]:
        """A row of each implementation."""
        t = self.times
        for name in t.spent:
            time_s = t.comparison.time_s(name)
            yield {
                "impl": name,
                "tokens_a_second": t.task.rows / time_s,
                "time_s": time_s,
                "best_s": t.best_s(name),
                "wall_s": t.wall_s(name),
                "cpu_s": t.cpu_s(name),
                "bytes_a_second": self.moved / time_s,
                "share_of_read_bandwidth": t.share(name, self.moved),
            }

    def document(self) -> dict[str, Any]:
        """For JSON."""
        from statistics import median

        t = self.times
        found = {
            "what": "prefill" if t.task.rows > 1 or not t.task.depth else "decode",
            "tokens": t.task.rows,
            "depth": t.task.depth,
            "bytes": self.moved,
            "read_bytes_a_second": median(t.limits),
            "rows": list(self.rows()),
            "ratio": {p: self.ratio(p) for p in self.peers},
            "quartiles": {p: [*t.comparison.quartiles(TUNED, p)] for p in self.peers},
            "rounds": len(t.limits),
        }
        if self.shares is not None:
            found["products_bytes_a_second"] = self.shares.product_rate
            found["shares"] = {kind: self.shares.share(kind) for kind in self.shares.seconds}
        return found


def compare_model(o: Given, names: Sequence[str]) -> bool:
    """Compare a language model of a file. Prints what was found. Returns whether it beats what it must at
    each depth. Raises `KernelNotFound` where it is not tuned, and `typer.BadParameter`."""
    from autotune.models import decoding
    from autotune.models.llama_cpp_peer import llama_cpp
    from autotune.models.token_calls import TokenCalls

    for name in names:
        if name != PEER:
            raise typer.BadParameter(f"--against {name} does not run files of GGUF; compare with {PEER}")
    depths = tuple(dict.fromkeys(o.depth))
    tasks = [decoding.prefill(o.prefill), *map(decoding.decode, depths)]
    model = models.model_of(o)
    _check_room(tasks, models.context_of(model))
    net = models.compiled(o, model, target=o.target)
    calls = TokenCalls(net)
    settle = 0.15 if net.target.threads > 1 else 0.0  # of threads that spin
    done, different = [], None
    with ExitStack() as stack:
        contenders: list[Any] = [decoding.ModuleContender(net, TUNED)]
        if names:
            room = calls.context or max(t.tokens for t in tasks)
            peer = stack.enter_context(llama_cpp(o.op, net.target.threads, room, o.cache))
            different = decoding.apart(contenders[0], peer, o.prefill, calls.vocabulary)
            contenders.append(peer)
        for task in tasks:
            told: dict[str, Any] = {"seconds": o.duration, "settle_s": settle}
            times = decoding.compare(contenders, task, calls.vocabulary, net.target, **told)
            done.append(_rows(net, calls, task, times, contenders[0].state))
            if not o.json:
                _print(done[-1])
    if o.json:
        print_json(
            {
                "model": net.name, "threads": net.target.threads, "cache": o.cache, "context": calls.context,
                "clock": "cpu" if done[0].times.by_cpu else "wall", "logits_apart": different,
                "tasks": [d.document() for d in done],
            }
        )  # fmt: skip
    else:
        _print_end(o, net, done)
    return o.must_beat is None or all(d.ratio(o.must_beat) > 1 for d in done)


def _check_room(tasks: Sequence[DecodingTask], context: int | None) -> None:
    """Raises `typer.BadParameter` for more tokens than a state has room for, which is ``context``."""
    most = max(t.tokens for t in tasks)
    if context is not None and most > context:
        raise typer.BadParameter(
            f"--depth and --prefill need room for {most} tokens, and the cache has it for {context}: "
            f"give --shape context={most} or more, as it was tuned, or a smaller depth"
        )


def _rows(net: Module, calls: Any, task: DecodingTask, times: DecodingTimes, state: Any) -> TaskRows:
    from autotune.models import decoding

    valid = (task.depth + task.rows) / (calls.context or 1)
    read = decoding.steps_of(decoding.program_of(net, task.rows))
    passes = -(-task.rows // calls.rows)
    moved = passes * decoding.bytes_read(read, min(1.0, valid))
    if not task.depth:
        return TaskRows(f"prefill of {task.rows}", times, moved, None)
    return TaskRows(
        f"decode after {task.depth}", times, moved, decoding.step_shares(net, calls, task.depth, state)
    )


def _print(done: TaskRows) -> None:
    out = console()
    rows = [
        (
            r["impl"],
            f"{r['tokens_a_second']:.1f}",
            seconds(r["time_s"]),
            seconds(r["wall_s"]),
            f"{r['bytes_a_second'] / 1e9:.1f} GB/s",
            percent(r["share_of_read_bandwidth"]),
        )
        for r in done.rows()
    ]
    clock = "CPU time" if done.times.by_cpu else "time"
    out.print(done.what, style="bold")
    table(out, ("", ">tokens/s", f">{clock}", ">wall", ">read", ">of memory"), rows)
    if done.shares is not None:
        s = done.shares
        parts = ", ".join(f"{kind} {percent(s.share(kind))}" for kind in s.seconds)
        out.print(f"  steps: {parts}; products read {s.product_rate / 1e9:.1f} GB/s", style="dim")
    for peer in done.peers:
        say_ratio(out, "model", peer, done.ratio(peer))


def _print_end(o: Given, net: Module, done: Sequence[TaskRows]) -> None:
    from statistics import median

    out, threads = console(), net.target.threads
    limit = median(x for d in done for x in d.times.limits)
    held = size(net.weights_bytes)
    hang(
        out, "",
        f"{net.name}, cache {o.cache}, {number(threads, 'thread')}; {held} of weights. All "
        f"took turns. Times are medians of calls; shares are of the {limit / 1e9:.1f} GB/s at which memory "
        "was read in the same rounds.", "dim",
    )  # fmt: skip
