"""OOM kills by the kernel: whether a container's end was one, and the record of each with its figures (A17, A19, E6).

The kernel counts an OOM kill before it sends the signal. So its count is correct when it is read after the container's
end. But a container runtime soon removes the container's cgroup, and the count with it. The runtime may also report the
end before it has seen the OOM kill. So an unexplained SIGKILL waits for a short time, until one of three sources
explains it: the count, the kernel log, or the runtime.

`KernelEvents` listens to the kernel. On cgroup v1, the kernel kills one process of a container; the rest of the
container is killed here.
"""

import asyncio
import logging
from collections.abc import Callable
from enum import Enum
from signal import SIGKILL
from typing import TypeVar

from evenkeel.agent.event_recorder import EventRecorder
from evenkeel.agent.node.node_cgroups import NodeCgroups
from evenkeel.agent.pod_store import PodStore
from evenkeel.agent.step_requests import OomKilled, StepRequests
from evenkeel.cgroup.tree import Cgroup, Kind, Tree, Version
from evenkeel.host.event_stream import EventStream
from evenkeel.host.event_types import Event, LogGap, OomKill, OomNotified, OomRecord, SubscriptionEnded
from evenkeel.host.kernel_log import DEVICE
from evenkeel.host.node_figures import boot_id
from evenkeel.journal.records import WARNING, PodRecord
from evenkeel.journal.store import Journal, JournalError
from evenkeel.named_tuples import NamedTuple
from evenkeel.pressure.protocol import PodObserver
from evenkeel.runtime.interface import Attempt, Exit

log = logging.getLogger(__name__)

# Waiting time for the kernel log and for a second report of the runtime. Both take milliseconds, unless the machine is
# stuck.
WAIT_SECONDS = 2.0
NOT_KNOWN = (
    "killed by signal 9; whether by the kernel for want of memory is not known:"
    " its cgroup was removed before its OOM kills were read"
)
_MOST_REMEMBERED = 4096  # attempts, and removed cgroups that the kernel log may still mention
_LOG_POSITION = "kernelLog"
_LATE_SECONDS = 1.0  # a runtime names a container's cgroup only after the container has started
_Value = TypeVar("_Value")


class OomVerdict(Enum):
    KILLED = "killed"
    NOT_KILLED = "not killed"
    WAIT = "wait"  # ask again after the next report, or at `wake_at`
    UNKNOWN = "unknown"


class _Waiting(NamedTuple):
    exit: Exit
    until: float


class OomKills:
    """`machine_count` returns the kernel's count of all OOM kills on the machine; None if the kernel has no count."""

    def __init__(self, cgroups: NodeCgroups, machine_count: Callable[[], int | None]) -> None:
        self._cgroups = cgroups
        self._machine_count = machine_count
        self._machine_count_before: dict[Attempt, int | None] = {}
        self._seen: dict[Attempt, None] = {}
        self._waiting: dict[Attempt, _Waiting] = {}

    def begins(self, record: PodRecord, attempt: Attempt) -> int:
        """Called before the attempt is started. Returns the OOM kills that its cgroup has counted before it."""
        _remember(self._machine_count_before, attempt, self._machine_count())
        cgroup = self._cgroups.of_container(record.pod.key, attempt.container)
        is_new = (
            cgroup is not None and not cgroup.is_ours_to_make and self._cgroups.driver.version == Version.V1
        )
        return 0 if is_new else self._cgroups.oom_kills(record.pod.key, attempt.container) or 0

    def has_counted(self, record: PodRecord, name: str) -> bool | None:
        """Whether the kernel has counted a kill of the container's last attempt; None if the count is gone."""
        counted = self._cgroups.oom_kills(record.pod.key, name)
        return None if counted is None else counted > record.state.container(name).oom_kills_at_start

    def has_killed(self, record: PodRecord, attempt: Attempt) -> bool:
        """Whether the kernel is known to have killed the attempt, which is the container's last."""
        return attempt in self._seen or bool(self.has_counted(record, attempt.container))

    def saw(self, attempt: Attempt) -> None:
        """The kernel has counted or logged an OOM kill of this attempt."""
        _remember(self._seen, attempt, None)

    def verdict(self, record: PodRecord, attempt: Attempt, exit_: Exit, now: float) -> OomVerdict:
        """The verdict on an ended attempt that is the container's last."""
        found = self._verdict(record, attempt, exit_)
        if found is OomVerdict.WAIT:
            since = self._waiting.setdefault(attempt, _Waiting(exit_, now + WAIT_SECONDS))
            if now < since.until:
                return found
            found = OomVerdict.UNKNOWN
        self._waiting.pop(attempt, None)
        return found

    def _verdict(self, record: PodRecord, attempt: Attempt, exit_: Exit) -> OomVerdict:
        was_asked = bool(record.state.container(attempt.container).stopping)
        if exit_.oom_kills is not None:  # the count of a cgroup that had no other attempt
            is_counted: bool | None = exit_.oom_kills > 0
        else:
            is_counted = self.has_counted(record, attempt.container)
        # On v1, if a cgroup ran out of memory, a runtime reports an OOM kill for every container below it, even for the
        # containers that survived.
        if is_counted or attempt in self._seen or (exit_.is_oom_killed and not was_asked):
            return OomVerdict.KILLED
        is_ours = was_asked or record.state.verdict is not None
        if is_counted is not None or is_ours or exit_.signal != SIGKILL or not exit_.is_known:
            return OomVerdict.NOT_KILLED
        before, after = self._machine_count_before.get(attempt), self._machine_count()
        if before is not None and before == after:
            return OomVerdict.NOT_KILLED  # no process on the machine was OOM-killed meanwhile
        return OomVerdict.WAIT

    def waiting(self, attempt: Attempt) -> Exit | None:
        """The exit of an attempt that waits for its verdict; None if it does not wait."""
        found = self._waiting.get(attempt)
        return found.exit if found is not None else None

    def due(self, now: float) -> list[tuple[Attempt, Exit]]:
        """The exits that have waited long enough."""
        return [(attempt, exit_) for attempt, (exit_, until) in self._waiting.items() if until <= now]

    @property
    def wake_at(self) -> float | None:
        return min((waiting.until for waiting in self._waiting.values()), default=None)


