// The page: watches the view of the agent, keeps the last two minutes, and draws when the screen is ready.

import { ago } from "./amounts.js";
import { showCapacity } from "./capacity.js";
import { Refused, watch } from "./channel.js";
import { $, attr, make, text } from "./dom.js";
import { showPressure } from "./pressure.js";
import { POINTS } from "./spark.js";
import { Story } from "./story.js";
import { Timeline } from "./timeline.js";
import { Tree } from "./tree.js";
import { View } from "./view.js";

const STALE_MS = 3500;
const FIRST_RETRY_MS = 500;
const MOST_RETRY_MS = 10_000;
const THEMES = ["auto", "light", "dark"];

class History {
  #values = new Map();

  add(view) {
    for (const name of ["memory", "cpu", "storage"]) {
      const now = view.resources?.[name];
      this.#push(name, now?.used ?? now?.usedByPods);
    }
    for (const name of ["memory", "cpu", "io"]) this.#push(`psi.${name}`, view.stalls[name]?.some?.avg10);
  }

  of(name) {
    return this.#values.get(name) ?? [];
  }

  #push(name, value) {
    if (value === undefined || value === null) return;
    const values = this.#values.get(name) ?? [];
    values.push(value);
    if (values.length > POINTS) values.shift();
    this.#values.set(name, values);
  }
}

class Page {
  #received = new View();
  #history = new History();
  #story = new Story();
  #tree = new Tree((pod) => this.#story.open(pod));
  #timeline = new Timeline((pod) => this.#story.open(pod), announce);
  #view = null;
  #seenAt = 0; // by this machine's clock
  #retry = FIRST_RETRY_MS;
  #isDrawing = false;
  #isRefused = false;

  constructor() {
    $("all-events").addEventListener("change", () => this.#draw());
    setInterval(() => this.#tick(), 500);
    this.#watch();
  }

  /** Watches until the dashboard refuses the page, and connects again whenever the stream ends. */
  async #watch() {
    while (!this.#isRefused) {
      try {
        for await (const { name, data } of watch("view/watch")) this.#receive(name, JSON.parse(data));
      } catch (error) {
        this.#isRefused = error instanceof Refused;
      }
      await new Promise((resume) => setTimeout(resume, this.#retry));
      this.#retry = Math.min(this.#retry * 2, MOST_RETRY_MS);
    }
  }

  #receive(name, data) {
    if (name === "happening") {
      for (const one of this.#timeline.take([data])) this.#story.note(one);
      this.#draw();
      return;
    }
    if (name === "view") this.#received.replace(data);
    else if (!this.#received.update(data)) return;
    this.#view = this.#received.drawn;
    this.#seenAt = performance.now();
    this.#retry = FIRST_RETRY_MS;
    this.#history.add(this.#view);
    for (const one of this.#timeline.take(this.#view.events)) this.#story.note(one);
    this.#draw();
  }

  #draw() {
    if (this.#isDrawing || !this.#view) return;
    this.#isDrawing = true;
    requestAnimationFrame(() => {
      this.#isDrawing = false;
      const view = this.#view;
      attr($("main"), "aria-busy", null);
      this.#node(view);
      showCapacity(view, this.#history);
      showPressure(view, this.#history);
      this.#timeline.show(view.at + (performance.now() - this.#seenAt) / 1000);
      this.#tree.show(view);
      this.#story.show(view);
      this.#tick();
    });
  }

  #node(view) {
    text($("node-name"), `on ${view.name}`);
    text($("node-words"), view.about);
    const title = `${view.name}: Evenkeel`;
    if (document.title !== title) document.title = title;
  }

  /** Says whether the page is up to date. The page fades while it is not. */
  #tick() {
    const age = performance.now() - this.#seenAt;
    const state = this.#isRefused ? "refused" : !this.#seenAt ? "waiting" : age > STALE_MS ? "stale" : "live";
    const words = {
      waiting: "Connecting",
      live: "Live",
      stale: "No news: trying again",
      refused: "Refused: open the address that evenkeel dashboard prints",
    };
    text($("link"), words[state]);
    attr($("link"), "data-state", state);
    attr(document.documentElement, "data-link", state);
    text($("seen"), state === "stale" ? `What you see is from ${ago(age / 1000)}.` : "");
  }
}

/** For screen readers. */
function announce(words) {
  const log = $("said");
  log.append(make("p", {}, words));
  while (log.children.length > 5) log.firstChild.remove();
}

function theme() {
  const button = $("theme");
  const stored = () => {
    try {
      return localStorage.getItem("theme");
    } catch {
      return null; // the browser stores nothing
    }
  };
  const set = (name) => {
    attr(document.documentElement, "data-theme", name === "auto" ? null : name);
    text(button, { auto: "◐ auto", light: "☀ light", dark: "☾ dark" }[name]);
    attr(button, "aria-label", `Colours: ${name}`);
    button.theme = name;
  };
  button.addEventListener("click", () => {
    set(THEMES[(THEMES.indexOf(button.theme) + 1) % THEMES.length]);
    try {
      localStorage.setItem("theme", button.theme);
    } catch {
      // then the choice is lost at the next visit
    }
  });
  set(THEMES.includes(stored()) ? stored() : "auto");
}

theme();
new Page();
