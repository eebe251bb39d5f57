// Charts of lines, areas, boxes and marks in SVG. Pointing at a point, or moving to it by the arrow keys, shows its
// values. Colour, dashes and shape each identify a series.
"use strict";

const DASHES = ["", "8 4", "8 3 2 3", "2 3", "12 3 2 3 2 3", "4 6"];
const SHAPES = ["circle", "square", "triangle", "diamond", "down", "cross"];
const COLOURS = 7;

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
const shortened = (text) => text.length > LONGEST ? `${text.slice(0, LONGEST / 2)}…${text.slice(1 - LONGEST / 2)}` : text;
const grouped = (value) => Math.round(value).toLocaleString("en");

/** Round places between two values. */
function ticks(low, high, count) {
  const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((k) => k * power).find((k) => k >= raw);
  const out = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) out.push(+(k * step).toPrecision(12));
  return out;
}

/** From a value to a place: {at, ticks}. `axis` has min, max and perhaps log. */
function scale(axis, from, to, count) {
  if (axis.log) {
    const low = Math.log10(axis.min), high = Math.log10(axis.max);
    const every = Math.max(1, Math.round((high - low) / count));
    const marks = [];
    for (let k = Math.ceil(low - 1e-9); k <= high + 1e-9; k += every) marks.push(10 ** k);
    return { at: (v) => from + ((Math.log10(v) - low) / (high - low)) * (to - from), ticks: marks };
  }
  const span = axis.max - axis.min || 1;
  return { at: (v) => from + ((v - axis.min) / span) * (to - from), ticks: ticks(axis.min, axis.min + span, count) };
}

/** The outline of a mark around a place. */
function shapePath(shape, x, y, r) {
  const polygon = (points) => "M" + points.map(([a, b]) => `${(x + a * r).toFixed(2)},${(y + b * r).toFixed(2)}`).join("L") + "Z";
  if (shape === "square") return polygon([[-0.85, -0.85], [0.85, -0.85], [0.85, 0.85], [-0.85, 0.85]]);
  if (shape === "triangle") return polygon([[0, -1.1], [1, 0.8], [-1, 0.8]]);
  if (shape === "down") return polygon([[0, 1.1], [1, -0.8], [-1, -0.8]]);
  if (shape === "diamond") return polygon([[0, -1.2], [1.1, 0], [0, 1.2], [-1.1, 0]]);
  if (shape === "cross") {
    const a = 0.35;
    return polygon([[-a, -1], [a, -1], [a, -a], [1, -a], [1, a], [a, a], [a, 1], [-a, 1], [-a, a], [-1, a], [-1, -a], [-a, -a]]);
  }
  if (shape === "tick") return `M${x},${y - r}V${y + r}`;
  if (shape === "star") {
    return polygon([...Array(10).keys()].map((k) => {
      const angle = (Math.PI * k) / 5, length = k % 2 ? 0.7 : 1.7;
      return [Math.sin(angle) * length, -Math.cos(angle) * length];
    }));
  }
  return `M${x - r},${y}a${r},${r} 0 1,0 ${2 * r},0a${r},${r} 0 1,0 ${-2 * r},0Z`;
}

const colour = (style) => `s${style % COLOURS}`;

/** A sample of a series' look, for its name. */
function swatch(style) {
  const line = svg("path", { d: "M1,7H43", class: `curve ${colour(style)}`, "stroke-dasharray": DASHES[style % DASHES.length] });
  const mark = svg("path", { d: shapePath(SHAPES[style % SHAPES.length], 22, 7, 4.5), class: `mark ${colour(style)}` });
  return svg("svg", { class: "swatch", viewBox: "0 0 44 14", "aria-hidden": "true" }, line, mark);
}

/**
 * Draw a figure into a host, at the host's width, and again when that changes.
 *
 * spec: title; x and y: {label, min, max, log, format, places: [{at, label}]} (places are names instead of numbers); areas: {style, points: [x, low, high]};
 * lines: {style, points: [x, y, tip], look, step, marked}; boxes: {style, x, width, low, q1, median, q3, high};
 * bars: {style, x, low, high}; marks: {style, x, y, tip, shape, size, look}; rules: {y, label, from, to, look}.
 * A tip is what is said of a point; points without one are not asked. y is null where a line has a hole.
 */
