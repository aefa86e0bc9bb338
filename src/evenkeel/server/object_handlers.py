"""Handlers of ConfigMaps, Secrets, Services and claims, at Kubernetes' addresses.

ConfigMaps and Secrets are at shorter addresses too (`/configmaps/NAMESPACE/NAME`). Secrets are shown at the Unix socket
only, at every address.
"""

from evenkeel.agent.front import Front
from evenkeel.api.data_objects import SECRET, DataKey
from evenkeel.api.stored_objects import OBJECT_KINDS, manifest_of
from evenkeel.errors import EvenkeelError
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
