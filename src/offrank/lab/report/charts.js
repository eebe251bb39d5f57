// Draws the panels of a figure (offrank/display/figures.py) in SVG. Pointing at a point, or moving to it by the arrow
// keys, shows its values. Colour, dashes and shape each identify a series.
"use strict";

const DASHES = ["", "8 4", "8 3 2 3", "2 3", "12 3 2 3 2 3", "4 6"];
const SHAPES = ["circle", "square", "triangle", "diamond", "down", "cross"];
const COLOURS = 7;
const PRINTED = 380; // about the width of a panel on paper, so that its text keeps its size
const LETTER = 6.5; // about the width of one
const LONGEST = 20; // letters of a slanted name
const ORDER = ["band", "rule", "line", "box", "marks"]; // from back to front

/** An element: attributes by name, `text` for its text, children after. Text never becomes markup. */
function make(space, name, attributes = {}, ...children) {
  const element = space ? document.createElementNS(space, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "text") element.textContent = value;
    else if (value !== undefined && value !== false) element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}
const svg = (name, attributes, ...children) => make("http://www.w3.org/2000/svg", name, attributes, ...children);
const tag = (name, attributes, ...children) => make(null, name, attributes, ...children);

/** 2400000 as 2.4M. */
function short(value) {
  for (const [unit, name] of [[1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(value) >= unit) return +(value / unit).toPrecision(4) + name;
  }
  return String(+value.toPrecision(4));
}
const exact = (v) => Math.abs(v) >= 1e4 ? Math.round(v).toLocaleString("en") : String(+v.toPrecision(4));
const half = LONGEST / 2;
const shortened = (text) => text.length > LONGEST ? `${text.slice(0, half)}…${text.slice(1 - half)}` : text;

/** Round places between two values. */
function ticks(low, high, count) {
  const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((k) => k * power).find((k) => k >= raw);
  const out = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) out.push(+(k * step).toPrecision(12));
  return out;
}

/** From a value to a place: {at, ticks}. `values` decide where the axis gives no end. */
function scale(axis, values, from, to, count) {
  let low = Infinity, high = -Infinity;
  for (const v of values) if (v !== null && !(axis.log && v <= 0)) { low = Math.min(low, v); high = Math.max(high, v); }
  if (low > high) [low, high] = [axis.log ? 0.1 : 0, 1];
  const room = axis.log ? 0 : 0.04 * (high - low || Math.abs(high) || 1);
  low = axis.low ?? low - room;
  high = axis.high ?? high + room;
  if (!axis.log) return { at: (v) => from + ((v - low) / (high - low)) * (to - from), ticks: ticks(low, high, count) };
  const [first, last] = [Math.log10(low), Math.max(Math.log10(high), Math.log10(low) + 0.1)];
  const every = Math.max(1, Math.round((last - first) / count));
  const marks = [];
  for (let k = Math.ceil(first - 1e-9); k <= last + 1e-9; k += every) marks.push(10 ** k);
  return { at: (v) => from + ((Math.log10(v) - first) / (last - first)) * (to - from), ticks: marks };
}

/** The outline of a mark around a place. */
function shapePath(shape, x, y, r) {
  const corner = ([a, b]) => `${(x + a * r).toFixed(2)},${(y + b * r).toFixed(2)}`;
  const polygon = (points) => `M${points.map(corner).join("L")}Z`;
  if (shape === "square") return polygon([[-0.85, -0.85], [0.85, -0.85], [0.85, 0.85], [-0.85, 0.85]]);
  if (shape === "triangle") return polygon([[0, -1.1], [1, 0.8], [-1, 0.8]]);
  if (shape === "down") return polygon([[0, 1.1], [1, -0.8], [-1, -0.8]]);
  if (shape === "diamond") return polygon([[0, -1.2], [1.1, 0], [0, 1.2], [-1.1, 0]]);
  if (shape === "cross") {
    const a = 0.35;
    const upper = [[-1, a], [-1, -a], [-a, -a], [-a, -1], [a, -1], [a, -a]];
    return polygon([...upper, ...upper.map(([b, c]) => [-b, -c])]);
  }
  if (shape === "tick") return `M${x},${y - 2 * r}V${y + 2 * r}`;
  if (shape === "star") {
    return polygon([...Array(10).keys()].map((k) => {
      const angle = (Math.PI * k) / 5, length = k % 2 ? 0.8 : 2;
      return [Math.sin(angle) * length, -Math.cos(angle) * length];
    }));
  }
  return `M${x - r},${y}a${r},${r} 0 1,0 ${2 * r},0a${r},${r} 0 1,0 ${-2 * r},0Z`;
}

