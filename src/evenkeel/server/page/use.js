// The use of a resource beside request and limit, as a small bar and in figures.

import { bytes, cores } from "./amounts.js";
import { attr, make, percent, text } from "./dom.js";

const NEAR_LIMIT = 0.9;
const WORDS = { memory: bytes, storage: bytes, cpu: cores };

export function makeUse() {
  const parts = [make("i.within"), make("i.above"), make("u.request"), make("u.limit")];
  return [
    make("span.meter", { "aria-hidden": "true" }, ...parts),
    make("span.amounts", {}, make("b"), make("span.soft")),
  ];
}

/** Bar and figures are the last two children of `holder`. Without limit and request the bar is a share of `node`. */
export function showUse(holder, resource, amounts, node) {
  const { used, request, limit } = amounts ?? {};
  const seen = `${used} ${request} ${limit} ${node}`;
  if (holder.seen === seen) return;
  holder.seen = seen;
  const meter = holder.children[holder.children.length - 2];
  const figures = holder.children[holder.children.length - 1];
  const words = WORDS[resource];
  const whole = limit || (request ? Math.max(request * 1.5, (used ?? 0) * 1.15) : Math.max(node ?? 0, used ?? 0)) || 1;
  const within = request ? Math.min(used ?? 0, request) : 0;
  const [withinBox, aboveBox, tick, end] = meter.children;
  percent(withinBox, "width", within / whole);
  percent(aboveBox, "inset-inline-start", within / whole);
  percent(aboveBox, "width", ((used ?? 0) - within) / whole);
  percent(tick, "inset-inline-start", (request ?? 0) / whole);
  attr(tick, "hidden", !request || request >= whole);
  attr(end, "hidden", !limit);
  const isNear = Boolean(limit) && resource !== "cpu" && used >= limit * NEAR_LIMIT;
  attr(holder, "data-state", isNear ? "bad" : null);
  attr(meter, "hidden", used === undefined || used === null);
  text(figures.children[0], `${isNear ? "▲ " : ""}${words(used)}`);
  text(figures.children[1], ` / ${words(request || undefined)} / ${words(limit || undefined)}`);
}
