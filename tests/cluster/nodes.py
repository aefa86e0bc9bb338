"""Machines of a cluster, all on this host: each an agent in a network namespace, directory and cgroup of its own."""

import contextlib
import os
import re
import secrets
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from tests.cluster.control_plane import ControlPlane, Place
from tests.kernel.agents import Up
from tests.kernel.cgroup_roots import bounded_root, is_systemd_in_charge
from tests.kernel.live_tree import cgroups_below
from tests.kernel.waiting import eventually
from tests.machines.containerd import Containerd
from tests.machines.packages import NETWORKS, require, require_containerd

READY_SECONDS = 120.0
SIZE = "768Mi,2cpu"
_POD_CGROUP = re.compile(r"pod([0-9a-f]{8}-[0-9a-f-]{27})")
MakeNode = Callable[..., AbstractContextManager["Node"]]


class Node:
    """`agent` is started and killed as in other tests (tests/kernel/agents.py)."""

    def __init__(self, plane: ControlPlane, place: Place, agent: Up) -> None:
        self.name = place.name
        self.place = place
        self.agent = agent
        self._plane = plane

    def start(self) -> None:
        """Starts the agent. Returns when the API server calls the node ready, and the scheduler may give it pods."""
        self.agent.start()
        self.await_ready()

    def await_ready(self) -> None:
        """The controllers take the taints away after they have seen the condition, and until then no pod comes."""
        self._await("True", is_tainted=False)

    def await_unreachable(self) -> None:
        self._await("Unknown", is_tainted=True)

    def await_serving(self) -> None:
        """The API server reaches the node's own server. After a restart the node counts as ready all the time."""
        raw = f"/api/v1/nodes/{self.name}/proxy/healthz"
        eventually(
            lambda: self._plane.try_kubectl("get", "--raw", raw).stdout == "ok",
            within_seconds=READY_SECONDS,
            details=self.agent.log_tail,
        )

    def _await(self, ready: str, *, is_tainted: bool) -> None:
        def is_so() -> bool:
            seen = self._seen()
            return _condition(seen, "Ready").get("status") == ready and bool(_taints(seen)) == is_tainted

        try:
            eventually(is_so, within_seconds=READY_SECONDS)
        except AssertionError:
            seen = self._seen()
            reported = f"{self.name} is {_condition(seen, 'Ready')}, with the taints {_taints(seen)}"
            raise AssertionError(f"{reported}\n{self.agent.log.read_text()[-3000:]}") from None

    def lose_power(self) -> None:
        """Everything of it is gone at once: agent, supervisor, watch and every process of a pod."""
        beside = [self.agent.supervisor_pid(), self.agent.watch_pid(), self.agent.guard_pid()]
        self.agent.kill()
        for pid in filter(None, beside):
            os.kill(pid, signal.SIGKILL)
        processes = self.agent.root.read("pids.max")
        self.agent.root.kill()
        self.agent.root.write("pids.max", processes)  # it may be started again

    def condition(self, kind: str) -> dict[str, Any]:
        """What the API server has of it; empty if there is none."""
        return _condition(self._seen(), kind)

    def _seen(self) -> dict[str, Any]:
        return self._plane.reader.get(f"/api/v1/nodes/{self.name}")

    def pods(self) -> set[str]:
        """The UIDs of the pods that have a cgroup there."""
        names = (path.name for path in cgroups_below(self.agent.root.paths()[0]))
        return {found[1] for name in names if (found := _POD_CGROUP.fullmatch(name))}


def _condition(node: dict[str, Any], kind: str) -> dict[str, Any]:
    conditions = node.get("status", {}).get("conditions", ())
    return next((one for one in conditions if one["type"] == kind), {})


def _taints(node: dict[str, Any]) -> list[dict[str, Any]]:
    return node.get("spec", {}).get("taints") or []


@contextlib.contextmanager
def node(
    plane: ControlPlane,
    name: str,
    directory: Path,
    *flags: str,
    size: str = SIZE,
    kubeconfig: Callable[[Place, Path], Path] | None = None,
    with_containerd: bool = False,
    has_pod_network: bool = False,
) -> Iterator[Node]:
    """A node that is not started yet; its agent and its pods are gone at the end, and the API server forgets it.
    `kubeconfig` makes another one than that of its place, from the place and the node's state directory. With
    containerd pods are its containers, on the place's network, or each on one of its own."""
    directory.mkdir(parents=True)
    place = plane.place(name)
    if kubeconfig is not None:
        place = place._replace(kubeconfig=kubeconfig(place, directory / "state"))
    with contextlib.ExitStack() as opened:
        containerd = None
        if with_containerd:
            require_containerd()
            require(NETWORKS if has_pod_network else ())
            network = pod_network(place) if has_pod_network else None
            containerd = opened.enter_context(Containerd(network=network, within=place.network.within))
        made = bounded_root(f"evenkeeltest{secrets.token_hex(3)}", is_slice=is_systemd_in_charge())
        root = opened.enter_context(made)
        agent = Up(
            root,
            directory,
            *("--kubeconfig", str(place.kubeconfig)),
            *("--hostname-override", name),
            *("--node-ip", place.address),
            *("--pod-cidr", place.pod_cidr),
            *flags,
            node=size,
            containerd=containerd,
            within=place.network.within,
        )
        try:
            yield Node(plane, place, agent)
        finally:
            agent.close()
            plane.try_kubectl("delete", "node", name, "--ignore-not-found", "--wait=false")


def pod_network(place: Place) -> dict[str, Any]:
    """A CNI configuration: the pods of a node have addresses of its range, and are reached through it."""
    addresses = {
        "type": "host-local",
        "ranges": [[{"subnet": place.pod_cidr}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {"type": "bridge", "bridge": "pods", "isGateway": True, "hairpinMode": True, "ipam": addresses}
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {"cniVersion": "0.4.0", "name": f"pods-of-{place.name}", "plugins": [bridge, ports]}
