"""Directories that stand in for cgroups, and the text that kernels write into their files."""

from pathlib import Path

from evenkeel.cgroup.tree import Cgroup, Kind, Naming, Setting, Tree, Version

# Linux 6.12, shortened in the middle.
V2_STAT = b"""\
anon 8392704
file 31457280
kernel 548864
shmem 4096
file_mapped 1003520
file_dirty 0
file_writeback 0
inactive_anon 8380416
active_anon 12288
inactive_file 20971520
active_file 10481664
unevictable 0
slab_reclaimable 240080
slab_unreclaimable 111352
workingset_refault_file 7
pgscan 0
pgfault 2581
pgmajfault 31
pgrefill 0
"""
V2 = {
    "memory.current": b"41000960\n",
    "memory.stat": V2_STAT,
    "cpu.stat": b"usage_usec 123456\nuser_usec 100000\nsystem_usec 23456\nnice_usec 0\nnr_periods 10\n"
    b"nr_throttled 3\nthrottled_usec 45678\nnr_bursts 0\nburst_usec 0\n",
    "pids.current": b"4\n",
    "memory.events": b"low 0\nhigh 5\nmax 2\noom 1\noom_kill 1\noom_group_kill 0\n",
    "memory.swap.current": b"8192\n",
}
# Linux 5.10.
V1_STAT = b"""\
cache 1000
rss 2000
swap 10
pgfault 3
pgmajfault 1
inactive_file 400
active_file 600
hierarchical_memory_limit 9223372036854771712
total_cache 31457280
total_rss 8392704
total_swap 8192
total_pgfault 2581
total_pgmajfault 31
total_inactive_anon 0
total_inactive_file 20971520
total_active_file 10481664
total_unevictable 0
"""
V1 = {
    "memory.usage_in_bytes": b"41000960\n",
    "memory.stat": V1_STAT,
    "cpuacct.usage": b"123456789\n",
    "cpu.stat": b"nr_periods 10\nnr_throttled 3\nthrottled_time 45678999\n",
    "pids.current": b"4\n",
    "memory.oom_control": b"oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
}


def setting(file: str, value: str = "1") -> Setting:
    return Setting(file, value, "A1", "because")


def tree(*cgroups: Cgroup, version: Version = Version.V2) -> Tree:
    return Tree(version, Naming.CGROUPFS, cgroups)


def cgroup_at(root: Path, path: str, **files: str) -> None:
    directory = root / path.lstrip("/")
    directory.mkdir(parents=True)
    for name, content in {"cgroup.procs": "", **files}.items():
        (directory / name.replace("__", ".")).write_text(content)


def crowd(mount: Path, make: bool = True) -> Tree:
    """A root and 100 pods with three files each."""
    files = ("memory.max", "memory.min", "pids.max")
    if make:
        for number in range(100):
            cgroup_at(mount, f"/top/kubepods/pod{number}", **{f.replace(".", "__"): "0\n" for f in files})
    return tree(
        Cgroup("/top/kubepods", Kind.ROOT, ()),
        *(
            Cgroup(f"/top/kubepods/pod{number}", Kind.POD, tuple(setting(file, "0") for file in files))
            for number in range(100)
        ),
    )
