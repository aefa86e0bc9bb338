"""Durations as Go writes them (`1m30s`, `100ms`, `1.5h`), which is how Kubernetes' configuration has them."""

import re

from evenkeel.errors import EvenkeelError

_NANOSECONDS = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,
    "μs": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
}
_PART = re.compile(r"([0-9]*)(?:\.([0-9]*))?(ns|us|µs|μs|ms|s|m|h)")
_LONGEST = 2**63 - 1


class Duration(int):
    """A number of nanoseconds that prints as Go prints it."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> "Duration":
        """The duration that Go's `time.ParseDuration` reads from `text`."""
        sign, rest = (-1, text[1:]) if text[:1] == "-" else (1, text.removeprefix("+"))
        if rest == "0":
            return cls(0)
        total = 0
        position = 0
        while position < len(rest):
            part = _PART.match(rest, position)
            if not part or not (part[1] or part[2]) or len(part[0]) > 40:
                break
            unit = _NANOSECONDS[part[3]]
            fraction = part[2] or ""
            # A fraction of a nanosecond is dropped, as Go does.
            total += int(part[1] or "0") * unit + int(fraction or "0") * unit // 10 ** len(fraction)
            position = part.end()
        if position < len(rest) or not rest or total > _LONGEST:
            raise EvenkeelError(
                f'"{text[:60]}" is not a duration: write a number and a unit, such as 30s, 1m30s or 100ms'
            )
        return cls(sign * total)

    @property
    def seconds(self) -> float:
        return self / 10**9

    def __str__(self) -> str:
        nanoseconds = abs(int(self))
        sign = "-" if self < 0 else ""
        if nanoseconds < 10**9:
            for unit in ("ms", "µs"):
                if nanoseconds >= _NANOSECONDS[unit]:
                    return f"{sign}{_decimal(nanoseconds, _NANOSECONDS[unit])}{unit}"
            return f"{sign}{nanoseconds}ns" if nanoseconds else "0s"
        hours, rest = divmod(nanoseconds, _NANOSECONDS["h"])
        minutes, rest = divmod(rest, _NANOSECONDS["m"])
        text = f"{_decimal(rest, 10**9)}s"
        if hours or minutes:
            text = f"{minutes}m{text}"
        if hours:
            text = f"{hours}h{text}"
        return sign + text


def _decimal(number: int, unit: int) -> str:
    whole, rest = divmod(number, unit)
    digits = len(str(unit)) - 1
    return f"{whole}.{rest:0{digits}d}".rstrip("0").rstrip(".") if rest else str(whole)
