// Draws the charts of the report from the numbers in #data, and makes the page answer: theme,
// slider, sorting, dialog. Text and tables are in the page already and are there without it.
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const find = (selector, root = document) => root.querySelector(selector);
const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const percent = (value, digits = 2) => (100 * value).toFixed(digits) + "%";
const count = (value) => value.toLocaleString("en-US");

function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function shape(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

// Charts ---------------------------------------------------------------------------------------

const DASHES = ["", "7 4", "2 3", "9 3 2 3", "12 4"];
const series = (index) => "s" + (1 + (index % 5));
const short = (value) => String(+value.toPrecision(4));
const asPercent = (value) => short(100 * value) + "%";

// About `wanted` round numbers in a range; powers of ten on a logarithmic one.
function ticks([low, high], log, wanted = 5) {
  const found = [];
  if (log) {
    const first = Math.ceil(Math.log10(low) - 1e-9), last = Math.floor(Math.log10(high) + 1e-9);
    const step = Math.max(1, Math.ceil((last - first + 1) / 6));
    for (let power = first; power <= last; power += step) found.push(10 ** power);
    return found;
  }
  const rough = (high - low) / wanted, size = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * size).find((value) => value >= rough * 0.99);
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high * (1 + 1e-9); k++) found.push(k * step || 0);
  return found;
}

function scale([low, high], from, to, log) {
  const place = log ? Math.log10 : (value) => value;
  const a = place(low), b = place(high);
  return (value) => from + ((place(Math.max(value, log ? low : -Infinity)) - a) / (b - a || 1)) * (to - from);
}

