"""A front whose sessions are processes of the test: what the server does with a session, without a container."""

import asyncio
import os
import subprocess
import threading

from evenkeel.runtime.sessions import SessionEnd, SessionRefused
from tests.fake_front import FakeFront


class LocalSession:
    lag_seconds = 0.0

    def __init__(self, process, ends):
        self.stdin, self.stdout, self.stderr = ends
        self.sizes = []
        self.closed = threading.Event()
        self._process = process

    def close_stdin(self):
        if self.stdin >= 0:
            os.close(self.stdin)
            self.stdin = -1

    async def resize(self, columns, rows):
        self.sizes.append((columns, rows))

    async def ended(self):
        code = await asyncio.to_thread(self._process.wait)
        return SessionEnd(128 - code if code < 0 else code)

    async def close(self):
        for descriptor in {self.stdin, self.stdout, self.stderr} - {-1}:
            os.close(descriptor)
        self.stdin = self.stdout = self.stderr = -1
        self._process.kill()
        self._process.wait()
        self.closed.set()


class SessionFront(FakeFront):
    def __init__(self):
        super().__init__()
        self.sessions = []
        self.asked = []
        self.refusal = None

    async def open_exec(self, key, container, command, wanted):
        self.asked.append((key, container, command, wanted))
        if self.refusal is not None:
            raise self.refusal
        pipes = [os.pipe2(os.O_CLOEXEC) for _ in range(3)]
        theirs = (pipes[0][0], pipes[1][1], pipes[2][1])
        ours = (pipes[0][1], pipes[1][0], pipes[2][0])
        stdin, stdout, stderr = theirs
        process = subprocess.Popen(command, stdin=stdin, stdout=stdout, stderr=stderr)
        for descriptor in theirs:
            os.close(descriptor)
        for descriptor in ours:
            os.set_blocking(descriptor, False)
        session = LocalSession(process, ours)
        self.sessions.append(session)
        return session


def refused(message):
    return SessionRefused(message, hint="try another")
