"""Reconciling against a kernel made of dictionaries: order, failures, drift and reports.

The same on real kernels: tests/kernel/test_reconcile.py.
"""

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.cgroup.diff import Action
from evenkeel.cgroup.driver import CgroupError
from evenkeel.cgroup.drivers.kernel_refusals import MissingController, NotAvailable
from evenkeel.cgroup.kernel_files import default_value, same_value
from evenkeel.cgroup.plan import Planner, plan
from evenkeel.cgroup.reconcile import Report, reconcile, reconcile_changed, survey
from evenkeel.cgroup.supported import supported_part
from evenkeel.cgroup.tree import Cgroup, Kind, Naming, Setting, Tree, Version
from tests.models.kernel import Kernel, Refuse
from tests.strategies import nodes, planned_pods


def cgroup(path: str, kind: Kind, **files: str) -> Cgroup:
    settings = tuple(Setting(name.replace("__", "."), value, "A1", "why") for name, value in files.items())
    return Cgroup(path, kind, settings)


def small_tree(**files: str) -> Tree:
    """A root, a pod and a container with `files`."""
    return Tree(
        Version.V2,
        Naming.CGROUPFS,
        (
            cgroup("/r", Kind.ROOT, memory__max="1000000"),
            cgroup("/r/podx", Kind.POD, pids__max="10"),
            cgroup("/r/podx/c", Kind.CONTAINER, **files),
        ),
    )


def refuse_on(action: str, path: str, file: str = "", error: CgroupError | None = None) -> Refuse:
    said = error or CgroupError("no", path=path, file=file, reason="EBUSY")
    return lambda *asked: said if asked == (action, path, file) else None


def steps_of(report: Report) -> list[tuple[str, str, str]]:
    return [(str(s.action), s.path, s.setting.file if s.setting else "") for s in report.done]


def test_everything_is_made_and_a_second_pass_does_nothing():
    kernel, tree = Kernel(), small_tree(memory__max="4096", cpu__weight="100")

    first = reconcile(kernel, tree)

    assert steps_of(first) == [
        ("create", "/r", ""),
        ("create", "/r/podx", ""),
        ("write", "/r/podx", "pids.max"),
        ("create", "/r/podx/c", ""),
        ("write", "/r", "memory.max"),  # what is below is charged to it, and must have room
        ("write", "/r/podx/c", "memory.max"),
    ]
    second = reconcile(kernel, tree, last=first)
    assert (second.done, second.repairs, second.failures) == ((), (), ())
    assert kernel.changes == 6


@pytest.mark.req("E9")
def test_drift_is_put_right_and_reported_with_what_was_found():
    kernel, tree = Kernel(), small_tree(memory__max="4096")
    first = reconcile(kernel, tree)
    kernel.cgroups["/r/podx/c"]["memory.max"] = "max"
    kernel.cgroups["/r/podx"]["pids.max"] = "99"

    second = reconcile(kernel, tree, last=first)

    assert [tuple(repair) for repair in second.repairs] == [
        ("/r/podx/c", "memory.max", "max", "4096", "A1", "why"),
        ("/r/podx", "pids.max", "99", "10", "A1", "why"),
    ]
    assert kernel.cgroups["/r/podx/c"]["memory.max"] == "4096"


@pytest.mark.req("E9")
def test_a_change_of_plan_is_not_drift():
    kernel = Kernel()
    first = reconcile(kernel, small_tree(memory__max="4096"))
    second = reconcile(kernel, small_tree(memory__max="8192"), last=first)
    assert steps_of(second) == [("write", "/r/podx/c", "memory.max")]
    assert second.repairs == ()


@pytest.mark.req("E9")
def test_cgroups_that_others_made_or_removed_are_put_right_and_reported():
    kernel, tree = Kernel(), small_tree(memory__max="4096")
    first = reconcile(kernel, tree)
    del kernel.cgroups["/r/podx/c"]
    kernel.cgroups["/r/stranger"] = {}

    second = reconcile(kernel, tree, last=first)

    assert [tuple(repair)[:4] for repair in second.repairs] == [
        ("/r/stranger", "", "made by others", "removed"),
        ("/r/podx/c", "", "removed by others", "made again"),
    ]
    assert reconcile(kernel, tree, last=second).done == ()


