"""`validation`: which pods the API server takes, what it complains about, and what it warns of."""

from typing import Any

from evenkeel.api.config import Profile
from evenkeel.api.decode import WRONG_SHAPE, Findings, decode
from evenkeel.api.defaults import default_pod
from evenkeel.api.pod import Pod
from evenkeel.api.validation import validate_pod, warnings
from evenkeel.errors import NODE_RULE


def check(vector_input: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    findings = Findings()
    raw = decode(Pod, vector_input["pod"], findings)
    # The API server drops fields that it does not know; only a wrong shape is an error to its decoder.
    wrong_shapes = [str(problem) for problem in findings.problems if problem.kind == WRONG_SHAPE]
    if bool(wrong_shapes) != bool(expected.get("decodeError")):
        return [f"decodeError: {wrong_shapes}, not {expected.get('decodeError')}"]
    if wrong_shapes:
        return []
    pod = default_pod(raw, Profile.KUBERNETES)
    problems = {
        (problem.kind, problem.field)
        for problem in validate_pod(pod, Profile.KUBERNETES)
        if problem.kind != NODE_RULE  # a rule of ours, which Kubernetes does not have
    }
    wanted = {(error["type"], error["field"]) for error in expected.get("errors") or ()}
    differences = [f"missed: {error}" for error in sorted(wanted - problems)]
    differences += [f"made up: {error}" for error in sorted(problems - wanted)]
    if expected["valid"] == bool(problems):
        differences.append(f"valid: {not problems}, not {expected['valid']}")
    seen_warnings = sorted(warning.field for warning in warnings(pod))
    wanted_warnings = sorted(expected.get("warningFields") or ())
    if seen_warnings != wanted_warnings:
        differences.append(f"warnings: {seen_warnings}, not {wanted_warnings}")
    return differences
