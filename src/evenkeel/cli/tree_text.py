"""The cgroup tree as text: a line a cgroup, and below it a line a file with value, rule and reason."""

from collections.abc import Iterator

from evenkeel.cgroup.tree import Cgroup, Kind, Setting, Tree
from evenkeel.cgroup.values import default_value, same_value
from evenkeel.cli.output import CLASS_COLOURS, Paint


def tree_lines(tree: Tree, paint: Paint, *, all_files: bool) -> Iterator[str]:
    """The tree, top to bottom. Files left as the kernel makes them are passed over unless `all_files`."""
    children: dict[str, list[Cgroup]] = {}
    paths = {cgroup.path for cgroup in tree.cgroups}
    for cgroup in tree.cgroups:
        parent = cgroup.path.rpartition("/")[0]
        children.setdefault(parent if parent in paths else "", []).append(cgroup)
    shown = {
        cgroup.path: [s for s in _settings(cgroup) if all_files or not _is_default(s, tree)]
        for cgroup in tree.cgroups
    }
    widths = [
        max((len(part) for settings in shown.values() for part in (s[index] for s in settings)), default=0)
        for index in range(3)
    ]
    for cgroup in children.get("", []):
        yield from _cgroup_lines(cgroup, "", "", children, shown, widths, paint)


def _cgroup_lines(
    cgroup: Cgroup,
    first: str,
    rest: str,
    children: dict[str, list[Cgroup]],
    shown: dict[str, list[Setting]],
    widths: list[int],
    paint: Paint,
) -> Iterator[str]:
    below = children.get(cgroup.path, [])
    yield paint("dim", first) + _title(cgroup, paint, is_top=not first)
    for setting in shown[cgroup.path]:
        stem = paint("dim", rest + ("│  " if below else "   "))
        file, value, rule = (setting[index].ljust(widths[index]) for index in range(3))
        yield f"{stem}{file}  {paint('bold', value)}  {paint('cyan', rule)}  {paint('dim', setting.reason)}".rstrip()
    for index, child in enumerate(below):
        is_last = index == len(below) - 1
        yield from _cgroup_lines(
            child,
            rest + ("└─ " if is_last else "├─ "),
            rest + ("   " if is_last else "│  "),
            children,
            shown,
            widths,
            paint,
        )


def _title(cgroup: Cgroup, paint: Paint, *, is_top: bool) -> str:
    name = paint("bold", cgroup.path if is_top else cgroup.path.rpartition("/")[2])
    if cgroup.kind == Kind.POD:
        return f"{name}  pod {paint('bold', cgroup.pod)}  {_class(cgroup.qos, paint)}"
    if cgroup.kind == Kind.CONTAINER:
        return f"{name}  container, memory {_class(cgroup.memory_qos, paint)}, cpu {_class(cgroup.cpu_qos, paint)}"
    notes = {
        Kind.ROOT: "all pods",
        Kind.BRANCH: f"{_class(cgroup.qos, paint)} pods",
        Kind.INFRASTRUCTURE: "the pod's own overhead",
        Kind.RESERVED: "daemons",
    }
    return f"{name}  {notes.get(cgroup.kind, '')}".rstrip()


def _class(qos: str, paint: Paint) -> str:
    return paint(CLASS_COLOURS.get(qos, "bold"), qos)


def _settings(cgroup: Cgroup) -> tuple[Setting, ...]:
    return cgroup.settings if cgroup.oom_score_adj is None else (cgroup.oom_score_adj, *cgroup.settings)


def _is_default(setting: Setting, tree: Tree) -> bool:
    default = default_value(setting.file, tree.version)
    return default is not None and same_value(setting.file, setting.value, default)
