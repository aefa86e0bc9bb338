"""Figures of one cgroup or process at one moment, and what it used since the moment before."""

from collections.abc import Mapping
from typing import NamedTuple

from evenkeel.cgroup.driver import Statistics
from evenkeel.host.node_figures import Pressures

RATE_SECONDS = 120.0  # a rate over more than that is none


class Sample(NamedTuple):
    """`nanocores` is the cpu it used on average since the sweep before; None where there was none."""

    statistics: Statistics
    nanocores: int | None = None
    pressures: Pressures | None = None


class Rates:
    def __init__(self, before_us: Mapping[str, int], seconds: float) -> None:
        self._before_us = before_us
        self._seconds = seconds
        self.seen_us: dict[str, int] = {}

    def of(self, name: str, used_us: int) -> int | None:
        """In billionths of a core."""
        self.seen_us[name] = used_us
        before = self._before_us.get(name)
        if before is None or used_us < before or not 0 < self._seconds <= RATE_SECONDS:
            return None
        return round((used_us - before) * 1000 / self._seconds)
