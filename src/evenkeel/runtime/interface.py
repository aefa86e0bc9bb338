"""What the agent asks of whatever runs containers, and what it is told.

An attempt is one run of a container: the first start is attempt 1, each restart the next. A runtime starts an attempt
at most once, remembers how it ended until the agent has written that down (`forget`), and outlives the agent: after a
restart `containers` tells what became of every attempt that was asked for.
"""

from collections.abc import AsyncIterator, Mapping
from typing import NamedTuple, Protocol

from evenkeel.api.container import Container
from evenkeel.api.pod import Pod
from evenkeel.cgroup.tree import Cgroup, Setting, Version
from evenkeel.errors import EvenkeelError
from evenkeel.host.disk_usage import Usage
from evenkeel.policy.admission import Refusal
from evenkeel.runtime.procfs import Process

UNKNOWN_EXIT = 137  # as kubelet says of a container of which nobody knows how it ended


class Attempt(NamedTuple):
    """One run of one container."""

    uid: str  # the pod's
    container: str
    number: int


class Planned(NamedTuple):
    """What the plan has for a container and for the pod around it, for a runtime that makes their cgroups itself."""

    version: Version
    container: Cgroup
    pod: Cgroup
    infrastructure: Cgroup


class Launch(NamedTuple):
    """Everything a start needs. The cgroup is there, with its limits, or the runtime makes it so; the runtime puts the
    container into it, with the score, before its first instruction (A17)."""

    attempt: Attempt
    pod: Pod
    container: Container
    cgroup: str  # the plan's path
    oom_score_adj: int | None
    planned: Planned | None = None


class Exit(NamedTuple):
    """How an attempt ended. A signal's exit code is 128 + its number, as shells have it."""

    exit_code: int
    signal: int = 0
    started_at: float = 0.0  # seconds since the epoch
    finished_at: float = 0.0
    is_known: bool = True  # False: it ended while nobody was there to see how
    message: str = ""  # what it left in its termination message file, or the last lines of its log
    is_oom_killed: bool = False  # the runtime says so
    # What the kernel had counted in the attempt's own cgroup after its end; None if that was not read.
    oom_kills: int | None = None


class Record(NamedTuple):
    """What a runtime knows of an attempt: it runs, or it has ended."""

    attempt: Attempt
    process: Process | None
    started_at: float
    exit: Exit | None = None
    notes: tuple[str, ...] = ()  # what about it is not as asked for, in sentences: a score the kernel refused
    id: str = ""  # containerd://…; processes have none


class Exited(NamedTuple):
    attempt: Attempt
    exit: Exit


class RuntimeLost(NamedTuple):
    """The runtime went away and is back, or not: what `containers` says now must be looked at again."""

    why: str
    is_back: bool = False  # after an event that said it went


RuntimeEvent = Exited | RuntimeLost

Placed = tuple[
    tuple[str, str], ...
]  # a container's name, "" for the pod's own, and the last part of its cgroup's path


class Readiness(NamedTuple):
    """Whether containers can be started now, and if not, why."""

    is_ready: bool
    message: str


class ExecResult(NamedTuple):
    """What a command run inside a container (an exec probe) did. `exit_code` is None if it did not end in time."""

    exit_code: int | None
    output: str  # the beginning of stdout and stderr together


class Directories(NamedTuple):
    """Where on disk lies what a pod writes: a container's or volume's name, and a directory. A container may have
    several layers, of attempts that are not forgotten yet."""

    layers: tuple[tuple[str, str], ...] = ()
    logs: tuple[tuple[str, str], ...] = ()
    volumes: tuple[tuple[str, str], ...] = ()


class StartFailed(EvenkeelError):
    """The container could not be started; the message says what about it must change, or what the machine refused."""


class NoImage(StartFailed):
    """Its image is not there, so nothing was begun. `reason` is Kubernetes' word for what it waits for then."""

    def __init__(self, message: str, reason: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.reason = reason


class Runtime(Protocol):
    def refusal(self, pod: Pod) -> Refusal | None:
        """Why this runtime cannot run the pod as it is written; None if it can. Does no I/O."""
        ...

    async def open(self) -> None:
        """Connects, starting what is needed."""
        ...

    async def close(self) -> None:
        """Lets go. Containers run on; what no longer has anything to do ends."""
        ...

    @property
    def readiness(self) -> Readiness: ...

    def placed(self, uid: str) -> Placed | None:
        """The cgroups that the runtime itself has made below the pod's; None of one that leaves that to the agent."""
        ...

    async def containers(self) -> Mapping[Attempt, Record]:
        """Every attempt that runs, or has ended and was not forgotten."""
        ...

    async def prepare(self, pod: Pod) -> None:
        """The pod's directories and volumes. Doing it again is fine. Raises StartFailed."""
        ...

    async def start(self, launch: Launch) -> Record:
        """Raises StartFailed, and then nothing of the attempt is left. Starting an attempt that was started before
        starts nothing and returns its record."""
        ...

    async def stop(self, attempt: Attempt, grace_seconds: float) -> None:
        """SIGTERM to the container's first process, and after `grace_seconds` the end of everything in its cgroup.
        Returns when nothing of it runs; its Exited comes as an event. One that has ended already is fine."""
        ...

    async def update(self, attempt: Attempt, settings: tuple[Setting, ...]) -> None:
        """The plan has other settings for a container that runs, and the kernel has them already."""
        ...

    async def execute(self, attempt: Attempt, command: tuple[str, ...], timeout_seconds: float) -> ExecResult:
        """Runs a command inside the container, in its cgroup. Raises StartFailed."""
        ...

    async def forget(self, attempt: Attempt) -> None:
        """The end of the attempt has been written down."""
        ...

    async def empty_memory(self, uid: str) -> None:
        """Removes what is in the pod's memory-backed volumes: it is being killed, and nobody needs it any more."""
        ...

    async def remove(self, uid: str) -> None:
        """The pod's directories, volumes and mounts, but not its logs; nothing of it runs any more. Again is fine."""
        ...

    async def remove_logs(self, uid: str) -> None: ...

    async def pods(self) -> frozenset[str]:
        """The UIDs of all pods of which something is left: directories, mounts or logs."""
        ...

    def events(self) -> AsyncIterator[RuntimeEvent]: ...

    def daemon(self) -> Process | None:
        """The process that runs the containers, and is none itself; None where that is not known. For any thread, and
        it waits for nobody."""
        ...

    # The disk (B12)

    @property
    def storage_path(self) -> str:
        """A directory on the filesystem that pods write to."""
        ...

    @property
    def images_path(self) -> str:
        """One on the filesystem that images lie on; it need not be there yet."""
        ...

    async def images_usage(self) -> Usage | None:
        """What images take of their filesystem; None where that is not known."""
        ...

    def directories(self, pod: Pod) -> Directories:
        """Blocks for a moment; for any thread."""
        ...

    async def remove_unused_images(self) -> None:
        """Images that nothing runs from, and that could be had again."""
        ...

    async def remove_old_logs(self) -> None:
        """Of pods that go on: what was rotated away, and what attempts before the last but one wrote."""
        ...
