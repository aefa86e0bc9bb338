"""The interface between the agent and a runtime, which runs containers.

An attempt is one run of a container: the first start is attempt 1, each restart is the next. A runtime starts an
attempt at most once. It keeps the exit of an attempt until the agent has stored it (`forget`). It outlives the agent:
after a restart of the agent, `containers` returns every attempt that was started and not forgotten.
"""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Protocol

from evenkeel.api.container import Container
from evenkeel.api.data_objects import NO_DATA, PodData
from evenkeel.api.pod import Pod
from evenkeel.cgroup.tree import Cgroup, Setting, Version
from evenkeel.host.disk_usage import Usage
from evenkeel.named_tuples import NamedTuple
from evenkeel.policy.admission import Refusal
from evenkeel.runtime.procfs import Process
from evenkeel.runtime.sessions import Session, Streams

UNKNOWN_EXIT = 137  # the code that kubelet gives to a container whose exit code is lost


class Attempt(NamedTuple):
    """One run of one container."""

    uid: str  # the pod's
    container: str
    number: int


class Planned(NamedTuple):
    """The planned cgroups of a container and of its pod, for a runtime that makes the cgroups of containers itself."""

    version: Version
    container: Cgroup
    pod: Cgroup
    infrastructure: Cgroup


class Launch(NamedTuple):
    """Everything that a start needs.

    The cgroup exists with its limits, or the runtime makes it. The container is in the cgroup and has its OOM score
    before its first instruction (A17).
    """

    attempt: Attempt
    pod: Pod
    container: Container
    cgroup: str  # its path in the plan
    oom_score_adj: int | None
    planned: Planned | None = None
    data: PodData = NO_DATA  # the ConfigMaps, Secrets and claims that the pod refers to
    is_wanted: bool = True  # False: the pod ends, so no image is pulled for it
    may_trace: bool = False  # an ephemeral container gets SYS_PTRACE if it asks for it


class Exit(NamedTuple):
    """How an attempt ended. After a signal the exit code is 128 + its number, as in a shell."""

    exit_code: int
    signal: int = 0
    started_at: float = 0.0  # seconds since the epoch
    finished_at: float = 0.0
    is_known: bool = True  # False: it ended while neither the agent nor the runtime watched it
    message: str = ""  # its termination message: from its file, or the last lines of its log
    is_oom_killed: bool = False  # as reported by the runtime
    # The kernel's count in the attempt's own cgroup after its end; None if it was not read.
    oom_kills: int | None = None


class Record(NamedTuple):
    """The state of an attempt: it runs, or it has ended (`exit`)."""

    attempt: Attempt
    process: Process | None
    started_at: float
    exit: Exit | None = None
    # Sentences about differences from the launch, such as an OOM score that was refused.
    notes: tuple[str, ...] = ()
    id: str = ""  # containerd://…; empty for processes
    image_id: str = ""  # the image with its digest in the registry; empty if it has none


class Exited(NamedTuple):
    attempt: Attempt
    exit: Exit


class RuntimeLost(NamedTuple):
    """The runtime went away, or is back: the agent must read `containers` again."""

    why: str
    is_back: bool = False  # True: it was away and answers again


class ImageNoted(NamedTuple):
    """An event about the image of an attempt, for the pod's events: Pulling, Pulled."""

    attempt: Attempt
    reason: str
    message: str


RuntimeEvent = Exited | RuntimeLost | ImageNoted


class Pull(NamedTuple):
    """An image that is being pulled now."""

    reference: str
    received_bytes: int
    seconds: float


class Image(NamedTuple):
    """An image on this machine."""

    id: str
    names: tuple[str, ...]
    size_bytes: int
    is_in_use: bool  # a container has it, or is about to
    is_pinned: bool = False  # it is never removed


# Name of a container ("" for the infrastructure of the pod), and the last component of its cgroup's path.
Placed = tuple[tuple[str, str], ...]


class Readiness(NamedTuple):
    """Whether containers can be started now, and why not."""

    is_ready: bool
    message: str
    version: str = ""  # of a container runtime, as Kubernetes writes it: containerd://1.7.0


class ExecResult(NamedTuple):
    """The result of a command in a container (an exec probe). `exit_code` is None if it did not end in time."""

    exit_code: int | None
    output: str  # the beginning of stdout and stderr together


class Directories(NamedTuple):
    """The directories to which a pod writes on disk: pairs of a container's or volume's name and a directory.

    A container has several layers while earlier attempts are not forgotten.
    """

    layers: tuple[tuple[str, str], ...] = ()
    logs: tuple[tuple[str, str], ...] = ()
    volumes: tuple[tuple[str, str], ...] = ()


