"""`evenkeel replay` and `evenkeel why`: decisions made again from the journal, and explained in sentences."""

import contextlib
import json
import sqlite3
import time
from typing import Any

import pytest

from evenkeel.agent.observe.pod_history import pod_history
from evenkeel.cli.main import main
from evenkeel.journal.codec import plain_of, to_text
from evenkeel.journal.records import NORMAL, WARNING, Event, PodRecord
from evenkeel.journal.store import Journal
from evenkeel.policy.cpu_shortage import CpuSettings, CpuState, CpuWindow, PodCpu, decide_cpu
from evenkeel.policy.eviction.decide import Settings, State, decide
from evenkeel.policy.eviction.snapshot import Snapshot
from evenkeel.policy.eviction.thresholds import parse_thresholds
from evenkeel.policy.lifecycle.pod_state import ContainerRecord, Ended, PodState, TerminalStatus
from evenkeel.policy.memory_stall import StallSample, stall
from evenkeel.pressure import decision_records
from evenkeel.pressure.decision_records import EVICTION_KIND, eviction_given, eviction_said
from evenkeel.pressure.eviction_steps import Step
from tests.eviction_pods import best_effort, burstable, guaranteed, node
from tests.fake_front import FakeFront, served
from tests.models.agents import pods_of
from tests.models.journal_records import named

THEN = 1_790_000_000.0
THRESHOLDS = parse_thresholds(hard={"memory.available": "100Mi"})
PODS = (
    best_effort("small", 100, priority=5),
    burstable("web", 600, 100, priority=1),
    burstable("db", 300, 400),
    guaranteed("gold", 900, 900),
)
SNAPSHOT = Snapshot(10.0, node(60, pods=1900), PODS)


def step(snapshot=SNAPSHOT, thresholds=THRESHOLDS, settings=None):
    settings = settings or Settings()
    _, decision = decide(State(), snapshot, thresholds, settings)
    return Step(State(), snapshot, thresholds, settings, decision)


def record(journal, made, at=THEN, **more):
    journal.record(
        EVICTION_KIND, eviction_given(made), {**eviction_said(made.decision), "isDone": True, **more}, at
    )


@pytest.fixture
def state(tmp_path):
    """A state directory whose journal has the end of the pod `small`."""
    made = step()
    (victim,) = made.decision.evictions
    assert victim.pod.metadata.name == "small"
    with Journal.open(str(tmp_path / "journal.db")) as journal:
        verdict = TerminalStatus("Failed", "Evicted", victim.message, THEN)
        journal.save(PodRecord(victim.pod, "api", 1, True, PodState(THEN - 60, verdict=verdict)))
        about = {"pod": victim.pod.key, "uid": victim.pod.metadata.uid}
        journal.record_event(Event(THEN - 60, NORMAL, "Admitted", "class BestEffort", **about))
        journal.record_event(
            Event(THEN - 59, NORMAL, "Started", "started container app", container="app", **about)
        )
        record(journal, made)
        figures = plain_of(to_text(victim.shortage))
        journal.record_event(Event(THEN, WARNING, "Evicted", victim.message, figures=figures, **about))
    return tmp_path


def run(capsys, *arguments):
    code = main([*map(str, arguments)])
    said_ = capsys.readouterr()
    return code, said_.out, said_.err


# Replay


@pytest.mark.req("E14")
def test_the_same_configuration_decides_the_same(state, capsys):
    code, out, _ = run(capsys, "replay", state / "journal.db")
    assert code == 0
    assert "1 decision, each made again with the same result." in out
    assert run(capsys, "replay", state)[0] == 0  # a state directory will do
    code, out, _ = run(capsys, "replay", "--state-dir", state, "--all")
    assert "evict default/small for memory.available<100Mi" in out


@pytest.mark.req("E14")
def test_a_decision_that_is_now_another_is_shown_and_is_an_error(tmp_path, capsys):
    made = step()
    with Journal.open(str(tmp_path / "journal.db")) as journal:
        other: Any = eviction_said(made.decision)
        other["evictions"][0]["pod"] = "default/somebody-else"
        journal.record(EVICTION_KIND, eviction_given(made), other, THEN)
    code, out, _ = run(capsys, "replay", tmp_path)
    assert code == 1
    assert "DIFFERENT" in out
    assert "somebody-else" in out


