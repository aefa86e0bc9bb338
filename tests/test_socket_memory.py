"""Queues of sockets, as the kernel lists them, and the processes that hold them."""

from pathlib import Path

import pytest

from evenkeel.cgroup.tree import Version
from evenkeel.host.socket_memory import (
    KernelMemory,
    NetlinkQueues,
    buffers_bytes,
    parse_kernel_memory,
    parse_netlink,
    sockets_of,
)
from evenkeel.policy.socket_queues import HeldMemory
from evenkeel.pressure.socket_readings import look
from evenkeel.pressure.targets import WatchTargets
from tests.models.agents import pods_of
from tests.models.memory_files import MIB, PODS, targets_in, write_v1_memory, write_v2_memory

# Of Linux 6.18.
TABLE = b"""\
sk               Eth Pid        Groups   Rmem     Wmem     Dump  Locks    Drops    Inode
00000000eb4e02ff 0   0          00000000 0        0        0     2        0        4       
000000006f2a8b11 0   21190      00000000 8390400  0        0     2        0        48213   
00000000a4c3d0e2 2   4294963083 00000000 8388864  256      0     2        12       48214   
00000000e2b09d45 6   0          00000000 0        0        0     2        0        1585    
"""  # noqa: W291 as the kernel writes it
MEMINFO = b"MemTotal: 24689804 kB\nSlab: 96024 kB\nSUnreclaim:        54864 kB\nVmallocUsed:       14588 kB\n"


def test_a_netlink_socket_holds_what_waits_in_both_of_its_queues():
    assert parse_netlink(TABLE.splitlines()) == {48213: 8390400, 48214: 8389120}


@pytest.mark.parametrize(
    "table",
    [
        b"",
        b"sk Eth Pid Groups Rmem Wmem\n0 0 0 0 5 5\n",
        TABLE.splitlines()[0] + b"\nnot of a kernel\n0 0 0 0 x y 0 0 0 z\n",
    ],
)
def test_a_table_that_says_something_else_has_no_sockets(table: bytes):
    assert parse_netlink(table.splitlines()) == {}


def test_so_many_sockets_are_remembered_and_no_more():
    assert len(parse_netlink(TABLE.splitlines(), most=1)) == 1


def test_kernel_memory_is_what_no_reclaim_gives_back(tmp_path: Path):
    assert parse_kernel_memory(MEMINFO) == (54864 + 14588) * 1024
    assert parse_kernel_memory(b"MemTotal: 1 kB\n") == 0
    (tmp_path / "meminfo").write_bytes(MEMINFO)
    kernel = KernelMemory(str(tmp_path / "meminfo"))
    assert kernel.read() == (54864 + 14588) * 1024
    kernel.close()


class Proc:
    """A /proc of a few processes, each with its network namespace and its open files."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "proc"

    def process(
        self, pid: int, namespace: str, *links: str, table: bytes = TABLE, under_way: int = 0
    ) -> None:
        """`under_way` is the number of files that wait in each of its sockets."""
        process = self.path / str(pid)
        for name in ("ns", "net", "fd", "fdinfo"):
            (process / name).mkdir(parents=True)
        made = self.path / namespace
        made.touch()
        (process / "ns" / "net").symlink_to(made)
        (process / "net" / "netlink").write_bytes(table)
        for number, link in enumerate(links):
            (process / "fd" / str(number)).symlink_to(link)
            told = f"pos:\t0\nflags:\t02000002\nmnt_id:\t10\nino:\t17\nscm_fds: {under_way}\n"
            (process / "fdinfo" / str(number)).write_text(told)


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


def holding(directory: Path, *pids: int) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
    return directory


def test_each_network_namespace_is_read_once(proc: Proc):
    proc.process(10, "host")
    proc.process(11, "host", table=TABLE.replace(b"48213", b"48299"))
    proc.process(12, "own", table=TABLE.replace(b"4821", b"4831"))
    queues = NetlinkQueues(str(proc.path))
    for pid in (10, 11, 12, 13):  # the last one has ended
        queues.read(pid)
    assert sorted(queues.held) == [48213, 48214, 48313, 48314]
    assert queues.total_bytes == 2 * (8390400 + 8389120)


def test_a_socket_is_of_the_processes_that_have_it_open(tmp_path: Path, proc: Proc):
    proc.process(10, "host", "socket:[48213]", "/dev/null", "socket:[7]", "pipe:[48214]")
    proc.process(11, "host", "socket:[48213]")
    wanted = {48213: 1, 48214: 1}
    assert sockets_of(str(holding(tmp_path / "c", 10, 11)), wanted, str(proc.path)) == {48213}
    assert sockets_of(str(tmp_path / "gone"), wanted, str(proc.path)) == set()


def test_a_process_that_has_left_the_cgroup_is_not_the_pods(tmp_path: Path, proc: Proc):
    """Its number may be another process's, whose sockets were read."""
    proc.process(10, "host", *["socket:[48213]"] * 600)
    container = holding(tmp_path / "c", 10)
    found = sockets_of(
        str(container), {48213: 1}, str(proc.path), between=lambda: (holding(container), None)[1]
    )
    assert found == set()


