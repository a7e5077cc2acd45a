"""Wraps a policy so that a language model proposes a share of each round. Reasons: ADR 62.

The model is asked in a thread of its own. A round never waits for it: the wrapped policy gives what the model
has not. A model that fails a few times is not asked again.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from autotune.search.base import KnownCandidates, Result, SearchPolicy
from autotune.search.llm_answers import Counters, candidate_of, rows_of
from autotune.search.llm_client import Client, LlmError
from autotune.search.llm_prompt import prompt_of
from schedules.model import Target
from schedules.space.base import Candidate, Rows, Space, trace_of

log = logging.getLogger(__name__)

# Key in the environment of a record: exchanges with a model that ended since the last record.
EXCHANGES = "llm"
# Longest prompt and answer in a record (bytes of JSON). A record's environment has 64 KiB.
KEPT = 20_000
# Time for which a patient search waits beyond the deadline (seconds).
MARGIN_S = 1.0
# Control characters, which a log does not need and a terminal obeys.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True)
class LlmOptions:
    """``share``: most of the trials that the model proposes. ``rows``: asked for in a prompt; up to four
    times as many are read. ``shown``: best and as many worst trials in a prompt. ``every``: new results
    between prompts. ``calls``: most prompts of a run. ``failures``: answers without use after which it is not
    asked again. ``deadline_s``: for an answer (seconds)."""

    share: float = 0.25
    rows: int = 16
    shown: int = 8
    every: int = 8
    calls: int = 32
    failures: int = 3
    deadline_s: float = 60.0


class _Call:
    """A prompt that is being answered, in a thread that keeps no process alive."""

    def __init__(self, client: Client, prompt: str, deadline_s: float) -> None:
        self.prompt, self.answer, self.error = prompt, "", ""
        self._lock, self._ended, self._closing = threading.Lock(), False, False
        self._client, self._deadline_s = client, deadline_s
        self._thread = threading.Thread(target=self._run, name="autotune-llm", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.answer = self._client.complete(self.prompt, self._deadline_s)
        except LlmError as err:
            self.error = str(err) or "no answer"
        except Exception as err:  # a client's fault must not look like a model that is still thinking
            self.error = type(err).__name__
        with self._lock:
            self._ended, closing = True, self._closing
        if closing:
            self._client.close()

    def close(self) -> None:
        """Close the client as soon as it has ended."""
        with self._lock:
            self._closing, ended = True, self._ended
        if ended:
            self._client.close()

    def done(self, wait_s: float = 0.0) -> bool:
        """Whether it ended, after at most ``wait_s`` seconds."""
        self._thread.join(wait_s)
        return not self._thread.is_alive()


class Proposing:
    """A `SearchPolicy`: up to a share of each round from what a model proposed, the rest from ``policy``.

    ``expression``: the computation, as text. ``patient``: wait for each answer, up to the deadline, as where
    trials take no time (`autotune replay`). ``counters``: what became of the model's rows.
    """

    def __init__(
        self,
        policy: SearchPolicy,
        space: Space,
        client: Client,
        *,
        expression: str = "",
        target: Target | None = None,
        seed: int = 0,
        patient: bool = False,
        options: LlmOptions | None = None,
    ) -> None:
        self._policy, self._space, self._client = policy, space, client
        self._expression, self._target, self._patient = expression, target, patient
        self._options = options or LlmOptions()
        self._rng = np.random.default_rng(seed)
        self._known = KnownCandidates(space)
        self._queue: deque[Candidate] = deque()
        self._proposed: set[Candidate] = set()
        self._credit = 0.0  # trials that the model may have: its share of those asked for
        self._call: _Call | None = None
        self._results: list[Result] = []  # distinct, best first
        self._trials, self._shown = 0, -1  # results so far, and at the last prompt
        self._ended: list[dict[str, Any]] = []  # exchanges that no record has yet
        self.calls, self.failures = 0, 0
        self.counters = Counters()

    # -- the contract ------------------------------------------------------------------------

    def ask(self, n: int) -> list[Candidate]:
        self._listen()
        self._begin()
        if self._patient and not self._queue:
            self._listen(self._options.deadline_s + MARGIN_S)
        self._credit = min(self._credit + self._options.share * n, max(self._options.share * n, 1.0))
        mine: list[Candidate] = []
        while self._queue and len(mine) < min(int(self._credit), n):
            self._propose(mine)
        rest = self._policy.ask(n - len(mine)) if len(mine) < n else []
        for c in rest:
            self._known.admit(c)
        while self._queue and not rest and len(mine) < n:  # the policy has nothing left
            self._propose(mine)
        self._credit = max(self._credit - len(mine), 0.0)
        return [*rest, *mine]

    def tell(self, results: Sequence[Result]) -> None:
        self._policy.tell(results)
        for r in results:
            self._known.add(r.candidate)
        self._trials += len(results)
        self._results = sorted([*self._results, *results], key=lambda r: -r.throughput)
        shown = self._options.shown
        if len(self._results) > 4 * shown:  # the best, the slowest that ran, and some that failed
            ran = [r for r in self._results if r.throughput > 0]
            failed = [r for r in self._results if not r.throughput > 0]
            self._results = [*ran[:shown], *ran[shown:][-shown:], *failed[-shown:]]
        self._listen()
        self._begin()  # so that it has the time of a round

    def exclude(self, digests: Iterable[str]) -> None:
        known = list(digests)
        self._known.exclude(known)
        self._policy.exclude(known)

    def predicted(self, chosen: Sequence[Candidate]) -> Mapping[str, Sequence[float]]:
        return self._policy.predicted(chosen)

    def close(self) -> None:
        """Ask the model no more, and close its client once an answer that is under way has come."""
        self.failures = self._options.failures
        if self._call is None:
            self._client.close()
        else:
            self._call.close()

    # -- for the record ----------------------------------------------------------------------

    def proposed(self, candidate: Candidate) -> bool:
        """Whether the model proposed a candidate that was asked for."""
        return candidate in self._proposed

    def exchanges(self) -> dict[str, object]:
        """The oldest exchange that was not taken yet, as a part of a record's environment; empty if there is
        none."""
        return {EXCHANGES: self._ended.pop(0)} if self._ended else {}

    # -- the model ---------------------------------------------------------------------------

    def _propose(self, mine: list[Candidate]) -> None:
        """Move the next of the queue to ``mine``, unless it was tried or excluded meanwhile."""
        candidate = self._queue.popleft()
        if not self._known.admit(candidate):
            self.counters.repeated += 1
            return
        self._policy.exclude([trace_of(self._space, candidate).digest])
        self._proposed.add(candidate)
        mine.append(candidate)

    def _begin(self) -> None:
        """Ask the model, if it is not being asked, has not failed, and there is something new to tell."""
        o = self._options
        news = self._shown < 0 or self._trials - self._shown >= o.every
        if self._call or self._queue or not news or self.calls >= o.calls or self.failures >= o.failures:
            return
        best = [r for r in self._results if r.throughput > 0][: o.shown]
        others = [r for r in self._results if r not in best]
        ran = [r for r in others if r.throughput > 0]
        failed = [r for r in others if not r.throughput > 0][: o.shown // 2]
        worst = [*ran[len(ran) - (o.shown - len(failed)) :], *failed] if ran else failed
        prompt = prompt_of(self._space, self._expression, self._target, best, worst, self._trials, o.rows)
        self._shown = self._trials
        self.calls += 1
        self._call = _Call(self._client, prompt, o.deadline_s)

    def _listen(self, wait_s: float = 0.0) -> None:
        """Take the answer, if it has come."""
        call = self._call
        if call is None:
            return
        if not call.done(wait_s):
            if self._patient and wait_s:  # a client that keeps no deadline is not waited for again
                self.failures = self._options.failures
            return
        self._call = None
        before = asdict(self.counters)
        if not call.error:
            self._read(call.answer)
        counted = {k: v - before[k] for k, v in asdict(self.counters).items()}
        if not counted["taken"]:
            self.failures += 1
            if self.failures == self._options.failures:
                why = call.error or "its answers have no new schedule of this space"
                log.warning("the language model is not asked again in this run: %s", plain(why, 300))
        self._ended.append(
            {
                "model": plain(self._client.model, 200),
                "prompt": plain(call.prompt),
                "answer": plain(call.answer),
                **({"error": plain(call.error, 500)} if call.error else {}),
                **counted,
            }
        )

    def _read(self, answer: str) -> None:
        """Queue what an answer proposes."""
        for row in rows_of(answer, 4 * self._options.rows):
            found = candidate_of(self._space, row, self._base, self._rng)
            if found is None:
                self.counters.dropped += 1
                continue
            candidate, repaired = found
            rows = np.array([candidate.row], dtype=np.int64)
            if candidate in self._queue or not self._known.fresh(candidate.sketch, rows)[0]:
                self.counters.repeated += 1
                continue
            self.counters.taken += 1
            self.counters.repaired += repaired
            self._queue.append(candidate)

    def _base(self, sketch: int) -> Rows | None:
        """The best measured row of a sketch, else a random one."""
        for r in self._results:
            if r.candidate.sketch == sketch:
                return np.array(r.candidate.row, dtype=np.int64)
        drawn = self._known.draw(sketch, 1, self._rng)
        return drawn[0] if len(drawn) else None


def plain(text: str, most: int = KEPT) -> str:
    """A text for a log: without control characters and half characters, at most ``most`` bytes of JSON.

    >>> plain("a" + chr(27) + "[31mb")
    'a?[31mb'
    """
    text = _CONTROL.sub("?", text[:most]).encode("utf-8", "replace").decode("utf-8")
    size = [len(json.dumps(c)) - 2 for c in text]
    total = 0
    for i, n in enumerate(size):
        total += n
        if total > most:
            return text[:i]
    return text
