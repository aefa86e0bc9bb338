"""OOM records from the kernel's log, by the words of kernels old and new (E6)."""

# The kernel's lines are as long as they are.
# ruff: noqa: E501

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.host.kernel_log import OomParser, memory_cgroup, parse_log_record

KI = 1024

# Kernel 6.18, cgroup v1: the limit is the parent's
V1_6_18 = """\
python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0
CPU: 0 UID: 0 PID: 751 Comm: python3 Not tainted 6.18.44 #1 PREEMPT(none)
Call Trace:
 <TASK>
 dump_stack_lvl+0x57/0x80
 oom_kill_process.cold+0x8/0x8a
 </TASK>
memory: usage 30720kB, limit 32768kB, failcnt 81
memory+swap: usage 30720kB, limit 9007199254740988kB, failcnt 0
kmem: usage 76kB, limit 9007199254740988kB, failcnt 0
Memory cgroup stats for /parent:
cache 0
total_rss 31379456
Tasks state (memory values in pages):
[  pid  ]   uid  tgid total_vm      rss rss_anon rss_file rss_shmem pgtables_bytes swapents oom_score_adj name
[    751]     0   751    18849     9688     8352     1336         0   131072        0             0 python3
oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/parent,task_memcg=/parent/kid,task=python3,pid=751,uid=7
Memory cgroup out of memory: Killed process 751 (python3) total-vm:75396kB, anon-rss:33408kB, file-rss:5344kB, shmem-rss:8kB, UID:7 pgtables:128kB oom_score_adj:-3
oom_reaper: reaped process 751 (python3), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB
"""

# Kernel 6.1, cgroup v2, memory.oom.group: the first victim stands in the log twice
GROUP_6_1 = """\
python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0
memory: usage 20480kB, limit 20480kB, failcnt 70
swap: usage 0kB, limit 9007199254740988kB, failcnt 0
Memory cgroup stats for /grp:
oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/grp,task_memcg=/grp,task=python3,pid=129,uid=0
Memory cgroup out of memory: Killed process 129 (python3) total-vm:75392kB, anon-rss:19888kB, file-rss:5156kB, shmem-rss:0kB, UID:0 pgtables:108kB oom_score_adj:0
Tasks in /grp are going to be killed due to memory.oom.group set
Memory cgroup out of memory: Killed process 129 (python3) total-vm:75392kB, anon-rss:19888kB, file-rss:5156kB, shmem-rss:0kB, UID:0 pgtables:108kB oom_score_adj:0
Memory cgroup out of memory: Killed process 130 (sleep) total-vm:2912kB, anon-rss:88kB, file-rss:752kB, shmem-rss:0kB, UID:0 pgtables:48kB oom_score_adj:0
"""

GLOBAL_6_1 = """\
python3 invoked oom-killer: gfp_mask=0x140dca(GFP_HIGHUSER_MOVABLE|__GFP_COMP|__GFP_ZERO), order=0, oom_score_adj=1000
Mem-Info:
oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/glob,task=python3,pid=132,uid=0
Out of memory: Killed process 132 (python3) total-vm:3159680kB, anon-rss:911732kB, file-rss:4kB, shmem-rss:0kB, UID:0 pgtables:1848kB oom_score_adj:1000
"""

# Kernel 5.0 to 5.2: without the user and the score
MEMCG_5_0 = """\
stress invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0
memory: usage 102400kB, limit 102400kB, failcnt 47
oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=ab12,mems_allowed=0,oom_memcg=/docker/ab12,task_memcg=/docker/ab12,task=stress,pid=41,uid=1000
Memory cgroup out of memory: Killed process 41 (stress) total-vm:138384kB, anon-rss:96512kB, file-rss:192kB, shmem-rss:0kB
"""

# Kernel 4.4 to 4.19: the cgroups in a sentence, and the one killed may be a child of the one chosen
MEMCG_4_15 = """\
stress invoked oom-killer: gfp_mask=0x14000c0(GFP_KERNEL), nodemask=(null), order=0, oom_score_adj=0
stress cpuset=/ mems_allowed=0
Task in /docker/ab12/inner killed as a result of limit of /docker/ab12
memory: usage 102400kB, limit 102400kB, failcnt 47
memory+swap: usage 204800kB, limit 204800kB, failcnt 12
kmem: usage 520kB, limit 9007199254740988kB, failcnt 0
Memory cgroup stats for /docker/ab12: cache:0KB rss:101880KB rss_huge:0KB shmem:0KB
[ pid ]   uid  tgid total_vm      rss nr_ptes nr_pmds swapents oom_score_adj name
[ 1234]     0  1234    34596    24128      75       3        0             0 stress
Memory cgroup out of memory: Kill process 1234 (stress) score 1000 or sacrifice child
Killed process 1235 (stress) total-vm:138384kB, anon-rss:96512kB, file-rss:192kB, shmem-rss:0kB
"""

