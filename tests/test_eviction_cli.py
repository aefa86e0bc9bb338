"""`evenkeel evict --dry-run`, and the snapshots it reads."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.api.config import Profile
from evenkeel.api.encode import encode
from evenkeel.cli.evict import read_snapshot
from evenkeel.cli.main import main
from evenkeel.errors import InvalidInput
from evenkeel.policy.eviction.decide import Settings, State, decide
from evenkeel.policy.eviction.dry_run import by_shortfall, by_thresholds, without
from evenkeel.policy.eviction.snapshot import Snapshot
from evenkeel.policy.eviction.thresholds import Signal, parse_thresholds
from tests.eviction_pods import GI, MI, best_effort, burstable, filesystem, guaranteed, node, seen
from tests.eviction_strategies import settings_strategy, snapshots, thresholds_strategy

EXAMPLES = Path(__file__).parent.parent / "examples" / "snapshots"
MEMORY = str(EXAMPLES / "memory-pressure.yaml")
DISK = str(EXAMPLES / "disk-full.yaml")


def evict(capsys, *arguments):
    code = main(["evict", *arguments])
    said = capsys.readouterr()
    return code, said.out, said.err


def data(capsys, *arguments):
    code, out, _ = evict(capsys, "--dry-run", "-o", "json", *arguments)
    assert code == 0
    return json.loads(out)


def names(result):
    return [one["name"] for one in result["evictions"]]


def steps(result):
    return [step.eviction.pod.metadata.name for step in result.steps]


# The steps


@pytest.mark.req("E15")
def test_a_shortfall_is_covered_by_as_few_pods_as_the_order_allows():
    pods = (best_effort("a", 300), best_effort("b", 200), burstable("c", 600, 100), guaranteed("d", 900, 900))
    snapshot = Snapshot(0.0, node(5000, pods=2100), pods)
    settings = Settings()

    def gone(shortfall):
        return steps(by_shortfall(snapshot, Signal.MEMORY_AVAILABLE, shortfall * MI, settings))

    assert gone(300) == ["a"]
    assert gone(301) == ["a", "b"]
    assert gone(501) == ["a", "b", "c"]
    last = by_shortfall(snapshot, Signal.MEMORY_AVAILABLE, 501 * MI, settings).steps[-1]
    assert (last.freed, last.freed_so_far) == (600 * MI, 1100 * MI)


@pytest.mark.req("E15", "A5")
def test_a_shortfall_that_only_pods_within_their_requests_could_cover_is_not_covered():
    snapshot = Snapshot(0.0, node(5000, pods=950), (guaranteed("g", 900, 900), best_effort("b", 50)))
    result = by_shortfall(snapshot, Signal.ALLOCATABLE_MEMORY_AVAILABLE, GI, Settings())
    assert steps(result) == ["b"]
    assert [one.spared for one in result.spared] == ["is within its request"]


@pytest.mark.req("E15", "E2")
def test_thresholds_evict_until_they_are_no_longer_crossed():
    thresholds = parse_thresholds(
        hard={"memory.available": "500Mi"}, minimum_reclaim={"memory.available": "300Mi"}
    )
    pods = tuple(best_effort(f"pod{number}", 200 + number) for number in range(5))
    result = by_thresholds(Snapshot(7.0, node(100), pods), thresholds, Settings())
    assert steps(result) == ["pod4", "pod3", "pod2", "pod1"]
    assert [step.after_seconds for step in result.steps] == [0, 1, 2, 3]
    assert result.unresolved == ()
    assert steps(by_thresholds(Snapshot(7.0, node(500), pods), thresholds, Settings())) == []


@pytest.mark.req("E15")
def test_soft_thresholds_act_when_their_grace_period_is_over():
    thresholds = parse_thresholds(
        soft={"memory.available": "500Mi"}, soft_grace_period={"memory.available": "1m30s"}
    )
    result = by_thresholds(Snapshot(3.3, node(100), (best_effort("a", 900),)), thresholds, Settings())
    assert [(step.eviction.pod.metadata.name, step.after_seconds) for step in result.steps] == [("a", 90.0)]


@pytest.mark.req("E15")
@given(snapshot=snapshots(5.0), thresholds=thresholds_strategy, settings=settings_strategy)
def test_the_first_step_of_a_dry_run_is_what_the_loop_would_do(snapshot, thresholds, settings):
    result = by_thresholds(snapshot, thresholds, settings)
    looked_before = State(signals_seen=dict.fromkeys(Signal, 0.0))
    _, decision = decide(looked_before, snapshot, thresholds, settings)
    now = [step.eviction for step in result.steps if step.after_seconds == 0]
    assert now == list(decision.evictions)
    assert len(result.steps) <= len(snapshot.pods)


@pytest.mark.req("E15")
@given(
    snapshot=snapshots(),
    signal=st.sampled_from(Signal),
    shortfall=st.one_of(st.none(), st.integers(1, 10**10)),
    settings=settings_strategy,
)
def test_a_shortfall_is_covered_or_no_other_pod_may_be_evicted(snapshot, signal, shortfall, settings):
    result = by_shortfall(snapshot, signal, shortfall, settings)
    total = sum(step.freed for step in result.steps)
    if shortfall is not None and total >= shortfall:
        assert total - result.steps[-1].freed < shortfall
    else:
        assert len(result.steps) + len(result.spared) == len(snapshot.pods)


def test_a_pod_frees_what_it_used_on_the_filesystem_where_it_used_it():
    pod = seen("a", 100, rootfs=30, logs=20, processes=7, volumes={"data": 10, "host": 999})
    before = Snapshot(
        0.0,
        node(1000, pods=300, processes=(100, 50), nodefs=(40, 500), imagefs=filesystem(40, 500)),
        (pod,),
    )
    after = without(before, pod).node
    assert after.memory.available_bytes == 1100 * MI
    assert after.pods_cgroup_memory.working_set_bytes == 200 * MI
    assert after.processes.running == 43
    assert after.nodefs.available_bytes == 100 * MI  # the node's own directory stays
    dedicated = before._replace(node=before.node._replace(dedicated_imagefs=True))
    after = without(dedicated, pod).node
    assert after.nodefs.available_bytes == 70 * MI
    assert after.imagefs.available_bytes == 70 * MI


# The command


@pytest.mark.req("E15")
def test_evict_shows_the_pods_evicted_for_the_thresholds_of_the_configuration(capsys):
    code, out, _ = evict(capsys, "--dry-run", "-f", MEMORY)
    assert code == 0
    assert "memory.available is 60Mi, below the hard threshold of 100Mi." in out
    assert "1  jobs/batch-7  BestEffort" in out
    assert "shop/web" in out.splitlines()[-1]
    code, out, _ = evict(capsys, "--dry-run", "-f", MEMORY, "--eviction-hard", "memory.available<50Mi")
    assert code == 0
    assert "no pod would be evicted" in out


@pytest.mark.req("E15")
def test_evict_continues_until_a_shortfall_is_covered(capsys):
    result = data(capsys, "-f", MEMORY, "--shortfall", "6Gi")
    assert names(result) == ["batch-7", "web"]
    assert result["covered"] is True
    assert [one["freedSoFar"] for one in result["evictions"]] == [5632 * MI, 7520 * MI]
    assert result["signal"] == "memory.available"
    _, out, _ = evict(capsys, "--dry-run", "-f", MEMORY, "--shortfall", "100Gi")
    assert "does not cover the shortfall of 100Gi" in out
    assert "shop/db is within its request (3.91Gi of 4Gi)" in out


@pytest.mark.req("E13", "E15")
def test_evict_takes_profile_and_order(capsys):
    assert names(data(capsys, "-f", DISK)) == ["uploads", "build-31"]
    assert names(data(capsys, "-f", DISK, "--order", "priority")) == ["uploads", "chatty"]
    assert names(data(capsys, "-f", DISK, "--eviction-order", "priority")) == ["uploads", "chatty"]
    kubernetes = data(capsys, "-f", DISK, "--profile", "kubernetes")
    assert names(kubernetes) == ["uploads", "chatty"]
    assert (kubernetes["profile"], kubernetes["order"]) == ("kubernetes", "priority")
    assert names(data(capsys, "-f", DISK, "--profile", "kubernetes", "--order", "class"))[1] == "build-31"


@pytest.mark.req("E15")
def test_evict_gives_the_whole_order_for_a_signal(capsys):
    result = data(capsys, "-f", DISK, "--signal", "nodefs.inodesFree")
    assert names(result) == ["build-31", "uploads", "chatty"]
    assert "covered" not in result
    code, out, _ = evict(capsys, "--dry-run", "-f", DISK, "--signal", "pid.available")
    assert code == 0
    assert "No pod would be evicted." in out
    assert "shop/chatty has no figures" in out


@pytest.mark.req("E14", "E15")
def test_json_and_yaml_say_the_same_and_give_the_reason(capsys):
    as_json = data(capsys, "-f", DISK)
    _, out, _ = evict(capsys, "--dry-run", "-f", DISK, "-o", "yaml")
    assert yaml.safe_load(out) == as_json
    limit, shortage = as_json["evictions"]
    assert limit["reason"] == {
        "what": "emptyDir volume incoming",
        "limit": "500Mi",
        "usageBytes": 730 * MI,
    }
    assert shortage["reclaimFirst"] == ["unused containers", "unused images"]
    assert shortage["reason"]["crossed"]["signal"] == "nodefs.available"
    assert shortage["reason"]["nextInRank"][0]["pod"] == "shop/chatty"


def test_evict_without_dry_run_evicts_no_pod_also_beside_an_agent(capsys):
    code, out, err = evict(capsys, "-f", MEMORY)
    assert (code, out) == (1, "")
    assert "this command evicts no pod" in err
    assert "not run here" not in err
    assert "--dry-run" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--dry-run", "-f", MEMORY, "--shortfall", "2Gib"], "2Gib"),
        (["--dry-run", "-f", MEMORY, "--shortfall", "0"], "more than nothing"),
        (["--dry-run", "-f", MEMORY, "--signal", "memory"], "memory.available or"),
        (["--dry-run", "-f", MEMORY, "--order", "size"], "choose from 'class', 'priority'"),
    ],
)
def test_wrong_flags_are_a_usage_error(capsys, arguments, words):
    with pytest.raises(SystemExit) as exit_:
        main(["evict", *arguments])
    assert exit_.value.code == 2
    assert words in capsys.readouterr().err


def test_evict_runs_from_a_shell_and_reads_standard_input():
    run = subprocess.run(
        [sys.executable, "-c", "import sys; from evenkeel.cli.main import main; sys.exit(main())",
         "evict", "--dry-run", "-f", "-", "--shortfall", "1Gi"],
        input=Path(MEMORY).read_text(encoding="utf-8"), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert "jobs/batch-7" in run.stdout


# Snapshot files


def problems_of(text):
    with pytest.raises(InvalidInput) as error:
        read_snapshot(text, "file.yaml", Profile.DOCUMENTS)
    return [str(problem) for problem in error.value.problems]


def test_a_snapshot_file_may_write_amounts_as_quantities():
    text = "node: {memory: {availableBytes: 1.5Gi, workingSetBytes: 7}}"
    figures = read_snapshot(text, "-", Profile.DOCUMENTS).node.memory
    assert figures.available_bytes == 1536 * MI
    assert figures.working_set_bytes == 7
    assert type(figures.available_bytes) is int


def test_the_pods_of_a_snapshot_file_get_their_defaults():
    text = """
    pods:
    - pod:
        metadata: {name: db}
        spec: {containers: [{name: c, resources: {limits: {cpu: 1, memory: 1Gi}}}]}
    """
    (pod,) = read_snapshot(text, "-", Profile.DOCUMENTS).pods
    assert pod.pod.spec.containers[0].resources.requests["memory"].value == GI
    assert pod.stats is None


def test_a_snapshot_survives_being_written_and_read(capsys):
    snapshot = read_snapshot(Path(MEMORY).read_text(encoding="utf-8"), MEMORY, Profile.DOCUMENTS)
    text = yaml.safe_dump(json.loads(json.dumps(encode(snapshot))))
    assert read_snapshot(text, "again", Profile.DOCUMENTS) == snapshot


def test_everything_wrong_in_a_snapshot_file_is_reported_with_line_and_field():
    text = """\
