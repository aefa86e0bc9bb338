"""Containers as processes of a real kernel: what they are in before their first instruction, and how they end."""

import asyncio
import ctypes
import os
import shutil
import signal
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

from evenkeel.cgroup.drivers.processes import is_dead
from evenkeel.runtime.interface import Attempt, ExecResult, Exited, RuntimeLost
from evenkeel.runtime.process.supervisor_link import ended_children
from evenkeel.runtime.process.supervisor_protocol import SOCKET_NAME
from evenkeel.runtime.start_errors import StartFailed
from tests.kernel import containers as of_test
from tests.kernel.containers import CONTAINER, Containers, until
from tests.kernel.planned import may_lower_scores
from tests.kernel.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.cgroup("v1", "v2")

containers = of_test.containers


@pytest.mark.req("A17")
def test_cgroup_and_score_are_there_before_the_first_instruction(containers: Containers):
    async def body(world: Containers) -> None:
        record = await world.start(
            "first", "sh", "-c", "cat /proc/self/cgroup /proc/self/oom_score_adj; sleep 600"
        )
        await until(lambda: world.log("first")[-1:] == ["500"])
        # It is at the top of its cgroup namespace, which was made before it was executed.
        assert {line.split(":", 2)[2] for line in world.log("first")[:-1]} == {"/"}
        assert record.process is not None
        lines = Path(f"/proc/{record.process.pid}/cgroup").read_text().splitlines()
        places = {line.split(":")[1]: line.split(":", 2)[2] for line in lines}
        kinds = ("cpu", "cpuset", "memory", "pids", "freezer") if "memory" in places else ("",)
        assert {places[kind] for kind in kinds} == {world.cgroup("first")}

    containers.run(body)


@pytest.mark.req("A17", "A12")
def test_a_score_that_the_kernel_refuses_is_the_lowest_it_allows_and_noted(containers: Containers):
    async def body(world: Containers) -> None:
        record = await world.start("low", "cat", "/proc/self/oom_score_adj", score=-999)
        await world.exited()
        if may_lower_scores():
            assert (world.log("low"), record.notes) == (["-999"], ())
        else:
            assert world.log("low") == ["0"]
            assert "oom_score_adj is 0 and not -999" in record.notes[0]
            again = (await world.runtime.containers())[record.attempt]
            assert again.notes == record.notes

    containers.run(body)


def test_a_container_is_in_namespaces_of_its_own(containers: Containers):
    async def body(world: Containers) -> None:
        script = "echo $$; hostname; for kind in pid mnt uts ipc net; do readlink /proc/self/ns/$kind; done; ls /proc"
        lines = await world.ran("alone", script)
        assert lines[:2] == ["1", "alone"]
        ours = [str(Path(f"/proc/self/ns/{kind}").readlink()) for kind in ("pid", "mnt", "uts", "ipc", "net")]
        assert not set(lines[2:6]) & set(ours)
        assert lines[6] == ours[4], "the network is the host's"
        assert {int(name) for name in lines[7:] if name.isdecimal()} <= set(range(20))

    containers.run(body)


def test_a_container_finds_its_own_name_with_its_domain(containers: Containers):
    async def body(world: Containers) -> None:
        named = "hostname: db-0\nsubdomain: db"
        lines = await world.ran("db-0", "hostname; hostname -f; getent hosts $(hostname) | wc -l", spec=named)
        assert lines == ["db-0", "db-0.db.default.svc.cluster.local", "1"]
        lines = await world.ran("of-host", "hostname; echo $HOSTNAME", spec=f"{named}\nhostNetwork: true")
        assert lines == [os.uname().nodename] * 2, (
            "as under kubelet it has the network and the name of the machine"
        )

    containers.run(body)