GLOBAL_4_4 = """\
Out of memory: Kill process 999 (java) score 900 or sacrifice child
Killed process 999 (java) total-vm:4000kB, anon-rss:3000kB, file-rss:0kB
"""


def records(text, parser=None):
    parser = parser or OomParser()
    found = [parser.feed(line, number, number / 1000) for number, line in enumerate(text.splitlines())]
    return [record for record in found if record is not None]


@pytest.mark.req("E6")
def test_a_record_names_process_cgroup_whose_limit_and_figures():
    (record,) = records(V1_6_18)
    assert (record.process, record.pid, record.uid) == ("python3", 751, 7)
    assert (record.cgroup, record.limit_cgroup, record.constraint) == ("/parent/kid", "/parent", "memcg")
    assert (record.usage_bytes, record.limit_bytes) == (30720 * KI, 32768 * KI)
    assert (record.total_vm_bytes, record.anon_rss_bytes) == (75396 * KI, 33408 * KI)
    assert (record.file_rss_bytes, record.shmem_rss_bytes) == (5344 * KI, 8 * KI)
    assert record.oom_score_adj == -3
    assert record.sequence == 17
    assert record.sentence == (
        "the kernel killed python3 (process 751) in /parent/kid: /parent reached its memory limit, 30Mi of 32Mi in use"
    )


@pytest.mark.req("E6")
def test_a_cgroup_killed_as_a_whole_gives_one_record_for_each_process():
    first, second = records(GROUP_6_1)
    assert (first.pid, second.pid) == (129, 130)
    assert (second.cgroup, second.group, second.limit_cgroup) == ("/grp", "/grp", "/grp")
    assert second.limit_bytes == first.limit_bytes == 20480 * KI


@pytest.mark.req("E6")
def test_when_the_machine_is_out_of_memory_no_limit_is_named():
    (record,) = records(GLOBAL_6_1)
    assert (record.cgroup, record.limit_cgroup, record.constraint) == ("/glob", "", "none")
    assert record.limit_bytes is None
    assert (
        record.sentence == "the kernel killed python3 (process 132) in /glob: the machine was out of memory"
    )


@pytest.mark.req("E6")
def test_older_kernels_are_understood():
    (five,) = records(MEMCG_5_0)
    assert (five.cgroup, five.limit_bytes, five.uid) == ("/docker/ab12", 102400 * KI, 1000)
    assert five.oom_score_adj is None
    (four,) = records(MEMCG_4_15)
    assert (four.pid, four.cgroup, four.limit_cgroup) == (1235, "/docker/ab12/inner", "/docker/ab12")
    assert (four.constraint, four.limit_bytes) == ("memcg", 102400 * KI)
    (early,) = records(GLOBAL_4_4)
    assert (early.constraint, early.cgroup, early.anon_rss_bytes) == ("none", "", 3000 * KI)


def test_a_kill_without_its_header_is_not_given_the_one_before():
    """The kernel prints the header at most ten times in five seconds."""
    bare = "Memory cgroup out of memory: Killed process 5 (a) total-vm:8kB, anon-rss:4kB, file-rss:0kB, shmem-rss:0kB"
    parser = OomParser()
    records(V1_6_18, parser)
    (record,) = records(bare, parser)
    assert (record.pid, record.cgroup, record.limit_cgroup, record.limit_bytes) == (5, "", "", None)
    assert record.constraint == "memcg"
    assert record.sentence == "the kernel killed a (process 5): a cgroup reached its memory limit"
    (everywhere,) = records(bare.replace("Memory cgroup out", "Out"), parser)
    assert everywhere.constraint == "none"


def test_a_kill_long_after_a_group_is_not_of_the_group():
    parser = OomParser()
    records(GROUP_6_1, parser)
    line = "Memory cgroup out of memory: Killed process 9 (a) total-vm:8kB, anon-rss:4kB"
    assert parser.feed(line, 100, 5.0).group == ""


def test_a_victim_line_of_another_process_is_not_believed():
    lines = V1_6_18.replace("Killed process 751", "Killed process 752")
    (record,) = records(lines)
    assert (record.pid, record.cgroup) == (752, "")


