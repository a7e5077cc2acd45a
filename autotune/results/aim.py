"""What a run is to reach (``until``), and how far it is from that."""

from __future__ import annotations

import re
from dataclasses import dataclass

from autotune.settings import LONGEST_S, SettingsError
from schedules.units import disturbed, percent, seconds

_TIME = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+) *(ns|us|µs|ms|s)")
_A_SECOND = {"ns": 1e9, "us": 1e6, "µs": 1e6, "ms": 1e3, "s": 1.0}  # divided by: 1.5ms is 0.0015
REMEDY = "write a time of a call with its unit, as 200us or 1.5ms, or a share of the limit, as 0.9"


@dataclass(frozen=True)
class Aim:
    """A time of a call (seconds), or a share of the machine's limit. The other is None."""

    time_s: float | None = None
    share: float | None = None

    @classmethod
    def read(cls, given: str | float | Aim) -> Aim:
        """From what a user gives: ``"200us"``, ``"0.9"`` or ``0.9``. Raises `SettingsError`.

        >>> Aim.read("200us"), Aim.read(0.9)
        (Aim(time_s=0.0002, share=None), Aim(time_s=None, share=0.9))
        """
        if isinstance(given, Aim):
            return given
        if isinstance(given, bool) or not isinstance(given, (str, int, float)):
            raise SettingsError(f"until is {given!r}; {REMEDY}")
        if isinstance(given, str) and (m := _TIME.fullmatch(given.strip().lower())):
            time_s = float(m[1]) / _A_SECOND[m[2]]
            if not 0 < time_s <= LONGEST_S:
                raise SettingsError(f"until is {given!r}; a time is above zero and at most 30 days")
            return cls(time_s=time_s)
        try:
            share = float(given)
        except ValueError:
            raise SettingsError(f"until is {given!r}; {REMEDY}") from None
        if not 0 < share <= 1:
            raise SettingsError(f"until is {given!r}; a share is above 0 and at most 1; {REMEDY}")
        return cls(share=share)

    def __str__(self) -> str:
        return f"{percent(self.share)} of the limit" if self.time_s is None else seconds(self.time_s)


@dataclass(frozen=True)
class Aimed:
    """How far a run is from its aim. ``time_s``: what a call takes (seconds), ``share``: the share of the
    limit that it reaches. None: not known. ``provisional``: whether a time in it was not measured again
    yet; then nothing is reached."""

    aim: Aim
    time_s: float | None = None
    share: float | None = None
    provisional: bool = False

    @property
    def near(self) -> bool:
        """Whether the times reach it, if they are right. A share that no machine reaches is not believed."""
        if self.aim.time_s is not None:
            return self.time_s is not None and self.time_s <= self.aim.time_s
        return self.share is not None and not disturbed(self.share) and self.share >= (self.aim.share or 0.0)

    @property
    def reached(self) -> bool:
        """Whether times that were measured again reach it."""
        return self.near and not self.provisional

    def __str__(self) -> str:
        """``target 200 us reached: 188 us``, ``target 200 us: 251 us, 1.25 times as long``."""
        if self.aim.time_s is not None:
            now = seconds(self.time_s) if self.time_s is not None else "no kernel yet"
            if self.time_s is not None and not self.near:
                now += f", {self.time_s / self.aim.time_s:.3g} times as long"
        elif self.share is None:
            now = "no kernel yet" if self.time_s is None else "the limit is not known"
        else:
            now = "the limit was disturbed when measured" if disturbed(self.share) else percent(self.share)
        if self.provisional:
            now += ", provisional"
        return f"target {self.aim}{' reached' if self.reached else ''}: {now}"