class Runtime(Protocol):
    def refusal(self, pod: Pod) -> Refusal | None:
        """Returns why this runtime cannot run the pod as its manifest is written; None if it can. Does no I/O."""
        ...

    @property
    def may_trace(self) -> bool:
        """Whether an ephemeral container gets the capability SYS_PTRACE if it asks for it."""
        ...

    async def open(self) -> None:
        """Connects to the process that runs the containers, and starts it if needed."""
        ...

    async def close(self) -> None:
        """Disconnects. Containers run on; a helper process without containers ends."""
        ...

    @property
    def readiness(self) -> Readiness: ...

    def placed(self, uid: str) -> Placed | None:
        """Returns the cgroups that the runtime has made below the pod's; None if the agent makes them."""
        ...

    def addresses(self, pod: Pod) -> tuple[str, ...] | None:
        """Returns the addresses of the pod's own network, as far as they are known; None if it uses the host's."""
        ...

    async def containers(self) -> Mapping[Attempt, Record]:
        """Returns every attempt that runs, or that has ended and is not forgotten."""
        ...

    def take_note(self, pods: Iterable[Pod]) -> None:
        """Informs the runtime of pods that may already run. Called before any pod is prepared."""
        ...

    async def prepare(self, pod: Pod, data: PodData = NO_DATA) -> None:
        """Makes the directories and volumes of the pod. If it is repeated, volumes with data are brought up to date.

        Raises StartFailed.
        """
        ...

    async def start(self, launch: Launch) -> Record:
        """Starts the attempt. If it was started before, it only returns its record.

        Raises StartFailed; then nothing of the attempt is left.
        """
        ...

    def give_up(self, attempt: Attempt) -> None:
        """The attempt is not wanted any more. If it waits for its image, its start fails with NoImage.

        It has no effect once the attempt has its image. Does not block."""
        ...

    async def stop(self, attempt: Attempt, grace_seconds: float) -> None:
        """Sends SIGTERM to the first process of the container, and kills its cgroup after `grace_seconds`.

        Returns when no process of the container is left. The exit is an event of its own (`Exited`). The attempt may
        have ended already.
        """
        ...

    async def update(self, attempt: Attempt, settings: tuple[Setting, ...]) -> None:
        """Passes changed settings of a running container to the runtime.

        The agent has written them to the kernel.
        """
        ...

    async def execute(self, attempt: Attempt, command: tuple[str, ...], timeout_seconds: float) -> ExecResult:
        """Runs a command in the container and in its cgroup. Raises StartFailed."""
        ...

    async def open_session(self, attempt: Attempt, command: tuple[str, ...], wanted: Streams) -> Session:
        """Starts a command in the container and in its cgroup, and returns its streams. Raises SessionRefused."""
        ...

    async def attach(self, attempt: Attempt, container: Container, wanted: Streams) -> Session:
        """Returns the streams of the container itself, with its output from now on. `wanted.terminal` says whether it
        has a terminal. Raises SessionRefused."""
        ...

    async def forget(self, attempt: Attempt) -> None:
        """Removes everything of the attempt. The agent has stored its exit."""
        ...

    async def empty_memory(self, uid: str) -> None:
        """Removes the content of the pod's memory-backed volumes. The pod is being killed, and the memory is needed."""
        ...

    async def remove(self, uid: str) -> None:
        """Removes the directories, volumes and mounts of a pod that no longer runs, but not its logs.

        May be repeated.
        """
        ...

    async def remove_logs(self, uid: str) -> None: ...

    async def write_hosts(self, pod: Pod, attempts: Sequence[Attempt]) -> None:
        """Writes /etc/hosts of running containers, as far as the pod has a file of its own. Raises EvenkeelError."""
        ...

    async def remove_claim(self, namespace: str, name: str) -> None:
        """Removes the directory of a claim with its files. Raises EvenkeelError."""
        ...

    async def pods(self) -> frozenset[str]:
        """Returns the UIDs of all pods that still have directories, mounts or logs."""
        ...

    def events(self) -> AsyncIterator[RuntimeEvent]: ...

    def daemon(self) -> Process | None:
        """Returns the process that runs the containers; None if it is not known. For any thread; does not block."""
        ...

    # The disk (B12)

    @property
    def storage_path(self) -> str:
        """A directory on the filesystem that pods write to."""
        ...

    @property
    def images_path(self) -> str:
        """A directory on the filesystem that holds the images; it need not exist yet."""
        ...

    async def images_usage(self) -> Usage | None:
        """Returns the disk usage of images; None if it is not known."""
        ...

    def directories(self, pod: Pod) -> Directories:
        """Returns the directories of the pod on disk. For any thread; blocks for a moment."""
        ...

    async def images(self) -> tuple[Image, ...]:
        """Returns every image that the runtime keeps."""
        ...

    def pulls(self) -> tuple[Pull, ...]:
        """Returns the images that are being pulled now, as far as they are known. Does not block."""
        ...

    async def remove_image(self, id_: str) -> None:
        """Removes an image with all its names. An image in use stays. Raises EvenkeelError."""
        ...

    async def remove_unused_images(self) -> None:
        """Removes images that no container uses and that can be obtained again."""
        ...

    async def remove_old_logs(self) -> None:
        """Removes rotated logs of running pods, and logs of attempts before the last but one."""
        ...
