"""The messages to a container runtime: labels that find a container again, and mounts that never lead to the state."""

import subprocess
import sys

import pytest

from evenkeel.api.container import EphemeralContainer, SecurityContext
from evenkeel.api.decode import Findings, decode
from evenkeel.api.manifests import read_manifests
from evenkeel.cgroup.tree import Naming
from evenkeel.runtime.cri import cri_pb2 as pb
from evenkeel.runtime.cri.configs import attempt_of, container_config, sandbox_config
from evenkeel.runtime.cri.cri_refusals import refusal
from evenkeel.runtime.cri.endpoints import chosen, require_libraries, socket_path
from evenkeel.runtime.cri.host_mounts import paths_to_state
from evenkeel.runtime.paths import StatePaths
from evenkeel.runtime.security import Granted
from tests.cri_launches import launch

PATHS = StatePaths("/var/lib/evenkeel")
POD = """
apiVersion: v1
kind: Pod
metadata: {name: web, uid: u-1}
spec:
  volumes: [{name: all, hostPath: {path: /var}}, {name: own, emptyDir: {}}, {name: logs, hostPath: {path: /srv}}]
  securityContext: {runAsUser: 7, supplementalGroups: [9]}
  containers:
  - name: main
    image: x:1
    command: [a, $(WHO)]
    env: [{name: WHO, value: me}]
    volumeMounts:
    - {name: all, mountPath: /host}
    - {name: own, mountPath: /own, readOnly: true}
    - {name: logs, mountPath: /logs}
"""


def test_a_container_is_found_again_by_its_labels():
    config = container_config(launch(3, POD), PATHS)
    assert attempt_of(config.labels) == launch(3, POD).attempt
    assert attempt_of({}) is None
    assert attempt_of({**config.labels, "io.evenkeel.attempt": "x"}) is None


def test_commands_environment_users_and_mounts_are_as_the_manifest_has_them():
    config = container_config(launch(1, POD), PATHS)
    assert list(config.command) == ["a", "me"]
    assert ("WHO", "me") in [(one.key, one.value) for one in config.envs]
    context = config.linux.security_context
    assert (context.run_as_user.value, list(context.supplemental_groups)) == (7, [9])
    mounts = {one.container_path: (one.host_path, one.readonly) for one in config.mounts}
    assert mounts["/own"] == ("/var/lib/evenkeel/pods/u-1/volumes/own", True)
    assert mounts["/dev/termination-log"][0].startswith("/var/lib/evenkeel/memory/u-1/")
    assert config.log_path == "main/1.log"


@pytest.mark.parametrize("is_read_only", [False, True])
def test_network_files_are_copies_in_the_attempts_directory_and_never_the_hosts(is_read_only: bool):
    asked = launch()
    container = asked.container._replace(
        security_context=SecurityContext(read_only_root_filesystem=is_read_only)
    )
    config = container_config(asked._replace(container=container), PATHS)
    mounts = {one.container_path: one for one in config.mounts}
    for path in ("/etc/hosts", "/etc/resolv.conf", "/etc/hostname"):
        assert mounts[path].host_path.startswith(PATHS.attempt(*asked.attempt))
        assert mounts[path].readonly == is_read_only


@pytest.mark.parametrize(
    ("written", "number"), [("", 0), ("None", 0), ("HostToContainer", 1), ("Bidirectional", 2)]
)
def test_mounts_that_come_later_are_seen_if_the_manifest_says_so(written: str, number: int):
    asked = launch(1, POD)
    mounts = tuple(one._replace(mount_propagation=written) for one in asked.container.volume_mounts)
    config = container_config(asked._replace(container=asked.container._replace(volume_mounts=mounts)), PATHS)
    assert {one.container_path: one.propagation for one in config.mounts}["/own"] == number
    assert sum(one.propagation for one in config.mounts) == number * len(mounts)


def test_a_volume_takes_the_place_of_a_network_file():
    pod = POD.replace("/own", "/etc/hosts")
    asked = launch(1, pod)
    config = container_config(asked, PATHS)
    (hosts,) = [one for one in config.mounts if one.container_path == "/etc/hosts"]
    assert "/volumes/" in hosts.host_path


def test_a_container_has_no_raw_sockets():
    given = container_config(launch(1, POD), PATHS).linux.security_context.capabilities
    assert list(given.drop_capabilities) == ["ALL"]
    assert "CHOWN" in given.add_capabilities
    assert "NET_RAW" not in given.add_capabilities


