// The pressure on the node: its conditions, the stalls of its tasks (PSI), and the distance to each eviction threshold.

import { bytes } from "./amounts.js";
import { $, attr, keyed, make, percent, text } from "./dom.js";
import { drawSpark, makeSpark } from "./spark.js";

const STALLS = [
  { name: "memory", title: "memory" },
  { name: "cpu", title: "cpu" },
  { name: "io", title: "disk" },
];
const LEAST_TOP = 10; // per cent at the upper edge, so that a calm node looks calm

export function showPressure(view, history) {
  keyed($("conditions"), view.conditions, (one) => one.type, createCondition, updateCondition);
  const stalls = STALLS.filter((stall) => view.stalls[stall.name]);
  keyed($("stalls"), stalls, (stall) => stall.name, createStall, (node, stall) =>
    updateStall(node, stall, view.stalls[stall.name], history.of(`psi.${stall.name}`)),
  );
  $("thresholds-title").hidden = view.thresholds.length === 0;
  keyed($("thresholds"), view.thresholds, (one) => `${one.isHard} ${one.signal}`, createThreshold, updateThreshold);
}

function createCondition() {
  return make("li", {}, make("b", { "aria-hidden": "true" }), make("span", {}, ""), make("span.hidden"));
}

function updateCondition(node, condition) {
  const shouldHold = /Ready$/.test(condition.type); // Ready, RuntimeReady; the others are pressures
  const holds = condition.status === "True";
  const isFine = holds === shouldHold;
  attr(node, "data-state", isFine ? "fine" : "bad");
  attr(node, "title", condition.message ?? "");
  text(node.children[0], isFine ? "✓" : "▲");
  text(node.children[1], holds ? plain(condition.type) : `${shouldHold ? "not" : "no"} ${plain(condition.type)}`);
  text(node.children[2], condition.message ? `: ${condition.message}` : "");
}

/** MemoryPressure → memory pressure; PIDPressure → PID pressure. */
function plain(type) {
  const words = type.replace(/([a-z])([A-Z])/g, "$1 $2").replace(/([A-Z])([A-Z][a-z])/g, "$1 $2");
  return words.replace(/\b[A-Z](?=[a-z])/g, (letter) => letter.toLowerCase());
}

function createStall(stall) {
  return make(
    "div.stall",
    { role: "img" },
    make("p", {}, make("span", {}, `waiting for ${stall.title}`), make("b")),
    makeSpark(),
    make("p.soft"),
  );
}

function updateStall(node, stall, now, values) {
  const some = now.some?.avg10 ?? 0;
  text(node.children[0].children[1], `${some.toFixed(1)} %`);
  drawSpark(node.children[1], values, Math.max(LEAST_TOP, ...values));
  // Never does all work of a node wait for cpu.
  const full = stall.name === "cpu" ? "" : `all work ${(now.full?.avg10 ?? 0).toFixed(1)} %, `;
  text(node.children[2], `${full}over a minute ${(now.some?.avg60 ?? 0).toFixed(1)} %`);
  attr(node, "data-state", some >= 20 ? "bad" : some >= 5 ? "warn" : "fine");
  const words = `${some.toFixed(1)} per cent of the last ten seconds`;
  attr(node, "aria-label", `Some work waited for ${stall.title} during ${words}`);
}

function createThreshold() {
  const meter = make("div.meter", { "aria-hidden": "true" }, make("i"), make("u"));
  return make("li", {}, make("p", {}, make("span"), make("b")), meter);
}

function updateThreshold(node, one) {
  const words = /^pid|inodes/i.test(one.signal) ? count : bytes;
  const [line, meter] = node.children;
  text(line.children[0], `${one.signal} ${words(one.available)}`);
  const grace = one.graceSeconds ? ` for ${one.graceSeconds} s` : "";
  text(line.children[1], `${one.isCrossed ? "▲ below" : "evicts below"} ${one.threshold}${grace}`);
  attr(meter, "hidden", !one.capacity);
  percent(meter.children[0], "width", one.available / one.capacity);
  percent(meter.children[1], "inset-inline-start", one.thresholdAmount / one.capacity);
  attr(node, "data-state", one.isCrossed ? "bad" : one.available < 2 * one.thresholdAmount ? "warn" : "fine");
}

const count = (amount) => (amount === undefined || amount === null ? "–" : amount.toLocaleString("en"));
