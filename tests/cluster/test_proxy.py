"""Nodes behind a proxy that cuts, delays, refuses and forgets: every request is still carried out once."""

import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from tests.cluster.control_plane import ControlPlane
from tests.cluster.held import Held
from tests.cluster.nodes import MakeNode, Node
from tests.cluster.rough_proxy import PORT, RoughProxy
from tests.cluster.workspaces import Workspace, is_ready, pod
from tests.kernel.waiting import eventually

ROUNDS = int(os.environ.get("EVENKEEL_ROUGH_ROUNDS", "24"))
SEED = int(os.environ.get("EVENKEEL_SEED", "1"))
NODES = 4  # each has its own proxy and its own rounds: they mostly wait
MOST_PODS = 8
RESTARTED = 4  # with every so many rounds of all nodes, the API server is restarted for real
SETTLED_SECONDS = 180.0  # a watch that failed often is tried again after half a minute
SIZES = ("32Mi", "40Mi", "48Mi")


class Story:
    """The pods and changes of one node, and their expected state after each round."""

    def __init__(self, workspace: Workspace, node: Node, proxy: RoughProxy, held: Held, seed: int) -> None:
        self.node = node
        self.proxy = proxy
        self._workspace = workspace
        self._held = held
        self._seed = seed
        self._round = 0
        self._services: dict[str, str] = {}  # their memory limits by their names
        self._jobs: dict[str, int] = {}  # their exit codes

    def act(self) -> None:
        """One round, while the proxy misbehaves."""
        self._round += 1
        chosen = random.Random(f"{self._seed} {self._round}")
        self.proxy.is_rough = True
        acts = [self._add, self._delete, self._resize, self._kill, self._outage]
        for act in chosen.sample(acts, 3):
            act(chosen)
            time.sleep(chosen.uniform(0.0, 1.5))  # when it happens is part of the story

    def _add(self, chosen: random.Random) -> None:
        made = []
        for number in range(chosen.randint(1, MOST_PODS - min(len(self._services), MOST_PODS - 1))):
            name = f"{self.node.name}-{self._round}-{number}"
            if chosen.random() < 0.5:
                self._services[name] = SIZES[0]
                spec = self._held.spec
            else:
                self._jobs[name] = chosen.choice((0, 7))
                spec = {**self._held.ending(self._jobs[name]), "restartPolicy": "Never"}
            made.append(pod(name, nodeName=self.node.name, **spec))
        self._workspace.apply(*made)

    def _delete(self, chosen: random.Random) -> None:
        names = sorted([*self._services, *self._jobs])
        if gone := chosen.sample(names, min(len(names), chosen.randint(1, 6))):
            self._workspace.kubectl("delete", "pods", *gone, "--wait=false")
        for name in gone:
            self._services.pop(name, None)
            self._jobs.pop(name, None)

    def _resize(self, chosen: random.Random) -> None:
        if not self._services:
            return
        name = chosen.choice(sorted(self._services))
        self._services[name] = size = chosen.choice(SIZES[1:])
        wanted = (
            f'{{"spec":{{"containers":[{{"name":"main","resources":{{"limits":{{"memory":"{size}"}}}}}}]}}}}'
        )
        self._workspace.kubectl("patch", "pod", name, "--subresource=resize", "--patch", wanted)

    def _kill(self, _chosen: random.Random) -> None:
        self.node.agent.kill()
        self.node.agent.start()

    def _outage(self, chosen: random.Random) -> None:
        self.proxy.is_away = True
        self.proxy.cut_all()
        time.sleep(chosen.uniform(0.0, 2.0))
        self.proxy.is_away = False

    def settle(self) -> None:
        """The proxy works again, and all pods reach their expected state."""
        self.proxy.is_rough = False
        last: list[str] = []

        def is_settled() -> bool:
            last[:] = self._unsettled()
            return not last

        try:
            eventually(is_settled, within_seconds=SETTLED_SECONDS)
        except AssertionError:
            log = self.node.agent.log.read_text()[-3000:]
            reported = f"round {self._round} of seed {self._seed} on {self.node.name}: {last}\n{log}"
            raise AssertionError(reported) from None
        self._held.check()

    def _unsettled(self) -> list[str]:
        there = {one["metadata"]["name"]: one for one in self._workspace.pods_on(self.node.name)}
        wrong = [f"{name} is left" for name in there.keys() - self._services.keys() - self._jobs.keys()]
        wrong += [
            f"{name} is not there" for name in (self._services.keys() | self._jobs.keys()) - there.keys()
        ]
        for name, one in there.items():
            if name in self._services:
                wrong += self._service_problems(name, one)
            elif name in self._jobs:
                wrong += self._job_problems(name, one)
        living = {there[name]["metadata"]["uid"] for name in self._services if name in there}
        if self.node.pods() != living:
            wrong.append(f"cgroups are those of {self.node.pods()} and not of {living}")
        return wrong

    def _service_problems(self, name: str, one: dict[str, Any]) -> Iterator[str]:
        if not is_ready(one):
            yield f"{name} is not ready: {one['status']}"
            return
        (status,) = one["status"]["containerStatuses"]
        if status["restartCount"]:
            yield f"{name} was restarted: {status}"
        if status["resources"]["limits"]["memory"] != self._services[name]:
            yield f"{name} has not the limit {self._services[name]}: {status['resources']}"

    def _job_problems(self, name: str, one: dict[str, Any]) -> Iterator[str]:
        code = self._jobs[name]
        if one["status"].get("phase") != ("Failed" if code else "Succeeded"):
            yield f"{name} has not ended: {one['status']}"
            return
        (status,) = one["status"]["containerStatuses"]
        if status["state"]["terminated"].get("exitCode") != code:
            yield f"{name} did not end with {code}: {status}"
        if (runs := self._held.runs(one["metadata"]["uid"])) != 1:
            yield f"{name} ran {runs} times"