function draw(host, spec) {
  const panel = tag("figure", { class: "panel" });
  const observer = new ResizeObserver(() => render());
  const tip = tag("div", { class: "tip", role: "status", "aria-live": "polite", hidden: true });
  panel.append(tag("figcaption", { text: spec.title }), tip);
  host.append(panel);
  let picture = null, width = 0;

  function render(wide = panel.clientWidth) {
    const now = Math.max(Math.round(wide), 260);
    if (now === width) return;
    width = now;
    const next = picturePanel(spec, width, tip, panel);
    if (picture) picture.replaceWith(next);
    else tip.before(next);
    picture = next;
  }
  render();
  observer.observe(panel);
  return { render, close: () => observer.disconnect() };
}

const PRINTED = 380; // about the width of a panel on paper, so that its text keeps its size
const LETTER = 6.5; // about the width of one
const LONGEST = 20; // letters of a slanted name

function picturePanel(spec, width, tip, panel) {
  const inside = { left: 56, right: width - 12, top: 10 };
  const places = spec.x.places || [];
  const longest = Math.max(0, ...places.flatMap((place) => place.label.split("\n").map((line) => line.length)));
  const slanted = longest * LETTER > (inside.right - inside.left) / (places.length || 1);
  const lines = Math.max(1, ...places.map((place) => place.label.split("\n").length));
  const under = slanted ? 118 : 18 + 13 * lines + (spec.x.label ? 13 : 0);
  const height = Math.round(Math.min(330, Math.max(200, width * 0.54))) + under;
  inside.bottom = height - under;
  const x = scale(spec.x, inside.left, inside.right, Math.max(2, Math.round(width / 110)));
  const y = scale(spec.y, inside.bottom, inside.top, 5);
  const root = svg("svg", {
    viewBox: `0 0 ${width} ${height}`, width, height, role: "img", tabindex: "0",
    "aria-label": `${spec.title}. ${spec.y.label} against ${spec.x.label}. Arrow keys move from point to point.`,
  });
  axes(root, spec, x, y, inside, height, slanted);
  const id = `clip-${(picturePanel.count = (picturePanel.count || 0) + 1)}`;
  root.append(svg("clipPath", { id }, svg("rect", {
    x: inside.left, y: inside.top - 6, width: inside.right - inside.left + 6, height: inside.bottom - inside.top + 12,
  })));
  const plot = svg("g", { "clip-path": `url(#${id})` });
  root.append(plot);
  const points = shapes(plot, spec, x, y, inside);
  ask(root, points, tip, panel, width);
  return root;
}

function axes(root, spec, x, y, inside, height, slanted) {
  const middle = (inside.left + inside.right) / 2;
  for (const value of y.ticks) {
    const at = y.at(value);
    root.append(svg("path", { class: "grid", d: `M${inside.left},${at}H${inside.right}` }));
    root.append(svg("text", { x: inside.left - 6, y: at + 4, "text-anchor": "end", text: (spec.y.format || short)(value) }));
  }
  const places = spec.x.places || x.ticks.map((value) => ({ at: value, label: (spec.x.format || short)(value) }));
  for (const place of places) {
    const at = x.at(place.at);
    root.append(svg("path", { class: "axis", d: `M${at},${inside.bottom}v5` }));
    if (slanted) {
      const turn = `translate(${at + 4} ${inside.bottom + 14}) rotate(-45)`;
      root.append(svg("text", { transform: turn, "text-anchor": "end", text: shortened(place.label.replaceAll("\n", " ")) }));
      continue;
    }
    place.label.split("\n").forEach((line, row) => {
      root.append(svg("text", { x: at, y: inside.bottom + 17 + 13 * row, "text-anchor": "middle", text: line }));
    });
  }
  root.append(svg("path", { class: "axis", d: `M${inside.left},${inside.top}V${inside.bottom}H${inside.right}` }));
  if (spec.x.label) root.append(svg("text", { class: "quiet", x: middle, y: height - 6, "text-anchor": "middle", text: spec.x.label }));
  const turn = `translate(12 ${(inside.top + inside.bottom) / 2}) rotate(-90)`;
  root.append(svg("text", { class: "quiet", transform: turn, "text-anchor": "middle", text: spec.y.label }));
}

