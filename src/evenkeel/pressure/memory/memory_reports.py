"""Records the reports of the memory watch: in the pods' records, as events, as decisions in the journal, and in the
plan of cgroups.

A report is acknowledged when it is in the journal. The agent may be killed between the two. So the next agent may get a
report a second time, and records the decision and the eviction in it only once.

The memory watch throttles pods, and releases them (`pressure.memory.mitigation`). Their memory.high is part of the plan
while it lasts, so it is no drift. The throttled paths are written to the journal, so that the next agent can write the
planned values back if neither the watch nor its guard could.
"""

import logging
import time
from collections.abc import Callable, Mapping

from evenkeel.api.pod import Pod
from evenkeel.cgroup.tree import Setting
from evenkeel.journal.records import NORMAL, WARNING
from evenkeel.journal.store import Journal, JournalError
from evenkeel.policy.amounts import bytes_text
from evenkeel.policy.eviction.decide import decide
from evenkeel.policy.eviction.message import readable
from evenkeel.policy.eviction.usage import Resource
from evenkeel.pressure.decision_records import EVICTION_KIND
from evenkeel.pressure.eviction_recorder import EvictionRecorder
from evenkeel.pressure.intents import Intent
from evenkeel.pressure.memory.memory_sink import Evicted, Stages, Timing
from evenkeel.pressure.protocol import Cgroups, Events, PodRecords, Steps
from evenkeel.pressure.watch.messages import (
    BadMessage,
    Message,
    number_of,
    pod_from,
    step_from,
    text_of,
    texts_of,
)

log = logging.getLogger(__name__)

_UNDER_WAY_SECONDS = 60.0
_RECENT = 1000  # decisions among which a repeated one is looked for: more than a watch keeps reports
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


