// Draws the figures of this page from its data, and the pickers of tasks and series above them.

const DATA = JSON.parse(document.getElementById("data").textContent);

/** Smallest and largest of some values, with a little room. */
function bounds(values, room = 0.04) {
  let low = Infinity, high = -Infinity;
  for (const v of values) if (v !== null && v !== undefined) { low = Math.min(low, v); high = Math.max(high, v); }
  if (low > high) [low, high] = [0, 1];
  const more = (high - low || Math.abs(high) || 1) * room;
  return [low - more, high + more];
}

/** Checkboxes for tasks and series; `changed` gets the sets that are picked. Series show their looks: the legend. */
function picker(name, data, changed, what) {
  const place = document.querySelector(`[data-picker="${name}"]`);
  const tasks = (data.tasks || []).map((entry) => entry.task);
  const picked = { tasks: new Set(tasks), names: new Set(data.names) };
  const group = (title, words, set, kind) => {
    const field = tag("fieldset", { class: kind }, tag("legend", { text: title }));
    const inputs = words.map((word) => {
      const input = tag("input", { type: "checkbox", checked: true, name: `${name}-${kind}`, value: word });
      input.addEventListener("change", () => {
        input.checked ? set.add(word) : set.delete(word);
        changed(picked);
      });
      const looks = kind === "names" ? [swatch(data.names.indexOf(word))] : [];
      field.append(tag("label", {}, input, ...looks, tag("span", { text: word })));
      return input;
    });
    if (words.length > 2) {
      for (const [label, on] of [["all", true], ["none", false]]) {
        const button = tag("button", { type: "button", text: label, "aria-label": `${label}: ${title.toLowerCase()}` });
        button.addEventListener("click", () => {
          inputs.forEach((input) => { input.checked = on; });
          set.clear();
          if (on) words.forEach((word) => set.add(word));
          changed(picked);
        });
        field.append(button);
      }
    }
    place.append(field);
  };
  if (tasks.length > 1) group("Tasks", tasks, picked.tasks, "tasks");
  if (data.names.length) group(what, data.names, picked.names, "names");
  changed(picked);
}

/** Replace the panels of a figure; specs that are null have nothing to show. */
const watching = new Map();
function panels(name, specs) {
  const host = document.querySelector(`[data-figure="${name}"]`);
  if (!host) return;
  (watching.get(name) || []).forEach((panel) => panel.close());
  host.replaceChildren();
  const shown = specs.filter((spec) => spec);
  watching.set(name, shown.map((spec) => draw(host, spec)));
  if (!shown.length) host.append(tag("p", { class: "note", text: "Nothing picked." }));
}

window.addEventListener("beforeprint", () => {
  document.querySelectorAll("details").forEach((part) => { part.open = true; });
  for (const drawn of watching.values()) drawn.forEach((panel) => panel.render(PRINTED));
});
window.addEventListener("afterprint", () => {
  for (const drawn of watching.values()) drawn.forEach((panel) => panel.render());
});

// --- steps to the threshold

const CROWD = 20; // seeds above which lines are drawn fainter

function curves(task, variants, style) {
  const runs = variants.flatMap((v) => v.runs.filter((run) => run.points.length).map((run) => ({ v, run })));
  if (!runs.length) return null;
  const [min, max] = bounds([task.threshold, ...runs.flatMap(({ run }) => run.points.map((p) => p[1]))]);
  const end = Math.max(...runs.map(({ run }) => run.points[run.points.length - 1][0]));
  const marks = [];
  const lines = runs.map(({ v, run }) => {
    const points = run.points.map(([at, mean, std]) => {
      return [at, mean, `${v.name}, seed ${run.seed}\n${grouped(at)} steps\nreturn ${mean.toFixed(1)} ± ${std.toFixed(1)}`];
    });
    const crossing = run.points.find((p) => p[0] === run.reached);
    const crowd = v.runs.length > CROWD;
    if (crossing) marks.push({ style: style(v), x: crossing[0], y: crossing[1], size: crowd ? 2.2 : 4.5 });
    return { style: style(v), look: crowd ? "thin" : "faint", points };
  });
  for (const v of variants) {
    if (v.median === null || v.median === undefined) continue;
    const tip = `${v.name}\ncensored median ${grouped(v.median)} steps`;
    marks.push({ style: style(v), x: v.median, y: task.threshold, shape: "star", look: "star", size: 5.5, tip });
  }
  const rules = task.threshold === null ? [] : [{ y: task.threshold, label: `threshold ${task.threshold}` }];
  return {
    title: task.task, lines, marks, rules,
    x: { label: "environment steps of training", min: 0, max: end * 1.03 },
    y: { label: "mean return", min, max },
  };
}

