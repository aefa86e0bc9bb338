"""The systemd driver against a directory and a systemd that does what the real one was seen to do."""

import os
from pathlib import Path

import pytest

from evenkeel.cgroup.driver import CgroupError
from evenkeel.cgroup.drivers import systemd as module
from evenkeel.cgroup.drivers.cgroupfs import Bounds
from evenkeel.cgroup.drivers.dbus import NO_SUCH_UNIT, UNIT_EXISTS, Systemd, SystemdError
from evenkeel.cgroup.drivers.processes import start_placeholder
from evenkeel.cgroup.drivers.systemd import SystemdDriver
from evenkeel.cgroup.drivers.systemd_units import file_value, slice_path
from evenkeel.cgroup.tree import Cgroup, Kind, Naming, Setting, Tree, Version
from tests.kernel.waiting import eventually

ROOT = "/e.slice"
POD = "/e.slice/e-pod1.slice"
OTHER = "/e.slice/e-pod2.slice"
SCOPE = f"{POD}/e-1-web.scope"
PROPERTY_FILES = ("cpu.weight", "cpu.max", "memory.max", "pids.max")
DEFAULTS = {
    "cgroup.procs": "",
    "cgroup.subtree_control": "",
    "cgroup.controllers": "cpu memory pids",
    "cpu.weight": "100",
    "cpu.max": "max 100000",
    "memory.max": "max",
    "memory.oom.group": "0",
    "pids.max": "max",
}


class FakeSystemd(Systemd):
    """Applies all of a unit's properties when one changes, and those of all units near by when a slice gets its first
    child; and has no notion of memory.oom.group but that it is 0."""

    def __init__(self, mount: Path) -> None:
        self.mount = mount
        self.units: dict[str, dict[str, object]] = {}
        self.places: dict[str, str] = {}
        self.refuse: dict[str, list[str]] = {}
        self.calls: list[tuple[str, str]] = []
        make(mount)

    def start_transient(self, unit, properties):
        self._called("start_transient", unit)
        given = {one.name: one.value for one in properties}
        place = slice_path(unit) if unit.endswith(".slice") else f"{slice_path(given['Slice'])}/{unit}"
        make(self.mount / place[1:])
        self.units[unit], self.places[unit] = given, place
        self._hand_on(Path(place).parent)
        self._apply(unit)

    def start(self, unit):
        self._called("start", unit)
        self.units.setdefault(unit, {})
        self.places[unit] = slice_path(unit)
        make(self.mount / self.places[unit][1:])

    def set_properties(self, unit, properties):
        self._called("set_properties", unit)
        self.units[unit].update({one.name: one.value for one in properties})
        self._apply(unit)

    def cgroup_of(self, unit):
        return self.places.get(unit, "")

    def stop(self, unit):
        self._called("stop", unit)
        self.units.pop(unit, None)
        self.places.pop(unit, None)

    def close(self):
        pass

    def _called(self, method, unit):
        self.calls.append((method, unit))
        if self.refuse.get(method):
            raise SystemdError(f"no {method}", unit=unit, name=self.refuse[method].pop())

    def _hand_on(self, parent):
        control = self.mount / str(parent)[1:] / "cgroup.subtree_control"
        if not control.read_text():
            control.write_text("cpu memory pids")
            for unit, place in self.places.items():
                if Path(place) == parent or Path(place).parent == parent:
                    self._apply(unit)

    def _apply(self, unit):
        directory = self.mount / self.places[unit][1:]
        for file in PROPERTY_FILES:
            (directory / file).write_text(file_value(file, self.units[unit]) or DEFAULTS[file])
        (directory / "memory.oom.group").write_text("0")


