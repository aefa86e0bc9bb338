"""Manifests: the pods, workloads, ConfigMaps, Secrets and nodes in a YAML text, also inside of lists.

A text has any number of documents. A `List` contains objects. A Deployment and similar kinds (workloads) contain a pod
template. All problems are reported, with source, document, line and field path.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from evenkeel.api.config import Profile
from evenkeel.api.decode import UNKNOWN_FIELD, Findings, decode, seen, unknown_below
from evenkeel.api.defaults import DEFAULT_NAMESPACE, default_pod, stable_uid
from evenkeel.api.lined_values import Document
from evenkeel.api.node import Node
from evenkeel.api.pod import ObjectMeta, Pod, PodTemplateSpec
from evenkeel.api.problems import Misshapen, join, line_of, without_effect, without_indices
from evenkeel.api.reading import (
    LISTS,
    REFUSED,
    STORED,
    TEMPLATES,
    Reading,
    WrittenWorkload,
    kind_in,
    passed_over_note,
)
from evenkeel.api.validation import cluster_only_problems, validate_pod, warnings
from evenkeel.errors import NODE_RULE, Problem

if TYPE_CHECKING:
    from evenkeel.api.stored_objects import StoredObject
    from evenkeel.api.workloads import Workload

MAX_PODS = 100_000  # in one text, because a few lines can ask for any number of pods


def read_manifests(
    text: str, source: str, profile: Profile = Profile.DOCUMENTS, *, is_to_run: bool = True
) -> Reading:
    """Every pod, workload, object and node in `text`, validated. Pods have their defaults. If the pods will not run on
    this machine, a field that it cannot honour is a warning and no problem."""
    from evenkeel.api.yaml_text import documents  # not at the top: see api.lined_values

    reader = _Reader(source, profile, is_to_run=is_to_run)
    problems: list[Problem] = []
    for number, document in enumerate(documents(text, problems), start=1):
        reader.document(document, number)
    reader.note_passed_over()
    reader.problems += [problem._replace(source=source) for problem in problems]
    return Reading(
        tuple(reader.pods),
        tuple(reader.origins),
        tuple(reader.nodes),
        tuple(reader.problems),
        tuple(reader.warnings),
        tuple(reader.data),
        tuple(reader.data_origins),
        tuple(reader.workloads),
    )


class _Reader:
    def __init__(self, source: str, profile: Profile, *, is_to_run: bool) -> None:
        self.pods: list[Pod] = []
        self.origins: list[Problem] = []
        self.workloads: list[WrittenWorkload] = []
        self.nodes: list[Node] = []
        self.data: list[StoredObject] = []
        self.data_origins: list[Problem] = []
        self.problems: list[Problem] = []
        self.warnings: list[Problem] = []
        self._source = source
        self._profile = profile
        self._is_to_run = is_to_run
        self._number = 0  # of the document
        self._count = 0  # of pods, those of workloads included
        self._passed_over: dict[str, int] = {}  # kinds, and how many objects of each
        self._first_passed_over = Problem("", "")

    def document(self, document: Document, number: int) -> None:
        found = Findings()
        notes: list[Problem] = []
        self._number = number
        known = len(self.data_origins)
        for one, count, path in self._objects(document.value, "", found, notes):
            self._count += count
            if self._count > MAX_PODS:
                found.problems.append(Problem(path, f"holds more than {MAX_PODS} pods, with all before it"))
                break
            origin = self._located(Problem(path, ""), document, number)
            if isinstance(one, Pod):
                self.pods.append(one)
                self.origins.append(origin)
            else:
                self.workloads.append(WrittenWorkload(one, origin, len(self.pods)))
        if self._first_passed_over.field and not self._first_passed_over.source:
            self._first_passed_over = self._located(self._first_passed_over, document, number)
        self.data_origins[known:] = [
            self._located(origin, document, number) for origin in self.data_origins[known:]
        ]
        if found.not_honoured:
            # One warning for each document, however many fields it has: a long list of warnings is not read.
            names = [*dict.fromkeys(without_indices(path) for path in found.not_honoured)]
            notes.append(without_effect(found.not_honoured[0], names))
        self.problems += self._in_order(found.problems, document, number)
        self.warnings += self._in_order(notes, document, number)

    def note_passed_over(self) -> None:
        """Adds one warning for all of them, because a chart has dozens of such objects."""
        if self._passed_over:
            self.warnings.append(
                self._first_passed_over._replace(message=passed_over_note(self._passed_over))
            )

    def _objects(
        self, value: object, path: str, found: Findings, notes: list[Problem]
    ) -> "Iterator[tuple[Pod | Workload, int, str]]":
        """Each object, the number of its pods, and its path."""
        if not isinstance(value, Mapping):
            found.wrong_shape(path, f"must be an object with apiVersion and kind, not {seen(value)}")
            return
        kind = kind_in(value, path, found)
        if kind in LISTS:
            yield from self._items(value, kind, path, found, notes)
        elif kind in TEMPLATES and (
            kind != "PodTemplate" or not self._is_to_run
        ):  # nothing makes a pod of it
            yield from self._template(value, kind, path, found, notes)
        elif kind == "Pod":
            of_pod = Findings()
            written = decode(Pod, _without_type(value), of_pod, path)
            pod = self._pod(written, path, path, of_pod, found, notes)
            if pod is not None:
                yield pod._replace(metadata=_with_uid(pod.metadata)), 1, path
        elif kind == "Node":
            of_node = Findings()
            node = decode(Node, _without_type(value), of_node, path)
            nameless = Problem(join(path, "metadata.name"), "a node needs a name", "FieldValueRequired")
            _add_problems([] if node.metadata.name else [nameless], of_node)
            found.problems += of_node.problems
            found.not_honoured += of_node.not_honoured
            self.nodes.append(node)
        elif kind in STORED:
            self._stored(value, kind, path, found, notes)
        elif kind in REFUSED:
            refused = Problem(join(path, "kind"), f"{kind} cannot be honoured here: {REFUSED[kind]}")
            (found.problems if self._is_to_run else notes).append(refused)
        elif kind:
            self._passed_over[kind] = self._passed_over.get(kind, 0) + 1
            if not self._first_passed_over.field:
                self._first_passed_over = Problem(join(path, "kind"), "")
            if kind == "ServiceAccount" and value.get("imagePullSecrets"):
                words = "reaches no pod, for there are no accounts here: write it into the pods"
                notes.append(Problem(join(path, "imagePullSecrets"), words))

    def _stored(
        self, value: Mapping[str, object], kind: str, path: str, found: Findings, notes: list[Problem]
    ) -> None:
        """A ConfigMap, Secret, Service or claim. Only texts that have one import their types."""
        from evenkeel.api.stored_objects import object_notes, object_problems, read_stored

        one = read_stored(kind, _without_type(value), path, found)
        if one is None:
            return
        problems = [problem._replace(field=join(path, problem.field)) for problem in object_problems(one)]
        refused = [problem for problem in problems if problem.kind == NODE_RULE and not self._is_to_run]
        found.problems += [problem for problem in problems if problem not in refused]
        notes += refused
        notes += [Problem(join(path, field), message) for field, message in object_notes(one)]
        if len(problems) == len(refused):
            self.data.append(one)
            self.data_origins.append(Problem(path, ""))

    def _items(
        self, value: Mapping[str, object], kind: str, path: str, found: Findings, notes: list[Problem]
    ) -> "Iterator[tuple[Pod | Workload, int, str]]":
        unknown_below("V1List", {name: value[name] for name in value if name != "items"}, path, found)
        items = value.get("items")
        if not isinstance(items, list):
            found.wrong_shape(join(path, "items"), f"a {kind} needs a list of items")
            return
        for index, item in enumerate(items):
            if isinstance(item, Mapping) and kind != "List":
                # The items of a PodList need no kind.
                item = {"apiVersion": value.get("apiVersion"), "kind": kind.removesuffix("List"), **item}
            yield from self._objects(item, join(path, f"items[{index}]"), found, notes)

    def _template(
        self, value: Mapping[str, object], kind: str, path: str, found: Findings, notes: list[Problem]
    ) -> "Iterator[tuple[Pod | Workload, int, str]]":
        """An object with a pod template. Only workloads import their types: other texts do not pay for them."""
        from evenkeel.api.validation.workload_rules import validate_workload
        from evenkeel.api.workload_types import StatefulSet
        from evenkeel.api.workloads import KINDS, replicas_of, template_of

        of_object = Findings()
        where = TEMPLATES[kind]
        here = join(path, ".".join(where))
        fields = {name: item for name, item in _without_type(value).items() if name != "status"}
        if kind == "StatefulSet":
            fields = _with_bare_claims(fields)
        inner: object = fields
        for name in where:
            inner = inner.get(name) if isinstance(inner, Mapping) else None
        if kind == "PodTemplate":
            meta = decode(ObjectMeta, value.get("metadata") or {}, Findings())
            unknown_below("V1PodTemplate", _without(fields, where), path, of_object)
            template = decode(PodTemplateSpec, inner or {}, of_object, here)
        else:
            workload = decode(KINDS[kind].type, fields, of_object, path)
            meta, template = workload.metadata, template_of(workload)
        meta = self._named(meta, path)
        meta = meta._replace(namespace=meta.namespace or DEFAULT_NAMESPACE)
        if inner is None:
            missing = Problem(here, f"a {kind} needs a pod template", "FieldValueRequired")
            _add_problems([missing], of_object)
            found.problems += of_object.problems
            return
        own = template.metadata._replace(name=meta.name, namespace=meta.namespace, uid="", generate_name="")
        if kind != "PodTemplate":
            workload = workload._replace(metadata=meta)
            rules = [one._replace(field=join(path, one.field)) for one in validate_workload(workload)]
            _add_problems((one for one in rules if one.kind != NODE_RULE), of_object)
            of_object.refused += [one for one in rules if one.kind == NODE_RULE]
        spec, of_claims = template.spec, list[Problem]()
        if kind != "PodTemplate" and isinstance(workload, StatefulSet):
            from evenkeel.api.claims import claim_notes
            from evenkeel.api.workload_pods import with_claims

            spec = with_claims(spec, workload, 0)
            of_claims = [
                Problem(join(path, f"spec.volumeClaimTemplates[{place}].{field}"), message)
                for place, claim in enumerate(workload.spec.volume_claim_templates)
                for field, message in claim_notes(claim)
            ]
        pod = self._pod(Pod(own, spec), here, path, of_object, found, notes)
        if pod is None:
            return
        notes += of_claims
        if kind == "PodTemplate":
            yield pod._replace(metadata=_with_uid(pod.metadata)), 1, path
        else:
            yield workload, max(replicas_of(workload), 1), path

    def _pod(
        self, pod: Pod, path: str, named_at: str, of_pod: Findings, found: Findings, notes: list[Problem]
    ) -> Pod | None:
        """The pod with its defaults; None if it or the object around it has a problem. `named_at` is the path of the
        object that gives the pod its name and namespace."""
        pod = pod._replace(metadata=self._named(pod.metadata, path))
        pod = default_pod(pod, self._profile)

        def placed(problem: Problem) -> Problem:
            is_name = problem.field in ("metadata.name", "metadata.namespace")
            return problem._replace(field=join(named_at if is_name else path, problem.field))

        of_pod.refused += map(placed, cluster_only_problems(pod))
        refused = [problem.field for problem in of_pod.refused]
        problems = map(placed, validate_pod(pod, self._profile))
        _add_problems((problem for problem in problems if not _follows(problem, refused)), of_pod)
        if self._is_to_run:
            of_pod.problems += of_pod.refused
        found.problems += of_pod.problems
        found.not_honoured += of_pod.not_honoured
        if of_pod.problems:
            return None
        notes += of_pod.refused
        notes += map(placed, warnings(pod))
        return pod

    def _named(self, meta: ObjectMeta, path: str) -> ObjectMeta:
        """The name for `generateName`. It stays the same as long as the text does."""
        if meta.name or not meta.generate_name:
            return meta
        suffix = stable_uid(self._source, f"{self._number} {path}")[-5:]
        return meta._replace(name=f"{meta.generate_name}{suffix}")

    def _in_order(self, problems: list[Problem], document: Document, number: int) -> list[Problem]:
        return sorted(
            (self._located(problem, document, number) for problem in problems), key=lambda p: p.line
        )

    def _located(self, problem: Problem, document: Document, number: int) -> Problem:
        source = f"{self._source}#{number}" if number > 1 else self._source
        return problem._replace(source=source, line=line_of(document, problem.field))


def _with_uid(meta: ObjectMeta) -> ObjectMeta:
    return meta if meta.uid else meta._replace(uid=stable_uid(meta.namespace, meta.name))


def _add_problems(more: Iterable[Problem], findings: Findings) -> None:
    """Adds problems to those of decoding, without those that only follow from a field that could not be decoded."""
    misshapen = Misshapen([problem.field for problem in findings.problems if problem.kind != UNKNOWN_FIELD])
    findings.problems += [problem for problem in more if not misshapen.explains(problem.field, problem.kind)]


def _follows(problem: Problem, refused: Sequence[str]) -> bool:
    """Whether the problem only follows from a refused field inside its own field, which was not read. For example, the
    source of a variable is invalid if its only field is refused."""
    if problem.kind != NODE_RULE and not problem.field.endswith(".valueFrom"):
        return False
    return any(field.startswith(f"{problem.field}.") for field in refused)


def _with_bare_claims(fields: dict[str, object]) -> dict[str, object]:
    """A StatefulSet whose claim templates have no kind and no status. Kubernetes writes these into them."""
    spec = fields.get("spec")
    claims = spec.get("volumeClaimTemplates") if isinstance(spec, Mapping) else None
    if not isinstance(spec, Mapping) or not isinstance(claims, list):
        return fields
    bare = [
        {name: item for name, item in _without_type(one).items() if name != "status"}
        if isinstance(one, Mapping)
        else one
        for one in claims
    ]
    return {**fields, "spec": {**spec, "volumeClaimTemplates": bare}}


def _without_type(value: Mapping[str, object]) -> Mapping[str, object]:
    return {name: item for name, item in value.items() if name not in ("apiVersion", "kind")}


def _without(value: Mapping[str, object], where: tuple[str, ...]) -> Mapping[str, object]:
    """`value` without the field at `where`, which is checked elsewhere."""
    head, *rest = where
    inner = value.get(head)
    others = {name: item for name, item in value.items() if name != head}
    if rest:
        others[head] = _without(inner, tuple(rest)) if isinstance(inner, Mapping) else inner
    return others