def test_a_record_that_cannot_be_read_is_an_error_and_the_others_are_replayed(state, capsys):
    with Journal.open(str(state / "journal.db")) as journal:
        journal.record(EVICTION_KIND, {"state": 3, "snapshot": {}, "thresholds": 1, "settings": {}}, {}, THEN)
        journal.record("other", {}, {}, THEN)
    code, out, _ = run(capsys, "replay", state)
    assert code == 1
    assert "decisions of kind other are not known" in out
    assert "3 decisions; 0 come out differently now, 2 cannot be read." in out


def test_a_record_that_is_damaged_is_an_error_too(state, capsys):
    path = state / "journal.db"
    with Journal.open(str(path)) as journal:
        record(journal, step())
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE decisions SET content = x'00' WHERE number = 1")
    code, out, err = run(capsys, "replay", state)
    assert code == 1
    assert "decision 1 cannot be read" in err
    assert "2 decisions; 0 come out differently now, 1 cannot be read." in out


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (
            ["--eviction-order", "priority"],
            "evict default/small for memory.available<100Mi; with these settings: evict default/web",
        ),
        (
            ["--eviction-hard", "memory.available<50Mi"],
            "with these settings: no eviction; no threshold is crossed",
        ),
        (["--profile", "kubernetes"], "with these settings: evict default/web"),
        (
            [
                "--eviction-soft",
                "memory.available<70Mi",
                "--eviction-soft-grace-period",
                "memory.available=1s",
            ],
            "none",
        ),
    ],
)
@pytest.mark.req("E14", "E15")
def test_what_if(state, capsys, flags, words):
    code, out, _ = run(capsys, "replay", state, *flags)
    assert code == 0
    assert words in out


@pytest.fixture
def after(tmp_path):
    """A state directory whose journal has an eviction and what was there after it: 160Mi, of the 200Mi to be there."""
    reclaiming = parse_thresholds(
        hard={"memory.available": "100Mi"},
        soft={"memory.available": "400Mi"},
        soft_grace_period={"memory.available": "1h"},
        minimum_reclaim={"memory.available": "100Mi"},
    )
    state = State()
    with Journal.open(str(tmp_path / "journal.db")) as journal:
        for at, snapshot in ((0, SNAPSHOT), (20, Snapshot(30.0, node(160, pods=1800), PODS[1:]))):
            before = state
            state, decision = decide(before, snapshot, reclaiming, Settings())
            record(journal, Step(before, snapshot, reclaiming, Settings(), decision), THEN + at)
    return tmp_path


@pytest.mark.parametrize(
    ("flags", "second"),
    [
        ([], ["default/web"]),
        (["--eviction-hard", "memory.available<90Mi"], ["default/web"]),  # 190Mi are to be there
        (["--eviction-hard", "memory.available<50Mi"], []),
        (["--eviction-minimum-reclaim", "memory.available=1Mi"], []),
        (
            [
                "--eviction-hard",
                "nodefs.available<1Mi",
                "--eviction-soft-grace-period",
                "memory.available=5s",
            ],
            ["default/web"],
        ),
    ],
)
@pytest.mark.req("E14", "E15")
def test_what_no_flag_speaks_of_stays_as_it_was(after, capsys, flags, second):
    _, out, _ = run(capsys, "replay", after, "-o", "json", *flags)
    evictions = json.loads(out)["decisions"][1]["now"]["evictions"]
    assert [one["pod"] for one in evictions] == second


def test_replay_for_programs(state, capsys):
    _, out, _ = run(capsys, "replay", state, "-o", "json", "--eviction-order", "priority")
    reported = json.loads(out)
    assert reported["isWhatIf"] is True
    (one,) = reported["decisions"]
    assert [two["pod"] for two in one["recorded"]["evictions"]] == ["default/small"]
    assert [two["pod"] for two in one["now"]["evictions"]] == ["default/web"]
    assert one["differs"] == ["evictions"]


def test_replay_without_a_journal_is_a_sentence(tmp_path, capsys):
    code, _, err = run(capsys, "replay", tmp_path / "none.db")
    assert code == 1
    assert "there is no journal" in err


# Why


@pytest.mark.req("E14")
def test_a_history_ends_with_the_phase_that_the_pod_has(tmp_path):
    """A pod whose container waits to be started again runs, as everywhere else."""
    waiting = PodState(accepted_at=1.0, containers={"c": ContainerRecord(attempt=2, ended=Ended(1))})
    with Journal.open(str(tmp_path / "journal.db")) as journal:
        journal.save(named("crashing", state=waiting))
        journal.save(named("new", order=2, state=PodState(), is_admitted=False))
        assert [pod_history(journal, f"default/{name}").phase for name in ("crashing", "new")] == [
            "Running",
            "Pending",
        ]


