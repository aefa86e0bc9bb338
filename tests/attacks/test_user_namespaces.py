"""Pods with users of their own (hostUsers: false): root in the container has no rights on the host."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from evenkeel.errors import InvalidInput
from evenkeel.runtime import syscalls
from tests.attacks.hostile import IMAGES, await_said, details_of, image_of, said
from tests.kernel.agents import MakeUp, Up, first_of, pod
from tests.kernel.sessions import at_terminal, done
from tests.kernel.waiting import eventually

pytestmark = [
    pytest.mark.cgroup("v1", "v2"),
    pytest.mark.processes_only("containerd 1.6 gives no user namespaces; test_pod_networks says so"),
]

FIRST = 1 << 16


def own(agent: Up, name: str, text: str, image: str = "image", **spec: Any) -> dict[str, Any]:
    """A pod with users of its own that executes a shell's text."""
    container = {
        "image": image_of(agent) if image == "image" else image,
        "command": ["/bin/sh", "-c", text],
        **spec.pop("container", {}),
    }
    return pod(name, [], container=container, hostUsers=False, **spec)


def status_of(pid: int) -> dict[str, str]:
    fields = (line.partition(":") for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {field: value.strip() for field, _, value in fields}


def users_of(agent: Up, name: str) -> int:
    """The user of the host that the pod's first process is."""
    (uid,) = set(status_of(first_of(agent.container(name)))["Uid"].split())
    return int(uid)


def output(agent: Up, name: str, *command: str) -> str:
    executed = done(agent, "exec", name, "--", *command)
    assert executed.returncode == 0, executed.stderr
    return executed.stdout.decode()


STAY = "echo done; exec sleep 1000"


@pytest.mark.parametrize("image", IMAGES)
def test_root_in_the_container_has_no_rights_on_the_host(agent: Up, tmp_path: Path, image: str):
    secret, shared = tmp_path / "secret", tmp_path / "shared"
    secret.mkdir(mode=0o755)
    (secret / "key").write_text("root's own\n")
    (secret / "key").chmod(0o600)
    shared.mkdir()
    shared.chmod(0o777)
    look = (
        "id -u; id -g; touch /data/mine; chown 1000:2000 /data/mine; mkdir /data/dir; touch /tmp/one;"
        " cat /secret/key; echo x > /secret/other; chmod 777 /secret/key; touch /shared/file; chown 0 /shared/file;"
        " stat -c %u /data/mine /tmp/one /secret/key /shared/file /dev/null /dev/pts/ptmx;"
        " echo x > /dev/null; echo told > /dev/termination-log; echo again > /dev/stdout;"
        " kill -9 1; cat /etc/shadow > /dev/null; echo 1 > /proc/sys/kernel/sysrq; hostname other;"
        " mount -t tmpfs none /mnt; " + STAY
    )
    volumes = [
        {"name": "data", "emptyDir": {}},
        {"name": "secret", "hostPath": {"path": str(secret)}},
        {"name": "shared", "hostPath": {"path": str(shared)}},
    ]
    mounts = [{"name": one["name"], "mountPath": f"/{one['name']}"} for one in volumes]
    agent.apply(own(agent, "one", look, image, volumes=volumes, container={"volumeMounts": mounts}))
    lines = await_said(agent, "one")
    reported = [line for line in lines if line.isdecimal()]
    # To the host's files it is a stranger, and they have no owner that it knows.
    assert reported == ["0", "0", "1000", "0", "65534", "0", "0", "0"], lines
    assert "again" in lines
    assert "root's own" not in lines
    assert not (secret / "other").exists()
    assert (secret / "key").stat().st_mode & 0o777 == 0o600
    assert (shared / "file").stat().st_uid == users_of(agent, "one") >= FIRST, "no file of root's is made"
    uid = agent.pod("one")["metadata"]["uid"]
    data = agent.state / "pods" / uid / "volumes/data"
    mine = (data / "mine").stat()
    assert (mine.st_uid, mine.st_gid, (data / "dir").stat().st_uid) == (1000, 2000, 0), "as it says, on disk"
    status = status_of(first_of(agent.container("one")))
    default = syscalls.mask(*syscalls.DEFAULT_CAPABILITIES)
    assert {int(status[field], 16) for field in ("CapPrm", "CapEff", "CapBnd")} == {default}
    assert (status["Seccomp"], status["NoNewPrivs"]) == ("2", "1")
    namespaces = {kind: namespace(agent, "one", kind) for kind in ("user", "mnt", "pid", "cgroup")}
    assert all(inode != inode_of(kind, os.getpid()) for kind, inode in namespaces.items())


def namespace(agent: Up, name: str, kind: str, container: str = "main") -> int:
    return inode_of(kind, first_of(agent.container(name, container)))


def inode_of(kind: str, pid: int) -> int:
    return Path(f"/proc/{pid}/ns/{kind}").stat().st_ino


def test_commands_probes_and_hooks_have_the_same_users(agent: Up):
    probe = {"exec": {"command": ["sh", "-c", "test $(id -u) = 7"]}, "periodSeconds": 1, "timeoutSeconds": 30}
    hook = {"exec": {"command": ["sh", "-c", "id -u > /data/hook"]}}
    agent.apply(
        own(
            agent,
            "seven",
            "trap 'exit 3' TERM; echo out > /dev/stdout; echo done; while :; do sleep 0.1; done",
            volumes=[{"name": "data", "emptyDir": {}}],
            securityContext={"runAsUser": 7, "runAsGroup": 8, "fsGroup": 9, "supplementalGroups": [10]},
            container={
                "readinessProbe": probe,
                "lifecycle": {"postStart": hook},
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            },
            restartPolicy="Never",
        )
    )
    assert "out" in await_said(agent, "seven")
    agent.await_that("seven", lambda status: status.get("containerStatuses", [{}])[0].get("ready"))
    # One command: each takes a guest ten seconds.
    look = "cat /proc/self/uid_map; id -u; id -G; cat /data/hook; cat /proc/self/status"
    mapping, uid, groups, hooked, *status = output(agent, "seven", "sh", "-c", look).splitlines()
    inside, first, amount = map(int, mapping.split())
    assert (inside, first % FIRST, first >= FIRST, amount) == (0, 0, True, 1 << 16)
    assert (uid, set(groups.split()), hooked) == ("7", {"8", "9", "10"}, "7")
    fields = dict(line.split(":", 1) for line in status)
    assert (fields["CapEff"].strip(), fields["Seccomp"].strip()) == ("0" * 16, "2")
    assert int(fields["CapBnd"], 16) == syscalls.mask(*syscalls.DEFAULT_CAPABILITIES)


def test_secrets_and_memory_have_their_owners(agent: Up):
    if kernel_version() < (6, 3):
        pytest.skip("in this kernel, memory cannot show files with other owners")
    agent.apply(
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "key"}, "stringData": {"a": "hidden"}},
        own(
            agent,
            "memory",
            f"cat /keys/a && touch /memory/file && stat -L -c %u:%a /keys/a /memory/file; {STAY}",
            volumes=[
                {"name": "keys", "secret": {"secretName": "key", "defaultMode": 0o400}},
                {"name": "memory", "emptyDir": {"medium": "Memory"}},
            ],
            container={
                "volumeMounts": [
                    {"name": "keys", "mountPath": "/keys"},
                    {"name": "memory", "mountPath": "/memory"},
                ]
            },
        ),
    )
    assert await_said(agent, "memory") == ["hidden0:400", "0:644", "done"]