def _remember(kept: dict[Attempt, _Value], attempt: Attempt, value: _Value) -> None:
    kept[attempt] = value
    if len(kept) > _MOST_REMEMBERED:
        del kept[next(iter(kept))]


class KernelEvents(PodObserver):
    """Handles kernel events while `run` is running."""

    def __init__(
        self,
        journal: Journal,
        cgroups: NodeCgroups,
        oom_kills: OomKills,
        pod_store: PodStore,
        event_recorder: EventRecorder,
        steps: StepRequests,
        make_stream: Callable[[], EventStream] = EventStream,
    ) -> None:
        self._journal = journal
        self._cgroups = cgroups
        self._oom_kills = oom_kills
        self._pod_store = pod_store
        self._event_recorder = event_recorder
        self._steps = steps
        self._make_stream = make_stream
        self._stream: EventStream | None = None
        self._tree: Tree | None = None
        self._watched: set[str] = set()
        self._known: dict[str, Cgroup] = {}
        self._attempts: dict[
            str, Attempt
        ] = {}  # by the path of the cgroup that a container runtime made for it
        self._pods: dict[str, Cgroup] = {}  # pods in which a container runtime makes cgroups
        self._killing: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        async with self._make_stream() as stream:
            self._stream = stream
            self._watch_log(stream)
            if self._tree is not None:
                self._watch(stream, self._tree)
            async for event in stream:
                self._heard(event)

    def cgroups_changed(self, tree: Tree) -> None:
        self._tree = tree
        pods: dict[str, Cgroup] = {}
        for cgroup in tree.cgroups:
            if cgroup.kind == Kind.POD and not cgroup.holds_only_ours:
                pods[cgroup.path] = cgroup
            if cgroup.kind == Kind.CONTAINER:
                self._known.pop(cgroup.path, None)
                self._known[cgroup.path] = cgroup
                self._learn_attempt(cgroup)
        for path in list(self._known)[: max(len(self._known) - _MOST_REMEMBERED - len(tree.cgroups), 0)]:
            del self._known[path]
            self._attempts.pop(path, None)
        self._pods = pods
        if self._stream is not None:
            self._watch(self._stream, tree)

    def _learn_attempt(self, cgroup: Cgroup) -> None:
        if cgroup.is_ours_to_make or cgroup.path in self._attempts:
            return
        record = self._pod_store.by_key(cgroup.pod)
        if record is not None:
            self._attempts[cgroup.path] = _last_attempt(record, cgroup.container)

    def _watch(self, stream: EventStream, tree: Tree) -> None:
        if tree.version != Version.V1:
            return  # on v2 the kernel itself kills the whole container
        wanted = {cgroup.path for cgroup in tree.cgroups if cgroup.is_killed_whole}
        for path in self._watched - wanted:
            stream.unwatch(path)
        for path in wanted - self._watched:
            stream.watch_oom(path, self._cgroups.driver.files(path)["memory"])
        new, self._watched = wanted - self._watched, wanted
        for path in new:
            if not self._known[path].is_ours_to_make:  # the container ran before it was watched
                self._kill_rest_of(path)

    def _watch_log(self, stream: EventStream) -> None:
        """Reads the kernel log from where a former agent stopped, if the machine has not been rebooted since."""
        after = None
        position = self._journal.value(_LOG_POSITION)
        if isinstance(position, dict) and position.get("boot") == boot_id():
            after = position.get("sequence")
        stream.watch_kernel_log(after if isinstance(after, int) else None)

    def _heard(self, event: Event) -> None:
        if isinstance(event, OomKill):
            self._oom_kill(event.record)
        elif isinstance(event, OomNotified) and event.oom_kills and event.path in self._watched:
            self._kill_rest_of(event.path)
        elif isinstance(event, LogGap):
            message = f"{event.lines} lines of the kernel's log were lost: OOM kills may be among them"
            self._event_recorder.record(WARNING, "KernelLogGap", message)
        elif isinstance(event, SubscriptionEnded):
            self._watched.discard(event.path)
            if event.what == DEVICE:
                message = f"OOM kills will be recorded without process and figures: {event.what}: {event.why}"
                self._event_recorder.record(WARNING, "KernelLogUnreadable", message)

    def _kill_rest_of(self, path: str) -> None:
        """Kills the rest of the attempt in which a process was OOM-killed. If the kernel has counted no OOM kill of the
        container's last attempt, nothing is killed: the next attempt may already run in the same cgroup."""
        cgroup = self._known[path]
        record = self._pod_store.by_key(cgroup.pod)
        if record is None:
            return
        if self._oom_kills.has_counted(record, cgroup.container):
            self._steps.report(OomKilled(_last_attempt(record, cgroup.container)))
            task = asyncio.get_running_loop().create_task(self._kill_rest(path, record.pod.metadata.uid))
            self._killing.add(task)
            task.add_done_callback(self._killing.discard)

    async def _kill_rest(self, path: str, uid: str) -> None:
        error = await self._cgroups.kill(path)
        if error is not None:
            self._event_recorder.record(WARNING, "FailedKill", str(error))
        self._steps.want_step(uid)

    def _oom_kill(self, kill: OomRecord) -> None:
        attempt = self._attempts.get(kill.cgroup) or self._attempt_of(kill.pid)
        if attempt is not None:
            self._steps.report(OomKilled(attempt))
        cgroup = self._known.get(kill.cgroup)
        if cgroup is None:
            pod = self._pods.get(kill.cgroup.rpartition("/")[0])
            if pod is not None:  # else the cgroup is not ours
                asyncio.get_running_loop().call_later(_LATE_SECONDS, self._late_oom_kill, kill, pod)
            return
        self._record_kill(kill, cgroup)

    def _attempt_of(self, pid: int) -> Attempt | None:
        """The attempt that has this first process, or had it until now."""
        for record in self._pod_store:
            for name, container in record.state.containers.items():
                if container.pid == pid and container.is_alive:
                    return _last_attempt(record, name)
        return None

    def _late_oom_kill(self, kill: OomRecord, pod: Cgroup) -> None:
        """If a container ended before its cgroup's name was known, only its pod is known."""
        self._record_kill(kill, self._known.get(kill.cgroup, pod))

    def _record_kill(self, kill: OomRecord, cgroup: Cgroup) -> None:
        record = self._pod_store.by_key(cgroup.pod)
        self._event_recorder.record(
            WARNING,
            "OOMKilling",
            _in_words(kill, cgroup),
            record.pod if record is not None else None,
            cgroup.container,
            {name: value for name, value in kill._asdict().items() if value not in ("", None)},
        )
        try:
            self._journal.set_value(_LOG_POSITION, {"boot": boot_id(), "sequence": kill.sequence})
            self._event_recorder.commit()
        except JournalError as error:
            log.error("%s", error)  # noqa: TRY400


def _last_attempt(record: PodRecord, container: str) -> Attempt:
    return Attempt(record.pod.metadata.uid, container, record.state.container(container).attempt)


def _in_words(kill: OomRecord, cgroup: Cgroup) -> str:
    """The record's sentence, with names instead of cgroup paths. The paths are among the figures."""
    names = {
        kill.cgroup: f"container {cgroup.container}" if cgroup.container else "a container of the pod",
        cgroup.path: "the container",
        cgroup.path.rpartition("/")[0]: "the pod",
    }
    words = kill._replace(
        cgroup=names.get(kill.cgroup, kill.cgroup),
        limit_cgroup=names.get(kill.limit_cgroup, kill.limit_cgroup),
    )
    return words.sentence
