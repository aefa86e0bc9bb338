"""What of the configuration a pod's life hangs on."""

from typing import NamedTuple

from evenkeel.api.config import KubeletConfiguration, defaulted
from evenkeel.api.profile import Profile


class LifeSettings(NamedTuple):
    """The second restart waits `first_backoff_seconds`, each one after it twice as long up to the greatest; a container
    that ran for `backoff_reset_seconds` begins anew."""

    profile: Profile = Profile.DOCUMENTS
    first_backoff_seconds: float = 10.0
    greatest_backoff_seconds: float = 300.0
    backoff_reset_seconds: float = 600.0
    least_sidecar_grace_seconds: float = 2.0  # of one whose turn comes when the pod's grace is used up
    oom_retries: int = 3  # A17
    oom_retries_reset_seconds: float = 600.0


def settings_of(config: KubeletConfiguration) -> LifeSettings:
    full = defaulted(config)
    unset = LifeSettings()
    greatest = full.crash_loop_back_off.max_container_restart_period
    greatest_seconds = unset.greatest_backoff_seconds if greatest is None else greatest.seconds
    return unset._replace(
        profile=full.rulebook,
        first_backoff_seconds=min(unset.first_backoff_seconds, greatest_seconds),
        greatest_backoff_seconds=greatest_seconds,
        oom_retries=full.oom_retries,
        oom_retries_reset_seconds=full.oom_retries_reset.seconds,
    )
