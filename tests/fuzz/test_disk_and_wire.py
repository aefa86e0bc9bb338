"""The journal on disk, and requests over the socket: bytes of any kind."""

import random
import socket
from contextlib import suppress

from evenkeel.journal.records import NORMAL, Event
from evenkeel.journal.store import Journal, JournalError
from evenkeel.server.agent_socket import connect
from tests.fake_front import FakeFront, running, served
from tests.fuzz.mutation import mutated, seeds
from tests.models.agents import pods_of
from tests.models.journal_records import named
from tests.models.manifests import PODS

REQUESTS = [
    b"GET /pods HTTP/1.1\r\nHost: x\r\nAccept: application/json\r\n\r\n",
    b"GET /events?pod=default/web&most=10 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /metrics HTTP/1.0\r\n\r\n",
    b"DELETE /pods/default/web?gracePeriodSeconds=3 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST /pods HTTP/1.1\r\nHost: x\r\nContent-Length: 37\r\n\r\n" + b'{"apiVersion": "v1", "kind": "PodX"}',
    b"POST /pods HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n[1,2\r\n0\r\n\r\n",
    b"GET /stats/summary HTTP/1.1\r\nHost: x\r\nConnection: keep-alive\r\n\r\nGET /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
]


def test_a_journal_with_changed_bytes_is_refused_or_read(tmp_path):
    path = tmp_path / "journal.db"
    with Journal.open(str(path)) as journal:
        for number in range(20):
            journal.save(named(f"pod-{number}", order=number))
            journal.record_event(Event(float(number), NORMAL, "Told", "a message", f"default/pod-{number}"))
        journal.set_value("key", {"a": [1, 2, 3]})
    whole = path.read_bytes()
    known = {held.uid: (held.pod, held.state) for held in _pods(path)}
    used = [at for at in range(0, len(whole), 16) if any(whole[at : at + 16])]  # most of it is kept free
    for seed in seeds():
        chance = random.Random(seed)
        damaged = bytearray(whole)
        for _ in range(chance.choice((1, 1, 3, 50))):
            damaged[chance.choice(used) + chance.randrange(16)] ^= 1 << chance.randrange(8)
        for file in tmp_path.glob("journal.db*"):
            file.unlink()
        path.write_bytes(damaged[: chance.randrange(len(damaged))] if chance.random() < 0.1 else damaged)
        with suppress(JournalError):
            for held in _pods(path):  # what is read is what was written
                assert (held.pod, held.state) == known[held.uid], f"seed {seed}"


def _pods(path):
    with Journal.open(str(path)) as journal:
        journal.events()
        journal.value("key")
        return journal.pods()


def test_requests_of_any_kind_are_answered_and_leave_the_server_as_it_was(tmp_path):
    front = FakeFront()
    with served(front, tmp_path) as agent:
        for pod in pods_of(PODS):
            agent.call(front.put, running(pod))
        for seed in seeds():
            with connect(str(tmp_path)) as client:
                client.settimeout(60)
                with suppress(BrokenPipeError, ConnectionResetError):
                    client.sendall(mutated(REQUESTS, seed))
                    client.shutdown(socket.SHUT_WR)
                answer = _until_end(client)
            assert not answer or answer.startswith(b"HTTP/1.1 "), f"seed {seed}"
            assert b" 500 " not in answer.split(b"\r\n")[0], f"seed {seed}"
            assert b"Traceback" not in answer, f"seed {seed}"
        with connect(str(tmp_path)) as client:
            client.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
            assert b" 200 " in _until_end(client)


def _until_end(client: socket.socket) -> bytes:
    answer = b""
    with suppress(ConnectionResetError):
        while len(answer) < 1 << 20 and (part := client.recv(1 << 16)):
            answer += part
    return answer
