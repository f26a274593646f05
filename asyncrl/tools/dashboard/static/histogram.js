// A histogram as SVG bars.

import {h, svg} from "./dom.js";
import {number, percent, whole} from "./format.js";

const WIDTH = 300, HEIGHT = 96;

export function histogram(title, {edges, counts}, isWhole) {
  const total = counts.reduce((sum, count) => sum + count, 0);
  const most = Math.max(...counts, 1), width = WIDTH / Math.max(counts.length, 1);
  const bars = counts.map((count, i) => {
    const height = (count / most) * (HEIGHT - 4);
    const bar = svg("rect", {x: i * width + 0.5, y: HEIGHT - height, width: Math.max(width - 1, 1), height, class: "bar"});
    const [low, high] = isWhole ? [Math.ceil(edges[i]), Math.ceil(edges[i + 1]) - 1] : [edges[i], edges[i + 1]];
    bar.append(svg("title"));
    bar.firstChild.textContent = `${low === high ? number(low) : `${number(low)} to ${number(high)}`}: ${whole(count)} (${percent(count / total)})`;
    return bar;
  });
  const first = isWhole ? Math.ceil(edges[0]) : edges[0];
  const last = isWhole ? Math.ceil(edges[edges.length - 1]) - 1 : edges[edges.length - 1];
  return h("figure", {class: "chart histogram"}, h("figcaption", {}, h("span", {class: "title"}, title), h("span", {class: "now"}, `${whole(total)} samples`)),
    total ? svg("svg", {viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": `${title} of ${total} samples, from ${number(first)} to ${number(last)}`}, bars) : h("p", {class: "muted"}, "no samples yet"),
    total ? h("div", {class: "ends"}, h("span", {}, number(first)), h("span", {}, number(last))) : null);
}