def test_nothing_of_the_agent_leaks_into_a_container(containers: Containers, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SECRET_OF_THE_AGENT", "1")
    read, write = os.pipe()
    os.set_inheritable(read, True)
    ignored = (32, int(signal.SIGRTMIN) + 5)  # one that the C library keeps for itself

    async def body(world: Containers) -> None:
        # The fourth is the directory that ls itself has open.
        assert await world.ran("closed", "exec ls /proc/self/fd") == ["0", "1", "2", "3"]
        env = "env: [{name: A, value: one}, {name: B, value: $(A) two}]"
        await world.start("env", "env", container=env)
        await world.exited()
        assert sorted(world.log("env")) == [
            "A=one",
            "B=one two",
            "HOME=/root",
            "HOSTNAME=env",
            "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        ]
        lines = await world.ran(
            "plain",
            "grep -E '^(Sig|Cap|NoNew)' /proc/self/status; umask; pwd; ulimit -n; readlink /proc/self/fd/0",
        )
        status = dict(line.split(":\t") for line in lines[:-4])
        assert {status[name] for name in ("SigIgn", "SigBlk", "CapInh", "CapAmb")} == {"0" * 16}
        assert status["CapEff"] == status["CapPrm"] == status["CapBnd"]
        assert int(status["CapBnd"], 16) & ~0xA00425FB == 0
        assert status["NoNewPrivs"] == "1"
        assert lines[-4:] == ["0022", "/", "1024", "/dev/null"]

    for number in ignored:
        set_disposition(number, signal.SIG_IGN)
    try:
        containers.run(body)
    finally:
        for number in ignored:
            set_disposition(number, signal.SIG_DFL)
        os.close(read)
        os.close(write)


def set_disposition(number: int, handler: signal.Handlers) -> None:
    """Sets the disposition of any signal. `signal.signal` refuses the signals that the C library reserves."""
    action = (ctypes.c_ulong * 8)(int(handler))
    call = {"x86_64": 13, "aarch64": 134}[os.uname().machine]
    assert ctypes.CDLL(None).syscall(call, number, action, None, ctypes.c_size_t(8)) == 0


def test_a_container_runs_as_its_user_with_its_groups(containers: Containers):
    async def body(world: Containers) -> None:
        spec = (
            "securityContext: {runAsUser: 12345, runAsGroup: 23456, supplementalGroups: [7, 8], fsGroup: 9}"
        )
        script = "id -u; id -g; id -G; grep CapEff /proc/self/status; echo again > /dev/stdout"
        lines = await world.ran("user", script, spec=spec)
        assert lines[:2] == ["12345", "23456"]
        assert set(lines[2].split()) == {"23456", "7", "8", "9"}
        assert lines[3:] == ["CapEff:\t0000000000000000", "again"]

    containers.run(body)


@pytest.mark.parametrize(
    ("script", "code", "number"),
    [("exit 0", 0, 0), ("exit 42", 42, 0), ("kill -9 -1; exec sleep 60 & kill -KILL $!; wait $!", 137, 0)],
)
def test_exit_codes_are_those_of_the_program(containers: Containers, script: str, code: int, number: int):
    async def body(world: Containers) -> None:
        record = await world.shell("code", script)
        event = await world.exited()
        assert (event.exit.exit_code, event.exit.signal, event.exit.is_known) == (code, number, True)
        assert event.exit.started_at == record.started_at <= event.exit.finished_at
        assert not world.processes("code")

    containers.run(body)


def test_a_signal_from_outside_is_reported_as_such(containers: Containers):
    async def body(world: Containers) -> None:
        record = await world.start("killed", "sleep", "600")
        assert record.process is not None
        os.kill(record.process.pid, signal.SIGKILL)
        event = await world.exited()
        assert (event.exit.exit_code, event.exit.signal) == (137, 9)

    containers.run(body)


def test_stopping_is_sigterm_first(containers: Containers):
    async def body(world: Containers) -> None:
        record = await world.shell(
            "polite", "trap 'echo bye; exit 7' TERM; echo ready; while :; do sleep 0.01; done"
        )
        await until(lambda: world.log("polite") == ["ready"])
        await world.runtime.stop(record.attempt, PATIENCE_SECONDS)
        event = await world.exited()
        assert (event.exit.exit_code, world.log("polite")) == (7, ["ready", "bye"])
        await world.runtime.stop(record.attempt, 1)  # again is fine

    containers.run(body)


def test_one_that_ignores_sigterm_is_killed_with_all_its_children(containers: Containers):
    async def body(world: Containers) -> None:
        script = (
            "trap '' TERM; (setsid sleep 600 &) ; sh -c 'trap \"\" TERM; sleep 600' & echo ready; wait; wait"
        )
        record = await world.shell("stubborn", script)
        await until(lambda: world.log("stubborn") == ["ready"])
        await until(lambda: len(world.processes("stubborn")) >= 3)
        await world.runtime.stop(record.attempt, 0.2)
        event = await world.exited()
        assert (event.exit.exit_code, event.exit.signal) == (137, 9)
        assert not world.processes("stubborn")

    containers.run(body)


def test_one_that_forks_without_end_is_ended(containers: Containers):
    async def body(world: Containers) -> None:
        record = await world.shell(
            "many", "f() { sleep 0.01 & f2; }; f2() { (f) & sleep 0.05; (f) & }; f; sleep 600"
        )
        await until(lambda: len(world.processes("many")) > 10)
        await world.runtime.stop(record.attempt, 0)
        await world.exited()
        assert not world.processes("many")

    containers.run(body)


def test_what_the_first_process_leaves_behind_ends_with_it(containers: Containers):
    async def body(world: Containers) -> None:
        await world.shell("leaver", "(setsid sleep 600 >/dev/null 2>&1 &); exit 0")
        event = await world.exited()
        assert event.exit.exit_code == 0
        assert not world.processes("leaver")

    containers.run(body)


def test_what_cannot_be_started_is_reported_in_a_sentence_and_leaves_nothing(containers: Containers):
    async def body(world: Containers) -> None:
        plain_file = Path(tempfile.mkdtemp(dir="/var/lib", prefix="evenkeel-test-")) / "file"
        plain_file.write_text("x")
        try:
            for number, (command, more, said) in enumerate(
                [
                    (
                        ["no-such-program"],
                        "",
                        "command 'no-such-program' was not found in the container's PATH",
                    ),
                    (["/no/such"], "", "command '/no/such' cannot be executed: no such file"),
                    ([str(plain_file)], "", "cannot be executed: permission denied"),
                    (["/"], "", "command '/' cannot be executed: it is a directory"),
                    (
                        ["true"],
                        "workingDir: /no/such",
                        "workingDir '/no/such' cannot be entered: no such file",
                    ),
                    (["true"], "securityContext: {runAsNonRoot: true}", "runAsNonRoot is true"),
                ]
            ):
                with pytest.raises(StartFailed, match=said.replace("(", r"\(")):
                    await world.start(f"bad{number}", *command, container=more)
                assert not world.processes(f"bad{number}")
                assert not list((world.state / "pods").glob(f"uid-bad{number}/*.*"))
        finally:
            shutil.rmtree(plain_file.parent)
        assert await world.runtime.containers() == {}

    containers.run(body)


def test_a_cgroup_that_is_gone_is_a_sentence(containers: Containers):
    async def body(world: Containers) -> None:
        launch = world.launch(world.pod("gone", ["true"]))
        world.make_driver().remove(launch.cgroup)
        with pytest.raises(StartFailed, match=r"cannot enter its cgroup .*/gone"):
            await world.runtime.start(launch)

    containers.run(body)


def test_an_attempt_is_started_once(containers: Containers):
    async def body(world: Containers) -> None:
        pod = world.pod("once", ["/bin/sh", "-c", "echo started; exec sleep 600"])
        launch = world.launch(pod)
        first, second = await asyncio.gather(world.runtime.start(launch), world.runtime.start(launch))
        third = await world.runtime.start(launch)
        assert first == second == third
        await until(lambda: world.log("once"))
        await world.runtime.stop(launch.attempt, 0)
        ended = await world.runtime.start(launch)
        assert ended.exit is not None
        assert world.log("once") == ["started"]
        await world.runtime.forget(launch.attempt)
        assert await world.runtime.containers() == {}

    containers.run(body)


def test_many_are_started_at_once(containers: Containers):
    async def body(world: Containers) -> None:
        records = await asyncio.gather(
            *(world.shell(f"m{number}", "echo $$; sleep 600") for number in range(30))
        )
        assert len({record.process for record in records}) == 30
        await until(lambda: all(world.log(f"m{number}") for number in range(30)))
        await asyncio.gather(*(world.runtime.stop(record.attempt, 0) for record in records))
        assert all(record.exit for record in (await world.runtime.containers()).values())
        assert [world.log(f"m{number}") for number in range(30)] == [["1"]] * 30

    containers.run(body)


def test_a_command_is_run_inside_the_container(containers: Containers):
    async def body(world: Containers) -> None:
        spec = "securityContext: {runAsUser: 1234}"
        record = await world.start("inner", "sleep", "600", container="env: [{name: A, value: b}]", spec=spec)
        run = world.runtime.execute
        script = (
            "id -u; hostname; echo $A; [ -d /proc/1 ] && cat /proc/self/oom_score_adj; echo bad >&2; exit 3"
        )
        result = await run(record.attempt, ("sh", "-c", script), PATIENCE_SECONDS)
        assert result == ExecResult(3, "1234\ninner\nb\n500\nbad\n")
        places = await run(record.attempt, ("cat", "/proc/self/cgroup"), PATIENCE_SECONDS)
        assert places.exit_code == 0
        assert {line.split(":", 2)[2] for line in places.output.splitlines()} == {"/"}
        assert len(world.processes("inner")) >= 1
        processes = await run(record.attempt, ("readlink", "/proc/self/ns/pid"), PATIENCE_SECONDS)
        assert processes.output.strip() != str(Path("/proc/self/ns/pid").readlink())
        with pytest.raises(StartFailed, match="'no-such' was not found"):
            await run(record.attempt, ("no-such",), PATIENCE_SECONDS)
        flood = await run(record.attempt, ("head", "-c", "3000000", "/dev/zero"), PATIENCE_SECONDS)
        assert (flood.exit_code, len(flood.output)) == (0, 10240)
        # Who went in first may leave after the command
        await until(lambda: len(world.processes("inner")) == 1)

    containers.run(body)


def test_a_command_that_takes_too_long_is_ended_and_nothing_else(containers: Containers):
    async def body(world: Containers) -> None:
        record = await world.start("slow", "sleep", "600")
        result = await world.runtime.execute(record.attempt, ("sh", "-c", "echo begun; sleep 600"), 0.5)
        assert result.exit_code is None
        # Also wherever its processes are by then.
        for milliseconds in (0, 1, 3, 6, 10, 15, 20, 30):
            await world.runtime.execute(record.attempt, ("sleep", "600"), milliseconds / 1000)
        await until(lambda: len(world.processes("slow")) == 1)
        assert (await world.runtime.containers())[record.attempt].exit is None
        await world.runtime.stop(record.attempt, 0)
        with pytest.raises(StartFailed, match="does not run"):
            await world.runtime.execute(record.attempt, ("true",), 1)

    containers.run(body)


def test_the_termination_message_is_kept(containers: Containers):
    async def body(world: Containers) -> None:
        await world.shell("said", "echo farewell > /dev/termination-log; exit 1")
        assert (await world.exited()).exit.message == "farewell\n"
        policy = "terminationMessagePolicy: FallbackToLogsOnError"
        await world.shell("logged", "echo out of luck; exit 1", container=policy)
        assert "out of luck" in (await world.exited()).exit.message

    containers.run(body)


# Losing one side or the other


def test_an_end_while_no_client_was_there_is_known_to_the_next(containers: Containers, tmp_path: Path):
    async def body(world: Containers) -> None:
        lasting = await world.start("lasting", "sleep", "600")
        ending = await world.shell(
            "ending",
            "until [ -e /tmp/go ]; do sleep 0.01; done; exit 5",
            container=("volumeMounts: [{name: d, mountPath: /tmp}]"),
            spec=f"volumes: [{{name: d, hostPath: {{path: {tmp_path}}}}}]",
        )
        supervisor = world.supervisor()
        await world.runtime.close()
        (tmp_path / "go").touch()
        directory = world.state / f"pods/uid-ending/{CONTAINER}.1"
        await until((directory / "exit").exists)
        world.runtime = world.another()
        await world.runtime.open()
        assert world.supervisor() == supervisor
        records = await world.runtime.containers()
        assert records[lasting.attempt] == lasting
        ended = records[ending.attempt]
        assert ended.process == ending.process
        assert ended.exit is not None
        assert (ended.exit.exit_code, ended.exit.is_known) == (5, True)
        await world.runtime.stop(lasting.attempt, 0)

    containers.run(body)


def test_containers_and_their_logs_outlive_the_supervisor(containers: Containers):
    async def body(world: Containers) -> None:
        script = "trap 'echo bye; exit 9' TERM; while :; do echo again; sleep 0.05; done"
        record = await world.shell("survivor", script)
        await until(lambda: world.log("survivor"))
        old = world.supervisor()
        os.kill(old, signal.SIGKILL)
        event = await asyncio.wait_for(anext(aiter(world.runtime.events())), PATIENCE_SECONDS)
        assert isinstance(event, RuntimeLost)
        await until(lambda: world.supervisor() not in (0, old))
        assert (await world.runtime.containers())[record.attempt] == record
        seen = len(world.log("survivor"))
        await until(lambda: len(world.log("survivor")) > seen + 2)
        result = await world.runtime.execute(record.attempt, ("hostname",), PATIENCE_SECONDS)
        assert result == ExecResult(0, "survivor\n")
        # The client is the nearest reaper, as the supervisor was its child: it knows.
        await world.runtime.stop(record.attempt, PATIENCE_SECONDS)
        ended = await world.exited()
        assert (ended.exit.exit_code, ended.exit.is_known) == (9, True)
        assert world.log("survivor")[-1] == "bye"
        await until(lambda: not ended_children())  # nor has the supervisor that was killed left any

    containers.run(body)


def test_an_end_that_nobody_could_see_is_reported_as_unknown(containers: Containers):
    async def body(world: Containers) -> None:
        record = await world.start("unseen", "sleep", "600")
        assert record.process is not None
        await world.runtime.close()
        supervisor = world.supervisor()
        os.kill(supervisor, signal.SIGKILL)
        await until(lambda: is_dead(supervisor))  # it must not see the end
        os.kill(record.process.pid, signal.SIGKILL)
        # Another process is the parent now and reaps it, none of ours.
        await until(lambda: not world.processes("unseen"))
        with suppress(ChildProcessError):
            os.waitpid(record.process.pid, 0)
        world.runtime = world.another()
        await world.runtime.open()
        ended = (await world.runtime.containers())[record.attempt]
        if ended.exit is None:
            ended = record._replace(exit=(await world.exited()).exit)
        assert ended.exit is not None
        assert (ended.exit.exit_code, ended.exit.is_known) == (137, False)

    containers.run(body)


def test_a_number_that_is_anothers_by_now_is_not_taken_for_the_container(containers: Containers):
    async def body(world: Containers) -> None:
        record = await world.start("mistaken", "sleep", "600")
        await world.runtime.stop(record.attempt, 0)
        directory = world.state / f"pods/uid-mistaken/{CONTAINER}.1"
        text = (directory / "process").read_text()
        (directory / "exit").unlink()
        (directory / "process").write_text(
            text.replace(f'"pid":{record.process.pid}', f'"pid":{os.getpid()}')
        )
        await world.runtime.close()
        world.runtime = world.another()
        await world.runtime.open()
        await until((directory / "exit").exists)
        ended = (await world.runtime.containers())[record.attempt]
        assert ended.exit is None or not ended.exit.is_known

    containers.run(body)


def test_the_supervisor_ends_when_it_has_no_container_and_no_client(containers: Containers):
    async def body(world: Containers) -> None:
        record = await world.start("last", "sleep", "600")
        await world.runtime.close()
        assert world.supervisor()
        os.kill(record.process.pid, signal.SIGKILL)
        await until(lambda: world.supervisor() == 0)
        assert not (world.state / SOCKET_NAME).exists()
        world.runtime = world.another()
        await world.runtime.open()
        ended = (await world.runtime.containers())[record.attempt]
        assert ended.exit is not None
        assert (ended.exit.signal, ended.exit.is_known) == (9, True)

    containers.run(body)


def test_the_supervisor_survives_nonsense_and_vanished_directories(containers: Containers):
    async def body(world: Containers) -> None:
        record = await world.start("steady", "sleep", "600")
        link = (await world.runtime._link.current())._socket  # noqa: SLF001 the agent itself sends no nonsense
        for packet in (b"", b"nonsense", b"[]", b'{"do":"start"}', b'{"id":1,"do":"fly","attempt":["a","b",1]}',
                       b'{"id":[],"do":"start","attempt":["../..","b",1]}', b"\xff" * 1000,
                       b'{"id":{},"do":"execute","attempt":["a","b",1],"command":"x"}',
                       b'{"id":2,"do":"signal","attempt":["a","b",1],"signal":999}'):  # fmt: skip
            if packet:
                link.send(packet)
        victim = await world.start("victim", "sleep", "600")
        shutil.rmtree(world.state / "pods/uid-victim")
        os.kill(victim.process.pid, signal.SIGKILL)
        event = await world.exited()
        assert event.attempt == victim.attempt
        assert event.exit.signal == 9
        assert world.supervisor()
        assert (await world.runtime.containers())[record.attempt].exit is None
        assert not (world.state / "keeper.log").exists()

    containers.run(body)


def test_an_end_that_the_disk_has_no_room_for_is_written_later(containers: Containers):
    async def body(world: Containers) -> None:
        record = await world.start("crowded", "sleep", "600")
        directory = world.state / f"pods/uid-crowded/{CONTAINER}.1"
        (directory / ".exit").mkdir()  # nothing can be written there
        os.kill(record.process.pid, signal.SIGKILL)
        assert (await world.exited()).exit.signal == 9
        assert not (directory / "exit").exists()
        (directory / ".exit").rmdir()
        await until((directory / "exit").exists)

    containers.run(body)


def test_what_is_forgotten_and_removed_is_gone(containers: Containers):
    async def body(world: Containers) -> None:
        record = await world.start("brief", "true")
        event = await world.exited()
        assert isinstance(event, Exited)
        await world.runtime.forget(record.attempt)
        assert await world.runtime.containers() == {}
        assert await world.runtime.pods() == {"uid-brief"}
        await world.runtime.remove("uid-brief")
        await world.runtime.remove_logs("uid-brief")
        assert await world.runtime.pods() == frozenset()
        await world.runtime.stop(Attempt("uid-brief", CONTAINER, 1), 1)

    containers.run(body)
