// Colours by meaning. All come from the style sheet, so that light and dark are decided there.

const ACTIVITIES = {
  sampling: "blue", environment: "teal", swapping: "violet", asleep: "faint", "serving users": "cyan", users: "cyan", storing: "slate", fetching: "cyan", grading: "amber",
  training: "green", publishing: "violet", checkpointing: "brown", loading: "slate", away: "red", working: "green",
  other: "faint", idle: "faint", unknown: "faint",
};
const REST = ["cyan", "brown", "slate", "teal"];
const WAITS = ["wait0", "wait1", "wait2", "wait3", "wait4", "wait5", "wait6"];
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

/** Colour of an activity by its name; every waiting is a shade of sand, so that work stands out. */
export function activityColour(activity, activities = []) {
  if (activity in ACTIVITIES) return colour(ACTIVITIES[activity]);
  if (activity.startsWith("waiting")) {
    const waits = activities.filter((name) => name.startsWith("waiting"));
    return colour(WAITS[Math.max(0, waits.indexOf(activity)) % WAITS.length]);
  }
  const others = activities.filter((name) => !(name in ACTIVITIES) && !name.startsWith("waiting"));
  return colour(REST[Math.max(0, others.indexOf(activity)) % REST.length]);
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
