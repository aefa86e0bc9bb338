"""The arenas of glibc's allocator in a process, as its memory map shows them."""

import re

_ALIGNMENT = 64 << 20  # of every arena but the first
# The used part of an arena, and the rest, which is reserved.
_ARENA = re.compile(
    r"^([0-9a-f]+)-([0-9a-f]+) rw-p 00000000 00:00 0 *\n\2-([0-9a-f]+) ---p 00000000 00:00 0 *$", re.MULTILINE
)


def arenas_of_threads(maps: str) -> int:
    """How many there are beside the first."""
    found = ((int(start, 16), int(end, 16)) for start, _, end in _ARENA.findall(maps))
    return sum(start % _ALIGNMENT == 0 and end - start == _ALIGNMENT for start, end in found)
