"""The steps from one tree to another: a model of the kernel takes them one by one and refuses what the kernel would."""

import math
from collections import defaultdict

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from evenkeel.cgroup.diff import Action, diff
from evenkeel.cgroup.kernel_files import default_value, same_value
from evenkeel.cgroup.plan import plan
from evenkeel.cgroup.reconfigure import restoring
from evenkeel.cgroup.tree import Cgroup, Kind, Naming, Setting, Tree, Version
from evenkeel.policy.exclusive_cores import assign_on
from evenkeel.policy.provision import PlannedPod
from tests.strategies import as_observed, container, node, nodes, planned_pods, pod

PAGE = 4096
LIMITS = ("memory.max", "memory.high", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "pids.max")
PROTECTIONS = ("memory.min", "memory.low", "cpu.weight", "cpu.shares")


def number(value):
    return math.inf if value in ("max", "-1") or int(value) > 2**62 else int(value)


def quota_us(files, version):
    return number(files["cpu.max"].split()[0] if version == Version.V2 else files["cpu.cfs_quota_us"])


def ratio(files, version):
    """CPU time per time that a cgroup is allowed, in either version."""
    period = files["cpu.max"].split()[1] if version == Version.V2 else files["cpu.cfs_period_us"]
    return quota_us(files, version) / int(period)


class Files(dict):
    """The files of one cgroup. A file that was not written has the kernel's default."""

    def __init__(self, version):
        super().__init__()
        self.version = version

    def __missing__(self, file):
        return default_value(file, self.version) or ""


class Kernel:
    """Cgroups as the kernel holds them, with every file that a plan can name."""

    def __init__(self, tree):
        self.version = tree.version
        self.cgroups = {}
        for cgroup in tree.cgroups:
            self.cgroups[cgroup.path] = Files(tree.version)
            self.cgroups[cgroup.path].update({setting.file: setting.value for setting in cgroup.settings})

    def observe(self, tree):
        """As a driver does: the files that `tree` sets, and every other cgroup."""
        files = {cgroup.path: [setting.file for setting in cgroup.settings] for cgroup in tree.cgroups}
        return {path: {file: has[file] for file in files.get(path, ())} for path, has in self.cgroups.items()}

    def do(self, step):
        path = step.path
        if step.action == Action.REMOVE:
            assert not any(other.startswith(f"{path}/") for other in self.cgroups), f"{path} has children"
            del self.cgroups[path]
        elif step.action == Action.CREATE:
            assert path not in self.cgroups
            assert self.parent(path) is not None or path.count("/") == 1, f"{path} has no parent"
            self.cgroups[path] = Files(self.version)
        else:
            assert step.before == self.cgroups[path][step.setting.file], "a step knows what it changes"
            self.cgroups[path][step.setting.file] = step.setting.value

    def parent(self, path):
        above = path.rpartition("/")[0]
        return above if above in self.cgroups else None

    def children(self):
        found = defaultdict(list)
        for path, files in self.cgroups.items():
            found[self.parent(path)].append(files)
        return found


