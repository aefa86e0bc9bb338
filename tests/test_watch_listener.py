"""The watch's side of its socket, with a client that comes and goes."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from evenkeel.pressure.memory.kernel_triggers import KernelTriggers
from evenkeel.pressure.watch.messages import SOCKET_NAME, Frames, Message, frame
from evenkeel.pressure.watch.watch_listener import Listener

TARGETS: Message = {"do": "targets"}
HEARD: Message = {"do": "heard"}


class Place:
    def __init__(self, directory: Path) -> None:
        self.directory = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        self.taken: list[Message] = []
        self.triggers = KernelTriggers()
        self.listener = Listener(
            self.triggers, self.directory, self.greeting, self.taken.append, lambda: None
        )
        ours, self.client = socket.socketpair()
        self.listener.connect(ours.detach())

    def greeting(self) -> list[Message]:
        return [{"event": "hello", "taken": len(self.taken)}]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.client.close()
    made.listener.close()
    made.triggers.close()
    os.close(made.directory)


@pytest.mark.req("E14")
def test_what_a_client_said_before_it_was_gone_is_taken_also_if_it_cannot_be_answered(place: Place):
    place.client.sendall(frame(TARGETS))
    place.client.close()
    place.listener.send({"event": "report"})
    place.listener.send({"event": "report"})
    for _ in range(2):  # what it said, and that it is gone
        place.triggers.wait(0.0)
    assert place.taken == [TARGETS]
    assert not place.listener.is_connected


def test_a_client_that_sends_no_message_is_disconnected(place: Place):
    place.client.sendall(b"\xff" * 64)
    place.triggers.wait(0.0)
    assert place.taken == []
    assert not place.listener.is_connected


@pytest.mark.req("E14")
@pytest.mark.parametrize("is_gone", [True, False])
def test_what_a_client_said_last_is_taken_before_the_next_one_is_greeted(place: Place, tmp_path, is_gone):
    place.listener.listen()
    with socket.socket(socket.AF_UNIX) as following:
        following.connect(str(tmp_path / SOCKET_NAME))  # before the other: the kernel reports it first
        place.client.sendall(frame(TARGETS) + frame(HEARD))
        if is_gone:
            place.client.close()
        place.triggers.wait(0.0)
        assert place.taken == [TARGETS, HEARD]
        assert Frames().take(following.recv(4096)) == [{"event": "hello", "taken": 2}]


def test_a_client_is_served_also_if_the_one_before_it_sent_no_message(place: Place, tmp_path):
    place.listener.listen()
    with socket.socket(socket.AF_UNIX) as following:
        following.connect(str(tmp_path / SOCKET_NAME))
        place.client.sendall(b"\xff" * 64)
        place.triggers.wait(0.0)
        following.sendall(frame(TARGETS))
        place.triggers.wait(0.0)
        assert place.taken == [TARGETS]
