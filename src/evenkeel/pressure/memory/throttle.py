"""Throttles pods above their requests for a while (A15; cgroup v2): sets `memory.high` to their current usage.

The kernel slows down a pod that exceeds its memory.high. The setting is part of the plan while it lasts, so it does not
count as drift. If the agent is killed, its guard writes the planned value back. The throttled paths are written
to the journal first, so the next agent can do it if the guard could not.
"""

import logging
from collections.abc import Collection, Mapping

from evenkeel.cgroup.kernel_files import default_value
from evenkeel.cgroup.tree import Setting
from evenkeel.journal.records import NORMAL, WARNING
from evenkeel.journal.store import Journal, JournalError
from evenkeel.policy.amounts import bytes_text
from evenkeel.pressure.guard_client import GuardClient
from evenkeel.pressure.protocol import Cgroups, Events, PodRecords, Steps

log = logging.getLogger(__name__)

SOURCE = "memoryThrottle"
_KEPT = "memoryThrottled"  # key in the journal's values: a list of paths
_HIGH = "memory.high"
_REASON = "held at what it uses: others are leaving for want of memory"


class Throttle:
    """For the agent's loop alone."""

    def __init__(
        self,
        guard: GuardClient,
        journal: Journal,
        cgroups: Cgroups,
        pods: PodRecords,
        events: Events,
        steps: Steps,
    ) -> None:
        self._guard = guard
        self._journal = journal
        self._cgroups = cgroups
        self._pods = pods
        self._events = events
        self._steps = steps
        self._guarded: frozenset[str] = frozenset()  # files that the guard restores
        self._uids: frozenset[str] = frozenset()

    def take_up(self) -> None:
        """Call this before the first pass. Ends the throttling that a former agent left behind."""
        kept = self._journal.value(_KEPT)
        for path in kept if isinstance(kept, list) else ():
            self._cgroups.was_overridden(path, Setting(_HIGH, "", "A15", _REASON))

    def set(self, most_bytes: Mapping[str, int]) -> None:
        """Throttles these pods to the given bytes, by UID. All other pods are no longer throttled."""
        if not most_bytes and not self._uids:
            return
        wanted = {}
        for uid, most in most_bytes.items():
            record = self._pods.get(uid)
            cgroup = self._cgroups.of_container(record.pod.key, "") if record is not None else None
            if record is None or cgroup is None:
                continue  # the pod is gone
            wanted[cgroup.path] = (Setting(_HIGH, str(most), "A15", _REASON),)
            if uid not in self._uids:
                message = f"memory is short: the pod, above its request, gets no more than {bytes_text(most)} for now"
                self._events.record(
                    WARNING, "Throttled", message, record.pod, figures={"memoryHighBytes": most}
                )
        for uid in self._uids.difference(most_bytes):
            record = self._pods.get(uid)
            if record is not None:
                self._events.record(
                    NORMAL, "ThrottleOver", "the pod may use more memory again: enough is back", record.pod
                )
        self._uids = frozenset(most_bytes)
        try:
            if wanted:
                self._journal.set_value(_KEPT, list(wanted))
            guarded = self._lets_go(wanted)
            self._guard.hold(guarded)
            self._cgroups.override(SOURCE, wanted)
            self._guard.free(self._guarded.difference(guarded))
            self._guarded = frozenset(guarded)
            if not wanted:
                self._journal.set_value(_KEPT, None)
        except JournalError as error:
            log.error("%s", error)  # noqa: TRY400
        self._steps.want_step()

    def _lets_go(self, paths: Collection[str]) -> Mapping[str, str]:
        """By file: the value to restore when the throttling of these cgroups is over."""
        tree = self._cgroups.planned
        if tree is None or not paths:
            return {}
        default = default_value(_HIGH, tree.version) or ""
        planned = {one.path: one.value(_HIGH) or default for one in tree.cgroups if one.path in paths}
        places = {path: self._cgroups.driver.files(path).get("memory") for path in planned}
        return {f"{place}/{_HIGH}": planned[path] for path, place in places.items() if place is not None}