@pytest.mark.req("E9")
def test_hands_off_means_no_write_no_repair_and_no_removal_of_what_holds_it():
    kernel, tree = Kernel(), small_tree(memory__max="4096")
    first = reconcile(kernel, tree)
    kernel.cgroups["/r/podx/c"]["memory.max"] = "max"
    kernel.cgroups["/r/podx"]["pids.max"] = "99"
    kernel.cgroups["/r/stranger"] = {}
    kernel.cgroups["/r/stranger/inner"] = {}

    second = reconcile(kernel, tree, ("/r/podx/c", "/r/stranger/inner"), last=first)

    assert steps_of(second) == [("write", "/r/podx", "pids.max")]
    third = reconcile(kernel, tree, (), last=second)
    assert ("write", "/r/podx/c", "memory.max") in steps_of(third), "once it is not hands-off any more"


def test_what_was_refused_once_is_not_called_drift_when_it_succeeds():
    kernel, tree = Kernel(), small_tree(memory__max="4096")
    kernel.refuse = refuse_on("write", "/r/podx/c", "memory.max")
    first = reconcile(kernel, tree)
    assert [str(error) for error in first.failures] == ["no"]

    kernel.refuse = lambda *asked: None
    second = reconcile(kernel, tree, last=first)

    assert steps_of(second) == [("write", "/r/podx/c", "memory.max")]
    assert second.repairs == ()


def test_below_a_cgroup_that_cannot_be_made_nothing_is_tried_and_the_rest_is_done():
    kernel, tree = Kernel(), small_tree(memory__max="4096")
    beside = cgroup("/r/pody", Kind.POD, pids__max="20")
    kernel.refuse = refuse_on("create", "/r/podx")

    report = reconcile(kernel, tree._replace(cgroups=(*tree.cgroups, beside)))

    assert len(report.failures) == 1
    assert {step.path for step in report.skipped} == {"/r/podx", "/r/podx/c"}
    assert set(kernel.cgroups) == {"/r", "/r/pody"}
    assert kernel.cgroups["/r/pody"] == {"pids.max": "20"}


def test_a_cgroup_that_vanishes_on_the_way_is_made_on_the_next_pass():
    kernel, tree = Kernel(), small_tree(memory__max="4096", memory__min="4096", cpu__weight="7")
    reconcile(kernel, small_tree(memory__max="8192"))

    def vanish(action: str, path: str, file: str) -> None:
        if path == "/r/podx/c":
            kernel.cgroups.pop(path, None)

    kernel.refuse = vanish
    report = reconcile(kernel, tree)
    assert [error.reason for error in report.failures] == ["ENOENT"], "one error for one cgroup"
    assert len(report.skipped) == 2

    kernel.refuse = lambda *asked: None
    assert ("create", "/r/podx/c", "") in steps_of(reconcile(kernel, tree, last=report))
    assert reconcile(kernel, tree).done == ()


@pytest.mark.parametrize(
    ("refused", "tied"),
    [
        ("cpu.max", "cpu.max.burst"),
        ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"),
        ("cpu.cfs_quota_us", "cpu.cfs_burst_us"),
    ],
)
def test_what_the_kernel_ties_to_a_refused_file_is_left_alone(refused: str, tied: str):
    kernel = Kernel(Version.V1 if "_" in refused else Version.V2)
    files = {refused.replace(".", "__"): "4096", tied.replace(".", "__"): "4096", "pids__max": "5"}
    tree = small_tree(**files)._replace(version=kernel.version)
    kernel.refuse = refuse_on("write", "/r/podx/c", refused)

    report = reconcile(kernel, tree)

    assert [step.setting.file for step in report.skipped if step.setting] == [tied]
    assert kernel.cgroups["/r/podx/c"] == {"pids.max": "5"}


