"""The agent's view of throttled pods: their memory.high is part of the plan while it lasts, so it is no drift.

The memory watch throttles pods, and releases them (`pressure.memory.mitigation`). The throttled paths are written to
the journal, so that the next agent can write the planned values back if neither the watch nor its guard could.
"""

import logging
from collections.abc import Mapping

from evenkeel.cgroup.tree import Setting
from evenkeel.journal.records import NORMAL, WARNING
from evenkeel.journal.store import Journal, JournalError
from evenkeel.policy.amounts import bytes_text
from evenkeel.pressure.protocol import Cgroups, Events, PodRecords, Steps

log = logging.getLogger(__name__)

SOURCE = "memoryThrottle"
_KEPT = "memoryThrottled"  # key in the journal's values: a list of paths
_HIGH = "memory.high"
_REASON = "held at its present usage while evicted pods free their memory"


class Throttle:
    """For the agent's loop alone."""

    def __init__(
        self,
        journal: Journal,
        cgroups: Cgroups,
        pods: PodRecords,
        events: Events,
        steps: Steps,
    ) -> None:
        self._journal = journal
        self._cgroups = cgroups
        self._pods = pods
        self._events = events
        self._steps = steps
        self._uids: frozenset[str] = frozenset()

    def take_up(self) -> None:
        """Call this before the first pass. Ends the throttling that a former agent left behind."""
        kept = self._journal.value(_KEPT)
        for path in kept if isinstance(kept, list) else ():
            self._cgroups.was_overridden(path, Setting(_HIGH, "", "A15", _REASON))

    def set(self, most_bytes: Mapping[str, int]) -> None:
        """These pods are throttled to the given bytes, by UID. All other pods are no longer throttled."""
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
            self._cgroups.override(SOURCE, wanted)
            if not wanted:
                self._journal.set_value(_KEPT, None)
        except JournalError as error:
            log.error("%s", error)  # noqa: TRY400
        self._steps.want_step()
