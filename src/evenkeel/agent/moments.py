"""The pods that have cgroups, each as it is at this moment, in order of admission."""

from evenkeel.policy.provision import PodMoment


class Moments:
    def __init__(self) -> None:
        self._moments: dict[str, tuple[int, PodMoment]] = {}
        self._ordered: tuple[PodMoment, ...] | None = ()  # None: to be put in order again

    def put(self, uid: str, order: int, moment: PodMoment) -> None:
        if self._moments.get(uid) != (order, moment):
            self._moments[uid] = (order, moment)
            self._ordered = None

    def drop(self, uid: str) -> bool:
        """Whether it was there."""
        if self._moments.pop(uid, None) is None:
            return False
        self._ordered = None
        return True

    def ordered(self) -> tuple[PodMoment, ...]:
        """The same object as before while nothing has changed: it is asked for at every step."""
        if self._ordered is None:
            pods = sorted(self._moments.values(), key=lambda one: one[0])
            self._ordered = tuple(moment for _, moment in pods)
        return self._ordered
