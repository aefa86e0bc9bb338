"""`evenkeel-watch`: the process that watches memory, evicts, and goes on when the agent is killed, stopped or replaced.

    python -I -S -c … STATE DESCRIPTOR [FORMER]

The agent starts it, gives it settings and targets, and collects its reports. One process watches for a state directory:
the one that holds the lock. FORMER is the number of a watch that is to be replaced; the new one has its targets before
the former one leaves. The watch ends when the agent says so. It also ends when no agent is connected, none of its
targets has a process, and no eviction waits for an agent; and when its state directory is gone.
"""

import fcntl
import gc
import os
import signal
import sys
import time
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import NoReturn

import evenkeel
from evenkeel.api.pod import Pod
from evenkeel.errors import EvenkeelError
from evenkeel.host.allocator import keep_little
from evenkeel.host.protection import (
    has_realtime_budgets,
    lock_memory,
    name_process,
    run_before_others,
    take_lowest_oom_score,
)
from evenkeel.journal.codec import Unreadable
from evenkeel.policy.eviction.decide import State
from evenkeel.policy.eviction.headroom import LEAST_SECONDS
from evenkeel.pressure.eviction_steps import state_from
from evenkeel.pressure.intents import Intents
from evenkeel.pressure.memory.cgroup_writes import is_populated
from evenkeel.pressure.memory.kernel_triggers import KernelTriggers
from evenkeel.pressure.memory.memory_watch import MemoryWatch, WatchSettings
from evenkeel.pressure.targets import WatchTargets
from evenkeel.pressure.watch.guard_client import GuardClient
from evenkeel.pressure.watch.messages import (
    INTENTS_NAME,
    LOCK_NAME,
    PROTOCOL,
    BadMessage,
    Message,
    frame,
    number_of,
    pod_from,
    queues_of,
    settings_of,
    targets_from,
    text_of,
    texts_of,
)
from evenkeel.pressure.watch.watch_listener import Listener, Outbox

NAME = "evenkeel-watch"  # the name in top and /proc
INTENT_SLOTS = 256  # more than a node has pods, by default
_AFTER_FAILURE_SECONDS = 0.1
_LONGEST_WAIT_SECONDS = 2.0  # also how often an agentless watch looks whether it is still needed
_REST_SHARE = 2.0  # the least rest after a turn, as a share of its duration
_LONGEST_REST_SECONDS = 0.05
_CALM_SECONDS = 0.01  # if the watch may wait that long, nothing is near a threshold
_GC_SECONDS = 600.0
_LOG_BYTES = 64 << 10