@contextmanager
def behind_proxy(
    plane: ControlPlane, make_node: MakeNode, name: str, directory: Path, seed: int
) -> Iterator[tuple[Node, RoughProxy]]:
    certificate = plane.authority.client(f"behind-{name}", f"system:node:{name}", "system:nodes")
    kubeconfig = plane.authority.kubeconfig(
        directory / f"{name}.kubeconfig", f"https://127.0.0.1:{PORT}", client=certificate
    )
    with ExitStack() as after:  # the agent ends before the proxy
        node = after.enter_context(make_node(name, kubeconfig=lambda _place, _state: kubeconfig))
        proxy = RoughProxy(plane, name, node.place.network, seed)
        outer = after.pop_all()
    with closing(proxy), outer:
        try:
            node.start()
            yield node, proxy
        finally:
            proxy.is_rough = proxy.is_away = False


def test_whatever_the_road_does_nothing_is_lost_and_nothing_is_done_twice(
    plane: ControlPlane, workspace: Workspace, make_node: MakeNode, held: Held, tmp_path: Path
):
    print(f"rough road with seed {SEED}, {ROUNDS} rounds")
    with ExitStack() as opened:
        stories = []
        for number in range(NODES):
            made = behind_proxy(plane, make_node, f"rough{number}", tmp_path, SEED + number)
            node, proxy = opened.enter_context(made)
            stories.append(Story(workspace, node, proxy, held, SEED + number))
        pool = opened.enter_context(ThreadPoolExecutor(NODES))
        for turn in range(-(-ROUNDS // NODES)):
            list(pool.map(Story.act, stories))
            if turn % RESTARTED == 0:
                plane.api_server.kill()
                plane.start_api_server()
            list(pool.map(Story.settle, stories))
        seen = sum((story.proxy.seen for story in stories), Counter())
        print(f"requests of the nodes: {dict(seen.most_common())}")
        assert len(seen) > 1, "nothing went wrong"
        workspace.kubectl("delete", "pods", "--all", "--wait=false")
        workspace.until_gone()
        for story in stories:
            eventually(lambda: not story.node.pods())  # noqa: B023 - asked at once
        assert not held.living()
        held.check()
