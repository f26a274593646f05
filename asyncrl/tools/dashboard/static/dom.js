// Elements from plain values. Text of a run enters the page as text nodes only: nothing here parses markup, and what
// turns the direction of text or has no width is an escape, as in asyncrl/foreign_text.py.

const SVG = "http://www.w3.org/2000/svg";
const ACTING = /[\p{Cc}\p{Cf}\p{Cn}\p{Co}\p{Cs}\p{Zl}\p{Zp}]/gu;

/** An element: `h("td", {class: "number", onclick: f}, "text", child, [children])`. Null children are left out. */
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  fill(element, properties);
  element.append(...children.flat(Infinity).filter((child) => child != null && child !== false).map(asNode));
  return element;
}

/** The same for SVG. */
export function svg(tag, properties = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(properties)) element.setAttribute(name, value);
  element.append(...children.flat(Infinity));
  return element;
}

/** Replace what an element contains. */
export function put(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter((child) => child != null && child !== false).map(asNode));
  return element;
}

/** The sentences about several runs, with the verdict in bold. */
export function comparisonText({doing, verdict, because}) {
  return [doing, " ", h("b", {}, verdict), " ", because];
}

/** Text in which what stands between backticks is code. */
export function marked(text) {
  return text.split(/`+/).map((part, place) => (place % 2 ? h("code", {}, part) : part));
}

/** A function that runs `action` once, `wait` milliseconds after its last call. */
export function debounced(action, wait) {
  let timer = 0;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => action(...values), wait);
  };
}

function asNode(child) {
  return child instanceof Node ? child : document.createTextNode(shown(String(child)));
}

/** The text with an escape for each character that is obeyed or hidden rather than shown; lines and tabs stay. */
export function shown(text) {
  return text.replace(ACTING, (letter) => (letter === "\n" || letter === "\t" ? letter : escaped(letter)));
}

function escaped(letter) {
  const code = letter.codePointAt(0).toString(16);
  if (code.length <= 2) return `\\x${code.padStart(2, "0")}`;
  return code.length <= 4 ? `\\u${code.padStart(4, "0")}` : `\\U${code.padStart(8, "0")}`;
}

function fill(element, properties) {
  for (const [name, value] of Object.entries(properties)) {
    if (value == null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(element.style, value);
    else if (name === "value") element.value = value;
    else if (name === "title") element.title = shown(String(value));
    else element.setAttribute(name, value === true ? "" : value);
  }
}
