"""Slices and scopes on a machine that systemd runs: made, set, kept over its reloads, healed, and removed."""

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from evenkeel.cgroup.driver import CgroupError
from evenkeel.cgroup.drivers.cgroupfs import Bounds
from evenkeel.cgroup.drivers.systemd import SystemdDriver
from evenkeel.cgroup.drivers.systemd_units import can_hold
from evenkeel.cgroup.kernel_files import same_value
from evenkeel.cgroup.plan import plan
from evenkeel.cgroup.reconcile import Report, reconcile
from evenkeel.cgroup.tree import Cgroup, Kind, Naming, Setting, Tree, Version
from evenkeel.cli.main import main
from evenkeel.host.capacity import on_this_machine
from evenkeel.policy.provision import PlannedPod
from evenkeel.runtime.syscalls import set_child_subreaper
from tests.kernel.conftest import PREFIX
from tests.kernel.waiting import eventually
from tests.strategies import container, node, pod

pytestmark = pytest.mark.cgroup("systemd")

MOUNT = Path("/sys/fs/cgroup")
SYSTEM = "/system.slice"
THIRD_OF_A_CPU = "333m"  # no whole percent: systemd cannot keep it


class Node(NamedTuple):
    """A root with pods in it, as planned and applied."""

    name: str
    root: str
    driver: SystemdDriver
    tree: Tree
    report: Report

    def container(self, name: str) -> str:
        return next(cgroup.path for cgroup in self.tree.cgroups if cgroup.container == name)

    def pod(self, name: str) -> str:
        return self.container(name).rpartition("/")[0]

    def again(self) -> Report:
        return reconcile(self.driver, self.tree, last=self.report)


def new_name() -> str:
    return f"{PREFIX}y{secrets.token_hex(3)}"


def planned(name: str) -> Tree:
    """A pod of each class; and beside what the plan sets, cores, huge pages, and memory for the daemons."""
    size = {"cpu": THIRD_OF_A_CPU, "memory": "64Mi"}
    pods = [
        pod(container(size, size, name="sure"), name=f"{name}-1"),
        pod(
            container({"cpu": "100m", "memory": "32Mi"}, {"cpu": "250m", "memory": "64Mi"}, name="bound"),
            container({"memory": "16Mi"}, name="free-er"),
            name=f"{name}-2",
        ),
        pod(container(name="last"), name=f"{name}-3"),
    ]
    machine = node("900Mi", 1, cgroup_root=f"/{name}", cgroup_driver="systemd")
    tree = plan(machine, [PlannedPod(one) for one in pods], Version.V2, Naming.SYSTEMD)
    more = {
        "bound": (
            Setting("cpuset.cpus", "0", "A23", "test"),
            Setting("cpu.max.burst", "5000", "E10", "test"),
        ),
        "last": (Setting("hugetlb.2MB.max", "0", "A24", "test"),),
    }
    cgroups = [_with(one, more.get(one.container, ())) for one in tree.cgroups]
    daemons = Cgroup(SYSTEM, Kind.RESERVED, (Setting("memory.min", str(16 << 20), "B5", "test"),))
    return tree._replace(cgroups=(daemons, *cgroups))


def _with(cgroup: Cgroup, more: tuple[Setting, ...]) -> Cgroup:
    files = {setting.file for setting in more}
    return cgroup._replace(settings=(*(one for one in cgroup.settings if one.file not in files), *more))


@pytest.fixture(scope="module")
def running() -> Iterator[Node]:
    name = new_name()
    root = f"/{name}.slice"
    driver = SystemdDriver(str(MOUNT), Bounds(root, (SYSTEM,)))
    tree = planned(name)
    try:
        yield Node(name, root, driver, tree, reconcile(driver, tree))
    finally:
        driver.write(SYSTEM, "memory.min", "0")
        driver.remove(root)
        driver.close()


def differences(tree: Tree) -> list[tuple[str, str]]:
    """What the kernel does not have as the tree wants it."""
    return [
        (cgroup.path, file)
        for cgroup in tree.cgroups
        for file, value, _, _ in cgroup.settings
        if not same_value(file, value, (MOUNT / cgroup.path[1:] / file).read_text().strip())
    ]


def systemctl(*words: str) -> str:
    return subprocess.run(["systemctl", *words], capture_output=True, text=True, check=True).stdout


