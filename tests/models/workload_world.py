"""A world for decisions about workloads: pods that start, end and disappear as a test says, and a clock."""

import json
from collections.abc import Mapping
from typing import Any

from evenkeel.api.config import Profile
from evenkeel.api.manifests import read_manifests
from evenkeel.api.workload_types import Job
from evenkeel.api.workloads import KINDS, Workload, kind_of
from evenkeel.policy.workloads.decide import changed, decide
from evenkeel.policy.workloads.decision import Decision, JobFacts, PodFacts, Progress, Situation

START = 1_000_000.0
CONTAINER = {"name": "main", "image": "host", "command": ["x"]}


def workload(kind: str, spec: Mapping[str, object], name: str = "w", **template_spec: object) -> Any:
    """A workload as it is read from a manifest, with the UID that the agent would give it. It is of the kind's type."""
    is_batch = kind in ("Job", "CronJob")
    pod_spec = {
        "containers": [CONTAINER],
        **({"restartPolicy": "Never"} if is_batch else {}),
        **template_spec,
    }
    template = {"metadata": {"labels": {"app": "a"}}, "spec": pod_spec}
    whole: dict[str, object] = {"template": template, **spec}
    if kind == "CronJob":
        inner = whole.pop("jobSpec", {})
        assert isinstance(inner, dict)
        whole["jobTemplate"] = {"spec": {"template": whole.pop("template"), **inner}}
    elif not is_batch:
        whole.setdefault("selector", {"matchLabels": {"app": "a"}})
    manifest = {
        "apiVersion": KINDS[kind].api_version,
        "kind": kind,
        "metadata": {"name": name},
        "spec": whole,
    }
    (found,) = read_manifests(json.dumps(manifest), "test").or_raise().workloads
    return found.workload._replace(metadata=found.workload.metadata._replace(uid=f"uid-{name}", generation=1))


class World:
    """Pods of one workload. A decision is carried out at once; what pods do is up to the test."""

    def __init__(self, workload: Workload) -> None:
        self.workload: Any = workload
        self.progress = Progress(START)
        self.now = START
        self.pods: dict[str, PodFacts] = {}
        self.jobs: dict[str, JobFacts] = {}
        self.made: list[str] = []  # the name of every pod that was ever made
        self.reasons: list[str] = []
        self.is_over = False

    def change(self, after: Workload) -> None:
        metadata = after.metadata._replace(generation=(self.workload.metadata.generation or 1) + 1)
        self.progress = changed(self.workload, after, self.progress)
        self.workload = after._replace(metadata=metadata)

    def set(self, **spec: object) -> None:
        """Changes fields of the specification."""
        self.change(self.workload._replace(spec=self.workload.spec._replace(**spec)))

    def step(self, zone: object = None) -> Decision:
        situation = Situation(
            self.workload,
            self.progress,
            tuple(self.pods.values()),
            self.now,
            Profile.DOCUMENTS,
            tuple(self.jobs.values()),
        )
        decision = decide(situation, zone)  # type: ignore[arg-type]
        self.workload, self.progress = decision.workload, decision.progress
        self.is_over = self.is_over or decision.is_over
        self.reasons += [one.reason for one in decision.events]
        for name in decision.delete:
            assert not self.pods[name].is_deleting or self.pods[name].has_ended, f"{name} is deleted twice"
            self.pods[name] = self.pods[name]._replace(is_deleting=True)
        for pod in decision.create:
            assert pod.metadata.name not in self.pods, f"{pod.metadata.name} is there already"
            self.pods[pod.metadata.name] = PodFacts(pod)
            self.made.append(pod.metadata.name)
        for job in decision.create_jobs:
            assert isinstance(job, Job)
            assert job.metadata.name not in self.jobs, f"{job.metadata.name} runs twice"
            self.jobs[job.metadata.name] = JobFacts(job, Progress().job, self.now)
        for name in decision.delete_jobs:
            del self.jobs[name]
        return decision

    # What pods do

    def comes_up(self, name: str) -> None:
        pod = self.pods[name]
        self.pods[name] = pod._replace(phase="Running", is_ready=True, ready_since=self.now)

    def ends(self, name: str, code: int = 0, *, is_disruption: bool = False) -> None:
        phase = "Succeeded" if code == 0 and not is_disruption else "Failed"
        self.pods[name] = self.pods[name]._replace(
            phase=phase,
            is_ready=False,
            ended_at=self.now,
            is_disruption=is_disruption,
            exit_codes={"main": code},
        )

    def goes(self, name: str) -> None:
        assert self.pods[name].is_deleting
        del self.pods[name]

    @property
    def alive(self) -> list[str]:
        return [name for name, pod in self.pods.items() if not pod.is_deleting and not pod.has_ended]

    @property
    def available(self) -> int:
        seconds = getattr(self.workload.spec, "min_ready_seconds", 0)
        return sum(pod.is_available(seconds, self.now) for pod in self.pods.values())

    def settle(self, rounds: int = 200) -> None:
        """All pods come up at once, and all that are to end go, until nothing changes any more."""
        for _ in range(rounds):
            before = (dict(self.pods), self.progress)
            self.step()
            for name, pod in list(self.pods.items()):
                if pod.is_deleting:
                    self.goes(name)
                elif (
                    not pod.is_ready
                    and not pod.has_ended
                    and kind_of(self.workload) not in ("Job", "CronJob")
                ):
                    self.comes_up(name)
            if before == (self.pods, self.progress):
                return
        raise AssertionError("it does not come to rest")