const colour = (style) => `s${style % COLOURS}`;
const dashes = (style) => DASHES[style % DASHES.length];

/** A sample of a series' look, for its name. */
function swatch(style) {
  const line = svg("path", { d: "M1,7H43", class: `curve ${colour(style)}`, "stroke-dasharray": dashes(style) });
  const mark = svg("path", { d: shapePath(SHAPES[style % SHAPES.length], 22, 7, 4.5), class: `mark ${colour(style)}` });
  return svg("svg", { class: "swatch", viewBox: "0 0 44 14", "aria-hidden": "true" }, line, mark);
}

/** A sample of what a figure's key explains: "rule", "star", "open", "tick" or "band". */
function keySwatch(kind) {
  const drawn = {
    rule: { class: "rule", d: "M1,7H43" }, band: { class: "area s6", d: "M1,2H43V12H1Z" },
    open: { class: "mark open s6", d: shapePath("triangle", 22, 7, 5) },
  }[kind] || { class: `mark ${kind} open s6`, d: shapePath(kind, 22, 7, 3.2) };
  return svg("svg", { class: "swatch", viewBox: "0 0 44 14", "aria-hidden": "true" }, svg("path", drawn));
}

/** Draw a panel into a host, at the host's width, and again when that changes. `style` numbers the series. */
function draw(host, spec, style) {
  const panel = tag("figure", { class: "panel" });
  const observer = new ResizeObserver(() => render());
  const tip = tag("div", { class: "tip", role: "status", "aria-live": "polite", hidden: true });
  panel.append(tag("figcaption", { text: spec.title }), tip, numbers(spec));
  host.append(panel);
  let picture = null, width = 0;

  function render(wide = panel.clientWidth) {
    const now = Math.max(Math.round(wide), 260);
    if (now === width) return;
    width = now;
    const next = picturePanel(spec, style, width, tip, panel);
    if (picture) picture.replaceWith(next);
    else tip.before(next);
    picture = next;
  }
  render();
  observer.observe(panel);
  return { render, close: () => observer.disconnect() };
}

/** What is said of series in a panel, and its points as a table; made when it is asked for. */
function numbers(spec) {
  const part = tag("details", { class: "numbers" }, tag("summary", { text: "Numbers" }));
  part.addEventListener("toggle", () => {
    const counts = Object.entries(spec.counts).filter(([name]) => spec.items.some((item) => item.series === name));
    const cells = (kind, words, more) => tag("tr", {}, ...words.map((text) => tag(kind, { text, ...more })));
    const across = (text) => spec.x.places.length ? [] : [text];
    const numbersOf = (p) => [p.name, ...across(exact(p.x)), exact(p.y), p.beside.join("; ")];
    const rows = pointsOf(spec).map((p) => cells("td", numbersOf(p)));
    const head = cells("th", ["of", ...across(spec.x.label), spec.y.label, "interval"], { scope: "col" });
    const body = [tag("caption", { text: spec.title }), tag("thead", {}, head), tag("tbody", {}, ...rows)];
    const table = tag("table", {}, ...body);
    const said = counts.map(([name, count]) => tag("li", { text: `${name}: ${count}` }));
    part.append(tag("ul", { class: "note" }, ...said));
    part.append(tag("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": spec.title }, table));
  }, { once: true });
  return part;
}

