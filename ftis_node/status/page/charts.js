// Line charts and stacked areas as SVG: axes with units, a cursor by pointer or arrow keys, values in the caption.

import { duration, element } from "./words.js";

const HEIGHT = 150;
const MARGIN = { top: 8, right: 10, bottom: 22, left: 46 };

function svg(tag, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// A round number by which to get from low to high in about `wanted` steps.
function stepOf(low, high, wanted, whole) {
  const rough = (high - low) / wanted;
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * unit).find((candidate) => candidate >= rough * 0.999);
  return whole ? Math.max(1, Math.round(step)) : step;
}

function ticks(low, high, step) {
  const found = [];
  for (let index = Math.ceil(low / step - 1e-6); index * step <= high + step * 1e-6; index += 1) {
    found.push(index === 0 ? 0 : index * step);
  }
  return found;
}

function power(exponent) {
  return Math.abs(exponent) <= 3 ? String(+(10 ** exponent).toPrecision(1)) : `1e${exponent}`;
}

// Where the vertical axis begins and ends, and its step, for these values.
function rangeOf(values, spec) {
  let low = Math.min(...values);
  let high = Math.max(...values);
  if (spec.zero !== false && !spec.log) [low, high] = [Math.min(0, low), Math.max(0, high)];
  if (spec.top !== undefined) high = Math.max(high, spec.top);
  if (high - low < 1e-9) [low, high] = low === 0 ? [0, 1] : [low - Math.abs(low) / 2, high + Math.abs(high) / 2];
  const step = stepOf(low, high, 4, spec.log);
  if (spec.log) return { low: Math.floor(low), high: Math.ceil(high), step };
  return { low: Math.floor(low / step + 1e-6) * step, high: Math.ceil(high / step - 1e-6) * step, step };
}

