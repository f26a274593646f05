// How a run goes: state, headline numbers, curves over steps or time, who waits for whom, and histograms.

import {get} from "./api.js";
import {runColour} from "./colours.js";
import {h, put} from "./dom.js";
import {percent} from "./format.js";
import {histogram} from "./histogram.js";
import {LineChart, View} from "./line_chart.js";
import {activityLegend, shareBar} from "./shares.js";

// Curves in order of interest. `keys`: legend entry to metric. Those without any data are left out.
const CURVES = [
  {title: "Reward", keys: {"": "reward"}},
  {title: "Held-out accuracy", isEvaluation: true, isPercent: true},
  {title: "Completion length, tokens", keys: {mean: "length_mean", longest: "length_max"}, fromZero: true},
  {title: "KL to the sampler, nats", keys: {"": "kl"}},
  {title: "Entropy, nats", keys: {"": "entropy"}},
  {title: "Staleness, versions", keys: {mean: "staleness_mean", max: "staleness_max"}, fromZero: true},
  {title: "Trained tokens / s", keys: {"": "tokens_per_s"}, fromZero: true},
  {title: "Time spent waiting", keys: {trainer: "wait_trainer", rollouts: "wait_rollout"}, isPercent: true, fromZero: true},
  {title: "Loss", keys: {"": "loss"}},
  {title: "Gradient norm", keys: {"": "grad_norm"}, fromZero: true},
  {title: "Log-prob gap, nats", keys: {mean: "logprob_gap_mean", max: "logprob_gap_max"}, isLog: true},
  {title: "Seconds of a step", keys: {step: "step_s", training: "train_s", publish: "publish_s"}, fromZero: true},
  {title: "Clipped tokens, cut completions", keys: {clipped: "clip_fraction", cut: "truncated"}, isPercent: true, fromZero: true},
  {title: "KL to the reference, nats", keys: {"in the loss": "kl_ref", "in the reward": "kl_in_reward"}},
  {title: "Turns of an episode", keys: {mean: "turns_mean", most: "turns_max"}, fromZero: true},
  {title: "Groups without an advantage", keys: {"": "zero_advantage_fraction"}, isPercent: true, fromZero: true},
];
const KNOWN = new Set(["step", ...CURVES.flatMap((curve) => Object.values(curve.keys || {}))]);
const DASHES = [[], [4, 3], [1.5, 3]]; // of the parts of a curve, when colours tell runs apart
const HISTOGRAM_MS = 10_000; // between two looks at the newest samples

