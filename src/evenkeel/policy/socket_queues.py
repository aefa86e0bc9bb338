"""A memory limit also holds for what waits in the queues of sockets, where the kernel does not charge it.

If the kernel charged these queues, it would first reclaim the container's file cache, and then kill the container at
its limit. So file cache does not count here. A container above its limit is killed by the agent, in place of the
kernel's OOM killer, and its restart policy decides what follows.
"""

from collections.abc import Sequence

from evenkeel.named_tuples import NamedTuple
from evenkeel.policy.amounts import bytes_text

# A server whose memory is close to its limit has some buffers as well, and the kernel kills no server for them. So
# queues below this size are no reason to end a container.
_USUAL_BYTES = 8 << 20


class HeldMemory(NamedTuple):
    """The memory of one container, or of a whole pod with an empty name."""

    container: str
    charged_bytes: int  # without what the kernel could take back
    queue_bytes: int  # in queues of sockets, charged to no cgroup
    limit_bytes: int | None = None

    @property
    def is_above_limit(self) -> bool:
        both = self.charged_bytes + self.queue_bytes
        return self.limit_bytes is not None and self.queue_bytes > _USUAL_BYTES and both > self.limit_bytes


class AboveLimit(NamedTuple):
    """A container that has to be ended, and whose limit is exceeded: its own, or that of its pod."""

    container: str
    held: HeldMemory

    @property
    def sentence(self) -> str:
        _, charged, queues, limit = self.held
        whose = "its" if self.held.container else "the pod's"
        return (
            f"{bytes_text(queues)} wait in queues of sockets, which the kernel charges to nobody, beside"
            f" {bytes_text(charged)} of memory: together {bytes_text(charged + queues)}, above {whose} memory limit of"
            f" {bytes_text(limit or 0)}"
        )


def above_limit(pod: HeldMemory, containers: Sequence[HeldMemory]) -> AboveLimit | None:
    """The container that has to be ended first; None if all limits hold. Of a pod above its limit it is the container
    with the longest queues."""
    own = [one for one in containers if one.is_above_limit]
    if own:
        worst = max(own, key=lambda one: one.charged_bytes + one.queue_bytes - (one.limit_bytes or 0))
        return AboveLimit(worst.container, worst)
    if not pod.is_above_limit or not containers:
        return None
    return AboveLimit(max(containers, key=lambda one: one.queue_bytes).container, pod)
