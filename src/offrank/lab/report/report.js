// Draws the figures of this page from its data, and the pickers of tasks and series above them.

const DATA = JSON.parse(document.getElementById("data").textContent); // by section: its figures by name

/** Checkboxes for tasks and series; `changed` gets the sets that are picked. Series show their looks: the legend. */
function picker(section, figures, changed) {
  const place = document.querySelector(`[data-picker="${section}"]`);
  const names = figures[0].series;
  const every = figures.flatMap((figure) => figure.panels.map((panel) => panel.task));
  const tasks = [...new Set(every)].filter((task) => task);
  const picked = { tasks: new Set(["", ...tasks]), names: new Set(names) };
  const group = (title, words, set, kind) => {
    const field = tag("fieldset", { class: kind }, tag("legend", { text: title }));
    const inputs = words.map((word) => {
      const input = tag("input", { type: "checkbox", checked: true, name: `${section}-${kind}`, value: word });
      input.addEventListener("change", () => {
        input.checked ? set.add(word) : set.delete(word);
        changed(picked);
      });
      const looks = kind === "names" ? [swatch(names.indexOf(word))] : [];
      field.append(tag("label", {}, input, ...looks, tag("span", { text: word })));
      return input;
    });
    if (words.length > 2) {
      for (const [label, on] of [["all", true], ["none", false]]) {
        const button = tag("button", { type: "button", text: label, "aria-label": `${label}: ${title.toLowerCase()}` });
        button.addEventListener("click", () => {
          inputs.forEach((input) => { input.checked = on; });
          words.forEach((word) => on ? set.add(word) : set.delete(word));
          changed(picked);
        });
        field.append(button);
      }
    }
    place.append(field);
  };
  if (tasks.length > 1) group("Tasks", tasks, picked.tasks, "tasks");
  group(place.dataset.title, names, picked.names, "names");
  changed(picked);
}

/** A panel without the series that are not picked, and without their places on its axis. */
function reduced(panel, names) {
  const items = panel.items.filter((item) => item.kind === "rule" || names.has(item.series));
  const kept = panel.x.series.flatMap((name, at) => names.has(name) ? [at] : []);
  if (kept.length === panel.x.series.length) return { ...panel, items };
  const moved = (at) => at - Math.round(at) + kept.indexOf(Math.round(at));
  const placed = (item) => item.kind === "box" ? { at: moved(item.at) } : { x: item.x.map(moved) };
  return {
    ...panel, x: { ...panel.x, high: kept.length - 0.4, places: kept.map((at) => panel.x.places[at]) },
    items: items.map((item) => ({ ...item, ...placed(item) })),
  };
}

/** Replace the panels of a figure by those that are picked, with the series that are. */
const watching = new Map();
function panels(name, figure, picked) {
  const host = document.querySelector(`[data-figure="${name}"]`);
  (watching.get(name) || []).forEach((panel) => panel.close());
  host.replaceChildren();
  const shown = figure.panels.filter((panel) => picked.tasks.has(panel.task))
    .map((panel) => reduced(panel, picked.names))
    .filter((panel) => panel.items.some((item) => item.kind !== "rule"));
  watching.set(name, shown.map((panel) => draw(host, panel, (series) => figure.series.indexOf(series))));
  if (!shown.length) host.append(tag("p", { class: "note", text: "Nothing picked." }));
}

for (const [section, figures] of Object.entries(DATA)) {
  for (const [name, figure] of Object.entries(figures)) {
    const key = ([kind, text]) => tag("li", {}, keySwatch(kind), tag("span", { text }));
    const keys = tag("ul", { class: "keys" }, ...Object.entries(figure.keys).map(key));
    document.querySelector(`[data-figure="${name}"]`).before(keys);
  }
  if (Object.keys(figures).length) picker(section, Object.values(figures), (picked) => {
    for (const [name, figure] of Object.entries(figures)) panels(name, figure, picked);
  });
}

window.addEventListener("beforeprint", () => {
  document.querySelectorAll("details:not(.numbers)").forEach((part) => { part.open = true; });
  for (const drawn of watching.values()) drawn.forEach((panel) => panel.render(PRINTED));
});
window.addEventListener("afterprint", () => {
  for (const drawn of watching.values()) drawn.forEach((panel) => panel.render());
});