def protects_its_children(kernel):
    """C1: no parent is protected by less than its children together."""
    return all(
        sum(number(child["memory.min"]) // PAGE for child in children)
        <= number(kernel.cgroups[path]["memory.min"]) // PAGE
        for path, children in kernel.children().items()
        if path is not None and kernel.version == Version.V2
    )


def is_accepted_by_the_kernel(kernel):
    """The ties between files: a v1 child's ratio within its parent's, burst within quota, memory within memory+swap."""
    version = kernel.version
    v1 = version == Version.V1
    for path, files in kernel.cgroups.items():
        if number(files["cpu.cfs_burst_us" if v1 else "cpu.max.burst"]) > quota_us(files, version):
            return False
        if not v1:
            continue
        if number(files["memory.limit_in_bytes"]) > number(files["memory.memsw.limit_in_bytes"]):
            return False
        above = kernel.parent(path)
        while above is not None and ratio(kernel.cgroups[above], version) == math.inf:
            above = kernel.parent(above)
        most = math.inf if above is None else ratio(kernel.cgroups[above], version)
        if most * (1 + 1e-9) < ratio(files, version) < math.inf:
            return False
    return True


def breaks_no_promise(now, old, new, path):
    """Nobody is allowed more than the larger of two limits, or protected by less than the smaller of two."""
    if not (path in now and path in old and path in new):
        return
    has, before, after = now[path], old[path], new[path]
    assert ratio(has, has.version) <= max(ratio(before, has.version), ratio(after, has.version)) * (1 + 1e-9)
    for file in before.keys() & after.keys():
        if file in LIMITS:
            assert number(has[file]) <= max(number(before[file]), number(after[file])), file
        if file in PROTECTIONS:
            assert number(has[file]) >= min(number(before[file]), number(after[file])), file


def take_all(old, new):
    """Takes every step from `old` to `new`, looking at each state in between."""
    kernel = Kernel(old)
    begin, end = ends = Kernel(old), Kernel(new)
    nested = all(map(protects_its_children, ends))
    accepted = all(map(is_accepted_by_the_kernel, ends))
    for step in diff(new, kernel.observe(new)):
        kernel.do(step)
        if step.action == Action.CREATE:
            continue  # its values follow at once, before anything runs in it
        assert not nested or protects_its_children(kernel), step
        assert not accepted or is_accepted_by_the_kernel(kernel), step
        breaks_no_promise(kernel.cgroups, begin.cgroups, end.cgroups, step.path)
    return kernel


views = nodes.map(lambda view: view._replace(config=view.config._replace(cgroup_root="/a/b")))


@st.composite
def trees(draw, version, view=None):
    view = draw(views) if view is None else view
    return plan(view, draw(planned_pods(view.profile, most=3)), version)


@pytest.mark.req("A4", "C1", "D3", "D5")
@settings(max_examples=40)
@given(st.data(), st.sampled_from(list(Version)))
def test_no_step_breaks_a_promise_while_pods_come_and_go_and_change(data, version):
    view = data.draw(views)
    old, new = data.draw(trees(version, view)), data.draw(trees(version, view))
    kernel = take_all(old, new)
    assert kernel.cgroups.keys() == as_observed(new).keys()
    is_as_wanted(kernel, new)


@pytest.mark.req("A4", "B13", "C1", "C4", "D5")
@settings(max_examples=40)
@given(st.data(), st.sampled_from(list(Version)))
def test_no_step_breaks_a_promise_after_a_start_with_another_configuration(data, version):
    old, new = data.draw(trees(version)), restoring(data.draw(trees(version)))
    there = as_observed(old)
    # A cgroup of daemons is there before us.
    assume(not any(cgroup.kind == Kind.RESERVED and cgroup.path not in there for cgroup in new.cgroups))
    kernel = take_all(old, new)
    left = kernel.cgroups.keys() - as_observed(new).keys()
    assert all(cgroup.kind == Kind.RESERVED for cgroup in old.cgroups if cgroup.path in left)
    is_as_wanted(kernel, new)


def is_as_wanted(kernel, new):
    for cgroup in new.cgroups:
        for file, value, *_ in cgroup.settings:
            assert same_value(file, value, kernel.cgroups[cgroup.path][file])
    assert diff(new, kernel.observe(new)) == ()


@settings(max_examples=40)
@given(st.data(), st.sampled_from(list(Version)), st.sampled_from(list(Naming)))
def test_there_is_nothing_to_do_where_the_plan_is_what_the_kernel_has(data, version, naming):
    view = data.draw(nodes)
    found = plan(view, data.draw(planned_pods(view.profile, most=3)), version, naming)
    assert diff(found, as_observed(found)) == ()


@settings(max_examples=30)
@given(st.data(), st.sampled_from(list(Version)))
def test_a_tree_is_made_parents_first_and_removed_children_first(data, version):
    full = data.draw(trees(version))
    empty = full._replace(cgroups=tuple(c for c in full.cgroups if c.kind in (Kind.ANCESTOR, Kind.ROOT)))
    made = [step.path for step in diff(full, as_observed(empty)) if step.action == Action.CREATE]
    assert made == sorted(made, key=lambda path: path.count("/"))
    assert set(made) == {
        c.path for c in full.cgroups if c.kind not in (Kind.ANCESTOR, Kind.ROOT, Kind.RESERVED)
    }
    gone = [step.path for step in diff(empty, as_observed(full)) if step.action == Action.REMOVE]
    assert gone == sorted(gone, key=lambda path: -path.count("/"))
    assert set(gone) == set(made)


@pytest.mark.req("E9")
@settings(max_examples=20)
@given(st.data(), st.sampled_from(list(Version)))
def test_nothing_below_a_hands_off_cgroup_is_touched(data, version):
    old, new = data.draw(trees(version)), data.draw(trees(version))
    paths = sorted({*as_observed(old), *as_observed(new)})
    hands_off = data.draw(st.lists(st.sampled_from(paths), min_size=1, max_size=2))
    with_it = diff(new, as_observed(old), hands_off)
    for step in with_it:
        assert not any(step.path == top or step.path.startswith(f"{top}/") for top in hands_off)
    assert diff(new, as_observed(old), ["/"]) == ()
    kept = [
        s for s in diff(new, as_observed(old)) if not any(f"{s.path}/".startswith(f"{t}/") for t in hands_off)
    ]
    assert list(with_it) == kept


def reserved(**config):
    return node(kube_reserved={"memory": "1Gi"}, kube_reserved_cgroup="/kube", **config)


@pytest.mark.req("B5", "E7")
def test_a_cgroup_of_daemons_is_set_but_made_only_where_asked_for_and_never_removed():
    enforced = ("pods", "kube-reserved")
    wanted = plan(reserved(enforce_node_allocatable=enforced), [])
    without = {path: files for path, files in as_observed(wanted).items() if path != "/kube"}
    assert diff(wanted, without) == ()
    (step, *_) = diff(wanted, {**without, "/kube": {"memory.min": "0", "memory.max": "max"}})
    assert (step.path, step.setting.file, step.setting.value) == ("/kube", "memory.max", str(2**30))
    asked = plan(reserved(enforce_node_allocatable=enforced, create_reserved_cgroups=True), [])
    assert [step.path for step in diff(asked, without) if step.action == Action.CREATE] == ["/kube"]
    assert not any(step.action == Action.REMOVE for step in diff(plan(reserved(), []), as_observed(wanted)))


def test_only_what_is_below_the_pods_root_is_ours_to_remove():
    found = plan(node(), [])
    others: dict[str, dict[str, str]] = {
        "/system.slice": {},
        "/evenkeel/mine": {},
        "/evenkeel/kubepods/mine": {},
        "/evenkeel/kubepods2": {},
    }
    assert [step.path for step in diff(found, {**as_observed(found), **others})] == [
        "/evenkeel/kubepods/mine"
    ]


@pytest.mark.req("B6")
def test_without_a_root_of_their_own_only_pods_are_removed_from_the_hierarchys():
    view = node(cgroup_root="/", cgroups_per_qos=False, enforce_node_allocatable=())
    found = plan(view, [])
    assert [step.path for step in diff(found, {"/system.slice": {}, "/podx": {}, "/podx/c": {}})] == [
        "/podx/c",
        "/podx",
    ]


def tree_of(version=Version.V2, **files):
    """A tree whose one pod has `files`, written with __ for a dot."""
    settings = tuple(Setting(file.replace("__", "."), value, "", "") for file, value in files.items())
    root = Cgroup("/r", Kind.ROOT, ())
    return Tree(version, Naming.CGROUPFS, (root, Cgroup("/r/p", Kind.POD, settings)))


def written(old, new):
    return [(step.setting.file, step.setting.value) for step in diff(new, as_observed(old))]


def test_v1_memory_never_exceeds_memory_and_swap_on_the_way():
    def limits(memory, both):
        return tree_of(Version.V1, memory__limit_in_bytes=memory, memory__memsw__limit_in_bytes=both)

    small, large = limits("4096", "4096"), limits("40960", "40960")
    assert [file for file, _ in written(small, large)] == [
        "memory.memsw.limit_in_bytes",
        "memory.limit_in_bytes",
    ]
    assert [file for file, _ in written(large, small)] == [
        "memory.limit_in_bytes",
        "memory.memsw.limit_in_bytes",
    ]


def test_v1_burst_never_exceeds_the_quota_on_the_way():
    def burst(quota):
        return tree_of(
            Version.V1, cpu__cfs_burst_us=quota, cpu__cfs_quota_us=quota, cpu__cfs_period_us="100000"
        )

    assert [file for file, _ in written(burst("50000"), burst("90000"))] == [
        "cpu.cfs_quota_us",
        "cpu.cfs_burst_us",
    ]
    assert [file for file, _ in written(burst("90000"), burst("50000"))] == [
        "cpu.cfs_burst_us",
        "cpu.cfs_quota_us",
    ]


def quota(value, period):
    return tree_of(Version.V1, cpu__cfs_period_us=period, cpu__cfs_quota_us=value)


@pytest.mark.parametrize(
    "old, new, first",
    [
        (("100000", "100000"), ("20000", "20000"), "cpu.cfs_quota_us"),
        (("20000", "20000"), ("100000", "100000"), "cpu.cfs_period_us"),
        (("-1", "100000"), ("20000", "20000"), "cpu.cfs_period_us"),
        (("20000", "20000"), ("-1", "100000"), "cpu.cfs_quota_us"),
    ],
)
def test_v1_quota_and_period_change_by_way_of_the_smaller_ratio_or_of_none(old, new, first):
    assert next(file for file, _ in written(quota(*old), quota(*new))) == first


def pod_and_container(of_pod, of_container):
    quotas = [(Setting("cpu.cfs_quota_us", quota, "", ""),) for quota in (of_pod, of_container)]
    cgroups = (
        Cgroup("/r", Kind.ROOT, ()),
        Cgroup("/r/p", Kind.POD, quotas[0]),
        Cgroup("/r/p/c", Kind.CONTAINER, quotas[1]),
    )
    return Tree(Version.V1, Naming.CGROUPFS, cgroups)


@pytest.mark.req("D1", "D5")
@pytest.mark.parametrize(
    "old, new, first",
    [
        (("30000", "-1"), ("90000", "60000"), "/r/p"),  # more than the pod had
        (("90000", "60000"), ("30000", "-1"), "/r/p/c"),  # more than the pod will have
        (("30000", "-1"), ("-1", "60000"), "/r/p"),
        (("-1", "60000"), ("30000", "-1"), "/r/p/c"),
    ],
)
def test_v1_lets_no_container_have_a_quota_beyond_its_pods_on_the_way(old, new, first):
    old, new = pod_and_container(*old), pod_and_container(*new)
    take_all(old, new)
    assert diff(new, as_observed(old))[0].path == first


@pytest.mark.req("A23")
def test_cores_are_let_go_before_others_take_them():
    def cores(first, second):
        settings = [(Setting("cpuset.cpus", text, "", ""),) for text in (first, second)]
        pods = (Cgroup("/r/a", Kind.POD, settings[0]), Cgroup("/r/b", Kind.POD, settings[1]))
        return Tree(Version.V2, Naming.CGROUPFS, (Cgroup("/r", Kind.ROOT, ()), *pods))

    def steps(old, new):
        return [
            (step.path, step.before, step.setting.value)
            for step in diff(cores(*new), as_observed(cores(*old)))
        ]

    assert steps(("0-3", "4"), ("0-1", "2-4")) == [("/r/a", "0-3", "0-1"), ("/r/b", "4", "2-4")]
    assert steps(("2-4", "0-1"), ("4", "0-3")) == [("/r/a", "2-4", "4"), ("/r/b", "0-1", "0-3")]
    assert steps(("0-2", "3"), ("1-3", "0")) == [
        ("/r/a", "0-2", "1-2"),
        ("/r/b", "3", "0"),
        ("/r/a", "1-2", "1-3"),
    ]
    assert steps(("", "3"), ("0", "3")) == [("/r/a", "", "0")]
    assert steps(("nonsense", "3"), ("0", "3")) == [("/r/a", "nonsense", "0")]


@pytest.mark.req("A23")
def test_no_core_is_two_containers_own_while_pods_come_and_go():
    view = node(cpus=8, cpu_manager_policy="static")
    both = {"cpu": "2", "memory": "1Gi"}
    pods = [pod(container(both, both), name=name) for name in "abc"]
    little = pod(container({"cpu": "100m"}), name="z")

    def tree(names, kept):
        cores = assign_on(view, [one for one in (*pods, little) if one.metadata.name in names], kept)
        return cores, plan(
            view,
            [
                PlannedPod(one, None, cores.of_pod(one.metadata.name), cores.shared)
                for one in (*pods, little)
                if one.metadata.name in names
            ],
        )

    cores, old = tree("abz", {})
    _, new = tree("bcz", cores.exclusive)
    kernel = Kernel(old)
    for step in diff(new, kernel.cgroups):
        kernel.do(step)
        taken = [files["cpuset.cpus"] for files in kernel.cgroups.values() if "cpuset.cpus" in files]
        assert len(taken) == len(set(taken)), taken
    assert kernel.cgroups.keys() == as_observed(new).keys()


def test_values_that_mean_the_same_to_the_kernel_are_not_written_again():
    old = {
        "/r": {},
        "/r/p": {"memory.max": "9223372036854771712", "memory.min": "4097", "cpu.max": "max 100000\n"},
    }
    new = tree_of(memory__max="max", memory__min="8191", cpu__max="max 100000")
    assert diff(new, old) == ()


def test_a_file_that_cannot_be_read_is_written():
    (step,) = diff(tree_of(memory__max="max"), {"/r": {}, "/r/p": {}})
    assert (step.action, step.before) == (Action.WRITE, "")
