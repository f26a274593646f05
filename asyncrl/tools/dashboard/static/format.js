// Numbers as people read them.

export const UNKNOWN = "–";

export function number(value, digits = 3) {
  if (value == null || !Number.isFinite(value)) return UNKNOWN;
  const size = Math.abs(value);
  if (size !== 0 && size < 1e-3) return value.toExponential(Math.max(0, digits - 2)).replace("e-", "e−");
  if (size >= 1e9) return `${trimmed(value / 1e9, digits)}G`;
  if (size >= 1e6) return `${trimmed(value / 1e6, digits)}M`;
  if (size >= 1e4) return `${trimmed(value / 1e3, digits)}k`;
  if (Number.isInteger(value)) return String(value);
  return trimmed(value, digits);
}

export function whole(value) {
  return value == null ? UNKNOWN : value.toLocaleString("en");
}

export function percent(value, digits = 1) {
  return value == null ? UNKNOWN : `${(100 * value).toFixed(digits)} %`;
}

export function seconds(value) {
  if (value == null) return UNKNOWN;
  if (value < 1) return `${trimmed(value, 3)} s`;
  if (value < 60) return `${value.toFixed(1)} s`;
  const whole = Math.round(value);
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
}

/** Number of a step for people, who count from 1: files and answers count steps from 0. */
export function nth(step) {
  return step == null ? step : step + 1;
}

export function plural(count, noun) {
  return `${whole(count)} ${noun}${count === 1 ? "" : "s"}`;
}

function trimmed(value, digits) {
  return String(Number(value.toPrecision(digits)));
}

/** Round numbers between two ends, about as many as `wanted`. */
export function ticks(low, high, wanted) {
  const span = high - low;
  if (!(span > 1e-12 * Math.max(Math.abs(low), Math.abs(high)))) return [low];
  const rough = span / Math.max(1, wanted);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((size) => size * power >= rough) * power;
  const found = [];
  for (let place = Math.ceil(low / step - 1e-9); place * step <= high + step * 1e-9; place++) found.push(place * step);
  return found.map((value) => Number(value.toPrecision(12)));
}

/** Powers of ten between two ends; with a few of them, also twos and fives. */
export function logTicks(low, high) {
  const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high));
  const stride = Math.max(1, Math.ceil((last - first) / 4));
  const found = [];
  for (let power = first; power <= last; power += stride) {
    for (const size of last - first <= 1 ? [1, 2, 5] : [1]) found.push(Number(`${size}e${power}`));
  }
  return found.filter((value) => value >= low * 0.999 && value <= high * 1.001);
}
