// A small chart of the last two minutes.

import { attr, draw } from "./dom.js";

const WIDTH = 120;
const HEIGHT = 32;

export const POINTS = 120; // one a second

export function makeSpark() {
  return draw(
    "svg.spark",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true", focusable: "false" },
    draw("path.area"),
    draw("path.trace", { "vector-effect": "non-scaling-stroke" }),
  );
}

/** The newest of `values` is the last one, at the right edge. `top` is the value at the upper edge. */
export function drawSpark(svg, values, top) {
  const [area, trace] = svg.children;
  const step = WIDTH / (POINTS - 1);
  const start = WIDTH - (values.length - 1) * step;
  const points = values.map((value, index) => {
    const height = top > 0 ? Math.min(Math.max(value / top, 0), 1) * (HEIGHT - 2) : 0;
    return `${(start + index * step).toFixed(1)},${(HEIGHT - 1 - height).toFixed(1)}`;
  });
  attr(trace, "d", points.length > 1 ? `M${points.join("L")}` : "");
  attr(area, "d", points.length > 1 ? `M${start.toFixed(1)},${HEIGHT}L${points.join("L")}L${WIDTH},${HEIGHT}Z` : "");
}