@pytest.mark.parametrize(
    "name", ["a) total-vm:1kB", "x,task_memcg=/y", "(sd-pam)", "a b", "", "x,pid=1,uid=2"]
)
def test_a_process_may_call_itself_what_it_likes(name):
    (record,) = records(
        f"oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/a,task_memcg=/a/b,task={name},pid=7,uid=0\n"
        f"Memory cgroup out of memory: Killed process 7 ({name}) total-vm:8kB, anon-rss:4kB, file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:48kB oom_score_adj:0\n"
    )
    assert (record.process, record.cgroup, record.limit_cgroup) == (name, "/a/b", "/a")
    assert record.total_vm_bytes == 8 * KI


KILLED = "Killed process 7 (a) total-vm:8kB, anon-rss:4kB, file-rss:0kB, shmem-rss:0kB"


@pytest.mark.parametrize(
    "line",
    [
        f"a[5]: segfault at 0 ip 0 sp 0 error 6 in x: {KILLED}[1653,401000+78000]",
        f"traps: a[5] general protection fault ip:1 sp:2 error:0 in Out of memory: {KILLED}[1,2]",
        f"Out of memory[5]: segfault at 0 ip 0 sp 0 error 6 in x: {KILLED}[1653,401000+78000]",
        f"Out of memory: [5]: segfault at 0 ip 0 sp 0 error 6 in x: {KILLED}[1653,401000+78000]",
    ],
)
def test_no_file_or_process_is_called_so_that_its_crash_is_a_kill(line):
    assert records(line) == []


def test_a_process_with_a_line_end_in_its_name_is_one_record():
    name = "a\\x0aKilled p"  # as /dev/kmsg has it
    (record,) = records(f"Memory cgroup out of memory: Killed process 7 ({name}) total-vm:8kB, anon-rss:4kB")
    assert (record.process, record.pid) == (name, 7)


WORDS = st.sampled_from([*V1_6_18.split(), *GROUP_6_1.split(), *MEMCG_4_15.split(), "\n", ":", ",", "(", ")"])


@given(st.lists(WORDS | st.text(max_size=5), max_size=40).map(" ".join))
def test_no_text_is_too_odd(text):
    for record in records(text):
        assert record.sentence


# /dev/kmsg


def test_a_record_of_the_log_is_number_time_writer_and_text():
    line = parse_log_record(
        b"3,417,3231142553,-;Out of memory: Killed process 1 (a)\n SUBSYSTEM=x\n DEVICE=y\n"
    )
    assert line == (417, 3231.142553, True, "Out of memory: Killed process 1 (a)")
    assert parse_log_record(b"6,1,2,c,caller=T1;x").text == "x"


def test_a_number_that_the_kernel_cannot_have_is_no_record():
    assert parse_log_record(b"6,1,%d,-;x" % (2**64 - 1)) is not None
    assert parse_log_record(b"6,1,%s,-;x" % (b"9" * 400)) is None


def test_what_a_process_wrote_into_the_log_is_not_the_kernels():
    assert not parse_log_record(b"12,418,1,-;Out of memory: Killed process 1 (a)").is_from_kernel


def test_what_was_escaped_is_unescaped_except_control_characters():
    """A line end in the name of a process must not begin a line."""
    text = parse_log_record(b"6,1,2,-;anon 1\\x0afile 2\\x5cx41\\xc3\\xa9\\x7f\\x7e").text
    assert text == "anon 1\\x0afile 2\\x41é\\x7f~"
    assert parse_log_record(b"6,1,2,-;\\xff").text == "\ufffd"


@pytest.mark.parametrize("record", [b"", b"text", b"6,1;x", b"a,b,c,-;x", b"-1,2,3,-;x"])
def test_what_is_no_record_is_passed_over(record):
    assert parse_log_record(record) is None


@pytest.mark.parametrize(
    ("text", "cgroup"),
    [
        ("4:memory:/a/b\n1:cpu:/\n0::/u\n", "/a/b"),
        ("4:cpu,memory:/a:b\n", "/a:b"),
        ("0::/a/b (deleted)\n", "/a/b"),
        ("4:memory:/\n0::/u\n", ""),
        ("1:name=systemd:/x\n0::/\n", ""),
        ("nonsense\n", ""),
    ],
)
def test_a_processs_own_cgroup_is_that_of_its_memory(tmp_path, text, cgroup):
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "cgroup").write_text(text)
    assert memory_cgroup(7, str(tmp_path)) == cgroup
    assert memory_cgroup(8, str(tmp_path)) == ""