function boxes(task, variants, style) {
  const known = variants.filter((v) => v.survival);
  if (!known.length) return null;
  const marks = [], drawn = [];
  known.forEach((v, at) => {
    if (v.box) drawn.push({ style: style(v), x: at, width: 0.56, ...v.box });
    v.runs.forEach((run, k) => {
      const reached = run.reached !== null;
      const x = at + (v.runs.length > 1 ? (k / (v.runs.length - 1) - 0.5) * 0.36 : 0);
      const said = reached ? `${grouped(run.reached)} steps` : `not reached in ${grouped(run.spent)} steps`;
      const look = reached ? {} : { look: "hollow", shape: "triangle", size: 5 };
      marks.push({ style: style(v), x, y: reached ? run.reached : run.spent, series: v, shape: "circle", size: 3.4, tip: `${v.name}, seed ${run.seed}\n${said}`, ...look });
    });
    if (v.paper) marks.push({ style: style(v), x: at, y: v.paper, shape: "star", look: "paper", size: 5.5, tip: `${v.name}\nthe paper's median ${grouped(v.paper)} steps` });
  });
  const top = Math.max(...marks.map((mark) => mark.y));
  const count = (v) => v.runs.filter((run) => run.reached !== null).length;
  const lines = (v) => `${v.name.replace(/^(op-[a-z]+|(?!op-)[a-z]+)[- ]/, "$1\n")}\n${count(v)} of ${v.runs.length}`;
  return {
    title: task.task, marks, boxes: drawn,
    x: { label: "", min: -0.6, max: known.length - 0.4, places: known.map((v, at) => ({ at, label: lines(v) })) },
    y: { label: "steps to the threshold", min: 0, max: top * 1.08 },
  };
}

function survival(task, variants, style) {
  const known = variants.filter((v) => v.survival);
  if (!known.length) return null;
  const end = Math.max(...known.flatMap((v) => v.runs.map((run) => run.reached === null ? run.spent : run.reached)));
  const marks = [];
  const lines = known.map((v) => {
    const last = Math.max(...v.runs.map((run) => run.reached === null ? run.spent : run.reached));
    const points = v.survival.map(([at, share]) => [at, share, `${v.name}\nafter ${grouped(at)} steps\n${Math.round(share * 100)} % still short`]);
    const share = v.survival[v.survival.length - 1][1];
    if (last > v.survival[v.survival.length - 1][0]) points.push([last, share]);
    for (const run of v.runs) {
      if (run.reached !== null) continue;
      const at = v.survival.filter((p) => p[0] <= run.spent).pop()[1];
      marks.push({ style: style(v), x: run.spent, y: at, shape: "tick", look: "tick", size: 8, tip: `${v.name}, seed ${run.seed}\ngiven up after ${grouped(run.spent)} steps` });
    }
    return { style: style(v), step: true, marked: true, points };
  });
  return {
    title: task.task, lines, marks, rules: [{ y: 0.5, label: "one half" }],
    x: { label: "environment steps of training", min: 0, max: end * 1.03 },
    y: { label: "share still short of it", min: 0, max: 1.02 },
  };
}

if (DATA.steps) {
  const style = (v) => DATA.steps.names.indexOf(v.name);
  picker("steps", DATA.steps, (picked) => {
    for (const [name, figure] of [["curves", curves], ["boxes", boxes], ["survival", survival]]) {
      panels(name, DATA.steps.tasks.filter((task) => picked.tasks.has(task.task)).map((task) => {
        return figure(task, task.variants.filter((v) => picked.names.has(v.name)), style);
      }));
    }
  }, "Algorithms");
}

// --- bands over seeds and settings