/** Draw what a figure is made of; return the points that can be asked, by series: [{x, y, tip}]. */
function shapes(plot, spec, x, y, inside) {
  const asked = new Map();
  const remember = (series, at, up, text) => {
    if (!text) return;
    if (!asked.has(series)) asked.set(series, []);
    asked.get(series).push({ x: at, y: up, tip: text });
  };
  for (const area of spec.areas || []) {
    const seen = area.points.filter((p) => p[1] !== null);
    const top = seen.map((p) => `${x.at(p[0]).toFixed(1)},${(p[2] === null ? inside.top - 20 : y.at(p[2])).toFixed(1)}`);
    const under = seen.map((p) => `${x.at(p[0]).toFixed(1)},${y.at(p[1]).toFixed(1)}`).reverse();
    if (seen.length) plot.append(svg("path", { class: `area ${colour(area.style)}`, d: `M${[...top, ...under].join("L")}Z` }));
  }
  for (const rule of spec.rules || []) {
    const at = y.at(rule.y);
    const [from, to] = rule.from === undefined ? [inside.left, inside.right] : [x.at(rule.from), x.at(rule.to)];
    plot.append(svg("path", { class: rule.look || "rule", d: `M${from},${at}H${to}` }));
    if (rule.label) plot.append(svg("text", { class: "quiet", x: inside.left + 4, y: at - 5, text: rule.label }));
  }
  for (const line of spec.lines || []) {
    let d = "", broken = true;
    for (const [at, value, text] of line.points) {
      if (value === null) { broken = true; continue; }
      const place = [x.at(at), y.at(value)];
      if (broken) d += `M${place.map((v) => v.toFixed(1))}`;
      else d += line.step ? `H${place[0].toFixed(1)}V${place[1].toFixed(1)}` : `L${place.map((v) => v.toFixed(1))}`;
      broken = false;
      remember(line.series || line, ...place, text);
    }
    const look = `curve ${colour(line.style)}${line.look ? ` ${line.look}` : ""}`;
    plot.append(svg("path", { class: look, d, "stroke-dasharray": DASHES[line.style % DASHES.length] }));
    if (line.marked) {
      const every = Math.max(1, Math.ceil(line.points.length / 8));
      line.points.forEach(([at, value], k) => {
        if (value === null || (k + line.style) % every) return;
        const outline = shapePath(SHAPES[line.style % SHAPES.length], x.at(at), y.at(value), 3.6);
        plot.append(svg("path", { class: `mark ${colour(line.style)}`, d: outline }));
      });
    }
  }
  for (const box of spec.boxes || []) {
    const [left, right, at] = [x.at(box.x - box.width / 2), x.at(box.x + box.width / 2), x.at(box.x)];
    const [low, q1, median, q3, high] = ["low", "q1", "median", "q3", "high"].map((key) => y.at(box[key]));
    plot.append(svg("path", { class: `whisker ${colour(box.style)}`, d: `M${at},${low}V${q1}M${at},${q3}V${high}M${at - 6},${low}h12M${at - 6},${high}h12` }));
    plot.append(svg("rect", { class: `box ${colour(box.style)}`, x: left, y: q3, width: right - left, height: Math.max(1, q1 - q3) }));
    plot.append(svg("path", { class: "middle", d: `M${left},${median}H${right}` }));
  }
  for (const bar of spec.bars || []) {
    plot.append(svg("path", { class: `whisker ${colour(bar.style)}`, d: `M${x.at(bar.x)},${y.at(bar.low)}V${y.at(bar.high)}` }));
  }
  for (const mark of spec.marks || []) {
    const place = [x.at(mark.x), y.at(mark.y)];
    const shape = mark.shape || SHAPES[mark.style % SHAPES.length];
    const d = shapePath(shape, ...place, mark.size || 4.5);
    plot.append(svg("path", { class: `mark ${colour(mark.style)} ${mark.look || ""}`, d }));
    remember(mark.series || mark, ...place, mark.tip);
  }
  return [...asked.values()];
}

/** Answer pointer and keys with the nearest point and what is known of it. */
function ask(root, series, tip, panel, width) {
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
    tip.textContent = point.tip;
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
      if (distance < least) [best, least] = [[s, k], distance];
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
