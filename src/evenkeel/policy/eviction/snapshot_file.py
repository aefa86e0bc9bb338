"""A snapshot from YAML or JSON text, as a person or the journal wrote it."""

from collections.abc import Mapping

from evenkeel.api import yaml_text
from evenkeel.api.decode import Findings, decode
from evenkeel.api.defaults import default_pod
from evenkeel.api.field_path import line_of
from evenkeel.api.profile import Profile
from evenkeel.errors import InvalidInput, Problem
from evenkeel.policy.eviction.snapshot import Snapshot

KIND = "EvictionSnapshot"
_NAMES_OF_TYPE = ("apiVersion", "kind")


def read_snapshot(text: str, source: str, profile: Profile) -> Snapshot:
    """The snapshot in `text`, its pods with their defaults; `InvalidInput` with everything that is wrong."""
    problems: list[Problem] = []
    documents = list(yaml_text.documents(text, problems))
    if not problems and len(documents) != 1:
        seen = f"{len(documents)} documents" if documents else "nothing"
        problems.append(Problem("", f"must hold one snapshot, not {seen}"))
    if problems:
        raise InvalidInput([problem._replace(source=source) for problem in problems])
    document = documents[0]
    findings = Findings()
    value = document.value
    if isinstance(value, Mapping):
        _check_kind(value, findings)
        value = {name: item for name, item in value.items() if name not in _NAMES_OF_TYPE}
    snapshot = decode(Snapshot, value, findings)
    _check_names(snapshot, findings)
    if findings.problems:
        raise InvalidInput(
            [
                problem._replace(source=source, line=line_of(document, problem.field))
                for problem in findings.problems
            ]
        )
    pods = tuple(seen._replace(pod=default_pod(seen.pod, profile)) for seen in snapshot.pods)
    return snapshot._replace(pods=pods)


def _check_kind(value: Mapping[str, object], findings: Findings) -> None:
    kind = value.get("kind", KIND)
    if kind != KIND:
        findings.problems.append(
            Problem("kind", f"must be {KIND} (or left out), not {str(kind)[:60]}: this is no snapshot")
        )


def _check_names(snapshot: Snapshot, findings: Findings) -> None:
    first: dict[str, int] = {}
    for index, seen in enumerate(snapshot.pods):
        field = f"pods[{index}].pod.metadata.name"
        if not seen.pod.metadata.name:
            findings.problems.append(Problem(field, "a pod needs a name", "FieldValueRequired"))
        elif seen.pod.key in first:
            at = first[seen.pod.key]
            findings.problems.append(
                Problem(field, f"pods[{at}] is {seen.pod.key} already", "FieldValueDuplicate")
            )
        else:
            first[seen.pod.key] = index
