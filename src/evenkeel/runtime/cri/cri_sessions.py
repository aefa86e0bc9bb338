"""Sessions with containers of containerd: a command with FIFOs as its streams, through containerd's task service.

CRI's own Exec answers with the address of a streaming server. In the versions of Debian 12 and 13 that server has two
faults. It cannot end a command's standard input over a WebSocket, and it does not end a command when its client is
gone. The task service, on the same socket and in every version, can do both. The command is made from the specification
of the container, so it has the container's user, capabilities and filter.

The FIFOs are in the directory of the attempt. If an agent is killed, the directories show the next agent which commands
are left; it kills them.
"""

import asyncio
import json
import os
import secrets
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from typing import Any

from evenkeel.errors import reason
from evenkeel.runtime import session_processes
from evenkeel.runtime.cri import tasks_pb2 as tasks
from evenkeel.runtime.cri.container_table import CriContainer
from evenkeel.runtime.cri.cri_connection import CallFailed, Connection, RuntimeAway
from evenkeel.runtime.paths import StatePaths, every_attempt, read_json, write_json
from evenkeel.runtime.sessions import (
    NOT_EXECUTABLE,
    NOT_FOUND,
    BaseSession,
    Session,
    SessionEnd,
    SessionRefused,
    Streams,
)

_DIRECTORY = "exec"  # in the attempt's
_KNOWN = "known"  # a file in the directory of a session
_STREAMS = ("stdin", "stdout", "stderr")
_PROCESS_TYPE = "types.containerd.io/opencontainers/runtime-spec/1/Process"
_CALL_SECONDS = 30.0
_FOREVER_SECONDS = 1e8  # a call that waits for the end of a command
_AGAIN_SECONDS = 0.5
_HANG_UP_SECONDS = 2.0  # from SIGHUP to SIGKILL
# containerd copies the output. It reports the end of the command first, and then the last bytes come.
_LAG_SECONDS = 5.0
_NOT_FOUND_WORDS = ("executable file not found", "no such file or directory")