function bands(name, what) {
  const data = DATA[name];
  if (!data) return;
  picker(name, data, (picked) => panels(name, data.tasks.filter((task) => picked.tasks.has(task.task)).map((task) => {
    const chosen = task.lines.filter((line) => picked.names.has(line.name));
    if (!chosen.length) return null;
    const areas = picked.names.has("all runs") ? task.areas : [];
    const values = [...chosen.flatMap((line) => line.points.map((p) => p[1])), ...areas.flatMap((a) => a.points.flatMap((p) => [p[1], p[2]]))];
    const [min, max] = bounds([task.threshold, ...values]);
    return {
      title: task.task,
      areas: areas.map((area) => ({ style: 0, points: area.points })),
      lines: chosen.map((line) => ({
        style: data.names.indexOf(line.name), marked: true,
        points: line.points.map(([at, mean]) => {
          const band = line.name === "all runs" ? areas.map((area) => {
            const p = area.points.find((q) => q[0] === at);
            return `\n${area.label}: ${p[1].toFixed(0)} to ${p[2].toFixed(0)}`;
          }).join("") : "";
          return [at, mean, `${line.name} (${line.runs} runs)\n${grouped(at)} steps\nmedian return ${mean.toFixed(1)}${band}`];
        }),
      })),
      rules: task.threshold === null ? [] : [{ y: task.threshold, label: `threshold ${task.threshold}` }],
      x: { label: "environment steps of training", min: 0, max: Math.max(...chosen.flatMap((line) => line.points.map((p) => p[0]))) * 1.03 },
      y: { label: "mean return", min, max },
    };
  })), what);
}
bands("seeds", "Shown");
bands("sensitivity", "Settings");

// --- LQR

const power = (value) => value >= 0.01 && value < 1000 ? String(+value.toPrecision(2)) : `1e${Math.round(Math.log10(value))}`;
if (DATA.lqr) {
  picker("lqr", DATA.lqr, (picked) => panels("lqr", DATA.lqr.panels.map((panel) => {
    const lines = panel.lines.filter((line) => picked.names.has(line.name));
    if (!lines.length) return null;
    const style = (line) => DATA.lqr.names.indexOf(line.name);
    const cost = lines.some((line) => line.area);
    const across = lines.flatMap((line) => line.points.map((p) => p[0])).filter((at) => at > 0);
    const up = lines.flatMap((line) => [...line.points.map((p) => p[1]), ...(line.area || []).map((p) => p[1])]).filter((v) => v > 0);
    const least = Math.min(...up), most = Math.max(...up);
    const floor = 10 ** Math.floor(Math.log10(least));
    return {
      title: panel.title,
      areas: lines.filter((line) => line.area).map((line) => ({
        style: style(line), points: line.area.map(([at, low, high]) => [at, low === null ? null : Math.max(low, floor), high]),
      })),
      lines: lines.map((line) => ({
        style: style(line), marked: true,
        points: line.points.map(([at, value]) => [at, value === null || !cost ? value : Math.max(value, floor), value === null ? null :
          `${line.name}\n${grouped(at)} ${panel.x}\n${cost ? `suboptimality ${+value.toPrecision(3)}` : `${Math.round(value * 100)} % stable`}`]),
      })),
      x: { label: panel.x, min: Math.min(...across), max: Math.max(...across), log: true },
      y: cost
        ? { label: panel.y, min: floor, max: Math.min(10 ** Math.ceil(Math.log10(most)), 1e3), log: true, format: power }
        : { label: panel.y, min: 0, max: 1.02 },
    };
  })), "Methods");
}

// --- rank quality

if (DATA.rank) {
  const names = DATA.rank.names;
  picker("rank", DATA.rank, (picked) => panels("rank", DATA.rank.tasks.filter((task) => picked.tasks.has(task.task)).flatMap((task) =>
    task.targets.map((target) => {
      const chosen = names.filter((name) => picked.names.has(name));
      if (!chosen.length) return null;
      const width = 0.8 / chosen.length, bars = [], marks = [], rules = [{ y: 0, look: "axis" }];
      target.checkpoints.forEach((checkpoint, at) => {
        rules.push({ y: checkpoint.ceiling, from: at - 0.45, to: at + 0.45 });
        chosen.forEach((name, k) => {
          const found = checkpoint.points[name];
          if (!found) return;
          const x = at - 0.4 + (k + 0.5) * width, style = names.indexOf(name);
          bars.push({ style, x, low: found.low, high: found.high });
          marks.push({
            style, x, y: found.value, series: name,
            tip: `${name}\n${checkpoint.label}, iteration ${checkpoint.iteration}\n${found.value.toFixed(2)} (${found.low.toFixed(2)} to ${found.high.toFixed(2)})`,
          });
        });
      });
      const least = Math.min(-0.2, ...bars.map((bar) => bar.low));
      return {
        title: `${task.task}: ${target.title}`, bars, marks, rules,
        x: {
          label: "policy of algorithm and seed; iteration", min: -0.5, max: target.checkpoints.length - 0.5,
          places: target.checkpoints.map((c, at) => ({ at, label: `${c.label}\n${c.iteration}` })),
        },
        y: { label: "Spearman correlation", min: least - 0.05, max: 1.03 },
      };
    }))), "Rankings");
}
