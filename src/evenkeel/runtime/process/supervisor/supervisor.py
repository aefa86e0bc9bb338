"""The supervisor: the one small process that is the parent of all containers and outlives the agent.

    python -m evenkeel.runtime.process.supervisor.supervisor STATE [DESCRIPTOR]

It starts containers, relays their logs, and writes down how they ended. All decisions are the agent's. It has one
thread and few imports, since each start is a fork of it. It ends when it has no container and no client. If it is
killed before, the containers run on, and the next supervisor adopts them.
"""

import fcntl
import gc
import os
import resource
import signal
import socket
import sys
import time
from typing import NoReturn

from evenkeel.host.allocator import give_back_memory
from evenkeel.host.files import descriptor_shortage
from evenkeel.runtime import syscalls
from evenkeel.runtime.paths import AttemptKey, StatePaths
from evenkeel.runtime.process.seccomp import Filters, filter_problem
from evenkeel.runtime.process.supervisor import attachments, spawn
from evenkeel.runtime.process.supervisor.attachments import Attachments
from evenkeel.runtime.process.supervisor.attempt import Answer
from evenkeel.runtime.process.supervisor.event_loop import Loop
from evenkeel.runtime.process.supervisor.exec_commands import ExecCommands
from evenkeel.runtime.process.supervisor.exec_sessions import ExecSessions, wanted_of
from evenkeel.runtime.process.supervisor.listener import Connection, Listener
from evenkeel.runtime.process.supervisor.start_plan import NAMESPACES
from evenkeel.runtime.process.supervisor.supervised_containers import SupervisedContainers
from evenkeel.runtime.process.supervisor_protocol import (
    LOCK_NAME,
    MOST_BYTES,
    BadMessage,
    Message,
    attempt_of,
    encode,
    session_of,
    words_of,
)

_LOWEST_SCORE = -999
_SIGNALS_OF_THE_C_LIBRARY = (32, 33)  # Python has no names for them
_PACKET_BYTES = MOST_BYTES // 2  # of records
_LOG_BYTES = 64 << 10


class Supervisor:
    def __init__(self, state: str, directory: int) -> None:
        self._state = state
        self._loop = Loop(self._mistake)
        if os.geteuid() == 0:
            spawn.limit_programs(spawn.GRANTABLE_CAPABILITIES)
        self.filters = Filters()
        origin = spawn.Origin(usable_namespaces(), (os.geteuid(), os.getegid()), self.filters.of)
        self._keeping = SupervisedContainers(self._loop, StatePaths(state), origin, self._tell)
        self._executing = ExecCommands(self._loop, origin)
        self._sessions = ExecSessions(self._loop, origin)
        self._attachments = Attachments(self._loop)
        self._of_session = {
            "hang_up": self._sessions.hang_up,
            "end_input": self._attachments.end_input,
            "detach": self._attachments.detach,
        }
        self._wake, woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _do_nothing)
        self._loop.watch(self._wake, self._children)
        hello = {
            "has_namespaces": origin.namespaces != 0,
            # An agent may meet a supervisor of an earlier version, which would not heed a pod's user namespace.
            "has_user_namespaces": origin.namespaces != 0 and os.geteuid() == 0,
            "enters_namespaces": origin.namespaces != 0 and os.geteuid() == 0,
            "no_filter": filter_problem(),
        }
        self.listener = Listener(self._loop, directory, hello, self._heard, self._client_gone)

    def run(self) -> None:
        self._loop.run(self._is_over)
        self.listener.close()

    def _is_over(self) -> bool:
        is_busy = self._keeping or self._executing or self._sessions
        return self.listener.connection is None and not is_busy

    def _client_gone(self) -> None:
        self._keeping.client_gone()
        self._sessions.client_gone()
        self._attachments.client_gone()

    def _tell(self, event: Message) -> bool:
        self.listener.tell(event)
        return self.listener.connection is not None

    def _heard(self, message: Message, connection: Connection) -> None:
        number = message.get("id")

        def answer(**said: object) -> None:
            connection.send({"id": number, **said})

        todo = message.get("do")
        if todo == "list":
            self._keeping.records(lambda records: in_packets(records, answer))
            return
        if todo == "ping":
            answer(shortage=descriptor_shortage())
            return
        of_session = self._of_session.get(str(todo))
        if of_session is not None:
            of_session(session_of(message), connection)
            answer()
            return
        key = attempt_of(message)
        if todo == "start":
            self._keeping.start(key, answer)
        elif todo == "execute":
            self._execute(key, message, answer)
        elif todo in ("open", "attach"):
            self._open(key, message, connection)
        else:
            self._do(todo, key, message)
            answer()

    def _do(self, todo: object, key: AttemptKey, message: Message) -> None:
        if todo == "signal":
            self._keeping.signal(key, _number(message, "signal"))
        elif todo == "adopt":
            self._keeping.adopt(key)
        elif todo == "finish":
            status = message.get("status")
            self._keeping.finish(key, status if isinstance(status, int) else None)
        elif todo == "forget":
            self._keeping.forget(key)
        else:
            raise BadMessage(f"the request {str(todo)[:40]!r} is unknown")

    def _execute(self, key: AttemptKey, message: Message, answer: Answer) -> None:
        command, seconds = words_of(message), message.get("seconds")
        if not isinstance(seconds, int | float) or isinstance(seconds, bool):
            raise BadMessage("seconds must be a number")
        kept = self._keeping.running(key)
        if kept is None:
            answer(error="the container does not run")
        else:
            self._executing.execute(kept, command, min(max(seconds, 0.0), 86400.0), answer)

    def _open(self, key: AttemptKey, message: Message, connection: Connection) -> None:
        kept, request = self._keeping.running(key), message.get("id")
        if kept is None:
            connection.send({"id": request, "error": "the container does not run"})
        elif message.get("do") == "attach":
            self._attachments.open(kept, attachments.wanted_of(message), connection, request)
        else:
            self._sessions.open(kept, wanted_of(message), connection, request)

    def _children(self) -> None:
        while True:
            try:
                if not os.read(self._wake, 4096):
                    break
            except BlockingIOError:
                break
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if not self._keeping.child_ended(pid, status) and not self._executing.child_ended(pid, status):
                self._sessions.child_ended(pid, status)

    def _mistake(self, error: BaseException) -> None:
        """Writes a programming error to the log. No container may suffer from it."""
        lines = [f"{time.time():.3f} {error!r}"]
        step = error.__traceback__
        while step is not None:  # the module `traceback` has much that no container needs
            code = step.tb_frame.f_code
            lines.append(f"  {code.co_filename}:{step.tb_lineno} {code.co_qualname}")
            step = step.tb_next
        try:
            with open(f"{self._state}/keeper.log", "a", encoding="utf-8", errors="replace") as file:
                if file.tell() < _LOG_BYTES:
                    file.write("\n".join((*lines, "")))
        except OSError:
            pass


