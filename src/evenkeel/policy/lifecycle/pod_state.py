"""What is known of a pod's life: enough to decide what comes next, to tell its status, and to be kept in the journal.

Times are seconds since the epoch. All of it can be encoded and decoded (`api.encode`, `api.decode`).
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from evenkeel.api.config import KubeletConfiguration, Profile, defaulted
from evenkeel.api.resources import ResourceRequirements

# What a stop on purpose means for what comes after, whatever the exit code is; `stopped_as` is empty for the others.
AS_FAILURE = "failure"  # a probe failed: the restart policy takes it for a failure
AS_RESTART = "restart"  # it is to be started again, at once, if the restart policy knows restarts at all


class Ended(NamedTuple):
    """How a container's attempt ended."""

    exit_code: int = 0
    signal: int = 0
    reason: str = ""  # Completed, Error, OOMKilled, StartError, ContainerStatusUnknown …
    message: str = ""
    started_at: float = 0.0
    finished_at: float = 0.0
    stopped_as: str = ""
    id: str = ""  # of the container, as a container runtime has it


class ContainerRecord(NamedTuple):
    """`attempt` counts starts, 0 is "never"; it is raised, and written down, before the start (`is_asked_for`), so that
    no start is done twice. `started_at` is set while it runs."""

    attempt: int = 0
    attempts_before: int = 0  # those of before the pod began anew (`changes.begun_anew`)
    is_asked_for: bool = False  # the start of `attempt` was decided, and its outcome is not known yet
    held_up: str = ""  # why the next start was tried and not begun: ErrImageNeverPull, ImagePullBackOff
    held_up_message: str = ""
    held_up_seconds: float = 0.0  # how long it waited for that the last time
    started_at: float | None = None
    pid: int = 0
    pid_start_ticks: int = 0
    id: str = ""  # of a container runtime's: containerd://…, of this attempt or, between two, the last
    ended: Ended | None = None  # the last end, also while a later attempt runs
    backoff_seconds: float = 0.0  # how long the next restart waits after an end; 0 is "not at all"
    start_after: float = 0.0  # no start before this time
    oom_kills: tuple[float, ...] = ()  # times of those that count for A17's retries
    oom_kills_at_start: int = 0  # the cgroup's own counter when the attempt started
    is_started: bool = False  # the startup probe has passed, or there is none
    is_ready: bool = False
    ready_changed_at: float = 0.0  # when `is_ready` last became what it is
    stopping: str = ""  # why it was asked to stop, while it has not ended
    stop_by: float | None = None  # the end of the grace it was given then
    stopped_as: str = ""
    # Those applied in the kernel (E17); None also for "none at all".
    resources: ResourceRequirements | None = None

    @property
    def has_begun(self) -> bool:
        """Was started once since the pod began, or began anew."""
        return self.attempt > self.attempts_before

    @property
    def is_running(self) -> bool:
        return self.started_at is not None

    @property
    def is_alive(self) -> bool:
        """Runs, or may: its start was asked for and nobody knows yet what became of it."""
        return self.is_running or self.is_asked_for


NEVER_STARTED = ContainerRecord()


class TerminalStatus(NamedTuple):
    """What ended a pod for good, or keeps it from running: Failed with a reason such as Evicted, DeadlineExceeded,
    OutOfmemory; for a pod that ran to its end, nothing but the phase."""

    phase: str = ""  # Failed or Succeeded
    reason: str = ""
    message: str = ""
    at: float = 0.0
    grace_seconds: float = 0.0  # that its containers have from then on, to end
    is_disruption: bool = False  # the node needed what it held: the condition DisruptionTarget


class PodState(NamedTuple):
    accepted_at: float = 0.0  # when admission took it; status.startTime
    containers: Mapping[str, ContainerRecord] = MappingProxyType(
        {}
    )  # init containers too: names are one space
    verdict: TerminalStatus | None = None  # with containers still to be stopped, maybe
    deleted_at: float | None = None  # somebody asked for its end
    deletion_grace_seconds: float | None = None  # None is the pod's own

    def container(self, name: str) -> ContainerRecord:
        return self.containers.get(name, NEVER_STARTED)

    @property
    def is_alive(self) -> bool:
        return any(container.is_alive for container in self.containers.values())

    def having(self, name: str, life: ContainerRecord) -> "PodState":
        return self._replace(containers={**self.containers, name: life})


class LifecycleSettings(NamedTuple):
    """The second restart waits `first_backoff_seconds`, each one after it twice as long up to the greatest; a container
    that ran for `backoff_reset_seconds` begins anew."""

    profile: Profile = Profile.DOCUMENTS
    first_backoff_seconds: float = 10.0
    greatest_backoff_seconds: float = 300.0
    backoff_reset_seconds: float = 600.0
    least_sidecar_grace_seconds: float = 2.0  # of one whose turn comes when the pod's grace is used up
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