@pytest.mark.req("A23")
def test_cores_that_one_container_did_not_let_go_are_not_given_to_another():
    kernel = Kernel()

    def tree(first: str, second: str) -> Tree:
        cgroups = (
            cgroup("/r", Kind.ROOT),
            cgroup("/r/podx", Kind.POD),
            cgroup("/r/podx/a", Kind.CONTAINER, cpuset__cpus=first),
            cgroup("/r/podx/b", Kind.CONTAINER, cpuset__cpus=second),
        )
        return Tree(Version.V2, Naming.CGROUPFS, cgroups)

    reconcile(kernel, tree("0-2", "3"))
    kernel.refuse = refuse_on("write", "/r/podx/a", "cpuset.cpus")

    report = reconcile(kernel, tree("0-1", "2-3"))

    assert [step.path for step in report.skipped] == ["/r/podx/b"]
    assert kernel.cgroups["/r/podx/b"]["cpuset.cpus"] == "3"


def test_a_pod_that_cannot_be_removed_is_reported_and_does_not_hold_up_the_others():
    kernel = Kernel()
    kernel.cgroups = {path: {} for path in ("/r", "/r/podx", "/r/podx/c", "/r/pody", "/r/podz")}
    kernel.refuse = refuse_on("remove", "/r/pody")

    report = reconcile(kernel, small_tree(memory__max="4096"))

    assert [error.path for error in report.failures] == ["/r/pody"]
    assert "/r/podz" not in kernel.cgroups
    assert kernel.cgroups["/r/podx/c"]["memory.max"] == "4096"


def test_a_kernel_that_cannot_be_read_is_one_failure():
    class Unreadable(Kernel):
        def observe(self, tree: Tree) -> Mapping[str, Mapping[str, str]]:
            raise CgroupError("cannot read it", path="/r")

    report = reconcile(Unreadable(), small_tree())
    assert [str(error) for error in report.failures] == ["cannot read it"]
    assert report.done == ()


class UnreadableCgroup(Kernel):
    """A kernel in which one cgroup cannot be read, as one whose place is taken by a file."""

    unreadable = "/r/podx"

    def observe(self, tree: Tree) -> Mapping[str, Mapping[str, str]]:
        self._refuse(tree.cgroups)
        return super().observe(tree)

    def observe_only(self, cgroups: Sequence[Cgroup]) -> Mapping[str, Mapping[str, str]]:
        self._refuse(cgroups)
        return super().observe_only(cgroups)

    def _refuse(self, cgroups: Sequence[Cgroup]) -> None:
        if any(cgroup.path == self.unreadable for cgroup in cgroups):
            raise CgroupError("it is no directory", path=self.unreadable, reason="ENOTDIR")


def two_pods(limit: str) -> Tree:
    files = {"memory.max": limit}
    return Tree(
        Version.V2,
        Naming.CGROUPFS,
        (
            cgroup("/r", Kind.ROOT),
            cgroup("/r/podx", Kind.POD, **files),
            cgroup("/r/podx/c", Kind.CONTAINER, **files),
            cgroup("/r/pody", Kind.POD, **files),
            cgroup("/r/pody/c", Kind.CONTAINER, **files),
        ),
    )


def test_a_pod_that_cannot_be_read_keeps_no_other_from_being_reconciled():
    kernel = UnreadableCgroup()
    report = reconcile(kernel, two_pods("4096"))
    assert [error.path for error in report.failures] == ["/r/podx"]
    assert {"/r", "/r/pody", "/r/pody/c"} == kernel.cgroups.keys()
    changed = reconcile_changed(kernel, two_pods("4096"), two_pods("8192"), last=report)
    assert [error.path for error in changed.failures] == ["/r/podx"]
    assert kernel.cgroups["/r/pody/c"]["memory.max"] == "8192"
    assert changed.repairs == ()


def test_a_pod_that_can_be_read_again_is_made_and_that_is_not_called_drift():
    kernel = UnreadableCgroup()
    report = reconcile(kernel, two_pods("4096"))
    kernel.unreadable = "/nowhere"
    report = reconcile(kernel, two_pods("4096"), last=report)
    assert not report.failures
    assert not report.repairs
    assert "/r/podx/c" in kernel.cgroups


