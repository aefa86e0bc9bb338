"""The view of the node (docs/api.md) for a terminal: capacity as bars, pressure, the cgroup tree, and the last
events."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from evenkeel.cli.bars import Bounds, Shares, Signs, capacity_bar, use_bar
from evenkeel.cli.output import CLASS_COLOURS, Paint, clipped, printable
from evenkeel.named_tuples import NamedTuple
from evenkeel.policy.amounts import bytes_text, cores_text

Json = dict[str, Any]
RESOURCES = {"memory": "memory", "cpu": "cpu", "storage": "ephemeral-storage"}
_BAR_COLUMNS = (16, 72)  # at least, at most
_SHOWN_REASONS = ("Evicted", "OOMKilling")
_MOST_EVENTS = 3
_ROWS_AT_LEAST = 3
_CLASS, _STATUS = 1, 2
_BARS = {4: "memory", 8: "cpu"}
_SHORTEST_BAR, _LONGEST_BAR = 5, 24
_HEADS = ("NAME", "CLASS", "STATUS", "MEMORY", "", "REQUEST", "LIMIT", "CPU", "", "REQUEST", "LIMIT")


class Layout(NamedTuple):
    """The size of the terminal, and what is shown."""

    columns: int
    rows: int
    paint: Paint
    signs: Signs
    has_pods: bool = True
    has_containers: bool = False
    namespace: str = ""  # empty: all namespaces
    names: Sequence[str] = ()


def view_lines(view: Json, layout: Layout) -> list[str]:
    """The lines, cut to the size of the terminal."""
    top = [_title(view, layout), *_capacity(view, layout), *_pressure(view, layout)]
    events = list(_events(view, layout))
    if not layout.has_pods:
        lines = [*top, *events]
        return [clipped(line, layout.columns) for line in lines[: layout.rows]]
    tree = list(_tree(view, layout))
    room = max(layout.rows - len(top) - len(events) - 1, _ROWS_AT_LEAST)
    if len(tree) > room:
        hidden = len(tree) - room + 1
        tree = [*tree[: room - 1], layout.paint("dim", f"and {hidden} more: evenkeel top --once lists all")]
    return [clipped(line, layout.columns) for line in (*top, "", *tree, *events)][: layout.rows]


def amount(resource: str, value: float | None) -> str:
    """The amount in short form; `-` for none."""
    if value is None:
        return "-"
    if resource == "cpu":
        return f"{round(value)}m" if value < 1000 or value % 1000 else cores_text(round(value))
    whole = int(value)
    return bytes_text(whole >> 20 << 20) if whole >= 1 << 20 else bytes_text(whole)


def _title(view: Json, layout: Layout) -> str:
    at = time.strftime("%H:%M:%S", time.localtime(view["at"]))
    running = sum(pod["phase"] == "Running" for pod in view["pods"])
    pods = f"{running} of {len(view['pods'])} pods running"
    words = f"{pods}, cgroup {view['cgroupVersion']}, {view['profile']} profile"
    return f"{layout.paint('bold', printable(view['node']))}  {layout.paint('dim', f'{at}  {words}')}"


def _capacity(view: Json, layout: Layout) -> Iterator[str]:
    by_class = _used_by_class(view)
    rows = []
    for title, name in RESOURCES.items():
        now = view["resources"].get(name)
        if not now or not now["capacity"]:
            continue
        whole, free = now["capacity"], now["allocatable"]
        pods = now.get("usedByPods")
        used = now.get("used", pods)
        rest = max((used or 0) - (pods or 0), 0)
        parts = by_class.get(name, [("cyan", pods or 0)])
        shares = Shares(whole, parts, now["requested"], whole - free, rest)
        figures = (
            f"{amount(name, used)} of {amount(name, whole)}",
            f"pods {amount(name, pods)}",
            f"requested {amount(name, now['requested'])}",
            f"allocatable {amount(name, free)}",
            f"reserved {amount(name, whole - free)}",
        )
        rows.append((title, shares, figures))
    widths = [max(len(row[2][column]) for row in rows) for column in range(5)] if rows else []
    width = min(max(layout.columns - sum(widths) - 20, _BAR_COLUMNS[0]), _BAR_COLUMNS[1])
    for title, shares, figures in rows:
        bar = capacity_bar(shares, width, layout.paint, layout.signs)
        words = "  ".join(figure.ljust(size) for figure, size in zip(figures, widths, strict=True))
        yield f"{title:<8}{bar}  {words}".rstrip()


def _used_by_class(view: Json) -> dict[str, list[tuple[str, float]]]:
    """The use of memory and cpu by class. Storage has no such figures."""
    found = {name: dict.fromkeys(CLASS_COLOURS, 0.0) for name in ("memory", "cpu")}
    for cgroup in view["cgroups"]:
        if cgroup["kind"] == "pod" and cgroup["qosClass"] in CLASS_COLOURS:
            for name, used in used_of(cgroup).items():
                found[name][cgroup["qosClass"]] += used or 0
    return {
        name: [(CLASS_COLOURS[qos], used) for qos, used in parts.items()] for name, parts in found.items()
    }


def used_of(cgroup: Json) -> dict[str, float | None]:
    figures = cgroup.get("figures") or {}
    return {"memory": figures.get("workingSetBytes"), "cpu": figures.get("cpuMillicores")}


def _pressure(view: Json, layout: Layout) -> Iterator[str]:
    pressure = view["pressure"]
    words = []
    for condition in pressure.get("conditions") or ():
        is_fine = (condition["status"] == "True") == condition["type"].endswith("Ready")
        if not is_fine:
            is_missing = condition["type"].endswith("Ready")
            words.append(layout.paint("red", f"{'not ' if is_missing else ''}{condition['type']}"))
    words = words or [layout.paint("green", "no pressure")]
    stalls = pressure.get("stalls") or {}
    for title, name in (("memory", "memory"), ("cpu", "cpu"), ("disk", "io")):
        some = ((stalls.get(name) or {}).get("some") or {}).get("avg10")
        if some is not None:
            words.append(f"{title} {layout.paint(_alarm(some, 5, 20), f'{some:.1f}%')}")
    if len(words) > 1:
        words[1] = f"waiting for {words[1]}"
    yield f"{'pressure':<9} {'  '.join(words)}"
    crossed = [one for one in pressure.get("thresholds") or () if one.get("isCrossed")]
    for one in crossed:
        yield layout.paint("red", f"{'':<9} {one['signal']} is below {one['threshold']}")


def _alarm(value: float, warn: float, bad: float) -> str:
    return "red" if value >= bad else "yellow" if value >= warn else "green"


def _events(view: Json, layout: Layout) -> Iterator[str]:
    notable = [one for one in view["happenings"] if one["reason"] in _SHOWN_REASONS]
    if notable:
        yield ""
    for one in notable[-_MOST_EVENTS:]:
        at = time.strftime("%H:%M:%S", time.localtime(one["at"]))
        subject = layout.paint("bold", printable(one.get("pod", "node")))
        yield f"{layout.paint('dim', at)} {layout.paint('red', one['reason'])} {subject} {printable(one['message'])}"


def _tree(view: Json, layout: Layout) -> Iterator[str]:
    below = _children(view, layout)
    pods = {pod["pod"]: pod for pod in view["pods"]}
    rows = list(_rows("", "", below, pods, layout))
    table = [_HEADS, *(cells for cells, _ in rows)]
    widths = [max(len(cells[column]) for cells in table) for column in range(len(_HEADS))]
    columns, bar = _fitted(widths, layout.columns)
    for column in _BARS:
        widths[column] = bar

    def line(cells: Sequence[str]) -> str:
        return "  ".join(cells[column] for column in columns).rstrip()

    yield layout.paint("bold", line([head.ljust(size) for head, size in zip(_HEADS, widths, strict=True)]))
    for cells, cgroup in rows:
        padded = [cell.ljust(size) for cell, size in zip(cells, widths, strict=True)]
        colour = CLASS_COLOURS.get(cgroup["qosClass"], "cyan")
        padded[_CLASS] = layout.paint(colour, padded[_CLASS])
        if _is_bad(cells[_STATUS]):
            padded[_STATUS] = layout.paint("red", padded[_STATUS])
        for column, name in _BARS.items():
            bounds = _bounds(cgroup, name, view["resources"])
            padded[column] = use_bar(bounds, bar, colour, layout.paint, layout.signs)
        yield line(padded)


def _fitted(widths: Sequence[int], room: int) -> tuple[list[int], int]:
    """The columns that fit, and the length of the bars. A narrow terminal shows no bars, a very narrow one no class
    either: the tree shows the class, too."""
    text = sum(widths) + 2 * (len(widths) - 1)
    bar = min((room - 1 - text) // len(_BARS), _LONGEST_BAR)
    if bar >= _SHORTEST_BAR:
        return list(range(len(widths))), bar
    without = {*_BARS, *((_CLASS,) if text - 2 * len(_BARS) >= room else ())}
    return [column for column in range(len(widths)) if column not in without], 0


def _children(view: Json, layout: Layout) -> dict[str, list[Json]]:
    """The visible cgroups by their parents. The one with the highest memory use comes first."""
    shown = [one for one in view["cgroups"] if _is_shown(one, layout)]
    branches = {one["qosClass"]: one["path"] for one in shown if one["kind"] == "branch"}
    root = next((one["path"] for one in shown if one["kind"] == "root"), "")
    for pod in view["pods"]:
        if not pod["path"] and _is_wanted(pod["pod"], layout):
            parent = branches.get(pod["qosClass"], root)
            shown.append({**pod, "path": pod["uid"], "parent": parent, "kind": "pod", "name": pod["pod"]})
    paths = {one["path"] for one in shown}
    below: dict[str, list[Json]] = {}
    for one in shown:
        below.setdefault(one["parent"] if one["parent"] in paths else "", []).append(one)
    for here in below.values():
        here.sort(key=lambda one: (one["kind"] == "branch", -(used_of(one)["memory"] or 0), one["name"]))
    return below


def _is_shown(cgroup: Json, layout: Layout) -> bool:
    if cgroup["kind"] in ("ancestor", "infrastructure"):
        return False
    if cgroup["kind"] == "container" and not layout.has_containers:
        return False
    return not cgroup.get("pod") or _is_wanted(cgroup["pod"], layout)


def _is_wanted(pod: str, layout: Layout) -> bool:
    namespace, _, name = pod.partition("/")
    return layout.namespace in ("", namespace) and (not layout.names or name in layout.names)


def _rows(
    path: str,
    stem: str,
    below: Mapping[str, list[Json]],
    pods: Mapping[str, Json],
    layout: Layout,
) -> Iterator[tuple[tuple[str, ...], Json]]:
    branch, last, beside, beneath = layout.signs.stems
    here = below.get(path, [])
    for index, cgroup in enumerate(here):
        is_last = index == len(here) - 1
        first = "" if not path else stem + (last if is_last else branch)
        yield _row(first, cgroup, pods), cgroup
        deeper = "" if not path else stem + (beneath if is_last else beside)
        yield from _rows(cgroup["path"], deeper, below, pods, layout)


def _row(stem: str, cgroup: Json, pods: Mapping[str, Json]) -> tuple[str, ...]:
    name = cgroup["name"].removeprefix("default/")
    qos = cgroup["qosClass"] if cgroup["kind"] in ("pod", "container", "branch") else ""
    pod = pods.get(cgroup.get("pod", "")) if cgroup["kind"] == "pod" else None
    used = used_of(cgroup)
    cells = [f"{stem}{printable(name)}", qos, status_word(pod) if pod else ""]
    for resource in ("memory", "cpu"):
        asked, bound = (cgroup.get(field, {}).get(resource) or None for field in ("requests", "limits"))
        cells += [amount(resource, used[resource]), "", amount(resource, asked), amount(resource, bound)]
    return tuple(cells)


def status_word(pod: Json) -> str:
    if pod["isEnding"]:
        return "Terminating"
    word: str = pod["reason"] or pod["phase"] or "Pending"
    return (
        f"{pod['ready']}/{pod['containers']} ready"
        if word == "Running" and pod["ready"] < pod["containers"]
        else word
    )


def _is_bad(status: str) -> bool:
    return any(word in status for word in ("Error", "BackOff", "OOM", "Evicted", "Failed"))


def _bounds(cgroup: Json, name: str, node: Json) -> Bounds:
    return Bounds(
        used_of(cgroup)[name],
        cgroup.get("requests", {}).get(name) or 0,
        cgroup.get("limits", {}).get(name) or 0,
        node.get(name, {}).get("allocatable", 0),
    )
