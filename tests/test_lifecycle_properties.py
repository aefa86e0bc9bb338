"""Rules that hold for every pod, whatever happens and in whatever order."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.api.config import Profile
from evenkeel.api.container import Container, ExecAction, Probe
from evenkeel.api.decode import Findings, decode
from evenkeel.api.encode import encode
from evenkeel.api.pod import ObjectMeta, Pod, PodSpec
from evenkeel.policy.lifecycle import changes, stops
from evenkeel.policy.lifecycle.pod_state import LifecycleSettings, PodState, TerminalStatus
from evenkeel.policy.provision import PlannedPod
from tests.simulated_pod import SimulatedPod
from tests.strategies import requirements

ASK = Probe(ExecAction(("true",)))
INIT_CONTAINERS = [
    Container(),
    Container(restart_policy="Always"),
    Container(restart_policy="Always", startup_probe=ASK),
]
probes = st.sampled_from([None, ASK])


@st.composite
def some_pods(draw, policies=("Always", "OnFailure", "Never")):
    mains = draw(st.lists(st.tuples(requirements, probes), min_size=1, max_size=2))
    inits = draw(st.lists(st.sampled_from(INIT_CONTAINERS), max_size=3))
    spec = PodSpec(
        containers=tuple(
            Container(f"c{n}", "host", resources=resources, readiness_probe=probe)
            for n, (resources, probe) in enumerate(mains)
        ),
        init_containers=tuple(each._replace(name=f"i{n}", image="host") for n, each in enumerate(inits)),
        restart_policy=draw(st.sampled_from(policies)),
        active_deadline_seconds=draw(st.sampled_from([None, None, 500])),
        termination_grace_period_seconds=draw(st.sampled_from([0, 30])),
    )
    return Pod(ObjectMeta(name="p", uid="p"), spec)


class Checked(SimulatedPod):
    """Looks after every rule each time it looks, and lives on with what the journal would have kept."""

    was_over = False

    def look(self):
        self.state = kept(self.state)
        todo = super().look()
        check(self, todo)
        self.was_over = self.was_over or todo.is_over
        return todo


def kept(state):
    """`life` after a restart of the agent."""
    findings = Findings()
    found = decode(PodState, json.loads(json.dumps(encode(state))), findings)
    assert not findings.problems
    assert found == state
    return found


def check(simulated, todo):
    pod, state = simulated.pod, simulated.state
    regular_init = [each for each in pod.spec.init_containers if not each.is_sidecar]
    done = {each.name for each in regular_init if has_succeeded(state, each.name)}
    mains = {each.name for each in pod.spec.containers}
    is_ending = state.verdict is not None or state.deleted_at is not None or todo.verdict is not None
    assert not any(state.container(name).is_alive for name in todo.start)
    assert not done & {*todo.start}
    assert all(state.container(stop.container).is_running for stop in todo.stop)
    assert not (is_ending and todo.start)
    if mains & {*todo.start}:
        assert todo.init_container is None
        assert all(each.name in done for each in regular_init)
    for place, each in enumerate(pod.spec.init_containers):
        if each.name in todo.start:
            earlier = {other.name for other in regular_init} & {
                o.name for o in pod.spec.init_containers[:place]
            }
            assert earlier <= done
    # D3: the pod-level limit is held back exactly as long as an init container has to finish.
    awaits_init = PlannedPod(pod, todo.init_container).awaits_init
    assert awaits_init == (len(done) < len(regular_init))
    assert todo.wake_at is None or todo.wake_at > simulated.now
    if todo.is_over:
        assert not state.is_alive
        assert not todo.start
        assert state.verdict is not None or todo.verdict is not None
    assert not simulated.was_over or todo.is_over
    if simulated.phase in ("Succeeded", "Failed"):
        assert not state.is_alive
    if state.is_alive and mains & simulated.running and todo.stop and is_ending:
        in_time = [stop for stop in todo.stop if stop.grace_seconds > 0]
        sidecars = {each.name for each in pod.spec.init_containers if each.is_sidecar}
        assert not (
            in_time and in_time[0].container in mains and sidecars & {s.container for s in in_time}
        ), "sidecars outlive the others"


def has_succeeded(state, name):
    it = state.container(name)
    return not it.is_alive and it.ended is not None and it.ended.exit_code == 0


moves = st.one_of(
    st.tuples(st.just("step"), st.sampled_from([0, 1, 10, 299, 601])),
    st.tuples(st.just("end"), st.sampled_from([0, 0, 1, 137]), st.booleans(), st.integers(0, 9)),
    st.tuples(st.just("half a start"), st.sampled_from(["ran", "failed", "not begun"])),
    st.tuples(st.just("started up"), st.integers(0, 9)),
    st.tuples(st.just("probe failed"), st.integers(0, 9)),
    st.tuples(st.just("delete"), st.sampled_from([None, 0, 5])),
    st.tuples(st.just("evict"), st.sampled_from([0, 7])),
)


def move(simulated, what, *how):
    running = sorted(simulated.running)
    if what == "step":
        simulated.step(*how)
    elif what == "half a start":
        half_a_start(simulated, *how)
    elif what == "delete":
        simulated.state = stops.deleted(simulated.pod, simulated.state, simulated.now, *how)
    elif what == "evict":
        simulated.state = changes.with_terminal_status(
            simulated.state, TerminalStatus("Failed", "Evicted", "", simulated.now, *how)
        )
    elif running:
        name = running[how[-1] % len(running)]
        if what == "end":
            simulated.end(name, how[0], is_oom_killed=how[1] and how[0] != 0, after_seconds=1)
        elif what == "started up":
            simulated.state = changes.started_up(simulated.state, simulated.container(name), simulated.now)
        else:
            stop = stops.probe_stop(simulated.pod, simulated.container(name), "liveness", "no answer")
            simulated.state = stops.asked_to_stop(simulated.state, stop, simulated.now)


def half_a_start(simulated, outcome):
    """The agent is killed after it has written down that it starts something."""
    for name in simulated.look().start[:1]:
        simulated.state = changes.asked_to_start(simulated.state, name)
        assert name not in simulated.look().start
        if outcome == "ran":
            simulated.state = changes.started(simulated.state, simulated.container(name), simulated.now)
        elif outcome == "failed":
            simulated.state = changes.start_failed(
                simulated.pod, simulated.state, name, "no such file", simulated.now, simulated.settings
            )
        else:
            simulated.state = changes.not_started(simulated.state, name)


rulebooks = st.builds(
    lambda profile, retries: LifecycleSettings(profile=profile, oom_retries=retries),
    st.sampled_from(list(Profile)),
    st.integers(0, 2),
)


@pytest.mark.req("D3", "A17")
@given(some_pods(), rulebooks, st.lists(moves, max_size=25))
def test_no_sequence_of_events_breaks_a_rule(pod, rules, what):
    simulated = Checked(pod, rules)
    simulated.step()
    for one in what:
        move(simulated, *one)
        simulated.look()
        simulated.status()


@given(some_pods(policies=("Never",)), st.lists(st.sampled_from([0, 1, 137]), min_size=20, max_size=20))
def test_a_pod_that_is_never_restarted_comes_to_its_end(pod, codes):
    simulated = Checked(pod)
    for code in codes:
        simulated.step(after_seconds=40)
        for name in sorted(simulated.running):
            simulated.state = changes.started_up(simulated.state, simulated.container(name), simulated.now)
        mains = [name for name in sorted(simulated.running) if name.startswith("c")]
        stopping = [stop.container for stop in simulated.look().stop]
        inits = [each.name for each in pod.spec.init_containers if not each.is_sidecar]
        for name in {*mains, *stopping, *(simulated.running & {*inits})}:
            simulated.end(name, code)
    assert simulated.step().is_over
    assert simulated.phase in ("Succeeded", "Failed")


@pytest.mark.req("A20")
@given(some_pods(), st.lists(moves, max_size=12), st.sampled_from([0, 9]))
def test_an_evicted_pod_is_over_once_what_runs_has_been_stopped(pod, what, grace):
    simulated = Checked(pod)
    simulated.step()
    for one in what:
        move(simulated, *one)
    simulated.state = changes.with_terminal_status(
        simulated.state, TerminalStatus("Failed", "Evicted", "", simulated.now, grace)
    )
    for _ in range(len(pod.spec.init_containers) + 2):
        for stop in simulated.step().stop:
            simulated.end(stop.container, 137)
    assert simulated.look().is_over
    assert simulated.phase in ("Succeeded", "Failed")


@given(some_pods(policies=("Always",)), st.integers(1, 4))
def test_a_pod_that_is_always_restarted_runs_again_after_each_wait(pod, ends):
    pod = pod._replace(spec=pod.spec._replace(active_deadline_seconds=None, init_containers=()))
    simulated = Checked(pod, LifecycleSettings(profile=Profile.KUBERNETES))
    for _ in range(ends):
        simulated.step()
        assert len(simulated.running) == len(pod.spec.containers)
        for name in sorted(simulated.running):
            simulated.end(name, 1)
        simulated.now = simulated.look().wake_at or simulated.now
    simulated.step()
    assert simulated.phase == "Running"
