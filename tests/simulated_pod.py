"""A pod that follows the rules of the lifecycle without processes: the test says what happens and when."""

from evenkeel.api.defaults import default_pod
from evenkeel.api.pod import Pod
from evenkeel.policy.lifecycle import changes, stops
from evenkeel.policy.lifecycle.actions import Actions, actions
from evenkeel.policy.lifecycle.pod_state import LifecycleSettings, PodState
from evenkeel.policy.lifecycle.pod_status import pod_phase, pod_status

ACCEPTED_AT = 1000.0
_DEFAULTS = LifecycleSettings()


class SimulatedPod:
    """`step` does what an agent does: decide, commit, start. A container that must stop runs on until the test ends
    it."""

    def __init__(self, pod: Pod, settings: LifecycleSettings = _DEFAULTS) -> None:
        self.pod = default_pod(pod, settings.profile)
        self.settings = settings
        self.now = ACCEPTED_AT
        self.state = PodState(accepted_at=ACCEPTED_AT)

    def look(self) -> Actions:
        return actions(self.pod, self.state, self.now, self.settings)

    def step(self, after_seconds: float = 0.0) -> Actions:
        self.now += after_seconds
        todo = self.look()
        if todo.all_again:
            self.state = changes.all_again(self.pod, self.state)
            todo = self.look()
        if todo.verdict is not None:
            self.state = changes.with_terminal_status(self.state, todo.verdict)
        for name in todo.start:
            self.state = changes.asked_to_start(self.state, name)
            self.state = changes.started(self.state, self.container(name), self.now)
        for stop in todo.stop:
            self.state = stops.asked_to_stop(self.state, stop, self.now)
        return todo

    def end(self, name: str, exit_code: int = 0, after_seconds: float = 0.0, **facts: object) -> None:
        self.now += after_seconds
        self.state = changes.ended(
            self.pod,
            self.state,
            name,
            exit_code=exit_code,
            finished_at=self.now,
            settings=self.settings,
            **facts,  # type: ignore[arg-type]
        )

    def container(self, name: str):
        return next(each for each in self.pod.spec.every_container if each.name == name)

    @property
    def running(self) -> set[str]:
        return {name for name, it in self.state.containers.items() if it.is_running}

    @property
    def phase(self) -> str:
        return pod_phase(self.pod, self.state)

    def status(self):
        return pod_status(self.pod, self.state, self.settings.profile, self.look().waiting)