def test_a_directory_of_the_host_does_not_show_the_agents_state():
    asked = launch(1, POD)
    ways = ("/var/lib/evenkeel", "/var/mnt/other", "/srv/alias")
    hidden = paths_to_state(asked.container, {0: "/var"}, ways)
    assert hidden == ("/host/lib/evenkeel", "/host/mnt/other")
    assert paths_to_state(asked.container, {0: "/var/lib"}, ways) == ("/host/evenkeel",)
    context = container_config(asked, PATHS, hidden=hidden).linux.security_context
    assert {*hidden, "/proc/kcore", "/proc/keys"} <= set(context.masked_paths)
    assert "/proc/sys" in context.readonly_paths


@pytest.mark.parametrize(
    ("spec", "pid", "ipc"),
    [
        ("", "CONTAINER", "POD"),
        ("  shareProcessNamespace: true\n", "POD", "POD"),
        ("  hostPID: true\n  hostIPC: true\n", "NODE", "NODE"),
    ],
)
def test_namespaces_are_those_that_the_pod_asks_for(spec, pid, ipc):
    asked = launch(1, POD.replace("  containers:", f"{spec}  containers:"))
    of_sandbox = sandbox_config(asked, PATHS, Naming.CGROUPFS, 0).linux.security_context.namespace_options
    of_container = container_config(asked, PATHS).linux.security_context.namespace_options
    for options in (of_sandbox, of_container):
        names = [pb.NamespaceMode.Name(mode) for mode in (options.pid, options.ipc)]
        assert names == [pid, ipc]


def test_users_of_the_pods_own_are_handed_on_and_files_of_the_host_are_not_mapped():
    volumes = "  volumes: [{name: data, emptyDir: {}}, {name: etc, hostPath: {path: /etc}}]\n"
    mounts = "[{name: data, mountPath: /data}, {name: etc, mountPath: /etc-of-host/}]"
    text = f"""
apiVersion: v1
kind: Pod
metadata: {{name: web, uid: u-1}}
spec:
  hostUsers: false
{volumes}  containers:
  - {{name: main, image: "x:1", volumeMounts: {mounts}}}
"""
    asked = launch(1, text)
    sandbox = sandbox_config(asked, PATHS, Naming.CGROUPFS, 0, first_id=1 << 17)
    container = container_config(asked, PATHS, first_id=1 << 17)
    for config in (sandbox, container):
        users = config.linux.security_context.namespace_options.userns_options
        assert users.mode == pb.NamespaceMode.POD
        for mappings in (users.uids, users.gids):
            assert [(one.host_id, one.container_id, one.length) for one in mappings] == [
                (1 << 17, 0, 1 << 16)
            ]
    mapped = {
        mount.container_path: len(mount.uidMappings) + len(mount.gidMappings) for mount in container.mounts
    }
    assert mapped.pop("/etc-of-host") == 0
    assert set(mapped.values()) == {2}
    plain = container_config(launch(1, POD), PATHS).linux.security_context.namespace_options
    assert not plain.HasField("userns_options")


def secured(text: str) -> pb.LinuxContainerSecurityContext:
    asked = launch(1, POD.replace("    image: x:1", f"    image: x:1\n    securityContext: {text}"))
    return container_config(asked, PATHS, profiles="/profiles").linux.security_context


def test_profiles_are_handed_on_by_name():
    context = secured(
        "{seccompProfile: {type: Localhost, localhostProfile: a/b.json},"
        " appArmorProfile: {type: Localhost, localhostProfile: web}}"
    )
    assert (context.seccomp.profile_type, context.seccomp.localhost_ref) == (2, "/profiles/a/b.json")
    assert (context.apparmor.profile_type, context.apparmor.localhost_ref) == (2, "web")
    plain = secured("{}")
    assert (plain.seccomp.profile_type, plain.seccomp.localhost_ref) == (0, "")
    assert not plain.HasField("apparmor")


def test_se_linux_options_are_handed_on_those_of_the_container_first():
    own = secured("{seLinuxOptions: {type: web_t, level: 's0:c1'}}").selinux_options
    assert (own.user, own.role, own.type, own.level) == ("", "", "web_t", "s0:c1")
    assert not secured("{}").HasField("selinux_options")
    of_pod = launch(1, POD.replace("runAsUser: 7", "seLinuxOptions: {level: s0}"))
    assert refusal(of_pod.pod, Granted()) is None
    assert container_config(of_pod, PATHS).linux.security_context.selinux_options.level == "s0"
    sandbox = sandbox_config(of_pod, PATHS, Naming.CGROUPFS, 0)
    assert sandbox.linux.security_context.selinux_options.level == "s0"


