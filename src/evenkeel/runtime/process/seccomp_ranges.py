"""Makes a compiled seccomp filter shorter: one comparison for a range of system calls instead of one for each call.

When a filter is installed, the kernel translates it and tries it with the number of every call. That happens at each
start of a container, so the length of the filter is part of the time of a start.
"""

import struct
from collections.abc import Iterator
from itertools import pairwise

from evenkeel.named_tuples import NamedTuple

_FORMAT = struct.Struct("HBBI")
_LOAD, _JUMP, _EQUAL, _GREATER, _GREATER_OR_EQUAL, _RETURN = 0x20, 0x05, 0x15, 0x25, 0x35, 0x06
_CLASS, _OF_JUMPS, _OF_RETURNS = 0x07, 0x05, 0x06
_NUMBER_OF_CALL, _ARCHITECTURE = 0, 4  # the offsets of fields of `struct seccomp_data`
_LARGEST = 0xFFFF_FFFF
_FARTHEST = 255  # of a conditional jump


class _Instruction(NamedTuple):
    code: int
    if_true: int
    if_false: int
    value: int


class _Unknown(Exception):
    """The filter has an instruction that is not understood here."""


_Program = list[_Instruction]
_Ranges = list[
    tuple[int, int]
]  # the first value of each range, and the instruction that the filter goes on with


def shortened(instructions: bytes) -> bytes:
    """Returns a filter with the same result for every system call.

    It is the given filter if that is not longer, or has instructions that are not understood here.
    """
    program = [_Instruction(*fields) for fields in _FORMAT.iter_unpack(instructions)]
    try:
        written = _Writer(program).written()
    except _Unknown:
        return instructions
    return min(instructions, b"".join(_FORMAT.pack(*one) for one in written), key=len)


def _ranges(program: _Program, start: int, field: int) -> _Ranges:
    """Follows the filter from `start` for each value of a field, up to an instruction that returns or that loads
    another field."""
    found = sorted(_reached(program, start, field))
    return [found[0], *(one for before, one in pairwise(found) if one[1] != before[1])]


def _reached(program: _Program, start: int, field: int) -> Iterator[tuple[int, int]]:
    waiting = [(start, 0, _LARGEST)]
    while waiting:
        at, low, high = waiting.pop()
        code, if_true, if_false, value = program[at]
        if code == _RETURN:
            yield low, program.index(program[at])  # the same for all that return the same
        elif code == _LOAD and value != field:
            yield low, at
        elif code == _LOAD:
            waiting.append((at + 1, low, high))
        elif code == _JUMP:
            waiting.append((at + 1 + value, low, high))
        elif at == start:
            raise _Unknown  # it would compare what was loaded before
        else:
            yes, no = at + 1 + if_true, at + 1 + if_false
            first, last = _true_for(code, value)
            for target, lowest, highest in ((no, 0, first - 1), (yes, first, last), (no, last + 1, _LARGEST)):
                if max(lowest, low) <= min(highest, high):
                    waiting.append((target, max(lowest, low), min(highest, high)))


def _true_for(code: int, value: int) -> tuple[int, int]:
    """The first and the last value for which a comparison is true."""
    if code == _EQUAL:
        return value, value
    if code == _GREATER:
        return value + 1, _LARGEST
    if code == _GREATER_OR_EQUAL:
        return value, _LARGEST
    raise _Unknown


class _Writer:
    """Writes the new filter from its end to its beginning, because all jumps lead forward.

    A place is counted from the end.
    """

    def __init__(self, program: _Program) -> None:
        self._old = program
        self._new: _Program = []

    def written(self) -> _Program:
        by_architecture = _ranges(self._old, 0, _ARCHITECTURE)
        sections = {at: self._section(at) for at in {at for _, at in by_architecture}}
        self._tree([(first, sections[at]) for first, at in by_architecture])
        self._add(_LOAD, 0, 0, _ARCHITECTURE)
        return self._new[::-1]

    def _section(self, start: int) -> int:
        """Writes the part of one architecture."""
        ranges = _ranges(self._old, start, _NUMBER_OF_CALL)
        places = {at: self._copy(at) for at in {at for _, at in ranges}}
        place = self._tree([(first, places[at]) for first, at in ranges])
        return place if len(ranges) == 1 else self._add(_LOAD, 0, 0, _NUMBER_OF_CALL)

    def _copy(self, start: int) -> int:
        """Copies the instructions that can follow, such as those that compare the arguments of a call."""
        reachable = {start}
        for at in range(start, len(self._old)):
            if at in reachable:
                reachable.update(_next(self._old[at], at))
        places: dict[int, int] = {}
        for at in sorted(reachable, reverse=True):
            code, if_true, if_false, value = self._old[at]
            if code & _CLASS != _OF_JUMPS:
                places[at] = self._add(code, if_true, if_false, value)
            elif code == _JUMP:
                places[at] = self._add(code, 0, 0, self._distance(places[at + 1 + value]))
            else:
                yes, no = places[at + 1 + if_true], places[at + 1 + if_false]
                places[at] = self._add(code, self._distance(yes), self._distance(no), value)
        return places[start]

    def _tree(self, ranges: _Ranges) -> int:
        """Writes the search for a range. `ranges` have places of the new filter."""
        if len(ranges) == 1:
            return ranges[0][1]
        middle = len(ranges) // 2
        above, below = self._tree(ranges[middle:]), self._tree(ranges[:middle])
        above, below = self._near(above), self._near(below)
        return self._add(_GREATER_OR_EQUAL, self._distance(above), self._distance(below), ranges[middle][0])

    def _near(self, place: int) -> int:
        """Returns a place that leads there and that a conditional jump can reach, also from the place after next."""
        if self._distance(place) < _FARTHEST:
            return place
        return self._add(_JUMP, 0, 0, self._distance(place))

    def _distance(self, place: int) -> int:
        """From the instruction that will be written next."""
        return len(self._new) - place - 1

    def _add(self, code: int, if_true: int, if_false: int, value: int) -> int:
        self._new.append(_Instruction(code, if_true, if_false, value))
        return len(self._new) - 1


def _next(instruction: _Instruction, at: int) -> tuple[int, ...]:
    code, if_true, if_false, value = instruction
    if code & _CLASS != _OF_JUMPS:
        return () if code & _CLASS == _OF_RETURNS else (at + 1,)
    return (at + 1 + value,) if code == _JUMP else (at + 1 + if_true, at + 1 + if_false)
