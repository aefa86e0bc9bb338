"""Why a variable of a container has no value."""

from evenkeel.errors import EvenkeelError


class NoValue(EvenkeelError):
    """A variable has a source that this node cannot provide."""


class NotYet(NoValue):
    """The value is known when the container starts: the pod has no address before, and its files are not read."""


class DataMissing(EvenkeelError):
    """A ConfigMap or Secret, a key of one, or a key of a file is missing. The container waits for it."""
