"""The result of reading manifests: pods, workloads, objects and nodes with their source and line, and all problems."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from evenkeel.api.config import Profile
from evenkeel.api.node import Node
from evenkeel.api.pod import Pod
from evenkeel.errors import InvalidInput, Problem
from evenkeel.named_tuples import NamedTuple

if TYPE_CHECKING:
    from evenkeel.api.stored_objects import StoredObject
    from evenkeel.api.workloads import Workload


class WrittenWorkload(NamedTuple):
    workload: "Workload"
    origin: Problem  # its source and line
    place: int  # how many pods were written before it


class Reading(NamedTuple):
    """The content of a text. `problems` are errors; `warnings` say what will not be as written. `origins` has the
    source and line of each of `pods`. The pods of workloads are not among `pods`."""

    pods: tuple[Pod, ...]
    origins: tuple[Problem, ...]
    nodes: tuple[Node, ...]
    problems: tuple[Problem, ...]
    warnings: tuple[Problem, ...]
    objects: tuple["StoredObject", ...] = ()  # ConfigMaps, Secrets, Services and claims
    object_origins: tuple[Problem, ...] = ()
    workloads: tuple[WrittenWorkload, ...] = ()

    def __add__(self, other: object) -> "Reading":
        if not isinstance(other, Reading):
            return NotImplemented
        before = len(self.pods)
        return Reading(
            self.pods + other.pods,
            self.origins + other.origins,
            self.nodes + other.nodes,
            self.problems + other.problems,
            self.warnings + other.warnings,
            self.objects + other.objects,
            self.object_origins + other.object_origins,
            self.workloads + tuple(one._replace(place=one.place + before) for one in other.workloads),
        )

    def with_every_pod(self, profile: Profile) -> "Reading":
        """The reading with the pods that its workloads have when all is well, in the order of the text. For commands
        that reckon with pods and do not run them."""
        if not self.workloads:
            return self
        from evenkeel.api.workload_pods import pods_when_well

        pods, origins, start = [], [], 0
        for workload, origin, place in self.workloads:
            made = tuple(pods_when_well(workload, profile))
            pods += [*self.pods[start:place], *made]
            origins += [*self.origins[start:place], *(origin for _ in made)]
            start = place
        pods += self.pods[start:]
        origins += self.origins[start:]
        return self._replace(pods=tuple(pods), origins=tuple(origins), workloads=())

    def without_duplicates(self) -> "Reading":
        """The reading with a problem for each pod, workload or object that has the name (or UID) of another."""
        seen: dict[str, Problem] = {}
        found: list[Problem] = []
        for fields, origin in self._identities():
            for field, value in fields:
                first = seen.setdefault(f"{field} {value}", origin)
                if first is not origin:
                    message = (
                        f"{value} stands twice, first at {first.source}:{first.line}: give one another name"
                    )
                    found.append(origin._replace(field=field, message=message, kind="FieldValueDuplicate"))
                    break
        for one, origin in zip(self.objects, self.object_origins, strict=True):
            from evenkeel.api.stored_objects import key_of_object

            key = key_of_object(one)
            first = seen.setdefault(str(key), origin)
            if first is not origin:
                message = f"{key} stands twice, first at {first.source}:{first.line}: give one another name"
                found.append(
                    origin._replace(field="metadata.name", message=message, kind="FieldValueDuplicate")
                )
        return self._replace(problems=(*self.problems, *found))

    def _identities(self) -> Iterator[tuple[list[tuple[str, str]], Problem]]:
        """The fields by which each pod and each workload is known, and its origin."""
        for workload, origin, _ in self.workloads:
            from evenkeel.api.workload_pods import fixed_names
            from evenkeel.api.workloads import key_of

            namespace = workload.metadata.namespace
            names = [key_of(workload), *(f"{namespace}/{name}" for name in fixed_names(workload))]
            yield [("metadata.name", name) for name in names], origin
        for pod, origin in zip(self.pods, self.origins, strict=True):
            yield [("metadata.name", pod.key), ("metadata.uid", pod.metadata.uid)], origin

    def or_raise(self) -> "Reading":
        """The reading itself; raises `InvalidInput` if it has problems."""
        if self.problems:
            raise InvalidInput(self.problems)
        return self


NOTHING_READ = Reading((), (), (), (), ())
