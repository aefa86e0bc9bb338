"""The node's conditions, from all who watch something of it: for admission, the node's status, and those who wait."""

from collections.abc import Callable, Sequence

from evenkeel.agent.records import NORMAL, WARNING
from evenkeel.agent.sync import Sync
from evenkeel.agent.telling import Telling
from evenkeel.policy.eviction.conditions import Pressure


class NodeConditions:
    """`on_change` is called after each change."""

    def __init__(self, sync: Sync, telling: Telling) -> None:
        self.on_change: Callable[[], None] = lambda: None
        self._sync = sync
        self._telling = telling
        self._of: dict[str, tuple[str, ...]] = {}

    def set(self, source: str, conditions: Sequence[str]) -> None:
        """What `source`, one of those who watch, finds now."""
        self._of[source] = tuple(conditions)
        before = self._sync.pressures
        held = {condition for found in self._of.values() for condition in found}
        now = tuple(str(one) for one in Pressure if one in held)
        now += tuple(sorted(held.difference(Pressure)))
        if now == before:
            return
        self._sync.pressures = now
        for condition in now:
            if condition not in before:
                self._telling.tell(WARNING, f"NodeHas{condition}", f"the node is under {condition}")
        for condition in before:
            if condition not in now:
                self._telling.tell(NORMAL, f"NodeHasNo{condition}", f"{condition} is over")
        self._sync.room_appeared()
        self.on_change()
