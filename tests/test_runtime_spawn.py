"""The pure parts of what a container's first process does."""

import json
import os

import pytest

from evenkeel.cgroup.tree import Version
from evenkeel.runtime.process.launch import entrances
from evenkeel.runtime.process.supervisor import child_reports, program
from evenkeel.runtime.process.supervisor.event_loop import Loop
from evenkeel.runtime.process.supervisor.start_plan import Plan, plan_from

PASSWD = (
    "root:x:0:0:root:/root:/bin/sh\n# nonsense\nweb:x:33:34:web:/var/www:/bin/false\nbad:x:5\nx:x:7:y:z:/:/\n"
)


def test_a_plan_travels_as_json():
    plan = Plan(
        ("sh", "-c", "\ud800"), (("A", "1"),), "/e/p", ("/x/cgroup.procs",), "/log", (1, 2), {"a": []}
    )
    assert plan_from(json.loads(json.dumps(plan._asdict()))) == plan


@pytest.mark.parametrize("value", [{}, {"argv": 1}, {**dict.fromkeys(Plan._fields)}])
def test_what_is_no_plan_is_told_from_one(value):
    with pytest.raises((KeyError, TypeError, ValueError)):
        plan_from(value)


def test_a_child_enters_v1_by_its_one_thread_and_v2_as_a_process():
    of_v1 = {
        "cpu": "/c/cpu,cpuacct/p",
        "cpuacct": "/c/cpu,cpuacct/p",
        "memory": "/c/memory/p",
        "unified": "/c/unified/p",
    }
    assert entrances(of_v1, Version.V1) == (
        "/c/cpu,cpuacct/p/tasks",
        "/c/memory/p/tasks",
        "/c/unified/p/cgroup.procs",
    )
    assert entrances({"cpu": "/c/p", "memory": "/c/p"}, Version.V2) == ("/c/p/cgroup.procs",)


def test_a_report_tells_notes_errors_and_that_the_program_was_executed():
    lines = [b'{"note": "n1"}', b"rubbish", b'{"error": "e", "hint": "h"}', b"exec", b""]
    assert child_reports.read_report(b"\n".join(lines)) == child_reports.Report(
        "e", "h", ("n1",), is_executed=True
    )
    assert child_reports.read_report(b"") == child_reports.Report("", "", (), is_executed=False)


def test_a_user_is_looked_up_in_the_containers_own_files():
    assert program.look_up(33, None, PASSWD)[:3] == (33, 34, "/var/www")
    assert program.look_up(33, 5, PASSWD)[:3] == (33, 5, "/var/www")
    assert program.look_up(1234, None, PASSWD)[:3] == (1234, 0, "/")
    assert program.look_up(7, None, PASSWD)[:3] == (7, 0, "/")
    assert program.look_up(None, None, "")[:2] == (os.geteuid(), os.getegid())


def test_the_supervisors_loop_survives_mistakes_and_keeps_time():
    mistakes: list[BaseException] = []
    done: list[str] = []
    loop = Loop(mistakes.append)
    loop.after(0.0, lambda: done.append("first"))
    loop.after(0.001, lambda: 1 // 0)  # type: ignore[arg-type, return-value]
    loop.after(0.002, lambda: done.append("never")).cancel()
    loop.after(0.003, lambda: done.append("last"))
    loop.run(lambda: "last" in done)
    assert done == ["first", "last"]
    assert [type(mistake) for mistake in mistakes] == [ZeroDivisionError]


def test_a_descriptor_that_was_let_go_is_not_called_back():
    read, write = os.pipe()
    heard: list[bytes] = []
    loop = Loop(lambda error: pytest.fail(repr(error)))
    loop.watch(read, lambda: heard.append(os.read(read, 10)))
    os.write(write, b"1")
    loop.run(lambda: bool(heard))
    loop.unwatch(read)
    loop.unwatch(read)
    os.write(write, b"2")
    done: list[int] = []
    loop.after(0.001, lambda: done.append(1))
    loop.run(lambda: bool(done))
    assert heard == [b"1"]
    os.close(read)
    os.close(write)
