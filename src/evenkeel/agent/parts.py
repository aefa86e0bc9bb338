"""What the agent's loops are given: one value, made once, of which each takes what it needs."""

from collections.abc import Callable
from typing import NamedTuple

from evenkeel.agent.event_recorder import Telling
from evenkeel.agent.node.node_cgroups import Cgroups
from evenkeel.agent.pod_loop import Sync
from evenkeel.agent.pod_store import Holdings
from evenkeel.cgroup.driver import Driver
from evenkeel.journal.store import Journal
from evenkeel.policy.node_view import NodeView
from evenkeel.pressure.intents import Intents
from evenkeel.runtime.interface import Runtime


class Parts(NamedTuple):
    node: NodeView
    runtime: Runtime
    make_driver: Callable[[], Driver]  # one a thread: a driver keeps descriptors open
    journal: Journal
    intents: Intents
    holdings: Holdings
    cgroups: Cgroups
    telling: Telling
    sync: Sync
    clock: Callable[[], float]
