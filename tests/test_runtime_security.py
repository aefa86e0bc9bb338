"""Security contexts: what each gives a container, and what is not supported and refused."""

from pathlib import Path
from typing import Any

import pytest

from evenkeel.api.container import (
    AppArmorProfile,
    Capabilities,
    Container,
    SeccompProfile,
    SecurityContext,
    SELinuxOptions,
    WindowsSecurityContextOptions,
)
from evenkeel.api.pod import Pod, PodSecurityContext, PodSpec, Sysctl
from evenkeel.runtime import syscalls
from evenkeel.runtime.cri import cri_refusals
from evenkeel.runtime.process import process_refusals, seccomp
from evenkeel.runtime.process.process_refusals import Powers
from evenkeel.runtime.process.supervisor import spawn, start_plan
from evenkeel.runtime.security import (
    DEFAULT_CAPABILITIES,
    GRANTABLE_CAPABILITIES,
    Granted,
    Privileges,
    privileges,
    problems,
)

UNCONFINED = SeccompProfile("Unconfined")


NO_USERS = "no user namespace here"


def refusal(one: Pod, *host_access: str, **granted: Any) -> str:
    """The first request that cannot be granted; empty if there is none."""
    rights = Granted(host_access=host_access, no_user_namespace=NO_USERS)._replace(**granted)
    return next(problems(one, rights), "")


def pod(security: SecurityContext | None = None, **spec: Any) -> Pod:
    container = Container(name="web", image="host", command=("true",), security_context=security)
    return Pod(spec=PodSpec(containers=(container,))._replace(**spec))


def of(one: Pod) -> Privileges:
    assert refusal(one) == ""
    return privileges(one, one.spec.containers[0])


def capabilities(add: tuple[str, ...] = (), drop: tuple[str, ...] = ()) -> Pod:
    return pod(SecurityContext(capabilities=Capabilities(add, drop)))


def test_a_container_that_asks_for_nothing_has_the_default_set_and_filter():
    assert of(pod()) == Privileges(DEFAULT_CAPABILITIES, SeccompProfile("RuntimeDefault"), may_escalate=None)
    assert "NET_RAW" not in DEFAULT_CAPABILITIES


@pytest.mark.parametrize("all_of_them", ["ALL", "all", "CAP_ALL"])
def test_dropped_capabilities_are_not_there(all_of_them):
    assert of(capabilities(drop=(all_of_them,))).capabilities == set()
    assert of(capabilities(drop=(all_of_them,), add=("NET_BIND_SERVICE",))).capabilities == {
        "NET_BIND_SERVICE"
    }
    assert of(capabilities(drop=("CAP_CHOWN", "kill"))).capabilities == DEFAULT_CAPABILITIES - {
        "CHOWN",
        "KILL",
    }


def test_capabilities_that_stay_in_the_container_are_added():
    assert of(capabilities(add=("NET_RAW",))).capabilities == DEFAULT_CAPABILITIES | {"NET_RAW"}


@pytest.mark.parametrize(
    "name", ["ALL", "SYS_ADMIN", "CAP_SYS_PTRACE", "MKNOD", "NET_ADMIN", "DAC_READ_SEARCH"]
)
def test_capabilities_that_reach_the_host_are_refused(name):
    assert "would reach the host" in refusal(capabilities(add=(name,)))


def test_a_word_that_is_no_capability_is_refused():
    assert "FLY is no capability" in refusal(capabilities(add=("FLY",)))
    assert "FLY is no capability" in refusal(capabilities(drop=("FLY",)))


def test_the_containers_filter_goes_before_the_pods():
    of_pod = {"security_context": PodSecurityContext(seccomp_profile=UNCONFINED)}
    default = SecurityContext(seccomp_profile=SeccompProfile("RuntimeDefault"))
    assert of(pod(default, **of_pod)).is_filtered
    assert not of(pod(SecurityContext(run_as_user=1000), **of_pod)).is_filtered