class WatchProcess:
    def __init__(self, state_directory: str, directory: int, lock: int) -> None:
        self._state_directory = state_directory
        self._lock = lock
        self._triggers = KernelTriggers()
        self._listener = Listener(self._triggers, directory, self._greeting, self._take, self._client_changed)
        self._outbox = Outbox(self._report)
        self._guard = GuardClient(self._triggers, self._outbox.noted)
        self._intents: Intents | None = None
        self._given: WatchSettings | None = None
        self._state = State()
        self._targets: WatchTargets | None = None
        self._pods: dict[str, Pod] = {}  # by key
        self._texts: dict[str, str] = {}  # by key, as the agent sent them
        self._known: set[str] = set()  # keys of the texts that the connected agent has sent or was sent
        self._watch: MemoryWatch | None = None
        self._former = -1  # pidfd of the watch that is to be replaced
        self._evicted: dict[str, float] = {}  # under former settings (`MemoryWatch.evicted`)
        self._queues: dict[str, int] = {}  # by UID: bytes in queues of sockets
        self._is_ending = False
        self._is_freezing_victims = has_realtime_budgets()
        self._rested_at = self._collected_at = time.monotonic()

    # The life of the process

    def run(self, connection: int, former: int) -> None:
        if connection >= 0:
            # Otherwise the guard would inherit it, and the agent would not notice when this process closes it.
            os.set_inheritable(connection, False)
        self._guard.start()
        gc.collect()  # before the memory is locked
        for note in (lock_memory("the memory of the watch"), run_before_others(), *self._triggers.notes):
            if note:
                self._outbox.noted(note)
        if former:
            self._wait_for(former)
        else:
            self._become_the_watch()
        if connection >= 0:
            self._listener.connect(connection)
        gc.collect()
        gc.freeze()
        gc.disable()  # a collection could come in the middle of an eviction; see `_collect`
        try:
            while not self._is_ending:
                self._triggers.wait(self._turn())
        finally:
            if self._watch is not None:
                self._watch.close()
            self._guard.close()
            self._listener.close()

    def end(self) -> None:
        """The loop ends after its turn, and releases all pods."""
        self._is_ending = True

    def _turn(self) -> float:
        now = time.monotonic()
        try:
            self._guard.start_if_due(now)
            seconds = _LONGEST_WAIT_SECONDS
            if self._watch is not None:
                seconds = min(self._watch.turn(), _LONGEST_WAIT_SECONDS)
        except Exception as error:  # noqa: BLE001 a mistake of ours must not end the watch
            self._note_failure(error)
            return _AFTER_FAILURE_SECONDS
        if seconds >= LEAST_SECONDS:
            # Where a turn takes long, the machine is slow, and pods grow slowly too. This process runs before others,
            # and must leave them a part of the processor.
            seconds = max(seconds, min(_REST_SHARE * (time.monotonic() - now), _LONGEST_REST_SECONDS))
        if seconds >= _CALM_SECONDS and now - self._rested_at >= _LONGEST_WAIT_SECONDS:
            self._rest(now)
        return seconds

    def _rest(self, now: float) -> None:
        """Does work that takes time. It is called when nothing is near a threshold."""
        self._rested_at = now
        if now - self._collected_at >= _GC_SECONDS:
            self._collected_at = now
            gc.collect()
        if not self._listener.is_connected and self._is_superfluous():
            self._is_ending = True

    def _is_superfluous(self) -> bool:
        if os.fstat(self._lock).st_nlink == 0:  # the state directory was removed
            return True
        pods = self._targets.pods if self._targets is not None else ()
        is_evicting = any(one.is_eviction for one in self._outbox.waiting)
        return not is_evicting and not any(is_populated(target.directory) for target in pods)

    def _wait_for(self, former: int) -> None:
        try:
            self._former = os.pidfd_open(former)
        except OSError:
            self._become_the_watch()
            return
        self._triggers.call_when_ready(self._former, self._former_ended)

    def _former_ended(self) -> None:
        self._triggers.forget(self._former)
        os.close(self._former)
        self._former = -1
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._is_ending = True  # two have waited: an agent was killed while it replaced the former one
            return
        self._become_the_watch()
        self._listener.say(self._backlog())
        try:
            self._start_watching()
        except Exception as error:  # noqa: BLE001 as in a turn
            self._note_failure(error)

    def _become_the_watch(self) -> None:
        self._intents = Intents(self._state_directory, self._outbox.noted, INTENTS_NAME, INTENT_SLOTS)
        self._listener.listen()

    # Clients

    def _greeting(self) -> list[Message]:
        hello: Message = {
            "event": "hello",
            "protocol": PROTOCOL,
            "version": evenkeel.__version__,
            "pid": os.getpid(),
            "throttled": self._watch.throttled if self._watch is not None else {},
        }
        return [hello, *(self._backlog() if self._intents is not None else ())]

    def _backlog(self) -> list[Message]:
        assert self._intents is not None
        waiting = self._outbox.waiting
        keys = {key for one in waiting for key in one.keys}
        found = [
            {"event": "found", **intent._asdict()} for intent in self._intents.found if self._watch is None
        ]
        return [
            *found,
            *self._unknown(keys),
            *(one.message for one in waiting),
            {"event": "ready"},
        ]

    def _client_changed(self) -> None:
        self._outbox.client_changed(is_connected=self._listener.is_connected)
        self._known.clear()

    def _report(self, message: Message, keys: frozenset[str]) -> None:
        """Sends a report. An agent that has just connected does not know the pods of the agent before it."""
        self._listener.say([*self._unknown(keys), message])

    def _unknown(self, keys: AbstractSet[str]) -> list[Message]:
        """The texts of these keys that the connected agent does not know yet."""
        texts = {key: self._texts[key] for key in keys - self._known}
        self._known |= texts.keys()
        return [{"event": "texts", "texts": texts}] if texts else []

    def _take(self, message: Message) -> None:
        """Raises BadMessage."""
        try:
            self._do(message)
        except BadMessage:
            raise
        except Exception as error:  # noqa: BLE001 as in a turn. The next watch would get the same message
            self._note_failure(error)

    def _do(self, message: Message) -> None:
        todo = message.get("do")
        if todo == "settings":
            self._take_settings(message)
        elif todo == "targets":
            self._take_targets(message)
        elif todo == "queues":
            self._queues = queues_of(message)
            if self._watch is not None:
                self._watch.count_queues(self._queues)
        elif todo == "emptied":
            if self._watch is not None:
                self._watch.emptied(text_of(message, "uid"))
        elif todo == "heard":
            self._outbox.heard(number_of(message, "number"))
        elif todo == "taken":
            if self._intents is not None:
                self._intents.taken_up(text_of(message, "uid"))
        elif todo == "ping":
            self._listener.send({"event": "pong"})
        elif todo == "end":
            self._is_ending = True
        else:
            raise BadMessage(f"the request {str(todo)[:40]!r} is unknown")

    def _take_settings(self, message: Message) -> None:
        given = settings_of(message)
        if self._watch is None:
            try:
                self._state = state_from(message.get("state"))
            except Unreadable as error:
                raise BadMessage(str(error)) from None
        elif given != self._given:
            self._state, self._evicted = self._watch.state, self._watch.evicted
            self._watch.close()
            self._watch = None
        self._given = given
        self._start_watching()

    def _take_targets(self, message: Message) -> None:
        texts = texts_of(message)
        pods = {key: pod_from(text) for key, text in texts.items()}
        self._targets, key_of = targets_from(message.get("targets"), {**self._pods, **pods})
        self._pods |= pods
        self._texts |= texts
        self._known |= texts.keys()
        # A pod that is no longer a target may still be in waiting reports.
        self._outbox.follow(key_of)
        needed = self._outbox.keys
        for key in [key for key in self._texts if key not in needed]:
            del self._texts[key], self._pods[key]
        self._known &= self._texts.keys()
        if self._watch is not None:
            self._watch.follow(self._targets)
        else:
            self._start_watching()

    def _start_watching(self) -> None:
        """Starts the watch once there are settings and targets, and the former watch has ended."""
        if self._watch is not None or self._given is None or self._targets is None or self._intents is None:
            return
        self._watch = MemoryWatch(
            self._given,
            self._state,
            self._triggers,
            self._intents,
            self._outbox,
            self._guard,
            is_freezing_victims=self._is_freezing_victims,
        )
        ends_by = {one.uid: one.ends_by for one in self._targets.pods if one.ends_by is not None}
        ends_by |= {one.uid: one.at + one.grace_seconds for one in self._intents.found}
        seconds_left = {uid: by - time.time() for uid, by in ends_by.items()}
        self._watch.follow(self._targets, seconds_left | self._evicted)
        self._watch.count_queues(self._queues)

    def _note_failure(self, error: Exception) -> None:
        is_expected = isinstance(error, OSError | EvenkeelError)
        self._outbox.noted(f"the watch over memory: {error if is_expected else repr(error)}")
        if not is_expected:
            self._log(error)

    def _log(self, error: BaseException) -> None:
        import traceback  # it needs half a MiB, and there should be no error

        with suppress(OSError), open(f"{self._state_directory}/watch.log", "a", encoding="utf-8") as file:
            if file.tell() < _LOG_BYTES:
                file.write(f"{time.time():.3f} {''.join(traceback.format_exception(error))}")


def main(state: str, connection: int, former: int) -> int:
    name_process(NAME)
    keep_little()
    take_lowest_oom_score()
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    os.umask(0o077)
    directory = os.open(state, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    lock = os.open(LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600, dir_fd=directory)
    if not former:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if connection >= 0:
                os.write(connection, frame({"event": "busy"}))
            return 0
    process = WatchProcess(os.path.realpath(state), directory, lock)
    signal.signal(signal.SIGTERM, lambda *_: process.end())
    process.run(connection, former)
    return 0


def entry() -> NoReturn:
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 0))
