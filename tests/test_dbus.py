"""Calls to systemd: what is waited for, what is tried again, and what is said when it does not work."""

import asyncio
import sys
import threading

import pytest

pytest.importorskip("dbus_fast", reason="the extra 'systemd' is not installed")

from dbus_fast import Message, Variant

from evenkeel.cgroup.drivers import dbus
from evenkeel.cgroup.drivers.dbus import NO_SUCH_UNIT, Systemd, SystemdError
from evenkeel.cgroup.drivers.systemd_units import Property

JOB = "/org/freedesktop/systemd1/job/7"
UNIT = "evenkeel.slice"


class Bus:
    """Answers each call with the next of `answers[method]`, the last one again and again."""

    connected = True

    def __init__(self, systemd, answers):
        self.systemd, self.answers, self.calls = systemd, {key: list(of) for key, of in answers.items()}, []

    async def call(self, message):
        self.calls.append((message.member, message.body))
        answers = self.answers.get(message.member, [("", [])])
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        message.serial, message.sender = 1, ":1.1"
        if answer is None:
            await asyncio.sleep(3600)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, str):
            return Message.new_error(message, answer, "it said no.")
        return Message.new_method_return(message, *answer)

    def disconnect(self):
        self.connected = False

    async def wait_for_disconnect(self):
        pass


class Scripted(Systemd):
    def __init__(self, timeout_seconds=30.0, job_result="done", **answers):
        super().__init__(timeout_seconds=timeout_seconds)
        self.job_result = job_result
        self.bus = Bus(self, {"StartTransientUnit": [("o", [JOB])], "StopUnit": [("o", [JOB])]} | answers)

    async def _connect(self):
        self._job_ended = asyncio.Event()
        return self.bus

    def _note_end(self):
        signal = Message(
            interface="org.freedesktop.systemd1.Manager", member="JobRemoved", path="/", signature="uoss",
            body=[7, JOB, UNIT, self.job_result],
        )  # fmt: skip
        self._note_job(signal)

    async def _job_result(self, unit, job, deadline):
        if self.job_result:
            asyncio.get_running_loop().call_later(0.01, self._note_end)
        return await super()._job_result(unit, job, deadline)


@pytest.fixture
def scripted():
    made = []

    def make(**answers):
        made.append(Scripted(**answers))
        return made[-1]

    yield make
    for systemd in made:
        systemd.close()


def methods(systemd):
    return [member for member, _ in systemd.bus.calls]


def test_a_start_returns_when_the_job_has_ended_and_its_effects_are_there(scripted):
    systemd = scripted()
    systemd.start_transient(UNIT, [Property("MemoryMax", "t", 4096), Property("PIDs", "au", (1, 2))])
    assert methods(systemd) == ["StartTransientUnit", "Ping"]
    _, mode, properties, _ = systemd.bus.calls[0][1]
    assert mode == "replace"
    assert [(name, variant.value) for name, variant in properties] == [("MemoryMax", 4096), ("PIDs", [1, 2])]


def test_properties_are_set_until_the_next_boot_and_applied_on_return(scripted):
    systemd = scripted()
    systemd.set_properties(UNIT, [Property("AllowedCPUs", "ay", b"\x03")])
    assert methods(systemd) == ["SetUnitProperties", "Ping"]
    assert systemd.bus.calls[0][1][:2] == [UNIT, True]


@pytest.mark.parametrize("result", ["failed", "timeout", "dependency"])
def test_a_job_that_fails_is_an_error_that_says_where_to_look(scripted, result):
    systemd = scripted(job_result=result)
    with pytest.raises(
        SystemdError, match=f"could not stop evenkeel.slice: its job ended as {result}.*systemctl status"
    ):
        systemd.stop(UNIT)


def test_a_job_whose_signal_was_lost_has_ended_when_systemd_does_not_know_it(scripted, monkeypatch):
    monkeypatch.setattr(dbus, "_JOB_CHECK_SECONDS", 0.01)
    state = ("v", [Variant("s", "running")])
    systemd = scripted(job_result="", Get=[state, "org.freedesktop.DBus.Error.UnknownObject"])
    systemd.stop(UNIT)
    assert methods(systemd) == ["StopUnit", "Get", "Get", "Ping"]


def test_a_job_that_does_not_end_is_given_up(scripted, monkeypatch):
    monkeypatch.setattr(dbus, "_JOB_CHECK_SECONDS", 0.01)
    systemd = scripted(job_result="", timeout_seconds=0.5, Get=[("v", [Variant("s", "running")])])
    with pytest.raises(SystemdError, match=r"did not finish a job for evenkeel.slice in 0.5 s.*list-jobs"):
        systemd.stop(UNIT)


def test_a_call_without_an_answer_is_given_up(scripted):
    systemd = scripted(timeout_seconds=0.05, Get=[None])
    with pytest.raises(SystemdError, match=r"did not answer Get in 0.05 s"):
        systemd.cgroup_of(UNIT)


