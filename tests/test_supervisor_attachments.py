"""Attachments in the supervisor, when their client leaves at a bad moment."""

import socket
from pathlib import Path

from evenkeel.runtime.process.supervisor.attachments import Attachments, Wanted
from evenkeel.runtime.process.supervisor.attempt import SupervisedContainer
from evenkeel.runtime.process.supervisor.event_loop import Loop
from evenkeel.runtime.process.supervisor.listener import Connection
from evenkeel.runtime.process.supervisor.start_plan import Plan
from evenkeel.runtime.process.supervisor_protocol import ProcessFile
from tests.descriptors import alone, descriptors


class Container(SupervisedContainer):
    """Counts its clients."""

    __slots__ = ("copies",)

    def __init__(self, directory: str) -> None:
        process = ProcessFile(1, 1, "/c", (), 0.0, has_pid_namespace=True)
        super().__init__(("u-1", "main", 1), directory, Plan((), (), "/c", (), "", (), {}), process)
        self.copies = 0

    def add_copy(self, copy: object, *, has_output: bool) -> None:
        self.copies += 1


@alone
def test_an_agent_that_leaves_before_the_answer_leaves_no_attachment_behind(tmp_path: Path):
    errors: list[BaseException] = []
    loop = Loop(errors.append)
    attachments = Attachments(loop)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    connection = Connection(loop, ours, lambda *_: None, lambda _: attachments.client_gone())
    theirs.close()
    before = descriptors()
    kept = Container(str(tmp_path))
    attachments.open(kept, Wanted(1, stdin=False, stdout=True, stderr=True), connection, 1)
    assert not connection.is_open
    assert kept.copies == 0
    assert descriptors() == before - 1  # the connection is closed, and so are both ends of the pipes
    assert errors == []
