"""What the agent's loops are given: one value, made once, of which each takes what it needs."""

from collections.abc import Callable
from typing import NamedTuple

from evenkeel.agent.cgroups import Cgroups
from evenkeel.agent.holdings import Holdings
from evenkeel.agent.journal import Journal
from evenkeel.agent.pressure.intents import Intents
from evenkeel.agent.sync import Sync
from evenkeel.agent.telling import Telling
from evenkeel.cgroup.driver import Driver
from evenkeel.policy.node import NodeView
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
