"""Cgroups of 110 pods with three containers each: measured, reconciled and made, beside the system calls alone.

The references are C: they read the same files through descriptors that are kept open, and make the same directories and
write the same values, with nothing between the system calls. The figures are CPU time of the process, in user and in
kernel mode, which does not depend on other load of the machine."""

import os
import resource
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import process_time

from bench.figure import Figure, against, ratio_at_most, value_at_most
from bench.reference import compiled
from evenkeel.api.config import KubeletConfiguration, defaulted
from evenkeel.api.manifests import read_manifests
from evenkeel.cgroup.drivers.base_driver import CgroupfsDriver
from evenkeel.cgroup.drivers.cgroupfs import Cgroupfs
from evenkeel.cgroup.drivers.detect import detect, driver_for
from evenkeel.cgroup.plan import Planner
from evenkeel.cgroup.reconcile import Report, reconcile, reconcile_changed
from evenkeel.cgroup.statistics import V1_FILES, V2_FILES
from evenkeel.cgroup.tree import Tree, Version
from evenkeel.policy.node_view import node_view, parse_node
from evenkeel.policy.provision import PlannedPod

PODS = 110
ROUNDS = 51
MAKING_ROUNDS = 5
# A container of each class. Everything is small: the pods are never started.
POD = """\
apiVersion: v1
kind: Pod
metadata: {{name: pod-{number}, uid: {number:08d}-bench}}
spec:
  containers:
  - {{name: a, image: host, resources: {{limits: {{cpu: 20m, memory: 32Mi}}}}}}
  - {{name: b, image: host, resources: {{requests: {{cpu: 10m, memory: 16Mi}}, limits: {{memory: 64Mi}}}}}}
  - {{name: c, image: host}}
---
"""


def figures() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as directory, cgroups() as (driver, planner, planned_pods):
        program = str(compiled("cgroup_reference", directory))
        tree = planner.tree(planned_pods)
        yield making(driver, tree, program)
        yield statistics(driver, tree, program)
        yield reconciling(driver, tree, program)
        yield starting(driver, planner, planned_pods, program)


