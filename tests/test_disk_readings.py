"""Disk usage of pods: when it is measured, and the garbage that is removed before a pod is evicted."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from evenkeel.api.config import Profile
from evenkeel.api.manifests import read_manifests
from evenkeel.api.scalars import Amount
from evenkeel.host.disk_usage import Walk
from evenkeel.policy.eviction.decide import Decision, Reclaim
from evenkeel.policy.eviction.snapshot import FilesystemFigures, NodeFigures, PodFigures, PodSnapshot
from evenkeel.policy.eviction.thresholds import parse_thresholds
from evenkeel.policy.eviction.usage import Resource, usage
from evenkeel.pressure.disk import disk_readings
from evenkeel.pressure.disk.disk_readings import DiskTargets, NodeReading, Storage, nearest_limit
from evenkeel.pressure.disk.garbage_collection import Collected, Collector, GarbageCollection, PendingDisk
from evenkeel.pressure.targets import PodTarget
from evenkeel.runtime import base_runtime
from evenkeel.runtime.interface import Directories
from evenkeel.runtime.paths import StatePaths
from evenkeel.runtime.process.process_images import images_in_use, layers_of

MIB = 1 << 20
MANIFEST = """
apiVersion: v1
kind: Pod
metadata: {name: web, uid: u1}
spec:
  containers:
  - {name: app, image: host, command: [a], resources: {limits: {ephemeral-storage: 30Mi}}}
  - {name: side, image: host, command: [a], resources: {limits: {ephemeral-storage: 50Mi}}}
  volumes:
  - {name: scratch, emptyDir: {sizeLimit: 40Mi}}
  - {name: fast, emptyDir: {medium: Memory, sizeLimit: 1Mi}}
  - {name: host, hostPath: {path: /srv}}
