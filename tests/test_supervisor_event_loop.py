"""The supervisor's event loop: which callback gets an event."""

import os
import socket
from functools import partial
from pathlib import Path

import pytest

from evenkeel.runtime.process.supervisor.event_loop import AT_ITS_END, Descriptors, Loop


def test_an_event_of_a_closed_descriptor_does_not_reach_the_next_one_with_its_number(tmp_path: Path):
    """As when a set-up fails and the next container is started in the same turn. A FIFO that has no writer yet reads as
    one at its end, and the log of that container would stay empty."""
    errors: list[BaseException] = []
    loop = Loop(errors.append)
    os.mkfifo(tmp_path / "fifo")
    ready = [os.pipe() for _ in range(2)]
    events: list[bytes] = []
    opened: list[int] = []

    def replace(one: int, other: int) -> None:
        """Called for the pipe whose event is handled first. Puts a FIFO in the place of the other one."""
        loop.unwatch(one)
        loop.unwatch(other)
        os.close(other)
        opened.append(os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK))
        assert opened == [other]
        loop.watch(other, lambda: events.append(os.read(other, 100)))

    readings = [reading for reading, _ in ready]
    for (reading, writing), other in zip(ready, reversed(readings), strict=True):
        os.write(writing, b"x")
        loop.watch(reading, partial(replace, reading, other))
    loop.run(lambda: bool(opened))
    assert events == []
    writer = os.open(tmp_path / "fifo", os.O_WRONLY)
    os.write(writer, b"said")
    loop.run(lambda: bool(events))
    assert events == [b"said"]
    assert errors == []
    for descriptor in {*opened, writer, *(end for pipe in ready for end in pipe)}:
        os.close(descriptor)


def test_a_report_wakes_the_supervisor_once_when_it_is_complete():
    """A line that woke it earlier would take time from the child, whose set-up is not finished."""
    errors: list[BaseException] = []
    loop = Loop(errors.append)
    ours, theirs = socket.socketpair()
    waiting = os.eventfd(1, os.EFD_SEMAPHORE)
    read: list[bytes] = []
    turns: list[None] = []

    def turn() -> None:
        turns.append(None)
        os.read(waiting, 8)

    loop.watch(ours.fileno(), lambda: read.append(ours.recv(100)), AT_ITS_END)
    loop.watch(waiting, turn)
    theirs.send(b"note\n")
    theirs.send(b"exec\n")
    loop.run(lambda: bool(turns))
    assert read == []
    theirs.close()
    loop.run(lambda: bool(read))
    assert read == [b"note\nexec\n"]
    assert errors == []
    ours.close()
    os.close(waiting)


def test_a_fifo_is_not_at_its_end_before_and_after_its_writer(tmp_path: Path):
    """Else a container whose output is looked at too early would have no log."""
    with Descriptors() as opened:
        fifo = opened.fifo(str(tmp_path / "fifo"))
        with pytest.raises(BlockingIOError):
            os.read(fifo, 100)
        writer = os.open(tmp_path / "fifo", os.O_WRONLY)
        os.write(writer, b"said")
        os.close(writer)
        assert os.read(fifo, 100) == b"said"
        with pytest.raises(BlockingIOError):
            os.read(fifo, 100)