// Axes and grid; returns the svg with the scales `x` and `y`.
function frame(width, height, options) {
  const { xRange, yRange, xLabel, yLabel, xLog, yLog, xFormat = short, yFormat = short } = options;
  const yTicks = options.yTicks ?? ticks(yRange, yLog), xTicks = ticks(xRange, xLog, width < 420 ? 4 : 6);
  const left = 14 + 7.2 * Math.max(...yTicks.map((value) => yFormat(value).length));
  const box = { left, right: width - 14, top: 22, bottom: height - 40 };
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}` });
  const x = scale(xRange, box.left, box.right, xLog), y = scale(yRange, box.bottom, box.top, yLog);
  for (const value of yTicks) {
    svg.append(
      shape("line", { class: "grid", x1: box.left, x2: box.right, y1: y(value), y2: y(value) }),
      shape("text", { x: box.left - 8, y: y(value) + 4, "text-anchor": "end" }, yFormat(value)),
    );
  }
  for (const value of xTicks)
    svg.append(shape("text", { x: x(value), y: box.bottom + 18, "text-anchor": "middle" }, xFormat(value)));
  svg.append(
    shape("line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }),
    shape("text", { x: box.right, y: height - 4, "text-anchor": "end" }, xLabel),
    shape("text", { x: 0, y: 11 }, yLabel),
  );
  return { svg, x, y, box };
}

function line(chart, xs, ys, index) {
  let path = "";
  xs.forEach((value, k) => {
    const [px, py] = [chart.x(value).toFixed(1), chart.y(ys[k]).toFixed(1)];
    path += path === "" ? `M${px} ${py}` : `L${px} ${py}`;
  });
  chart.svg.append(shape("path", { class: "line " + series(index), d: path, "stroke-dasharray": DASHES[index % 5] }));
}

const titled = (node, text) => (node.append(shape("title", {}, text)), node);

function legend(names, marks = false) {
  const list = make("ul", { class: "legend", "aria-hidden": "true" });
  names.forEach((name, index) => {
    const key = shape("svg", { viewBox: "0 0 26 12" });
    const mark = marks
      ? marks(index)
      : shape("line", { class: series(index), x1: 0, x2: 26, y1: 6, y2: 6, "stroke-width": 2.4, "stroke-dasharray": DASHES[index % 5] });
    key.append(mark);
    list.append(make("li", {}, key, name));
  });
  return list;
}

const numbers = (lists) => lists.flat().filter((value) => value !== null);

const charts = {
  risk(width, host) {
    const { coverage, models } = data.risk;
    const chart = frame(width, 300, {
      xRange: [coverage[0], 1], xLabel: "accepted: the most confident images", xFormat: (value) => percent(value, 0),
      yRange: [0, 1.12 * Math.max(...models.flatMap((model) => model.risk))], yLabel: "error among the accepted", yFormat: asPercent,
    });
    models.forEach((model, index) => line(chart, coverage, model.risk, index));
    const cursor = shape("g");
    chart.svg.append(cursor);
    host.moveCursor = (k) => {
      const at = chart.x(coverage[k]);
      const dots = models.map((model, index) => shape("circle", { class: "hollow " + series(index), cx: at, cy: chart.y(model.risk[k]), r: 5 }));
      cursor.replaceChildren(shape("line", { class: "cursor", x1: at, x2: at, y1: chart.box.top, y2: chart.box.bottom }), ...dots);
    };
    host.moveCursor(+find("#coverage").value);
    return [models.length > 1 && legend(models.map((model) => model.name)), chart.svg];
  },

  reliability(width) {
    const chart = frame(width, 320, {
      xRange: [0, 1], yRange: [0, 1], xLabel: "mean probability of the predicted class", yLabel: "fraction that is right",
      xFormat: (value) => percent(value, 0), yFormat: (value) => percent(value, 0),
    });
    chart.svg.append(shape("path", { class: "guide", d: `M${chart.x(0)} ${chart.y(0)}L${chart.x(1)} ${chart.y(1)}` }));
    data.reliability.forEach(({ bins }, index) => {
      line(chart, bins.map((bin) => bin.confidence), bins.map((bin) => bin.accuracy), index);
      const total = bins.reduce((sum, bin) => sum + bin.count, 0);
      for (const bin of bins) {
        const radius = 3 + 8 * Math.sqrt(bin.count / total);
        const dot = index % 2 === 0
          ? shape("circle", { cx: chart.x(bin.confidence), cy: chart.y(bin.accuracy), r: radius })
          : shape("rect", { x: chart.x(bin.confidence) - radius * 0.8, y: chart.y(bin.accuracy) - radius * 0.8, width: 1.6 * radius, height: 1.6 * radius });
        dot.setAttribute("class", series(index));
        dot.setAttribute("fill-opacity", 0.55);
        chart.svg.append(titled(dot, `${count(bin.count)} images: ${percent(bin.confidence, 1)} sure, ${percent(bin.accuracy, 1)} right`));
      }
    });
    return [data.reliability.length > 1 && legend(data.reliability.map(({ name }) => name)), chart.svg];
  },

  histogram(width, host) {
    const key = host.dataset.measure, { edges, groups } = data.histograms[key];
    const smallest = Math.min(...groups.map((group) => 1 / group.total));
    const chart = frame(width, 270, {
      xRange: [0, edges.at(-1)], yRange: [smallest / 2, 1], yLog: true, xLabel: "nats", yLabel: "share of the images",
      yFormat: asPercent,
    });
    groups.forEach((group, index) => {
      const base = chart.box.bottom;
      let top = `M${chart.x(0)} ${base}`;
      group.counts.forEach((number, k) => {
        const height = number ? chart.y(number / group.total) : base;
        top += `V${height.toFixed(1)}H${chart.x(edges[k + 1]).toFixed(1)}`;
      });
      chart.svg.append(
        shape("path", { class: "area " + series(index), d: top + `V${base}Z` }),
        shape("path", { class: "line " + series(index), d: top + `V${base}`, "stroke-dasharray": DASHES[index] }),
      );
    });
    return [legend(groups.map((group) => `${group.name} (${count(group.total)})`)), chart.svg];
  },

  test_error: (width) => curves(width, data.curves.test_error, { yLabel: "test error", yFormat: asPercent }),
  loss: (width) => curves(width, data.curves.loss, { yLabel: "training loss", yLog: true }),
  taus: (width) => curves(width, data.curves.taus, { yLabel: "τ of the weights", yLog: true }),

  tau(width) {
    const layers = data.tau, row = 46, top = 8;
    const left = 16 + 7.2 * Math.max(...layers.map((layer) => Math.min(layer.name.length, 18)));
    const values = numbers(layers.map((layer) => [layer.tau, layer.tau_bias]));
    const range = [10 ** Math.floor(Math.log10(0.7 * Math.min(...values))), Math.max(1, 1.3 * Math.max(...values))];
    const height = top + row * layers.length + 30;
    const svg = shape("svg", { viewBox: `0 0 ${width} ${height}` });
    const x = scale(range, left, width - 62, true), base = top + row * layers.length;
    for (const value of ticks(range, true))
      svg.append(
        shape("line", { class: "grid", x1: x(value), x2: x(value), y1: top, y2: base }),
        shape("text", { x: x(value), y: base + 17, "text-anchor": "middle" }, short(value)),
      );
    layers.forEach((layer, k) => {
      const middle = top + row * (k + 0.5);
      svg.append(shape("text", { class: "strong", x: left - 10, y: middle + 4, "text-anchor": "end" }, clip(layer.name, 18)));
      [layer.tau, layer.tau_bias].forEach((tau, kind) => {
        if (tau === null) return;
        const y = middle - 15 + 16 * kind;
        const bar = shape("rect", { class: kind ? "hollow s2" : "s1", x: left, y, width: Math.max(2, x(tau) - left), height: 13, rx: 2 });
        svg.append(titled(bar, `τ of the ${kind ? "biases" : "weights"} of ${layer.name}: ${short(tau)}`));
        svg.append(shape("text", { x: x(tau) + 7, y: y + 11 }, tau.toPrecision(2)));
      });
    });
    const marks = (index) => shape("rect", { class: index ? "hollow s2" : "s1", x: 1, y: 1, width: 23, height: 10, rx: 2 });
    return [legend(["weights", "biases"], marks), svg];
  },

  box: (width, host) => [boxes(width, data.images[host.dataset.image])],
};

const clip = (name, length) => (name.length > length ? name.slice(0, length - 1) + "…" : name);

// From a power of ten to another, so that there are ticks.
const logRange = (values) => [10 ** Math.floor(Math.log10(Math.min(...values))), 10 ** Math.ceil(Math.log10(Math.max(...values)) + 1e-9)];

let clips = 0;
function curves(width, lines, options) {
  const values = lines.flatMap((one) => one.y).sort((a, b) => a - b);
  // The first tests are of a net that knows nothing yet: they may leave the chart above.
  const ninth = values[Math.floor(0.9 * (values.length - 1))];
  const yRange = options.yLog ? logRange(values) : [0, 1.1 * Math.min(values.at(-1), 1.5 * ninth) || 0.01];
  const xRange = [0, Math.max(1, ...lines.map((one) => one.x.at(-1)))];
  const chart = frame(width, 270, { ...options, xRange, yRange, xLabel: "iteration", xFormat: count });
  const { left, right, top, bottom } = chart.box, name = "clip" + clips++;
  const inside = { ...chart, svg: shape("g", { "clip-path": `url(#${name})` }) };
  chart.svg.append(shape("clipPath", { id: name }, shape("rect", { x: left, y: top, width: right - left, height: bottom - top + 2 })), inside.svg);
  lines.forEach((one, index) => {
    const last = chart.y(one.y.at(-1));
    if (!options.yLog) inside.svg.append(shape("line", { class: "guide", x1: left, x2: right, y1: last, y2: last }));
    line(inside, one.x, one.y, index);
  });
  return [legend(lines.map((one) => one.name)), chart.svg];
}

