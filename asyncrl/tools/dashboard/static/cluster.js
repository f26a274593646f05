// The nodes of a run: who is there, who was lost and why, and what each does with its time.

import {get} from "./api.js";
import {h, put} from "./dom.js";
import {plural, seconds, UNKNOWN} from "./format.js";
import {activityLegend, shareBar} from "./shares.js";
import {VirtualTable} from "./virtual_table.js";

export function cluster(context) {
  let nodes = [], activities = [], isClosed = false;
  const summary = h("p", {class: "sentence"});
  const legend = h("div", {});
  const search = h("input", {type: "search", placeholder: "node, role, state or cause", "aria-label": "filter nodes", oninput: () => draw()});
  const count = h("span", {class: "muted"});
  const table = new VirtualTable([
    {name: "name", label: "node", class: "name", sort: (node) => node.name, cell: (node) => h("span", {title: node.name}, node.name)},
    {name: "role", label: "role", class: "wide-only", sort: (node) => node.role, cell: (node) => node.role},
    {name: "state", label: "state", class: "state", sort: (node) => node.state, cell: (node) => h("span", {class: `pill ${node.state}`}, node.state)},
    {name: "since", label: "since", class: "number wide-only", sort: (node) => node.since_s, cell: (node) => seconds(node.since_s)},
    {name: "version", label: "version", class: "number", sort: (node) => node.version, cell: (node) => node.version ?? UNKNOWN},
    {name: "shares", label: "time, last steps", class: "bar wide-only", sort: waiting, cell: (node) => (Object.keys(node.shares).length ? shareBar(node.shares, activities) : UNKNOWN)},
    {name: "joined", label: "joins", class: "number wide-only", sort: (node) => node.joined, cell: (node) => node.joined},
    {name: "losses", label: "losses", class: "number", sort: (node) => node.losses, cell: (node) => h("span", {class: node.losses ? "bad" : "muted"}, node.losses)},
    {name: "cause", label: "cause of its last end", class: "text", sort: (node) => node.cause, cell: (node) => h("span", {title: node.cause}, node.cause)},
  ], {label: "nodes"});
  const element = h("div", {class: "cluster"}, summary, legend, h("div", {class: "tools"}, search, count), table.element);

  function draw() {
    const wanted = search.value.toLowerCase();
    const shown = nodes.filter((node) => !wanted || `${node.name} ${node.role} ${node.state} ${node.cause}`.toLowerCase().includes(wanted));
    put(count, shown.length === nodes.length ? plural(nodes.length, "node") : `${shown.length} of ${plural(nodes.length, "node")}`);
    table.set(shown);
  }

  function describe(hasTimes) {
    const roles = [...new Set(nodes.map((node) => node.role))];
    put(summary, h("span", {}, roles.map((role) => {
      const own = nodes.filter((node) => node.role === role);
      const ready = own.filter((node) => node.state === "ready").length;
      const gone = own.filter((node) => node.state === "lost" || node.state === "exited").length;
      return `${own.length} ${role || "unknown"}${ready && ready < own.length ? ` (${ready} ready)` : ""}${gone ? `, ${gone} lost` : ""}`;
    }).join(" · ") || "No node has joined yet."));
    put(legend, hasTimes ? activityLegend(activities) : h("p", {class: "muted"}, "This run has no times.jsonl, so the shares of each node's time are not known; version is that of the newest sample a node wrote."));
  }

  async function update() {
    const found = await get(`runs/${context.run}/cluster`);
    if (isClosed) return;
    ({nodes, activities} = found);
    describe(found.has_times);
    draw();
    if (found.is_partial) setTimeout(() => isClosed || context.attempt(update), 100);
  }

  return {element, start: update, update: (changed) => (changed.includes(context.run) ? update() : null), redraw: draw, close: () => {
    isClosed = true;
    table.close();
  }};
}

function waiting(node) {
  return Object.entries(node.shares).filter(([name]) => name.startsWith("waiting")).reduce((sum, [, share]) => sum + share, 0);
}
