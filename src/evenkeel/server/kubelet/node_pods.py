"""The pods of this machine by the names that they have in the cluster.

A pod that was applied on this machine itself has a mirror in the cluster, whose name is the pod's with the node's name
appended. Clients find it by the mirror's name, and only while the API server has that mirror: a pod of the cluster may
have that name as well. They do not find it by its own name: a pod of the cluster with this name may wait here until the
name is free, and belong to another user."""

from collections.abc import Callable

from evenkeel.agent.front import Front
from evenkeel.api.pod import Pod
from evenkeel.server.http import Refused


class NodePods:
    def __init__(
        self,
        front: Front,
        node_name: str,
        is_of_cluster: Callable[[str], bool],
        has_mirror: Callable[[str, str], bool],
    ) -> None:
        """`is_of_cluster` says of a UID whether the pod came from the cluster. `has_mirror` says of a namespace and a
        name whether the API server has a mirror there."""
        self._front = front
        self._suffix = f"-{node_name}"
        self._is_of_cluster = is_of_cluster
        self._has_mirror = has_mirror

    def found(self, namespace: str, name: str) -> Pod:
        """Raises Refused."""
        pod = self._front.pod(f"{namespace}/{name}")
        if pod is not None and self._is_of_cluster(pod.metadata.uid):
            return pod
        local = self._front.pod(f"{namespace}/{name.removesuffix(self._suffix)}")
        is_mirrored = name.endswith(self._suffix) and self._has_mirror(namespace, name)
        if local is None or not is_mirrored or self._is_of_cluster(local.metadata.uid):
            raise Refused(404, f'pod "{name[:253]}" not found in namespace "{namespace[:63]}"')
        return local

    def present(self, pod: Pod) -> Pod | None:
        """The pod as it is now; None if it is gone."""
        now = self._front.pod(pod.key)
        return now if now is not None and now.metadata.uid == pod.metadata.uid else None
