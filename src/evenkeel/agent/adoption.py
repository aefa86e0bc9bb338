"""After a restart: what became of the containers while no agent was there.

Whatever was asked for is known to the journal; what became of it is known to the runtime. An attempt that the runtime
has never heard of was asked for and not begun, and is begun now; one that was running and that the runtime knows
nothing of has ended unseen.
"""

import time
from collections.abc import Iterator, Mapping

from evenkeel.api.pod import Pod
from evenkeel.journal.records import PodRecord
from evenkeel.policy.lifecycle.pod_state import ContainerRecord, PodState
from evenkeel.runtime.interface import UNKNOWN_EXIT, Attempt, Exit, Record


def unseen_ends(held: PodRecord, records: Mapping[Attempt, Record]) -> Iterator[tuple[Attempt, Exit]]:
    """How those attempts of the pod ended that the journal has running."""
    for name, life in held.life.containers.items():
        if not life.is_running:
            continue
        attempt = Attempt(held.pod.metadata.uid, name, life.attempt)
        record = records.get(attempt)
        if record is None:
            started_at = life.started_at or 0.0
            yield attempt, Exit(UNKNOWN_EXIT, 0, started_at, time.time(), is_known=False)
        elif record.exit is not None:
            yield attempt, record.exit


def begun(held: PodRecord, records: Mapping[Attempt, Record]) -> Iterator[Record]:
    """Attempts that were asked for, and have begun without our having heard of it."""
    for name, life in held.life.containers.items():
        record = records.get(Attempt(held.pod.metadata.uid, name, life.attempt))
        if life.is_asked_for and record is not None:
            yield record


def life_from(pod: Pod, records: Mapping[Attempt, Record]) -> PodState | None:
    """For a pod that the journal does not have (it was lost) and of which containers run: the life they show."""
    latest: dict[str, Record] = {}
    names = {container.name for container in pod.spec.every_container}
    for attempt, record in records.items():
        known = latest.get(attempt.container)
        is_ours = attempt.uid == pod.metadata.uid and attempt.container in names
        if is_ours and (known is None or known.attempt.number < attempt.number):
            latest[attempt.container] = record
    if not any(record.exit is None for record in latest.values()):
        return None
    life = PodState(accepted_at=min(record.started_at for record in latest.values()))
    for name, record in latest.items():
        # As if just asked for: what became of it is then found as for any other.
        life = life.with_container(name, ContainerRecord(attempt=record.attempt.number, is_asked_for=True))
    return life


def strays(uids: set[str], records: Mapping[Attempt, Record]) -> Iterator[Record]:
    """What runs and belongs to no pod that is held."""
    return (record for record in records.values() if record.attempt.uid not in uids and record.exit is None)
