// What every node does over time, as stacked bands, with publishes, evaluations and losses above; zoom by dragging.

import {get} from "./api.js";
import {colour, kindColour} from "./colours.js";
import {debounced, h, put} from "./dom.js";
import {number, percent, plural, seconds, ticks} from "./format.js";
import {byKind, kindLegend, short} from "./shares.js";

const HEAD = 44, LIMIT = 60;
// Colour, which no kind of activity has, and height.
const MARKS = {publish: ["ink", 6], evaluation: ["pink", 12], checkpoint: ["brown", 10], joined: ["lime", 12], left: ["lime", 7], lost: ["bad", 22], resumed: ["ink", 22], started: ["ink", 22], finished: ["ink", 22]};
const SHOWN_MARKS = {publish: "publish (short), start, restart, end", evaluation: "evaluation", checkpoint: "checkpoint", joined: "joined, left (short)", lost: "lost or exited, on the row of the node"};

export function timeline(context) {
  let row = 26, range = null, role = "", found = null, isClosed = false, offset = 0, turn = 0, start = null;
  const summary = h("p", {class: "sentence"}), legend = h("div", {}), note = h("p", {class: "muted"});
  const roles = h("select", {"aria-label": "role", onchange: (event) => {
    role = event.target.value;
    offset = 0;
    scroller.scrollTop = 0;
    context.attempt(load);
  }}, h("option", {value: ""}, "every role"));
  const zoomButtons = [["+", "zoom in", () => zoomBy(0.5)], ["−", "zoom out", () => zoomBy(2)], ["←", "earlier", () => moveBy(-0.5)], ["→", "later", () => moveBy(0.5)]]
    .map(([text, label, action]) => h("button", {type: "button", "aria-label": label, onclick: action}, text));
  const reset = h("button", {type: "button", disabled: true, onclick: () => zoom(null)}, "show everything");
  const count = h("span", {class: "muted"});
  const canvas = h("canvas", {class: "bands", role: "img", tabindex: "0"});
  const selection = h("div", {class: "selection", hidden: true}), tip = h("div", {class: "tip", hidden: true});
  const spacer = h("div", {class: "spacer"});
  const scroller = h("div", {class: "timeline-scroll", onscroll: () => scrolled()}, h("div", {class: "sticky"}, canvas, selection, tip), spacer);
  const element = h("div", {class: "timeline"}, summary, h("div", {class: "tools"}, roles, zoomButtons, reset, count, h("span", {class: "muted hint"}, "drag to zoom, double-click for everything")), legend, note, scroller);
  const size = new ResizeObserver(() => draw());
  size.observe(scroller);

  const left = () => (scroller.clientWidth < 560 ? 82 : 130);
  const low = () => (range ? range[0] : found.extent[0]);
  const high = () => Math.max(range ? range[1] : found.extent[1], low() + 1e-6);
  const of = (time) => left() + ((time - low()) / (high() - low())) * (scroller.clientWidth - left() - 8);
  const at = (pixel) => low() + ((pixel - left()) / (scroller.clientWidth - left() - 8)) * (high() - low());

  function zoom(next) {
    range = next && next[1] - next[0] > 1e-4 ? next : null;
    reset.disabled = !range;
    context.attempt(load);
  }

  function zoomBy(factor) {
    if (!found) return;
    const middle = (low() + high()) / 2, half = ((high() - low()) * factor) / 2;
    const next = [Math.max(found.extent[0], middle - half), Math.min(found.extent[1], middle + half)];
    zoom(next[0] <= found.extent[0] && next[1] >= found.extent[1] ? null : next);
  }

  function moveBy(part) {
    if (!found || !range) return;
    const by = (high() - low()) * part;
    zoom([low() + by, high() + by]);
  }

  async function load() {
    const own = ++turn;
    const columns = Math.min(400, Math.max(40, Math.floor((scroller.clientWidth - left()) / 2)));
    const answer = await get(`runs/${context.run}/timeline`, {start: range && range[0], end: range && range[1], role, offset, limit: LIMIT, columns});
    if (isClosed || own !== turn) return;
    found = answer;
    found.offset = offset;
    put(roles, h("option", {value: ""}, "every role"), found.roles.map((name) => h("option", {value: name}, name)));
    roles.value = role;
    put(summary, found.sentence);
    put(count, found.num_nodes ? `${plural(found.num_nodes, "node")}, spools apart` : "");
    put(legend, found.num_nodes ? kindLegend("not told; a height is a share of the node's time") : null, h("div", {class: "legend wide"}, Object.entries(SHOWN_MARKS).map(([kind, label]) =>
      h("span", {}, h("i", {class: "mark", style: {background: colour(MARKS[kind][0])}}), label))));
    const reading = found.is_partial ? `Reading times.jsonl, ${percent(found.read, 0)}. ` : "";
    put(note, !found.num_nodes ? "What nodes do is in times.jsonl, which begins with the first step." : found.source === "metrics.jsonl"
      ? "This run has no times.jsonl, so only the trainer's time of each step is known, from metrics.jsonl." : `${reading}${found.num_damaged ? `${plural(found.num_damaged, "damaged line")} of times.jsonl left out.` : ""}`);
    note.hidden = !note.textContent;
    row = found.num_nodes <= 3 ? 72 : found.num_nodes <= 10 ? 44 : 26;
    spacer.style.height = `${HEAD + found.num_nodes * row + 8}px`;
    draw();
    if (found.is_partial) setTimeout(() => own === turn && !isClosed && context.attempt(load), 50);
  }

  const loadSoon = debounced(() => context.attempt(load), 60);

  function scrolled() {
    if (!found) return;
    const first = Math.floor(scroller.scrollTop / row), rows = Math.ceil((scroller.clientHeight - HEAD) / row);
    if (first < found.offset || first + rows > found.offset + found.nodes.length) {
      const next = Math.max(0, Math.min(first - 10, found.num_nodes - LIMIT));
      if (next !== offset) {
        offset = next;
        loadSoon();
      }
    }
    draw();
  }

  function draw() {
    const width = scroller.clientWidth, height = scroller.clientHeight;
    if (!found || !width || !height) return;
    const scale = window.devicePixelRatio || 1;
    canvas.width = width * scale;
    canvas.height = height * scale;
    Object.assign(canvas.style, {width: `${width}px`, height: `${height}px`});
    const pen = canvas.getContext("2d");
    pen.scale(scale, scale);
    pen.clearRect(0, 0, width, height);
    pen.font = `11px ${getComputedStyle(document.body).fontFamily}`;
    pen.save();
    pen.beginPath();
    pen.rect(0, HEAD, width, height - HEAD);
    pen.clip();
    found.nodes.forEach((node, i) => bands(pen, node, HEAD + (found.offset + i) * row - scroller.scrollTop, width, height));
    pen.restore();
    axis(pen, width, height);
    canvas.setAttribute("aria-label", `Activities of ${found.num_nodes} nodes from ${seconds(low())} to ${seconds(high())}, and ${found.marks.length} events. Plus and minus zoom, arrow keys move, Escape shows everything.`);
  }

  function bands(pen, node, top, width, height) {
    if (top > height || top + row < HEAD) return;
    pen.fillStyle = colour("ink");
    pen.textAlign = "left";
    pen.textBaseline = "middle";
    pen.fillText(fitted(pen, node.node, left() - 12), 2, top + row / 2);
    pen.save();
    pen.beginPath();
    pen.rect(left(), top, width - left() - 8, row);
    pen.clip();
    pen.fillStyle = colour("panel");
    pen.fillRect(left(), top + 2, width, row - 4);
    const inner = row - 4;
    for (let i = 0; i < found.starts.length; i++) {
      const begin = Math.max(found.starts[i], node.joined_s ?? -Infinity);
      const end = Math.min(found.ends[i], node.heard_s ?? Infinity);
      if (begin >= end) continue;
      const from = of(begin), to = Math.max(of(end), from + 0.6);
      let bottom = top + 2 + inner;
      for (const [kind, share] of byKind(column(node, i), found.kinds)) {
        const part = share * inner;
        pen.fillStyle = kindColour(kind);
        pen.fillRect(from, bottom - part, to - from + 0.3, part);
        bottom -= part;
      }
    }
    for (const mark of found.marks.filter((one) => one.kind === "lost" && one.node === node.node)) {
      pen.fillStyle = colour(MARKS.lost[0]);
      pen.fillRect(Math.min(of(mark.time_s) - 1, width - 11), top, 3, row);
      if (node.heard_s == null || of(mark.time_s) - of(node.heard_s) < 50) continue;
      pen.fillText("silent", of(node.heard_s) + 8, top + row / 2);
    }
    pen.restore();
  }

  function axis(pen, width, height) {
    pen.fillStyle = colour("bg");
    pen.fillRect(0, 0, width, HEAD);
    pen.textBaseline = "top";
    pen.textAlign = "center";
    for (const value of ticks(low(), high(), (width - left()) / 90)) {
      const place = Math.round(of(value)) + 0.5;
      pen.strokeStyle = colour("grid");
      pen.beginPath();
      pen.moveTo(place, 16);
      pen.lineTo(place, HEAD);
      pen.stroke();
      pen.fillStyle = colour("muted");
      pen.textAlign = place > width - 30 ? "right" : "center";
      pen.fillText(`${number(value, 5)} s`, Math.min(place, width - 4), 2);
    }
    for (const mark of found.marks) {
      const [name, size] = MARKS[mark.kind], place = of(mark.time_s);
      if (place < left() - 1 || place > width) continue;
      pen.fillStyle = colour(name);
      pen.fillRect(place - 1, HEAD - size, 2, mark.kind === "resumed" ? height : size);
    }
  }

  const place = (event) => event.clientX - canvas.getBoundingClientRect().left;
  canvas.addEventListener("pointerdown", (event) => {
    start = place(event);
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!found) return;
    const now = place(event);
    if (start != null && Math.abs(now - start) > 3) {
      selection.hidden = false;
      Object.assign(selection.style, {left: `${Math.min(start, now)}px`, width: `${Math.abs(now - start)}px`});
    }
    describe(now, event.clientY - canvas.getBoundingClientRect().top);
  });
  canvas.addEventListener("pointerup", (event) => {
    const now = place(event), from = start;
    start = null;
    selection.hidden = true;
    if (found && from != null && Math.abs(now - from) > 6) zoom([at(Math.max(Math.min(from, now), left())), at(Math.max(from, now))]);
  });
  canvas.addEventListener("pointercancel", () => {
    start = null;
    selection.hidden = true;
  });
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
  canvas.addEventListener("dblclick", () => zoom(null));
  canvas.addEventListener("keydown", (event) => {
    const actions = {"+": () => zoomBy(0.5), "=": () => zoomBy(0.5), "-": () => zoomBy(2), ArrowLeft: () => moveBy(-0.25), ArrowRight: () => moveBy(0.25), Escape: () => zoom(null)};
    if (!(event.key in actions)) return;
    actions[event.key]();
    event.preventDefault();
  });

  function describe(x, y) {
    const time = at(x), lines = [];
    if (y < HEAD) {
      const near = found.marks.filter((mark) => Math.abs(of(mark.time_s) - x) < 5).slice(0, 8);
      lines.push(...near.map((mark) => h("div", {}, `${seconds(mark.time_s)} ${mark.text}`)));
    } else {
      const node = found.nodes[Math.floor((y - HEAD + scroller.scrollTop) / row) - found.offset];
      const place = found.starts.findIndex((from, i) => time >= from && time <= found.ends[i]);
      if (node && place >= 0) {
        lines.push(h("b", {}, node.node), h("div", {class: "muted"}, `${seconds(found.starts[place])} to ${seconds(found.ends[place])}`));
        for (const [kind, , own] of byKind(column(node, place), found.kinds)) {
          lines.push(...own.filter(([, share]) => share > 0.001).map(([name, share]) => h("div", {}, h("i", {class: "square", style: {background: kindColour(kind)}}),
            `${percent(share)} ${kind.startsWith("waits") ? `${kind}: ${short(name)}` : name}`)));
        }
      }
    }
    tip.hidden = !lines.length;
    put(tip, lines);
    const right = x > scroller.clientWidth / 2;
    Object.assign(tip.style, {top: `${Math.min(y + 8, scroller.clientHeight - 120)}px`, left: right ? "auto" : `${x + 10}px`, right: right ? `${scroller.clientWidth - x + 10}px` : "auto"});
  }

  return {element, start: load, update: (runs) => (runs.includes(context.run) ? load() : null), redraw: draw, close: () => {
    isClosed = true;
    size.disconnect();
  }};
}

/** Shares of a node in one column, by activity. */
function column(node, place) {
  return Object.fromEntries(Object.entries(node.shares).map(([name, shares]) => [name, shares[place]]));
}

function fitted(pen, text, width) {
  if (pen.measureText(text).width <= width) return text;
  let shown = text;
  while (shown.length > 1 && pen.measureText(`…${shown}`).width > width) shown = shown.slice(1);
  return `…${shown}`;
}