@contextmanager
def cgroups() -> Iterator[tuple[CgroupfsDriver, Planner, list[PlannedPod]]]:
    """A driver in a root of its own, and pods for it; everything is removed at the end."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # the driver keeps files open
    config = defaulted(KubeletConfiguration(cgroup_root=f"/evenkeel-bench-{os.getpid()}", cpu_burst=100))
    driver = driver_for(detect(), config)
    assert isinstance(driver, CgroupfsDriver)
    pods = (
        read_manifests("".join(POD.format(number=number) for number in range(PODS)), "bench").or_raise().pods
    )
    node = node_view(parse_node("64Gi,16cpu"), config)
    try:
        yield driver, Planner(node, driver.version), [PlannedPod(pod) for pod in pods]
    finally:
        driver.remove(config.cgroup_root)
        driver.close()


def making(driver: CgroupfsDriver, tree: Tree, program: str) -> Figure:
    root = tree.cgroups[0].path
    with recorded() as calls:
        applied(driver, tree)
    ours, references = [], []
    for _ in range(MAKING_ROUNDS):
        driver.remove(root)
        start = process_time()
        applied(driver, tree)
        ours.append((process_time() - start) * 1000)
        driver.remove(root)
        with reference(program, "make", calls) as ask:
            references.append(ask("go") / 1000)
    assert reconcile(driver, tree).done == (), "the reference makes the same"
    return against("110 pods with 3 containers made", ours, references, "ms CPU", ratio_at_most(2))


def statistics(driver: CgroupfsDriver, tree: Tree, program: str) -> Figure:
    paths = [cgroup.path for cgroup in tree.cgroups if cgroup.container]
    names = V1_FILES if driver.version == Version.V1 else V2_FILES
    files = [
        f"{directory}/{name}"
        for path in paths
        for name in names
        if (directory := driver.files(path)[name.partition(".")[0]]) and Path(directory, name).exists()
    ]
    ours, references = [], []
    with reference(program, "read", files) as ask:
        for _ in range(ROUNDS):
            start = process_time()
            for path in paths:
                driver.statistics(path)
            ours.append((process_time() - start) * 1000)
            references.append(ask("1") / 1000)
    return against(f"statistics of {len(paths)} containers", ours, references, "ms CPU", ratio_at_most(2))


def reconciling(driver: CgroupfsDriver, tree: Tree, program: str) -> Figure:
    files = [
        f"{driver.files(cgroup.path)[setting.file.partition('.')[0]]}/{setting.file}"
        for cgroup in tree.cgroups
        for setting in cgroup.settings
    ]
    report = reconcile(driver, tree)
    ours, references = [], []
    with reference(program, "read", files) as ask:
        for _ in range(ROUNDS):
            before = writes()
            start = process_time()
            report = reconcile(driver, tree, last=report)
            ours.append((process_time() - start) * 1000)
            assert (report.done, report.failures, writes()) == ((), (), before), "nothing is written"
            references.append(ask("1") / 1000)
    return against("110 unchanged pods reconciled", ours, references, "ms CPU", value_at_most(10))


def starting(
    driver: CgroupfsDriver, planner: Planner, planned_pods: list[PlannedPod], program: str
) -> Figure:
    """Adds one pod when all others exist: its cost beyond its own directories and files."""
    every, others = planner.tree(planned_pods), planner.tree(planned_pods[:-1])
    report = reconcile(driver, every)
    back = reconcile_changed(driver, every, others, last=report)
    ours, references = [], []
    for _ in range(ROUNDS):
        before = planner.tree(planned_pods[:-1])
        start = process_time()
        after = planner.tree(planned_pods)
        report = reconcile_changed(driver, before, after, last=back)
        ours.append((process_time() - start) * 1000)
        assert not report.failures, report.failures[0]
        reconcile_changed(driver, after, before, last=report)
        with recorded() as calls:
            reconcile_changed(driver, before, after, last=back)
        reconcile_changed(driver, after, before, last=report)
        with reference(program, "make", calls) as ask:
            references.append(ask("go") / 1000)
        reconcile_changed(driver, after, before, last=report)
    more = [mine - bare for mine, bare in zip(ours, references, strict=True)]
    return against(
        f"one pod more beside {len(planned_pods) - 1}", more, references, "ms CPU more", value_at_most(3)
    )


def applied(driver: CgroupfsDriver, tree: Tree) -> Report:
    report = reconcile(driver, tree)
    assert not report.failures, report.failures[0]
    return report


def writes() -> int:
    """How often this process has called write, by the kernel's count."""
    counters = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(counters["syscw"])


@contextmanager
def recorded() -> Iterator[list[str]]:
    """Every directory made and file written meanwhile, as the reference takes them."""
    calls: list[str] = []
    make, write = Cgroupfs.make, Cgroupfs.write

    def recording_make(self: Cgroupfs, path: str) -> None:
        is_new = not self.exists(path)
        make(self, path)
        if is_new:
            calls.append(f"m {self.directory(path)}")

    def recording_write(self: Cgroupfs, path: str, file: str, value: str) -> None:
        write(self, path, file, value)
        calls.append(f"w {self.directory(path)}/{file}\t{value}")

    Cgroupfs.make, Cgroupfs.write = recording_make, recording_write  # type: ignore[method-assign, assignment]
    try:
        yield calls
    finally:
        Cgroupfs.make, Cgroupfs.write = make, write  # type: ignore[method-assign]


@contextmanager
def reference(program: str, mode: str, lines: list[str]):
    """Runs the reference program. Yields a function that returns the microseconds that one round took."""
    with subprocess.Popen(
        [program, mode], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\n".join(lines) + "\n\n")
        process.stdin.flush()

        def ask(words: str) -> float:
            process.stdin.write(f"{words}\n")
            process.stdin.flush()
            return float(process.stdout.readline())

        yield ask
