"""What probes make of a pod's life: readiness, the end of start-up, and the end of a container that does not answer."""

from evenkeel.agent.parts import Parts
from evenkeel.agent.probes import Probed, Probes
from evenkeel.agent.records import WARNING, HeldPod
from evenkeel.policy.lifecycle import changes
from evenkeel.policy.lifecycle.probe import ProbeKind, ProbeVerdict
from evenkeel.runtime.interface import Attempt


class Probing:
    def __init__(self, parts: Parts) -> None:
        self._holdings = parts.holdings
        self._sync = parts.sync
        self._telling = parts.telling
        self._clock = parts.clock
        self._probes = Probes(parts.runtime.execute, self._told, parts.clock)
        self._watched: dict[str, set[Attempt]] = {}  # by the pod's UID
        parts.sync.on_settled = self._follow

    async def close(self) -> None:
        await self._probes.close()

    def _follow(self, uid: str, held: HeldPod | None) -> None:
        """Probes what runs, and nothing else; `held` is None when the pod is gone."""
        wanted = set()
        for container in held.pod.spec.every_container if held is not None else ():
            if container.startup_probe or container.liveness_probe or container.readiness_probe:
                assert held is not None
                life = held.life.container(container.name)
                if life.started_at is not None and not life.stopping:
                    attempt = Attempt(uid, container.name, life.attempt)
                    wanted.add(attempt)
                    self._probes.watch(attempt, container, life.started_at, is_started=life.is_started)
        for attempt in self._watched.get(uid, set()) - wanted:
            self._probes.unwatch(attempt)
        if wanted:
            self._watched[uid] = wanted
        else:
            self._watched.pop(uid, None)

    def _told(self, probed: Probed) -> None:
        uid, name, _ = probed.attempt
        held = self._sync.held_of(probed.attempt)
        if held is None:
            return
        container = next(each for each in held.pod.spec.every_container if each.name == name)
        if not probed.answer.is_success:
            message = f"{probed.kind} probe of container {name}: {probed.answer.message}"
            self._telling.tell(WARNING, "Unhealthy", message, held.pod, name)
        life, now = held.life, self._clock()
        if probed.has_changed and probed.kind is ProbeKind.READINESS:
            life = changes.with_readiness(life, name, is_ready=probed.verdict is ProbeVerdict.PASSED, now=now)
        elif probed.has_changed and probed.verdict is ProbeVerdict.FAILED:
            stop = changes.probe_stop(held.pod, container, probed.kind, probed.answer.message)
            life = changes.asked_to_stop(life, stop, now)
        elif probed.has_changed and probed.kind is ProbeKind.STARTUP:
            life = changes.started_up(life, container, now)
        self._holdings.put_life(uid, life)
        self._sync.want_step(uid)
