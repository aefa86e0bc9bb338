// The cgroup tree as a treegrid: a row for each cgroup. Rows are updated in place. The keyboard moves and folds.

import { $, attr, keyed, make, text } from "./dom.js";
import { makeUse, showUse } from "./use.js";

const MANY_PODS = 40; // with more pods than that, containers are folded
const NARROW = matchMedia("(max-width: 900px)");
const NOTES = { root: "all pods", reserved: "reserved for daemons" };
const BAD = /Error|BackOff|OOM|Evicted|Failed|Invalid|Refused/;

export class Tree {
  #chosen = new Map(); // path → whether the user has folded it
  #below = new Map();
  #shown = [];
  #view = null;
  #current = ""; // the path of the row that Tab goes to
  #isFolded = false;
  #isLong = false;

  constructor(open) {
    this.open = open;
    const redraw = () => this.#view && this.show(this.#view);
    $("find").addEventListener("input", redraw);
    $("order").addEventListener("change", redraw);
    $("fold").addEventListener("click", () => {
      this.#isFolded = !this.#isFolded;
      this.#chosen.clear();
      for (const one of this.#view?.cgroups ?? []) if (one.kind === "pod") this.#chosen.set(one.path, this.#isFolded);
      redraw();
    });
    $("rows").addEventListener("keydown", (event) => this.#key(event));
    $("rows").addEventListener("click", (event) => this.#click(event));
    $("rows").addEventListener("focusin", (event) => this.#focused(event.target.closest("[role=row]")));
  }

  show(view) {
    this.#view = view;
    this.#index(view);
    const wanted = $("find").value.trim().toLowerCase();
    const found = [];
    this.#walk("", 1, wanted, found);
    this.#shown = found;
    if (!found.some((one) => one.cgroup.path === this.#current)) this.#current = found[0]?.cgroup.path ?? "";
    const rows = $("rows");
    const hadFocus = rows.contains(document.activeElement);
    keyed(rows, found, (one) => one.cgroup.path, create, (row, one) => this.#update(row, one));
    if (hadFocus && !rows.contains(document.activeElement)) this.#row(this.#current)?.focus();
    this.#words(view, wanted);
  }

  #words(view, wanted) {
    const pods = view.cgroups.filter((one) => one.kind === "pod");
    const seen = this.#shown.filter((one) => one.cgroup.kind === "pod").length;
    const running = pods.filter((one) => one.isRunning).length;
    text($("pod-count"), wanted ? `${seen} of ${pods.length}` : `${running} running of ${pods.length}`);
    $("no-pods").hidden = this.#shown.some((one) => one.cgroup.kind === "pod");
    const none = "No pods yet: evenkeel apply -f pod.yaml hands one in.";
    text($("no-pods"), wanted ? `No pod matches “${wanted}”.` : none);
    const isAllFolded = pods.length > 0 && pods.every((one) => this.#folds(one));
    this.#isFolded = isAllFolded;
    text($("fold"), isAllFolded ? "Unfold pods" : "Fold pods");
  }

  #index(view) {
    this.#below.clear();
    this.#isLong = view.cgroups.filter((one) => one.kind === "pod").length > MANY_PODS;
    const paths = new Set(view.cgroups.map((one) => one.path));
    for (const one of view.cgroups) {
      const parent = paths.has(one.parent) ? one.parent : "";
      if (!this.#below.has(parent)) this.#below.set(parent, []);
      this.#below.get(parent).push(one);
    }
  }

  /** Adds the visible rows below `path` to `found`. */
  #walk(path, level, wanted, found) {
    const here = this.#ordered(this.#below.get(path) ?? []);
    here.forEach((cgroup, index) => {
      const below = this.#below.get(cgroup.path) ?? [];
      const start = found.length;
      const folded = wanted ? cgroup.kind === "pod" : this.#folds(cgroup);
      found.push({ cgroup, level, place: index + 1, of: here.length, folded: below.length ? folded : null });
      if (!folded) this.#walk(cgroup.path, level + 1, wanted, found);
      if (wanted && found.length === start + 1 && !this.#matches(cgroup, wanted)) found.pop();
    });
  }

  #matches(cgroup, wanted) {
    if (cgroup.kind !== "pod") return false;
    const containers = (this.#below.get(cgroup.path) ?? []).map((one) => one.name);
    return [cgroup.pod, cgroup.qosClass, cgroup.status, ...containers].join(" ").toLowerCase().includes(wanted);
  }

  #ordered(cgroups) {
    const order = $("order").value;
    if (order === "tree" || cgroups.some((one) => one.kind === "branch")) return cgroups;
    if (order === "name") return [...cgroups].sort((one, other) => nameOf(one).localeCompare(nameOf(other)));
    return [...cgroups].sort((one, other) => (other[order]?.used ?? -1) - (one[order]?.used ?? -1));
  }

  #folds(cgroup) {
    const chosen = this.#chosen.get(cgroup.path);
    if (chosen !== undefined) return chosen;
    if (cgroup.kind !== "pod") return false;
    return (this.#below.get(cgroup.path)?.length ?? 0) < 2 || this.#isLong || NARROW.matches;
  }

  #update(row, shown) {
    const { cgroup } = shown;
    row.cgroup = cgroup;
    const { level, place, of, folded } = shown;
    const isCurrent = cgroup.path === this.#current;
    const still = [level, place, of, folded, isCurrent, cgroup.status, cgroup.restarts, cgroup.qosClass].join(" ");
    if (row.still !== still) {
      row.still = still;
      this.#static(row, shown);
    }
    const [, , , memory, cpu] = row.children;
    const node = this.#view.resources;
    showUse(memory, "memory", cgroup.memory, node.memory?.allocatable);
    showUse(cpu, "cpu", cgroup.cpu, node.cpu?.allocatable);
  }

  /** Everything but the figures. */
  #static(row, { cgroup, level, place, of, folded }) {
    attr(row, "aria-level", level);
    attr(row, "aria-posinset", place);
    attr(row, "aria-setsize", of);
    attr(row, "aria-expanded", folded === null ? null : String(!folded));
    attr(row, "data-kind", cgroup.kind);
    attr(row, "data-class", cgroup.qosClass || "none");
    attr(row, "tabindex", cgroup.path === this.#current ? 0 : -1);
    const [name, qos, status, , , restarts] = row.children;
    name.style.setProperty("--level", level);
    text(name.children[0], folded === null ? "" : folded ? "▸" : "▾");
    text(name.children[1], nameOf(cgroup));
    text(name.children[2], noteOf(cgroup));
    const isNamed = cgroup.kind === "pod" || cgroup.kind === "branch";
    text(qos, isNamed ? cgroup.qosClass || "" : cgroup.kind === "container" ? classesOf(cgroup) : "");
    text(status, statusOf(cgroup));
    attr(status, "data-state", BAD.test(cgroup.status ?? "") ? "bad" : null);
    text(restarts, cgroup.restarts ? cgroup.restarts : "");
    attr(restarts, "aria-label", cgroup.restarts ? null : "none");
    // A screen reader says this at the row; the figures are in its cells. A row out of sight has no layout, and would
    // have no name of its own.
    const label = [nameOf(cgroup), noteOf(cgroup), qos.textContent, status.textContent];
    attr(row, "aria-label", label.filter(Boolean).join(", "));
  }

  #row(path) {
    return [...$("rows").children].find((row) => row.cgroup.path === path);
  }

  #focused(row) {
    if (!row?.cgroup || row.cgroup.path === this.#current) return;
    const before = this.#row(this.#current);
    if (before) attr(before, "tabindex", -1);
    this.#current = row.cgroup.path;
    attr(row, "tabindex", 0);
    for (const one of [before, row]) if (one) one.still = ""; // draw it again
  }

  #click(event) {
    const row = event.target.closest("[role=row]");
    if (!row || document.getSelection()?.type === "Range") return;
    row.focus();
    const folds = row.hasAttribute("aria-expanded") && (event.target.closest(".knob") || !row.cgroup.pod);
    if (folds) this.#fold(row.cgroup.path, row.getAttribute("aria-expanded") === "true");
    else if (row.cgroup.pod) this.open(row.cgroup.pod);
  }

  #fold(path, folded) {
    this.#chosen.set(path, folded);
    this.show(this.#view);
  }

  #key(event) {
    const row = event.target.closest("[role=row]");
    if (!row || event.altKey || event.ctrlKey || event.metaKey) return;
    const rows = [...$("rows").children];
    const at = rows.indexOf(row);
    const expanded = row.getAttribute("aria-expanded");
    const { path } = row.cgroup;
    const go = (to) => rows[Math.min(Math.max(to, 0), rows.length - 1)]?.focus();
    const keys = {
      ArrowDown: () => go(at + 1),
      ArrowUp: () => go(at - 1),
      Home: () => go(0),
      End: () => go(rows.length - 1),
      PageDown: () => go(at + 10),
      PageUp: () => go(at - 10),
      ArrowRight: () => (expanded === "false" ? this.#fold(path, false) : expanded === "true" && go(at + 1)),
      ArrowLeft: () => (expanded === "true" ? this.#fold(path, true) : this.#row(row.cgroup.parent)?.focus()),
      Enter: () => (row.cgroup.pod ? this.open(row.cgroup.pod) : this.#fold(path, expanded === "true")),
      " ": () => expanded !== null && this.#fold(path, expanded === "true"),
    };
    if (!Object.hasOwn(keys, event.key)) return;
    event.preventDefault();
    keys[event.key]();
  }
}

function create() {
  const knob = make("b.knob", { "aria-hidden": "true" });
  return make(
    "div.row",
    { role: "row" },
    make("span.name", { role: "rowheader" }, knob, make("span.title"), make("span.soft")),
    make("span.class", { role: "gridcell" }),
    make("span.status", { role: "gridcell" }),
    make("span.use", { role: "gridcell", "data-label": "memory" }, ...makeUse()),
    make("span.use", { role: "gridcell", "data-label": "cpu" }, ...makeUse()),
    make("span.restarts", { role: "gridcell" }),
  );
}

function nameOf(cgroup) {
  if (cgroup.kind === "infrastructure") return "overhead";
  return cgroup.kind === "pod" ? cgroup.pod.slice(cgroup.pod.indexOf("/") + 1) : cgroup.name;
}

function noteOf(cgroup) {
  if (cgroup.kind !== "pod") return NOTES[cgroup.kind] ?? "";
  const namespace = cgroup.pod.slice(0, cgroup.pod.indexOf("/"));
  return namespace === "default" ? "" : namespace;
}

/** A container's class may differ from its pod's, and that of its memory from that of its cpu. */
function classesOf({ memoryQosClass: memory, cpuQosClass: cpu }) {
  if (!memory || memory === cpu) return memory ?? "";
  return cpu ? `${memory}, cpu ${cpu}` : memory;
}

function statusOf(cgroup) {
  if (cgroup.kind !== "pod" && cgroup.kind !== "container") return "";
  return cgroup.status ?? "";
}