// The passes of one image: a dot each, quartiles as a box, whiskers over the credible interval.
function boxes(width, image) {
  const row = 25, top = 6, rows = image.classes;
  const labels = rows.map((one) => data.class_names[one.class] + (one.class === image.true ? " ✓" : ""));
  const left = 12 + 7.6 * Math.min(20, Math.max(...labels.map((label) => label.length)));
  const base = top + row * rows.length;
  const svg = shape("svg", { viewBox: `0 0 ${width} ${base + 38}` });
  const x = scale([0, 1], left + 6, width - 14);
  for (const value of [0, 0.25, 0.5, 0.75, 1])
    svg.append(
      shape("line", { class: "grid", x1: x(value), x2: x(value), y1: top, y2: base }),
      shape("text", { x: x(value), y: base + 16, "text-anchor": "middle" }, value),
    );
  svg.append(shape("text", { x: width - 14, y: base + 34, "text-anchor": "end" }, "probability in a pass"));
  rows.forEach((one, k) => {
    const middle = top + row * (k + 0.5);
    const isTrue = one.class === image.true, isPredicted = one.class === image.predicted;
    const colour = isTrue ? "s3" : isPredicted ? (image.true === null ? "s1" : "s2") : "s0";
    const strong = isTrue || isPredicted ? "strong" : "";
    svg.append(shape("text", { class: strong, x: left - 4, y: middle + 4, "text-anchor": "end" }, clip(labels[k], 20)));
    one.passes.forEach((value, pass) => {
      // Spread by the golden ratio: even, and the same each time.
      const jitter = ((pass * 0.618034) % 1) - 0.5;
      svg.append(shape("circle", { class: "dot " + colour, cx: x(value / 1000).toFixed(1), cy: (middle + 15 * jitter).toFixed(1), r: 1.8, "stroke-width": 0 }));
    });
    const [lower, first, median, third, upper] = one.box.map(x);
    svg.append(
      shape("path", { class: colour, fill: "none", "stroke-width": 1.6, d: `M${lower} ${middle - 5}v10M${lower} ${middle}H${first}M${third} ${middle}H${upper}M${upper} ${middle - 5}v10` }),
      shape("rect", { class: "box " + colour, x: first, y: middle - 8, width: Math.max(1, third - first), height: 16, rx: 2 }),
      shape("line", { class: "median " + colour, "stroke-width": colour === "s0" ? 2 : 3, x1: median, x2: median, y1: middle - 8, y2: middle + 8 }),
    );
  });
  return svg;
}