"""


def pod_of(text=MANIFEST):
    (pod,) = read_manifests(text, "test").or_raise().pods
    return pod


def write(path: Path, mib: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * (mib * MIB))


@pytest.fixture
def paths(tmp_path):
    """A state directory in which the pod has something of everything."""
    state = StatePaths(str(tmp_path))
    write(tmp_path / "pods/u1/app.1/upper/etc/file", 1)
    write(tmp_path / "pods/u1/app.2/upper/file", 2)
    write(tmp_path / "pods/u1/app.2/launch", 8)  # ours, not the pod's
    write(tmp_path / "pods/u1/volumes/scratch/data", 4)
    write(tmp_path / "memory/u1/fast/data", 16)
    write(tmp_path / "logs/default_web_u1/side/1.log", 3)
    return state


def target(pod):
    return PodTarget(pod.metadata.uid, pod, "/pods/u1", "/nowhere", ())


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def storage(paths, clock=None, between=lambda: None, cpu_clock=lambda: 0.0):
    return Storage(
        lambda pod: base_runtime.directories_of(pod, layers_of(pod, paths), paths),
        0,
        between,
        clock or Clock(),
        cpu_clock,
    )


@pytest.mark.req("B12")
def test_layers_logs_and_volumes_on_disk_count_and_nothing_else(paths):
    pod = pod_of()
    measured = storage(paths).measure(target(pod))
    figures = measured.figures(PodFigures())
    seen = {
        one.name: (one.rootfs.used_bytes // MIB, one.logs.used_bytes // MIB) for one in figures.containers
    }
    assert seen == {"app": (3, 0), "side": (0, 3)}
    assert [(one.name, one.used_bytes // MIB, one.inodes_used) for one in figures.volumes] == [
        ("scratch", 4, 1)
    ]
    assert usage(PodSnapshot(pod, figures), Resource.STORAGE) // MIB == 10
    assert measured.is_whole


def test_the_nearest_limit_is_that_of_a_container_a_volume_on_disk_or_the_pod():
    assert nearest_limit(pod_of()) == 30 * MIB
    assert nearest_limit(pod_of(MANIFEST.replace("30Mi", "45Mi"))) == 40 * MIB
    plain = {"name": "a", "image": "host", "command": ["a"]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": [plain]}}
    assert nearest_limit(pod_of(json.dumps(pod))) is None


def walked(measuring):
    """The one pod that it follows, walked for the first time; the filesystem has 100 MiB then."""
    one = target(pod_of())
    measuring.follow([one])
    lost_to(measuring, 100 * MIB)
    assert measuring.due() is one  # never seen
    measuring.measure(one)
    assert measuring.due() is None
    return one


def lost_to(measuring, available_bytes):
    measuring.saw(FilesystemFigures(available_bytes=Amount(available_bytes)))


@pytest.mark.req("B12")
def test_a_pod_is_walked_again_only_when_it_could_have_come_to_its_limit(paths):
    clock = Clock()
    measuring = storage(paths, clock)
    one = walked(measuring)
    clock.now += 5
    assert measuring.due() is None  # the filesystem has lost nothing
    lost_to(measuring, 90 * MIB)
    assert measuring.due() is None  # it has 20 MiB left
    lost_to(measuring, 99 * MIB)  # somebody gave back
    lost_to(measuring, 88 * MIB)
    assert measuring.due() is one
    assert measuring.due({one.uid}) is None  # it goes already
    measuring.measure(one)
    clock.now += 0.5
    lost_to(measuring, MIB)
    assert measuring.due() is None  # not so soon
    clock.now += 1
    assert measuring.due() is one


@pytest.mark.req("B12")
def test_a_pod_whose_bytes_were_hidden_by_those_that_others_freed_is_walked_again_soon(paths):
    clock = Clock()
    measuring = storage(paths, clock)
    one = walked(measuring)
    lost_to(measuring, 100 * MIB)  # as much was freed as was written since
    clock.now += 19
    assert measuring.due() is None
    clock.now += 1
    assert measuring.due() is one


@pytest.mark.req("B12")
def test_each_of_many_pods_has_its_turn(paths):
    clock = Clock()
    measuring = storage(paths, clock)
    # More than can be walked, one a second, before the first is due again.
    pods = [target(pod_of(MANIFEST.replace("u1", f"u{number}"))) for number in range(40)]
    measuring.follow(pods)
    lost_to(measuring, 1000 * MIB)
    seen: list[PodTarget] = []
    while len(seen) < 3 * len(pods):
        one = measuring.due()
        assert one is not None
        measuring.measure(one)
        seen.append(one)
        clock.now += 1
    assert seen == pods * 3


@pytest.mark.req("B12")
def test_a_pod_that_is_always_near_its_limit_does_not_keep_others_waiting(paths):
    clock = Clock()
    measuring = storage(paths, clock)
    near = target(pod_of(MANIFEST.replace("30Mi", "10Mi")))
    other = target(pod_of(MANIFEST.replace("u1", "u2")))
    measuring.follow([near, other])
    lost_to(measuring, 1000 * MIB)
    measuring.measure(near)
    measuring.measure(other)
    seen = []
    for second in range(1, 30):
        clock.now += 1
        lost_to(measuring, (1000 - second) * MIB)
        one = measuring.due()
        assert one is not None
        measuring.measure(one)
        seen.append(one)
    assert seen.count(other) == 1
    assert seen.count(near) == 28


def test_a_walk_is_as_dear_as_the_cpu_it_takes_however_long_it_waits_for_it(paths):
    clock, cpu = Clock(), Clock()

    def waiting():
        clock.now += 100

    def working():
        cpu.now += 0.5

    for number in range(2000):
        (Path(paths.volume("u1", "scratch")) / str(number)).touch()
    cheap = storage(paths, clock, waiting, cpu)
    one = walked(cheap)
    lost_to(cheap, MIB)
    clock.now += 1
    assert cheap.due() is one
    dear = storage(paths, clock, working, cpu)
    one = walked(dear)
    clock.now += 149
    assert dear.due() is None  # a hundredth of a CPU, of which three slices take 1.5 s
    clock.now += 1
    assert dear.due() is one


@pytest.mark.req("B12")
def test_a_pod_cannot_put_off_its_walk_by_making_it_expensive(paths):
    clock, cpu = Clock(), Clock()

    def working():
        cpu.now += 0.5

    volumes = {uid: Path(paths.volume(uid, "scratch")) for uid in ("u1", "u2")}
    for number in range(2000):
        for volume in volumes.values():
            volume.mkdir(parents=True, exist_ok=True)
            (volume / str(number)).touch()
    measuring = storage(paths, clock, working, cpu)
    one = walked(measuring)
    lost_to(measuring, MIB)  # it could have reached its limit
    clock.now += 14
    assert measuring.due() is None
    clock.now += 1
    assert measuring.due() is one  # a tenth of a CPU

    pods = [one, target(pod_of(MANIFEST.replace("u1", "u2")))]
    measuring.follow(pods)
    for each in pods:
        measuring.measure(each)
    lost_to(measuring, 0)
    lost_to(measuring, 1000 * MIB)
    lost_to(measuring, 0)
    clock.now += 29
    assert measuring.due() is None  # for all of them together
    clock.now += 1
    assert measuring.due() is not None


@pytest.mark.req("B12")
def test_what_a_pod_that_is_gone_has_freed_does_not_hide_what_another_one_wrote(paths):
    clock = Clock()
    measuring = storage(paths, clock)
    write(Path(paths.volume("u1", "scratch")) / "more", 15)
    one = target(pod_of())
    other = target(pod_of(MANIFEST.replace("u1", "u2").replace("30Mi", "25Mi")))
    measuring.follow([one, other])
    lost_to(measuring, 100 * MIB)
    for each in (one, other):
        measuring.measure(each)
    clock.now += 1.5
    assert measuring.due() is None
    measuring.follow([other])  # 25 MiB are free again, or in use by the other one, which has as much left
    assert measuring.due() is other


def test_a_walk_that_takes_too_long_gives_what_is_known(paths):
    clock = Clock()
    for number in range(2000):
        (Path(paths.volume("u1", "scratch")) / str(number)).touch()

    def passing():
        clock.now += 1

    measuring = storage(paths, clock, passing)
    one = target(pod_of())
    whole = measuring.measure(one)
    assert whole.is_whole
    again = measuring.measure(one, until=clock.now + 0.5)
    assert again.used_bytes == whole.used_bytes  # the larger of the two


class Hiding:
    """A pod that moves its volume `scratch` away whenever somebody wants to look into it, unless it is frozen."""

    def __init__(
        self, paths: StatePaths, monkeypatch: pytest.MonkeyPatch, *, mib: int = 64, can_be_frozen: bool = True
    ) -> None:
        self.clock = Clock()
        self.froze = 0
        self._can_be_frozen = can_be_frozen
        self._is_frozen = False
        self._hides = paths.volume("u1", "scratch")
        write(Path(self._hides) / "deep" / "big", mib)
        hiding = self

        class MissingWalk(Walk):
            def advance(self, entries: int) -> int:
                if self.is_of_volume and not hiding._is_frozen and not self.is_done:
                    self.missed += 1
                    self.close()
                    return 1
                hiding.clock.now += 0.1
                return super().advance(entries)

            def __init__(self, path: str) -> None:
                self.is_of_volume = path == hiding._hides
                super().__init__(path)

        monkeypatch.setattr(disk_readings, "Walk", MissingWalk)
        self.storage = Storage(
            lambda pod: base_runtime.directories_of(pod, layers_of(pod, paths), paths),
            0,
            lambda: None,
            self.clock,
            lambda: 0.0,
            self.frozen,
        )

    @contextmanager
    def frozen(self, one: PodTarget) -> Iterator[bool]:
        assert one.uid == "u1"
        self.froze += self._can_be_frozen
        self._is_frozen = self._can_be_frozen
        yield self._can_be_frozen
        self._is_frozen = False


@pytest.mark.req("B12")
def test_a_pod_that_hides_directories_from_the_walk_is_walked_while_it_is_frozen(paths, monkeypatch):
    hiding = Hiding(paths, monkeypatch)
    one = target(pod_of())
    hiding.storage.follow([one])
    found = hiding.storage.measure(one)
    assert (found.missed, hiding.froze) == (0, 1)
    assert found.volumes["scratch"].used_bytes >= 68 * MIB
    # It is not frozen again at once, and what was found counts until then.
    assert hiding.storage.measure(one, until=hiding.clock.now + 10).used_bytes == found.used_bytes
    assert hiding.froze == 1
    hiding.clock.now += 60
    assert hiding.storage.measure(one, until=hiding.clock.now + 10).used_bytes == found.used_bytes
    assert hiding.froze == 2


def test_a_pod_that_hides_directories_is_frozen_only_if_it_has_a_limit_or_a_decision_waits(
    paths, monkeypatch
):
    hiding = Hiding(paths, monkeypatch)
    one = target(pod_of())
    hiding.storage.measure(one)
    assert hiding.froze == 0
    hiding.storage.measure(one, until=hiding.clock.now + 10)
    assert hiding.froze == 1
    hiding.storage.follow([one])
    hiding.clock.now += 60
    hiding.storage.measure(one)  # the filesystem has lost nothing, as far as is known
    assert hiding.froze == 2


def test_a_pod_with_so_many_files_that_a_second_is_not_enough_is_frozen_for_longer(paths, monkeypatch):
    hiding = Hiding(paths, monkeypatch)
    for number in range(8000):  # a slice of 512 takes 0.1 s here
        (Path(paths.volume("u1", "scratch")) / f"crowd{number}").touch()
    one = target(pod_of())
    hiding.storage.follow([one])
    found = []
    for _ in range(3):
        found.append(hiding.storage.measure(one, until=hiding.clock.now + 10).used_bytes >= 64 * MIB)
        hiding.clock.now += 100
    assert (found, hiding.froze) == ([False, True, True], 3)


def test_a_pod_that_hides_directories_stays_under_suspicion_where_it_cannot_be_frozen(paths, monkeypatch):
    hiding = Hiding(paths, monkeypatch, can_be_frozen=False)
    one = target(pod_of())
    measuring = hiding.storage
    measuring.follow([one])
    measuring.saw(FilesystemFigures(available_bytes=Amount(1000 * MIB)))
    assert measuring.measure(one).missed == 1
    measuring.saw(FilesystemFigures(available_bytes=Amount(900 * MIB)))
    for _ in range(3):
        hiding.clock.now += 5
        assert measuring.due() == one
        assert measuring.measure(one).missed == 1


# Removing


@pytest.mark.req("B12")
def test_old_logs_go_and_the_last_two_attempts_stay(tmp_path):
    paths = StatePaths(str(tmp_path))
    directory = tmp_path / "logs" / "default_web_u1" / "app"
    directory.mkdir(parents=True)
    names = ["8.log", "9.log", "10.log", "10.log.20260101-000000", "9.log.20260101-000000"]
    for name in names:
        (directory / name).touch()
    base_runtime.remove_old_logs(paths)
    assert sorted(path.name for path in directory.iterdir()) == ["10.log", "9.log"]
    base_runtime.remove_old_logs(StatePaths(str(tmp_path / "none")))


@pytest.mark.req("B12")
def test_an_image_is_in_use_while_any_attempt_has_it(tmp_path):
    paths = StatePaths(str(tmp_path))
    for digest in ("aaa", "bbb"):
        (tmp_path / "images" / digest).mkdir(parents=True)
    launch = tmp_path / "pods" / "u1" / "app.1" / "launch"
    launch.parent.mkdir(parents=True)
    launch.write_text(json.dumps({"filesystem": {"image": paths.image("aaa")}}))
    assert images_in_use(paths) == {paths.image("aaa")}
    other = tmp_path / "pods" / "u2" / "app.1"
    other.mkdir(parents=True)  # begun, and its image is not known
    assert images_in_use(paths) == {paths.image("aaa"), paths.image("bbb")}


def test_a_pod_has_the_layers_of_every_attempt_and_no_memory_volume(paths):
    assert base_runtime.directories_of(pod_of(), layers_of(pod_of(), paths), paths) == Directories(
        tuple(
            ("app", f"{paths.attempt('u1', 'app', number)}/{part}")
            for number in (1, 2)
            for part in ("upper", "etc")
        ),
        tuple((name, paths.container_logs("default", "web", "u1", name)) for name in ("app", "side")),
        (("scratch", paths.volume("u1", "scratch")),),
    )


class Disk:
    """A node whose disk is as the test says."""

    def __init__(self, mib):
        self.mib = mib
        self.removed = []

    def look(self):
        return NodeFigures(
            nodefs=FilesystemFigures(Amount(self.mib * MIB), Amount(1000 * MIB), Amount(100), Amount(100))
        )

    def collector(self, kind, name, mib):
        def collect():
            self.removed.append(name)
            if mib is None:
                raise OSError("no")
            self.mib += mib

        return Collector(kind, name, collect)


DUE = parse_thresholds(hard={"nodefs.available": "100Mi"}, minimum_reclaim={"nodefs.available": "20Mi"})
SHORT = Decision(due=DUE, acting_on=DUE[0], reclaim=(Reclaim.CONTAINERS, Reclaim.IMAGES))


@pytest.mark.req("B12", "B16")
def test_collecting_goes_on_until_it_is_enough_and_no_further():
    place = Disk(50)
    collecting = GarbageCollection(
        [
            place.collector(
                Reclaim.CONTAINERS, "dead", 60
            ),  # above the threshold, but not by the minimum reclaim
            place.collector(Reclaim.CONTAINERS, "refused", None),
            place.collector(Reclaim.IMAGES, "images", 15),
            place.collector(Reclaim.CONTAINERS, "logs", 100),
        ],
        place.look,
    )
    collected, is_relieved = collecting.collect(SHORT, 100.0)
    assert is_relieved
    assert place.removed == ["dead", "refused", "images"]
    assert collected == [
        Collected("dead", 60 * MIB),
        Collected("refused", failure="no"),
        Collected("images", 15 * MIB),
    ]


def test_collecting_is_not_done_over_and_over_unless_a_pod_has_gone():
    place = Disk(50)
    collecting = GarbageCollection([place.collector(Reclaim.IMAGES, "images", 0)], place.look)
    assert collecting.collect(SHORT._replace(reclaim=()), 100.0) == ([], False)
    assert collecting.collect(SHORT, 100.0) == ([Collected("images")], False)
    assert collecting.collect(SHORT, 101.0) == ([], False)
    collecting.a_pod_has_gone()
    assert collecting.collect(SHORT, 102.0) == ([Collected("images")], False)
    assert collecting.collect(SHORT, 120.0) == ([Collected("images")], False)


# Who is on the way out


@pytest.mark.req("E2")
def test_no_other_pod_is_evicted_while_disk_is_being_freed_and_until_it_has_settled():
    leaving = PendingDisk()
    leaving.add("u1", Resource.STORAGE, 100.0, lambda: False)
    assert leaving.is_any(Resource.INODES, 100.0)
    assert not leaving.is_any(Resource.PIDS, 100.0)
    for second in range(1, 40):  # a large tree, on its way
        leaving.saw(FilesystemFigures(Amount(second * MIB), None, Amount(5), None), 100.0 + second)
        assert leaving.is_any(Resource.STORAGE, 100.0 + second)
    leaving.follow(())  # its cgroup is gone, its files are not
    assert leaving.uids == {"u1"}
    leaving.cleaned("u1")
    leaving.saw(FilesystemFigures(Amount(50 * MIB), None, Amount(5), None), 140.0)
    assert leaving.is_any(Resource.STORAGE, 140.5)
    leaving.saw(FilesystemFigures(Amount(50 * MIB), None, Amount(5), None), 141.5)
    assert leaving.uids == frozenset()


@pytest.mark.req("E2")
def test_a_pod_whose_disk_does_not_come_back_is_not_waited_for_for_ever():
    leaving = PendingDisk()
    leaving.add("u1", Resource.STORAGE, 130.0, lambda: True)  # it has a grace of 30 seconds
    leaving.saw(FilesystemFigures(Amount(MIB), None, None, None), 101.0)
    leaving.saw(FilesystemFigures(Amount(MIB), None, None, None), 139.0)
    assert leaving.is_any(Resource.STORAGE, 139.0)
    leaving.saw(FilesystemFigures(Amount(MIB), None, None, None), 141.0)
    assert not leaving.uids


def test_processes_are_back_when_none_is_left():
    has_processes = True
    leaving = PendingDisk()
    leaving.add("u1", Resource.PIDS, 100.0, lambda: has_processes)
    leaving.saw(FilesystemFigures(), 101.0)
    assert leaving.is_any(Resource.PIDS, 101.0)
    has_processes = False
    leaving.saw(FilesystemFigures(), 101.1)
    assert not leaving.is_any(Resource.PIDS, 101.1)


# The node


@pytest.mark.req("B16")
def test_a_node_that_was_said_to_have_fewer_processes_counts_those_of_the_pods(tmp_path):
    (tmp_path / "pods" / "u1").mkdir(parents=True)
    (tmp_path / "pods" / "pids.current").write_text("150\n")
    (tmp_path / "pods" / "u1" / "pids.current").write_text("120\n")
    small = NodeReading(str(tmp_path), str(tmp_path / "images"), 200, Profile.DOCUMENTS)
    assert small.processes().maximum > 200  # nothing is known of the pods yet
    small.follow(DiskTargets("/pods", (), str(tmp_path)))
    assert tuple(small.processes()) == (200, 150)
    assert small.pod(target(pod_of())).process_count == 120
    assert small.process_count("/gone") is None
    whole = NodeReading(str(tmp_path), str(tmp_path / "images"), 1 << 30, Profile.DOCUMENTS)
    assert whole.processes().maximum > 200


def test_images_on_the_same_filesystem_count_apart_only_for_kubelet(tmp_path):
    for profile, is_there in ((Profile.DOCUMENTS, False), (Profile.KUBERNETES, True)):
        node = NodeReading(str(tmp_path), str(tmp_path), 1 << 30, profile).read()
        assert (node.imagefs is not None) is is_there
        assert not node.dedicated_imagefs
    apart = NodeReading(str(tmp_path), "/proc", 1 << 30, Profile.DOCUMENTS).read()
    assert (apart.dedicated_imagefs, apart.separate_containerfs) == (True, True)
    assert apart.containerfs == apart.nodefs
