// Shares of time as a bar of coloured parts, and the legend of activities.

import {h} from "./dom.js";
import {activityColour} from "./colours.js";
import {percent} from "./format.js";

/** `shares`: activity to part of 1. */
export function shareBar(shares, activities) {
  const parts = Object.entries(shares).filter(([, share]) => share > 0);
  const label = parts.map(([name, share]) => `${name} ${percent(share, 0)}`).join(", ");
  return h("span", {class: "shares", role: "img", "aria-label": label, title: label},
    parts.map(([name, share]) => h("i", {style: {width: `${100 * share}%`, background: activityColour(name, activities)}})));
}

export function activityLegend(activities) {
  return h("div", {class: "legend wide"}, activities.map((name) =>
    h("span", {}, h("i", {class: "square", style: {background: activityColour(name, activities)}}), name)));
}