def test_a_pod_that_cannot_be_read_is_not_removed_with_what_is_in_it():
    kernel = UnreadableCgroup()
    kernel.unreadable = "/nowhere"
    reconcile(kernel, two_pods("4096"))
    kernel.unreadable = "/r/podx/c"
    report = reconcile(kernel, two_pods("4096"))
    assert [error.path for error in report.failures] == ["/r/podx/c"]
    assert "/r/podx/c" in kernel.cgroups
    assert not report.done


def absent(file: str) -> NotAvailable:
    return NotAvailable(f"{file} is not there", path="/r", file=file, hint="too old")


def test_a_file_the_kernel_does_not_have_is_reported_once_unless_its_default_is_wanted():
    kernel = Kernel()
    kernel.absent = {"cpu.max.burst": absent("cpu.max.burst"), "memory.high": absent("memory.high")}
    tree = small_tree(cpu__max__burst="500", memory__high="max", memory__max="4096")
    more = cgroup("/r/podx/d", Kind.CONTAINER, cpu__max__burst="500", memory__high="max")
    tree = tree._replace(cgroups=(*tree.cgroups, more))

    first = reconcile(kernel, tree)
    second = reconcile(kernel, tree, last=first)

    for report in (first, second):
        assert report.failures == ()
        assert [(one.file, one.paths) for one in report.unavailable] == [
            ("cpu.max.burst", ("/r/podx/c", "/r/podx/d"))
        ]
        assert report.unavailable[0].message == "cpu.max.burst is not available on this kernel: too old"
    assert second.done == ()
    assert kernel.cgroups["/r/podx/c"] == {"memory.max": "4096"}


def test_a_file_that_turns_out_missing_when_it_is_written_is_reported_the_same_way():
    kernel, tree = Kernel(), small_tree(cpu__max__burst="500", memory__max="4096")
    kernel.refuse = refuse_on("write", "/r/podx/c", "cpu.max.burst", absent("cpu.max.burst"))
    report = reconcile(kernel, tree)
    assert report.failures == ()
    assert [one.file for one in report.unavailable] == ["cpu.max.burst"]
    assert kernel.cgroups["/r/podx/c"] == {"memory.max": "4096"}


@pytest.mark.req("E7")
def test_a_missing_controller_is_one_failure_however_many_files_it_has():
    kernel = Kernel()
    for file in ("memory.max", "memory.min"):
        kernel.absent[file] = MissingController("no memory", path="/r", file=file, controller="memory")
    report = reconcile(kernel, small_tree(memory__max="4096", memory__min="4096", cpu__weight="7"))
    assert [str(error) for error in report.failures] == ["no memory"]
    assert kernel.cgroups["/r/podx/c"] == {"cpu.weight": "7"}


def test_a_controller_that_one_cgroup_does_not_hand_on_is_one_failure_for_all_below_it():
    kernel, tree = Kernel(), small_tree(memory__max="4096", memory__min="4096", cpu__weight="7")
    elsewhere = cgroup("/r/pody", Kind.POD, memory__min="4096")
    lost = MissingController(
        "not handed on", path="/r/podx/c", file="memory.max", controller="memory", where="/r/podx"
    )
    kernel.refuse = lambda action, path, file: (
        lost if path == "/r/podx/c" and file.startswith("memory.") else None
    )

    report = reconcile(kernel, tree._replace(cgroups=(*tree.cgroups, elsewhere)))

    assert report.failures == (lost,)
    assert len(report.skipped) == 1
    assert kernel.cgroups["/r/podx/c"] == {"cpu.weight": "7"}
    assert kernel.cgroups["/r/pody"] == {"memory.min": "4096"}


def test_a_survey_is_not_repeated_while_nothing_changes():
    kernel, tree = Kernel(), small_tree(memory__max="4096")
    first = survey(kernel, tree)
    assert survey(kernel, tree, last=first) is first
    assert survey(kernel, tree, ("/r/podx",), last=first) is not first
    kernel.create("/r")
    assert survey(kernel, tree, last=first) is not first


