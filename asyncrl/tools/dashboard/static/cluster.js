// The nodes of a run: who is there, who was lost and why, and what each does with its time.

import {get} from "./api.js";
import {h, put} from "./dom.js";
import {percent, plural, seconds, UNKNOWN} from "./format.js";
import {kindLegend, shareBar} from "./shares.js";
import {VirtualTable} from "./virtual_table.js";

const GONE = ["lost", "exited"];
const NAMED = 5; // nodes whose end is told in a sentence

export function cluster(context) {
  let nodes = [], kinds = {}, isClosed = false;
  const summary = h("p", {class: "sentence"});
  const ends = h("div", {});
  const legend = h("div", {class: "wide-only"});
  const search = h("input", {type: "search", placeholder: "node, role, state or cause", "aria-label": "filter nodes", oninput: () => draw()});
  const count = h("span", {class: "muted"});
  const use = (name, label, title, kind = "wide-only") => ({name, label, title, class: `number use ${kind}`, sort: (node) => node.use[name], cell: (node) =>
    h("span", {class: !["cores", "device"].includes(name) && node.use[name] > 0.9 ? "bad" : "", title}, node.use[name] == null ? UNKNOWN : percent(node.use[name], 0))});
  const isUse = (column) => column.class.split(" ").includes("use");
  const columns = [
    {name: "name", label: "node", class: "name", sort: (node) => node.name, cell: (node) => h("span", {title: node.name}, node.name)},
    {name: "role", label: "role", class: "role wide-only", sort: (node) => node.role, cell: (node) => node.role},
    {name: "state", label: "state", class: "state", sort: (node) => node.state, cell: (node) => h("span", {class: `pill ${node.state}`, title: node.cause}, node.state)},
    {name: "since", label: "since", class: "number since wide-only", sort: (node) => node.since_s, cell: (node) => (node.since_s == null ? UNKNOWN : `at ${seconds(node.since_s)}`)},
    {name: "version", label: "last sample", class: "number version wide-only", sort: (node) => node.version, cell: (node) =>
      h("span", {title: "the newest policy version in a sample that it wrote; newer weights are live until it has sampled with them"}, node.version == null ? UNKNOWN : `of v${node.version}`)},
    use("cores", "machine CPU", "busy cores of its whole machine, whoever uses them", ""), use("memory", "machine memory", "memory of its whole machine in use, by whomever", ""),
    use("device", "device", "share of time in which its device computes"), use("device memory", "dev. mem", "memory of its device in use"),
    use("disk", "machine disk", "disk with its working folder in use, by whomever"),
    {name: "shares", label: "time, last 20 steps", class: "bar wide-only", sort: waiting, cell: (node) => (Object.keys(node.shares).length ? shareBar(node.shares, kinds) : UNKNOWN)},
    {name: "losses", label: "times lost", class: "number losses", sort: (node) => node.losses, cell: (node) => h("span", {class: node.losses ? "bad" : "muted", title: `joined ${plural(node.joined, "time")}`}, node.losses)},
    {name: "cause", label: "cause", class: "text wide-only", sort: (node) => node.cause, cell: (node) => h("span", {title: node.cause}, node.cause)},
  ];
  const table = new VirtualTable(columns, {label: "nodes"});
  const element = h("div", {class: "cluster"}, ends, summary, legend, h("div", {class: "tools"}, search, count), table.element);

  function waiting(node) {
    return Object.entries(node.shares).filter(([name]) => (kinds[name] || "").startsWith("waits")).reduce((sum, [, share]) => sum + share, 0);
  }

  function draw() {
    const wanted = search.value.toLowerCase();
    const shown = nodes.filter((node) => !wanted || `${node.name} ${node.role} ${node.state} ${node.cause}`.toLowerCase().includes(wanted));
    put(count, shown.length === nodes.length ? plural(nodes.length, "node") : `${shown.length} of ${plural(nodes.length, "node")}`);
    table.set(shown);
  }

  function describe({has_times: hasTimes, sentence}) {
    put(summary, sentence);
    const gone = nodes.filter((node) => GONE.includes(node.state));
    put(ends, gone.slice(0, NAMED).map((node) => h("p", {class: "end"}, h("b", {class: "bad"}, `${node.name} ${node.state}`), ` at ${seconds(node.since_s)}${node.cause ? `: ${node.cause}` : ""}`)),
      gone.length > NAMED ? h("p", {class: "muted"}, `and ${gone.length - NAMED} more`) : null);
    put(legend, hasTimes ? kindLegend() : h("p", {class: "muted"}, "What nodes do with their time is in times.jsonl, which begins with the first step."));
    table.columns = columns.filter((column) => !isUse(column) || nodes.some((node) => node.use[column.name] != null));
    table.drawHead();
  }

  async function update() {
    const found = await get(`runs/${context.run}/cluster`);
    if (isClosed) return;
    ({nodes, kinds} = found);
    describe(found);
    draw();
    if (found.is_partial) setTimeout(() => isClosed || context.attempt(update), 100);
  }

  return {element, start: update, update: (changed) => (changed.includes(context.run) ? update() : null), redraw: draw, close: () => {
    isClosed = true;
    table.close();
  }};
}
