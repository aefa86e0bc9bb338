// The dialog of a pod: its history, its requests and limits beside the applied ones (E17), and every cgroup file.
// The address names the open pod, so that it can be kept as a link and the back button closes the dialog.

import { clock, iso, moment } from "./amounts.js";
import { get } from "./channel.js";
import { $, attr, make, text } from "./dom.js";
import { makeUse, showUse } from "./use.js";

const HASH = /^#pod\/([^/]+)\/([^/]+)$/;

export class Story {
  #key = "";
  #view = null;
  #asked = 0;

  constructor() {
    const dialog = $("pod");
    $("pod-close").addEventListener("click", () => dialog.close());
    dialog.addEventListener("click", (event) => event.target === dialog && dialog.close()); // a click beside it
    dialog.addEventListener("close", () => {
      this.#key = "";
      if (HASH.test(location.hash)) history.pushState(null, "", location.pathname + location.search);
    });
    addEventListener("hashchange", () => this.#follow());
    addEventListener("popstate", () => this.#follow());
    this.#follow();
  }

  open(key) {
    location.hash = `#pod/${key.split("/").map(encodeURIComponent).join("/")}`;
  }

  /** Updates the figures of the open pod. */
  show(view) {
    const isFirst = this.#view === null;
    this.#view = view;
    if (this.#key && isFirst) this.#load(); // the address names a pod
    else if (this.#key) this.#live();
  }

  /** An event of the open pod is new in its history. */
  note(event) {
    if (this.#key && event.pod === this.#key) this.#load();
  }

  #follow() {
    const found = HASH.exec(location.hash);
    if (!found) {
      $("pod").close();
      return;
    }
    let key;
    try {
      key = `${decodeURIComponent(found[1])}/${decodeURIComponent(found[2])}`;
    } catch {
      return; // the address is malformed
    }
    if (key === this.#key) return;
    this.#key = key;
    text($("pod-title"), key);
    $("pod-body").replaceChildren(make("p.soft", {}, "Reading its history…"));
    if (!$("pod").open) $("pod").showModal();
    this.#load();
  }

  async #load() {
    const key = this.#key;
    const turn = ++this.#asked;
    const at = key.split("/").map(encodeURIComponent).join("/");
    const [story, pod] = await Promise.all([get(`why/${at}`), get(`pods/${at}`)]);
    if (key !== this.#key || turn !== this.#asked) return;
    const body = $("pod-body");
    const isOpen = body.querySelector("details")?.open ?? false;
    const cgroups = this.#view?.cgroups.filter((one) => one.pod === key) ?? [];
    body.replaceChildren(
      liveBox(),
      ...storySection(story),
      ...resourcesSection(pod),
      ...filesSection(cgroups, isOpen),
    );
    this.#live();
  }

  #live() {
    const box = $("pod-body").querySelector(".live");
    const cgroup = this.#view?.cgroups.find((one) => one.kind === "pod" && one.pod === this.#key);
    if (!box) return;
    attr(box, "hidden", !cgroup);
    if (!cgroup) return;
    attr(box, "data-class", cgroup.qosClass);
    const [qos, status, memory, cpu] = box.children;
    text(qos, cgroup.qosClass ?? "");
    text(status, cgroup.status ?? "");
    showUse(memory, "memory", cgroup.memory, this.#view.resources?.memory?.allocatable);
    showUse(cpu, "cpu", cgroup.cpu, this.#view.resources?.cpu?.allocatable);
  }
}

function liveBox() {
  return make(
    "div.live",
    {},
    make("span.class"),
    make("span.status"),
    make("span.use", {}, make("span.soft", {}, "memory "), ...makeUse()),
    make("span.use", {}, make("span.soft", {}, "cpu "), ...makeUse()),
  );
}

function storySection(story) {
  const title = make("h3", {}, "What became of it");
  if (!story) return [title, make("p.soft", {}, "The journal has no history of this pod.")];
  const chapters = (story.chapters ?? []).map((chapter) =>
    make(
      "li",
      { "data-type": chapter.type ?? "Normal", "data-reason": chapter.reason },
      make("time", { datetime: iso(chapter.at), title: moment(chapter.at) }, clock(chapter.at)),
      make("div", {}, make("p", {}, chapter.sentence ?? chapter.message ?? chapter.reason), ...stayed(chapter)),
    ),
  );
  return [title, make("ol.chapters", {}, ...chapters), make("p.end", {}, story.end ?? "")];
}

function stayed(chapter) {
  if (chapter.reason === "Spared" || !chapter.stayed?.length) return [];
  return [
    make("p.soft", {}, "Considered, but not evicted:"),
    make("ul", {}, ...chapter.stayed.map((other) => make("li", {}, other.sentence ?? ""))),
  ];
}

function resourcesSection(pod) {
  if (!pod) return [];
  const rows = [...asked("pod", pod.spec?.resources, pod.status?.resources)];
  for (const [containers, statuses] of [
    [pod.spec?.initContainers, pod.status?.initContainerStatuses],
    [pod.spec?.containers, pod.status?.containerStatuses],
  ]) {
    for (const container of containers ?? []) {
      const status = (statuses ?? []).find((one) => one.name === container.name);
      rows.push(...asked(container.name, container.resources, status?.resources));
    }
  }
  const title = make("h3", { id: "asked-title" }, "Asked for, and applied");
  if (!rows.length) return [title, make("p.soft", {}, "It asked for nothing, and nothing is promised to it.")];
  return [title, table("asked-title", ["Resource", "Asked for", "Applied"], rows)];
}

function* asked(name, wanted, applied) {
  for (const [kind, field] of [
    ["request", "requests"],
    ["limit", "limits"],
  ]) {
    const amounts = { ...wanted?.[field], ...applied?.[field] };
    for (const resource of Object.keys(amounts)) {
      const one = wanted?.[field]?.[resource] ?? "–";
      const other = applied ? (applied[field]?.[resource] ?? "–") : "not running";
      yield { cells: [`${name}: ${resource} ${kind}`, one, other], differs: Boolean(applied) && one !== other };
    }
  }
}

function filesSection(cgroups, isOpen) {
  const parts = cgroups.filter((cgroup) => cgroup.settings?.length).flatMap((cgroup, index) => {
    const rows = cgroup.settings.map((one) => ({
      cells: [one.file, one.asked, one.applied ?? "–", one.rule ? `${one.reason} (${one.rule})` : one.reason],
      differs: one.applied !== undefined && one.isApplied === false,
    }));
    const id = `files-${index}`;
    const name = cgroup.container ? `container ${cgroup.container}` : cgroup.kind;
    return [make("h4", { id }, name), table(id, ["File", "Asked for", "In the kernel", "Why"], rows)];
  });
  if (!parts.length) return [];
  return [make("details", { open: isOpen }, make("summary", {}, "Every cgroup file, with its reason"), ...parts)];
}

function table(labelledBy, heads, rows) {
  return make(
    "div.scroll",
    { tabindex: "0", role: "region", "aria-labelledby": labelledBy },
    make(
      "table",
      { "aria-labelledby": labelledBy },
      make("thead", {}, make("tr", {}, ...heads.map((head) => make("th", { scope: "col" }, head)))),
      make("tbody", {}, ...rows.map(row)),
    ),
  );
}

function row({ cells, differs }) {
  const [first, ...rest] = cells;
  const marked = (cell, index) => (differs && index === 1 ? `≠ ${cell}` : cell);
  return make(
    "tr",
    { "data-state": differs ? "differs" : null },
    make("th", { scope: "row" }, first),
    ...rest.map((cell, index) => make("td", {}, marked(cell, index))),
  );
}
