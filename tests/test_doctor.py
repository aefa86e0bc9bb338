"""`evenkeel doctor`: each check on machines that are sound but for one thing, and the command on this machine."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from evenkeel.api.config import KubeletConfiguration, Profile, defaulted
from evenkeel.api.scalars import Amount
from evenkeel.cgroup.drivers.detect import CgroupMachine
from evenkeel.cgroup.drivers.mounts import Mounts
from evenkeel.cgroup.tree import Version
from evenkeel.cli.main import main
from evenkeel.errors import EvenkeelError
from evenkeel.host.checks import State
from evenkeel.host.doctor import diagnose
from evenkeel.host.kernel_settings import Difference, KernelSetting, SwapDevice, kernel_settings
from evenkeel.host.machine import (
    FEATURE_FILES,
    Capabilities,
    CgroupSeen,
    Machine,
    Neighbour,
    inspect_machine,
    neighbours,
    parse_capabilities,
)
from evenkeel.kube.certificates import Certificate
from evenkeel.kube.cluster_checks import Asked, ClusterFacts, cluster_checks
from evenkeel.policy.allocatable import NodeCapacity
from evenkeel.policy.eviction.snapshot import FilesystemFigures, MemoryFigures, NodeFigures, ProcessFigures
from evenkeel.runtime.process import seccomp
from evenkeel.runtime.process.seccomp import NoFilter, filter_check

GI = 1 << 30
ALL = frozenset(("CAP_KILL", "CAP_IPC_LOCK", "CAP_SYS_ADMIN", "CAP_SYS_RESOURCE", "CAP_SYSLOG"))
V2 = CgroupMachine(Version.V2, Mounts({}, "/sys/fs/cgroup"), ("cpu", "cpuset", "memory", "pids", "hugetlb"))
V1_NAMES = ("cpu", "cpuacct", "cpuset", "memory", "pids", "freezer")
V1 = CgroupMachine(Version.V1, Mounts({name: f"/sys/fs/cgroup/{name}" for name in V1_NAMES}), ())
HYBRID = V1._replace(mounts=V1.mounts._replace(v2="/sys/fs/cgroup/unified"))
DISK = FilesystemFigures(Amount(60 * GI), Amount(100 * GI), Amount(900), Amount(1000))
SOUND = Machine(
    kernel="6.1.0-54-cloud-amd64",
    capacity=NodeCapacity(8000, 32 * GI, 100 * GI, {2 << 20: 0}),
    figures=NodeFigures(
        MemoryFigures(Amount(30 * GI), Amount(2 * GI)),
        None,
        DISK,
        DISK,
        None,
        ProcessFigures(Amount(30000), Amount(200)),
    ),
    cgroups=V2,
    features={**dict.fromkeys(FEATURE_FILES, True), "process_mrelease": True},
    root=CgroupSeen("/evenkeel", ("/sys/fs/cgroup/evenkeel",), ("/sys/fs/cgroup/evenkeel",)),
    capabilities=Capabilities(ALL, ALL),
    time_seconds=1.8e9,
)
OVERCOMMIT = (Difference(kernel_settings(Profile.DOCUMENTS)[0], 0),)
SWAP = (SwapDevice("/dev/sda2", "partition", 2 * GI, 0),)


def checks(changes=None, **fields):
    """The checks of the sound machine with `changes`, under a configuration with `fields`."""
    return diagnose(SOUND._replace(**(changes or {})), defaulted(KubeletConfiguration(**fields))).checks


def only(state, changes=None, **fields):
    """The one check in `state`, of a machine that has nothing else in it."""
    found = [check for check in checks(changes, **fields) if check.state == state]
    assert len(found) == 1, found
    return found[0]


def broken(changes=None, **fields):
    check = only(State.BROKEN, changes, **fields)
    assert check.promise
    assert check.requirements
    assert check.mends
    return check


def test_a_sound_machine_breaks_no_promise():
    assert {check.state for check in checks()} == {State.OK}
    diagnosis = diagnose(SOUND, defaulted(KubeletConfiguration()))
    assert diagnosis.is_sound
    diagnosis.or_raise()


# The cgroups


def test_without_cgroups_nothing_can_be_promised():
    check = broken({"cgroups": None, "cgroups_problem": "no cgroup filesystem is mounted"})
    assert (check.name, check.stops_agent) == ("cgroup version", True)
    assert check.mends == ("mount -t cgroup2 cgroup2 /sys/fs/cgroup",)


@pytest.mark.req("C5")
def test_memory_qos_on_cgroup_v1_is_said_not_to_be_possible():
    check = broken({"cgroups": V1})
    assert check.name == "memory protection"
    assert check.seen == "cgroup v1 has no memory.min and no memory.high"
    assert "C5" in check.requirements
    assert "--feature-gates MemoryQoS=false, to do without" in check.mends
    assert not check.stops_agent


@pytest.mark.req("C5")
def test_switched_off_memory_qos_is_not_missed():
    assert only(State.NOTE, {"cgroups": V1}, feature_gates={"MemoryQoS": False}).name == "cgroup version"


@pytest.mark.req("C5")
def test_where_no_cgroup_shows_memory_min_the_kernels_version_tells():
    assert broken({"features": SOUND.features | {"memory.min": None}, "kernel": "4.17.0"}).seen == (
        "kernel 4.17.0 has no memory.min"
    )


@pytest.mark.req("C5")
def test_a_kernel_too_old_for_memory_min_is_named():
    check = broken({"features": SOUND.features | {"memory.min": False}, "kernel": "4.15.0-20-generic"})
    assert check.seen == "kernel 4.15.0-20-generic has no memory.min"
    assert check.mends[0] == "start a kernel of version 4.18 or later"


def test_a_hybrid_host_is_cgroup_v1():
    check = only(State.NOTE, {"cgroups": HYBRID}, feature_gates={"MemoryQoS": False})
    assert check.seen == "v1 (hybrid: v2 at /sys/fs/cgroup/unified has none of its controllers)"
    assert check.mends == (
        "boot with systemd.unified_cgroup_hierarchy=1 cgroup_no_v1=all on the kernel's command line",
    )


@pytest.mark.parametrize(
    ("tool", "start", "end"),
    [
        ("update-grub", "echo 'GRUB_CMDLINE_LINUX=", "update-grub && reboot"),
        ("grubby", "grubby --update", "reboot"),
    ],
)
def test_the_kernels_command_line_is_changed_with_what_the_machine_has(tool, start, end):
    mend = only(State.NOTE, {"cgroups": V1, "boot_tool": tool}, feature_gates={"MemoryQoS": False}).mends[0]
    assert mend.startswith(start)
    assert mend.endswith(end)
    assert "cgroup_no_v1=all" in mend


def test_cgroup_v1_can_be_refused():
    check = broken({"cgroups": V1}, fail_cgroup_v1=True, feature_gates={"MemoryQoS": False})
    assert check.stops_agent
    assert "--fail-cgroup-v1=false" in check.mends


@pytest.mark.req("E7")
@pytest.mark.parametrize(
    ("cgroups", "fields", "mend"),
    [
        (
            V2._replace(v2_controllers=("cpu", "pids")),
            {},
            "boot with cgroup_enable=memory on the kernel's command line",
        ),
        (
            V2._replace(v2_controllers=("memory", "cpu"), mounts=Mounts({"pids": "/p"}, "/c")),
            {},
            "boot with cgroup_no_v1=pids on the kernel's command line",
        ),
        (
            V2._replace(v2_controllers=("memory", "cpu", "pids")),
            {"cpu_manager_policy": "static"},
            "start a kernel with",
        ),
    ],
)
def test_a_missing_controller_has_its_mend(cgroups, fields, mend):
    check = broken({"cgroups": cgroups}, **fields)
    assert check.name == "controllers"
    assert check.mends[0].startswith(mend)


@pytest.mark.req("E7")
def test_a_controller_that_v1_has_not_mounted_is_mounted():
    without = V1._replace(mounts=Mounts({name: at for name, at in V1.mounts.v1.items() if name != "pids"}))
    check = broken({"cgroups": without}, feature_gates={"MemoryQoS": False})
    assert check.mends == (
        "mkdir -p /sys/fs/cgroup/pids && mount -t cgroup -o pids pids /sys/fs/cgroup/pids",
    )


def test_huge_pages_need_their_controller():
    changes = {
        "capacity": SOUND.capacity._replace(hugepages={2 << 20: 4}),
        "cgroups": V2._replace(v2_controllers=("cpu", "memory", "pids")),
    }
    assert broken(changes).seen == "hugetlb is missing"


@pytest.mark.req("E7")
def test_processes_above_the_pods_are_in_the_way():
    check = broken({"crowded": ("/outer",)})
    assert check.stops_agent
    assert check.mends[0] == (
        "mkdir -p /sys/fs/cgroup/outer/others && for p in $(cat /sys/fs/cgroup/outer/cgroup.procs); do echo $p >"
        " /sys/fs/cgroup/outer/others/cgroup.procs; done"
    )


@pytest.mark.req("E7")
def test_cgroups_that_cannot_be_made_are_said_to_be_so():
    check = broken({"root_refusal": "/sys/fs/cgroup is mounted read-only"})
    assert check.mends[0] == "mount -o remount,rw /sys/fs/cgroup"


KUBE = CgroupSeen("/kube.slice", ("/c/kube.slice",), ("/c/kube.slice",))
ENFORCED: dict[str, Any] = {
    "kube_reserved": {"memory": "1Gi"},
    "kube_reserved_cgroup": "/kube.slice",
    "enforce_node_allocatable": ("pods", "kube-reserved"),
}


@pytest.mark.req("B5", "E7")
def test_a_missing_reserved_cgroup_has_the_exact_mend():
    check = broken({"reserved": (KUBE,)}, **ENFORCED)
    assert check.seen == "/kube.slice does not exist: /c/kube.slice is not there"
    assert check.mends == ("--create-reserved-cgroups", "mkdir -p /c/kube.slice")
    assert check.stops_agent
    under_systemd = checks({"reserved": (KUBE,), "is_systemd": True}, **ENFORCED, cgroup_driver="systemd")
    assert [check.mends[1] for check in under_systemd if check.name == "reserved cgroups"] == [
        "systemctl start kube.slice"
    ]


@pytest.mark.req("B5", "E7")
def test_the_agent_says_at_start_up_what_keeps_it_from_starting():
    machine = SOUND._replace(reserved=(KUBE,), swap=SWAP)
    with pytest.raises(EvenkeelError) as refusal:
        diagnose(machine, defaulted(KubeletConfiguration(**ENFORCED))).or_raise()
    assert str(refusal.value).splitlines() == [
        (
            "reserved cgroups: /kube.slice does not exist: /c/kube.slice is not there; what is reserved for daemons is"
            " not enforced on them (mend: --create-reserved-cgroups, or mkdir -p /c/kube.slice)"
        ),
        (
            "swap: on: /dev/sda2 (2Gi, 0 used); a pod whose memory is swapped out does not have what it requested"
            " (mend: swapoff -a, and take its lines out of /etc/fstab, or --fail-swap-on=false, to keep it from"
            " Guaranteed and Burstable containers only)"
        ),
    ]


@pytest.mark.req("E7")
def test_a_reserved_cgroup_is_made_when_asked():
    assert {
        check.state for check in checks({"reserved": (KUBE,)}, **ENFORCED, create_reserved_cgroups=True)
    } == {State.OK}
    there = KUBE._replace(missing=())
    assert {check.state for check in checks({"reserved": (there,)}, **ENFORCED)} == {State.OK}


def test_a_reserved_cgroup_that_is_only_reported_does_not_stop_the_agent():
    check = broken({"reserved": (KUBE,)}, kube_reserved_cgroup="/kube.slice")
    assert not check.stops_agent


def test_the_systemd_driver_needs_systemd():
    assert broken(cgroup_driver="systemd").mends == ("--cgroup-driver cgroupfs",)
    assert only(State.NOTE, {"is_systemd": True}).mends == ("--cgroup-driver systemd",)


# The kernel


@pytest.mark.parametrize("feature", ["memory.oom.group", "memory.reclaim", "cgroup.kill", "process_mrelease"])
def test_a_missing_feature_is_a_note(feature):
    check = only(State.NOTE, {"features": SOUND.features | {feature: False}})
    assert check.seen == f"6.1.0-54-cloud-amd64 has no {feature}"
    assert re.fullmatch(r"start a kernel of version \d+\.\d+ or later", check.mends[0])


@pytest.mark.parametrize(
    ("kernel", "missing"),
    [
        ("5.10.0-28-amd64", {"memory.reclaim", "cgroup.kill"}),
        ("4.18.0", {"memory.reclaim", "cgroup.kill", "memory.oom.group"}),
        ("6.18.44", set()),
        ("6.6-rc1", set()),
        ("custom", set()),
    ],
)
def test_without_a_cgroup_to_see_a_feature_in_the_version_tells(kernel, missing):
    notes = [c for c in checks({"features": {}, "kernel": kernel}) if c.state == State.NOTE]
    assert {check.seen.rpartition(" ")[2] for check in notes} == missing


def test_burst_is_missed_only_where_it_is_asked_for():
    without = {"features": SOUND.features | {"cpu.max.burst": False}}
    assert broken(without, cpu_burst=50).mends[-1] == "--cpu-burst 0"
    assert {check.state for check in checks(without)} == {State.OK}


def test_without_pressure_figures_events_are_missing():
    refused = {"pressure_refusal": "/proc/pressure/memory: operation not supported"}
    check = broken(refused)
    assert check.mends[0] == "boot with psi=1 on the kernel's command line"
    assert "E1" in check.requirements
    v1 = [c for c in checks({**refused, "cgroups": V1}) if c.name == "pressure"]
    assert [check.state for check in v1] == [State.NOTE]


@pytest.mark.req("A12")
def test_without_cap_sys_resource_scores_cannot_be_negative():
    check = broken({"capabilities": Capabilities(ALL, ALL - {"CAP_SYS_RESOURCE"})})
    assert check.name == "privileges"
    assert "A12" in check.requirements
    assert check.mends == (
        "give the agent CAP_SYS_RESOURCE: --cap-add SYS_RESOURCE for a container, CapabilityBoundingSet= in a unit",
    )
    assert not check.stops_agent


@pytest.mark.parametrize("capability", ["CAP_SYS_ADMIN", "CAP_KILL"])
def test_other_capabilities_are_missed_too(capability):
    assert broken({"capabilities": Capabilities(ALL, ALL - {capability})}).seen.startswith(f"no {capability}")


def test_a_log_that_cannot_be_read_leaves_no_records():
    check = broken({"log_refusal": "/dev/kmsg: operation not permitted"})
    assert check.requirements == ("E6",)


@pytest.mark.req("A13")
def test_kernel_settings_are_set_by_the_agent_unless_that_is_forbidden():
    note = only(State.NOTE, {"settings": OVERCOMMIT})
    assert note.seen == "vm.overcommit_memory is 0"
    assert note.promise == "the agent sets vm.overcommit_memory=1 when it starts"
    forbidden = broken({"settings": OVERCOMMIT}, protect_kernel_defaults=True)
    assert forbidden.mends == ("sysctl -w vm.overcommit_memory=1", "--protect-kernel-defaults=false")
    assert forbidden.stops_agent
    refused = broken({"settings": OVERCOMMIT, "settings_refusal": "/proc/sys is mounted read-only"})
    assert refused.seen == "vm.overcommit_memory is 0, and /proc/sys is mounted read-only"
    assert refused.mends == ("sysctl -w vm.overcommit_memory=1",)


@pytest.mark.req("A18")
def test_swap_stops_the_agent_unless_it_is_allowed_and_can_be_kept_from_pods():
    check = broken({"swap": SWAP})
    assert check.stops_agent
    assert check.mends[0] == "swapoff -a, and take its lines out of /etc/fstab"
    assert {c.state for c in checks({"swap": SWAP}, fail_swap_on=False)} == {State.OK}
    unaccounted = SOUND.features | {"memory.swap.max": False}
    assert "swapaccount=1" in broken({"swap": SWAP, "features": unaccounted}, fail_swap_on=False).mends[1]
    v1 = SOUND.features | {"memory.memsw.limit_in_bytes": False}
    fields = {"fail_swap_on": False, "feature_gates": {"MemoryQoS": False}}
    assert "memory.memsw" in broken({"swap": SWAP, "features": v1, "cgroups": V1}, **fields).seen


# The node


@pytest.mark.req("E7")
def test_reserving_more_than_there_is_leaves_nothing_for_pods():
    check = broken(kube_reserved={"memory": "40Gi"})
    assert check.seen == (
        "memory: --kube-reserved 40Gi + --eviction-hard 100Mi is more than the 32Gi that the node has: reserve less"
    )
    assert check.stops_agent


@pytest.mark.req("B14")
def test_daemons_that_use_more_than_is_reserved_for_them_are_noticed():
    using = KUBE._replace(missing=(), memory_bytes=1500 << 20)
    check = only(State.NOTE, {"reserved": (using,)}, **ENFORCED)
    assert check.seen == "/kube.slice uses 1500Mi, and --kube-reserved keeps back 1Gi"
    assert check.mends == ("--kube-reserved memory=1536Mi",)
    assert {c.state for c in checks({"reserved": (using._replace(memory_bytes=GI),)}, **ENFORCED)} == {
        State.OK
    }


@pytest.mark.parametrize(
    ("figures", "seen"),
    [
        (
            {"memory": MemoryFigures(Amount(50 << 20), Amount(32 * GI))},
            "memory.available is 50Mi, below the threshold memory.available<100Mi",
        ),
        (
            {"nodefs": FilesystemFigures(Amount(5 * GI), Amount(100 * GI), Amount(900), Amount(1000))},
            "nodefs.available is 5Gi, below the threshold nodefs.available<10%",
        ),
    ],
)
def test_a_threshold_that_is_crossed_already_is_broken(figures, seen):
    check = broken({"figures": SOUND.figures._replace(**figures)})
    assert (check.name, check.seen) == ("room", seen)


def test_a_state_directory_that_cannot_be_written_is_broken():
    assert broken({"state_refusal": "/var is mounted read-only"}).seen == (
        "/var/lib/evenkeel: /var is mounted read-only"
    )


@pytest.mark.parametrize("name", ["earlyoom", "nohang", "oomd"])
def test_another_that_kills_by_its_own_rules_is_in_the_way(name):
    check = broken({"neighbours": (Neighbour(7, name),)})
    assert check.seen == f"{name} runs (process 7)"
    assert check.mends == (f"systemctl disable --now {name}",)


def test_systemd_oomd_acts_where_it_is_configured_to():
    assert only(State.NOTE, {"neighbours": (Neighbour(7, "systemd-oomd"),)}).name == "other OOM killers"


@pytest.mark.parametrize(
    ("arguments", "root", "state"),
    [
        ((), "/evenkeel", State.NOTE),
        ((), "/", State.BROKEN),
        (("--cgroup-root=/evenkeel",), "/evenkeel", State.BROKEN),
        (("--cgroup-root", "/evenkeel"), "/evenkeel", State.BROKEN),
        (("--cgroup-root", "/evenkeel"), "/", State.NOTE),
        (("--cgroup-root",), "/evenkeel", State.NOTE),
    ],
)
def test_a_kubelet_with_the_same_root_is_in_the_way(arguments, root, state):
    kubelet = Neighbour(9, "kubelet", ("/usr/bin/kubelet", *arguments))
    check = only(state, {"neighbours": (kubelet,)}, cgroup_root=root)
    assert check.name == "kubelet"
    assert check.stops_agent == (state == State.BROKEN)


def test_a_runtime_that_does_not_answer_starts_nothing():
    endpoint = {"container_runtime_endpoint": "unix:///run/containerd/containerd.sock"}
    assert broken(**endpoint).name == "container runtime"
    assert {check.state for check in checks({"runtime_pid": 12}, **endpoint)} == {State.OK}


def test_a_clock_that_was_never_set_is_a_note():
    assert only(State.NOTE, {"time_seconds": 60.0}).seen == "it is set to 1970-01-01"


def test_a_user_without_root_sees_which_checks_are_unknown():
    changes = {
        "uid": 1000,
        "root_refusal": "/sys/fs/cgroup is not ours to write",
        "state_refusal": "/var/lib is not ours to write",
        "log_refusal": "/dev/kmsg: operation not permitted",
        "settings": OVERCOMMIT,
        "settings_refusal": "/proc/sys/vm/overcommit_memory is not ours to write",
    }
    found = checks(changes, container_runtime_endpoint="/run/x.sock")
    assert [check.name for check in found if check.state == State.UNKNOWN] == [
        "cgroup root", "kernel log", "state directory", "container runtime",
    ]  # fmt: skip
    assert not [check for check in found if check.state == State.BROKEN]


# Looking


def test_capabilities_are_read_from_their_masks():
    status = "Name:\tx\nCapInh:\t0000000000000000\nCapEff:\t000001fffeffffff\nCapBnd:\t000001ffffffffff\n"
    assert parse_capabilities(status) == (ALL - {"CAP_SYS_RESOURCE"}, ALL)
    assert parse_capabilities("Name:\tx\n") == (frozenset(), frozenset())


def test_neighbours_are_found_by_name(tmp_path):
    for pid, comm, cmdline in (
        (7, "kubelet", "kubelet\0--v=2\0"),
        (8, "bash", "bash\0"),
        (9, "earlyoom", ""),
    ):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "comm").write_text(f"{comm}\n")
        (tmp_path / str(pid) / "cmdline").write_text(cmdline)
    (tmp_path / "10").mkdir()  # gone before it could be read
    (tmp_path / "self").mkdir()
    assert neighbours(str(tmp_path)) == (
        Neighbour(7, "kubelet", ("kubelet", "--v=2")),
        Neighbour(9, "earlyoom"),
    )


@pytest.fixture
def machine_files(tmp_path):
    """A v2 machine's files, in temporary directories."""
    files = {
        "proc/meminfo": "MemTotal: 1000000 kB\nMemFree: 1 kB\nMemAvailable: 900000 kB\nInactive(file): 1 kB\n",
        "proc/loadavg": "0 0 0 1/100 5\n",
        "proc/swaps": "Filename\n/dev/sda2 partition 1024 0 -2\n",
        "proc/self/status": "CapEff:\t0\nCapBnd:\t1000000\n",
        "proc/self/mountinfo": f"1 1 0:1 / {tmp_path}/cg rw - cgroup2 cgroup2 rw\n",
        "proc/sys/vm/overcommit_memory": "0\n",
        "proc/sys/vm/panic_on_oom": "0\n",
        "proc/pressure/memory": "some avg10=0 avg60=0 avg300=0 total=0\n",
        "sys/devices/system/cpu/online": "0-3\n",
        "cg/cgroup.controllers": "cpu memory pids\n",
        "cg/cgroup.procs": "1\n2\n",
        "cg/outer/cgroup.type": "domain\n",
        "cg/outer/cgroup.procs": "7\n",
        "cg/outer/cgroup.events": "populated 1\n",
        "cg/outer/memory.max": "max\n",
        "cg/outer/memory.min": "0\n",
        "cg/daemons/memory.current": "4096\n",
        "kmsg": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def seen(root, **fields):
    config = defaulted(KubeletConfiguration(cgroup_root="/outer/pods", **fields))
    return inspect_machine(
        config, f"{root}/state/evenkeel", proc=f"{root}/proc", sys=f"{root}/sys", log=f"{root}/kmsg"
    )


def test_a_machine_is_seen_through_its_files(machine_files):
    machine = seen(machine_files, kube_reserved_cgroup="/daemons", system_reserved_cgroup="/none")
    assert machine.capacity.millicpu == 4000
    assert machine.cgroups.version == Version.V2
    assert machine.swap == (SwapDevice("/dev/sda2", "partition", 1 << 20, 0),)
    assert machine.settings == OVERCOMMIT
    assert machine.capabilities.bounding == {"CAP_SYS_RESOURCE"}
    assert machine.features["memory.min"] is True
    assert machine.features["memory.high"] is False
    assert machine.features["cgroup.kill"] is False
    assert machine.features["cpu.max.burst"] is None
    assert machine.crowded == ("/outer",)
    assert machine.root.missing == (f"{machine_files}/cg/outer/pods",)
    daemons, none = machine.reserved
    assert (daemons.missing, daemons.memory_bytes) == ((), 4096)
    assert (none.missing, none.memory_bytes) == ((f"{machine_files}/cg/none",), None)
    assert (machine.pressure_refusal, machine.log_refusal) == ("", "")
    assert not list(machine_files.glob("state*"))


def test_what_cannot_be_seen_is_reported(machine_files):
    (machine_files / "kmsg").unlink()
    (machine_files / "proc/pressure/memory").unlink()
    (machine_files / "proc/self/mountinfo").write_text("")
    machine = seen(machine_files)
    assert machine.cgroups is None
    assert machine.cgroups_problem == "no cgroup filesystem is mounted"
    assert machine.log_refusal == f"{machine_files}/kmsg: no such file or directory"
    assert machine.pressure_refusal.endswith("no such file or directory")


# The command


def test_the_command_says_what_is_broken_and_exits_1(capsys):
    code = main(["doctor", "--kube-reserved", "memory=1Ei"])
    out = capsys.readouterr().out
    assert code == 1
    assert re.search(r"^✗ reservations +memory: --kube-reserved 1Ei", out, re.MULTILINE)
    assert (
        "\n                     mend: --kube-reserved, --system-reserved or --eviction-hard with less\n"
        in out
    )
    assert "the agent does not start because of" in out.splitlines()[-1]


def test_the_command_exits_0_where_every_promise_can_be_kept(capsys, monkeypatch):
    monkeypatch.setattr("evenkeel.cli.doctor.inspect_machine", lambda *_: SOUND)
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "✗" not in out
    assert out.splitlines()[0] == "This machine: 8 cpu, 32Gi memory, kernel 6.1.0-54-cloud-amd64"
    assert out.splitlines()[-1] == "Every promise can be kept."


def test_the_command_looks_where_the_agent_has_its_state(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("EVENKEEL_STATE_DIR", str(tmp_path))
    main(["doctor"])
    assert re.search(rf"^✓ state directory +{tmp_path}$", capsys.readouterr().out, re.MULTILINE)


def test_the_command_speaks_to_programs(capsys, monkeypatch):
    monkeypatch.setattr("evenkeel.cli.doctor.inspect_machine", lambda *_: SOUND._replace(swap=SWAP))
    assert main(["doctor", "-o", "json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert (data["kernel"], data["sound"], data["agentStarts"]) == (SOUND.kernel, False, False)
    (swap,) = [check for check in data["checks"] if check["name"] == "swap"]
    assert swap["state"] == "broken"
    assert swap["requirements"] == ["A18"]
    assert swap["stopsAgent"] is True
    assert main(["doctor", "-o", "yaml"]) == 1
    assert yaml.safe_load(capsys.readouterr().out) == data


def test_what_could_not_be_seen_is_counted(capsys, monkeypatch):
    machine = SOUND._replace(uid=1000, log_refusal="/dev/kmsg: operation not permitted")
    monkeypatch.setattr("evenkeel.cli.doctor.inspect_machine", lambda *_: machine)
    assert main(["doctor"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "Every promise can be kept; 1 could not be seen."


def test_a_wrong_flag_is_a_sentence(capsys):
    assert main(["doctor", "--kube-reserved", "memory=much"]) == 1
    assert "kubeReserved[memory]" in capsys.readouterr().err


def test_the_filter_of_containers_is_compiled_and_taken_by_the_kernel():
    found = filter_check()
    assert found.state == State.OK
    assert re.fullmatch(r"libseccomp \d+\.\d+\.\d+, \d+ instructions, and the kernel takes them", found.seen)


def test_a_missing_library_and_a_filter_that_the_kernel_refuses_are_broken(monkeypatch):
    monkeypatch.setattr(seccomp, "LIBRARY", "libseccomp-of-nowhere.so.2")
    missing = filter_check()
    assert (missing.state, "is not installed" in missing.seen) == (State.BROKEN, True)
    assert missing.mends[0].startswith("install it: apt install libseccomp2")
    monkeypatch.undo()
    monkeypatch.setattr(
        seccomp, "default_filter", lambda: seccomp.Filter(bytes(8))
    )  # no instruction of any use
    refused = filter_check()
    assert (refused.state, "the kernel does not take the filter" in refused.seen) == (State.BROKEN, True)

    def fails() -> seccomp.Filter:
        raise NoFilter("libseccomp.so.2 cannot compile the default filter: attribute")

    monkeypatch.setattr(seccomp, "default_filter", fails)
    assert filter_check().mends == ("upgrade libseccomp to 2.5 or newer",)


def test_every_check_is_in_the_manual():
    everything = {
        "cgroups": V1, "swap": SWAP, "reserved": (KUBE,), "settings": OVERCOMMIT, "time_seconds": 0.0,
        "features": dict.fromkeys(SOUND.features, False), "neighbours": (Neighbour(1, "kubelet"),),
    }  # fmt: skip
    manual = (Path(__file__).parent.parent / "docs" / "doctor.md").read_text()
    names = {check.name for check in checks(everything, **ENFORCED, container_runtime_endpoint="/x")}
    names |= {check.name for check in checks(everything, **ENFORCED)}  # pods as processes
    names.add(filter_check().name)
    node = Certificate(0.0, 1.0, "system:node:a", ("system:nodes",), (), False, b"")
    cluster = ClusterFacts("https://h:6443", node, 0.0, Asked("", 0.0, "v1.36.0", 200))
    names |= {check.name for check in cluster_checks(cluster)}
    assert {name for name in names if f"### {name}\n" not in manual} == set()
    assert names == set(re.findall(r"^### (.*)$", manual, re.MULTILINE))


def test_a_check_is_a_sentence_for_a_log():
    assert checks()[0].sentence == "cgroup version: v2 at /sys/fs/cgroup"
    assert KernelSetting("a.b", 1, "x").path() == "/proc/sys/a/b"