class CriSession(BaseSession):
    """A command. `cgroup` is the directory of the container's cgroup."""

    def __init__(
        self, connection: Connection, container: str, directory: str, cgroup: str, wanted: Streams
    ) -> None:
        super().__init__(_LAG_SECONDS)
        self._connection = connection
        self._container = container
        self._id = os.path.basename(directory)
        self._directory = directory
        self._cgroup = cgroup
        self._wanted = wanted
        self._pid = 0
        self._is_asked_for = False  # containerd may have begun it
        self._closing_stdin: asyncio.Task[None] | None = None

    async def start(self, process: dict[str, Any]) -> None:
        """Raises SessionRefused. A command that cannot be executed is an end of the session."""
        self._write_down()
        paths = self._open_streams()
        request = tasks.ExecProcessRequest(
            container_id=self._container,
            exec_id=self._id,
            **paths,
            terminal=self._wanted.terminal,
            spec=tasks.Any(type_url=_PROCESS_TYPE, value=json.dumps(process).encode()),
        )
        self._is_asked_for = True
        await self._connection.ask_containerd("Exec", request, tasks.Empty, _CALL_SECONDS)
        try:
            started = await self._connection.ask_containerd(
                "Start",
                tasks.StartRequest(container_id=self._container, exec_id=self._id),
                tasks.StartResponse,
                _CALL_SECONDS,
            )
        except RuntimeAway:
            raise
        except CallFailed as error:
            self.finished(_not_executed(error.message))
            return
        self._pid = started.pid
        self._write_down()

    async def watch(self) -> None:
        """Waits for the end of the command, also across a restart of containerd."""
        while not self.has_ended:
            try:
                ended = await self._connection.ask_containerd(
                    "Wait",
                    tasks.WaitRequest(container_id=self._container, exec_id=self._id),
                    tasks.WaitResponse,
                    _FOREVER_SECONDS,
                )
            except RuntimeAway:
                await asyncio.sleep(_AGAIN_SECONDS)
            except CallFailed as error:
                self.finished(SessionEnd(1, f"the end of the command is not known: {error.message}"))
            else:
                self.finished(SessionEnd(ended.exit_status))

    # Session

    def close_stdin(self) -> None:
        if self.stdin >= 0 and not self._wanted.terminal:
            os.close(self.stdin)
            self.stdin = -1
            # containerd holds the FIFO open as well.
            request = tasks.CloseIORequest(container_id=self._container, exec_id=self._id, stdin=True)
            self._closing_stdin = asyncio.ensure_future(self._call("CloseIO", request))

    async def resize(self, columns: int, rows: int) -> None:
        if self._wanted.terminal and not self.has_ended:
            await self._call(
                "ResizePty",
                tasks.ResizePtyRequest(
                    container_id=self._container, exec_id=self._id, width=columns, height=rows
                ),
            )

    async def _let_go(self) -> None:
        if not self.has_ended and self._pid:
            await self._hang_up()
        elif not self.has_ended and self._is_asked_for:  # its client left before containerd had answered
            self._pid = await _pid_of(self._connection, self._container, self._id)
            session_processes.kill_all(self._cgroup, self._pid)
            await self._kill()
        if self._closing_stdin is not None:
            await asyncio.gather(self._closing_stdin, return_exceptions=True)
        await remove(self._connection, self._container, self._directory)

    async def _hang_up(self) -> None:
        session_processes.signal_all(self._cgroup, self._pid, signal.SIGHUP)
        await asyncio.wait((self._end,), timeout=_HANG_UP_SECONDS)
        session_processes.kill_all(self._cgroup, self._pid)
        if not self.has_ended:
            await self._kill()
            await asyncio.wait((self._end,), timeout=_CALL_SECONDS)

    async def _kill(self) -> None:
        await self._call(
            "Kill",
            tasks.KillRequest(container_id=self._container, exec_id=self._id, signal=signal.SIGKILL),
        )

    async def _call(self, method: str, request: object) -> None:
        """Makes a call. A refusal is ignored, because the command may have ended meanwhile."""
        with suppress(CallFailed):
            await self._connection.ask_containerd(method, request, tasks.Empty, _CALL_SECONDS)

    def _write_down(self) -> None:
        """Writes the session to disk, for the next agent if this one is killed."""
        known = {"container": self._container, "cgroup": self._cgroup, "pid": self._pid}
        write_json(self._directory, _KNOWN, known)

    def _open_streams(self) -> dict[str, str]:
        """Makes the FIFOs and opens our ends. Returns the path of each."""
        wanted = self._wanted
        flags = (wanted.stdin, wanted.stdout or wanted.terminal, wanted.stderr and not wanted.terminal)
        paths = {}
        for name, is_wanted in zip(_STREAMS, flags, strict=True):
            if is_wanted:
                path = paths[name] = f"{self._directory}/{name}"
                os.mkfifo(path, 0o600)
                # Opened for reading too: otherwise it could not be opened before containerd opens it.
                mode = os.O_RDWR if name == "stdin" else os.O_RDONLY
                setattr(self, name, os.open(path, mode | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW))
        return paths


