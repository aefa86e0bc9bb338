"""The agent's side of the supervisor's socket, on asyncio. It also starts a supervisor if none runs."""

import asyncio
import fcntl
import os
import signal
import socket
import subprocess
from collections import deque
from collections.abc import Callable

from evenkeel.errors import EvenkeelError, reason
from evenkeel.host.helper_process import connected_to, is_gone, kill_holder, reap_later
from evenkeel.host.protection import small_command
from evenkeel.runtime import syscalls
from evenkeel.runtime.process.supervisor_protocol import (
    LOCK_NAME,
    SOCKET_NAME,
    VERSION,
    BadMessage,
    Inbox,
    Message,
    decode,
    encode,
)
from evenkeel.runtime.procfs import start_ticks

DESCRIPTORS = "descriptors"  # in an answer: the descriptors that came with it; the receiver closes them
_HELLO_SECONDS = 15.0  # for a supervisor that runs
_STARTED_SECONDS = 60.0  # for a supervisor that was just started, on a busy machine
_GONE_SECONDS = 5.0  # after the kill: if it is still there, it waits for a device and holds its lock
# The pauses grow: a supervisor that ends at once must not be started too often.
_TRY_AGAIN_SECONDS = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 4.0)
_HIDDEN_TRIES = 6  # so often another one may hold the lock and not listen yet


class SupervisorLost(EvenkeelError):
    """The supervisor went away before it answered, or it does not answer."""

    def __init__(self, message: str = "the supervisor of containers went away before it answered") -> None:
        super().__init__(message)