def bus(destination: str, interface: str, method: str, *arguments: str) -> str:
    path = "/" + destination.replace(".", "/")
    command = ["busctl", "--system", "call", destination, path, interface, method, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def owner_of_systemds_name() -> str:
    return bus(
        "org.freedesktop.DBus", "org.freedesktop.DBus", "GetNameOwner", "s", "org.freedesktop.systemd1"
    )


def reload(how: str) -> None:
    """`systemctl how`, until systemd has done all that follows from it."""
    before = owner_of_systemds_name()
    systemctl(how)
    if how == "daemon-reexec":
        eventually(lambda: owner_of_systemds_name() not in ("", before))
    # It answers with an empty message, and only after it has worked through its queue of cgroups.
    command = ["busctl", "--system", "call", "org.freedesktop.systemd1", "/org/freedesktop/systemd1"]
    ping = [*command, "org.freedesktop.DBus.Peer", "Ping"]
    eventually(lambda: subprocess.run(ping, capture_output=True, check=False).returncode == 0)


def sleepers() -> set[str]:
    """The processes that hold the places of containers, wherever they are."""
    found = set()
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            if (directory / "cmdline").read_bytes() == b"sleep\0infinity\0":
                found.add(directory.name)
        except OSError:  # ended meanwhile
            continue
    return found


def units_about(name: str) -> str:
    return systemctl("list-units", "--all", "--plain", "--no-legend", f"*{name}*")


def files_about(name: str) -> list[str]:
    """What systemd keeps of units; it works there meanwhile."""
    walked = os.walk("/run/systemd")  # leaves out what it cannot read any more
    return [one for _, below, files in walked for one in (*below, *files) if name in one]


@pytest.mark.req("A24", "B10")
def test_the_plan_becomes_slices_and_scopes_and_a_second_pass_writes_nothing(running):
    assert not running.report.failures
    assert not running.report.unavailable
    assert differences(running.tree) == []
    assert running.again().done == ()
    states = {line.split()[0]: line.split()[1:3] for line in units_about(running.name).splitlines()}
    wanted = {one.path.rpartition("/")[2] for one in running.tree.cgroups if one.path != SYSTEM}
    assert states == {unit: ["loaded", "active"] for unit in wanted}


@pytest.mark.req("E9", "A24")
@pytest.mark.parametrize("how", ["daemon-reload", "daemon-reexec"])
def test_systemd_keeps_its_properties_when_reloaded_and_the_rest_is_healed_and_reported(running, how):
    reload(how)
    drifted = set(differences(running.tree))
    values = {(one.path, s.file): s.value for one in running.tree.cgroups for s in one.settings}
    assert (running.container("sure"), "cpu.max") in drifted
    assert not [place for place in drifted if can_hold(place[1], values[place])]
    report = running.again()
    assert not report.failures
    assert {(repair.path, repair.file) for repair in report.repairs} == drifted
    assert differences(running.tree) == []
    assert running.again().done == ()


@pytest.mark.req("E9")
def test_drift_by_systemctl_and_by_hand_is_healed_and_reported(running):
    pods = running.pod("sure").rpartition("/")[0]
    unit = running.pod("bound").rpartition("/")[2]
    systemctl("set-property", "--runtime", unit, "MemoryMax=30M", "CPUWeight=7")
    systemctl("set-property", running.container("bound").rpartition("/")[2], "TasksMax=7")
    systemctl("stop", running.container("free-er").rpartition("/")[2])
    (MOUNT / running.container("sure")[1:] / "memory.max").write_text("50M")
    (MOUNT / pods[1:] / "foreign").mkdir()
    report = running.again()
    assert not report.failures
    places = {(repair.path, repair.file) for repair in report.repairs}
    assert places >= {
        (running.pod("bound"), "cpu.weight"),
        (running.container("sure"), "memory.max"),
        (running.container("free-er"), ""),
        (f"{pods}/foreign", ""),
    }
    assert differences(running.tree) == []
    assert running.again().done == ()


@pytest.mark.req("A17", "A24")
def test_a_container_has_its_cgroup_and_limits_before_it_begins_and_the_scope_lives_as_long_as_it(running):
    set_child_subreaper()  # as the agent: placeholders are our children, and must be reaped
    scope = running.container("last")
    running.driver.remove(scope)
    assert running.again().done
    assert running.driver.processes(scope) == ()
    program = ["/bin/sh", "-c", "read go; cat /proc/self/cgroup; read go"]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        running.driver.add_process(scope, process.pid)
        assert running.driver.processes(scope) == (process.pid,)
        assert running.driver.processes(running.root) == (process.pid,)
        assert (MOUNT / scope[1:] / "pids.current").read_text() == "1\n"
        assert running.again().done == ()
        process.stdin.write("go\n")
        process.stdin.flush()
        assert process.stdout.readline() == f"0::{scope}\n"
        assert running.driver.statistics(scope).memory_usage_bytes > 0
        process.stdin.write("go\n")
    eventually(lambda: not (MOUNT / scope[1:]).exists())
    assert not running.again().failures
    assert differences(running.tree) == []


@pytest.mark.req("A24", "E9")
def test_the_command_line_makes_cgroups_that_stay_when_it_has_ended(tmp_path, capsys):
    name = new_name()
    manifest = tmp_path / "pod.yaml"
    spec = {"containers": [{"name": "c", "image": "host"}]}
    manifest.write_text(
        json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "uid": name}, "spec": spec})
    )
    words = ["plan", "-f", str(manifest), "--cgroup-root", f"/{name}", "--cgroup-driver", "systemd"]
    driver = SystemdDriver(str(MOUNT), Bounds(f"/{name}.slice"))
    try:
        command = [sys.executable, "-m", "evenkeel", *words, "--apply"]
        applied = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (applied.returncode, applied.stderr) == (0, "")
        assert f"evenkeel-{name}-c.scope" in units_about(name)
        assert main([*words, "-o", "json"]) == 0
        assert not json.loads(capsys.readouterr().out).get("steps")
    finally:
        driver.remove(f"/{name}.slice")
        driver.close()


