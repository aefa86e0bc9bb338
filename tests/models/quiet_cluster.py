"""A cluster in which nothing happens but what a test does: no Services, no RuntimeClasses, no data of pods."""

from typing import cast

from evenkeel.agent.agent import Agent
from evenkeel.api.config import Profile
from evenkeel.api.container import EnvVar
from evenkeel.api.pod import Pod
from evenkeel.kube.api_client import Client, Json
from evenkeel.kube.pod_object import NotHonoured
from evenkeel.kube.pod_sync import PodChanges, PodSync

ADDRESSES = ("10.0.0.5", "192.168.0.9")  # the node's, and how the agent knows this machine


class NothingElse:
    """Pod data of a cluster without any objects. `forgotten` are the pods whose data is not needed any more."""

    def __init__(self) -> None:
        self.forgotten: list[str] = []

    def env(self, namespace: str, *, with_links: bool) -> tuple[EnvVar, ...]:
        return ()

    def with_handler(self, pod: Pod) -> Pod:
        return pod

    async def first(self, pod: Pod) -> None: ...

    def forget(self, uid: str) -> None:
        self.forgotten.append(uid)


class Requests:
    """A client that notes what it is asked to write, and grants it."""

    def __init__(self) -> None:
        self.patches: list[tuple[str, Json]] = []
        self.deleted: list[str] = []

    async def patch(self, path: str, body: Json) -> Json:
        self.patches.append((path, body))
        return {"status": body["status"]}

    async def delete(self, path: str, body: Json) -> Json:
        self.deleted.append(body["preconditions"]["uid"])
        return {}


def pod_sync(
    agent: Agent,
    said: list[str],
    nothing: NothingElse | None = None,
    requests: Requests | None = None,
    changes: PodChanges | None = None,
) -> PodSync:
    """A PodSync of the agent. `said` collects the reasons why pods are not honoured."""
    nothing = nothing or NothingElse()

    def refused(_: Json, why: NotHonoured) -> None:
        said.append(why.message)

    return PodSync(
        cast("Client", requests),
        agent.cluster_pods,
        changes or agent,
        nothing,
        nothing,
        nothing,
        Profile.DOCUMENTS,
        ADDRESSES,
        refused,
    )
