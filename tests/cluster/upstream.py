"""Upstream's own end-to-end tests with Evenkeel's nodes: which pass, which fail, and which do not apply here, and why.

`make e2e` runs those with the label NodeConformance on a control plane of their own and two nodes with containerd.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.cluster.binaries import end_to_end_programs, kubernetes_version
from tests.cluster.control_plane import ControlPlane
from tests.cluster.flags import URL
from tests.cluster.nodes import node
from tests.cluster.upstream_images import images, redirection

FOCUS = r"\[NodeConformance\]"
NODES = ("node1", "node2")
SIZE = "900Mi,2cpu"
HOST_ACCESS = "--allowed-host-access=privileged,hostPID,hostIPC"  # as a kubelet gives it to any pod
PROCESSES = 6  # the tests mostly wait
PASSED, FAILED, NOT_APPLICABLE = "passed", "failed", "not applicable"
# Specs that cannot pass here whatever the node does, by what is in their text, with the reason.
ELSEWHERE: Mapping[str, str] = {
    r"should be able to pull (image from docker hub|from private registry)": "it pulls from a registry of the internet",
    r"should enable privileged commands": "it adds a dummy interface, and the kernel of the tests' machine has none",
    r"should not write to root filesystem": "it expects the words of busybox's shell, and the shell here is bash",
    r"node-pod communication: udp": "it speaks UDP with the nc of agnhost, and ours is busybox's",
    r"\[Feature:Windows|WindowsHostProcess": "it is for nodes with Windows",
}


class Result(NamedTuple):
    file: str
    spec: str
    state: str
    reason: str


@contextlib.contextmanager
def cluster(directory: Path) -> Iterator[ControlPlane]:
    """A control plane with nodes that have the tests' images."""
    with contextlib.ExitStack() as opened:
        plane = opened.enter_context(ControlPlane(directory / "plane"))
        made = images(directory)
        for name in NODES:
            one = opened.enter_context(
                node(
                    plane,
                    name,
                    directory / name,
                    HOST_ACCESS,
                    "--profile=kubernetes",
                    size=SIZE,
                    with_containerd=True,
                    has_pod_network=True,
                )
            )
            assert one.agent.containerd is not None
            one.agent.containerd.import_images(made)
            one.start()
        yield plane


def run(directory: Path, *, focus: str = FOCUS, skip: str = "", processes: int = PROCESSES) -> list[Result]:
    """Runs those whose text matches `focus` and not `skip`, with ginkgo's report on standard error."""
    report = directory / "report.json"
    with cluster(directory) as plane:
        kubeconfig = plane.authority.kubeconfig(
            directory / "e2e.kubeconfig",
            URL,
            client=plane.authority.client("e2e", "e2e", "system:masters"),
        )
        command = [
            *plane.network.within,
            str(end_to_end_programs() / "ginkgo"),
            f"--procs={processes}",
            f"--focus={focus}",
            f"--skip={'|'.join(filter(None, (skip, *ELSEWHERE)))}",
            f"--output-dir={directory}",
            f"--json-report={report.name}",
            "--timeout=3h",
            "--no-color",
            "--silence-skips",
            str(end_to_end_programs() / "e2e.test"),
            "--",
            f"--kubeconfig={kubeconfig}",
            "--provider=skeleton",
            "--prepull-images=false",
            "--disable-log-dump",
        ]
        environment = {**os.environ, "KUBE_TEST_REPO_LIST": str(redirection(directory))}
        with subprocess.Popen(command, env=environment, stdout=sys.stderr, start_new_session=True) as suite:
            try:
                suite.wait()
            finally:  # its processes would go on writing into the directory
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(suite.pid, signal.SIGKILL)
    found = results(json.loads(report.read_text()), focus)
    return [one for one in found if not skip or not re.search(skip, one.spec)]


def results(report: Sequence[Mapping[str, Any]], focus: str) -> list[Result]:
    """The results of the specs that the focus selects, by file."""
    found = []
    for one in report[0]["SpecReports"]:
        if one["LeafNodeType"] != "It":
            continue
        spec = " ".join([*(one["ContainerHierarchyTexts"] or ()), one["LeafNodeText"]])
        if re.search(focus, spec):
            file = one["LeafNodeLocation"]["FileName"].rpartition("/test/e2e/")[2]
            found.append(Result(file, spec, *_judged(spec, one)))
    return sorted(found)


def _judged(spec: str, one: Mapping[str, Any]) -> tuple[str, str]:
    said = str(one.get("Failure", {}).get("Message") or "").strip()
    for pattern, reason in ELSEWHERE.items():
        if re.search(pattern, spec):
            return NOT_APPLICABLE, reason
    if one["State"] == "passed":
        return PASSED, ""
    if one["State"] == "skipped":
        return NOT_APPLICABLE, _line(said) or "the suite skips it"
    return FAILED, _line(said)


def _line(text: str) -> str:
    return " ".join(text.split())[:300].replace("|", "/")


def table(found: Sequence[Result]) -> str:
    """In Markdown: a line for each file, and each spec that did not pass with the reason."""
    counts = Counter(one.state for one in found)
    said = ", ".join(f"{counts[state]} {state}" for state in (PASSED, FAILED, NOT_APPLICABLE))
    lines = [f"# Upstream's tests {kubernetes_version()}: {said}", ""]
    lines += [f"| file | {PASSED} | {FAILED} | {NOT_APPLICABLE} |", "| --- | --: | --: | --: |"]
    for file in sorted({one.file for one in found}):
        here = Counter(one.state for one in found if one.file == file)
        lines.append(f"| {file} | {here[PASSED]} | {here[FAILED]} | {here[NOT_APPLICABLE]} |")
    for state in (FAILED, NOT_APPLICABLE):
        lines += ["", f"## {state}", ""]
        lines += [f"- {one.spec}: {one.reason}" for one in found if one.state == state]
    return "\n".join(lines) + "\n"
