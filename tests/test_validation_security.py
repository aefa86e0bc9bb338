"""The rules of Kubernetes for security contexts and for namespaces that are shared."""

from typing import Any

import pytest

from evenkeel.api.config import Profile
from evenkeel.api.decode import Findings, decode
from evenkeel.api.defaults import default_pod
from evenkeel.api.pod import Pod
from evenkeel.api.validation import validate_pod

CONTEXT = "spec.containers[0].securityContext"


def problems(security: dict[str, Any] | None = None, **spec: Any) -> dict[str, str]:
    container = {"name": "main", "image": "host", "command": ["x"], "securityContext": security or {}}
    value = {"metadata": {"name": "web"}, "spec": {"containers": [container], **spec}}
    findings = Findings()
    pod = default_pod(decode(Pod, value, findings), Profile.KUBERNETES)
    assert not findings.problems
    return {problem.field: problem.kind for problem in validate_pod(pod, Profile.KUBERNETES)}


@pytest.mark.parametrize("field", ["seccompProfile", "appArmorProfile"])
@pytest.mark.parametrize(
    ("profile", "wrong", "kind"),
    [
        ({"localhostProfile": "x"}, "type", "FieldValueRequired"),
        ({"type": "Else"}, "type", "FieldValueNotSupported"),
        ({"type": "Localhost"}, "localhostProfile", "FieldValueRequired"),
        ({"type": "Unconfined", "localhostProfile": "x"}, "localhostProfile", "FieldValueInvalid"),
    ],
)
def test_a_profile_has_a_type_and_a_name_only_if_it_is_of_the_host(field, profile, wrong, kind):
    assert problems({field: profile})[f"{CONTEXT}.{field}.{wrong}"] == kind
    assert problems(securityContext={field: profile})[f"spec.securityContext.{field}.{wrong}"] == kind


def test_names_of_profiles_lead_nowhere_else():
    for name in ("/etc/x", "../x", "a/../../x"):
        profile = {"seccompProfile": {"type": "Localhost", "localhostProfile": name}}
        assert problems(profile) == {f"{CONTEXT}.seccompProfile.localhostProfile": "FieldValueInvalid"}
    profile = {"appArmorProfile": {"type": "Localhost", "localhostProfile": " x"}}
    assert problems(profile) == {f"{CONTEXT}.appArmorProfile.localhostProfile": "FieldValueInvalid"}
    profile = {"appArmorProfile": {"type": "Localhost", "localhostProfile": "x" * 5000}}
    assert problems(profile) == {f"{CONTEXT}.appArmorProfile.localhostProfile": "FieldValueTooLong"}


def test_contradictions_are_refused():
    firm = {"allowPrivilegeEscalation": False}
    assert problems({"privileged": True, **firm}) == {CONTEXT: "FieldValueInvalid"}
    assert problems({"capabilities": {"add": ["CAP_SYS_ADMIN"]}, **firm}) == {CONTEXT: "FieldValueInvalid"}
    assert problems({"privileged": True}) == {}
    shared = problems(hostPID=True, shareProcessNamespace=True)
    assert shared == {"spec.shareProcessNamespace": "FieldValueInvalid"}
    sysctls = {"sysctls": [{"name": "kernel.shm_rmid_forced", "value": "1"}]}
    assert problems(hostIPC=True, securityContext=sysctls) == {
        "spec.securityContext.sysctls[0].name": "FieldValueInvalid"
    }
    assert problems(securityContext=sysctls) == {}


def test_a_user_namespace_goes_with_no_namespace_of_the_host():
    assert problems(hostUsers=False, hostPID=True, hostIPC=True, hostNetwork=True) == dict.fromkeys(
        ("spec.hostNetwork", "spec.HostPID", "spec.HostIPC"), "FieldValueForbidden"
    )
    assert problems({"procMount": "Unmasked"}) == {f"{CONTEXT}.procMount": "FieldValueInvalid"}
    assert problems({"procMount": "Else"}) == {f"{CONTEXT}.procMount": "FieldValueNotSupported"}
    assert problems({"procMount": "Unmasked"}, hostUsers=False) == {}


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        ([""], "FieldValueRequired"),
        (["Kernel.a"], "FieldValueInvalid"),
        (["a b"], "FieldValueInvalid"),
        (["x" * 254], "FieldValueInvalid"),
        (["kernel.sem", "kernel.sem"], "FieldValueDuplicate"),
    ],
)
def test_sysctls_have_names_and_each_one_once(names, kind):
    sysctls = {"sysctls": [{"name": name, "value": "1"} for name in names]}
    assert problems(securityContext=sysctls) == {
        f"spec.securityContext.sysctls[{len(names) - 1}].name": kind,
    }


@pytest.mark.parametrize("name", ["net.core.somaxconn", "net/ipv4/ip_local_port_range"])
def test_a_pod_in_the_hosts_network_sets_nothing_there(name):
    sysctls = {"sysctls": [{"name": name, "value": "1"}]}
    assert problems(securityContext=sysctls, hostNetwork=False) == {}
    assert problems(securityContext=sysctls, hostNetwork=True) == {
        "spec.securityContext.sysctls[0].name": "FieldValueInvalid"
    }


@pytest.mark.parametrize("field", ["fsGroupChangePolicy", "supplementalGroupsPolicy"])
@pytest.mark.parametrize("policy", ["", "Else"])
def test_policies_for_groups_are_those_of_kubernetes(field, policy):
    assert problems(securityContext={field: policy}) == {
        f"spec.securityContext.{field}": "FieldValueNotSupported"
    }


def test_in_the_hosts_network_a_port_is_the_hosts():
    def found(**port: int) -> dict[str, str]:
        container = {"name": "main", "image": "host", "ports": [{"containerPort": 80, **port}]}
        return problems(hostNetwork=True, containers=[container])

    assert found() == found(hostPort=80) == {}
    assert found(hostPort=81) == {"spec.containers[0].ports[0].hostPort": "FieldValueInvalid"}
