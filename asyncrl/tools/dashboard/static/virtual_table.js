// A table of which only the visible rows exist, so that any number of rows is quick.

import {h, put} from "./dom.js";

const ROW = 28, SPARE = 8;

/** `columns`: [{name, label, class, sort: row → value, cell: row → node or text}] */
export class VirtualTable {
  constructor(columns, {label, sort, isDescending = false, onopen = null}) {
    this.columns = columns;
    this.rows = [];
    this.sort = sort;
    this.isDescending = isDescending;
    this.onopen = onopen;
    this.head = h("tr", {});
    this.body = h("tbody", {});
    this.element = h("div", {class: "virtual", tabindex: "0", onscroll: () => this.draw()},
      h("table", {"aria-label": label}, h("thead", {}, this.head), this.body));
    this.size = new ResizeObserver(() => this.draw());
    this.size.observe(this.element);
    this.drawHead();
  }

  close() {
    this.size.disconnect();
  }

  set(rows) {
    this.rows = rows;
    this.order();
  }

  order() {
    const {sort} = this.columns.find((column) => column.name === this.sort) || {};
    if (sort) {
      const sign = this.isDescending ? -1 : 1;
      this.rows = this.rows.map((row) => [sort(row), row]).sort(([a], [b]) => sign * compare(a, b)).map(([, row]) => row);
    }
    this.draw();
  }

  drawHead() {
    put(this.head, this.columns.map((column) => {
      const isSorted = column.name === this.sort;
      return h("th", {class: column.class, scope: "col", "aria-sort": isSorted ? (this.isDescending ? "descending" : "ascending") : null},
        column.sort ? h("button", {type: "button", onclick: () => {
          this.isDescending = isSorted ? !this.isDescending : false;
          this.sort = column.name;
          this.drawHead();
          this.order();
        }}, column.label, isSorted ? (this.isDescending ? " ▾" : " ▴") : "") : column.label);
    }));
  }

  draw() {
    const {scrollTop, clientHeight} = this.element;
    const first = Math.max(0, Math.floor(scrollTop / ROW) - SPARE);
    const last = Math.min(this.rows.length, Math.ceil((scrollTop + clientHeight) / ROW) + SPARE);
    const gap = (count) => (count > 0 ? h("tr", {class: "gap", "aria-hidden": "true"}, h("td", {style: {height: `${count * ROW}px`}})) : null);
    put(this.body, gap(first), this.rows.slice(first, last).map((row) => h("tr", {},
      this.columns.map((column) => h("td", {class: column.class}, column.cell(row))))), gap(this.rows.length - last));
  }
}

function compare(a, b) {
  if (a == null || b == null) return (a == null) - (b == null);
  if (typeof a === "string" && typeof b === "string") return a.localeCompare(b, "en", {numeric: true});
  return a - b;
}