def test_a_privileged_container_is_handed_on_with_its_sandbox():
    context = secured("{privileged: true}")
    assert context.privileged
    assert context.seccomp.profile_type == pb.SecurityProfile.Unconfined
    assert not context.no_new_privs
    assert "/proc/kcore" not in context.masked_paths
    assert not context.readonly_paths
    asked = launch(
        1, POD.replace("    image: x:1", "    image: x:1\n    securityContext: {privileged: true}")
    )
    for one, is_privileged in ((asked, True), (launch(1, POD), False)):
        config = sandbox_config(one, PATHS, Naming.CGROUPFS, 0)
        assert config.linux.security_context.privileged == is_privileged


def test_an_ephemeral_container_may_trace_only_if_its_launch_says_so():
    context = decode(SecurityContext, {"capabilities": {"add": ["SYS_PTRACE"]}}, Findings())
    one = EphemeralContainer("debugger", "x:1", ("sh",), security_context=context)
    asked = launch(1, POD)
    asked = asked._replace(pod=asked.pod.with_ephemeral(one), container=one.container)
    for may_trace in (False, True):
        config = container_config(asked._replace(may_trace=may_trace), PATHS)
        given = config.linux.security_context.capabilities.add_capabilities
        assert ("SYS_PTRACE" in given) == may_trace


@pytest.mark.req("A24")
def test_a_sandbox_is_put_below_the_pods_cgroup_as_its_driver_names_it():
    asked = launch(1, POD)
    assert asked.planned is not None
    config = sandbox_config(asked, PATHS, Naming.CGROUPFS, 0)
    assert config.linux.cgroup_parent == asked.planned.pod.path
    config = sandbox_config(asked, PATHS, Naming.SYSTEMD, 0)
    assert config.linux.cgroup_parent == asked.planned.pod.path.rpartition("/")[2]


@pytest.mark.parametrize("image", ["host", "/srv/root", "./x.tar"])
def test_directories_of_this_machine_are_no_images(image):
    (pod,) = read_manifests(POD.replace("x:1", image), "x.yaml").pods
    found = refusal(pod, Granted())
    assert found is not None
    assert "spec.containers[0].image" in found.message


def test_a_part_of_a_volume_is_taken_from_where_the_agent_has_mounted_it():
    asked = launch(3, POD.replace("mountPath: /own", "mountPath: /own, subPath: a"))
    assert refusal(asked.pod, Granted()) is None
    mounts = {one.container_path: one.host_path for one in container_config(asked, PATHS, bound=[1]).mounts}
    uid = asked.pod.metadata.uid
    assert mounts["/own"] == f"{PATHS.root}/memory/{uid}/.subpaths/{asked.attempt.container}.3.1"


def test_only_unix_sockets_are_endpoints():
    assert socket_path("unix:///run/x.sock") == socket_path("/run/x.sock") == "/run/x.sock"
    for wrong in ("tcp://1.2.3.4:5", "run/x.sock", "", "unix:///" + "x" * 120):
        with pytest.raises(Exception, match="containerRuntimeEndpoint"):
            socket_path(wrong)


def test_auto_is_a_runtime_that_listens_or_none(tmp_path):
    import socket

    path = str(tmp_path / "s")
    assert chosen("auto", (path,)) == ""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        assert chosen("auto", (path,)) == "", "nobody listens"
        server.listen()
        assert chosen("auto", ("/nowhere", path)) == f"unix://{path}"
    assert chosen("", (path,)) == ""


def test_an_installation_without_the_libraries_is_told_what_to_install():
    require_libraries()
    reported = without_protobuf(
        "from evenkeel.runtime.cri.endpoints import require_libraries; require_libraries()"
    )
    assert "pip install 'evenkeel[cri]'" in reported
    reported = without_protobuf("import evenkeel.cli.doctor, evenkeel.cli.up; print('they need none')")
    assert reported == "they need none\n"


def test_with_a_container_runtime_nothing_of_the_other_runtime_is_imported():
    code = (
        "import sys, evenkeel.cli.up, evenkeel.runtime.cri.cri_runtime, evenkeel.kube.cluster;"
        "print([name for name in sys.modules if name.startswith('evenkeel.runtime.process')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_node_of_a_cluster_loads_nothing_that_it_does_not_need():
    unwanted = {"bz2", "evenkeel.server.schemas", "lzma", "platform", "shutil", "wsproto", "yaml"}
    code = (
        "import sys, evenkeel.cli.up, evenkeel.runtime.cri.cri_runtime, evenkeel.kube.cluster;"
        f"import evenkeel.server.kubelet.node_server; print(*{unwanted}.intersection(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def without_protobuf(code: str) -> str:
    """What Python says to it where protobuf is not installed."""
    hidden = f"import sys; sys.modules['google.protobuf'] = None; {code}"
    done = subprocess.run(
        [sys.executable, "-c", hidden], capture_output=True, text=True, timeout=60, check=False
    )
    return done.stdout + done.stderr
