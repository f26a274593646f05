// Events by weight, kind and cause: trouble first, each group opens to its last events.

import {get} from "./api.js";
import {debounced, h, put} from "./dom.js";
import {nth, plural, seconds, whole} from "./format.js";

const WEIGHTS = [["trouble", "Trouble"], ["over", "Trouble that is over"], ["news", "News"], ["routine", "Routine"]];

export function events(context) {
  let isClosed = false;
  const kind = h("select", {"aria-label": "kind", onchange: () => context.attempt(update)}, h("option", {value: ""}, "every kind"));
  const soon = debounced(() => context.attempt(update), 200);
  const node = h("input", {type: "search", placeholder: "node", "aria-label": "node", oninput: soon});
  const text = h("input", {type: "search", placeholder: "text in any field", "aria-label": "text", oninput: soon});
  const count = h("span", {class: "muted"});
  const list = h("div", {});
  const summary = h("p", {class: "sentence"});
  const element = h("div", {class: "events"}, summary, h("div", {class: "tools"}, kind, node, text, count), list);
  const open = new Set();

  const filters = () => ({kind: kind.value, node: node.value.trim(), text: text.value.trim()});

  function draw({groups, kinds, sentence, num_events: total}) {
    put(summary, sentence);
    const chosen = kind.value;
    put(kind, h("option", {value: ""}, "every kind"), kinds.map((name) => h("option", {value: name}, name)));
    kind.value = kinds.includes(chosen) ? chosen : "";
    const shown = groups.reduce((sum, group) => sum + group.num, 0);
    put(count, `${shown === total ? plural(total, "event") : `${whole(shown)} of ${plural(total, "event")}`} in ${plural(groups.length, "group")}`);
    const sections = WEIGHTS.map(([weight, title]) => [title, weight, groups.filter((group) => group.weight === weight)]).filter(([, , own]) => own.length);
    put(list, sections.map(([title, weight, own]) => h("section", {}, h("h2", {class: weight === "trouble" ? "bad" : ""}, title), h("div", {class: "groups"}, own.map(groupElement)))),
      groups.length ? null : h("p", {class: "muted"}, "No event matches."));
  }

  function groupElement(group) {
    const inside = h("div", {class: "scroll"});
    const ends = [...new Set([group.first_s, group.last_s].map(seconds))];
    const when = group.first_s == null ? group.last_at : ends.length === 1 ? `at ${ends[0]}` : ends.join(" to ");
    const nodes = group.nodes.length === 1 ? group.nodes[0] : group.nodes.length ? plural(group.nodes.length, "node") : "";
    const element = h("details", {ontoggle: (event) => {
      if (!event.target.open) return open.delete(group.id);
      open.add(group.id);
      return context.attempt(() => fill(group, inside));
    }}, h("summary", {}, h("span", {class: `kind ${group.weight}`}, group.kind), h("b", {class: "times"}, `× ${whole(group.num)}`),
      h("span", {class: group.cause ? "cause" : "cause muted"}, group.cause || group.details, group.counted ? h("b", {}, ` ${whole(group.counted)} in all`) : null,
        group.end ? h("span", {class: "good"}, `, ${group.num > 1 ? "the last " : ""}${group.end}`) : null),
      h("span", {class: "muted nodes"}, nodes), h("span", {class: "muted when"}, when)), inside);
    if (open.has(group.id)) element.open = true;
    return element;
  }

  async function fill(group, inside) {
    const found = await get(`runs/${context.run}/events`, {...filters(), group: group.id});
    const skipped = ["event", "time_s"];
    const fields = [...new Set(found.events.flatMap((event) => Object.keys(event)))].filter((name) => !skipped.includes(name));
    const reversed = [...found.events].reverse();
    put(inside, h("table", {}, h("thead", {}, h("tr", {}, h("th", {class: "number"}, "time"), fields.map((name) => h("th", {}, name)))),
      h("tbody", {}, reversed.map((event) => h("tr", {}, h("td", {class: "number"}, seconds(event.time_s)), fields.map((name) => h("td", {}, shown(name === "step" ? nth(event.step) : event[name]))))))),
    group.num > found.events.length ? h("p", {class: "muted"}, `the last ${found.events.length} of ${whole(group.num)}`) : null);
  }

  async function update() {
    const found = await get(`runs/${context.run}/events`, filters());
    if (!isClosed) draw(found);
  }

  return {element, start: update, update: (changed) => (changed.includes(context.run) ? update() : null), redraw: () => {}, close: () => { isClosed = true; }};
}

function shown(value) {
  if (value == null) return "";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}