function draw(host) {
  const width = Math.round(host.clientWidth);
  if (!width || host.drawnWidth === width) return;
  host.drawnWidth = width;
  const parts = charts[host.dataset.chart](width, host).filter(Boolean);
  const svg = parts.at(-1);
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", host.dataset.label);
  host.replaceChildren(...parts);
}

const watcher = new ResizeObserver((entries) => entries.forEach((entry) => draw(entry.target)));
for (const host of all("[data-chart]")) {
  draw(host);
  watcher.observe(host);
}

// Which uncertainty the histogram shows
for (const button of all("[data-show]"))
  button.addEventListener("click", () => {
    const host = find("#histogram");
    for (const other of all("[data-show]")) other.setAttribute("aria-pressed", other === button);
    host.dataset.measure = button.dataset.show;
    host.dataset.label = button.dataset.label;
    host.drawnWidth = 0;
    draw(host);
  });

// Theme ----------------------------------------------------------------------------------------

const theme = find("#theme");
function setTheme(name) {
  document.documentElement.dataset.theme = name;
  theme.setAttribute("aria-pressed", name === "dark");
}
let remembered = null;
try { remembered = localStorage.getItem("bayescaffe-theme"); } catch { /* not allowed for this file */ }
setTheme(remembered ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
theme.hidden = false;
theme.addEventListener("click", () => {
  const name = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  setTheme(name);
  try { localStorage.setItem("bayescaffe-theme", name); } catch { /* not allowed for this file */ }
});

// The slider under risk and coverage -----------------------------------------------------------

const slider = find("#coverage");
if (slider) {
  const tell = () => {
    const k = +slider.value, { coverage, accepted, threshold, models } = data.risk, [ours, ...others] = models;
    const text = `Accept the most confident ${percent(coverage[k], 1)}: error ${percent(ours.risk[k])}`;
    const rest = [`${count(accepted[k])} images with a probability of ${threshold[k].toFixed(3)} or more; ${count(data.total - accepted[k])} go to a human.`];
    for (const other of others) rest.push(` ${other.name}: ${percent(other.risk[k])}.`);
    slider.setAttribute("aria-valuetext", text);
    find("#coverage-says").replaceChildren(make("b", {}, text), make("br"), ...rest);
    find("[data-chart=risk]").moveCursor?.(k);
  };
  slider.addEventListener("input", tell);
  tell();
}

// Gallery: filter and sort -----------------------------------------------------------------------

const gallery = find(".gallery"), says = find("#gallery-says");
if (gallery) {
  const body = find("tbody", gallery), headers = all("th[data-key]", gallery), filters = all("[data-filter]");
  const rows = () => all("tr", body).filter((row) => !row.hidden);
  const tell = () => {
    const header = headers.find((one) => one.hasAttribute("aria-sort"));
    const way = header.getAttribute("aria-sort") === "ascending" ? "lowest first" : "highest first";
    says.textContent = `${count(rows().length)} images, sorted by ${header.textContent.trim()}, ${way}`;
  };
  const sort = (header, way) => {
    for (const one of headers) one.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", way);
    gallery.dataset.sort = header.dataset.key;
    const sign = way === "ascending" ? 1 : -1, key = header.dataset.key;
    const value = (row) => +row.dataset[key];
    body.append(...all("tr", body).sort((a, b) => sign * (value(a) - value(b)) || a.dataset.index - b.dataset.index));
    tell();
  };
  for (const header of headers)
    find("button", header).addEventListener("click", () => {
      const now = header.getAttribute("aria-sort");
      sort(header, now ? (now === "ascending" ? "descending" : "ascending") : header.dataset.first);
    });
  const choose = (filter) => {
    for (const other of filters) other.setAttribute("aria-pressed", other === filter);
    for (const row of all("tr", body)) row.hidden = row.dataset.group !== filter.dataset.filter;
    tell();
  };
  for (const filter of filters) filter.addEventListener("click", () => choose(filter));
  if (filters.length) choose(filters[0]);

  // Dialog
  const dialog = find("#detail");
  let current = null;
  const fact = (list, term, text) => list.append(make("dt", {}, term), make("dd", {}, text));
  const show = (row) => {
    current = row;
    const image = data.images[row.dataset.index], name = (index) => data.class_names[index];
    const predicted = image.classes.find((one) => one.class === image.predicted);
    const isWrong = image.true !== null && image.true !== image.predicted;
    find("#detail-title").textContent = (isWrong ? `${name(image.true)}, taken for ` : "Taken for ") + name(image.predicted);
    const list = make("dl");
    if (image.true !== null) fact(list, "true", name(image.true));
    fact(list, "predicted", name(image.predicted));
    fact(list, "mean probability", image.confidence.toFixed(3));
    if (data.has_intervals) {
      fact(list, `${short(100 * data.level)}% interval`, `${predicted.box[0].toFixed(3)}–${predicted.box[4].toFixed(3)}`);
      fact(list, "verdict", image.certain ? "certain" : "uncertain");
    }
    fact(list, "entropy", image.entropy.toFixed(3));
    if (data.has_intervals) {
      fact(list, "– aleatoric", image.aleatoric.toFixed(3));
      fact(list, "– epistemic", image.epistemic.toFixed(3));
    }
    fact(list, "image", image.name ?? row.dataset.index);
    const picture = find("img", row)?.cloneNode();
    find("#detail-facts").replaceChildren(...(picture ? [picture, list] : [list]));
    const plot = find("#detail-plot");
    const svg = boxes(Math.max(260, plot.clientWidth), image);
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", image.label);
    plot.replaceChildren(svg);
  };
  const open = (row) => { dialog.showModal(); show(row); };
  const step = (by) => {
    const shown = rows();
    show(shown[(shown.indexOf(current) + by + shown.length) % shown.length]);
  };
  for (const row of all("tr", body)) row.addEventListener("click", () => open(row));
  find("#close").addEventListener("click", () => dialog.close());
  find("#previous").addEventListener("click", () => step(-1));
  find("#next").addEventListener("click", () => step(1));
  dialog.addEventListener("keydown", (event) => {
    if (event.key === "ArrowLeft") step(-1);
    if (event.key === "ArrowRight") step(1);
  });
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  dialog.addEventListener("close", () => find("button", current).focus());
}