/** Every point that has a value: {item, x, y, name, beside}; `beside` are the intervals known of it. */
function pointsOf(spec) {
  const between = (low, high) => `${exact(low)} to ${exact(high)}`;
  return spec.items.flatMap((item) => {
    if (item.kind === "line") {
      const bands = spec.items.filter((other) => other.kind === "band" && other.series === item.series);
      return item.x.flatMap((x, k) => item.y[k] === null ? [] : [{
        item, x, y: item.y[k], name: item.name || item.series,
        beside: bands.flatMap((band) => {
          const at = band.x.indexOf(x);
          return at < 0 ? [] : [`${band.name}: ${between(band.low[at], band.high[at])}`];
        }),
      }]);
    }
    if (item.kind !== "marks") return [];
    return item.x.map((x, k) => ({
      item, x, y: item.y[k], name: item.names[k], beside: item.low.length ? [between(item.low[k], item.high[k])] : [],
    }));
  });
}

function picturePanel(spec, style, width, tip, panel) {
  const inside = { left: 56, right: width - 12, top: 10 };
  const places = spec.x.places;
  const longest = Math.max(0, ...places.flatMap((label) => label.split("\n").map((line) => line.length)));
  const slanted = longest * LETTER > (inside.right - inside.left) / (places.length || 1);
  const lines = Math.max(1, ...places.map((label) => label.split("\n").length));
  const under = slanted ? 118 : 18 + 13 * lines + (spec.x.label ? 13 : 0);
  const height = Math.round(Math.min(420, Math.max(200, width * 0.54))) + under;
  inside.bottom = height - under;
  const across = spec.items.flatMap((item) => item.kind === "box" ? [item.at] : item.x || []);
  const up = spec.items.flatMap((item) => ["y", "low", "high"].flatMap((key) => item[key] ?? []));
  const x = scale(spec.x, across, inside.left, inside.right, Math.max(2, Math.round(width / 110)));
  const y = scale(spec.y, up, inside.bottom, inside.top, Math.max(4, Math.round((inside.bottom - inside.top) / 40)));
  const root = svg("svg", {
    viewBox: `0 0 ${width} ${height}`, width, height, role: "img", tabindex: "0",
    "aria-label": `${spec.title}. ${[spec.y.label, spec.x.label].filter(Boolean).join(" against ")}. ` +
      "Arrow keys move from point to point.",
  });
  axes(root, spec, x, y, inside, height, slanted);
  const id = `clip-${(picturePanel.count = (picturePanel.count || 0) + 1)}`;
  root.append(svg("clipPath", { id }, svg("rect", {
    x: inside.left, y: inside.top - 6, width: inside.right - inside.left + 6, height: inside.bottom - inside.top + 12,
  })));
  const plot = svg("g", { "clip-path": `url(#${id})` });
  root.append(plot);
  const front = [...spec.items].sort((a, b) => ORDER.indexOf(a.kind) - ORDER.indexOf(b.kind));
  for (const item of front) shapes[item.kind](plot, item, x, y, style(item.series), inside);
  const placed = pointsOf(spec).map((p) => ({ ...p, x: x.at(p.x), y: y.at(p.y), at: p }));
  const asked = Map.groupBy(placed, ({ item }) => item.kind === "line" ? item : `${item.series} ${item.shape}`);
  ask(root, spec, [...asked.values()], tip, panel, width);
  return root;
}

