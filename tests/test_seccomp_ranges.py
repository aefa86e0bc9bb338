"""A shortened seccomp filter decides as the long one, for every system call."""

import struct

from hypothesis import given
from hypothesis import strategies as st

from evenkeel.runtime.process import seccomp
from evenkeel.runtime.process.seccomp_ranges import shortened

INSTRUCTION = struct.Struct("HBBI")
LOAD, JUMP, EQUAL, GREATER, AT_LEAST, RETURN, AND, NEGATE = 0x20, 0x05, 0x15, 0x25, 0x35, 0x06, 0x54, 0x84
NUMBER, ARCHITECTURE, ARGUMENT = 0, 4, 16
X86_64, I386, AARCH64 = 0xC000_003E, 0x4000_0003, 0xC000_00B7
LARGEST = 0xFFFF_FFFF

Line = tuple[int, int, int, int]


def packed(*lines: Line) -> bytes:
    return b"".join(INSTRUCTION.pack(*line) for line in lines)


def decided(instructions: bytes, architecture: int, number: int, argument: int = 0) -> int:
    """What the kernel does with this filter. The first two arguments have the same value."""
    data = struct.pack("IIQQQ", number, architecture, 0, argument, argument)
    program = list(INSTRUCTION.iter_unpack(instructions))
    at = accumulator = 0
    while True:
        code, if_true, if_false, value = program[at]
        at += 1
        if code == RETURN:
            return int(value)
        if code == LOAD:
            accumulator = struct.unpack_from("I", data, value)[0]
        elif code == AND:
            accumulator &= value
        elif code == JUMP:
            at += value
        else:
            tests = {
                EQUAL: accumulator == value,
                GREATER: accumulator > value,
                AT_LEAST: accumulator >= value,
            }
            at += if_true if tests[code] else if_false


def test_the_default_filter_decides_the_same_in_a_third_of_the_instructions(monkeypatch):
    short = seccomp.default_filter().instructions
    monkeypatch.setattr(seccomp, "shortened", lambda instructions: instructions)
    long = seccomp.default_filter.__wrapped__().instructions
    assert len(short) < len(long) / 3
    numbers = (*range(500), 0x3FFF_FFFF, 0x4000_0000, 0x4000_0001, 0x4000_003B, 0x8000_0000, LARGEST)
    few = (0, 40)
    many = (
        *few,
        8,
        38,
        41,
        1025,
        0x2_0008,
        LARGEST,
        1 << 32 | 40,
        1 << 32 | 1024,
        *(1 << bit for bit in range(33)),
    )
    for architecture in (X86_64, I386, AARCH64, 0, LARGEST):
        for number in numbers:
            # clone, socket, personality and fcntl; the last three have other numbers on I386
            for argument in many if number in (41, 55, 56, 72, 120, 135, 136, 221, 359) else few:
                call = architecture, number, argument
                assert decided(short, *call) == decided(long, *call), call


@given(
    st.lists(st.tuples(st.sampled_from((EQUAL, GREATER, AT_LEAST)), st.integers(0, 40), st.integers(0, 3))),
    st.integers(0, 3),
)
def test_any_chain_of_comparisons_decides_the_same_when_it_is_shortened(chain, default):
    lines: list[Line] = [(LOAD, 0, 0, ARCHITECTURE), (EQUAL, 1, 0, X86_64), (RETURN, 0, 0, 9)]
    lines.append((LOAD, 0, 0, NUMBER))
    for code, value, action in chain:
        # One action compares the argument first.
        lines += [(code, 0, 1 if action else 3, value)]
        lines += [] if action else [(LOAD, 0, 0, ARGUMENT), (EQUAL, 0, 1, 7)]
        lines += [(RETURN, 0, 0, action)]
        lines += [] if action else [(LOAD, 0, 0, NUMBER)]
    long = packed(*lines, (RETURN, 0, 0, default))
    short = shortened(long)
    assert len(short) <= len(long)
    for architecture in (X86_64, I386):
        for number in (*range(43), LARGEST):
            for argument in (0, 7):
                call = architecture, number, argument
                assert decided(short, *call) == decided(long, *call), call


def test_ranges_that_a_conditional_jump_cannot_reach_are_reached_all_the_same():
    chain: list[Line] = []
    for number in range(0, 1800, 3):
        chain += [(EQUAL, 0, 1, number), (RETURN, 0, 0, number % 5)]
    never_reached = 2000 * [(RETURN, 0, 0, 0)]
    first = ((LOAD, 0, 0, ARCHITECTURE), (LOAD, 0, 0, NUMBER))
    long = packed(*first, *chain, (RETURN, 0, 0, 17), *never_reached)
    short = shortened(long)
    assert len(short) < len(long)
    for number in (*range(1805), LARGEST):
        assert decided(short, X86_64, number) == decided(long, X86_64, number), number


def test_a_filter_with_an_unknown_instruction_stays_as_it_is():
    end = ((EQUAL, 0, 0, 1), (EQUAL, 0, 0, 2), (RETURN, 0, 0, 0))
    for first in ((LOAD, 0, 0, NUMBER), (NEGATE, 0, 0, 0)), ((EQUAL, 0, 0, 5),):
        assert shortened(packed(*first, *end)) == packed(*first, *end)