// spec: title, format (value -> text in the caption), tick (the same at the axis), x ("round" or "time"),
//   series: [{ key, name, class }]; stacked: areas on one another; log: powers of ten; zero: false if it may be far away;
//   top: what the axis shows at least
export class Chart {
  constructor(spec) {
    this.spec = spec;
    this.data = null;
    this.cursor = null;
    this.keys = spec.series.map((series) => element("span", { class: `key ${series.class}` }));
    this.where = element("small");
    const title = element("strong", { text: spec.title + " " }, this.where);
    this.plot = svg("svg", { height: HEIGHT, role: "img", tabindex: "0" });
    this.figure = element("figure", {}, element("figcaption", {}, title, ...this.keys), this.plot);
    this.plot.addEventListener("pointermove", (event) => this.point(event));
    this.plot.addEventListener("pointerdown", (event) => this.point(event));
    this.plot.addEventListener("pointerleave", () => this.move(null));
    this.plot.addEventListener("blur", () => this.move(null));
    this.plot.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.draw()).observe(this.plot);
  }

  // data: x: [numbers, rising], and one list as long for every series' key
  show(data) {
    this.data = data;
    if (this.cursor !== null && this.cursor >= data.x.length) this.cursor = null;
    this.draw();
  }

  point(event) {
    if (!this.scale) return;
    const at = event.clientX - this.plot.getBoundingClientRect().left;
    const distances = this.data.x.map((x) => Math.abs(this.scale.x(x) - at));
    this.move(distances.indexOf(Math.min(...distances)));
  }

  key(event) {
    const last = this.data ? this.data.x.length - 1 : -1;
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step === undefined || last < 0) return;
    event.preventDefault();
    this.move(Math.min(last, Math.max(0, (this.cursor ?? last) + step)));
  }

  move(index) {
    if (index === this.cursor) return;
    this.cursor = index;
    this.draw();
  }

  place(index) {
    const x = this.data.x[index];
    if (this.spec.x === "round") return `round ${x}`;
    return index === this.data.x.length - 1 ? "now" : `${duration(-60000 * x)} ago`;
  }

  caption() {
    const { spec, data } = this;
    const index = this.cursor ?? data.x.length - 1;
    const values = spec.series.map((series) => (index < 0 ? null : data[series.key][index]));
    this.where.textContent = index < 0 ? "" : this.place(index);
    const words = spec.series.map((series, number) => `${series.name} ${spec.format(values[number])}`.trim());
    this.keys.forEach((key, number) => (key.textContent = words[number]));
    this.plot.setAttribute("aria-label", `${spec.title}, ${this.where.textContent}: ${words.join(", ")}`);
  }

  // Per series the lower and upper edge at every point; without stacking both are the value.
  edges() {
    const { spec, data } = this;
    let below = data.x.map(() => 0);
    return spec.series.map((series) => {
      if (spec.log) return data[series.key].map((value) => (value > 0 ? [Math.log10(value), Math.log10(value)] : [null, null]));
      if (!spec.stacked) return data[series.key].map((value) => [value, value]);
      const edges = data[series.key].map((value, index) => [below[index], below[index] + (value ?? 0)]);
      below = edges.map(([, top]) => top);
      return edges;
    });
  }

  draw() {
    if (!this.data) return;
    this.caption();
    const width = Math.max(160, this.plot.clientWidth);
    const edges = this.edges();
    const values = edges.flat(2).filter((value) => value !== null);
    this.plot.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    if (values.length === 0) {
      this.scale = null;
      this.plot.replaceChildren(svg("text", { x: width / 2, y: HEIGHT / 2, "text-anchor": "middle" }, "nothing yet"));
      return;
    }
    const { low, high, step } = rangeOf(values, this.spec);
    const [first, last] = [this.data.x[0], this.data.x[this.data.x.length - 1]];
    const [right, bottom] = [width - MARGIN.right, HEIGHT - MARGIN.bottom];
    const across = last > first ? last - first : 1;
    this.scale = {
      x: (value) => (last > first ? MARGIN.left + ((value - first) / across) * (right - MARGIN.left) : (MARGIN.left + right) / 2),
      y: (value) => bottom - ((value - low) / (high - low)) * (bottom - MARGIN.top),
    };
    this.plot.replaceChildren(...this.axes(ticks(low, high, step), first, last, right, bottom));
    this.spec.series.forEach((series, index) => this.plot.append(...this.marks(series.class, edges[index])));
    if (this.cursor !== null) {
      const x = this.scale.x(this.data.x[this.cursor]);
      this.plot.append(svg("line", { class: "cursor", x1: x, x2: x, y1: MARGIN.top, y2: bottom }));
    }
  }

  axes(levels, first, last, right, bottom) {
    const parts = [];
    for (const value of levels) {
      const y = this.scale.y(value);
      parts.push(svg("line", { class: value === 0 && !this.spec.log ? "axis" : "grid", x1: MARGIN.left, x2: right, y1: y, y2: y }));
      parts.push(svg("text", { x: MARGIN.left - 5, y: y + 4, "text-anchor": "end" }, this.spec.log ? power(value) : this.spec.tick(value)));
    }
    const rounds = this.spec.x === "round";
    const marks = last > first ? ticks(first, last, stepOf(first, last, (right - MARGIN.left) / 55, rounds)) : [last];
    for (const value of marks) {
      const x = this.scale.x(value);
      const text = rounds ? String(value) : value === 0 ? "now" : `−${duration(-60000 * value)}`;
      const anchor = x > right - 15 ? "end" : "middle";
      parts.push(svg("text", { x: anchor === "end" ? right : x, y: HEIGHT - 6, "text-anchor": anchor }, text));
    }
    return parts;
  }

  // One path per stretch without gaps; a point alone is a dot.
  marks(kind, edges) {
    const parts = [];
    let stretch = [];
    const finish = () => {
      const upper = stretch.map(([x, , top]) => `${x.toFixed(1)},${top.toFixed(1)}`);
      if (stretch.length === 1) {
        parts.push(svg("circle", { class: `dot ${kind}`, cx: stretch[0][0], cy: stretch[0][2], r: 3 }));
      } else if (stretch.length > 1 && this.spec.stacked) {
        const lower = stretch.map(([x, base]) => `${x.toFixed(1)},${base.toFixed(1)}`).reverse();
        parts.push(svg("polygon", { class: `area ${kind}`, points: [...upper, ...lower].join(" ") }));
      } else if (stretch.length > 1) {
        parts.push(svg("polyline", { class: `line ${kind}`, points: upper.join(" ") }));
      }
      stretch = [];
    };
    edges.forEach(([base, top], index) => {
      if (top === null) finish();
      else stretch.push([this.scale.x(this.data.x[index]), this.scale.y(base), this.scale.y(top)]);
    });
    finish();
    if (this.cursor !== null && edges[this.cursor][1] !== null && !this.spec.stacked) {
      const [x, y] = [this.scale.x(this.data.x[this.cursor]), this.scale.y(edges[this.cursor][1])];
      parts.push(svg("circle", { class: `dot ${kind}`, cx: x, cy: y, r: 3.5 }));
    }
    return parts;
  }
}
