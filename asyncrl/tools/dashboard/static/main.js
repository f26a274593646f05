// The frame: which page is shown, of which run, the state of that run, and what happens when a run changes.
//
//     #/samples?run=0&reward_min=1        the address of a page says all that it shows

import {follow, get} from "./api.js";
import {runColour, onScheme} from "./colours.js";
import {cluster} from "./cluster.js";
import {h, marked, put} from "./dom.js";
import {events} from "./events.js";
import {overview, progressBar, statePills} from "./overview.js";
import {samples} from "./samples.js";
import {settings} from "./settings.js";
import {timeline} from "./timeline.js";

const PAGES = {
  overview: ["Overview", overview], cluster: ["Cluster", cluster], samples: ["Samples", samples], timeline: ["Timeline", timeline],
  events: ["Events", events], config: ["Config", settings],
};
const PAUSE_MS = 2000; // between two updates
const STATE_MS = 5000; // between two looks at the state of a run of which nothing new is recorded
const OF_ALL_RUNS = ["overview", "config"]; // pages that show every run at once

const top_ = document.getElementById("top"), main = document.getElementById("page");
const problem = h("p", {class: "problem", role: "alert", hidden: true});
const connection = h("span", {class: "pill lost", title: "the dashboard's process does not answer", hidden: true}, "not connected");
const pills = h("span", {class: "states"});
const state = h("p", {class: "sentence lead state-line", hidden: true});
let runs = [], page = null, shown = "", isUpdating = false;
const waiting = new Set(); // numbers of runs that changed

function place() {
  const [name, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const parameters = new URLSearchParams(query);
  const run = Number(parameters.get("run") || 0);
  return {name: name in PAGES ? name : "overview", parameters, run: run >= 0 && run < runs.length ? run : 0};
}

function link(name, run) {
  return `#/${name}${run ? `?run=${run}` : ""}`;
}

/** Do something that may fail; a failure is told above the page until something succeeds. */
async function attempt(action) {
  try {
    await action();
    problem.hidden = true;
  } catch (error) {
    put(problem, error.message);
    problem.hidden = false;
  }
}

function show() {
  const {name, parameters, run} = place();
  shown = location.hash;
  page?.close();
  const context = {
    runs, run, parameters, attempt,
    title: (text) => { document.title = `${runs.length > 1 ? `${runs.length} runs` : text} · asyncrl`; },
    /** Put parameters into the address, as a new entry of the history or in place of this one. */
    remember: (values, isNew = false) => {
      const query = new URLSearchParams(values);
      if (run) query.set("run", run);
      const text = query.toString();
      shown = `#/${name}${text ? `?${text}` : ""}`;
      history[isNew ? "pushState" : "replaceState"](null, "", shown);
    },
  };
  page = PAGES[name][1](context);
  const isOne = runs.length > 1 && !OF_ALL_RUNS.includes(name);
  put(top_, h("a", {class: "brand", href: "#/overview"}, "asyncrl"), h("nav", {"aria-label": "pages"}, Object.entries(PAGES).map(([key, [title]]) =>
    h("a", {href: link(key, run), "aria-current": key === name ? "page" : null}, title))),
    isOne ? h("span", {class: "muted"}, `one of ${runs.length} runs:`) : null,
    isOne ? h("select", {"aria-label": "run", onchange: (event) => { location.hash = link(name, Number(event.target.value)); }},
      runs.map((one, i) => h("option", {value: String(i), selected: i === run}, one.name))) : null,
    h("span", {class: "run-name"}, runs.length > 1 ? (isOne ? null : `${runs.length} runs`) : runs[0].name), pills, connection);
  describe();
  if (isOne) top_.style.setProperty("--run", runColour(run));
  put(main, problem, put(state), page.element);
  top_.querySelector("[aria-current]")?.scrollIntoView({block: "nearest", inline: "nearest"});
  const own = page;
  attempt(() => Promise.all([own.start(), drawState()]));
}

/** True on a page of one run. */
function isOfOne({name}) {
  return runs.length === 1 || !OF_ALL_RUNS.includes(name);
}

/** The state of the run that is shown, on every page but those of several runs. */
function describe() {
  const now = place();
  pills.hidden = state.hidden = !isOfOne(now);
  main.classList.toggle("stale", isOfOne(now) && runs[now.run]?.status === "stopped");
  put(pills, runs[now.run] ? statePills(runs[now.run], link("cluster", now.run)) : null);
}

/** What the run does, and whether that is well: the same line on each of its pages. */
async function drawState() {
  const {name, run} = place();
  if (!isOfOne({name})) return;
  const found = await get(`runs/${run}/state`);
  if (run !== place().run) return;
  put(state, progressBar(found), h("span", {}, marked(found.doing)), h("span", {class: "verdict"}, h("b", {class: found.verdict}, found.word), " ", marked(found.because)));
  if (found.is_partial) setTimeout(() => attempt(drawState), 100);
}

function changed(found) {
  const which = found.map((run, i) => [run, runs[i]]).flatMap(([now, before], i) => (before && before.revision === now.revision ? [] : [i]));
  const isFirst = found.length !== runs.length;
  runs = found;
  describe();
  if (isFirst) show();
  else for (const run of which) waiting.add(run);
  updateSoon();
}

/** Update the page for the runs that changed: one update at a time, and a pause after each, whatever the run's pace. */
async function updateSoon() {
  if (isUpdating || !waiting.size || !page) return;
  isUpdating = true;
  while (waiting.size) {
    const which = [...waiting], own = page;
    waiting.clear();
    await attempt(() => Promise.all([own.update(which), which.includes(place().run) ? drawState() : null]));
    await new Promise((done) => setTimeout(done, PAUSE_MS));
  }
  isUpdating = false;
}

window.addEventListener("hashchange", () => location.hash !== shown && show());
window.addEventListener("popstate", () => location.hash !== shown && show());
onScheme(() => page?.redraw());
setInterval(() => page && !runs.every((run) => run.is_over) && attempt(drawState), STATE_MS);

put(main, problem);
await attempt(async () => changed((await get("runs")).runs));
follow(changed, (isConnected) => { connection.hidden = isConnected || runs.every((run) => run.is_over); });