def test_a_file_the_kernel_lacks_is_known_after_a_pass_that_could_not_read():
    class OnceUnreadable(Kernel):
        broken = True

        def observe(self, tree: Tree) -> Mapping[str, Mapping[str, str]]:
            if self.broken:
                raise CgroupError("cannot read it", path="/r")
            return super().observe(tree)

    kernel, tree = OnceUnreadable(), small_tree(cpu__max__burst="500")
    kernel.absent = {"cpu.max.burst": absent("cpu.max.burst")}
    first = reconcile(kernel, tree)
    kernel.broken = False

    second = reconcile(kernel, tree, last=first)

    assert [one.file for one in second.unavailable] == ["cpu.max.burst"]
    assert second.repairs == (), "of what could not be read nobody knows who changed it"


def test_a_plan_that_the_kernel_supports_is_left_as_it_is():
    tree = small_tree(memory__max="4096")
    fitted = supported_part(tree, lambda file: None)
    assert fitted.tree is tree
    assert supported_part(tree, lambda file: None, fitted) is fitted


def changed_tree(tree: Tree, *more: Cgroup, without: str = "") -> Tree:
    kept = tuple(one for one in tree.cgroups if not (without and f"{one.path}/".startswith(f"{without}/")))
    return tree._replace(cgroups=(*kept, *more))


def test_a_change_touches_only_the_cgroups_that_differ():
    kernel, before = Kernel(), small_tree(memory__max="4096")
    first = reconcile(kernel, before)
    kernel.cgroups["/r/podx/c"]["memory.max"] = "max"
    kernel.cgroups["/r/stranger"] = {}
    after = changed_tree(
        before, cgroup("/r/pody", Kind.POD, pids__max="20"), cgroup("/r/pody/c", Kind.CONTAINER)
    )

    report = reconcile_changed(kernel, before, after, last=first)

    assert steps_of(report) == [
        ("create", "/r/pody", ""),
        ("write", "/r/pody", "pids.max"),
        ("create", "/r/pody/c", ""),
    ]
    assert report.tree == after
    healed = reconcile(kernel, after, last=report)
    assert {(one.path, one.file) for one in healed.repairs} == {
        ("/r/stranger", ""),
        ("/r/podx/c", "memory.max"),
    }
    assert reconcile(kernel, after, last=healed).done == ()


def test_a_change_removes_what_is_only_in_the_plan_before():
    kernel, before = Kernel(), small_tree(memory__max="4096")
    reserved = cgroup("/daemons", Kind.RESERVED, memory__max="8192")
    kernel.cgroups["/daemons"] = {}
    reconcile(kernel, changed_tree(before, reserved))

    report = reconcile_changed(
        kernel, changed_tree(before, reserved), changed_tree(before, without="/r/podx")
    )

    assert steps_of(report) == [("remove", "/r/podx", "")]
    assert set(kernel.cgroups) == {"/r", "/daemons"}


@pytest.mark.req("E9")
def test_a_change_leaves_alone_what_is_hands_off():
    kernel, before = Kernel(), small_tree(memory__max="4096")
    reconcile(kernel, before)
    after = changed_tree(small_tree(memory__max="8192"), without="/r/podx/c")
    assert reconcile_changed(kernel, before, after, ("/r/podx/c",)).done == ()
    other = small_tree(memory__max="8192")
    assert reconcile_changed(kernel, before, other, ("/r/podx",)).done == ()


def test_a_change_writes_only_what_the_kernel_does_not_have_already():
    kernel, before, after = Kernel(), small_tree(memory__max="4096"), small_tree(memory__max="8192")
    first = reconcile(kernel, before)
    kernel.cgroups["/r/podx/c"]["memory.max"] = "8192"
    report = reconcile_changed(kernel, before, after, last=first)
    assert (report.done, report.repairs) == ((), ())
    assert reconcile_changed(kernel, after, after).done == ()