@pytest.mark.parametrize(
    "security",
    [
        SecurityContext(seccomp_profile=UNCONFINED),
        SecurityContext(seccomp_profile=UNCONFINED, run_as_user=0),
        SecurityContext(seccomp_profile=UNCONFINED, run_as_user=1, allow_privilege_escalation=True),
    ],
)
def test_root_is_not_without_a_filter(security):
    assert "Unconfined is not allowed for root" in refusal(pod(security))


@pytest.mark.parametrize(
    ("field", "one"),
    [
        ("spec.runtimeClassName: gvisor", pod(runtime_class_name="gvisor")),
        ("spec.hostUsers: false", pod(host_users=False)),
        ("spec.hostPID", pod(host_pid=True)),
        ("spec.hostIPC", pod(host_ipc=True)),
        (
            "spec.securityContext.sysctls: kernel.shm_rmid_forced has no value",
            pod(security_context=PodSecurityContext(sysctls=(Sysctl("kernel.shm_rmid_forced", ""),))),
        ),
        ("securityContext.privileged", pod(SecurityContext(privileged=True))),
        (
            "spec.securityContext.seLinuxOptions",
            pod(security_context=PodSecurityContext(se_linux_options=SELinuxOptions(level="s0"))),
        ),
    ],
)
def test_what_cannot_be_had_is_refused_with_its_field(field, one):
    assert field in refusal(one)


@pytest.mark.parametrize(
    ("sysctl", "has_own_network", "said"),
    [
        (Sysctl("a.b", "1"), True, 'forbidden sysctl: "a.b" not allowlisted'),
        (Sysctl("kernel/msgmax", "1"), True, 'forbidden sysctl: "kernel.msgmax" not allowlisted'),
        (
            Sysctl("net.ipv4.tcp_rmem", "1 2 3"),
            False,
            'forbidden sysctl: "net.ipv4.tcp_rmem" not allowed with host net enabled',
        ),
        (Sysctl("net.ipv4.tcp_rmem", "1 2 3"), True, ""),
        (Sysctl("kernel.shm_rmid_forced", "1"), False, ""),
    ],
)
def test_a_sysctl_that_reaches_beyond_the_pod_is_refused_with_the_reason_and_words_of_kubelet(
    sysctl: Sysctl, has_own_network: bool, said: str
):
    one = pod(security_context=PodSecurityContext(sysctls=(sysctl,)), host_network=not has_own_network)
    for found in (
        process_refusals.refusal(one, Powers(0, 0)),
        cri_refusals.refusal(in_image(one), Granted()),
    ):
        if not said:
            assert found is None
            continue
        assert found is not None
        assert found.reason == "SysctlForbidden"
        assert found.message.startswith(said)


def in_image(one: Pod) -> Pod:
    containers = tuple(each._replace(image="registry.example/a:1") for each in one.spec.containers)
    return one._replace(spec=one.spec._replace(containers=containers))


def test_what_is_for_windows_is_passed_over_as_by_kubelet():
    options = WindowsSecurityContextOptions(run_as_user_name="x")
    assert refusal(pod(SecurityContext(windows_options=options))) == ""
    assert refusal(pod(security_context=PodSecurityContext(windows_options=options))) == ""


PRIVILEGED = pod(SecurityContext(privileged=True))


@pytest.mark.parametrize(
    ("name", "one"),
    [
        ("privileged", PRIVILEGED),
        ("privileged", capabilities(add=("SYS_ADMIN",))),
        ("privileged", pod(SecurityContext(seccomp_profile=UNCONFINED))),
        ("hostPID", pod(host_pid=True)),
        ("hostIPC", pod(host_ipc=True)),
    ],
)
def test_only_the_operator_lets_pods_reach_the_host(name, one):
    assert refusal(one)
    assert refusal(one, *{"privileged", "hostPID", "hostIPC"} - {name})
    assert refusal(one, name) == ""


def test_the_operator_is_told_how_to_allow_it():
    assert "start the agent with --allowed-host-access=hostPID" in refusal(pod(host_pid=True))


