// The samples of one group side by side: prompt, pictures, and each completion with its tokens or turns.

import {address} from "./api.js";
import {h, put} from "./dom.js";
import {nth, number, plural} from "./format.js";
import {rewardElement} from "./samples.js";
import {MODES, tokenElements, tokenLegend} from "./tokens.js";

let mode = "logprob"; // kept from one group to the next

export function groupView(context, place, samples, close) {
  const versions = [...new Set(samples.flatMap((sample) => sample.tokens.version))].filter((version) => version >= 0).sort((a, b) => a - b);
  const hasRatio = samples.some((sample) => sample.tokens.ratio.length);
  const [first] = samples;
  const cards = h("div", {class: "cards"});
  const legend = h("div", {class: "legend"});
  const modes = h("fieldset", {class: "modes"}, h("legend", {}, "colour tokens by"), Object.entries(MODES).map(([name, label]) => {
    const isMissing = name === "ratio" && !hasRatio;
    return h("label", {class: isMissing ? "muted" : "", title: isMissing ? "the samples file has no column logprobs, so ratios are not known" : null},
      h("input", {type: "radio", name: "mode", value: name, checked: name === mode, disabled: isMissing, onchange: () => {
        mode = name;
        draw();
      }}), label);
  }));
  if (mode === "ratio" && !hasRatio) mode = "logprob";
  const rewards = samples.map((sample) => sample.reward);
  const mean = rewards.reduce((sum, reward) => sum + reward, 0) / rewards.length;

  function draw() {
    put(legend, tokenLegend(mode, versions));
    put(cards, samples.map((sample) => card(sample, sample.index === place.index, versions)));
    cards.querySelector(".chosen")?.scrollIntoView({block: "nearest", inline: "nearest"});
  }

  const number_ = Math.max(0, ...samples.map((sample) => sample.num_images));
  const pictures = Array.from({length: number_}, (_, i) =>
    h("img", {src: address(`runs/${context.run}/picture`, {split: place.split, file: place.file, group: place.group, number: i}), alt: `picture ${i + 1} of the prompt`, loading: "lazy"}));
  const element = h("article", {class: "group"},
    h("div", {class: "tools"}, h("button", {type: "button", onclick: close}, "← samples"),
      h("b", {}, `${place.split === "held_out" ? `after ${plural(first.step, "step")}` : `step ${nth(first.step)}`}, group ${first.group_id}`), h("span", {class: "muted"}, `${plural(samples.length, "sample")}, mean reward ${number(mean)}${place.split === "held_out" ? ", held out" : ""}${first.data_source ? `, ${first.data_source}` : ""}`)),
    h("section", {class: "prompt-box"}, h("h2", {}, "Prompt"), h("pre", {}, first.prompt), pictures.length ? h("div", {class: "pictures"}, pictures) : null,
      first.answer ? h("p", {}, h("span", {class: "muted"}, "reference answer "), h("code", {}, first.answer)) : null),
    h("div", {class: "tools"}, modes, legend), cards);
  draw();
  return element;
}

function card(sample, isChosen, versions) {
  const own = [...new Set(sample.tokens.version)].filter((version) => version >= 0);
  const facts = [plural(sample.num_tokens, "token"), sample.finish_reason === "length" ? "cut" : sample.finish_reason,
    own.length ? `version ${own.length > 1 ? `${Math.min(...own)}–${Math.max(...own)}` : own[0]}` : null,
    `staleness ${sample.staleness}`, sample.logprob_sum == null ? null : `log-prob ${number(sample.logprob_sum)}`, sample.node];
  const metrics = Object.entries(sample.metrics).map(([name, value]) => `${name} ${typeof value === "number" ? number(value) : value}`);
  return h("section", {class: isChosen ? "card chosen" : "card"},
    h("header", {}, h("span", {class: "muted"}, `#${sample.index}`), h("b", {}, "reward ", rewardElement(sample.reward)), h("span", {class: "muted"}, facts.filter(Boolean).join(" · "))),
    metrics.length ? h("p", {class: "muted metrics"}, metrics.join(" · ")) : null,
    sample.turns.length ? h("div", {class: "turns"}, sample.turns.map((turn) => turnElement(sample, turn, versions))) : h("pre", {class: "tokens"}, completion(sample, versions)),
    sample.left_out ? h("p", {class: "muted"}, `${plural(sample.left_out, "more token")} are not shown`) : null);
}

/** Coloured tokens; plain text if there is no tokenizer to tell their texts, or no colour is wanted. */
function completion(sample, versions) {
  if (!sample.has_texts || mode === "none") return sample.completion;
  return tokenElements(sample.tokens, 0, sample.tokens.id.length, mode, versions);
}

function turnElement(sample, turn, versions) {
  return h("div", {class: turn.is_trained ? "turn" : "turn untrained"}, h("div", {class: "muted turn-title"}, `${turn.title} · ${turn.facts}`),
    turn.observation ? h("pre", {class: "observation", title: "the environment"}, turn.observation) : null,
    h("pre", {class: "tokens", title: null}, sample.has_texts && mode !== "none" ? tokenElements(sample.tokens, turn.start, turn.end, mode, versions) : turn.text));
}
