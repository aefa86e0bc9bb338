"""Every byte that a pod leaves on disk is bounded, or counted as its own: no file of it is charged to another pod.

A path that is the host's own file is detected and not written to, so a successful attack does no harm here."""

import secrets
from pathlib import Path
from typing import Any

import pytest

from tests.attacks.hostile import IMAGES, PATIENCE_SECONDS, await_said, details_of, hostile, said
from tests.kernel.agents import MIB, Up, pod
from tests.kernel.live_tree import files_below, status
from tests.kernel.waiting import eventually

pytestmark = pytest.mark.cgroup("v1", "v2")

LIMIT_MIB, WRITTEN_MIB = 8, 24
SMALL_BYTES = 1 * MIB  # a file that cannot become larger need not be counted
# Files that a container finds, and places where it may make some.
PLACES = ("/dev/termination-log", "/etc/hosts", "/etc/resolv.conf", "/etc/hostname", "/new", "/tmp/new", "/root/new",
          "/var/new", "/run/new")  # fmt: skip
AMOUNTS = {"resources": {"limits": {"ephemeral-storage": f"{LIMIT_MIB}Mi"}}}


def filling(agent: Up, name: str, mib: int, place: str, **options: Any) -> dict[str, Any]:
    """A pod that writes there, unless what is there is the host's."""
    host = "0:0"
    if Path(place).exists():
        status = Path(place).stat()
        host = f"{status.st_dev}:{status.st_ino}"
    spec = {"container": AMOUNTS, "restartPolicy": "Never", **options}
    return hostile(agent, name, "fill", str(mib * MIB), host, place, **spec)


def outcome(agent: Up, name: str, place: str) -> str:
    """The outcome of a pod that writes more there than it may: `Evicted`, or `small` if it cannot write so much."""

    def ended() -> str:
        if agent.phase(name) == "Failed":
            return agent.status(name).get("reason") or "failed"
        reported = [line.split()[1] for line in said(agent, name) if line.startswith(f"{place} ")]
        if not reported or reported[0] == "host":
            return "the host's" if reported else ""
        return "small" if int(reported[0]) <= SMALL_BYTES else ""

    try:
        return eventually(ended, within_seconds=PATIENCE_SECONDS)
    except AssertionError:
        return f"not counted: {agent.phase(name)}, said {said(agent, name)}"


def unbounded(agent: Up, places: dict[str, str]) -> dict[str, str]:
    """The paths of `places` at which a pod has more than it may."""
    outcomes = {place: outcome(agent, name, place) for name, place in places.items()}
    return {place: what for place, what in outcomes.items() if what not in ("small", "Evicted")}


def test_wherever_a_pod_in_an_image_writes_it_is_bounded_or_counted(agent: Up):
    places = {f"writes{number}": place for number, place in enumerate(PLACES)}
    words = {"words0": "/tmp/last-words", "words1": "/dev/last-words", "words2": "/new/last-words"}
    for name, place in places.items():
        agent.apply(filling(agent, name, WRITTEN_MIB, place))
    for name, place in words.items():
        container = {**AMOUNTS, "terminationMessagePath": place}
        agent.apply(filling(agent, name, WRITTEN_MIB, place, container=container))
    agent.apply(filling(agent, "modest", 2, "/tmp/some"))
    assert unbounded(agent, places | words) == {}
    await_said(agent, "modest")
    agent.await_phase("modest", "Running")


@pytest.mark.long
@pytest.mark.processes_only("image: host is of processes")
def test_wherever_a_pod_on_the_hosts_files_writes_it_is_bounded_or_counted(agent: Up):
    token = f"evenkeel-attack-{secrets.token_hex(4)}"
    made = [Path(place) / token for place in ("/dev", "/tmp", "/var/tmp")]
    places = {f"writes{number}": str(path) for number, path in enumerate(made)}
    places["words"] = "/dev/termination-log"
    try:
        for name, place in places.items():
            agent.apply(filling(agent, name, WRITTEN_MIB, place, image="host"))
        assert unbounded(agent, places) == {}
    finally:
        for path in made:
            path.unlink(missing_ok=True)


def test_a_file_without_a_name_is_counted_however_it_is_held(agent: Up):
    ways = ("open", "chroot", "crowd", "mapped")
    for way in ways:
        agent.apply(
            hostile(
                agent, way, "nameless", str(WRITTEN_MIB * MIB), way, container=AMOUNTS, restartPolicy="Never"
            )
        )
    for way in ways:
        agent.await_evicted(way)


@pytest.mark.whole_kernel("memory that is fast")
def test_what_a_pod_writes_in_memory_is_charged_to_it_and_bounded(agent: Up):
    """The filesystems that are the container's own and not on disk: what does not fit its limit ends it."""
    amounts = {"resources": {"limits": {"memory": "24Mi"}, "requests": {"memory": "1Mi"}}}
    names = {}
    for image in IMAGES:
        places = (
            "/dev/shm/new",
            "/dev/new",
            "/dev/pts/new",
            *(["/run/evenkeel-attack"] if image == "host" else []),
        )
        for number, place in enumerate(places):
            if agent.containerd is not None and image == "host":
                continue  # both are the image
            names[name := f"{image}{number}"] = place
            agent.apply(filling(agent, name, 80, place, image=image, container=amounts))
    for name, place in names.items():
        eventually(
            lambda: agent.phase(name) == "Failed" or "done" in said(agent, name),  # noqa: B023 called here
            within_seconds=PATIENCE_SECONDS,
            details=lambda: details_of(agent, name),  # noqa: B023 called here
        )
        written = [int(line.split()[1]) for line in said(agent, name) if line.startswith(f"{place} ")]
        assert not written or written[0] <= SMALL_BYTES, name
    assert not Path("/run/evenkeel-attack").exists()


@pytest.mark.long
def test_last_words_take_no_more_disk_than_they_may(agent: Up):
    agent.apply(filling(agent, "words", WRITTEN_MIB, "/dev/termination-log"))
    eventually(
        lambda: agent.phase("words") == "Failed" or "done" in said(agent, "words"),
        details=lambda: details_of(agent, "words"),
    )
    written = [
        int(line.split()[1]) for line in said(agent, "words") if line.startswith("/dev/termination-log ")
    ]
    assert written
    assert written[0] <= SMALL_BYTES
    uid = agent.pod("words")["metadata"]["uid"]
    places = (agent.state / "pods" / uid, agent.state / "memory" / uid)
    files = [status(path) for place in places for path in files_below(place)]
    assert sum(file.st_blocks * 512 for file in files if file) <= 2 * SMALL_BYTES


def test_last_words_are_heard_and_each_attempt_has_its_own(agent: Up):
    script = "cat /dev/termination-log; echo read; echo last $(date +%N) > /dev/termination-log; exit 3"
    agent.apply(pod("speaks", ["sh", "-c", script]))

    def ends() -> list[str]:
        (status,) = agent.status("speaks").get("containerStatuses") or [{}]
        states = (status.get("state", {}), status.get("lastState", {}))
        return [one["terminated"].get("message", "") for one in states if "terminated" in one]

    def read() -> list[str]:
        """What the last two attempts found: logs of others are removed."""
        lines = said(agent, "speaks")
        return lines if lines.count("read") >= 2 else []

    lines = eventually(read, details=lambda: details_of(agent, "speaks"))
    assert eventually(ends)[0].startswith("last ")
    assert set(lines) == {"read"}
