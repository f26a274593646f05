// A line chart on a canvas: many points, zoom by dragging, smoothing, log axis, a crosshair shared between charts.

import {h, put} from "./dom.js";
import {colour} from "./colours.js";
import {logTicks, number, ticks} from "./format.js";

const LEFT = 46, RIGHT = 10, TOP = 8, BOTTOM = 20;

/** What several charts share: the part of the x axis shown, the place pointed at, and how lines are drawn. */
export class View {
  constructor() {
    this.range = null; // [low, high]; null shows everything
    this.smoothing = 1; // steps of which each point is the mean
    this.isLog = false;
    this.xLabel = "step";
    this.marks = []; // [{x, colour}]: moments that every chart shows as a thin line
    this.charts = new Set();
    this.onzoom = () => {};
  }

  redraw() {
    for (const chart of this.charts) chart.draw();
  }

  zoom(range) {
    this.range = range && range[1] > range[0] ? range : null;
    this.redraw();
    this.onzoom();
  }

  point(x) {
    for (const chart of this.charts) chart.showCrosshair(x);
  }
}

export class LineChart {
  /** `options`: title, isPercent, isLog (whatever the view says), fromZero, span (of a point, or of the number), isRecent (it is a mean of steps already), hasNumber (the end of the first line, above the chart). */
  constructor(view, options) {
    this.view = view;
    this.options = options;
    this.series = this.all = [];
    this.canvas = h("canvas", {tabindex: "0", role: "img"});
    this.line = h("div", {class: "crosshair", hidden: true});
    this.selection = h("div", {class: "selection", hidden: true});
    this.value = h("span", {class: "now"});
    this.legend = h("div", {class: "legend"});
    this.span = h("span", {class: "span"});
    this.tip = h("div", {class: "tip", hidden: true});
    this.element = h("figure", {class: "chart"},
      h("figcaption", {}, h("span", {class: "title"}, options.title), options.hasNumber ? this.value : this.span),
      h("div", {class: "under"}, this.legend, options.hasNumber ? this.span : null),
      h("div", {class: "plot"}, this.canvas, this.line, this.selection, this.tip));
    this.listen();
    this.size = new ResizeObserver(() => this.draw());
    this.size.observe(this.canvas);
    view.charts.add(this);
  }

  close() {
    this.size.disconnect();
    this.view.charts.delete(this);
  }

  /** `all`: lines whose values decide the y axis, if not these alone. `series`: [{label, colour, xs, ys, dash, hasDots, bridges}]; `bridges`: steps without a value do not break the line */
  set(series, all = series) {
    this.series = series.filter((one) => one.xs.length);
    this.all = all.filter((one) => one.xs.length);
    const labelled = this.series.filter((one) => one.label);
    put(this.legend, labelled.map((one) => h("span", {}, h("i", {style: {borderColor: one.colour}}), one.label)));
    this.legend.hidden = labelled.length < 2; // the span stays
    this.draw();
  }