@pytest.mark.parametrize("word", ["pod/small", "pods/small", "po/small", "Pod/small", "default/small"])
def test_why_takes_the_names_of_pods_that_other_commands_take(state, capsys, word):
    code, out, _ = run(capsys, "why", word, "--state-dir", state)
    assert (code, out) == (0, run(capsys, "why", "small", "--state-dir", state)[1])


@pytest.mark.req("E14")
def test_why_prints_the_history_of_an_evicted_pod_with_its_figures(state, capsys):
    code, out, _ = run(capsys, "why", "small", "--state-dir", state)
    assert code == 0
    lines = out.splitlines()
    assert lines[1] == time.strftime("%Y-%m-%d:", time.localtime(THEN - 60))
    assert "Admitted: class BestEffort." in lines[2]
    assert "Started container app." in lines[3]
    evicted = next(
        line for line in lines if "memory.available is 60Mi, below the hard threshold of 100Mi" in line
    )
    assert "uses 100Mi of memory (app 100Mi)" in evicted
    rest = "\n".join(lines[lines.index(evicted) :])
    assert "Considered, but not evicted:" in rest
    assert (
        "default/web (Burstable, priority 1), using 600Mi of its request of 100Mi, was number 2 in rank."
        in rest
    )
    assert (
        "default/db (Burstable, priority 0), using 300Mi of its request of 400Mi, is within its request."
        in rest
    )
    assert (
        "default/gold (Guaranteed, priority 0), using 900Mi of its request of 900Mi, is within its request."
        in rest
    )
    assert lines[-1] == "It is Failed now: Evicted."


@pytest.mark.req("E14")
def test_why_tells_of_a_pod_that_stayed_when_another_went(state, capsys):
    code, out, _ = run(capsys, "why", "default/db", "--state-dir", state)
    assert code == 0
    assert "default/small was evicted, and this pod stayed: it is within its request." in out
    assert "is no longer desired" in out


def test_why_for_programs(state, capsys):
    _, out, _ = run(capsys, "why", "default/small", "--state-dir", state, "-o", "json")
    reported = json.loads(out)
    last = reported["chapters"][-1]
    assert last["reason"] == "Evicted"
    assert last["figures"]["crossed"]["signal"] == "memory.available"
    assert {one["pod"]["pod"] for one in last["stayed"]} == {"default/web", "default/db", "default/gold"}
    assert last["decision"] == 1


@pytest.mark.req("E14")
def test_each_eviction_has_its_own_decision_also_after_a_late_report(state):
    with Journal.open(str(state / "journal.db")) as journal:
        (victim,) = step().decision.evictions
        about = {"pod": victim.pod.key, "uid": victim.pod.metadata.uid}
        record(journal, step(), THEN + 18)
        journal.record_event(Event(THEN + 26, WARNING, "Evicted", "a second time", **about))
        journal.record_event(Event(THEN + 3600, WARNING, "Evicted", "its record was lost", **about))
        reported = [one for one in pod_history(journal, victim.pod.key).chapters if one.reason == "Evicted"]
    assert [one.decision for one in reported] == [1, 2, 0]


def test_why_of_an_unknown_pod_is_a_sentence(state, capsys):
    code, _, err = run(capsys, "why", "nobody", "--state-dir", state)
    assert code == 1
    assert "has no pod default/nobody" in err


# Of cpu, and of stalls at memory.high