def test_without_mapped_memory_a_pod_that_needs_it_says_so(agent: Up):
    if kernel_version() >= (6, 3):
        pytest.skip("in this kernel, memory can show files with other owners")
    mount = {"volumeMounts": [{"name": "memory", "mountPath": "/memory"}]}
    volume = {"name": "memory", "emptyDir": {"medium": "Memory"}}
    agent.apply(own(agent, "memory", STAY, volumes=[volume], container=mount))
    agent.await_that("memory", lambda status: "idmapped mounts" in json.dumps(status))


def kernel_version() -> tuple[int, int]:
    major, minor = os.uname().release.split(".")[:2]
    return int(major), int(minor)


def test_no_two_pods_have_the_same_users_and_an_adopted_pod_keeps_them(up: MakeUp):
    agent = up()
    agent.start(stop_pods=False)
    for name in ("one", "two"):
        agent.apply(own(agent, name, STAY))
        await_said(agent, name)
    before = {name: users_of(agent, name) for name in ("one", "two")}
    processes = {name: first_of(agent.container(name)) for name in before}
    assert len(set(before.values())) == 2
    assert all(first >= FIRST and first % FIRST == 0 for first in before.values())
    agent.kill()
    agent.start(stop_pods=False)
    agent.apply(own(agent, "three", STAY))
    await_said(agent, "three")
    assert {name: first_of(agent.container(name)) for name in before} == processes, "they run on"
    assert users_of(agent, "three") not in before.values()
    assert output(agent, "one", "id", "-u").strip() == "0"
    supervisor = agent.supervisor_pid()
    assert supervisor is not None
    os.kill(supervisor, 9)
    eventually(lambda: agent.supervisor_pid() not in (None, supervisor))
    # A command is refused until the agent has found the new one.
    eventually(lambda: done(agent, "exec", "two", "--", "id", "-u").stdout == b"0\n")
    # A container that is started again is in the same namespace.
    inode = namespace(agent, "one", "user")
    os.kill(processes["one"], 9)
    eventually(lambda: said(agent, "one").count("done") == 2, details=lambda: details_of(agent, "one"))
    assert users_of(agent, "one") == before["one"]
    assert namespace(agent, "one", "user") == inode
    agent.client.delete("default", "one")
    agent.await_gone("one")
    agent.apply(own(agent, "four", STAY))
    await_said(agent, "four")
    assert users_of(agent, "four") not in (before["two"], users_of(agent, "three"))


