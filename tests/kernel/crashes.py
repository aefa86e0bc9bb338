"""A load of pods that changes all the time under an agent that is killed at random moments; what must hold after each
restart, and at the end. The seed is printed, and replays the story: what is done, and when."""

import json
import random
import time
from copy import deepcopy
from pathlib import Path
from typing import Any

from evenkeel.api.config import KubeletConfiguration
from evenkeel.api.manifests import read_manifests
from evenkeel.api.pod import Pod
from evenkeel.cgroup.drivers.detect import detect, driver_for
from evenkeel.cgroup.plan import plan
from evenkeel.cgroup.reconcile import survey
from evenkeel.policy.node_view import node_view, parse_node
from evenkeel.policy.provision import PlannedPod
from tests.kernel.agents import Up, with_host_path
from tests.kernel.waiting import eventually
from tests.machines.programs import programs

NODE = "768Mi,8cpu"
# While a runtime starts a container: the one that prepares it has threads of its own.
_MOST_PROCESSES_OF_A_POD = 16
SETTLE_SECONDS = 300.0


class Wanted:
    """A pod that should be there, and what must become of it."""

    def __init__(self, name: str, manifest: dict[str, Any], exit_code: int | None, *, in_file: bool) -> None:
        self.name = name
        self.manifest = manifest
        self.exit_code = exit_code  # None: it runs on
        self.in_file = in_file


