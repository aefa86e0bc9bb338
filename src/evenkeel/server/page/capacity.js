// The capacity of the node, one bar for each resource. From the left: the use of pods, by class, over their requests.
// From the right: the use of the rest of the machine, over its reservation. Where the two meet, nothing is left.

import { bytes, cores, share } from "./amounts.js";
import { $, attr, keyed, make, percent, text } from "./dom.js";
import { drawSpark, makeSpark } from "./spark.js";

const RESOURCES = [
  { name: "memory", title: "Memory", words: bytes },
  { name: "cpu", title: "CPU", words: cores },
  { name: "storage", title: "Storage", words: bytes },
];
const CLASSES = ["Guaranteed", "Burstable", "BestEffort"];
const RESERVED_FOR = { kube: "agent and runtime", system: "system", eviction: "eviction threshold" };

export function showCapacity(view, history) {
  const present = RESOURCES.filter((resource) => view.resources?.[resource.name]?.capacity);
  keyed($("capacity"), present, (resource) => resource.name, create, (node, resource) =>
    update(node, resource, view, history),
  );
}

function create(resource) {
  return make(
    "div.bar",
    { "data-resource": resource.name },
    make("div.bar-head", {}, make("h3", {}, resource.title), makeSpark(), make("p.big")),
    make(
      "div.track",
      { role: "img" },
      make("i.reserved"),
      make("i.requested"),
      make("i.rest"),
      make("span.used", {}, ...CLASSES.map((name) => make(`i.${name.toLowerCase()}`)), make("i.unsorted")),
      make("i.allocatable"),
    ),
    make("dl.figures"),
  );
}

function update(node, resource, view, history) {
  const { words } = resource;
  const now = view.resources[resource.name];
  const whole = now.capacity;
  const reserved = Math.max(whole - (now.allocatable ?? whole), 0);
  const pods = now.usedByPods ?? null;
  const rest = now.used === undefined || now.used === null ? null : Math.max(now.used - (pods ?? 0), 0);
  const [head, track, figures] = node.children;
  drawSpark(head.children[1], history.of(resource.name), whole);
  const used = now.used ?? pods;
  text(head.children[2], used === null || used === undefined ? `${words(whole)}` : `${words(used)} of ${words(whole)}`);

  const parts = byClass(view, resource.name);
  const sorted = Object.values(parts).reduce((sum, amount) => sum + amount, 0);
  const [reservedBox, requestedBox, restBox, usedBox, mark] = track.children;
  percent(reservedBox, "width", reserved / whole);
  percent(requestedBox, "width", (now.requested ?? 0) / whole);
  percent(restBox, "width", (rest ?? 0) / whole);
  CLASSES.forEach((name, index) => percent(usedBox.children[index], "width", (parts[name] ?? 0) / whole));
  percent(usedBox.children[CLASSES.length], "width", Math.max((pods ?? 0) - sorted, 0) / whole);
  percent(mark, "inset-inline-start", (whole - reserved) / whole);
  attr(mark, "hidden", reserved === 0);

  const facts = [];
  if (pods !== null) facts.push(["pods use", words(pods), share(pods, whole)]);
  facts.push(["requested", words(now.requested ?? 0), share(now.requested ?? 0, now.allocatable ?? whole)]);
  facts.push(["allocatable", words(now.allocatable ?? whole), share(now.allocatable ?? whole, whole)]);
  facts.push(["reserved", words(reserved), reservedWords(now.reserved, words)]);
  const isMore = rest > reserved && reserved > 0;
  if (rest !== null) facts.push(["the rest uses", words(rest), isMore ? "▲ more than reserved" : ""]);
  keyed(figures, facts, (fact) => fact[0], createFact, updateFact);
  const sentence = facts.map(([name, amount, more]) => `${name} ${amount}${more ? ` (${more})` : ""}`).join(", ");
  attr(track, "aria-label", `${resource.title}: capacity ${words(whole)}, ${sentence}`);
}

function createFact([name]) {
  return make("div", {}, make("dt", {}, name), make("dd"), make("dd.soft"));
}

function updateFact(node, [, amount, more]) {
  text(node.children[1], amount);
  text(node.children[2], more);
}

function reservedWords(reserved, words) {
  return Object.entries(RESERVED_FOR)
    .filter(([name]) => reserved?.[name])
    .map(([name, title]) => `${title} ${words(reserved[name])}`)
    .join(", ");
}

/** The use of pods, by class. */
function byClass(view, resource) {
  const found = {};
  for (const cgroup of view.cgroups ?? []) {
    if (cgroup.kind !== "pod") continue;
    found[cgroup.qosClass] = (found[cgroup.qosClass] ?? 0) + (cgroup[resource]?.used ?? 0);
  }
  return found;
}