def test_a_privileged_container_has_no_filter_whatever_else_it_asks_for():
    asked = SecurityContext(privileged=True, seccomp_profile=SeccompProfile("RuntimeDefault"))
    given = privileges(pod(asked), pod(asked).spec.containers[0])
    assert given.is_privileged
    assert not given.is_filtered


def test_processes_are_never_privileged_even_if_the_operator_allows_it():
    powers = Powers(0, 0, granted=Granted(host_access=("privileged",)))
    for one in (PRIVILEGED, capabilities(add=("SYS_ADMIN",))):
        refused = process_refusals.refusal(one, powers)
        assert refused is not None
    refused = process_refusals.refusal(PRIVILEGED, powers)
    assert refused is not None
    assert "--runtime-endpoint" in refused.message


def test_a_pod_in_a_namespace_of_others_needs_an_agent_that_is_root():
    powers = Powers(1000, 1000, granted=Granted(host_access=("hostPID", "hostIPC")))
    for field in ("host_pid", "host_ipc", "share_process_namespace"):
        reaching: dict[str, Any] = {field: True}
        refused = process_refusals.refusal(pod(**reaching), powers)
        assert refused is not None
        assert "needs root" in refused.message


@pytest.mark.parametrize("kind", ["Localhost", "RuntimeDefault"])
def test_an_app_armor_profile_is_refused_where_there_is_no_app_armor(kind):
    asked = AppArmorProfile(kind, "web" if kind == "Localhost" else "")
    one = pod(SecurityContext(app_armor_profile=asked))
    assert "AppArmor is off" in refusal(one, no_app_armor="AppArmor is off")
    assert of(one).app_armor == asked
    of_pod = pod(security_context=PodSecurityContext(app_armor_profile=asked))
    assert "spec.securityContext.appArmorProfile" in refusal(of_pod, no_app_armor="AppArmor is off")
    assert of(of_pod).app_armor == asked


def test_processes_have_no_default_app_armor_profile():
    one = pod(SecurityContext(app_armor_profile=AppArmorProfile("RuntimeDefault")))
    refused = process_refusals.refusal(one, Powers(0, 0))
    assert refused is not None
    assert "write Localhost" in refused.message


def test_the_usual_words_are_taken():
    security = SecurityContext(
        privileged=False,
        allow_privilege_escalation=False,
        proc_mount="Default",
        app_armor_profile=AppArmorProfile("Unconfined"),
        se_linux_options=SELinuxOptions(),
    )
    assert of(pod(security, host_users=True, host_network=True)).may_escalate is False


def test_without_a_library_for_filters_a_pod_is_refused_unless_it_needs_none():
    powers = Powers(0, 0, no_filter="libseccomp.so.2 is not installed")
    refused = process_refusals.refusal(pod(), powers)
    assert refused is not None
    assert "libseccomp.so.2 is not installed" in refused.message
    unconfined = pod(SecurityContext(seccomp_profile=UNCONFINED, run_as_user=1000))
    assert process_refusals.refusal(unconfined, powers) is None


def test_the_supervisor_knows_the_same_sets():
    for names, mask in (
        (DEFAULT_CAPABILITIES, start_plan.DEFAULT_CAPABILITIES),
        (GRANTABLE_CAPABILITIES, spawn.GRANTABLE_CAPABILITIES),
    ):
        assert syscalls.mask(*map(str.lower, names)) == mask


def test_the_filter_is_compiled_once_and_knows_every_call_it_names():
    compiled = seccomp.default_filter()
    assert seccomp.default_filter() is compiled
    assert 100 < compiled.length < 4096  # the kernel takes no more
    assert not set(seccomp._ALLOWED.split()) & set(seccomp._REFUSED.split())  # noqa: SLF001
    assert seccomp.filter_problem() == ""


def test_a_file_of_the_kernel_is_told_from_one_that_was_put_in_its_place(tmp_path):
    fake = tmp_path / "exec"
    fake.write_text("")
    for path, is_real in ((Path("/proc/self/comm"), True), (fake, False)):
        with path.open() as file:
            assert syscalls.is_proc(file.fileno()) == is_real
