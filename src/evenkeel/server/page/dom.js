// Creates and changes elements. Text stays text: nothing that a pod writes can become markup.

const SVG = "http://www.w3.org/2000/svg";

export const $ = (id) => document.getElementById(id);

/** `make("p.soft", {title: "…"}, "words", child)`: an element with classes, attributes and children. */
export function make(what, attributes = {}, ...children) {
  return filled(document.createElement(what.split(".")[0]), what, attributes, children);
}

export function draw(what, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, what.split(".")[0]), what, attributes, children);
}

function filled(node, what, attributes, children) {
  for (const name of what.split(".").slice(1)) node.classList.add(name);
  for (const [name, value] of Object.entries(attributes)) attr(node, name, value);
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

// An element is only touched if it changes: every second, most of the page stays the same.

export function text(node, value) {
  const words = String(value);
  if (node.textContent !== words) node.textContent = words;
}

/** null and false remove the attribute. */
export function attr(node, name, value) {
  if (value === null || value === undefined || value === false) {
    if (node.hasAttribute(name)) node.removeAttribute(name);
    return;
  }
  const words = value === true ? "" : String(value);
  if (node.getAttribute(name) !== words) node.setAttribute(name, words);
}

/** A length in per cent of the parent. */
export function percent(node, property, share) {
  const value = `${(100 * Math.min(Math.max(share || 0, 0), 1)).toFixed(1)}%`;
  node.shares ??= {}; // reading the style would take longer than setting it
  if (node.shares[property] === value) return;
  node.shares[property] = value;
  node.style.setProperty(property, value);
}

const kept = new WeakMap();

/** Gives `parent` one child for each of `items`, in their order. A child of a known key stays and is updated. */
export function keyed(parent, items, keyOf, create, update) {
  const before = kept.get(parent) ?? new Map();
  const now = new Map();
  let place = parent.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    const node = before.get(key) ?? create(item);
    now.set(key, node);
    update(node, item);
    if (node === place) place = place.nextElementSibling;
    else parent.insertBefore(node, place);
  }
  for (const [key, node] of before) if (now.get(key) !== node) node.remove();
  kept.set(parent, now);
}