function axes(root, spec, x, y, inside, height, slanted) {
  const written = (value, axis) => axis.log && value < 0.01 ? `1e${Math.round(Math.log10(value))}` : short(value);
  for (const value of y.ticks) {
    const at = y.at(value);
    root.append(svg("path", { class: "grid", d: `M${inside.left},${at}H${inside.right}` }));
    root.append(svg("text", { x: inside.left - 6, y: at + 4, "text-anchor": "end", text: written(value, spec.y) }));
  }
  const named = spec.x.places.map((label, at) => [at, label]);
  for (const [value, label] of named.length ? named : x.ticks.map((v) => [v, written(v, spec.x)])) {
    const at = x.at(value);
    root.append(svg("path", { class: "axis", d: `M${at},${inside.bottom}v5` }));
    if (slanted) {
      const turn = `translate(${at + 4} ${inside.bottom + 14}) rotate(-45)`;
      root.append(svg("text", { transform: turn, "text-anchor": "end", text: shortened(label.replaceAll("\n", " ")) }));
      continue;
    }
    label.split("\n").forEach((line, row) => {
      root.append(svg("text", { x: at, y: inside.bottom + 17 + 13 * row, "text-anchor": "middle", text: line }));
    });
  }
  root.append(svg("path", { class: "axis", d: `M${inside.left},${inside.top}V${inside.bottom}H${inside.right}` }));
  const label = { class: "quiet", "text-anchor": "middle" };
  root.append(svg("text", { ...label, x: (inside.left + inside.right) / 2, y: height - 6, text: spec.x.label }));
  const turn = `translate(12 ${(inside.top + inside.bottom) / 2}) rotate(-90)`;
  root.append(svg("text", { ...label, transform: turn, text: spec.y.label }));
}

/** The outline through points: straight, or keeping a value until the next; null is a hole. */
function outline(xs, ys, x, y, step) {
  let d = "", broken = true;
  xs.forEach((value, k) => {
    if (ys[k] === null) { broken = true; return; }
    const [a, b] = [x.at(value).toFixed(1), y.at(ys[k]).toFixed(1)];
    d += broken ? `M${a},${b}` : step ? `H${a}V${b}` : `L${a},${b}`;
    broken = false;
  });
  return d;
}

/** How each kind of item is drawn. */
const shapes = {
  band(plot, item, x, y, style) {
    const there = outline(item.x, item.high, x, y, item.step);
    const corners = item.x.map((value, k) => [x.at(value).toFixed(1), y.at(item.low[k]).toFixed(1)]).reverse();
    const back = corners.map(([a, b], k) => item.step && k ? `V${b}H${a}` : `L${a},${b}`).join("");
    plot.append(svg("path", { class: `area ${colour(style)}`, d: `${there}${back}Z` }));
  },
  rule(plot, item, x, y, style, inside) {
    const [from, to] = item.left === null ? [inside.left, inside.right] : [x.at(item.left), x.at(item.right)];
    plot.append(svg("path", { class: "rule", d: `M${from},${y.at(item.y)}H${to}` }));
  },
  line(plot, item, x, y, style) {
    const look = { class: `curve ${item.look} ${colour(style)}`, d: outline(item.x, item.y, x, y, item.step) };
    plot.append(svg("path", { ...look, "stroke-dasharray": item.look !== "dense" && dashes(style) }));
    const every = Math.max(1, Math.ceil(item.x.length / 8));
    const alone = item.y.filter((value) => value !== null).length === 1; // a line of one point is none
    item.x.forEach((value, k) => {
      if (item.y[k] === null || !(alone || (item.marked && (k + style) % every === 0))) return;
      const d = shapePath(item.marked ? SHAPES[style % SHAPES.length] : "circle", x.at(value), y.at(item.y[k]), 3.6);
      plot.append(svg("path", { class: `mark ${colour(style)}`, d }));
    });
  },
  box(plot, item, x, y, style) {
    const [left, right, at] = [x.at(item.at - 0.28), x.at(item.at + 0.28), x.at(item.at)];
    const [low, q1, median, q3, high] = ["low", "q1", "median", "q3", "high"].map((key) => y.at(item[key]));
    const whiskers = `M${at},${low}V${q1}M${at},${q3}V${high}M${at - 6},${low}h12M${at - 6},${high}h12`;
    plot.append(svg("path", { class: `whisker ${colour(style)}`, d: whiskers }));
    const area = { x: left, y: q3, width: right - left, height: Math.max(1, q1 - q3) };
    plot.append(svg("rect", { class: `box ${colour(style)}`, ...area }));
    plot.append(svg("path", { class: "middle", d: `M${left},${median}H${right}` }));
  },
  marks(plot, item, x, y, style) {
    const shape = item.shape || SHAPES[style % SHAPES.length];
    item.x.forEach((value, k) => {
      const at = x.at(value);
      const interval = item.low.length ? `M${at},${y.at(item.low[k])}V${y.at(item.high[k])}` : "";
      if (interval) plot.append(svg("path", { class: `whisker ${colour(style)}`, d: interval }));
      const look = `mark ${shape} ${item.open ? "open " : ""}${colour(style)}`;
      plot.append(svg("path", { class: look, d: shapePath(shape, at, y.at(item.y[k]), 4) }));
    });
  },
};

