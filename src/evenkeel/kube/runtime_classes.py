"""RuntimeClasses of the cluster: each names a handler of the container runtime."""

from collections.abc import Callable

from evenkeel.api.pod import Pod
from evenkeel.kube.client import Json
from evenkeel.kube.pod_object import NotHonoured
from evenkeel.kube.watch import DELETED


class RuntimeClasses:
    """A handler of the watch of RuntimeClasses. `on_change` hears that there are others."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._handlers: dict[str, str] = {}
        self._on_change = on_change

    def listed(self, objects: list[Json]) -> None:
        self._handlers = {_name(one): _handler(one) for one in objects}
        self._on_change()

    def changed(self, type_: str, one: Json) -> None:
        if type_ == DELETED:
            self._handlers.pop(_name(one), None)
        else:
            self._handlers[_name(one)] = _handler(one)
        self._on_change()

    def with_handler(self, pod: Pod) -> Pod | NotHonoured:
        """The pod with the handler in the place of its class, for that is what the agent knows."""
        name = pod.spec.runtime_class_name
        if not name:
            return pod
        if name not in self._handlers:
            return NotHonoured(f'spec.runtimeClassName: the cluster has no RuntimeClass "{name}"')
        return pod._replace(spec=pod.spec._replace(runtime_class_name=self._handlers[name]))


def _name(one: Json) -> str:
    return str(one["metadata"]["name"])


def _handler(one: Json) -> str:
    return str(one.get("handler") or "")
