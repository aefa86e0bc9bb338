"""The node as the agent reports it (B2): what it has, what pods may request of it, and how it is."""

import os
from collections.abc import Collection

from evenkeel.api.metadata import ObjectMeta
from evenkeel.api.node import Node, NodeCondition, NodeStatus
from evenkeel.policy.allocatable import node_capacity
from evenkeel.policy.eviction.conditions import CPU_PRESSURE, Pressure
from evenkeel.policy.node import NodeView
from evenkeel.runtime.interface import Readiness

_WORDS = {
    Pressure.MEMORY: ("memory is short", "enough memory is available"),
    Pressure.DISK: ("disk space or inodes are short", "enough disk space and inodes are free"),
    Pressure.PID: ("process numbers are short", "enough process numbers are free"),
}
_ANSWERS = Readiness(True, "")
_CPU_WORDS = ("pods receive less cpu than they requested", "pods receive the cpu they requested")


def node_object(node: NodeView, pressures: Collection[str] = (), runtime: Readiness = _ANSWERS) -> Node:
    """`pressures` are the conditions that hold now."""
    words: dict[str, tuple[str, str]] = {str(one): both for one, both in _WORDS.items()}
    if node.config.cpu_kills:
        words[CPU_PRESSURE] = _CPU_WORDS
    conditions = [
        NodeCondition(
            str(pressure),
            "True" if pressure in pressures else "False",
            f"NodeHas{pressure}" if pressure in pressures else f"NodeHasNo{pressure}",
            short if pressure in pressures else enough,
        )
        for pressure, (short, enough) in words.items()
    ]
    status, reason = ("True", "RuntimeAnswers") if runtime.is_ready else ("False", "RuntimeAway")
    conditions.append(NodeCondition("RuntimeReady", status, reason, runtime.message))
    # As kubelet: a node that can start nothing is not ready, though what runs on it runs on.
    message = "the agent is running" if runtime.is_ready else f"nothing can be started: {runtime.message}"
    reason = "AgentReady" if runtime.is_ready else "RuntimeAway"
    conditions.append(NodeCondition("Ready", status, reason, message))
    return Node(
        metadata=ObjectMeta(name=os.uname().nodename),
        status=NodeStatus(
            capacity=node_capacity(node.capacity, node.config),
            allocatable=node.allocatable,
            conditions=tuple(conditions),
        ),
    )