def test_kubelets_root_slice_has_every_cpu_and_the_slice_above_keeps_its_weight():
    name = new_name()
    root = f"/{name}.slice"
    machine = node("900Mi", 1, cgroup_root=f"/{name}", cgroup_driver="systemd", profile="kubernetes")
    tree = plan(on_this_machine(machine), [PlannedPod(pod(container()))], Version.V2, Naming.SYSTEMD)
    driver = SystemdDriver(str(MOUNT), Bounds(root))
    try:
        report = reconcile(driver, tree)

        assert [str(error) for error in report.failures] == []
        online = Path("/sys/devices/system/cpu/online").read_text()
        (pods,) = (one.path for one in tree.cgroups if one.kind == Kind.ROOT)
        assert (MOUNT / pods[1:] / "cpuset.cpus").read_text() == online
        assert (MOUNT / root[1:] / "cpu.weight").read_text() == "100\n"
        assert reconcile(driver, tree, last=report).done == ()
        subprocess.run(["systemctl", "daemon-reload"], check=True)
        assert (MOUNT / pods[1:] / "cpuset.cpus").read_text() == online
    finally:
        driver.remove(root)
        driver.close()


@pytest.mark.req("A24", "B10")
def test_removal_leaves_nothing():
    before = sleepers()
    name = new_name()
    root = f"/{name}.slice"
    driver = SystemdDriver(str(MOUNT), Bounds(root))
    pods = f"{root}/{name}-kubepods.slice"
    scope = f"{pods}/evenkeel-{name}-c.scope"
    driver.create(scope)
    driver.write(pods, "memory.max", str(64 << 20))
    driver.write(scope, "memory.oom.group", "1")
    eventually(
        lambda: len(sleepers() - before) == 1
    )  # a shell starts it, and has ended before it is executed
    # An idle slice whose cgroup was removed is made again, with the unit that still runs.
    idle = f"{root}/{name}-idle.slice"
    driver.create(idle)
    (MOUNT / idle[1:]).rmdir()
    driver.create(idle)
    assert (MOUNT / idle[1:] / "memory.max").exists()
    driver.remove(root)
    driver.remove(root)
    driver.close()
    assert not (MOUNT / root[1:]).exists()
    eventually(lambda: units_about(name) == "")  # systemd forgets units after it has stopped them
    eventually(lambda: not files_about(name))
    eventually(lambda: sleepers() <= before)


@pytest.mark.req("A24")
def test_what_systemd_cannot_do_is_reported_and_leaves_no_process_behind(running):
    before = sleepers()
    name = new_name()
    other = SystemdDriver(str(MOUNT), Bounds(f"/{name}.slice"))
    try:
        with pytest.raises(CgroupError, match=f"runs at {running.container('sure')}, not at"):
            other.create(f"/{name}.slice/{running.container('sure').rpartition('/')[2]}")
        with pytest.raises(CgroupError, match="is not ours"):
            other.create(running.pod("sure"))
        with pytest.raises(CgroupError, match="systemd has it at"):
            other.create(f"/{name}.slice/x.slice")
        with pytest.raises(CgroupError, match=r"systemctl start .x\.service"):
            other.create(f"/{name}.slice/x.service")
        with pytest.raises(CgroupError, match="cannot write"):
            other.write(f"/{name}.slice", "memory.max", "a lot")
    finally:
        other.remove(f"/{name}.slice")
        other.close()
    eventually(lambda: sleepers() <= before)  # one of before may have been on its way out
