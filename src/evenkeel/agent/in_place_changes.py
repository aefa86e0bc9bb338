"""Changes of a running pod that need no new pod: its requests and limits, and the images of a cluster's pod.

If the node has no room for a resize, the resize is deferred: the pod keeps its size, and it is resized when room
appears. A resize is also deferred if its memory limit is below the memory that the pod uses now: the kernel would
answer it with an OOM kill.
"""

import asyncio
from collections.abc import Callable, Sequence

from evenkeel.agent.admission import Admission, Deferred, DeferredResizes
from evenkeel.agent.event_recorder import EventRecorder
from evenkeel.agent.node.node_cgroups import NodeCgroups
from evenkeel.agent.pod_store import PodStore
from evenkeel.agent.step_requests import StepRequests
from evenkeel.api.config import Profile
from evenkeel.api.container import Container
from evenkeel.api.pod import Pod, PodStatus
from evenkeel.journal.records import CLUSTER, NORMAL, WARNING, PodRecord
from evenkeel.policy.lifecycle import changes, stops
from evenkeel.policy.lifecycle.actions import Stop
from evenkeel.policy.lifecycle.pod_state import AS_RESTART, PodState
from evenkeel.policy.lifecycle.resize import Change, in_force, resize, restarts_for
from evenkeel.policy.lifecycle.restarts import grace_seconds
from evenkeel.pressure.protocol import PodObserver

_TOO_LOW_RETRY_SECONDS = 5.0  # no event says that a pod holds less


class InPlaceChanges(PodObserver):
    def __init__(
        self,
        profile: Profile,
        cgroups: NodeCgroups,
        pod_store: PodStore,
        admission: Admission,
        deferred: DeferredResizes,
        event_recorder: EventRecorder,
        steps: StepRequests,
        clock: Callable[[], float],
    ) -> None:
        self._profile = profile
        self._cgroups = cgroups
        self._pod_store = pod_store
        self._admission = admission
        self._deferred = deferred
        self._event_recorder = event_recorder
        self._steps = steps
        self._clock = clock
        self._retry: asyncio.TimerHandle | None = None

    def update(self, record: PodRecord, pod: Pod) -> None:
        """Brings a cluster's pod to its present specification. Its API server allows only changes that need no new
        pod: amounts, images, labels and a few numbers."""
        since = record.pod.metadata.creation_timestamp
        pod = pod._replace(metadata=pod.metadata._replace(creation_timestamp=since), status=PodStatus())
        if pod == record.pod:
            self.keep_size(record.uid)
            return
        if not record.is_admitted:  # no container of it runs: admission judges it in its new form
            self._pod_store.put(record._replace(pod=pod))
            self._steps.want_step(record.uid)
            self._steps.room_appeared()
            return
        record = self._with_other_images(record, _with_amounts_of(record.pod, pod))
        self._pod_store.put(record)
        if record.takes_room and pod != record.pod:
            self.resize(record, pod)
        else:
            self.keep_size(record.uid)
        self._steps.want_step(record.uid)

    def resize(self, record: PodRecord, pod: Pod) -> None:
        """Changes the requests and limits of a running pod, or defers that. The next step updates its cgroups. Some of
        its containers may have to restart."""
        uid = record.pod.metadata.uid
        refusal = self._admission.refusal_of_resize(record, pod, self._pod_store)
        if refusal is not None:
            if self._deferred.defer(uid, Deferred(pod)):
                self._event_recorder.record(WARNING, "ResizeDeferred", refusal.message, record.pod)
            return
        state = self._resized(record.state, pod, restarts_for(record.pod, pod, self._profile))
        if too_low := self._cgroups.too_low(in_force(pod, state)):
            if self._deferred.defer(uid, Deferred(pod, too_low)):
                self._event_recorder.record(WARNING, "ResizeError", too_low, record.pod)
            self._try_again()
            return
        self.keep_size(uid)
        self._pod_store.put(record._replace(pod=pod, state=state))
        if state != record.state:
            self._event_recorder.record(NORMAL, "Resized", "requests and limits have changed", pod)

    def _resized(self, state: PodState, pod: Pod, restart: Sequence[str]) -> PodState:
        """The state with other amounts of the running containers. Those of `restart` are asked to stop."""
        for container in pod.spec.sized_containers:
            one = state.container(container.name)
            if one.is_running and container.name in restart:
                # Its status and its cgroup get the new amounts when it has ended.
                stop = Stop(container.name, "its amounts have changed", grace_seconds(pod), AS_RESTART)
                self._event_recorder.stopping(pod, state, stop)
                state = stops.asked_to_stop(state, stop, self._clock())
            elif one.is_running:
                state = state.with_container(container.name, one._replace(resources=container.resources))
        return state

    def _try_again(self) -> None:
        if self._retry is None:
            loop = asyncio.get_running_loop()
            self._retry = loop.call_later(_TOO_LOW_RETRY_SECONDS, self._retry_now)

    def _retry_now(self) -> None:
        self._retry = None
        self._steps.room_appeared()

    def keep_size(self, uid: str) -> None:
        """The pod is desired in its present size again: a deferred resize is dropped."""
        if self._deferred.drop(uid):
            self._pod_store.touch(uid)

    def room(self) -> None:
        """Tries the deferred resizes again, because room may have appeared."""
        for uid, pod in self._deferred:
            record = self._pod_store.get(uid)
            if record is None or not record.takes_room or not self._is_in_place(record, pod):
                self.keep_size(uid)
            else:
                self.resize(record, pod)
                self._steps.want_step(uid)

    def _is_in_place(self, record: PodRecord, pod: Pod) -> bool:
        """Whether the change needs no new pod. A cluster's API server has already checked that."""
        return record.source == CLUSTER or resize(record.pod, pod, self._profile).kind == Change.IN_PLACE

    def _with_other_images(self, record: PodRecord, pod: Pod) -> PodRecord:
        """The record with `pod`. A container that runs another image is stopped, and starts again with the new one. A
        container that waits for its back-off is tried at once."""
        state = record.state
        for old, new in zip(record.pod.spec.sized_containers, pod.spec.sized_containers, strict=True):
            if old.image != new.image:
                state = changes.other_image(state, new.name)
                stop = stops.image_stop(pod, new)
                self._event_recorder.stopping(pod, state, stop)
                state = stops.asked_to_stop(state, stop, self._clock())  # if it runs
        return record._replace(pod=pod, state=state)


def _with_amounts_of(before: Pod, after: Pod) -> Pod:
    """`after` with the requests and limits of `before`."""

    def kept(old: Sequence[Container], new: Sequence[Container]) -> tuple[Container, ...]:
        amounts = {each.name: each.resources for each in old}
        return tuple(each._replace(resources=amounts.get(each.name, each.resources)) for each in new)

    return after._replace(
        spec=after.spec._replace(
            containers=kept(before.spec.containers, after.spec.containers),
            init_containers=kept(before.spec.init_containers, after.spec.init_containers),
            resources=before.spec.resources,
        )
    )
