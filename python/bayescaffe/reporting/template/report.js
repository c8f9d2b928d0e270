// What reacts to the reader: theme, slider, choice of a histogram, gallery and its dialog.
// Text, tables and figures are in the page without it.
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

// Which uncertainty the histogram shows ----------------------------------------------------------

const measures = all("[data-show]");
function showMeasure(chosen) {
  for (const button of measures) button.setAttribute("aria-pressed", button === chosen);
  for (const plot of all("#histogram .plot")) plot.hidden = plot.dataset.measure !== chosen.dataset.show;
}
for (const button of measures) button.addEventListener("click", () => showMeasure(button));
if (measures.length) showMeasure(measures[0]);

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
  const { coverage, accepted, threshold, x, ends, models } = data.risk, [ours, ...others] = models;
  const cursor = shape("g");
  find("#risk svg").append(cursor);
  const tell = () => {
    const k = +slider.value;
    const text = `Accept the most confident ${percent(coverage[k], 1)}: error ${percent(ours.risk[k])}`;
    const rest = [`${count(accepted[k])} images with a probability of at least ${threshold[k].toFixed(3)}; ${count(data.total - accepted[k])} go to a human.`];
    for (const other of others) rest.push(` ${other.name}: ${percent(other.risk[k])}.`);
    slider.setAttribute("aria-valuetext", text);
    find("#coverage-says").replaceChildren(make("b", {}, text), make("br"), ...rest);
    cursor.replaceChildren(
      shape("line", { class: "cursor", x1: x[k], x2: x[k], y1: ends[0], y2: ends[1] }),
      ...models.map(({ y, colour }) => shape("circle", { class: "cursor", style: `stroke: var(--${colour})`, cx: x[k], cy: y[k], r: 3.5 })),
    );
  };
  slider.addEventListener("input", tell);
  tell();
}

// The draws of an image for one class: a row of dots, with a bar over the credible interval -------

function strip(image, { class: index, interval, draws }) {
  const colour = index === image.true ? "s3" : index === image.predicted ? (image.true === null ? "s1" : "s2") : "soft";
  const svg = shape("svg", { "aria-hidden": "true", style: `--colour: var(--${colour})` });
  const [lower, upper] = interval.map((end) => 100 * end);
  if (data.has_intervals) svg.append(shape("rect", { x: lower + "%", width: Math.max(0.8, upper - lower) + "%", height: "100%", rx: 3 }));
  draws.forEach((value, draw) => {
    // Spread by the golden ratio: evenly, and the same each time.
    svg.append(shape("circle", { cx: value / 10 + "%", cy: 20 + 60 * ((draw * 0.618034) % 1) + "%", r: 1.8 }));
  });
  const name = data.class_names[index] + (colour === "s3" ? " ✓" : colour === "s2" ? " ✗" : "");
  const row = make("tr", {}, make("th", { scope: "row", ...(colour !== "soft" && { class: "best" }) }, name), make("td", {}, svg));
  if (data.has_intervals) row.append(make("td", { class: "number" }, interval.map((end) => end.toFixed(2)).join("–")));
  return row;
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
    find("#detail-title").textContent = (isWrong ? `${name(image.true)}, predicted as ` : "Predicted as ") + name(image.predicted);
    const list = make("dl");
    if (image.true !== null) fact(list, "true", name(image.true));
    fact(list, "predicted", name(image.predicted));
    fact(list, "mean probability", image.confidence.toFixed(3));
    if (data.has_intervals) {
      fact(list, `${data.level} interval`, predicted.interval.map((end) => end.toFixed(3)).join("–"));
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
    find("#detail-plot tbody").replaceChildren(...image.classes.map((one) => strip(image, one)));
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