@pytest.fixture
def other_kinds(tmp_path):
    """A journal in which `batch` was evicted for CPU, and `slow` stalled."""
    batch, web = best_effort("batch", 0).pod, burstable("web", 0, 100, priority=3).pod
    request = {"resources": {"requests": {"cpu": "500m"}}}
    starved = pods_of(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": "starved"},
                "spec": {"containers": [{"name": "c", "image": "host", **request}]},
            }
        )
    )[0]
    window = CpuWindow(
        60.0,
        60.0,
        (PodCpu(starved, 12_000_000, 40_000_000), PodCpu(batch, 30_000_000), PodCpu(web, 9_000_000)),
    )
    before, settings = CpuState(1, 1.0), CpuSettings()
    _, decision = decide_cpu(before, window, settings)
    assert decision.victim == batch
    samples = [StallSample(float(at), 100 << 20, 100 << 20, at * 900_000, 7) for at in range(11)]
    found = stall(samples, 10.0)
    assert found is not None
    with Journal.open(str(tmp_path / "journal.db")) as journal:
        journal.record(
            "cpu",
            decision_records.cpu_given(before, window, settings),
            decision_records.cpu_said(decision),
            THEN,
        )
        journal.record_event(Event(THEN, WARNING, "Evicted", decision.message, pod=batch.key, uid="u"))
        outcome = {**decision_records.stall_said(found), "answer": "report", "done": ""}
        journal.record(
            "memoryStall", decision_records.stall_given("default/slow", "c", 10.0, samples), outcome, THEN
        )
        journal.record_event(
            Event(THEN, WARNING, "MemoryHighStall", found.sentence, pod="default/slow", uid="s")
        )
    return tmp_path


@pytest.mark.req("A22", "C8", "E14")
def test_every_kind_of_decision_is_made_again(other_kinds, capsys):
    code, out, _ = run(capsys, "replay", other_kinds, "--all")
    assert code == 0
    assert "evict default/batch; short of cpu: default/starved" in out
    assert "a stall at memory.high; it is reported" in out
    assert "2 decisions, each made again with the same result." in out
    assert run(capsys, "replay", other_kinds, "--eviction-order", "priority")[0] == 0
    with Journal.open(str(other_kinds / "journal.db")) as journal:
        first, second = journal.decisions()
        assert isinstance(first.snapshot, dict)
        assert isinstance(second.snapshot, dict)
        changed = {**first.snapshot, "state": {"shortWindows": 0}}
        journal.record("cpu", changed, first.decision, THEN)
        journal.record("memoryStall", {**second.snapshot, "periodSeconds": 100.0}, second.decision, THEN)
    code, out, _ = run(capsys, "replay", other_kinds)
    assert code == 1
    assert "4 decisions; 2 come out differently now, 0 cannot be read." in out


@pytest.mark.req("A22", "C8", "E14")
def test_why_tells_of_cpu_and_of_stalls(other_kinds, capsys):
    _, out, _ = run(capsys, "why", "batch", "--state-dir", other_kinds)
    assert "default/starved received 200m of the 500m cpu that it requested" in out
    assert "default/web (Burstable, priority 3), using 150m cpu, was number 2 in rank." in out
    assert (
        "default/starved, using 200m cpu of its request of 500m cpu, received less than it requested" in out
    )
    _, out, _ = run(capsys, "why", "web", "--state-dir", other_kinds)
    assert "default/batch was evicted, and this pod stayed: it was number 2 in rank." in out
    _, out, _ = run(capsys, "why", "slow", "--state-dir", other_kinds, "-o", "json")
    (reported,) = json.loads(out)["chapters"]
    assert (reported["reason"], reported["decision"]) == ("MemoryHighStall", 2)


# On the live node


@pytest.mark.req("E15")
def test_a_dry_run_without_a_file_asks_the_agent(tmp_path, capsys):
    front = FakeFront()
    front.snapshot_plain = plain_of(json.dumps(eviction_given(step())))
    with served(front, str(tmp_path)):
        code, out, _ = run(capsys, "evict", "--dry-run", "--state-dir", tmp_path)
        assert code == 0
        assert "memory.available is 60Mi, below the hard threshold of 100Mi." in out
        assert "default/small" in out
        code, out, _ = run(
            capsys, "evict", "--dry-run", "--state-dir", tmp_path, "-o", "json", "--shortfall", "300Mi"
        )
        assert [one["name"] for one in json.loads(out)["evictions"]] == ["small", "web"]
        command = ("evict", "--dry-run", "--state-dir", tmp_path, "-o", "json", "--shortfall", "300Mi")
        _, out, _ = run(capsys, *command, "--order", "priority")
        assert [one["name"] for one in json.loads(out)["evictions"]] == ["web"]
        _, out, _ = run(
            capsys, "evict", "--dry-run", "--state-dir", tmp_path, "--eviction-hard", "memory.available<1Mi"
        )
        assert "no pod would be evicted" in out


def test_a_dry_run_without_a_file_and_without_an_agent_is_a_sentence(tmp_path, capsys):
    code, _, err = run(capsys, "evict", "--dry-run", "--state-dir", tmp_path)
    assert code == 1
    assert "no agent listens" in err
