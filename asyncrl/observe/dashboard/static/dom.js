// Elements from plain values. Text of a run enters the page as text nodes only: nothing here parses markup.

const SVG = "http://www.w3.org/2000/svg";

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

/** A function that runs `action` once, `wait` milliseconds after its last call. */
export function debounced(action, wait) {
  let timer = 0;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => action(...values), wait);
  };
}

function asNode(child) {
  return child instanceof Node ? child : document.createTextNode(String(child));
}

function fill(element, properties) {
  for (const [name, value] of Object.entries(properties)) {
    if (value == null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(element.style, value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
}
