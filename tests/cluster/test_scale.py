"""A larger deployment under everything at once: rolled and scaled while a node is lost and an agent is killed."""

import contextlib
import os
import random
import threading
import time
from collections.abc import Iterator

from tests.cluster.held import Held
from tests.cluster.nodes import MakeNode, Node
from tests.cluster.workspaces import IMPATIENT, Workspace, deployment, is_ready
from tests.kernel.waiting import eventually

KILLS = int(os.environ.get("EVENKEEL_KILLS", "8"))
SEED = int(os.environ.get("EVENKEEL_SEED", "1"))
REPLICAS = 30
# A node counts as lost after 40 s, and its pods start elsewhere one roll of the deployment after the other.
SETTLED_SECONDS = 300.0


@contextlib.contextmanager
def killed_again_and_again(node: Node, times: int, chosen: random.Random) -> Iterator[threading.Thread]:
    """Its agent is killed that often, at moments of no choice, and started each time. The end waits for that."""
    errors: list[BaseException] = []

    def kill() -> None:
        try:
            for _ in range(times):
                time.sleep(chosen.uniform(0.0, 2.0))  # the moment of death is part of the story
                node.agent.kill()
                node.agent.start()
        except BaseException as error:  # noqa: BLE001 - raised again where it was asked for
            errors.append(error)

    killing = threading.Thread(target=kill, name=f"kills {node.name}")
    killing.start()
    try:
        yield killing
    finally:
        killing.join()
        if errors:
            raise errors[0]


def test_thirty_pods_outlive_a_lost_node_and_an_agent_that_is_killed(
    workspace: Workspace, nodes: list[Node], make_node: MakeNode, held: Held
):
    print(f"scale with seed {SEED}, {KILLS} kills")
    chosen = random.Random(SEED)
    names = [node.name for node in nodes]
    with make_node("node5") as third:
        third.start()
        workspace.until_schedulable(*names, third.name)
        workspace.apply(deployment("web", replicas=REPLICAS, tolerations=IMPATIENT, **held.spec))
        workspace.until_rolled_out("web", timeout_seconds=SETTLED_SECONDS)
        assert all(workspace.uids_on(name) for name in (*names, third.name))

        with killed_again_and_again(nodes[0], KILLS, random.Random(SEED)) as killing:
            lost = workspace.uids_on(third.name)
            third.lose_power()
            assert not lost & held.living()
            while killing.is_alive():
                workspace.kubectl("scale", "deployment/web", f"--replicas={chosen.randint(10, REPLICAS)}")
                if chosen.random() < 0.5:
                    workspace.kubectl("rollout", "restart", "deployment/web")
                killing.join(chosen.uniform(0.0, 8.0))
        workspace.kubectl("scale", "deployment/web", f"--replicas={REPLICAS}")
        third.await_unreachable()
        eventually(lambda: len(workspace.ready_on(*names)) == REPLICAS, within_seconds=SETTLED_SECONDS)
        workspace.until_rolled_out("web", timeout_seconds=SETTLED_SECONDS)

        # Pods of the lost node stay terminating until a node reports their end. The node does so when it is back.
        third.start()
        eventually(lambda: len(workspace.pods()) == REPLICAS, within_seconds=SETTLED_SECONDS)
        assert not workspace.uids_on(third.name)
        for one in workspace.pods():
            assert is_ready(one), one["status"]
            assert one["status"]["containerStatuses"][0]["restartCount"] == 0, one["status"]
        for name in names:
            node = nodes[names.index(name)]
            eventually(lambda: node.pods() == workspace.uids_on(name))  # noqa: B023 - asked at once
        assert held.living() == {one["metadata"]["uid"] for one in workspace.pods()}
        held.check()

        workspace.kubectl("delete", "deployment", "web", "--wait=false")
        workspace.until_gone()
        eventually(lambda: not third.pods() | nodes[0].pods() | nodes[1].pods())
        assert not held.living()
        held.check()