def test_buffers_are_what_the_kernel_counts_of_a_cgroup(tmp_path: Path):
    (tmp_path / "memory.kmem.tcp.usage_in_bytes").write_text("158605312\n")
    assert buffers_bytes(str(tmp_path)) == 158605312
    assert buffers_bytes(str(tmp_path / "gone")) == 0


def targets_with(tmp_path: Path, version: Version) -> WatchTargets:
    """Two pods of one container each; the first has process 10, the second process 11."""
    targets = targets_in(tmp_path, 400, *((pod, 0) for pod in pods_of(PODS)))
    pods = []
    for target, pid in zip(targets.pods, (10, 11), strict=True):
        container = holding(tmp_path / target.uid / "main", pid)
        write, limit = (
            (write_v2_memory, "memory.max")
            if version == Version.V2
            else (write_v1_memory, "memory.limit_in_bytes")
        )
        write(container, 40)
        write(container.parent, 50)
        (container / limit).write_text(f"{64 * MIB}\n")
        (container.parent / limit).write_text("max\n" if version == Version.V2 else f"{2**63 - 4096}\n")
        pods.append(target._replace(containers=(("main", str(container)),)))
    return targets._replace(version=version, pods=tuple(pods))


def test_queues_count_for_the_pod_that_holds_them_beside_memory_that_cannot_be_taken_back(
    tmp_path: Path, proc: Proc
):
    targets = targets_with(tmp_path, Version.V2)
    write_v2_memory(tmp_path / "u-batch" / "main", 40, inactive_file=10, active_file=5, slab_reclaimable=1)
    proc.process(10, "host", "socket:[48213]", "socket:[48214]", "socket:[48213]")
    proc.process(11, "host", "socket:[4]")
    found = look(targets, str(proc.path)).pods
    queued = 8390400 + 8389120
    assert found == {
        "u-batch": (HeldMemory("", 50 * MIB, queued), (HeldMemory("main", 24 * MIB, queued, 64 * MIB),))
    }


def test_where_queues_are_short_no_open_files_are_looked_at(tmp_path: Path, proc: Proc):
    targets = targets_with(tmp_path, Version.V2)
    table = TABLE.replace(b"8390400", b"1090400").replace(b"8388864", b"1088864")
    for pid in (10, 11):
        proc.process(pid, "host", "socket:[48213]", table=table)
    assert look(targets, str(proc.path)).pods == {}


def test_on_cgroup_v1_buffers_of_tcp_and_udp_count_as_well(tmp_path: Path, proc: Proc):
    targets = targets_with(tmp_path, Version.V1)
    for directory, mib in (
        ("root", 100),
        ("u-web", 100),
        ("u-web/main", 100),
        ("u-batch", 0),
        ("u-batch/main", 0),
    ):
        (tmp_path / directory).mkdir(exist_ok=True)
        (tmp_path / directory / "memory.kmem.tcp.usage_in_bytes").write_text(f"{mib * MIB}\n")
    found = look(targets, str(proc.path)).pods
    assert found == {
        "u-web": (HeldMemory("", 50 * MIB, 100 * MIB), (HeldMemory("main", 40 * MIB, 100 * MIB, 64 * MIB),))
    }


def test_sockets_that_are_only_under_way_count_for_the_pods_that_have_sent_files(tmp_path: Path, proc: Proc):
    targets = targets_with(tmp_path, Version.V2)
    proc.process(10, "host", "socket:[1]", "socket:[2]", "socket:[2]", under_way=3)
    proc.process(11, "host", "socket:[3]", "/dev/null", under_way=2)
    found = look(targets, str(proc.path)).pods
    queued = 8390400 + 8389120
    assert {uid: held.pod.queue_bytes for uid, held in found.items()} == {
        "u-batch": queued * 6 // 8,
        "u-web": queued * 2 // 8,
    }


def test_sockets_of_the_machine_are_not_taken_for_hidden_ones(tmp_path: Path, proc: Proc):
    targets = targets_with(tmp_path, Version.V2)
    proc.process(1, "host", "socket:[48213]", "socket:[48214]")
    for pid in (10, 11):
        proc.process(pid, "host", "socket:[1]", under_way=1)
    assert look(targets, str(proc.path)).pods == {}