def test_no_pod_of_another_agent_has_the_same_users(agent: Up, up: MakeUp):
    agent.apply(own(agent, "one", STAY))
    await_said(agent, "one")
    other = up()
    other.start()
    other.apply(own(other, "one", STAY), own(other, "two", STAY))
    for name in ("one", "two"):
        await_said(other, name)
    agent.apply(own(agent, "two", STAY))
    await_said(agent, "two")
    assert len({users_of(each, name) for each in (agent, other) for name in ("one", "two")}) == 4


def test_containers_of_a_pod_share_their_users(agent: Up):
    one = own(agent, "both", STAY, shareProcessNamespace=True)
    looks = "until grep -qs sleep /proc/[0-9]*/comm; do :; done; kill -0 $(pidof sleep) && echo may; " + STAY
    one["spec"]["containers"].append(
        {"name": "other", "image": image_of(agent), "command": ["/bin/sh", "-c", looks]}
    )
    agent.apply(one)
    eventually(lambda: said(agent, "both").count("done") == 2, details=lambda: details_of(agent, "both"))
    assert "may" in said(agent, "both")
    assert namespace(agent, "both", "user", "main") == namespace(agent, "both", "user", "other")


def test_terminals_copies_and_messages_work_with_own_users(agent: Up, tmp_path: Path):
    text = "echo ready; read line; id -u > /dev/termination-log; tty; echo $line; exit 4"
    agent.apply(
        own(agent, "tty", text, container={"stdin": True, "tty": True}, restartPolicy="Never"),
        own(agent, "stays", STAY, container={"terminationMessagePath": "/said"}),
    )
    await_said(agent, "stays")
    with at_terminal(agent, "exec", "-it", "stays", "--", "/bin/sh") as terminal:
        terminal.type("stat -L -c owner-%u-%g /dev/stdin; exit 5\n")
        terminal.await_shown("owner-0-5")
        assert terminal.exit_code() == 5
    (tmp_path / "file").write_text("content")
    assert done(agent, "cp", str(tmp_path / "file"), "stays:/tmp/there").returncode == 0
    assert output(agent, "stays", "stat", "-c", "%u", "/tmp/there").strip() == "0"
    assert done(agent, "cp", "stays:/tmp/there", str(tmp_path / "back")).returncode == 0
    assert (tmp_path / "back").read_text() == "content"
    agent.await_phase("tty", "Running")
    with at_terminal(agent, "attach", "-it", "tty") as attached:
        attached.type("hello\n")
        attached.await_shown("/dev/pts/0")
    ended = agent.await_phase("tty", "Failed")["containerStatuses"][0]["state"]["terminated"]
    assert (ended["exitCode"], ended["message"]) == (4, "0\n")


