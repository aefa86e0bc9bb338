"""Prometheus' text format: families of samples, each with its help and type, and the samples of a family together."""

import math
from collections.abc import Iterable, Mapping

from evenkeel.agent.counts import Histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
COUNTER, GAUGE, HISTOGRAM, UNTYPED = "counter", "gauge", "histogram", "untyped"

Samples = Iterable[tuple[str, float]] | float


class Exposition:
    """Text that grows family by family. `stamp` is put behind every value that is not said to be without: the time at
    which it was read."""

    def __init__(self, at: float | None = None) -> None:
        self._parts: list[str] = []
        self._stamp = "" if at is None else f" {round(at * 1000)}"

    def counter(self, name: str, help_: str, samples: "Samples") -> None:
        self.family(name, COUNTER, help_, samples)

    def gauge(self, name: str, help_: str, samples: "Samples", *, is_stamped: bool = True) -> None:
        self.family(name, GAUGE, help_, samples, is_stamped=is_stamped)

    def family(
        self,
        name: str,
        type_: str,
        help_: str,
        samples: "Samples",
        *,
        is_stamped: bool = True,
    ) -> None:
        """Each sample is its labels, as `labels` gives them, and its value; or there is one, without labels. A family
        without any is left out."""
        if isinstance(samples, int | float):
            samples = (("", samples),)
        end = f"{self._stamp}\n" if is_stamped else "\n"
        lines = [f"{name}{labels} {value!r}{end}" for labels, value in samples]
        if lines:
            self._parts.append(f"# HELP {name} {help_}\n# TYPE {name} {type_}\n")
            self._parts += lines

    def histogram(self, name: str, help_: str, histogram: Histogram) -> None:
        parts = [f"# HELP {name} {help_}\n# TYPE {name} {HISTOGRAM}\n"]
        total = 0
        for bound, count in zip((*histogram.bounds, math.inf), histogram.counts, strict=True):
            total += count
            le = "+Inf" if bound == math.inf else repr(bound)
            parts.append(f'{name}_bucket{{le="{le}"}} {total}\n')
        parts.append(f"{name}_sum {histogram.sum!r}\n{name}_count {total}\n")
        self._parts += parts

    def text(self) -> bytes:
        return "".join(self._parts).encode()


def labels(**named: str) -> str:
    """In braces, escaped."""
    return of_mapping(named)


def of_mapping(named: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in named.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