def test_a_cgroup_that_a_change_finds_missing_is_made_again_and_reported():
    kernel, before, after = Kernel(), small_tree(memory__max="4096"), small_tree(memory__max="8192")
    first = reconcile(kernel, before)
    del kernel.cgroups["/r/podx/c"]
    report = reconcile_changed(kernel, before, after, last=first)
    assert [(one.path, one.found) for one in report.repairs] == [("/r/podx/c", "removed by others")]
    assert kernel.cgroups["/r/podx/c"]["memory.max"] == "8192"


def test_what_an_earlier_pass_could_not_do_is_not_called_drift_after_a_change_elsewhere():
    kernel, before = Kernel(), small_tree(memory__max="4096")
    kernel.refuse = refuse_on("write", "/r/podx/c", "memory.max")
    first = reconcile(kernel, before)
    after = changed_tree(before, cgroup("/r/pody", Kind.POD, pids__max="20"))
    second = reconcile_changed(kernel, before, after, last=first)
    assert second.failures == ()
    kernel.refuse = lambda *asked: None

    third = reconcile(kernel, after, last=second)

    assert steps_of(third) == [("write", "/r/podx/c", "memory.max")]
    assert third.repairs == ()


def test_what_a_change_could_not_do_is_done_by_the_next_pass_and_not_called_drift():
    kernel, before, after = Kernel(), small_tree(memory__max="4096"), small_tree(memory__max="8192")
    kernel.absent = {"cpu.max.burst": absent("cpu.max.burst")}
    first = reconcile(kernel, before)
    kernel.refuse = refuse_on("write", "/r/podx/c", "memory.max")
    second = reconcile_changed(kernel, before, after, last=first)
    assert [str(error) for error in second.failures] == ["no"]
    kernel.refuse = lambda *asked: None

    third = reconcile(kernel, after, last=second)

    assert steps_of(third) == [("write", "/r/podx/c", "memory.max")]
    assert third.repairs == ()


@given(nodes, st.lists(planned_pods(), min_size=1, max_size=4), st.sampled_from(list(Version)))
def test_any_sequence_of_changes_ends_as_whole_passes_would(node, sequence, version: Version):
    kernel, planner = Kernel(version), Planner(node, version)
    before = planner.tree([])
    last = reconcile(kernel, before)
    for pods in sequence:
        after = planner.tree(pods)
        last = reconcile_changed(kernel, before, after, last=last)
        assert (last.failures, last.repairs) == ((), ())
        assert reconcile(kernel, after).done == ()
        before = after


@given(st.lists(st.tuples(nodes, planned_pods()), min_size=1, max_size=4), st.sampled_from(list(Version)))
def test_after_any_sequence_of_plans_the_kernel_is_as_the_last_one_says(plans, version: Version):
    kernel = Kernel(version)
    last: Report | None = None
    for node, pods in plans:
        tree = plan(node, pods, version)
        last = reconcile(kernel, tree, last=last)
        assert last.failures == ()
        assert not any(step.action == Action.REMOVE and step.path in paths(tree) for step in last.done)
        assert reconcile(kernel, tree).done == ()
        for one in tree.cgroups:
            for file, value, _, _ in one.settings if one.path in kernel.cgroups else ():
                held = kernel.cgroups[one.path].get(file, default_value(file, version) or "")
                assert same_value(file, value, held)


def paths(tree: Tree) -> set[str]:
    return {one.path for one in tree.cgroups}


def test_a_part_of_a_pass_knows_what_the_kernel_lacks_elsewhere():
    kernel = Kernel()
    kernel.absent["memory.high"] = NotAvailable("no memory.high", path="/r", file="memory.high")
    before = small_tree(memory__max="4096", memory__high="2048")
    first = reconcile(kernel, before)
    (lacking,) = first.unavailable
    assert lacking.paths == ("/r/podx/c",)

    other = cgroup("/r/pody", Kind.POD, pids__max="10")
    after = before._replace(cgroups=(*before.cgroups, other))
    report = reconcile_changed(kernel, before, after, last=first)
    assert report.unavailable == first.unavailable

    gone = after._replace(cgroups=tuple(one for one in after.cgroups if "podx" not in one.path))
    assert reconcile_changed(kernel, after, gone, last=report).unavailable == ()
