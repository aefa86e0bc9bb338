"""What the agent's loops are given: one value, made once, of which each takes what it needs."""

from collections.abc import Callable
from typing import NamedTuple

from evenkeel.agent.event_recorder import EventRecorder
from evenkeel.agent.node.node_cgroups import NodeCgroups
from evenkeel.agent.node.oom_kills import OomKills
from evenkeel.agent.pod_loop import PodLoop
from evenkeel.agent.pod_store import PodStore
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
    pod_store: PodStore
    cgroups: NodeCgroups
    oom_kills: OomKills
    event_recorder: EventRecorder
    pod_loop: PodLoop
    clock: Callable[[], float]
