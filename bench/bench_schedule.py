"""10,000 pods on 5,000 nodes, from requests to placement, beside the plain loop over nodes. In time of one core.

The loop is the reference for the choices too: it must have sent the same pods to the same nodes, with the same
scores, or there is no figure. It takes hundredths of a second for a pod, so that it places the first ones only.
"""

import random
from collections.abc import Iterator
from itertools import islice
from time import process_time

from bench.figure import Figure, against, value_at_least
from evenkeel.api.config import Profile
from evenkeel.api.container import Container
from evenkeel.api.node import Node, NodeStatus
from evenkeel.api.pod import ObjectMeta, Pod, PodSpec
from evenkeel.api.resources import ResourceRequirements
from evenkeel.quantity import Quantity
from evenkeel.simulate.array_cluster import ArrayCluster
from evenkeel.simulate.plain_cluster import Cluster, Placement, Scoring, node_infos, schedule

NODES = 5_000
PODS = 10_000
SHAPES = 300
COMPARED = 300
ROUNDS = 3
TARGET = 10_000

SIZES = (("8", "32Gi"), ("16", "64Gi"), ("32", "128Gi"), ("64", "256Gi"))


def figures() -> Iterator[Figure]:
    nodes = some_nodes(random.Random(1))
    for name, shapes, target in (
        (f"pods of {SHAPES} shapes scheduled on {NODES:,} nodes", SHAPES, value_at_least(TARGET)),
        (f"pods scheduled on {NODES:,} nodes, every pod of another shape", PODS, None),
    ):
        pods = some_pods(random.Random(2), shapes)
        loop_rate, loop_placements = placed(Cluster, nodes, pods[:COMPARED])
        rates = []
        for _ in range(ROUNDS):
            rate, placements = placed(ArrayCluster, nodes, pods)
            rates.append(rate)
            if placements[:COMPARED] != loop_placements:
                raise AssertionError("the arrays chose other nodes than the loop")
        yield against(name, rates, [loop_rate], "pods/s", target)


def placed(kind: type[Cluster], nodes: list[Node], pods: list[Pod]) -> tuple[float, list[Placement]]:
    """Pods per second, and where they went."""
    cluster = kind(node_infos(nodes, (), Profile.DOCUMENTS), Scoring())
    start = process_time()
    placements = list(schedule(cluster, pods, Profile.DOCUMENTS))
    seconds = process_time() - start
    if not all(placement.node for placement in placements):
        raise AssertionError("a pod found no node: the cluster is too small for a fair figure")
    return len(pods) / seconds, placements


def some_nodes(choose: random.Random) -> list[Node]:
    nodes = []
    for number in range(NODES):
        cpu, memory = choose.choice(SIZES)
        amounts = {"cpu": cpu, "memory": memory, "ephemeral-storage": "200Gi", "pods": "110"}
        if number % 20 == 0:
            amounts["example.com/gpu"] = "4"
        nodes.append(
            Node(ObjectMeta(name=f"node-{number}"), status=NodeStatus(allocatable=quantities(amounts)))
        )
    return nodes


def some_pods(choose: random.Random, shapes: int) -> list[Pod]:
    """Pods of so many shapes, in no order, so that the next pod is hardly ever like the last one."""
    cpu = choose.sample(range(10, 10 + max(shapes, 4000)), shapes)
    requests = [{"cpu": f"{amount}m", "memory": f"{choose.randrange(64, 8192)}Mi"} for amount in cpu]
    kinds = islice(shuffled(choose, requests), PODS)
    return [a_pod(number, quantities(kind)) for number, kind in enumerate(kinds)]


def shuffled(choose: random.Random, requests: list[dict[str, str]]) -> Iterator[dict[str, str]]:
    while True:
        choose.shuffle(requests)
        yield from requests


def a_pod(number: int, requests: dict[str, Quantity]) -> Pod:
    container = Container("main", resources=ResourceRequirements(requests))
    return Pod(ObjectMeta(name=f"pod-{number}"), PodSpec((container,)))


def quantities(amounts: dict[str, str]) -> dict[str, Quantity]:
    return {name: Quantity.parse(text) for name, text in amounts.items()}