def _do_nothing(*_: object) -> None:
    """Handles a signal that is to have no effect. An ignored signal would be ignored in containers too."""


def usable_namespaces() -> int:
    """Returns the kinds of namespaces that containers get: all, or none if the kernel refuses.

    A user other than root first needs a user namespace. On some systems that namespace gives no rights.
    """
    owner = os.geteuid(), os.getegid()
    flags = NAMESPACES | (0 if owner[0] == 0 else syscalls.CLONE_NEWUSER)
    try:
        pid = syscalls.clone(flags)
    except OSError:
        return 0
    if pid == 0:
        try:
            if flags & syscalls.CLONE_NEWUSER:
                spawn.map_own_user(owner)
            syscalls.mount(None, "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
            os._exit(0)
        finally:
            os._exit(1)
    return flags if os.waitpid(pid, 0)[1] == 0 else 0


def main(state: str, connection: int) -> int:
    client = _stand_apart(connection)
    directory = os.open(state, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    lock = os.open(LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600, dir_fd=directory)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        if client is not None:
            client.send(encode({"event": "busy"}))
        return 0
    supervisor = Supervisor(os.path.realpath(state), directory)
    if client is not None:
        supervisor.listener.connect(client)
    supervisor.filters.compile()  # it takes a while, so it is done once, and after the client got our first message
    gc.collect()
    gc.freeze()
    give_back_memory()  # each start copies the table of our pages
    supervisor.run()
    return 0


def _stand_apart(connection: int) -> socket.socket | None:
    """Detaches from the process that started us: session, descriptors, directory, signals, environment."""
    if os.getpid() != os.getsid(0):
        os.setsid()
    client = None
    if connection >= 3:
        kept = os.dup2(connection, 3, inheritable=False) if connection != 3 else 3
        os.set_inheritable(kept, False)
        client = socket.socket(fileno=kept)
    syscalls.close_from(3 if client is None else 4)
    nothing = os.open("/dev/null", os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number, inheritable=True)
    os.set_inheritable(nothing, False)
    os.chdir("/")
    with open("/proc/self/comm", "w", encoding="ascii") as file:
        file.write("supervisor")  # else the name is the number of the descriptor that it was executed from
    os.umask(0o022)
    os.environ.clear()
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    for number in _SIGNALS_OF_THE_C_LIBRARY:
        syscalls.stop_ignoring(number)
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, _do_nothing)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # each container needs three descriptors
    syscalls.set_child_subreaper()
    syscalls.join_new_session_keyring()
    try:
        spawn.take_oom_score(_LOWEST_SCORE)
    except OSError:
        pass
    return client


def in_packets(records: list[dict[str, object]], answer: Answer) -> None:
    """Answers with the records, as many in each packet as it has room for. A record names a file in each hierarchy of
    cgroup v1, and one of a container that has ended has its last words."""
    part: list[dict[str, object]] = []
    room = _PACKET_BYTES
    for record in records:
        size = len(encode(record)) + len(",")
        if size > room and part:
            answer(records=part, more=True)
            part, room = [], _PACKET_BYTES
        part.append(record)
        room -= size
    answer(records=part, more=False)


def _number(message: Message, name: str) -> int:
    value = message.get(name)
    if not isinstance(value, int) or not 0 < value < 65:
        raise BadMessage(f"{name} must be a number from 1 to 64")
    return value


def entry() -> NoReturn:
    sys.exit(main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else -1))


if __name__ == "__main__":
    entry()