/** Answer pointer and keys with the nearest point and what is known of it. */
function ask(root, spec, series, tip, panel, width) {
  const ring = svg("circle", { class: "ring", r: 7, visibility: "hidden" });
  root.append(ring);
  let at = null; // [series, point]

  function show(place) {
    at = place;
    const point = place && series[place[0]][place[1]];
    ring.setAttribute("visibility", point ? "visible" : "hidden");
    tip.hidden = !point;
    if (!point) return;
    ring.setAttribute("cx", point.x);
    ring.setAttribute("cy", point.y);
    const across = spec.x.places.length ? [] : [`${spec.x.label}: ${exact(point.at.x)}`];
    tip.textContent = [point.name, ...across, `${spec.y.label}: ${exact(point.at.y)}`, ...point.beside].join("\n");
    const zoom = root.clientWidth / width || 1, size = tip.getBoundingClientRect();
    const left = Math.min(Math.max(point.x * zoom - size.width / 2, 0), Math.max(panel.clientWidth - size.width, 0));
    const above = panel.querySelector("figcaption").offsetHeight;
    const top = above + point.y * zoom - size.height - 14;
    tip.style.left = `${left}px`;
    tip.style.top = `${top < 0 ? above + point.y * zoom + 16 : top}px`;
  }

  function nearest(px, py) {
    let best = null, least = 40 ** 2;
    series.forEach((points, s) => points.forEach((p, k) => {
      const distance = (p.x - px) ** 2 + (p.y - py) ** 2;
      if (distance < least || (distance === least && p.item.kind === "marks")) [best, least] = [[s, k], distance];
    }));
    return best;
  }

  const point = (event) => {
    const box = root.getBoundingClientRect(), zoom = box.width / width || 1;
    show(nearest((event.clientX - box.left) / zoom, (event.clientY - box.top) / zoom));
  };
  root.addEventListener("pointermove", point);
  root.addEventListener("pointerdown", point);
  root.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && show(null));
  root.addEventListener("blur", () => show(null));
  root.addEventListener("keydown", (event) => {
    if (!series.length) return;
    const [s, k] = at || [0, -1];
    const moves = {
      ArrowRight: () => [s, Math.min(k + 1, series[s].length - 1)],
      ArrowLeft: () => [s, Math.max(k - 1, 0)],
      ArrowDown: () => beside(1),
      ArrowUp: () => beside(-1),
      Escape: () => null,
    };
    const beside = (step) => {
      const other = (s + step + series.length) % series.length;
      const from = series[s][Math.max(k, 0)];
      const distances = series[other].map((p) => Math.abs(p.x - from.x));
      return [other, distances.indexOf(Math.min(...distances))];
    };
    if (!(event.key in moves)) return;
    event.preventDefault();
    show(moves[event.key]());
  });
}
