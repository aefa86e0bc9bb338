// Evictions and OOM kills on a time line and as a list. A click on one opens the history of its pod.

import { ago, clock, iso, moment } from "./amounts.js";
import { $, attr, keyed, make, percent, text } from "./dom.js";

const MOST = 200;
const SHOWN = 50;
const SAME_DEATH_SECONDS = 5; // the kernel reports a kill, then the container its end
const SPANS = [300, 900, 3600, 6 * 3600, 24 * 3600, 7 * 24 * 3600];
const KINDS = {
  Evicted: { mark: "▼", word: "evicted", state: "evicted" },
  OOMKilling: { mark: "✖", word: "OOM kill", state: "killed" },
  OOMKilled: { mark: "✖", word: "OOM killed", state: "killed" },
};

export class Timeline {
  #known = new Map();
  #isFirst = true;

  constructor(open, announce) {
    this.open = open;
    this.announce = announce;
  }

  /** Takes events and returns the new ones. After the first time new ones are announced to screen readers. */
  take(events) {
    const news = events.filter((one) => this.#known.get(keyOf(one))?.times !== one.times);
    for (const one of news) {
      this.#known.set(keyOf(one), one);
      if (!this.#isFirst && kindOf(one)) this.announce(`${one.pod || "the node"}: ${kindOf(one).word}`);
    }
    this.#isFirst = false;
    for (const key of [...this.#known.keys()].slice(0, -MOST)) this.#known.delete(key);
    return news;
  }

  show(now) {
    const all = $("all-events").checked;
    const listed = [...this.#known.values()]
      .sort((one, other) => other.at - one.at)
      .filter((one, _, every) => (all ? true : kindOf(one)) && !isEcho(one, every));
    $("no-events").hidden = listed.length > 0;
    keyed($("events"), listed.slice(0, SHOWN), keyOf, () => this.#create(), (node, one) => update(node, one, now));
    this.#line(listed, now);
  }

  #create() {
    const mark = make("b.mark", { "aria-hidden": "true" });
    const button = make("button", { type: "button" }, mark, make("span.what"), make("span.why"), make("time"));
    const item = make("li", {}, button);
    button.addEventListener("click", () => item.pod && this.open(item.pod));
    return item;
  }

  #line(listed, now) {
    const oldest = listed.length ? listed[listed.length - 1].at : now;
    const span = SPANS.find((one) => now - oldest <= one) ?? SPANS[SPANS.length - 1];
    const line = $("line");
    if (!line.firstChild) {
      line.append(make("i.axis"), make("div.marks"), make("span.from.soft"), make("span.to.soft", {}, "now"));
    }
    const [, marks, from] = line.children;
    text(from, ago(span));
    const shown = listed.filter((one) => now - one.at <= span);
    const place = (node, one) => percent(node, "inset-inline-start", 1 - (now - one.at) / span);
    keyed(marks, shown, keyOf, (one) => this.#mark(one), place);
  }

  #mark(one) {
    const kind = kindOf(one) ?? other(one);
    const title = `${clock(one.at)} ${one.pod ?? "node"} ${kind.word}`;
    const mark = make("b.mark", { "data-state": kind.state, title }, kind.mark);
    mark.addEventListener("click", () => one.pod && this.open(one.pod));
    return mark;
  }
}

const keyOf = (one) => one.number || `${one.at} ${one.pod} ${one.reason}`;
const kindOf = (one) => (Object.hasOwn(KINDS, one.reason) ? KINDS[one.reason] : undefined);
const other = (one) => ({ mark: "•", word: one.reason, state: "warning" });

/** The end of a container that repeats the kernel's report of the kill. */
function isEcho(one, every) {
  const isSameDeath = (event) => event.pod === one.pod && Math.abs(event.at - one.at) < SAME_DEATH_SECONDS;
  return one.reason === "OOMKilled" && every.some((event) => event.reason === "OOMKilling" && isSameDeath(event));
}

function update(node, one, now) {
  const kind = kindOf(one) ?? other(one);
  const [mark, what, why, when] = node.firstChild.children;
  node.pod = one.pod;
  attr(node.firstChild, "disabled", !one.pod);
  attr(node, "data-state", kind.state);
  text(mark, kind.mark);
  text(what, `${one.pod || "node"} ${kind.word}${one.times > 1 ? ` ${one.times} times` : ""}`);
  text(why, one.message ?? "");
  text(when, ago(now - one.at));
  attr(when, "datetime", iso(one.at));
  attr(when, "title", moment(one.at));
}