kind: Pod
node:
  memory: {availableByte: 5}
  nodefs: {availableBytes: -3}
pods:
- pod: {metadata: {name: a}}
- pod: {metadata: {name: a}}
  stats: {containers: 5, memoryWorkingSetBytes: much}
- {}
"""
    assert [problem.split(": ")[:2] for problem in problems_of(text)] == [
        ["file.yaml:1", "kind"],
        ["file.yaml:3", "node.memory.availableByte"],
        ["file.yaml:4", "node.nodefs.availableBytes"],
        ["file.yaml:8", "pods[1].stats.containers"],
        ["file.yaml:8", "pods[1].stats.memoryWorkingSetBytes"],
        ["file.yaml:7", "pods[1].pod.metadata.name"],
        ["file.yaml:9", "pods[2].pod.metadata.name"],
    ]


@pytest.mark.parametrize("text", ["", "---\na: 1\n---\nb: 2\n", "[]", "just words", "{", "a: &x [*x]"])
def test_a_file_that_holds_no_snapshot_is_refused_in_a_sentence(text):
    assert all(problem.startswith("file.yaml") for problem in problems_of(text))


@given(
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.dictionaries(
                st.sampled_from(
                    ["node", "pods", "pod", "stats", "memory", "timeSeconds", "containers", "spec"]
                ),
                inner,
                max_size=4,
            ),
        ),
        max_leaves=12,
    )
)
def test_no_snapshot_file_ends_in_anything_but_an_answer_or_sentences(value):
    try:
        snapshot = read_snapshot(json.dumps(value), "-", Profile.DOCUMENTS)
    except InvalidInput:
        return
    by_thresholds(snapshot, parse_thresholds(hard={"memory.available": "1Gi"}), Settings())


def test_the_snapshot_shown_in_the_documentation_can_be_read():
    page = (EXAMPLES.parent.parent / "docs" / "eviction.md").read_text(encoding="utf-8")
    shown = page.partition("```yaml\n")[2].partition("```")[0]
    snapshot = read_snapshot(shown, "docs/eviction.md", Profile.DOCUMENTS)
    assert snapshot.pods[0].stats.volumes[0].used_bytes == 730 * MI
