"""CNI plugins that are broken or hostile: real programs, whose answers are bounded and checked."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evenkeel.runtime.paths import state_paths, write_json
from evenkeel.runtime.process import network_plugins
from evenkeel.runtime.process.network_plugins import Joined, NetworkPlugins, NetworkRefused
from evenkeel.runtime.process.pod_networks import PodNetworks
from tests.kernel.waiting import eventually

SUBNET = "10.90.0.0/20"
GOOD = {"ips": [{"version": "4", "address": "10.90.0.7/20"}]}
MakePlugins = Callable[..., NetworkPlugins]


def joined(result: dict[str, Any] | None = None) -> Joined:
    bridge = {"type": "bridge", "ipam": {"ranges": [[{"subnet": SUBNET}]]}}
    network = {"cniVersion": "0.4.0", "name": "evenkeel", "plugins": [bridge, {"type": "portmap"}]}
    return Joined("/nowhere", network, [], "default/web", result)


def saying(answer: object) -> str:
    return f"cat <<'END'\n{answer if isinstance(answer, str) else json.dumps(answer)}\nEND"


@pytest.fixture
def plugins(tmp_path: Path) -> MakePlugins:
    """Each plugin is a shell script."""

    def make(bridge: str, portmap: str = saying(GOOD), call_seconds: float = 60.0) -> NetworkPlugins:
        for name, script in (("bridge", bridge), ("host-local", ""), ("portmap", portmap)):
            (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
            (tmp_path / name).chmod(0o755)
        return NetworkPlugins([str(tmp_path)], call_seconds)

    return make


def test_the_answer_of_the_last_plugin_is_the_result_and_each_gets_that_of_the_one_before(
    plugins: MakePlugins, tmp_path: Path
):
    given = tmp_path / "given"
    asked = plugins(saying(GOOD), f"cat > {given}\n{saying(GOOD)}")
    assert asked.add("u-1", joined()) == GOOD
    config = json.loads(given.read_text())
    assert config["prevResult"] == GOOD
    assert config["cniVersion"] == "0.4.0"


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ("", "no list of 1 to 16 addresses"),
        ("not JSON", "no list of 1 to 16 addresses"),
        ("[" * 100_000, "no list of 1 to 16 addresses"),
        ([1], "no list of 1 to 16 addresses"),
        ({}, "no list of 1 to 16 addresses"),
        ({"ips": None}, "no list of 1 to 16 addresses"),
        ({"ips": {"address": "10.90.0.7/20"}}, "no list of 1 to 16 addresses"),
        ({"ips": []}, "no list of 1 to 16 addresses"),
        ({"ips": GOOD["ips"] * 17}, "no list of 1 to 16 addresses"),
        ({"ips": [5]}, "no address such as"),
        ({"ips": [{"address": 5}]}, "no address such as"),
        ({"ips": [{"address": "10.90.0.7/20\n127.0.0.1 bank.example"}]}, "no address such as"),
        ({"ips": [*GOOD["ips"], {"address": "web"}]}, "no address such as"),
        ({"ips": [{"address": "127.0.0.1/8"}]}, "the address 127.0.0.1, which is none of 10.90.0.0/20"),
        ({"ips": [{"address": "169.254.169.254/32"}]}, "169.254.169.254, which is none of"),
        ({"ips": [{"address": "::1/128"}]}, "::1, which is none of"),
    ],
)
def test_an_answer_that_is_no_result_is_refused(plugins: MakePlugins, answer: object, problem: str):
    with pytest.raises(NetworkRefused, match="the CNI plugin bridge answered") as refused:
        plugins(saying(answer)).add("u-1", joined())
    assert problem in refused.value.message


def test_a_plugin_that_says_too_much_is_ended(plugins: MakePlugins):
    for stream in ("", " >&2"):
        with pytest.raises(NetworkRefused, match="said more than 1 MiB"):
            plugins(f"exec yes{stream}").add("u-1", joined())


def test_a_plugin_that_does_not_end_is_ended_with_its_children(
    plugins: MakePlugins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    child = tmp_path / "child"
    script = f"sleep 1000 & echo $! > {child}.new; mv {child}.new {child}; wait"

    begins = iter([0.0])

    def clock() -> float:
        """The time is over when the child is there."""
        for now in begins:
            return now
        eventually(child.exists)
        return 60.0

    monkeypatch.setattr(network_plugins, "time", SimpleNamespace(monotonic=clock))
    with pytest.raises(NetworkRefused, match="did not end within"):
        plugins(script, call_seconds=60.0).add("u-1", joined())
    eventually(lambda: not is_running(int(child.read_text())))


def test_a_child_that_holds_the_streams_does_not_delay_the_result(plugins: MakePlugins):
    assert plugins(f"sleep 1000 & {saying(GOOD)}").add("u-1", joined()) == GOOD


def test_the_reason_of_a_refusal_is_short_and_a_text(plugins: MakePlugins):
    for script in (
        saying({"msg": "x" * 100_000}) + "\nexit 3",
        saying({"msg": [["no"]]}) + "\nexit 3",
        "exit 3",
        "kill -9 $$",
    ):
        with pytest.raises(NetworkRefused, match=r"the CNI plugin bridge refused ADD: .") as refused:
            plugins(script).add("u-1", joined())
        assert len(refused.value.message) < 600


def test_what_cannot_be_executed_is_refused(plugins: MakePlugins, tmp_path: Path):
    asked = plugins("")
    (tmp_path / "bridge").write_text("#!/nowhere/sh\n")
    with pytest.raises(NetworkRefused, match="cannot be executed"):
        asked.add("u-1", joined())


def test_to_leave_every_plugin_is_called_though_one_refuses(plugins: MakePlugins, tmp_path: Path):
    called = tmp_path / "called"
    asked = plugins(f"echo $CNI_COMMAND > {called}", "exit 1")
    with pytest.raises(NetworkRefused, match="portmap refused DEL"):
        asked.delete("u-1", joined(GOOD))
    assert called.read_text() == "DEL\n"


def test_a_record_with_a_hostile_answer_keeps_no_agent_from_starting(tmp_path: Path):
    """An agent of before may have written it."""
    paths = state_paths(str(tmp_path))
    answers: dict[str, dict[str, Any]] = {
        "a": {"ips": 5},
        "b": {"ips": [{"address": "x\n127.0.0.1 y"}, None]},
        "c": GOOD,
    }
    for uid, answer in answers.items():
        Path(paths.pod(uid)).mkdir(parents=True)
        write_json(paths.pod(uid), "network", joined(answer)._asdict())
    networks = PodNetworks(paths)
    networks.take_up()
    assert [networks.addresses(uid) for uid in answers] == [(), (), ("10.90.0.7",)]


def is_running(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