class CriSessions:
    """All sessions. `run_task` keeps a task for as long as the runtime is open."""

    def __init__(
        self,
        connection: Connection,
        paths: StatePaths,
        cgroup_of: Callable[[str], str],
        run_task: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._connection = connection
        self._paths = paths
        self._cgroup_of = cgroup_of
        self._run_task = run_task

    async def open(self, container: CriContainer, command: tuple[str, ...], wanted: Streams) -> Session:
        if wanted.terminal:
            wanted = wanted._replace(stdin=True)
        directory = f"{self._paths.attempt(*container.attempt)}/{_DIRECTORY}/{secrets.token_hex(8)}"
        session = CriSession(
            self._connection, container.id, directory, self._cgroup_of(container.cgroup), wanted
        )
        try:
            process = await self._process(container.id)
            env = process.get("env") or []
            own = {
                "args": [os.fsencode(word).decode(errors="replace") for word in command],
                "terminal": wanted.terminal,
                "env": _with_term(env) if wanted.terminal else env,
                "consoleSize": None,
            }
            os.makedirs(directory, 0o700)
            await session.start({**process, **own})
        except BaseException as error:
            await session.close()
            if isinstance(error, CallFailed):
                raise _refusal(error) from None
            if isinstance(error, OSError):
                raise SessionRefused(f"the command's streams cannot be made: {reason(error)}") from None
            raise
        self._run_task(session.watch())
        return session

    async def clean_up(self) -> None:
        """Ends the commands of an agent that was killed."""
        for key in every_attempt(self._paths):
            for directory in _left(f"{self._paths.attempt(*key)}/{_DIRECTORY}"):
                known = read_json(directory, _KNOWN) or {}
                container, cgroup, pid = (known.get(name) for name in ("container", "cgroup", "pid"))
                id_ = os.path.basename(directory)
                if (
                    isinstance(container, str) and not pid
                ):  # the agent was killed before containerd had answered
                    pid = await _pid_of(self._connection, container, id_)
                if isinstance(cgroup, str) and isinstance(pid, int):
                    session_processes.kill_all(cgroup, pid)
                if isinstance(container, str):
                    request = tasks.KillRequest(container_id=container, exec_id=id_, signal=signal.SIGKILL)
                    with suppress(CallFailed):
                        await self._connection.ask_containerd("Kill", request, tasks.Empty, _CALL_SECONDS)
                    await remove(self._connection, container, directory)

    async def _process(self, container: str) -> dict[str, Any]:
        """The process of the container's specification."""
        answer = await self._connection.ask_container_store(
            tasks.GetContainerRequest(id=container), tasks.GetContainerResponse, _CALL_SECONDS
        )
        try:
            process = json.loads(answer.container.spec.value)["process"]
        except (ValueError, KeyError, TypeError):
            process = None
        if not isinstance(process, dict):
            raise SessionRefused("containerd's specification of the container cannot be read")
        return process


async def _pid_of(connection: Connection, container: str, id_: str) -> int:
    """The first process of a command, as containerd knows it; 0 if it knows none."""
    request = tasks.GetRequest(container_id=container, exec_id=id_)
    try:
        answer = await connection.ask_containerd("Get", request, tasks.GetResponse, _CALL_SECONDS)
    except CallFailed:
        return 0
    return answer.process.pid


async def remove(connection: Connection, container: str, directory: str) -> None:
    """Removes the command from containerd, and its directory."""
    request = tasks.DeleteProcessRequest(container_id=container, exec_id=os.path.basename(directory))
    with suppress(CallFailed):
        await connection.ask_containerd("DeleteProcess", request, tasks.DeleteResponse, _CALL_SECONDS)
    import shutil  # half a MiB, which an agent without sessions does not need

    shutil.rmtree(directory, ignore_errors=True)


def _left(directory: str) -> Iterator[str]:
    try:
        names = os.listdir(directory)
    except OSError:
        return
    for name in names:
        yield f"{directory}/{name}"


def _with_term(env: list[str]) -> list[str]:
    return env if any(one.startswith("TERM=") for one in env) else [*env, "TERM=xterm"]


def _not_executed(message: str) -> SessionEnd:
    is_missing = any(words in message for words in _NOT_FOUND_WORDS)
    return SessionEnd(NOT_FOUND if is_missing else NOT_EXECUTABLE, message)


def _refusal(error: CallFailed) -> SessionRefused:
    if error.code == "UNIMPLEMENTED":
        return SessionRefused(
            "this container runtime cannot be used for it: commands in containers go through containerd's task service"
        )
    return SessionRefused(error.message, hint=error.hint)