def test_what_cannot_be_had_with_own_users_is_refused(agent: Up):
    for field in ("hostNetwork", "hostPID", "hostIPC"):
        with pytest.raises(InvalidInput, match="hostUsers: false"):
            agent.apply(own(agent, field.lower(), STAY, "image", **{field: True}))
    agent.apply(own(agent, "large", STAY, securityContext={"runAsUser": 65536}))
    agent.await_that("large", lambda status: "0 to 65535" in status.get("message", ""))


def test_root_without_a_filter_finds_no_way_out(agent: Up):
    """It may make namespaces of its own, in which it may mount."""
    state = str(agent.state)
    tries = (
        f"echo inside; umount {state} && echo uncovered; mount --bind / /mnt && echo bound; ls {state} /mnt{state};"
        f" mount --rbind / /mnt && umount /mnt{state} && echo uncovered;"
        " mount -o remount,rw / && touch /escaped && echo wrote;"
        " for file in /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max;"
        "  do (mount -o remount,rw /sys/fs/cgroup; echo 1 > $file) && echo $file; done;"
        " mkdir /tmp/c; (mount -t cgroup2 none /tmp/c || mount -t cgroup -o memory none /tmp/c);"
        " for file in $(find /tmp/c -name 'memory.max' -o -name memory.limit_in_bytes);"
        "  do (echo 1 > $file) && echo $file; done; mknod /tmp/disk b 8 0 && echo made"
    )
    context = {"seccompProfile": {"type": "Unconfined"}}
    command = f'unshare -r -m -C sh -c "$TRIES" 2> /dev/null; {STAY}'
    env = [{"name": "TRIES", "value": tries.replace("$(", "$$(")}]
    agent.apply(own(agent, "out", command, "host", container={"securityContext": context, "env": env}))
    assert await_said(agent, "out") == ["inside", "done"]
    assert status_of(first_of(agent.container("out")))["Seccomp"] == "0"


def test_an_unmasked_proc_changes_nothing_on_the_host(agent: Up):
    """It lets a container make containers of its own: a fresh /proc can be mounted only where /proc is seen whole."""
    files = " ".join(
        f"/proc/{name}"
        for name in ("sys/kernel/core_pattern", "sysrq-trigger", "sys/kernel/hostname", "irq/0/smp_affinity")
    )
    tries = (
        f'for file in {files}; do (echo x > $file) 2> /dev/null && echo "wrote $file"; done;'
        " (head -c 1 /proc/kcore | wc -c) 2> /dev/null; grep -c ' /proc/' /proc/self/mountinfo;"
        " unshare -r -m -p -f sh -c 'mount -t proc none /proc 2> /dev/null && echo nested || echo none'; "
        + STAY
    )
    for name, mount in (("masked", "Default"), ("unmasked", "Unmasked")):
        context = {"procMount": mount, "seccompProfile": {"type": "Unconfined"}}
        agent.apply(own(agent, name, tries, "host", container={"securityContext": context}))
    masked, unmasked = await_said(agent, "masked"), await_said(agent, "unmasked")
    assert unmasked == ["0", "0", "nested", "done"]
    assert (masked[0], masked[1] != "0", masked[2:]) == ("0", True, ["none", "done"])
