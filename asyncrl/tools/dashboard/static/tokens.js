// Tokens of a completion, coloured by what is known of each.

import {h} from "./dom.js";
import {number} from "./format.js";

export const MODES = {logprob: "log-prob", ratio: "ratio", version: "version", none: "nothing"};

/** Elements of the tokens from `start` to `end`. `versions`: those of the group, in order, for their colours. */
export function tokenElements(tokens, start, end, mode, versions) {
  const found = [];
  for (let i = start; i < Math.min(end, tokens.id.length); i++) {
    const facts = [`id ${tokens.id[i]}`];
    if (tokens.logprob[i] != null) facts.push(`log-prob ${number(tokens.logprob[i], 4)}`, `probability ${number(Math.exp(tokens.logprob[i]), 3)}`);
    if (tokens.ratio[i] != null) facts.push(`ratio ${number(tokens.ratio[i], 4)}`);
    if (tokens.version[i] >= 0) facts.push(`version ${tokens.version[i]}`);
    const style = styleOf(tokens, i, mode, versions);
    found.push(h("span", {class: style.class, style: style.style, title: facts.join(" · ")}, tokens.text[i]));
  }
  return found;
}

function styleOf(tokens, i, mode, versions) {
  if (mode === "logprob" && tokens.logprob[i] != null) return {style: {background: heat("--hot", Math.min(1, -tokens.logprob[i] / 5))}};
  if (mode === "ratio" && tokens.ratio[i] != null) {
    const size = Math.log(Math.max(tokens.ratio[i], 1e-6));
    return {style: {background: heat(size > 0 ? "--hot" : "--cold", Math.min(1, Math.abs(size) / 0.7))}};
  }
  if (mode === "version" && tokens.version[i] >= 0) return {class: `v${versions.indexOf(tokens.version[i]) % 6}`, style: {}};
  return {style: {}};
}

function heat(name, strength) {
  return strength < 0.02 ? "" : `color-mix(in srgb, var(${name}) ${Math.round(85 * strength)}%, transparent)`;
}

/** What the colours of a mode mean. */
export function tokenLegend(mode, versions) {
  const block = (style, text) => h("span", {}, h("i", {class: "square", style}), text);
  if (mode === "logprob") return [0, 0.5, 2, 5].map((nats) => block({background: heat("--hot", nats / 5)}, nats ? `−${nats}` : "0 nats"));
  if (mode === "ratio") return [0.5, 0.8, 1, 1.25, 2].map((ratio) => block({background: heat(ratio > 1 ? "--hot" : "--cold", Math.min(1, Math.abs(Math.log(ratio)) / 0.7))}, String(ratio)));
  if (mode === "version") return versions.map((version, place) => h("span", {}, h("i", {class: `square v${place % 6}`}), `version ${version}`));
  return [];
}
