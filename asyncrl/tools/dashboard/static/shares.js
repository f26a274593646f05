// Shares of time by activity, added up by kind: a bar of at most five colours, and the legend of these.

import {KINDS, kindColour} from "./colours.js";
import {h} from "./dom.js";
import {percent} from "./format.js";

/** `shares`: activity to part of 1; `kinds`: activity to kind. Gives [[kind, part, [[activity, part]]]] in the order of kinds. */
export function byKind(shares, kinds) {
  return KINDS.map((kind) => {
    const own = Object.entries(shares).filter(([name, share]) => share > 0 && kinds[name] === kind).sort((a, b) => b[1] - a[1]);
    return [kind, own.reduce((sum, [, share]) => sum + share, 0), own];
  }).filter(([, share]) => share > 0);
}

/** One line of text for each kind: "waits for room 12 %: the trainer 12 %". */
export function told(shares, kinds) {
  return byKind(shares, kinds).map(([kind, share, own]) => `${kind} ${percent(share, 0)}: ${own.map(([name, part]) => `${short(name)} ${percent(part, 0)}`).join(", ")}`);
}

export function shareBar(shares, kinds) {
  const label = told(shares, kinds).join("\n");
  return h("span", {class: "shares", role: "img", "aria-label": label, title: label},
    byKind(shares, kinds).map(([kind, share]) => h("i", {style: {width: `${100 * share}%`, background: kindColour(kind)}})));
}

/** `rest`: what is meant where no kind is drawn. */
export function kindLegend(rest = "") {
  return h("div", {class: "legend wide"}, KINDS.map((kind) => h("span", {}, h("i", {class: "square", style: {background: kindColour(kind)}}), kind)),
    rest ? h("span", {}, h("i", {class: "square blank"}), rest) : null);
}

/** An activity without what its kind says already. */
export function short(activity) {
  return activity.replace(/^waiting for /, "");
}
