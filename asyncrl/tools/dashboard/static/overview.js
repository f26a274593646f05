// How a run goes: headline numbers, who waits for whom, curves over steps or time, and the newest samples.

import {get} from "./api.js";
import {colour, runColour} from "./colours.js";
import {comparisonText, h, put} from "./dom.js";
import {nth, percent, plural, UNKNOWN} from "./format.js";
import {histogram} from "./histogram.js";
import {LineChart, View} from "./line_chart.js";
import {rewardElement} from "./samples.js";
import {kindLegend, shareBar} from "./shares.js";

// Curves in order of interest. `keys`: legend entry to metric. Those without any data are left out.
const CURVES = [
  {title: "Reward", keys: {"": "reward"}},
  {title: "Held-out accuracy", isEvaluation: true, isPercent: true},
  {title: "Length, tokens", keys: {mean: "length_mean", longest: "length_max"}, fromZero: true},
  {title: "KL from the policy that sampled (k3), nats per token", keys: {"": "kl"}, fromZero: true},
  {title: "Entropy of trained tokens, nats", keys: {"": "entropy"}},
  {title: "Staleness, versions", keys: {mean: "staleness_mean", max: "staleness_max"}, fromZero: true},
  {title: "Trained tokens / s", keys: {"": "tokens_per_s"}, fromZero: true, isRecent: true},
  {title: "Time waiting", keys: {trainer: "wait_trainer", rollouts: "wait_rollout"}, isPercent: true, fromZero: true, isRecent: true},
  {title: "Loss", keys: {"": "loss"}},
  {title: "Gradient norm", keys: {"": "grad_norm"}, fromZero: true},
  {title: "Log-prob gap, nats", keys: {mean: "logprob_gap_mean", max: "logprob_gap_max"}, isLog: true},
  {title: "Seconds of a step", keys: {step: "step_s", training: "train_s", publish: "publish_s"}, fromZero: true},
  {title: "Clipped tokens, cut completions", keys: {clipped: "clip_fraction", cut: "truncated"}, isPercent: true, fromZero: true},
  {title: "KL to the reference, nats", keys: {"in the loss": "kl_ref", "in the reward": "kl_in_reward"}},
  {title: "Turns of an episode", keys: {mean: "turns_mean", most: "turns_max"}, fromZero: true},
  {title: "Trajectories without an advantage", keys: {"": "zero_advantage_fraction"}, isPercent: true, fromZero: true},
];
const KNOWN = new Set(["step", ...CURVES.flatMap((curve) => Object.values(curve.keys || {}))]);
const ACCURACY = "held-out accuracy"; // the result by which runs are compared: its tile
const SMOOTHING = 10; // steps of a point of several runs, whose raw curves hide each other: the span of the table's numbers
const SHOWN_SAMPLES = 3;
const HISTOGRAM_MS = 10_000; // between two looks at the newest samples

/** The state of a run, and how many of its nodes are lost; `nodes` is the address of the page that says more of these. */
export function statePills({status, num_lost: lost}, nodes) {
  return [h("span", {class: `pill ${status}`}, status), lost ? h("a", {class: "pill lost", href: nodes}, `${plural(lost, "node")} lost`) : null];
}

/** Steps done of those that are planned; null if nothing tells how many are. */
export function progressBar({steps, planned}) {
  const share = planned ? Math.min(1, steps / planned) : 0;
  return planned ? h("progress", {max: "1", value: String(share), "aria-label": percent(share, 0)}) : null;
}