@pytest.mark.parametrize(
    "lost", ["org.freedesktop.DBus.Error.NoReply", "org.freedesktop.DBus.Error.NameHasNoOwner", EOFError()]
)
@pytest.mark.req("E9")
def test_a_call_that_systemd_lost_while_it_executed_itself_anew_is_made_again(scripted, monkeypatch, lost):
    monkeypatch.setattr(dbus, "_AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(dbus, "_is_booted", lambda: True)
    systemd = scripted(SetUnitProperties=[lost, lost, ("", [])])
    systemd.set_properties(UNIT, [])
    assert methods(systemd) == ["SetUnitProperties"] * 3 + ["Ping"]


def test_without_systemd_nobody_is_waited_for(scripted, monkeypatch):
    monkeypatch.setattr(dbus, "_is_booted", lambda: False)
    systemd = scripted(SetUnitProperties=["org.freedesktop.DBus.Error.ServiceUnknown"])
    with pytest.raises(SystemdError, match=r"is systemd the init of this machine\?"):
        systemd.set_properties(UNIT, [])
    assert len(systemd.bus.calls) == 1


def test_a_refusal_says_what_systemd_said(scripted):
    systemd = scripted(StopUnit=[NO_SUCH_UNIT])
    with pytest.raises(
        SystemdError, match=r"systemd refused StopUnit of evenkeel.slice: it said no$"
    ) as caught:
        systemd.stop(UNIT)
    assert caught.value.name == NO_SUCH_UNIT


def test_a_user_without_rights_is_told_what_to_do(scripted):
    systemd = scripted(StopUnit=["org.freedesktop.DBus.Error.AccessDenied"])
    with pytest.raises(SystemdError, match="run as root"):
        systemd.stop(UNIT)


@pytest.mark.parametrize(
    ("state", "cgroup", "expected"),
    [
        ("active", "/evenkeel.slice", "/evenkeel.slice"),
        ("inactive", "", ""),
        ("failed", "/x", ""),
        ("active", "", "/"),
    ],
)
def test_a_unit_has_a_cgroup_only_while_it_runs(scripted, state, cgroup, expected):
    systemd = scripted(Get=[("v", [Variant("s", state)]), ("v", [Variant("s", cgroup)])])
    assert systemd.cgroup_of(UNIT) == expected


@pytest.mark.parametrize("address", ["unix:path=/nonexistent/bus", "nonsense", "tcp:host=a"])
def test_a_bus_that_is_not_there_is_a_sentence(address):
    systemd = Systemd(address)
    try:
        with pytest.raises(SystemdError, match=r"cannot reach systemd on the system bus: .*is dbus running"):
            systemd.stop(UNIT)
    finally:
        systemd.close()


def test_without_the_package_the_message_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "dbus_fast", None)
    systemd = Systemd()
    with pytest.raises(SystemdError, match=r"pip install 'evenkeel\[systemd\]'"):
        systemd.set_properties(UNIT, [Property("MemoryMax", "t", 4096)])
    systemd.close()


def test_it_can_be_used_from_within_an_event_loop(scripted):
    systemd = scripted()

    async def main():
        systemd.set_properties(UNIT, [])

    asyncio.run(main())
    assert methods(systemd) == ["SetUnitProperties", "Ping"]


def test_closing_leaves_no_thread_and_can_be_repeated(scripted):
    before = set(threading.enumerate())  # those of a test before may end meanwhile
    systemd = scripted()
    systemd.set_properties(UNIT, [])
    (begun,) = set(threading.enumerate()) - before
    assert begun.name == "systemd"
    systemd.close()
    systemd.close()
    assert not begun.is_alive()


def test_however_short_an_answer_is_waited_for_the_thread_has_its_time_to_end(scripted, monkeypatch):
    systemd = scripted(timeout_seconds=0.01)
    systemd.set_properties(UNIT, [])
    (thread,) = [one for one in threading.enumerate() if one.name == "systemd"]
    monkeypatch.setattr(systemd.bus, "wait_for_disconnect", lambda: asyncio.sleep(0.1))
    systemd.close()
    assert not thread.is_alive()


def test_results_of_jobs_that_nobody_asked_for_do_not_pile_up(scripted):
    systemd = scripted()
    systemd.set_properties(UNIT, [])
    for number in range(dbus._MOST_RESULTS + 50):  # noqa: SLF001 as fast as no bus is
        systemd._note_job(  # noqa: SLF001
            Message(interface="org.freedesktop.systemd1.Manager", member="JobRemoved", path="/", signature="uoss",
                    body=[number, f"/job/{number}", UNIT, "done"])
        )  # fmt: skip
    assert len(systemd._jobs) == dbus._MOST_RESULTS  # noqa: SLF001
