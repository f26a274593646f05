// Colours by meaning. All come from the style sheet, so that light and dark are decided there.

/** What a node does is of one of five kinds, whose names the server has in `asyncrl/records/times.py`. */
export const KINDS = ["works", "moves data", "waits for a neighbour", "waits for room", "away"];
const KIND_COLOURS = {works: "works", "moves data": "moves", "waits for a neighbour": "neighbour", "waits for room": "room", away: "away"};
const cache = new Map();

/** The value of a colour of the style sheet. */
export function colour(name) {
  if (!cache.has(name)) {
    cache.set(name, getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim());
  }
  return cache.get(name);
}

export function runColour(place) {
  return colour(`run${place % 8}`);
}

export function kindColour(kind) {
  return colour(KIND_COLOURS[kind] || "away");
}

const dark = window.matchMedia("(prefers-color-scheme: dark)");

/** Call `redraw` when the reader changes between light and dark. */
export function onScheme(redraw) {
  const changed = () => {
    cache.clear();
    redraw();
  };
  dark.addEventListener("change", changed);
  return () => dark.removeEventListener("change", changed);
}
