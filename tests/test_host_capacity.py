import os

import pytest

from evenkeel.errors import EvenkeelError
from evenkeel.host.capacity import (
    filesystem,
    hugepages,
    machine_capacity,
    memory_total,
    most_processes,
    online_cpus,
    parse_loadavg,
    parse_meminfo,
    processes,
)
from evenkeel.policy.allocatable import DEFAULT_PIDS

MEMINFO = """\
MemTotal:       24682416 kB
MemFree:        23275584 kB
MemAvailable:   24224488 kB
Active(file):     410636 kB
HugePages_Total:       3
HugePages_Free:        2
Hugepagesize:       2048 kB
Hugetlb:            6144 kB
"""


def write(root, path, text):
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.fixture
def machine(tmp_path):
    write(tmp_path, "proc/meminfo", MEMINFO)
    write(tmp_path, "proc/sys/kernel/pid_max", "32768\n")
    write(tmp_path, "proc/sys/kernel/threads-max", "15000\n")
    write(tmp_path, "proc/loadavg", "0.52 0.58 0.59 2/713 12345\n")
    write(tmp_path, "sys/devices/system/cpu/online", "0-2,5\n")
    write(tmp_path, "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "3\n")
    write(tmp_path, "sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages", "0\n")
    return tmp_path


def test_the_machine_is_read_from_the_kernels_files(machine):
    capacity = machine_capacity(str(machine), proc=f"{machine}/proc", sys=f"{machine}/sys")
    assert capacity.millicpu == 4000
    assert capacity.memory_bytes == 24682416 * 1024
    assert capacity.hugepages == {2 << 20: 3, 1 << 30: 0}
    assert capacity.pids == 15000
    room = os.statvfs(machine)
    assert capacity.ephemeral_storage_bytes == room.f_blocks * room.f_frsize


def test_this_machine_has_something_of_everything():
    capacity = machine_capacity()
    assert capacity.millicpu == 1000 * os.cpu_count()
    assert capacity.memory_bytes > 0
    assert capacity.ephemeral_storage_bytes > 0
    assert 0 < processes().running < processes().maximum == capacity.pids


def test_meminfo_is_bytes_but_for_what_is_counted():
    figures = parse_meminfo(MEMINFO)
    assert figures["Active(file)"] == 410636 * 1024
    assert figures["HugePages_Total"] == 3
    assert figures["Hugepagesize"] == 2 << 20
    assert parse_meminfo("nonsense\nA: \nB: many kB\n: 3 kB") == {"": 3072}


def test_without_a_total_there_is_a_sentence():
    with pytest.raises(EvenkeelError, match="no MemTotal: say the node's size"):
        memory_total("MemFree: 1 kB\n")


def test_cpus_keep_their_numbers_when_one_is_offline(machine):
    assert online_cpus(f"{machine}/sys") == (0, 1, 2, 5)


@pytest.mark.parametrize("text", [None, "", "few\n"])
def test_where_the_kernel_does_not_list_its_cpus_they_are_counted(tmp_path, text):
    if text is not None:
        write(tmp_path, "devices/system/cpu/online", text)
    assert online_cpus(str(tmp_path)) == tuple(range(os.cpu_count() or 0))


def test_a_kernel_without_huge_pages_has_none(tmp_path):
    assert hugepages(str(tmp_path)) == {}


def test_odd_names_among_huge_pages_are_passed_over(tmp_path):
    write(tmp_path, "kernel/mm/hugepages/hugepages-64kB/nr_hugepages", "what\n")
    write(tmp_path, "kernel/mm/hugepages/other/nr_hugepages", "7\n")
    assert hugepages(str(tmp_path)) == {64 << 10: 0}


def test_processes_are_bounded_by_the_smaller_of_two(machine, tmp_path):
    assert most_processes(f"{machine}/proc") == 15000
    write(machine, "proc/sys/kernel/threads-max", "900000\n")
    assert most_processes(f"{machine}/proc") == 32768
    assert most_processes(str(tmp_path / "nothing")) == DEFAULT_PIDS


def test_threads_are_counted_in_loadavg(machine):
    assert processes(f"{machine}/proc") == (15000, 713)
    assert parse_loadavg("0.1 0.2") is None
    assert parse_loadavg("0.1 0.2 0.3 5 6") is None


def test_a_filesystem_has_room_and_inodes(tmp_path):
    room = filesystem(str(tmp_path))
    assert 0 < room.available_bytes <= room.capacity_bytes
    assert filesystem("/proc").inodes is None


def test_a_path_that_is_not_there_is_named():
    with pytest.raises(EvenkeelError, match="filesystem of /no/where: no such file"):
        filesystem("/no/where")
