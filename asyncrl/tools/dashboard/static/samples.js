// Samples of a run: filtered and sorted by their numbers on the server, a page at a time; a row opens its group.

import {get} from "./api.js";
import {debounced, h, put} from "./dom.js";
import {number, plural, whole} from "./format.js";
import {groupView} from "./group.js";

const RANGES = ["step", "reward", "length", "staleness", "turns"];
const PAGE = 50;
const SORTS = {step: "step", reward: "reward", length: "length", staleness: "staleness", turns: "turns", group: "group"};

const END = 16; // characters of a completion that no narrow column cuts: a reward reads them

function withEnd(text) {
  const at = text.length - END;
  if (at <= 0) return text;
  const [begin, end] = [text.slice(0, at).replace(/\s+$/, "\u00a0"), text.slice(at).replace(/^\s+/, "\u00a0")];
  return h("div", {class: "with-end"}, h("span", {}, begin), h("span", {}, end));
}

export function samples(context) {
  let isClosed = false, offset = 0, request = null, asked = 0, isBuilding = false;
  const parameters = context.parameters;
  const isFiltered = [...parameters.keys()].some((name) => !["run", "open"].includes(name));
  const inputs = {};
  const soon = debounced(() => { offset = 0; changed(); }, 80);
  const now = () => { offset = 0; changed(); };

  function range(name) {
    const field = (end) => (inputs[`${name}_${end}`] = h("input", {type: "number", step: "any", placeholder: end, "aria-label": `${name}, ${end}imum`,
      value: parameters.get(`${name}_${end}`) || "", oninput: soon}));
    return h("fieldset", {}, h("legend", {}, name), field("min"), h("span", {class: "muted"}, "–"), field("max"));
  }

  function select(name, label, options) {
    const element = inputs[name] = h("select", {onchange: now}, options.map(([value, text]) => h("option", {value}, text)));
    element.value = parameters.get(name) || options[0][0];
    return h("label", {class: "field"}, h("span", {}, label), element);
  }

  const filters = h("form", {class: "filters", onsubmit: (event) => event.preventDefault()},
    RANGES.map(range),
    select("truncated", "truncated", [["", "any"], ["yes", "yes"], ["no", "no"]]),
    select("split", "from", [["", "any"], ["train", "training"], ["held_out", "held out"]]),
    select("node", "node", [["", "any"]]),
    select("data_source", "source", [["", "any"]]),
    select("sort", "sort by", Object.entries(SORTS)),
    select("order", "order", [["descending", "largest first"], ["ascending", "smallest first"]]),
    h("button", {type: "button", onclick: () => {
      for (const [name, input] of Object.entries(inputs)) input.value = name === "sort" ? "step" : name === "order" ? "descending" : "";
      now();
    }}, "clear"));
  const folded = h("details", {class: "folded", open: isFiltered}, h("summary", {}, "Filter and sort"), filters);
  const status = h("p", {class: "status", "aria-live": "polite"});
  const body = h("tbody", {});
  const columns = [["step", "number"], ["group", "number wide-only"], ["reward", "number"], ["length", "number"], ["staleness", "number"], ["turns", "number wide-only"]];
  const heads = columns.map(([name, kind]) => h("th", {class: kind, scope: "col"}, h("button", {type: "button", onclick: () => {
    const isSame = inputs.sort.value === name;
    inputs.order.value = isSame && inputs.order.value === "descending" ? "ascending" : "descending";
    inputs.sort.value = name;
    now();
  }}, name === "staleness" ? "stale" : name)));
  const table = h("div", {class: "scroll"}, h("table", {class: "samples", "aria-label": "samples"}, h("thead", {}, h("tr", {}, heads,
    h("th", {class: "wide-only"}, "end"), h("th", {class: "wide-only"}, "node"), h("th", {class: "prompt-column"}, "prompt"), h("th", {}, "completion"))), body));
  const pager = h("div", {class: "pager"});
  const summary = h("p", {class: "sentence"});
  const list = h("div", {}, summary, folded, status, table, pager);
  const detail = h("div", {hidden: true});
  const element = h("div", {class: "samples-page"}, list, detail);

  function wanted() {
    const found = {};
    for (const [name, input] of Object.entries(inputs)) found[name] = input.value;
    return found;
  }

  function changed() {
    const defaults = {sort: "step", order: "descending"};
    const kept = Object.entries(wanted()).filter(([name, value]) => value && value !== defaults[name]);
    context.remember(Object.fromEntries(kept));
    context.attempt(load);
  }

  async function load() {
    request?.abort();
    const own = request = new AbortController(), turn = ++asked;
    let found;
    try {
      found = await get(`runs/${context.run}/samples`, {...wanted(), offset, limit: PAGE}, own.signal);
    } catch (error) {
      if (error.name === "AbortError") return;
      throw error;
    }
    if (isClosed || turn !== asked) return;
    draw(found);
    isBuilding = found.files_waiting > 0;
    if (isBuilding) setTimeout(() => turn === asked && !isClosed && context.attempt(load), 30);
    else await fillTexts(found, turn);
  }

  function draw(found) {
    put(summary, found.sentence);
    options(inputs.node, found.nodes.filter(Boolean));
    options(inputs.data_source, found.data_sources);
    heads.forEach((head, place) => {
      const isSorted = inputs.sort.value === columns[place][0];
      if (isSorted) head.setAttribute("aria-sort", inputs.order.value);
      else head.removeAttribute("aria-sort");
    });
    const building = found.files_waiting ? ` · reading files, ${whole(found.files - found.files_waiting)} of ${whole(found.files)}` : "";
    const damaged = Object.entries(found.problems).map(([name, why]) => `${name}: ${why}`);
    put(status, found.files ? `${found.total === found.indexed ? plural(found.total, "sample") : `${whole(found.total)} of ${plural(found.indexed, "sample")}`}${building}`
      : "This run has written no samples yet.", damaged.length ? h("span", {class: "bad"}, ` · cannot be read: ${damaged.join("; ")}`) : null);
    put(body, found.rows.map(rowElement));
    const last = Math.min(offset + PAGE, found.total);
    const turn = (by, label, isPossible) => h("button", {type: "button", disabled: !isPossible, onclick: () => {
      offset += by;
      context.attempt(load);
      element.scrollIntoView();
    }}, label);
    pager.hidden = !found.files;
    table.hidden = !found.files;
    put(pager, turn(-PAGE, "← previous", offset > 0), h("span", {}, found.total ? `${whole(offset + 1)}–${whole(last)} of ${whole(found.total)}` : "nothing matches"), turn(PAGE, "next →", last < found.total));
  }

  function rowElement(row) {
    const open = () => show(row);
    const texts = [h("td", {class: "text prompt-column"}), h("td", {class: "text completion"})];
    const step = row.split === "held_out" ? h("span", {title: "held-out completion, after so many steps"}, `${row.number} ◇`) : row.number;
    const element = h("tr", {tabindex: "0", role: "link", "aria-label": `sample ${row.index} of group ${row.group_id} of step ${row.number}`, onclick: open,
      onkeydown: (event) => event.key === "Enter" && open()},
      h("td", {class: "number"}, step), h("td", {class: "number muted wide-only"}, `${row.group_id}/${row.index}`), h("td", {class: "number"}, rewardElement(row.reward)),
      h("td", {class: "number"}, whole(row.num_tokens)), h("td", {class: "number"}, row.staleness), h("td", {class: "number wide-only"}, row.num_turns),
      h("td", {class: "wide-only"}, row.finish_reason === "length" ? h("span", {class: "bad"}, "cut") : row.finish_reason), h("td", {class: "muted wide-only"}, row.node), texts);
    element.fill = ({prompt, completion}) => {
      put(texts[0], prompt);
      put(texts[1], withEnd(completion.trimStart()));
    };
    return element;
  }

  async function fillTexts(found, turn) {
    const byFile = new Map();
    found.rows.forEach((row, place) => {
      const key = `${row.split}/${row.file}`;
      if (!byFile.has(key)) byFile.set(key, []);
      byFile.get(key).push([row, place]);
    });
    for (const rows of byFile.values()) {
      const [{split, file}] = rows[0];
      const {excerpts} = await get(`runs/${context.run}/excerpts`, {split, file, rows: rows.map(([row]) => row.row).join(",")});
      if (isClosed || turn !== asked) return;
      rows.forEach(([, place], i) => body.children[place]?.fill(excerpts[i]));
    }
  }

  function show({split, file, group_id: group, index}) {
    context.remember({...Object.fromEntries(Object.entries(wanted()).filter(([, value]) => value)), open: `${split}/${file}/${group}/${index}`}, true);
    context.attempt(() => open(split, file, group, index));
  }

  async function open(split, file, group, index) {
    const found = await get(`runs/${context.run}/group`, {split, file, group});
    if (isClosed) return;
    list.hidden = true;
    detail.hidden = false;
    put(detail, groupView(context, {split, file, group, index: Number(index)}, found.samples, () => {
      detail.hidden = true;
      list.hidden = false;
      put(detail);
      changed();
    }));
    detail.querySelector("button")?.focus();
  }

  async function start() {
    const named = (parameters.get("open") || "").split("/");
    for (const name of ["node", "data_source"]) {
      const value = parameters.get(name);
      if (value) {
        options(inputs[name], [value]);
        inputs[name].value = value;
      }
    }
    if (named.length === 4) await open(...named);
    await load();
  }

  const update = (runs) => (runs.includes(context.run) && !isBuilding && detail.hidden && offset === 0 && !element.contains(document.activeElement) ? load() : null);
  return {element, start, update, redraw: () => {}, close: () => {
    isClosed = true;
    request?.abort();
  }};
}

export function rewardElement(reward) {
  return h("span", {class: reward > 0 ? "good" : "bad"}, number(reward));
}

/** Give a select the options "any" and `values`, and keep what is chosen. */
function options(select, values) {
  const chosen = select.value, all = [...new Set([...values, ...(chosen ? [chosen] : [])])].sort();
  if (select.children.length === all.length + 1) return;
  put(select, h("option", {value: ""}, "any"), all.map((value) => h("option", {value}, value)));
  select.value = chosen;
}