export function overview(context) {
  const view = new View(), many = context.runs.length > 1;
  view.smoothing = many ? SMOOTHING : 1;
  const state = context.runs.map(() => ({columns: {}, rewrites: 0, overview: null}));
  const hidden = new Set();
  const head = h("section", {class: "head"});
  const charts = h("section", {class: "charts"});
  const more = h("section", {class: "charts"});
  const waits = h("section", {class: "waits"});
  const texts = h("section", {class: "cards texts"});
  const histograms = h("section", {class: "charts three"});
  const others = h("details", {class: "more", ontoggle: () => drawOthers()}, h("summary", {}, "More metrics"), more);
  const drawn = new Map();
  let comparison = null, xKey = "step", isApart = false, isClosed = false, countedAt = -Infinity;

  const smoothing = h("input", {type: "range", min: "1", max: "50", step: "1", value: String(view.smoothing), "aria-label": "steps of which each point is the mean",
    oninput: (event) => {
      view.smoothing = Number(event.target.value);
      put(meanOf, meanText());
      view.redraw();
    }});
  const meanText = () => (view.smoothing > 1 ? `mean of ${view.smoothing} steps` : "each step");
  const meanOf = h("span", {class: "mean-of"}, meanText());
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
  const layout = many ? h("select", {"aria-label": "layout", onchange: (event) => {
    isApart = event.target.value === "apart";
    forget();
    drawCurves();
  }}, h("option", {value: "together"}, "runs together"), h("option", {value: "apart"}, "a chart for each run")) : null;
  const marked = h("span", {class: "legend", hidden: true}, h("span", {}, h("i", {class: "restart"}), "the broker was started again"));
  const sparse = h("span", {class: "muted"});
  const tools = h("div", {class: "tools"}, axis, layout, h("label", {}, "points: ", smoothing, " ", meanOf), h("label", {class: "check"}, log, " log axis"),
    reset, marked, sparse, h("span", {class: "muted hint"}, "drag over a chart to zoom, double-click for everything"));
  const newest = h("h2", {hidden: true}, "The newest samples"), begins = h("p", {hidden: true});
  const element = h("div", {class: "overview"}, head, begins, many ? null : waits, tools, charts, many ? waits : [newest, texts, histograms], others);

  function legendOf(run) {
    return many ? h("button", {type: "button", class: "run", "aria-pressed": String(!hidden.has(run)), onclick: () => {
      hidden.has(run) ? hidden.delete(run) : hidden.add(run);
      drawHead();
      drawCurves();
    }}, h("i", {style: {background: runColour(run)}}), context.runs[run].name) : null;
  }

  function drawHead() {
    const found = state.map((one) => one.overview).filter(Boolean);
    if (!found.length) return;
    if (context.runs.length === 1) {
      const one = found[0];
      put(head, one.notes.length ? h("p", {class: "muted notes"}, one.notes.join("; ")) : null,
        h("div", {class: "tiles"}, one.tiles.filter((tile) => one.steps || tile.value !== UNKNOWN).map((tile) =>
          h("div", {class: "tile"}, h("span", {class: "label"}, tile.label), h("b", {}, tile.value), h("span", {class: "muted"}, tile.note || " ")))));
      return;
    }
    if (!comparison) return;
    // What runs are compared by first: on a phone the rest is behind the edge.
    const labels = found[0].tiles.map((tile) => tile.label);
    const isLong = found.every((one) => one.steps >= 2 * SMOOTHING); // else its reward is that of half of the steps
    const order = [ACCURACY, ...labels.filter((label) => label !== ACCURACY)].map((label) => labels.indexOf(label));
    const [first, ...rest] = order;
    const cell = (one, run, place) => h("td", {class: `number ${labels[place] === ACCURACY && comparison.best === run ? "best" : ""}`, title: one.overview.tiles[place].note}, one.overview.tiles[place].value);
    put(head, h("p", {class: "sentence lead"}, comparisonText(comparison)), h("div", {class: "scroll"}, h("table", {class: "compare"},
      h("thead", {}, h("tr", {}, h("th", {}, "run"), h("th", {class: "number"}, ACCURACY), comparison.columns.map((key) => h("th", {class: "number"}, key)), rest.map((place) => h("th", {class: "number"}, labels[place])),
        comparison.is_alike ? null : [h("th", {}, "state"), h("th", {}, "steps")])),
      h("tbody", {}, state.map((one, run) => one.overview && h("tr", {title: one.overview.state.doing}, h("td", {}, legendOf(run)), cell(one, run, first),
        comparison.columns.map((key) => h("td", {class: "number"}, comparison.settings[key][run])), rest.map((place) => cell(one, run, place)),
        comparison.is_alike ? null : [h("td", {}, statePills(one.overview, `#/cluster${run ? `?run=${run}` : ""}`)),
          h("td", {}, h("span", {class: "progress"}, `${one.overview.steps}${one.overview.planned ? ` of ${one.overview.planned}` : ""}`, progressBar(one.overview)))]))))),
      h("p", {class: "muted"}, `${isLong ? "Reward, length" : "Length"} and pace are means of the ${found[0].recently}, as the ends of the curves below; ${isLong ? "" : "reward is that of the last half of the steps, "}staleness and log-prob gap are of all steps.`));
  }

  /** Lines of a curve, of all runs or of `only` one. Of several runs only the first line of a curve is drawn. */
  function seriesOf(curve, only = null) {
    const series = [];
    state.forEach((one, run) => {
      if (hidden.has(run) || (only != null && run !== only)) return;
      const name = many ? context.runs[run].name : "";
      if (curve.isEvaluation) {
        const found = one.overview ? one.overview.evaluations.filter((each) => xKey === "step" || each.time_s != null) : [];
        const perPublish = one.overview ? stepsPerVersion(one) : 1;
        series.push({label: name, colour: runColour(run), hasDots: true, ys: found.map((each) => each.accuracy),
          xs: found.map((each) => (xKey === "step" ? each.policy_version * perPublish : each.time_s))});
        return;
      }
      Object.entries(curve.keys).slice(0, many ? 1 : undefined).forEach(([label, key], place) => {
        const ys = one.columns[key];
        if (!ys || !ys.some((value) => value != null)) return;
        series.push({label: name || label, colour: runColour(many ? run : place), bridges: true, xs: xKey === "step" ? (one.columns.step || []).map(nth) : one.columns[xKey] || [], ys});
      });
    });
    return series;
  }

  function forget() {
    for (const chart of drawn.values()) {
      chart.close();
      chart.element.remove();
    }
    drawn.clear();
  }

  function titleOf({title, keys}) {
    const [first] = Object.keys(keys || {});
    return many && first ? `${title}: ${first}` : title;
  }

  function drawInto(parent, curve) {
    const all = seriesOf(curve);
    if (isApart) context.runs.forEach((run, place) => drawOne(parent, `${titleOf(curve)} · ${run.name}`, curve, seriesOf(curve, place), all));
    else drawOne(parent, titleOf(curve), curve, all, all);
  }

  /** `all`: every line of the curve, which charts of one run beside another have the y axis of. */
  function drawOne(parent, title, curve, series, all) {
    let chart = drawn.get(title);
    if (!series.some((one) => one.xs.length)) {
      if (chart) chart.element.hidden = true;
      return;
    }
    if (!chart) {
      const point = curve.isEvaluation ? "evaluation" : "step";
      const span = !curve.isRecent ? `${many ? "each" : "last"} ${point}` : many ? `mean of ${SMOOTHING} steps` : `mean of ${state[0].overview.recently}`;
      chart = new LineChart(view, {...curve, title, span, hasNumber: !many});
      drawn.set(title, chart);
      parent.append(chart.element);
    }
    chart.element.hidden = false;
    chart.set(series, all);
  }

  /** Restarts of brokers, between the last step before and the first one after. */
  function drawMarks() {
    view.marks = state.flatMap((one, run) => (one.overview && !hidden.has(run) ? one.overview.restarts : []).map(({step, time_s: time}) =>
      ({x: xKey === "step" ? step + 0.5 : time, colour: many ? runColour(run) : colour("muted")})));
    marked.hidden = !view.marks.length;
  }

  function drawCurves() {
    drawMarks();
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
    const rows = state.flatMap((one, run) => (one.overview && !hidden.has(run) ? Object.entries(one.overview.waits).map(([role, shares]) => [run, role, shares]) : []));
    const isWhole = state.every((one) => !one.overview || one.overview.waits_are_whole);
    put(waits, h("h2", {}, "Who waits for whom", rows.length ? h("span", {class: "muted"}, ` of the time of ${many ? "all steps" : state[0].overview.all_steps}`) : null), rows.map(([run, role, shares]) => {
      const {kinds, waited} = state[run].overview, text = waited[role] || "";
      return h("div", {class: "wait"}, h("span", {class: "role"}, many ? h("i", {class: "dot", style: {background: runColour(run)}}) : null, many ? `${context.runs[run].name} ` : "", role),
        shareBar(shares, kinds), h("span", {class: "muted", title: text}, text));
    }), rows.length ? kindLegend() : h("p", {class: "muted"}, "No step was recorded yet."),
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
    if (curves.every > 1) put(sparse, `of older steps every ${curves.every}th is drawn`);
    context.title(found.name);
  }

  async function loadHistograms() {
    const found = await get("runs/0/histograms");
    if (isClosed) return;
    const {from, to} = found.steps;
    put(histograms, histogram("Staleness, versions", found.staleness, true), histogram("Reward", found.reward, false),
      histogram("Length, tokens", found.length, true));
    const steps = from == null ? "" : from === to ? `, step ${nth(from)}` : `, steps ${nth(from)} to ${nth(to)}`;
    put(newest, `The newest samples${steps}`);
    await loadTexts();
    if (found.files_waiting && !(to - from >= 49)) setTimeout(() => context.attempt(loadHistograms), 50);
  }

  /** A few samples of the newest step, each of another prompt. */
  async function loadTexts() {
    const {rows} = await get("runs/0/newest");
    const groups = new Map(rows.map((row) => [row.group_id, row]));
    const shown = [...groups.values()].slice(0, SHOWN_SAMPLES).filter((row) => row.file === rows[0].file);
    if (!shown.length || isClosed) return put(texts);
    const [{split, file}] = shown;
    const {excerpts} = await get("runs/0/excerpts", {split, file, rows: shown.map((row) => row.row).join(",")});
    if (isClosed) return null;
    return put(texts, shown.map((row, i) => h("a", {class: "card sample", href: `#/samples?${new URLSearchParams({open: `${split}/${file}/${row.group_id}/${row.index}`})}`},
      h("header", {}, h("b", {}, "reward ", rewardElement(row.reward)), h("span", {class: "muted"}, `${row.num_tokens} tokens${row.finish_reason === "length" ? ", cut" : ""}`)),
      h("pre", {class: "muted"}, excerpts[i].prompt), h("pre", {}, excerpts[i].completion))));
  }

  async function update(changed) {
    await Promise.all([...changed.map(load), many ? get("comparison").then((found) => { comparison = found; }) : null]);
    if (isClosed) return;
    const hasSteps = state.some((one) => one.overview.steps);
    for (const part of [waits, tools, charts, newest]) part.hidden = !hasSteps;
    begins.hidden = hasSteps;
    put(begins, many ? null : `${state[0].overview.begins} `, h("span", {class: "muted"}, "Curves, waits and samples begin with the first step."));
    drawHead();
    drawCurves();
    drawWaits();
    const partial = changed.filter((run) => state[run].overview.is_partial);
    if (partial.length) setTimeout(() => isClosed || context.attempt(() => update(partial)), 100);
    if (!many && hasSteps && performance.now() - countedAt > HISTOGRAM_MS) {
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