export function overview(context) {
  const view = new View();
  const state = context.runs.map(() => ({columns: {}, rewrites: 0, overview: null}));
  const hidden = new Set();
  const head = h("section", {class: "head"});
  const charts = h("section", {class: "charts"});
  const more = h("section", {class: "charts"});
  const waits = h("section", {class: "waits"});
  const histograms = h("section", {class: "charts three"});
  const others = h("details", {class: "more", ontoggle: () => drawOthers()}, h("summary", {}, "More metrics"), more);
  const drawn = new Map();
  let xKey = "step", isClosed = false, countedAt = -Infinity;

  const smoothing = h("input", {type: "range", min: "0", max: "0.98", step: "0.02", value: "0", "aria-label": "smoothing",
    oninput: (event) => {
      view.smoothing = Number(event.target.value);
      view.redraw();
    }});
  const log = h("input", {type: "checkbox", onchange: (event) => {
    view.isLog = event.target.checked;
    view.redraw();
  }});
  const axis = h("select", {"aria-label": "x axis", onchange: (event) => {
    xKey = event.target.value;
    view.xLabel = xKey === "step" ? "step" : "seconds";
    view.zoom(null);
    drawCurves();
  }}, h("option", {value: "step"}, "over steps"), h("option", {value: "time_s"}, "over time"));
  const reset = h("button", {type: "button", disabled: true, onclick: () => view.zoom(null)}, "show everything");
  view.onzoom = () => { reset.disabled = !view.range; };
  const tools = h("div", {class: "tools"}, axis, h("label", {}, "smoothing ", smoothing), h("label", {class: "check"}, log, " log axis"),
    reset, h("span", {class: "muted hint"}, "drag over a chart to zoom, double-click for everything"));
  const element = h("div", {class: "overview"}, head, tools, charts, waits, h("h2", {}, "The newest samples"), histograms, others);

  function legendOf(run) {
    const many = context.runs.length > 1;
    return many ? h("button", {type: "button", class: "run", "aria-pressed": String(!hidden.has(run)), onclick: () => {
      hidden.has(run) ? hidden.delete(run) : hidden.add(run);
      drawHead();
      drawCurves();
    }}, h("i", {style: {background: runColour(run)}}), context.runs[run].name) : null;
  }

  function pill({status}) {
    return h("span", {class: `pill ${status}`}, status);
  }

  function progress({steps, planned}) {
    const share = planned ? Math.min(1, steps / planned) : 0;
    return h("span", {class: "progress"}, h("span", {}, `step ${steps}${planned ? ` of ${planned}` : ""}`),
      planned ? h("progress", {max: "1", value: String(share), "aria-label": percent(share, 0)}) : null);
  }

  function drawHead() {
    const found = state.map((one) => one.overview).filter(Boolean);
    if (!found.length) return;
    if (context.runs.length === 1) {
      const one = found[0];
      put(head, h("p", {class: "sentence"}, pill(one), progress(one), h("span", {}, one.sentence)),
        one.notes.length ? h("p", {class: "muted notes"}, one.notes.join("; ")) : null,
        h("div", {class: "tiles"}, one.tiles.map((tile) =>
          h("div", {class: "tile"}, h("span", {class: "label"}, tile.label), h("b", {}, tile.value), h("span", {class: "muted"}, tile.note || " ")))));
      return;
    }
    const labels = found[0].tiles.map((tile) => tile.label);
    put(head, h("div", {class: "scroll"}, h("table", {class: "compare"},
      h("thead", {}, h("tr", {}, h("th", {}, "run"), h("th", {}, "state"), h("th", {}, "steps"), labels.map((label) => h("th", {class: "number"}, label)))),
      h("tbody", {}, state.map((one, run) => one.overview && h("tr", {title: one.overview.sentence}, h("td", {}, legendOf(run)), h("td", {}, pill(one.overview)),
        h("td", {}, progress(one.overview)), one.overview.tiles.map((tile) => h("td", {class: "number"}, tile.value))))))));
  }

  function seriesOf(curve) {
    const series = [], many = context.runs.length > 1;
    state.forEach((one, run) => {
      if (hidden.has(run)) return;
      const name = many ? context.runs[run].name : "";
      if (curve.isEvaluation) {
        const found = one.overview ? one.overview.evaluations.filter((each) => xKey === "step" || each.time_s != null) : [];
        const perPublish = one.overview ? stepsPerVersion(one) : 1;
        series.push({label: name, colour: runColour(run), hasDots: true, ys: found.map((each) => each.accuracy),
          xs: found.map((each) => (xKey === "step" ? each.policy_version * perPublish : each.time_s))});
        return;
      }
      Object.entries(curve.keys).forEach(([label, key], place) => {
        const ys = one.columns[key];
        if (!ys || !ys.some((value) => value != null)) return;
        series.push({label: [name, label].filter(Boolean).join(" "), colour: runColour(many ? run : place),
          dash: many ? DASHES[place % DASHES.length] : [], bridges: true, xs: one.columns[xKey] || [], ys});
      });
    });
    return series;
  }

  function drawInto(parent, curve) {
    const series = seriesOf(curve);
    let chart = drawn.get(curve.title);
    if (!series.some((one) => one.xs.length)) {
      if (chart) chart.element.hidden = true;
      return;
    }
    if (!chart) {
      chart = new LineChart(view, curve);
      drawn.set(curve.title, chart);
      parent.append(chart.element);
    }
    chart.element.hidden = false;
    chart.set(series);
  }

  function drawCurves() {
    for (const curve of CURVES) drawInto(charts, curve);
    drawOthers();
  }

  function drawOthers() {
    const names = [...new Set(state.flatMap((one) => Object.keys(one.columns)))].filter((name) => !KNOWN.has(name)).sort();
    others.hidden = !names.length;
    put(others.firstChild, `More metrics (${names.length})`);
    if (others.open) for (const name of names) drawInto(more, {title: name, keys: {"": name}});
  }

  function drawWaits() {
    const rows = [], activities = [];
    state.forEach((one, run) => {
      for (const [role, shares] of Object.entries(one.overview ? one.overview.waits : {})) {
        activities.push(...Object.keys(shares));
        rows.push([run, role, shares]);
      }
    });
    const unique = [...new Set(activities)];
    const isWhole = state.every((one) => !one.overview || one.overview.waits_are_whole);
    put(waits, h("h2", {}, "Who waits for whom"), rows.map(([run, role, shares]) => {
      const [longest, share] = Object.entries(shares).filter(([name]) => name.startsWith("waiting")).sort((a, b) => b[1] - a[1])[0] || [];
      return h("div", {class: "wait"}, h("span", {class: "role"}, context.runs.length > 1 ? `${context.runs[run].name} ` : "", role),
        shareBar(shares, unique), h("span", {class: "muted"}, longest ? `${percent(share)} ${longest}` : "never waits"));
    }), rows.length ? activityLegend(unique) : h("p", {class: "muted"}, "No step was recorded yet."),
    isWhole || !rows.length ? null : h("p", {class: "muted"}, "Shares of metrics.jsonl: this run has no times.jsonl, which tells activities apart."));
  }

  async function load(run) {
    const one = state[run];
    const [found, curves] = await Promise.all([get(`runs/${run}/overview`),
      get(`runs/${run}/curves`, {start: (one.columns.step || []).length, rewrites: one.rewrites})]);
    if (isClosed) return;
    one.overview = found;
    if (curves.start === 0) one.columns = curves.columns;
    else append(one.columns, curves.columns, curves.start);
    one.rewrites = curves.rewrites;
    context.title(found.name);
  }

  async function loadHistograms() {
    const run = context.run;
    const found = await get(`runs/${run}/histograms`);
    if (isClosed) return;
    const {from, to} = found.steps;
    put(histograms, histogram("Staleness, versions", found.staleness, true), histogram("Reward", found.reward, false),
      histogram("Length, tokens", found.length, true));
    const steps = from == null ? "" : from === to ? `, step ${from}` : `, steps ${from} to ${to}`;
    put(histograms.previousSibling, `The newest samples${context.runs.length > 1 ? ` of ${context.runs[run].name}` : ""}${steps}`);
    if (found.files_waiting && !(to - from >= 49)) setTimeout(() => context.attempt(loadHistograms), 50);
  }

  async function update(changed) {
    await Promise.all(changed.map(load));
    if (isClosed) return;
    drawHead();
    drawCurves();
    drawWaits();
    const partial = changed.filter((run) => state[run].overview.is_partial);
    if (partial.length) setTimeout(() => isClosed || context.attempt(() => update(partial)), 100);
    if (changed.includes(context.run) && performance.now() - countedAt > HISTOGRAM_MS) {
      countedAt = performance.now();
      await loadHistograms();
    }
  }

  return {element, update, start: () => update(context.runs.map((_, run) => run)), redraw: () => { drawHead(); drawCurves(); drawWaits(); },
    close: () => {
      isClosed = true;
      for (const chart of drawn.values()) chart.close();
    }};
}

/** Steps that one version stands for: what was recorded of both. */
function stepsPerVersion({columns}) {
  const steps = columns.step || [], versions = columns.version || [];
  const last = steps.length - 1;
  if (last < 1 || !(versions[last] > versions[0])) return 1;
  return Math.max(1, Math.round((steps[last] - steps[0]) / (versions[last] - versions[0])));
}

/** Append new steps to columns; a metric that appears later has nulls before. */
function append(columns, added, start) {
  const length = start + (added.step || []).length;
  for (const name of new Set([...Object.keys(columns), ...Object.keys(added)])) {
    const column = columns[name] || (columns[name] = []);
    while (column.length < start) column.push(null);
    column.push(...(added[name] || []));
    while (column.length < length) column.push(null);
  }
}
