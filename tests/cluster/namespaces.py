"""Network namespaces of our own, joined by a bridge: one for the control plane, one for each node.

A namespace is held by a process and has no name, so that it goes with its last process, however its user ended.
"""

import ctypes
import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


class Namespace:
    def __init__(self) -> None:
        # `cat` answers when it runs, which is after the namespace was made; without us its input ends, and it with it.
        self._holder = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "--", "unshare", "--net", "--", "cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # ^C is for us
        )
        assert self._holder.stdin
        assert self._holder.stdout
        self._holder.stdin.write(b"?\n")
        self._holder.stdin.flush()
        assert self._holder.stdout.readline() == b"?\n", "no network namespace can be made"
        self.run("ip", "link", "set", "lo", "up")

    @property
    def pid(self) -> int:
        """A process that is in it."""
        return self._holder.pid

    @property
    def path(self) -> Path:
        return Path(f"/proc/{self.pid}/ns/net")

    @property
    def within(self) -> tuple[str, ...]:
        """A command that executes its arguments there."""
        return ("nsenter", f"--net={self.path}", "--")

    def run(self, *command: str) -> str:
        done = subprocess.run([*self.within, *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
        return done.stdout

    def enter(self) -> None:
        """Moves the calling thread there, for good."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if _libc.setns(descriptor, _CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "no entry into the network namespace")
        finally:
            os.close(descriptor)

    def asked(self, question: Callable[[], T]) -> T:
        """What `question` answers there, in a thread of its own."""
        answers: list[T] = []
        errors: list[BaseException] = []

        def ask() -> None:
            try:
                self.enter()
                answers.append(question())
            except Exception as error:  # noqa: BLE001 - raised again where it was asked
                errors.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
        if errors:
            raise errors[0]
        return answers[0]

    def close(self) -> None:
        assert self._holder.stdin
        assert self._holder.stdout
        self._holder.stdin.close()
        self._holder.kill()
        self._holder.wait()
        self._holder.stdout.close()


def join(bridge: str, at: Namespace, node: Namespace, port: str) -> None:
    """A cable from `eth0` of `node` to `bridge` in the namespace `at`, where its end is called `port`."""
    ends = [
        "name",
        "eth0",
        "netns",
        str(node.pid),
        "type",
        "veth",
        "peer",
        "name",
        port,
        "netns",
        str(at.pid),
    ]
    node.run("ip", "link", "add", *ends)
    at.run("ip", "link", "set", port, "master", bridge, "up")
    node.run("ip", "link", "set", "eth0", "up")