class SupervisorRefused(EvenkeelError):
    """The supervisor refused the request. The message is its answer."""

    def __init__(self, message: str, *, hint: str = "", is_known: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.is_known = is_known  # the attempt was started before


class SupervisorConnection:
    """One connection to the supervisor, process `pid`.

    `on_event` gets messages that are no answers. `on_lost` is called when the supervisor is gone, from `attend` on: one
    that is gone before has not been used.
    """

    def __init__(
        self,
        client: socket.socket,
        pid: int,
        on_event: Callable[[Message], None],
        on_lost: Callable[[], None],
    ) -> None:
        client.setblocking(False)
        self.pid = pid
        self._ticks = start_ticks(pid)
        self._socket = client
        self._loop = asyncio.get_running_loop()
        self._on_event = on_event
        self._on_lost = on_lost
        self._is_attended = False
        self._count = 0
        self._answers: dict[int, asyncio.Future[Message]] = {}
        self._parts: dict[int, list[object]] = {}
        self._inbox = Inbox()
        self._waiting: deque[bytes] = deque()
        self._is_stuck = False  # the supervisor must read before more can be sent
        self._hello: asyncio.Future[Message] = self._loop.create_future()
        self.is_open = True
        self._loop.add_reader(client.fileno(), self._ready)

    async def hello(self, seconds: float) -> Message:
        """Returns the supervisor's first message. Raises SupervisorLost."""
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.shield(self._hello)
        except TimeoutError:
            self._hello.cancel()
            raise SupervisorLost("the supervisor of containers does not answer") from None

    def attend(self) -> None:
        """The supervisor is in use from now on. If it is gone already, `on_lost` is called at once."""
        self._is_attended = True
        if not self.is_open:
            self._on_lost()

    async def ask(self, todo: str, **fields: object) -> Message:
        """Returns the answer.

        Raises SupervisorRefused, SupervisorLost, or BadMessage if the request is too long to be sent.
        """
        if not self.is_open:
            raise SupervisorLost
        self._count += 1
        number = self._count
        packet = encode({"id": number, "do": todo, **fields})
        answer = self._answers[number] = self._loop.create_future()
        self._waiting.append(packet)
        self._flush()
        try:
            message: Message = await answer
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                _drop(answer.result())  # the answer came in the moment of the cancellation
            raise
        finally:
            self._answers.pop(number, None)
            self._parts.pop(number, None)
        if "error" in message:
            raise SupervisorRefused(
                str(message["error"]),
                hint=str(message.get("hint") or ""),
                is_known=bool(message.get("is_known")),
            )
        return message

    async def kill(self) -> None:
        """Closes the connection and kills the supervisor, which does not answer. `on_lost` is not called."""
        self.close()
        await _killed(self.pid, self._ticks)

    def close(self) -> None:
        """Closes the connection. `on_lost` is not called."""
        if not self.is_open:
            return
        self.is_open = False
        self._loop.remove_reader(self._socket.fileno())
        self._loop.remove_writer(self._socket.fileno())
        self._socket.close()
        for answer in (*self._answers.values(), self._hello):
            if not answer.done():
                answer.set_exception(SupervisorLost())
                answer.exception()  # the caller may have stopped waiting

    def _ready(self) -> None:
        for _ in range(64):
            try:
                packet, descriptors = self._inbox.receive_all(self._socket)
            except BlockingIOError:
                return
            except OSError:
                packet, descriptors = b"", []
            if not packet:
                self.close()
                if self._is_attended:
                    self._on_lost()
                return
            try:
                message = decode(packet)
            except BadMessage:
                message = {}
            if descriptors:
                message[DESCRIPTORS] = descriptors
            self._take(message)
            if not self.is_open:
                return

    def _take(self, message: Message) -> None:
        if message.get("event") in ("hello", "busy"):
            if not self._hello.done():
                self._hello.set_result(message)
            return
        if "event" in message:
            self._on_event(message)
            return
        number = message.get("id")
        answer = self._answers.get(number) if isinstance(number, int) else None
        if answer is None or answer.done() or not isinstance(number, int):
            _drop(message)  # the caller has stopped waiting
            return
        if "records" in message:
            parts = self._parts.setdefault(number, [])
            parts += message["records"]
            if message.get("more"):
                return
            message["records"] = parts
        answer.set_result(message)

    def _flush(self) -> None:
        while self._waiting and self.is_open:
            try:
                self._socket.send(self._waiting[0], socket.MSG_NOSIGNAL)
            except BlockingIOError:
                if not self._is_stuck:
                    self._is_stuck = True
                    self._loop.add_writer(self._socket.fileno(), self._flush)
                return
            except OSError:
                return  # the next read reports the loss
            self._waiting.popleft()
        if self._is_stuck and self.is_open:
            self._is_stuck = False
            self._loop.remove_writer(self._socket.fileno())


def _drop(message: Message) -> None:
    for descriptor in message.get(DESCRIPTORS, ()):
        os.close(descriptor)


async def connected(
    state: str, on_event: Callable[[Message], None], on_lost: Callable[[], None]
) -> tuple[SupervisorConnection, Message]:
    """Connects to the supervisor of the state directory, and starts one if none runs. Returns its first message too.

    A supervisor that hangs, or that has an older version, is killed first. So is one that holds the lock and does not
    listen, because its socket was removed. The next supervisor adopts its containers.
    """
    for number, pause in enumerate(_TRY_AGAIN_SECONDS, 1):
        existing = connected_to(state, SOCKET_NAME, socket.SOCK_SEQPACKET)
        client, pid = existing or _started(state)
        connection = SupervisorConnection(client, pid, on_event, on_lost)
        try:
            hello = await connection.hello(_HELLO_SECONDS if existing else _STARTED_SECONDS)
        except SupervisorLost:  # it was about to end, another was starting, or it hangs
            if connection.is_open:
                await connection.kill()
            await asyncio.sleep(pause)
            continue
        if hello.get("event") == "hello":
            version = hello.get("version")
            if isinstance(version, int) and version < VERSION:
                await connection.kill()
                continue
            if version != VERSION:
                connection.close()
                raise EvenkeelError(
                    f"process {hello.get('pid')} is the supervisor of the containers of {state} and is of a later "
                    f"version ({version}, not {VERSION})",
                    hint="use the version of Evenkeel that started them, or kill that process: the containers run on, "
                    "and this version takes them over",
                )
            connection.attend()
            return connection, hello
        connection.close()
        if number == _HIDDEN_TRIES:
            await kill_holder(state, LOCK_NAME)
        await asyncio.sleep(pause)
    raise EvenkeelError(
        f"the supervisor of containers cannot be started for {state}",
        hint=f"{state}/keeper.log may say why",
    )


async def _killed(pid: int, ticks: int | None) -> None:
    """Kills the process. Returns when it is gone, or after a while if it does not end."""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return
    try:
        if ticks is not None and start_ticks(pid) == ticks:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            await is_gone(descriptor, _GONE_SECONDS)
    except OSError:
        pass  # it has ended
    finally:
        os.close(descriptor)


def _started(state: str) -> tuple[socket.socket, int]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    number = theirs.fileno()
    command = small_command("evenkeel.runtime.process.supervisor.supervisor", state, str(number))
    program = -1
    try:
        program = sealed_program(command[0])
        # posix_spawn is not used: glibc's leaves two of its own signals ignored, for the containers too.
        process = subprocess.Popen(  # noqa: S603 no argument comes from outside
            command,
            executable=f"/proc/self/fd/{program}",
            # It looks up the functions of its libraries now. Else each child would, when it uses one first.
            env={"LD_BIND_NOW": "1"},
            pass_fds=(number, program),
            start_new_session=True,
        )
    except OSError as error:
        ours.close()
        raise EvenkeelError(f"the supervisor cannot be started: {reason(error)}") from None
    finally:
        theirs.close()
        if program >= 0:
            os.close(program)
    process.returncode = 0  # it outlives us; its end is noticed below
    reap_later(process.pid)
    return ours, process.pid


def sealed_program(path: str) -> int:
    """Returns a descriptor from which the program can be executed, and through which it cannot be changed.

    A child of the supervisor becomes a container. The container may execute its own program file (/proc/self/exe),
    and then open that file for writing (CVE-2019-5736). So the program is on a mount of its own, which is read-only
    and attached in no namespace. A user that may not mount gets a copy in sealed memory. Raises OSError.
    """
    try:
        program = syscalls.open_tree(path)
        try:
            syscalls.mount_setattr(
                "", add=syscalls.MOUNT_ATTR_RDONLY, flags=syscalls.AT_EMPTY_PATH, dir_fd=program
            )
        except OSError:
            os.close(program)
            raise
    except PermissionError:
        program = os.memfd_create("supervisor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        with open(path, "rb") as source:
            size = os.fstat(source.fileno()).st_size
            while (copied := os.lseek(program, 0, os.SEEK_CUR)) < size:
                os.sendfile(program, source.fileno(), copied, size - copied)
        every_seal = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
        fcntl.fcntl(program, fcntl.F_ADD_SEALS, every_seal)
    return program
