"""Handlers of Kubernetes' addresses for objects other than pods: ConfigMaps, Secrets, Services and claims; Deployments,
Jobs and the other kinds that make pods.

ConfigMaps and Secrets are at shorter addresses too (`/configmaps/NAMESPACE/NAME`). Secrets are shown at the Unix socket
only, at every address.
"""

import json
from collections.abc import Mapping

from evenkeel.agent.front import Front
from evenkeel.api.data_objects import SECRET, DataKey
from evenkeel.api.stored_objects import OBJECT_KINDS, manifest_of
from evenkeel.api.workload_types import MAX_REPLICAS, CronJob, DaemonSet, Job
from evenkeel.api.workloads import KINDS, Workload, kind_of, replicas_of, workload_key, workload_object
from evenkeel.errors import EvenkeelError
from evenkeel.server.handlers import grace_seconds
from evenkeel.server.http import VIA, Answer, Refused, Request, no_secrets, to_json

_KINDS = {known.plural: kind for kind, known in OBJECT_KINDS.items()}


class ObjectHandlers:
    def __init__(self, front: Front) -> None:
        self._front = front

    async def listed(self, request: Request) -> Answer:
        kind, namespace, _ = _place(request)
        namespace = namespace or request.parameters.get("namespace", "")
        found = [
            manifest_of(one)
            for one in self._front.data_objects(kind)
            if namespace in ("", one.metadata.namespace)
        ]
        return Answer(to_json({"apiVersion": "v1", "kind": f"{kind}List", "metadata": {}, "items": found}))

    async def one(self, request: Request) -> Answer:
        found = self._front.data_object(_key(request))
        if found is None:
            raise _missing(request)
        return Answer(to_json(manifest_of(found)))

    async def delete(self, request: Request) -> Answer:
        key = _key(request)
        try:
            exists = await self._front.delete_data(key)
        except EvenkeelError as error:  # a file holds it, or a pod has the claim
            raise Refused(409, error.message, hint=error.hint) from None
        if not exists:
            raise _missing(request)
        return Answer(
            to_json({"kind": key.kind, "name": f"{key.namespace}/{key.name}", "outcome": "deleted"})
        )


def _place(request: Request) -> tuple[str, str, str]:
    """Kind, namespace and name of the address; empty where it has none."""
    path = request.path
    if path[0] == "api":
        is_in_namespace = len(path) > 4
        plural, namespace, name = (
            path[4] if is_in_namespace else path[2],
            path[3] if is_in_namespace else "",
            path[5] if len(path) > 5 else "",
        )
    else:
        plural, namespace, name = (*path, "", "")[:3]
    kind = _KINDS[plural]
    if kind == SECRET and VIA in request.headers:
        raise no_secrets()
    return kind, namespace, name


def _key(request: Request) -> DataKey:
    return DataKey(*_place(request))


def _missing(request: Request) -> Refused:
    key = _key(request)
    return Refused(404, f'there is no {key.kind} "{key.name[:253]}" in namespace {key.namespace[:63]}')


class WorkloadHandlers:
    def __init__(self, front: Front) -> None:
        self._front = front

    async def listed(self, request: Request) -> Answer:
        kind, rest = _kind(request)
        namespace = rest[0] if rest else ""
        items = [
            workload_object(one)
            for one in self._front.workloads()
            if kind_of(one) == kind and namespace in ("", one.metadata.namespace)
        ]
        version = KINDS[kind].api_version
        return Answer(to_json({"apiVersion": version, "kind": f"{kind}List", "metadata": {}, "items": items}))

    async def one(self, request: Request) -> Answer:
        return Answer(to_json(workload_object(self._found(request))))

    async def delete(self, request: Request) -> Answer:
        kind, (namespace, name, *_) = _kind(request)
        try:
            exists = await self._front.delete_workload(
                workload_key(kind, namespace, name), grace_seconds(request)
            )
        except EvenkeelError as error:  # a file holds it
            raise Refused(409, error.message, hint=error.hint) from None
        if not exists:
            raise _missing_workload(kind, namespace, name)
        return Answer(to_json({"kind": kind, "name": f"{namespace}/{name}", "outcome": "deleted"}), 202)

    async def scale(self, request: Request) -> Answer:
        return Answer(to_json(_scale(self._found(request))))

    async def set_scale(self, request: Request) -> Answer:
        workload = self._found(request)
        _scale(workload)  # refuses a kind without replicas
        try:
            await self._front.scale(
                workload_key(kind_of(workload), workload.metadata.namespace, workload.metadata.name),
                _replicas(request),
            )
        except EvenkeelError as error:
            raise Refused(409, error.message, hint=error.hint) from None
        return Answer(to_json(_scale(self._found(request))))

    def _found(self, request: Request) -> Workload:
        kind, (namespace, name, *_) = _kind(request)
        workload = self._front.workload(workload_key(kind, namespace, name))
        if workload is None:
            raise _missing_workload(kind, namespace, name)
        return workload


def _kind(request: Request) -> tuple[str, tuple[str, ...]]:
    """The kind of the address, and the namespace and name in it."""
    group, path = (request.path[1], request.path[3:]) if request.path[0] == "apis" else ("", request.path[2:])
    rest: tuple[str, ...] = ()
    if path[0] == "namespaces" and len(path) > 1:
        rest = (path[1], *path[3:])
        path = path[2:]
    for kind, known in KINDS.items():
        if (known.group, known.plural) == (group, path[0]):
            return kind, rest
    there = ", ".join(f"{known.group or 'v1'}/{known.plural}" for known in KINDS.values())
    raise Refused(404, f"there is nothing at {group[:60]}/{path[0][:60]}", hint=f"there are {there}")


def _missing_workload(kind: str, namespace: str, name: str) -> Refused:
    return Refused(404, f'there is no {kind} "{name[:253]}" in namespace {namespace[:63]}')


def _scale(workload: Workload) -> Mapping[str, object]:
    if isinstance(workload, DaemonSet | Job | CronJob):
        raise Refused(409, f"a {kind_of(workload)} has no replicas, so it cannot be scaled")
    meta = workload.metadata
    return {
        "apiVersion": "autoscaling/v1",
        "kind": "Scale",
        "metadata": {"name": meta.name, "namespace": meta.namespace},
        "spec": {"replicas": replicas_of(workload)},
        "status": {"replicas": workload.status.replicas},
    }


def _replicas(request: Request) -> int:
    try:
        scale = json.loads(request.body)
        replicas = scale["spec"].get("replicas", 0)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Refused(422, 'the request must be a Scale, such as {"spec": {"replicas": 3}}') from None
    if not isinstance(replicas, int) or isinstance(replicas, bool) or not 0 <= replicas <= MAX_REPLICAS:
        raise Refused(422, f"spec.replicas must be a whole number from 0 to {MAX_REPLICAS}")
    return replicas