  draw() {
    const {canvas, view} = this;
    const width = canvas.clientWidth, height = canvas.clientHeight;
    if (!width || !height) return;
    const scale = window.devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * scale)) canvas.width = Math.round(width * scale);
    if (canvas.height !== Math.round(height * scale)) canvas.height = Math.round(height * scale);
    const pen = canvas.getContext("2d");
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, width, height);
    pen.font = `11px ${getComputedStyle(document.body).fontFamily}`;
    this.isLog = this.options.isLog || view.isLog;
    const smooth = (one) => ({...one, smooth: this.options.isRecent || one.hasDots ? one.ys : trailingMean(one.ys, view.smoothing)});
    this.drawn = this.series.map(smooth);
    this.ranged = this.all === this.series ? this.drawn : this.all.map(smooth);
    const x = this.xAxis(width), y = this.yAxis(height, x);
    this.x = x;
    this.y = y;
    this.axes(pen, x, y, width, height);
    pen.save();
    pen.beginPath();
    pen.rect(LEFT - 3, TOP - 4, width - LEFT - RIGHT + 6, height - TOP - BOTTOM + 8);
    pen.clip();
    this.marks(pen, x, height);
    for (const one of this.drawn) {
      if (one.smooth !== one.ys) this.path(pen, one, one.ys, this.drawn.length > 1 ? 0.1 : 0.22);
      this.path(pen, one, one.smooth, 1);
    }
    pen.restore();
    this.describe();
  }

  xAxis(width) {
    let [low, high] = this.view.range || [Infinity, -Infinity];
    if (!this.view.range) {
      for (const chart of this.view.charts) {
        for (const {xs} of chart.series) {
          low = Math.min(low, xs[0]);
          high = Math.max(high, xs[xs.length - 1]);
        }
      }
    }
    if (!(low <= high)) [low, high] = [0, 1];
    if (low === high) [low, high] = [low - 0.5, high + 0.5];
    const span = width - LEFT - RIGHT;
    return {low, high, of: (value) => LEFT + ((value - low) / (high - low)) * span,
      at: (pixel) => low + ((pixel - LEFT) / span) * (high - low)};
  }

  yAxis(height, x) {
    let low = Infinity, high = -Infinity;
    for (const {xs, smooth} of this.ranged) {
      for (let i = 0; i < xs.length; i++) {
        const value = smooth[i];
        if (value == null || xs[i] < x.low || xs[i] > x.high || (this.isLog && value <= 0)) continue;
        if (value < low) low = value;
        if (value > high) high = value;
      }
    }
    if (!(low <= high)) [low, high] = this.isLog ? [0.1, 1] : [0, 1];
    if (high - low <= 1e-9 * Math.max(Math.abs(low), Math.abs(high))) high = low; // only rounding differs
    if (this.isLog) {
      if (low === high) [low, high] = [low / 2, high * 2];
      const [a, b] = [Math.log(low) - 0.05 * Math.log(high / low), Math.log(high) + 0.05 * Math.log(high / low)];
      return {low: Math.exp(a), high: Math.exp(b),
        of: (value) => TOP + (1 - (Math.log(Math.max(value, 1e-300)) - a) / (b - a)) * (height - TOP - BOTTOM)};
    }
    if (this.options.fromZero && low > 0 && low < 0.6 * high) low = 0;
    if (low === high) [low, high] = [low - (Math.abs(low) || 1) * 0.1, high + (Math.abs(high) || 1) * 0.1];
    const pad = 0.06 * (high - low);
    const bottom = low === 0 ? low : low - pad, top = high + pad;
    return {low: bottom, high: top,
      of: (value) => TOP + (1 - (value - bottom) / (top - bottom)) * (height - TOP - BOTTOM)};
  }

  axes(pen, x, y, width, height) {
    pen.lineWidth = 1;
    pen.textBaseline = "middle";
    pen.textAlign = "right";
    const marks = this.isLog ? logTicks(y.low, y.high) : ticks(y.low, y.high, Math.max(2, height / 26));
    for (const value of marks) {
      const place = Math.round(y.of(value)) + 0.5;
      if (place > height - BOTTOM + 1) continue;
      pen.strokeStyle = colour("grid");
      pen.beginPath();
      pen.moveTo(LEFT, place);
      pen.lineTo(width - RIGHT, place);
      pen.stroke();
      pen.fillStyle = colour("muted");
      pen.fillText(this.tickText(value, marks), LEFT - 5, place);
    }
    pen.textBaseline = "top";
    const places = ticks(x.low, x.high, Math.max(2, width / 80));
    for (const value of places) {
      const label = this.view.xLabel === "seconds" ? clock(value) : number(value, 4);
      const isCut = x.of(value) + pen.measureText(label).width / 2 > width;
      pen.textAlign = isCut ? "right" : "center";
      pen.fillText(label, isCut ? width : x.of(value), height - BOTTOM + 6);
    }
  }

  marks(pen, x, height) {
    pen.lineWidth = 1;
    pen.setLineDash([2, 3]);
    for (const mark of this.view.marks) {
      pen.strokeStyle = mark.colour;
      pen.beginPath();
      pen.moveTo(Math.round(x.of(mark.x)) + 0.5, TOP - 4);
      pen.lineTo(Math.round(x.of(mark.x)) + 0.5, height - BOTTOM);
      pen.stroke();
    }
    pen.setLineDash([]);
  }

  path(pen, one, ys, alpha) {
    const {x, y} = this;
    pen.strokeStyle = pen.fillStyle = one.colour;
    pen.globalAlpha = alpha;
    pen.lineWidth = 1.6;
    pen.lineJoin = "round";
    pen.setLineDash(one.dash || []);
    pen.beginPath();
    let isDown = false, column = null, low = 0, high = 0;
    const dense = one.xs.length > 3 * this.canvas.clientWidth;
    for (let i = 0; i < one.xs.length; i++) {
      const value = ys[i];
      if (value == null || (this.isLog && value <= 0)) {
        isDown = isDown && one.ys[i] == null && one.bridges; // a step that recorded nothing does not break a line
        if (!one.bridges) isDown = false;
        continue;
      }
      const px = x.of(one.xs[i]), py = y.of(value);
      if (dense) { // one stroke from the lowest to the highest of a column of pixels
        if (column === Math.round(px)) {
          low = Math.min(low, py);
          high = Math.max(high, py);
          continue;
        }
        if (column !== null) {
          pen.lineTo(column, low);
          pen.lineTo(column, high);
        }
        [column, low, high] = [Math.round(px), py, py];
        if (!isDown) pen.moveTo(column, py);
      } else if (isDown) pen.lineTo(px, py);
      else pen.moveTo(px, py);
      isDown = true;
    }
    if (dense && column !== null) {
      pen.lineTo(column, low);
      pen.lineTo(column, high);
    }
    pen.stroke();
    pen.setLineDash([]);
    if (one.hasDots || one.xs.length === 1) {
      for (let i = 0; i < one.xs.length; i++) {
        if (ys[i] == null) continue;
        pen.beginPath();
        pen.arc(x.of(one.xs[i]), y.of(ys[i]), 3, 0, 2 * Math.PI);
        pen.fill();
      }
    }
    pen.globalAlpha = 1;
  }

  describe() {
    const last = this.drawn.map((one) => lastOf(one.smooth)).filter((value) => value != null);
    const isSmooth = this.drawn.some((one) => one.smooth !== one.ys);
    put(this.value, last.length ? this.text(last[0]) : "");
    put(this.span, !last.length ? "no data" : isSmooth ? `mean of ${this.options.hasNumber ? "last " : ""}${this.view.smoothing} steps` : this.options.span);
    this.canvas.setAttribute("aria-label",
      `${this.options.title}, last ${last.map((value) => this.text(value)).join(", ")}. Arrow keys read values, plus and minus zoom, Escape shows everything.`);
  }

  text(value) {
    return this.options.isPercent ? `${number(100 * value)} %` : number(value);
  }

  /** The label of one of the ticks of the y axis: all of them with as many decimals. */
  tickText(value, marks) {
    const scale = this.options.isPercent ? 100 : 1, step = marks.length > 1 ? scale * (marks[1] - marks[0]) : 0;
    if (this.isLog || !value || step < 1e-5 || step >= 1000) return this.text(value);
    return `${(scale * value).toFixed(Math.max(0, -Math.floor(Math.log10(step) + 1e-9)))}${this.options.isPercent ? " %" : ""}`;
  }

  // ── pointer and keys ──

  listen() {
    const {canvas} = this;
    let start = null;
    const place = (event) => event.clientX - canvas.getBoundingClientRect().left;
    canvas.addEventListener("pointerdown", (event) => {
      start = place(event);
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      const now = place(event);
      if (start != null && Math.abs(now - start) > 3) {
        this.selection.hidden = false;
        Object.assign(this.selection.style, {left: `${Math.min(start, now)}px`, width: `${Math.abs(now - start)}px`});
      }
      if (this.x) this.pointAt(this.x.at(now));
    });
    canvas.addEventListener("pointerup", (event) => {
      const now = place(event);
      this.selection.hidden = true;
      if (start != null && Math.abs(now - start) > 6) {
        const [low, high] = [this.x.at(Math.min(start, now)), this.x.at(Math.max(start, now))];
        this.view.zoom([Math.max(low, this.x.low), Math.min(high, this.x.high)]);
      }
      start = null;
    });
    canvas.addEventListener("pointercancel", () => {
      start = null;
      this.selection.hidden = true;
    });
    canvas.addEventListener("pointerleave", () => this.leave());
    canvas.addEventListener("blur", () => this.leave());
    canvas.addEventListener("dblclick", () => this.view.zoom(null));
    canvas.addEventListener("keydown", (event) => this.key(event));
  }

  key(event) {
    const {low, high} = this.x, span = high - low, at = this.pointed ?? (low + high) / 2;
    const moves = {ArrowLeft: -1, ArrowRight: 1};
    if (event.key in moves) this.pointAt(Math.min(high, Math.max(low, at + moves[event.key] * Math.max(span / 100, 0))));
    else if (event.key === "+" || event.key === "=") this.view.zoom([Math.max(low, at - span / 4), Math.min(high, at + span / 4)]);
    else if (event.key === "-") this.view.zoom([low - span / 2, high + span / 2]);
    else if (event.key === "Escape") this.view.zoom(null);
    else return;
    event.preventDefault();
  }

  pointAt(x) {
    this.pointed = x;
    this.view.point(x);
    const rows = [];
    let at = null;
    for (const one of this.drawn || []) {
      const i = nearest(one.xs, x);
      if (i < 0) continue;
      at ??= one.xs[i];
      rows.push(h("div", {}, h("i", {style: {borderColor: one.colour}}), one.label ? `${one.label} ` : "", h("b", {}, this.text(one.smooth[i]))));
    }
    if (at == null) return;
    put(this.tip, h("div", {class: "muted"}, `${this.view.xLabel} ${number(at, 5)}`), rows);
    this.tip.hidden = false;
    const left = this.x.of(at), width = this.canvas.clientWidth;
    Object.assign(this.tip.style, left > width / 2 ? {right: `${width - left + 8}px`, left: "auto"} : {left: `${left + 8}px`, right: "auto"});
  }

  showCrosshair(x) {
    this.line.hidden = x == null || !this.x || x < this.x.low || x > this.x.high;
    if (!this.line.hidden) this.line.style.left = `${this.x.of(x)}px`;
  }

  leave() {
    this.tip.hidden = true;
    this.pointed = null;
    this.view.point(null);
  }
}

/** The mean of the last `steps` values up to each; gaps stay gaps. */
export function trailingMean(ys, steps) {
  if (steps < 2) return ys;
  const last = [];
  return ys.map((value, i) => {
    if (value == null) return null;
    last.push([i, value]);
    while (last[0][0] <= i - steps) last.shift();
    return last.reduce((sum, [, one]) => sum + one, 0) / last.length;
  });
}

function nearest(xs, x) {
  let low = 0, high = xs.length - 1;
  if (high < 0) return -1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xs[middle] < x) low = middle;
    else high = middle;
  }
  return Math.abs(xs[low] - x) <= Math.abs(xs[high] - x) ? low : high;
}

function lastOf(values) {
  for (let i = values.length - 1; i >= 0; i--) if (values[i] != null) return values[i];
  return null;
}

function clock(value) {
  if (value < 120) return `${number(value)} s`;
  return value < 7200 ? `${number(value / 60)} min` : `${number(value / 3600)} h`;
}