class MemoryReports:
    """For the agent's loop. `heard` gets the number of each report that is in the journal."""

    def __init__(
        self,
        journal: Journal,
        pods: PodRecords,
        events: Events,
        steps: Steps,
        recorder: EvictionRecorder,
        throttle: Throttle,
        heard: Callable[[int], None],
    ) -> None:
        self._journal = journal
        self._pods = pods
        self._events = events
        self._steps = steps
        self._recorder = recorder
        self._throttle = throttle
        self._heard = heard
        self._pod_of: dict[str, Pod] = {}  # by the key of its text
        self._current: set[str] = set()  # keys of the present targets
        self._until: dict[str, float] = {}  # when former keys are forgotten
        # When the steps began that the journal has already; in the order of their records.
        self._recorded: dict[float, None] | None = None

    def follow(self, pods: dict[str, Pod]) -> None:
        """The pods of the present targets, by the keys of their texts. Reports that are under way may still refer to
        former ones."""
        now = time.monotonic()
        for key in self._current.difference(pods):
            self._until[key] = now + _UNDER_WAY_SECONDS
        self._current = set(pods)
        self._know(pods)
        for key in [key for key, until in self._until.items() if until < now]:
            del self._until[key]
            if key not in self._current:
                self._pod_of.pop(key, None)

    def _know(self, pods: dict[str, Pod]) -> None:
        self._pod_of.update(pods)

    def take(self, message: Message) -> None:
        try:
            event = message.get("event")
            if event == "texts":
                self._know({key: pod_from(text) for key, text in texts_of(message).items()})
            elif event == "found":
                self.take_intent(
                    Intent(
                        text_of(message, "uid"),
                        text_of(message, "message"),
                        float(message["at"]),
                        float(message.get("grace_seconds", 0.0)),
                    )
                )
            elif event == "report":
                self._record(message)
        except (BadMessage, KeyError, ValueError, TypeError) as error:
            log.warning("a report of the watch over memory cannot be read: %s", error)

    def take_intent(self, intent: Intent) -> None:
        """An eviction of which only the intent is known."""
        record = self._pods.get(intent.uid)
        # Otherwise it is recorded already, or the intent is older than the pod's return.
        if record is not None and record.state.verdict is None and record.state.accepted_at <= intent.at:
            self._recorder.evict(*intent)
        else:
            self._recorder.taken_up(intent.uid)

    def _record(self, message: Message) -> None:
        number, kind = number_of(message, "number"), text_of(message, "kind")
        try:
            if kind == "stepped":
                self._stepped(message)
            elif kind == "back":
                self._back(text_of(message, "uid"), number_of(message, "bytes"), float(message["seconds"]))
            elif kind == "reclaiming":
                self._reclaiming(number_of(message, "expected"), number_of(message, "short"))
            elif kind == "throttling":
                self._throttle.set({str(uid): int(most) for uid, most in message["most"].items()})
            elif kind == "freezing":
                self._freezing(tuple(map(str, message["uids"])))
            elif kind == "noted":
                self._recorder.noted(text_of(message, "text"))
            self._events.commit()
            if kind == "stepped":
                self._remember(float(message["timing"][0]))
        except JournalError as error:
            log.error("%s", error)  # noqa: TRY400 it is recorded with the next step, or by the next agent
            return
        self._heard(number)

    def _stepped(self, message: Message) -> None:
        stages = message.get("stages")
        began_at, sent_at, is_kernels = message["timing"]
        timing = Timing(
            began_at, sent_at, is_kernels, Stages(*stages[: len(Stages._fields)]) if stages else None
        )
        if self._is_recorded(timing):
            return
        step = step_from(message["step"], self._pod_of)
        evicted = Evicted(*message["evicted"]) if message.get("evicted") is not None else None
        if evicted is not None and (victim := step.decision.victim) is not None:
            uid, grace = victim.pod.metadata.uid, evicted.grace_seconds
            record = self._pods.get(uid)
            if record is not None and record.state.accepted_at <= evicted.at:
                self._recorder.evicting(uid, victim._replace(grace_period_seconds=grace), evicted.at)
        after, _ = decide(step.state, step.snapshot, step.thresholds, step.settings)
        self._recorder.stepped(step, after, timing.plain)

    def _is_recorded(self, timing: Timing) -> bool:
        """Whether the journal has this decision. The watch repeats reports to an agent that has connected anew."""
        if self._recorded is None:
            recent = list(self._journal.decisions(EVICTION_KIND))[-_RECENT:]
            self._recorded = dict.fromkeys(
                one.decision["beganAt"]
                for one in recent
                if isinstance(one.decision, dict) and isinstance(one.decision.get("beganAt"), float)
            )
        return timing.began_at in self._recorded

    def _remember(self, began_at: float) -> None:
        assert self._recorded is not None
        self._recorded[began_at] = None
        if len(self._recorded) > _RECENT:
            del self._recorded[next(iter(self._recorded))]

    def _back(self, uid: str, held_bytes: int, took_seconds: float) -> None:
        record = self._pods.get(uid)
        message = f"{readable(held_bytes, Resource.MEMORY)} came back within {took_seconds * 1000:.0f} ms"
        figures = {"bytes": held_bytes, "seconds": took_seconds}
        pod = record.pod if record is not None else None
        self._events.record(NORMAL, "MemoryBack", message, pod, figures=figures)
        self._steps.want_step()

    def _reclaiming(self, expected_bytes: int, short_bytes: int) -> None:
        expected, short = (readable(amount, Resource.MEMORY) for amount in (expected_bytes, short_bytes))
        message = (
            f"{short} are missing: taking back {expected} of files and caches from pods above their requests"
        )
        figures = {"expectedBytes": expected_bytes, "shortBytes": short_bytes}
        self._events.record(NORMAL, "Reclaiming", message, figures=figures)
        self._steps.want_step()

    def _freezing(self, uids: tuple[str, ...]) -> None:
        for uid in uids:
            record = self._pods.get(uid)
            if record is not None:
                message = (
                    "next to no memory is left: the pod, above its request, stands still until more is back"
                )
                self._events.record(WARNING, "Held", message, record.pod)
        self._steps.want_step()
