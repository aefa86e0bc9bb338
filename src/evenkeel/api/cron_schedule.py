"""Schedules of CronJobs: five fields, as the parser of Kubernetes reads them, and the times that they name.

Times are local times. When summer time begins, a time that the clock skips (02:30) is left out. When it ends, a time
that the clock shows twice (01:30) counts twice."""

from collections.abc import Mapping
from datetime import datetime, timedelta, tzinfo
from types import MappingProxyType

from evenkeel.errors import EvenkeelError
from evenkeel.named_tuples import NamedTuple

_MONTH_NAMES = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTHS = {name: number for number, name in enumerate(_MONTH_NAMES, 1)}
_DAYS = {name: number for number, name in enumerate(["sun", "mon", "tue", "wed", "thu", "fri", "sat"])}
_NO_NAMES: Mapping[str, int] = MappingProxyType({})
_FIELDS = (
    ("minute", 0, 59, _NO_NAMES),
    ("hour", 0, 23, _NO_NAMES),
    ("day of the month", 1, 31, _NO_NAMES),
    ("month", 1, 12, _MONTHS),
    ("day of the week", 0, 6, _DAYS),
)
_WORDS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_SEARCHED_SECONDS = 5 * 366 * 86_400  # as in Kubernetes: a time that is farther away never comes


class Schedule(NamedTuple):
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    is_either: bool  # both day fields are restricted: a day counts if one of them has it

    def next_after(self, at: float, zone: tzinfo) -> float | None:
        """The first time after `at`, in seconds since the epoch; None if there is none in five years."""
        time = (int(at) // 60 + 1) * 60
        end = time + _SEARCHED_SECONDS
        while time < end:
            wall = datetime.fromtimestamp(time, zone)
            if wall.month not in self.months or not self._has_day(wall.day, wall.isoweekday() % 7):
                midnight = datetime(wall.year, wall.month, wall.day, tzinfo=zone) + timedelta(days=1)
                time = max(int(midnight.timestamp()), time + 60)
            elif wall.hour not in self.hours:
                time += 60 * (60 - wall.minute)
            elif wall.minute not in self.minutes:
                time += 60
            else:
                return float(time)
        return None

    def last_between(self, since: float, until: float, zone: tzinfo) -> float | None:
        """The last time after `since` that is not after `until`."""
        seconds, found = 120.0, None
        while found is None:
            start = max(until - seconds, since)
            time = self.next_after(start, zone)
            while time is not None and time <= until:
                found, time = time, self.next_after(time, zone)
            if start == since:
                break
            seconds *= 4
        return found

    def _has_day(self, day: int, weekday: int) -> bool:
        if self.is_either:
            return day in self.days or weekday in self.weekdays
        return day in self.days and weekday in self.weekdays


def parse_schedule(text: str) -> Schedule:
    """Raises EvenkeelError with the field and what would be right."""
    if text.startswith(("TZ=", "CRON_TZ=")):
        raise EvenkeelError(f'"{text[:60]}" names a time zone: write it in spec.timeZone')
    if text.startswith("@"):
        if text not in _WORDS:
            raise EvenkeelError(f'"{text[:60]}" is not one of {", ".join(_WORDS)}')
        text = _WORDS[text]
    words = text.split()
    if len(words) != len(_FIELDS):
        names = ", ".join(name for name, *_ in _FIELDS)
        raise EvenkeelError(
            f'"{text[:60]}" has {len(words)} fields: write five ({names}), such as "30 4 * * 1-5"'
        )
    parts = [_field(word, *field) for word, field in zip(words, _FIELDS, strict=True)]
    sets = [numbers for numbers, _ in parts]
    return Schedule(sets[0], sets[1], sets[2], sets[3], sets[4], not parts[2][1] and not parts[4][1])


def _field(
    word: str, name: str, least: int, greatest: int, names: Mapping[str, int]
) -> tuple[frozenset[int], bool]:
    """The numbers of a field, and whether it is a star."""
    found: set[int] = set()
    is_star = False
    for part in word.split(","):
        span, slash, step_text = part.partition("/")
        step = _number(step_text, f"the step of the {name}", 1, 999, _NO_NAMES) if slash else 1
        first, dash, last = span.partition("-")
        if span in ("*", "?"):
            start, end = least, greatest
            is_star = is_star or step == 1
        else:
            start = _number(first, f"the {name}", least, greatest, names)
            end = (
                _number(last, f"the {name}", least, greatest, names) if dash else greatest if slash else start
            )
        if start > end:
            raise EvenkeelError(f'the {name} "{span[:40]}" begins after its end: write {last}-{first}')
        found.update(range(start, end + 1, step))
    return frozenset(found), is_star


def _number(text: str, name: str, least: int, greatest: int, names: Mapping[str, int]) -> int:
    named = names.get(text.lower())
    number = (
        named
        if named is not None
        else int(text)
        if text.isascii() and text.isdecimal() and len(text) < 4
        else -1
    )
    if not least <= number <= greatest:
        or_name = f" or {next(iter(names))} to {list(names)[-1]}" if names else ""
        raise EvenkeelError(f'{name} "{text[:40]}" is not a number from {least} to {greatest}{or_name}')
    return number
