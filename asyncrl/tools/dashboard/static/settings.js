// Settings with value, default and meaning, those first that matter most, then those that differ; with several runs, a
// column for each.

import {get} from "./api.js";
import {comparisonText, h, marked, put} from "./dom.js";
import {plural} from "./format.js";

const FIRST = "what matters most";

export function settings(context) {
  const many = context.runs.length > 1;
  let rows = [], isClosed = false;
  const search = h("input", {type: "search", placeholder: "key, value or meaning", "aria-label": "search settings", oninput: () => draw()});
  const which = h("select", {"aria-label": "which settings", onchange: () => draw()},
    many ? h("option", {value: "differing"}, "different between runs") : null, h("option", {value: "changed"}, many ? "not the default" : "what matters, and what is not the default"), h("option", {value: "all"}, "all settings"));
  const count = h("span", {class: "muted"});
  const body = h("div", {class: "settings-list"});
  const summary = h("p", {class: many ? "sentence lead" : "sentence"});
  const element = h("div", {class: "settings"}, summary, h("div", {class: "tools"}, search, which, count), body);

  function draw() {
    const wanted = search.value.toLowerCase();
    const shown = rows.filter((row) => (which.value === "all" || (which.value === "changed" ? row.isChanged || (row.matters && !many) : row.differs))
      && (!wanted || `${row.key} ${row.values.join(" ")} ${row.meaning}`.toLowerCase().includes(wanted)));
    put(count, `${shown.length} of ${plural(rows.length, "setting")}, ${shown.filter((row) => row.isChanged).length} not the default`);
    const sections = new Map();
    for (const row of shown) {
      const section = row.matters ? FIRST : row.key.split(".")[0];
      if (!sections.has(section)) sections.set(section, []);
      sections.get(section).push(row);
    }
    put(body, shown.length ? null : h("p", {class: "muted"}, which.value === "differing" ? "The runs have the same settings." : "No setting matches."), [...sections].map(([section, own]) => h("section", {class: section === FIRST && which.value !== "all" && !many ? "first" : ""}, h("h2", {}, section), h("div", {class: "scroll"}, h("table", {},
      h("thead", {}, h("tr", {}, h("th", {}, "setting"), context.runs.map((run) => h("th", {}, many ? run.name : "value")), h("th", {class: "default"}, "default"), h("th", {}, "meaning"))),
      h("tbody", {}, own.map((row) => h("tr", {class: row.isChanged ? "changed" : ""}, h("td", {class: "key"}, section === FIRST ? row.key : row.key.slice(section.length + 1), row.isChanged ? h("span", {class: "sr"}, " (not the default)") : null),
        row.values.map((value, run) => h("td", {class: "value", "data-run": many ? `${context.runs[run].name} ` : null}, value === "" ? h("span", {class: "muted"}, "empty") : value)),
        h("td", {class: "default muted", "data-label": "default "}, row.default === "" ? "empty" : row.default), h("td", {class: "meaning"}, marked(row.meaning))))))))));
  }

  async function start() {
    const found = await Promise.all(context.runs.map((_, run) => get(`runs/${run}/settings`)));
    if (isClosed) return;
    const comparison = many ? await get("comparison") : {settings: {}};
    put(summary, many ? comparisonText(comparison) : found[0].sentence);
    const byKey = new Map();
    found.forEach(({settings: own}, run) => own.forEach((setting) => {
      if (!byKey.has(setting.key)) byKey.set(setting.key, {...setting, isChanged: false, values: context.runs.map(() => "")});
      const row = byKey.get(setting.key);
      row.values[run] = setting.value;
      row.isChanged ||= setting.is_changed;
    }));
    rows = [...byKey.values()].map((row) => ({...row, differs: row.key in comparison.settings}));
    draw();
  }

  return {element, start, update: () => null, redraw: () => {}, close: () => { isClosed = true; }};
}
