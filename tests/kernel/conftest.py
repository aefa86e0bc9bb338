"""Which kernel tests fit the machine, and what they start from: a cgroup of their own and processes in it.

`@pytest.mark.cgroup("v1")`, `("v2")` or `("systemd")` says what a test needs, `("guest")` that it changes the machine
itself, `("host")` that it would take too long where the processor is emulated; several say that one of them will do,
none that any machine will. Tests that do not fit are deselected, and pytest counts them.
"""

import os
import platform
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from evenkeel.api.config import Profile
from evenkeel.host.kernel_settings import differences, kernel_settings, restore_kernel_settings
from tests.kernel.cgroup_roots import bounded_root
from tests.kernel.cgroups import Cgroup, hierarchies, named_hierarchies
from tests.kernel.failure_reports import pytest_runtest_makereport
from tests.kernel.live_tree import children
from tests.kernel.processes import Spawn, spawning
from tests.machines.containerd import Containerd
from tests.machines.packages import require_containerd
from tests.needing import needing

__all__ = ["pytest_runtest_makereport"]

NEEDS = ("v1", "v2", "systemd", "guest", "host")
PLACES = {Path(__file__).parent, Path(__file__).parents[1] / "attacks"}  # of tests that need a real kernel
MACHINE = os.environ.get("EVENKEEL_MACHINE", "")
# Unique to this run; without '-', which would make a slice of that name a child of another.
PREFIX = f"evenkeeltest{secrets.token_hex(3)}"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", f"cgroup(need, …): needs one of {', '.join(NEEDS)} (tests/kernel only)"
    )
    config.addinivalue_line(
        "markers",
        "agent: has an agent; every test with the fixture `up` or `agent` has it (tests/kernel only)",
    )
    config.addinivalue_line(
        "markers",
        "whole_kernel(why): needs what a kernel in user mode lacks: PSI, cpusets, a second processor, memory that is"
        " fast (tests/kernel only)",
    )
    config.addinivalue_line(
        "markers", "long: takes many minutes where the machine is emulated (tests/kernel only)"
    )
    config.addinivalue_line(
        "markers", "processes_only(why): makes no sense with containers (tests/kernel only)"
    )
    config.addinivalue_line(
        "markers", "emulated_containers: with containers in emulated machines too (tests/kernel only)"
    )


def pytest_report_header() -> str:
    return f"machine: {MACHINE or 'none'}, {', '.join(sorted(offered()))}, Linux {platform.release()}"


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here = [item for item in items if not PLACES.isdisjoint(item.path.parents)]
    for item in here:
        if not {"up", "shared_agent", "cluster_agent"}.isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker("agent")
        unknown = needs(item) - set(NEEDS)
        if unknown:
            raise pytest.UsageError(
                f"{item.nodeid}: cgroup({', '.join(unknown)}): there are {', '.join(NEEDS)}"
            )
    if config.option.collectonly:
        return
    if here and not MACHINE:
        raise pytest.UsageError("these tests run through 'make kernel' or 'python -m tests.machines test'")
    unfit = [
        item
        for item in here
        if (needs(item) and not needs(item) & offered()) or is_too_long(item) or is_unfit_for_containers(item)
    ]
    config.hook.pytest_deselected(items=unfit)
    items[:] = [item for item in items if item not in unfit]


def is_too_long(item: pytest.Item) -> bool:
    """`make kernel-v2-long` runs them in the guest; `make test` where the processor is real, and in the guest a few."""
    is_wanted = MACHINE == "host" or bool(os.environ.get("EVENKEEL_LONG"))
    return not is_wanted and item.get_closest_marker("long") is not None


def is_unfit_for_containers(item: pytest.Item) -> bool:
    """The variant of a test with containers, where it makes no sense; or where all of them would take too long."""
    callspec = getattr(item, "callspec", None)
    if callspec is None or "cri" not in [
        callspec.params.get(name) for name in ("up", "demos", "shared_agent", "cluster_agent")
    ]:
        return False
    is_wanted = MACHINE == "host" or bool(os.environ.get("EVENKEEL_LONG"))
    if not is_wanted and item.get_closest_marker("emulated_containers") is None:
        return True
    return item.get_closest_marker("processes_only") is not None


def needs(item: pytest.Item) -> set[str]:
    """The marks of a test replace those of its module."""
    mark = item.get_closest_marker("cgroup")
    return set(mark.args) if mark else set()


def offered() -> set[str]:
    """What tests may need and find here. The systemd guest leaves to the plain one what needs only cgroup v2."""
    if MACHINE == "systemd":
        return {"systemd"}
    place = {"host"} if MACHINE == "host" else {"guest"}
    if "memory" in hierarchies():
        return {"v1"} | place
    return {"v2"} | place | ({"systemd"} if Path("/run/systemd/system").exists() else set())


@pytest.fixture
def cgroup_root() -> Iterator[Cgroup]:
    """A new cgroup in every hierarchy, with a bound on memory and processes; all in it is gone after the test."""
    yield from new_cgroup_root()


def new_cgroup_root() -> Iterator[Cgroup]:
    """The same for a fixture of any scope."""
    with bounded_root(f"{PREFIX}x{secrets.token_hex(3)}", is_slice="systemd" in offered()) as root:
        yield root


@pytest.fixture
def spawn(cgroup_root: Cgroup) -> Iterator[Spawn]:
    """Starts programs (tests/kernel/programs) that end with the test; before their cgroups are removed."""
    with spawning() as start:
        yield start


@pytest.fixture(scope="session")
def containerd() -> Iterator[Containerd]:
    """One that the tests of a run share: started for the first that needs it, ended after the last."""
    with needing():
        require_containerd()
    with Containerd(systemd_cgroup=MACHINE == "systemd") as one:
        yield one


@pytest.fixture(scope="session", autouse=True)
def _nothing_left() -> Iterator[None]:
    """Every cgroup that the tests of this run made is gone after the last of them, and the settings of the machine are
    as before: an agent that is killed does not put them back."""
    before = differences(kernel_settings(Profile.KUBERNETES))
    yield
    restore_kernel_settings(before)
    tops = [*hierarchies().values(), *named_hierarchies()]
    left = [str(path) for top in tops for path in children(top, f"{PREFIX}*")]
    assert not left, f"cgroups left behind: {', '.join(left)}"