class Story:
    """Each container holds a lock of its own as long as one of its processes lives. A second one at the same time
    cannot take the lock, and writes that to a file."""

    most_processes = -1  # processes of a pod, if it is configured (podPidsLimit)

    def __init__(self, up: Up, directory: Path, seed: int, most_pods: int) -> None:
        self.up = up
        self.random = random.Random(seed)
        self.most_pods = most_pods
        self.wanted: dict[str, Wanted] = {}
        self.locks = directory / "locks"
        self.runs = directory / "runs"
        self.doubles = directory / "doubles"
        for each in (self.locks, self.runs, self.doubles):
            each.mkdir()
        self._count = 0

    # The load

    def step(self) -> None:
        acts = [self._add] * 5 + [self._remove] * 2 + [self._change] * 2
        if len(self.wanted) >= self.most_pods:
            acts = [self._remove, self._change]
        self.random.choice(acts)()

    def step_in_files(self) -> None:
        """Changes that users can make while no agent runs."""
        files = sorted(name for name, one in self.wanted.items() if one.in_file)
        if files and self.random.random() < 0.5:
            gone = self.wanted.pop(self.random.choice(files))
            (self.up.manifests / f"{gone.name}.json").unlink()
        else:
            self._count += 1
            name = f"p{self._count}"
            self._put(Wanted(name, self._manifest(name, "service", None), None, in_file=True))

    def _add(self) -> None:
        self._count += 1
        name = f"p{self._count}"
        kind = self.random.choice(["service", "job", "job", "init", "burstable"])
        exit_code = self.random.choice([0, 0, 7]) if kind == "job" else None
        self._put(
            Wanted(name, self._manifest(name, kind, exit_code), exit_code, in_file=self.random.random() < 0.6)
        )

    def _remove(self) -> None:
        if not self.wanted:
            return
        gone = self.wanted.pop(self.random.choice(sorted(self.wanted)))
        if gone.in_file:
            (self.up.manifests / f"{gone.name}.json").unlink()
        elif self.up.is_running:
            self.up.client.delete("default", gone.name, 0)

    def _change(self) -> None:
        services = sorted(name for name, one in self.wanted.items() if one.exit_code is None)
        if not services:
            return
        before = self.wanted[self.random.choice(services)]
        one = Wanted(before.name, deepcopy(before.manifest), None, in_file=before.in_file)
        container = one.manifest["spec"]["containers"][0]
        if "resources" in container:
            container["resources"]["requests"]["memory"] = f"{self.random.randint(1, 4)}Mi"
        else:
            container["env"] = [{"name": "GENERATION", "value": str(self.random.random())}]
        self._put(one)

    def _put(self, one: Wanted) -> None:
        self.wanted[one.name] = one
        if one.in_file:
            self.up.write(f"{one.name}.json", json.dumps(one.manifest))
        elif self.up.is_running:
            self.up.apply(one.manifest)

    def _manifest(self, name: str, kind: str, exit_code: int | None) -> dict[str, Any]:
        main = self._container("main", name, "exec sleep 1000000")
        if kind == "job":
            seconds = self.random.choice(["0", "0.05", "0.3"])
            main = self._container("main", name, f"sleep {seconds}; exit {exit_code}")
        if kind == "burstable":
            main["resources"] = {"requests": {"memory": "1Mi", "cpu": "1m"}}
        spec: dict[str, Any] = {"terminationGracePeriodSeconds": 0, "containers": [main]}
        if kind == "job":
            spec["restartPolicy"] = "Never"
        if kind == "init":
            spec["initContainers"] = [self._container("first", name, "sleep 0.05")]
        made = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
        return with_host_path(made, self.locks, self.runs, self.doubles)

    def _container(self, container: str, pod: str, act: str) -> dict[str, Any]:
        key = f"{pod}.{container}"
        # Where the lock is held, it is by another attempt that should have been gone.
        held = [str(programs() / "hold"), f"{self.locks}/{key}", f"{self.doubles}/{key}"]
        ran = f"echo run >> {self.runs}/{key}; {act}"
        return {"name": container, "image": "host", "command": [*held, "sh", "-c", ran]}

    # What must hold

    def settle(self) -> None:
        """Waits until all pods are as they should be."""
        last: list[str] = []

        def settled() -> bool:
            last[:] = self._unsettled()
            return not last

        eventually(
            settled,
            within_seconds=SETTLE_SECONDS,
            details=lambda: f"not as it should be: {last}\n{self.up.log_tail()}",
        )

    def _unsettled(self) -> list[str]:
        pods = {one["metadata"]["name"]: one for one in self.up.client.pods()}
        wrong = [f"{name} is left" for name in pods.keys() - self.wanted.keys()]
        for name, one in self.wanted.items():
            status = pods.get(name, {}).get("status", {})
            due = {None: "Running", 0: "Succeeded"}.get(one.exit_code, "Failed")
            if pods.get(name, {}).get("metadata", {}).get("deletionTimestamp"):
                wrong.append(f"{name} is to be replaced")  # it runs until then
            if status.get("phase") != due:
                wrong.append(f"{name} is {status.get('phase')} and not {due}: {status.get('message')}")
        return wrong

    def check(self) -> None:
        """After `settle`: nothing ran twice, no status was lost, the kernel equals the plan."""
        assert not list(self.doubles.iterdir())
        pods = {one["metadata"]["name"]: one for one in self.up.client.pods()}
        for name, one in self.wanted.items():
            (status,) = pods[name]["status"]["containerStatuses"]
            if one.exit_code is not None:
                ended = status["state"]["terminated"]
                assert ended.get("exitCode", 0) == one.exit_code, (name, ended)
                runs = (self.runs / f"{name}.main").read_text().count("run")
                # When the agent is killed, its call to start a container ends too. Then the runtime ends the container.
                # It is not known whether its program had begun, and the next agent starts it again.
                assert runs == 1 or (self.up.containerd and runs == 2), f"{name} ran {runs} times"
        self._check_kernel()

    def _check_kernel(self) -> None:
        """A pod is shown as it was changed a moment before its cgroups are."""
        last: list[object] = []

        def is_as_planned() -> bool:
            last[:] = self._not_as_planned()
            return not last

        eventually(
            is_as_planned, details=lambda: f"the kernel is not as planned: {last[:5]}\n{self.up.log_tail()}"
        )

    def _not_as_planned(self) -> tuple[object, ...]:
        """What would have to be written for the kernel to be as the plan of the pods that run on."""
        pods = [
            one for one in self.up.client.pods() if self.wanted[one["metadata"]["name"]].exit_code is None
        ]
        root = f"/{self.up.root.paths()[0].name}"
        config = KubeletConfiguration(
            cgroup_root=root, eviction_hard={}, max_pods=1000, pod_pids_limit=self.most_processes
        )
        node = node_view(parse_node(NODE), config)
        driver = driver_for(detect(), config)
        try:
            planned_pods = [
                PlannedPod(_pod(one), placed=self.up.placed(one["metadata"]["name"])) for one in pods
            ]
            tree = plan(node, planned_pods, driver.version, driver.naming)
            return survey(driver, tree).steps
        finally:
            driver.close()

    def end(self) -> None:
        """Removes all pods, and checks that nothing of them is left."""
        for name in list(self.wanted):
            gone = self.wanted.pop(name)
            if gone.in_file:
                (self.up.manifests / f"{name}.json").unlink()
            else:
                self.up.client.delete("default", name, 0)
        self.settle()
        assert not list((self.up.state / "pods").glob("*"))
        assert not list((self.up.state / "logs").glob("*"))
        for key in sorted(path.name for path in self.locks.iterdir()):
            assert not is_locked(self.locks / key), f"a process of {key} is left"


def _pod(plain: dict[str, Any]) -> Pod:
    (pod,) = read_manifests(json.dumps({**plain, "status": {}}), "agent").or_raise().pods
    return pod


def is_locked(path: Path) -> bool:
    import fcntl

    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def live(up: Up, directory: Path, *, seed: int, most_pods: int, kills: int) -> None:
    print(f"crash story with seed {seed}")
    most_processes = max(int(up.root.read("pids.max")), _MOST_PROCESSES_OF_A_POD * most_pods)
    up.root.write("pids.max", most_processes)
    story = Story(up, directory, seed, most_pods)
    up.start()
    for number in range(kills):
        for _ in range(story.random.randint(1, max(most_pods // 4, 2))):
            story.step()
        time.sleep(story.random.random() * 0.5)  # the moment of death is part of the story
        up.kill()
        for _ in range(story.random.randint(0, 2)):
            story.step_in_files()
        up.start()
        if number % 3 == 2 or number == kills - 1:
            story.settle()
            story.check()
    story.end()
