"""The shutdown of a node: in which order its pods end, and how long each may take (shutdownGracePeriod).

Ordinary pods end first. Critical pods have the last part of the time for themselves: others may need them until then.
"""

from evenkeel.api.config import KubeletConfiguration, Profile
from evenkeel.api.pod import Pod
from evenkeel.named_tuples import NamedTuple
from evenkeel.policy.lifecycle.restarts import grace_seconds
from evenkeel.policy.qos import is_critical


class ShutdownPhase(NamedTuple):
    """A part of the shutdown. Pods that are in it end within `seconds`; None: each within its own grace period."""

    profile: Profile
    takes_ordinary: bool
    takes_critical: bool
    seconds: float | None = None

    def grace(self, pod: Pod) -> float | None:
        """The grace period of the pod; None if it is not in this part. No pod has more than its own grace period."""
        if not (self.takes_critical if is_critical(pod, self.profile) else self.takes_ordinary):
            return None
        own = grace_seconds(pod)
        return own if self.seconds is None else min(own, self.seconds)


def shutdown_phases(config: KubeletConfiguration) -> tuple[ShutdownPhase, ...]:
    """The parts of a shutdown, in their order."""
    profile = config.rulebook
    whole, critical = config.shutdown_grace_period, config.shutdown_grace_period_critical_pods
    if not whole:
        return (ShutdownPhase(profile, takes_ordinary=True, takes_critical=True),)
    return (
        ShutdownPhase(
            profile, takes_ordinary=True, takes_critical=False, seconds=whole.seconds - critical.seconds
        ),
        ShutdownPhase(profile, takes_ordinary=False, takes_critical=True, seconds=critical.seconds),
    )
