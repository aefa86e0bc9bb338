"""The state of a pod, as far as decisions need it: what each container does, and what was decided about the pod.

The agent writes it to the journal, computes the pod's status from it, and continues from it after a restart. Times are
seconds since the epoch. Every value can be encoded and decoded (`api.encode`, `api.decode`).
"""

from collections.abc import Mapping
from types import MappingProxyType

from evenkeel.api.config import KubeletConfiguration, Profile, defaulted
from evenkeel.api.resources import ResourceRequirements
from evenkeel.named_tuples import NamedTuple

# `stopped_as`: what a stop by the agent means to the restart policy, whatever the exit code. Empty for all other ends.
AS_FAILURE = "failure"  # a probe failed: it counts as a failure
AS_RESTART = "restart"  # the container is started again at once, unless the restart policy is Never

LEAST_GRACE_SECONDS = 2.0  # as in kubelet


class Ended(NamedTuple):
    """How a container's attempt ended."""

    exit_code: int = 0
    signal: int = 0
    reason: str = ""  # Completed, Error, OOMKilled, StartError, ContainerStatusUnknown …
    message: str = ""
    started_at: float = 0.0
    finished_at: float = 0.0
    stopped_as: str = ""
    id: str = ""  # the container's id in a container runtime


class ContainerRecord(NamedTuple):
    """The record of one container.

    `attempt` counts starts; 0 means "never started". It is raised and written to the journal before the start
    (`is_asked_for`), so that no start is done twice. `started_at` is set while the container runs.
    """

    attempt: int = 0
    attempts_before: int = 0  # before the pod began anew (`changes.begun_anew`)
    runs_again: bool = False  # until it has begun: it starts, however it ended before (`changes.all_again`)
    is_asked_for: bool = False  # the start was decided, and its outcome is not known yet
    held_up: str = ""  # why the last start was not begun: ErrImageNeverPull, CreateContainerConfigError
    held_up_message: str = ""
    held_up_seconds: float = 0.0  # the last back-off for that reason
    started_at: float | None = None
    in_post_start: bool = False  # it runs, and its postStart hook has not ended: it does not count as started
    pid: int = 0
    pid_start_ticks: int = 0
    id: str = ""  # in a container runtime, of this attempt or (between two attempts) the last: containerd://…
    image_id: str = ""  # the image with its digest in the registry, of this attempt or the last
    ended: Ended | None = None  # the last end; it stays while a later attempt runs
    ended_before: Ended | None = None  # the end before that
    backoff_seconds: float = 0.0  # the next back-off; 0 means "no wait"
    start_after: float = 0.0  # no start before this time
    oom_kills: tuple[float, ...] = ()  # times of the OOM kills that count for A17
    oom_kills_at_start: int = 0  # the counter of the cgroup when the attempt started
    is_started: bool = False  # the startup probe has passed, or there is none
    is_ready: bool = False
    ready_changed_at: float = 0.0  # when `is_ready` last became what it is
    stopping: str = ""  # why it was asked to stop; empty once it has ended
    stop_by: float | None = None  # the end of its grace period
    stopped_as: str = ""
    # Those applied in the kernel (E17). None also stands for "no resources at all".
    resources: ResourceRequirements | None = None

    @property
    def has_begun(self) -> bool:
        """Whether it was started since the pod began, or began anew."""
        return self.attempt > self.attempts_before

    @property
    def is_running(self) -> bool:
        return self.started_at is not None

    @property
    def is_alive(self) -> bool:
        """Whether it runs or may run: its start was asked for, and the outcome is not known yet."""
        return self.is_running or self.is_asked_for


NEVER_STARTED = ContainerRecord()


class TerminalStatus(NamedTuple):
    """Why a pod has ended for good or is not run at all: Failed with a reason such as Evicted, DeadlineExceeded or
    OutOfmemory. A pod that ran to its end has a phase and no reason."""

    phase: str = ""  # Failed or Succeeded
    reason: str = ""
    message: str = ""
    at: float = 0.0
    grace_seconds: float = 0.0  # what its containers have to end, from `at`
    is_disruption: bool = False  # the node needed its resources: the condition DisruptionTarget


class PodState(NamedTuple):
    accepted_at: float = 0.0  # when it was admitted; status.startTime
    # By name, init containers included: no two containers of a pod have the same name.
    containers: Mapping[str, ContainerRecord] = MappingProxyType({})
    # Containers may still run and be stopped. Journals have it under this name, so the field keeps it.
    verdict: TerminalStatus | None = None
    deleted_at: float | None = None  # when its deletion was asked for
    deletion_grace_seconds: float | None = None  # None: the grace period of the pod

    def container(self, name: str) -> ContainerRecord:
        return self.containers.get(name, NEVER_STARTED)

    @property
    def is_alive(self) -> bool:
        return any(container.is_alive for container in self.containers.values())

    @property
    def running(self) -> tuple[str, ...]:
        """The names of the containers that run."""
        return tuple(name for name, container in self.containers.items() if container.is_running)

    def with_container(self, name: str, record: ContainerRecord) -> "PodState":
        return self._replace(containers={**self.containers, name: record})


class LifecycleSettings(NamedTuple):
    """The settings of restarts and OOM kills. The first restart has no back-off, the second `first_backoff_seconds`;
    each further one doubles it, up to the greatest. A container that ran for `backoff_reset_seconds` begins anew."""

    profile: Profile = Profile.DOCUMENTS
    first_backoff_seconds: float = 10.0
    greatest_backoff_seconds: float = 300.0
    backoff_reset_seconds: float = 600.0
    least_sidecar_grace_seconds: float = LEAST_GRACE_SECONDS  # if the pod's grace period is used up
    oom_retries: int = 3  # A17
    oom_retries_reset_seconds: float = 600.0


def settings_of(config: KubeletConfiguration) -> LifecycleSettings:
    full = defaulted(config)
    unset = LifecycleSettings()
    greatest = full.crash_loop_back_off.max_container_restart_period
    greatest_seconds = unset.greatest_backoff_seconds if greatest is None else greatest.seconds
    return unset._replace(
        profile=full.rulebook,
        first_backoff_seconds=min(unset.first_backoff_seconds, greatest_seconds),
        greatest_backoff_seconds=greatest_seconds,
        oom_retries=full.oom_retries,
        oom_retries_reset_seconds=full.oom_retries_reset.seconds,
    )