def make(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for file, text in DEFAULTS.items():
        if not (directory / file).exists():
            (directory / file).write_text(text)


class Place(SystemdDriver):
    """The driver with its parts in reach."""

    def __init__(self, mount: Path) -> None:
        self.mount, self.fake = mount, FakeSystemd(mount)
        super().__init__(str(mount), Bounds(ROOT, ("/system.slice",)), self.fake, patience_seconds=0.2)

    def held(self, path: str, file: str) -> str:
        return (self.mount / path[1:] / file).read_text()


@pytest.fixture
def place(tmp_path):
    made = Place(tmp_path / "cgroup")
    yield made
    made.close()


def refused(place, method, *names):
    place.fake.refuse[method] = list(names)


def test_the_slices_above_are_made_first(place):
    place.create(POD)
    assert place.fake.calls == [("start_transient", "e.slice"), ("start_transient", "e-pod1.slice")]
    place.create(POD)
    assert len(place.fake.calls) == 2


@pytest.mark.req("E9")
def test_a_value_with_a_property_is_told_to_systemd_and_one_without_is_written_beside(place):
    place.create(POD)
    place.write(POD, "memory.max", "8192")
    place.write(POD, "memory.oom.group", "1")
    assert place.fake.units["e-pod1.slice"]["MemoryMax"] == 8192
    assert place.held(POD, "memory.max") == "8192"
    assert place.held(POD, "memory.oom.group") == "1"
    assert [call for call in place.fake.calls if call[0] == "set_properties"] == [
        ("set_properties", "e-pod1.slice")
    ]


def test_a_slice_is_frozen_and_thawed_by_its_own_file(place):
    place.create(POD)
    file, value = place.thaw_write(POD)
    Path(file).write_text("1")
    place.send_freeze(POD, frozen=False)
    assert place.held(POD, "cgroup.freeze") == value == "0"


@pytest.mark.req("E9", "E10")
def test_a_quota_that_systemd_cannot_hold_is_exact_in_the_kernel_and_rounded_up_in_systemd(place):
    place.create(POD)
    place.write(POD, "cpu.max", "33333 100000")
    assert place.held(POD, "cpu.max") == "33333 100000"
    assert place.fake.units["e-pod1.slice"]["CPUQuotaPerSecUSec"] == 340_000


@pytest.mark.req("E9", "A19")
def test_what_systemd_undoes_beside_what_it_was_asked_for_is_put_back(place):
    place.create(POD)
    place.write(POD, "memory.oom.group", "1")
    place.write(POD, "cpu.max", "33333 100000")
    place.write(POD, "memory.max", "8192")
    assert place.held(POD, "memory.oom.group") == "1"
    assert place.held(POD, "cpu.max") == "33333 100000"


@pytest.mark.req("E9", "A19")
def test_what_a_new_cgroup_below_undoes_is_put_back_in_the_one_above_and_those_beside_it(place):
    place.create(ROOT)
    place.write(ROOT, "memory.oom.group", "1")
    place.create(POD)
    assert place.held(ROOT, "memory.oom.group") == "1"


@pytest.mark.req("E9")
def test_what_was_beside_systemd_when_a_pass_began_is_put_back_too(place):
    place.create(POD)
    place.write(POD, "memory.oom.group", "1")
    again = Place(place.mount)
    again.fake = again._systemd = place.fake  # noqa: SLF001
    setting = Setting("memory.oom.group", "1", "A19", "test")
    tree = Tree(Version.V2, Naming.SYSTEMD, (Cgroup(ROOT, Kind.ROOT, ()), Cgroup(POD, Kind.POD, (setting,))))
    assert again.observe(tree)[POD] == {"memory.oom.group": "1"}
    again.write(POD, "memory.max", "8192")
    assert again.held(POD, "memory.oom.group") == "1"


def test_a_value_that_becomes_a_property_is_no_longer_put_back(place):
    place.create(POD)
    place.write(POD, "cpu.max", "33333 100000")
    place.write(POD, "cpu.max", "50000 100000")
    place.write(POD, "cpu.weight", "7")
    assert place.held(POD, "cpu.max") == "50000 100000"


def test_a_slice_that_somebody_made_without_systemd_is_its_unit_from_then_on(place):
    place.create(ROOT)
    make(place.mount / POD[1:])
    place.write(POD, "memory.max", "8192")
    assert place.fake.units["e-pod1.slice"]["MemoryMax"] == 8192


def test_a_slice_with_a_file_of_its_own_is_started_as_it_is(place):
    refused(place, "start_transient", UNIT_EXISTS)
    place.create(ROOT)
    assert place.fake.calls == [("start_transient", "e.slice"), ("start", "e.slice")]


def test_a_write_to_a_cgroup_that_is_not_there_tells_systemd_nothing(place):
    with pytest.raises(CgroupError) as caught:
        place.write(POD, "memory.max", "8192")
    assert caught.value.reason == "ENOENT"
    assert place.fake.calls == []


def test_an_error_of_systemds_is_about_the_cgroup_and_its_file(place):
    place.create(POD)
    refused(place, "set_properties", NO_SUCH_UNIT)
    with pytest.raises(CgroupError) as caught:
        place.write(POD, "memory.max", "8192")
    assert (caught.value.path, caught.value.file, caught.value.reason) == (POD, "memory.max", "ENOENT")


@pytest.mark.parametrize("path", ["/other.slice", "/e.slicer", "/", "/e.slice/../x.slice"])
def test_nothing_outside_the_root_is_made_set_or_removed(place, path):
    for attempt in (place.create, place.remove, lambda path: place.write(path, "memory.max", "1")):
        with pytest.raises(CgroupError):
            attempt(path)
    assert place.fake.calls == []


def test_the_units_of_daemons_are_set_and_never_made(place):
    with pytest.raises(CgroupError, match=r"systemctl start 'x\.service'"):
        place.create("/system.slice/x.service")
    with pytest.raises(CgroupError, match="not ours"):
        place.remove("/system.slice")


@pytest.mark.parametrize("name", ["ssh.service", "x.scope", "x.slice", "memory.slice", "a b.scope"])
def test_a_directory_that_is_called_like_a_unit_elsewhere_is_removed_and_the_unit_is_not_stopped(place, name):
    place.create(POD)
    place.fake.places |= {
        "ssh.service": "/system.slice/ssh.service",
        "x.scope": "/x.scope",
        "x.slice": "/x.slice",
    }
    (place.mount / POD[1:] / name).mkdir()
    place.remove(f"{POD}/{name}")
    assert not (place.mount / POD[1:] / name).exists()
    assert "stop" not in {method for method, _ in place.fake.calls}


def pids_started(monkeypatch):
    started = []
    real = start_placeholder

    def start(path):
        started.append(real(path))
        return started[-1]

    monkeypatch.setattr(module, "start_placeholder", start)
    return started


def is_sleeping(pid):
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


@pytest.mark.req("A24")
def test_a_scope_has_a_placeholder_in_a_cgroup_of_its_own(place, monkeypatch):
    started = pids_started(monkeypatch)
    place.create(POD)
    make(place.mount / SCOPE[1:] / "evenkeel.placeholder")  # as the kernel would, with its files
    try:
        place.create(SCOPE)
        (pid,) = started
        assert place.fake.units["e-1-web.scope"]["PIDs"] == (pid,)
        assert place.held(f"{SCOPE}/evenkeel.placeholder", "cgroup.procs") == str(pid)
        assert place.processes(SCOPE) == place.processes(ROOT) == ()
        assert is_sleeping(pid)
    finally:
        for pid in started:
            os.kill(pid, 9)


@pytest.mark.req("A24")
def test_a_scope_that_cannot_be_had_leaves_no_process(place, monkeypatch):
    started = pids_started(monkeypatch)
    place.create(POD)
    refused(place, "start_transient", "org.freedesktop.DBus.Error.AccessDenied")
    with pytest.raises(CgroupError) as caught:
        place.create(SCOPE)
    assert caught.value.path == SCOPE
    (pid,) = started
    eventually(lambda: not is_sleeping(pid))


def test_a_unit_that_runs_elsewhere_is_not_touched(place, monkeypatch):
    started = pids_started(monkeypatch)
    place.create(POD)
    place.fake.places["e-1-web.scope"] = "/other.slice/e-1-web.scope"
    with pytest.raises(CgroupError, match=r"runs at /other\.slice/e-1-web\.scope.*two agents"):
        place.create(SCOPE)
    assert started == []
