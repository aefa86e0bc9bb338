"""docs/pod-fields.md says of every field of a pod what becomes of it, and it is so."""

import re
from pathlib import Path
from typing import Any, get_args

import pytest

from evenkeel.api import known_fields
from evenkeel.api.encode import camel
from evenkeel.api.known_fields_table import TYPES
from evenkeel.api.manifests import read_manifests
from evenkeel.api.pod import Pod
from evenkeel.api.pod_fields import FIELDS, rule_of

APP_ARMOR = "container.apparmor.security.beta.kubernetes.io"

DOCUMENT = Path(__file__).parent.parent / "docs" / "pod-fields.md"
HONOURED, REFUSED, NO_MEANING = "honoured", "refused", "no meaning"


def types_of_pods() -> dict[str, set[str]]:
    """The fields that the classes of `api` have, by Kubernetes' name of the type."""
    found: dict[str, set[str]] = {}
    left: list[Any] = [Pod]
    while left:
        one = left.pop()
        if hasattr(one, "_fields"):
            name = f"V1{one.__name__}"
            if name not in found and name in TYPES:
                found[name] = {camel(field) for field in one._fields}
                left += one.__annotations__.values()
        left += [argument for argument in get_args(one) if argument is not ...]
    return found


def rows(section: str) -> dict[str, str]:
    """The fields of a section of the page, each with what becomes of it."""
    text = DOCUMENT.read_text().partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return {
        field: rule
        for fields, rule in re.findall(
            r"^\| (`[^|]*`) \| (honoured|refused|no meaning)\b", text, re.MULTILINE
        )
        for field in re.findall(r"`([^`]+)`", fields)
    }


def expected(kind: str) -> dict[str, str]:
    ours = types_of_pods()[f"V1{kind}"]
    found = {}
    for field in known_fields.fields_of(f"V1{kind}"):
        if field in ours:
            found[field] = HONOURED
        else:
            rule = rule_of(f"V1{kind}", field)
            assert rule is not None, f"{kind}.{field} has no rule"
            found[field] = REFUSED if rule.refusal else NO_MEANING
    return found


@pytest.mark.parametrize("kind", ["PodSpec", "Container"])
def test_the_page_has_every_field_and_its_rule(kind):
    assert rows(kind) == expected(kind)


def test_the_page_has_what_is_not_honoured_inside_of_them():
    listed = rows("Inside of them")
    for kubernetes_type, fields in FIELDS.items():
        kind = kubernetes_type.removeprefix("V1")
        if kind in ("Pod", "PodSpec", "Container"):
            continue
        for field, rule in fields.items():
            assert listed.pop(f"{kind}.{field}", None) == (REFUSED if rule.refusal else NO_MEANING), (
                kind,
                field,
            )
    assert not listed, "the page has fields that the table does not have"


def test_no_field_of_a_pod_is_without_a_rule():
    lacking = [
        f"{name}.{field}"
        for name, ours in types_of_pods().items()
        for field in known_fields.fields_of(name)
        if field not in ours and rule_of(name, field) is None
    ]
    assert not lacking
    unneeded = [
        f"{name}.{field}"
        for name, fields in FIELDS.items()
        for field in fields
        if field in types_of_pods()[name]
    ]
    assert not unneeded, "these are honoured"


def pod(**spec: Any) -> str:
    import json

    container = {"name": "main", "image": "host", "command": ["x"], **spec.pop("container", {})}
    metadata = {"name": "web", "annotations": spec.pop("annotations", {})}
    body = {"containers": [container], **spec}
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": body})


@pytest.mark.parametrize(
    "spec, field, words",
    [
        ({"schedulingGates": [{"name": "a"}]}, "spec.schedulingGates", "would never start"),
        ({"os": {"name": "windows"}}, "spec.os", "runs Linux"),
        (
            {"volumes": [{"name": "v", "nfs": {"server": "s", "path": "/"}}]},
            "spec.volumes[0].nfs",
            "write persistentVolumeClaim",
        ),
        ({"volumes": [{"name": "v", "csi": {}}]}, "", ""),
        (
            {"volumes": [{"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]},
            "spec.volumes[0].projected.sources[0].serviceAccountToken",
            "comes from a cluster",
        ),
        (
            {
                "volumes": [
                    {
                        "name": "kube-api-access-7xk2p",
                        "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]},
                    }
                ]
            },
            "spec.volumes[0].projected.sources[0].serviceAccountToken",
            "a cluster adds this volume to its pods",
        ),
        (
            {"container": {"lifecycle": {"stopSignal": "SIGUSR1"}}},
            "spec.containers[0].lifecycle.stopSignal",
            "SIGTERM",
        ),
        (
            {"annotations": {f"{APP_ARMOR}/main": "localhost/mine"}},
            f"metadata.annotations[{APP_ARMOR}/main]",
            "write appArmorProfile: {type: Localhost, localhostProfile: mine} in spec.containers[0].securityContext",
        ),
        (
            {"container": {"volumeDevices": [{"name": "a", "devicePath": "/dev/a"}]}},
            "spec.containers[0].volumeDevices",
            "mount a volume instead",
        ),
    ],
)
def test_what_would_make_another_pod_of_it_is_refused_with_a_hint(spec, field, words):
    reading = read_manifests(pod(**spec), "f.yaml")
    if not field:  # an empty source asks for nothing, and the volume has none then
        assert not reading.problems
        return
    assert [problem.field for problem in reading.problems] == [field], "one sentence for one mistake"
    assert words in reading.problems[0].message
    planned = read_manifests(pod(**spec), "f.yaml", is_to_run=False)
    assert [warning.field for warning in planned.warnings] == [field], "whoever only plans is told too"
    assert len(planned.or_raise().pods) == 1


def test_what_is_for_others_is_taken_in_silence():
    spec = {
        "affinity": {"nodeAffinity": {}},
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "serviceAccountName": "me",
        "automountServiceAccountToken": False,
        "os": {"name": "linux"},
        "schedulingGates": [],
        "container": {"tty": False, "stdin": False},
    }
    reading = read_manifests(pod(**spec), "f.yaml")
    assert (reading.problems, reading.warnings) == ((), ())


@pytest.mark.parametrize(
    "key, value, field",
    [
        ("seccomp.security.alpha.kubernetes.io/pod", "localhost/a.json", "securityContext.seccompProfile"),
        (
            "container.seccomp.security.alpha.kubernetes.io/main",
            "unconfined",
            "securityContext.seccompProfile",
        ),
        ("seccomp.security.alpha.kubernetes.io/pod", "runtime/default", ""),
        ("pod.beta.kubernetes.io/init-containers", "[]", "initContainers"),
        ("scheduler.alpha.kubernetes.io/critical-pod", "", "priorityClassName"),
        ("security.alpha.kubernetes.io/sysctls", "a=b", "securityContext.sysctls"),
        ("container.apparmor.security.beta.kubernetes.io/main", "runtime/default", ""),
        ("example.org/mine", "x", ""),
    ],
)
def test_an_annotation_that_was_a_field_is_a_warning_with_the_field(key: str, value: str, field: str):
    reading = read_manifests(pod(annotations={key: value}), "f.yaml")
    told = [(one.field, one.message) for one in reading.warnings]
    assert told == ([(f"metadata.annotations[{key}]", f"has no effect: write {field}")] if field else [])
    assert not reading.problems
