"""Errors of the start of a container: what could not be made, and why a variable has no value.

A `StartFailed` is an attempt that failed. A `NotBegun` is none: the container waits, and is tried again.
"""

from evenkeel.errors import EvenkeelError
from evenkeel.policy.lifecycle.changes import CONFIG_ERROR

FAILED_MOUNT, FAILED_SANDBOX = "FailedMount", "FailedCreatePodSandBox"  # events of `NotPrepared`


class StartFailed(EvenkeelError):
    """The container could not be started. The message names the field to change, or the refusal of the machine."""


class NotBegun(StartFailed):
    """Nothing was started, so the container waits and is tried again, whatever the restart policy is. `reason` is
    Kubernetes' word for this waiting state, and `event` for the event."""

    event = "Failed"

    def __init__(self, message: str, reason: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.reason = reason


class NoImage(NotBegun):
    """The image is missing."""


class WrongConfig(NotBegun):
    """What the container is to be cannot be made out of its manifest and its image: a value of a variable is missing,
    or it would run as root and must not."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message, CONFIG_ERROR, hint=hint)


class NotCreated(NotBegun):
    """The container could not be created: its seccomp profile is missing, for instance."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message, "CreateContainerError", hint=hint)


class NotPrepared(NotBegun):
    """Something that all containers of a pod share could not be made, such as its volumes or its network. As in kubelet
    the pod waits, and its event says why."""

    def __init__(self, message: str, event: str, *, hint: str = "") -> None:
        super().__init__(message, "ContainerCreating", hint=hint)
        self.event = event


class NoValue(EvenkeelError):
    """A variable has a source that this node cannot provide."""


class NotYet(NoValue):
    """The value is known when the container starts: the pod has no address before, and its files are not read."""


class DataMissing(EvenkeelError):
    """A ConfigMap or Secret, a key of one, or a key of a file is missing. The container waits for it."""
