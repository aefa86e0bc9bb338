"""The agent's side of its helper processes, with processes that hang in the place of real ones."""

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from evenkeel.host.helper_process import connected_to, kill_holder
from evenkeel.runtime.process.supervisor_connection import connected
from evenkeel.runtime.process.supervisor_protocol import LOCK_NAME, SOCKET_NAME

HOLDER = """
import fcntl, os, signal, sys
lock = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.flock(lock, fcntl.LOCK_EX)
print("holds", flush=True)
signal.pause()
"""


def holder(path: Path) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"holds\n"
    return process


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_SEQPACKET])
def test_a_process_that_accepts_nobody_keeps_no_agent_waiting(tmp_path, kind):
    """Agents that were started again and again have filled its queue. The kernel would let the next one wait."""
    with socket.socket(socket.AF_UNIX, kind) as listening:
        listening.bind(str(tmp_path / "some.sock"))
        listening.listen(2)
        clients = []
        while (one := connected_to(str(tmp_path), "some.sock", kind)) is not None:
            assert one[1] == os.getpid()
            clients.append(one[0])
            assert len(clients) < 10
        for client in clients:
            client.close()


def test_only_who_holds_the_lock_is_killed(tmp_path):
    (tmp_path / "a").touch()
    with holder(tmp_path / "a") as first, holder(tmp_path / "b") as other:
        try:
            assert asyncio.run(kill_holder(str(tmp_path), "a")) == first.pid
            assert asyncio.run(kill_holder(str(tmp_path), "a")) is None
            assert asyncio.run(kill_holder(str(tmp_path), "c")) is None
            assert other.poll() is None
        finally:
            first.kill()
            other.kill()


def test_a_supervisor_that_holds_the_lock_and_does_not_listen_is_replaced(tmp_path):
    """Its socket was removed. A new agent could neither reach it nor start another one."""

    async def story() -> int:
        connection, hello = await connected(str(tmp_path), lambda _: None, lambda: None)
        assert (hello["event"], (tmp_path / SOCKET_NAME).is_socket()) == ("hello", True)
        await connection.kill()
        return connection.pid

    with holder(tmp_path / LOCK_NAME) as hidden:
        try:
            assert asyncio.run(asyncio.wait_for(story(), 60)) != hidden.pid
            assert hidden.poll() is not None
        finally:
            hidden.kill()
