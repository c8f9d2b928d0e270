"use strict";
// The page asks the service for everything: it computes no statistics of its own.
const $ = (id) => document.getElementById(id);
const MOST_CLASSES = 12;
const percent = (x) => `${(100 * x).toFixed(x > 0 && x < 0.0995 ? 1 : 0)} %`;
const sliders = {level: "level", accept: "accept_above", escalate: "escalate_below"};
let model = null, picture = null, token = null, asked = 0, timer = 0;

function headers(more = {}) {
  return token ? {...more, Authorization: `Bearer ${token}`} : more;
}

function fail(text) {
  $("error").textContent = text;
  $("error").hidden = false;
  $("result").hidden = $("change").hidden = $("empty").hidden = true;
}

async function fetchJson(url, options) {
  let answer;
  try {
    answer = await fetch(url, options);
  } catch {
    throw new Error("The service does not answer.");
  }
  if (answer.status === 401) $("login").hidden = false;
  const found = await answer.json().catch(() => ({error: `The service answered ${answer.status}.`}));
  if (!answer.ok) throw new Error(found.error);
  return found;
}

// ---- The net

async function loadModel() {
  try {
    model = await fetchJson("model", {headers: headers()});
  } catch (error) {
    fail(error.message);
    return;
  }
  $("login").hidden = $("error").hidden = true;
  const [channels, height, width] = model.image_shape;
  const colours = channels === 1 ? "grey" : channels === 3 ? "colour" : `${channels}-channel`;
  $("net").textContent = `A Bayesian net for ${width} × ${height} ${colours} pictures of ${model.classes} classes. ` +
    `${model.draws} networks drawn from it answer; where they differ, it is not sure.`;
  $("facts").textContent = `bayescaffe ${model.version}, weights ${model.weights_sha256.slice(0, 12)}, seed ${model.seed}.`;
  $("invert").checked = model.invert;
  reset();
  const drawable = channels === 1 && height === 28 && width === 28;
  $("tabs").hidden = !drawable;
  show(drawable ? "draw" : "file");
}

function reset() {
  const values = {level: model.level, accept: model.rule.accept_above, escalate: model.rule.escalate_below};
  for (const id in sliders) $(id).value = values[id];
  showSliders();
}

function showSliders() {
  for (const id in sliders) $(`${id}-now`).textContent = id === "level" ? percent($(id).value) : Number($(id).value).toFixed(2);
}

function show(which) {
  $("draw").hidden = which !== "draw";
  $("file").hidden = which !== "file";
  $("tab-draw").setAttribute("aria-pressed", which === "draw");
  $("tab-file").setAttribute("aria-pressed", which === "file");
}

// ---- Asking

async function ask() {
  if (!picture || !model) return;
  const number = ++asked;
  const query = new URLSearchParams({include_draws: true, explain: true, invert: picture.invert});
  for (const id in sliders) query.set(sliders[id], $(id).value);
  try {
    const found = await fetchJson(`predict?${query}`, {
      method: "POST", body: picture.blob, headers: headers({"Content-Type": "application/octet-stream"}),
    });
    if (number === asked) render(found);
  } catch (error) {
    if (number === asked) fail(error.message);
  }
}

function soon() {
  clearTimeout(timer);
  timer = setTimeout(ask, 60);
}

function choose(blob) {
  if (!blob) return;
  show("file");
  picture = {blob, invert: $("invert").checked};
  URL.revokeObjectURL($("preview").src);
  $("preview").src = URL.createObjectURL(blob);
  $("preview").hidden = false;
  ask();
}

// ---- The answer

function make(name, attributes = {}, text = null) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const key in attributes) node.setAttribute(key, attributes[key]);
  if (text !== null) node.textContent = text;
  return node;
}

function element(name, kind, text) {
  const node = document.createElement(name);
  node.className = kind;
  if (text !== undefined) node.textContent = text;
  return node;
}

const nameOf = (label) => model.class_names ? model.class_names[label] : String(label);

function render(found) {
  const one = found.images[0];
  $("error").hidden = $("empty").hidden = true;
  $("result").hidden = $("change").hidden = false;
  $("class").textContent = nameOf(one.label);
  $("probability").textContent = percent(one.probability);
  $("interval").textContent = `${percent(one.lower)} to ${percent(one.upper)}, ${percent(found.level)} interval`;
  $("decision").textContent = one.decision;
  $("decision").className = `badge ${one.decision}`;
  $("why").textContent = {
    accept: "the draws agree", repeat: "one class leads, but the draws differ", escalate: "no class stands out: ask a person",
  }[one.decision];
  if (one.changes.calibrated && one.decision !== "escalate") {
    $("why").textContent = one.decision === "accept" ? "by the calibration" : "the calibration does not accept it";
  }
  renderSet(one);
  renderBars(one);
  $("legend").textContent = `Bar: mean of ${one.draws} draws. Line: ${percent(found.level)} interval. Dots: the draws.`;
  const scale = Math.log(model.classes);
  $("epistemic").style.width = `${100 * one.epistemic / scale}%`;
  $("aleatoric").style.width = `${100 * one.aleatoric / scale}%`;
  $("entropy").textContent = `${one.entropy.toFixed(3)} nats: the draws disagree on ${one.epistemic.toFixed(3)}, ` +
    `each is unsure of ${one.aleatoric.toFixed(3)}. The full width is ${scale.toFixed(2)}, a mere guess.`;
  renderChanges(one);
}

function renderSet(one) {
  $("set").hidden = one.class_set === null;
  if (one.class_set === null) return;
  const {coverage, error, confidence} = model.calibration;
  $("set").textContent = `Set: {${one.class_set.map(nameOf).join(", ")}}. Of images like the held-out ones, ` +
    `${percent(coverage)} or more have their class in it.` + (error === null ? ""
      : ` At most ${percent(error)} of what is accepted is wrong, with ${percent(confidence)} confidence.`);
}

function renderBars(one) {
  let labels = one.probabilities.map((_, label) => label);
  if (labels.length > MOST_CLASSES) {
    labels.sort((a, b) => one.probabilities[b] - one.probabilities[a]);
    labels = labels.slice(0, MOST_CLASSES);
  }
  const longest = Math.min(14, Math.max(...labels.map((label) => nameOf(label).length)));
  $("result").style.setProperty("--names", `${0.62 * longest + 0.4}em`);
  const rows = labels.map((label) => {
    const row = element("div", label === one.label ? "row best" : "row");
    const svg = make("svg");
    const [low, high] = one.intervals[label].map((x) => `${100 * x}%`);
    const middle = "50%";
    svg.append(
      make("rect", {class: "track", width: "100%", height: "100%", rx: 5}),
      make("rect", {class: "bar", width: `${100 * one.probabilities[label]}%`, height: "100%", rx: 5}),
    );
    one.draw_probabilities.forEach((draw, k) => {
      // The golden ratio spreads neighbours evenly, and always in the same way.
      const y = 18 + 64 * ((k * 0.618034) % 1);
      svg.append(make("circle", {cx: `${100 * draw[label]}%`, cy: `${y}%`, r: 2}));
    });
    svg.append(
      make("line", {class: "whisker", x1: low, x2: high, y1: middle, y2: middle}),
      ...[low, high].map((x) => make("line", {class: "whisker", x1: x, x2: x, y1: "28%", y2: "72%"})),
    );
    const name = element("span", "name", nameOf(label));
    name.title = nameOf(label);
    row.append(name, svg, element("span", "value", one.probabilities[label].toFixed(3)));
    return row;
  });
  $("bars").replaceChildren(...rows);
  $("bars").setAttribute("aria-label", "Probability of each class: " + labels.map((label) => {
    const [low, high] = one.intervals[label];
    return `${nameOf(label)} ${percent(one.probabilities[label])}, ${percent(low)} to ${percent(high)}`;
  }).join("; "));
}

function renderChanges(one) {
  const {level, accept_above, escalate_below, calibrated} = one.changes;
  const accepted = one.decision === "accept";
  $("level-says").textContent = level === null ? "Not accepted at any level from 50 % on."
    : level >= 0.99 ? "Accepted at every level up to 99 %." : `Accepted up to ${percent(level)}, not above.`;
  $("accept-says").textContent = accept_above === null
    ? "The intervals of two classes overlap, so no threshold accepts it."
    : `Accepted up to ${accept_above.toFixed(2)}, the lower end of the interval.`;
  if (calibrated) {
    $("level-says").textContent = "The calibration decides, at every level.";
    $("accept-says").textContent = `The calibration accepts from ${calibrated.threshold.toFixed(3)} on; this has ` +
      `${calibrated.probability.toFixed(3)} at its temperature. Move this to decide by the intervals.`;
  }
  $("escalate-says").textContent = accepted ? "It is accepted, so this does not matter."
    : `Escalated above ${escalate_below.toFixed(2)}, the mean probability; else repeated.`;
}

// ---- Drawing

const canvas = $("canvas"), pen = canvas.getContext("2d", {willReadFrequently: true});
let last = null;

function clearCanvas() {
  pen.fillStyle = "#000";
  pen.fillRect(0, 0, canvas.width, canvas.height);
}

function place(event) {
  const box = canvas.getBoundingClientRect();
  return [(event.clientX - box.left) * canvas.width / box.width, (event.clientY - box.top) * canvas.height / box.height];
}

function stroke(event) {
  if (!last) return;
  const [x, y] = place(event);
  Object.assign(pen, {strokeStyle: "#fff", lineWidth: 22, lineCap: "round", lineJoin: "round"});
  pen.beginPath();
  pen.moveTo(...last);
  pen.lineTo(x, y);
  pen.stroke();
  last = [x, y];
}

// As MNIST's digits are: 20 of 28 pixels large, with the centre of mass in the middle.
function centred() {
  const {width, height} = canvas, pixels = pen.getImageData(0, 0, width, height).data;
  let left = width, right = -1, top = height, bottom = -1, mass = 0, mx = 0, my = 0;
  for (let y = 0; y < height; y++) for (let x = 0; x < width; x++) {
    const ink = pixels[4 * (y * width + x)];
    if (ink < 30) continue;
    left = Math.min(left, x); right = Math.max(right, x); top = Math.min(top, y); bottom = Math.max(bottom, y);
    mass += ink; mx += ink * x; my += ink * y;
  }
  if (!mass) return null;
  const out = document.createElement("canvas");
  out.width = out.height = 112;
  const brush = out.getContext("2d"), factor = 80 / Math.max(right - left + 1, bottom - top + 1);
  brush.fillStyle = "#000";
  brush.fillRect(0, 0, 112, 112);
  brush.imageSmoothingQuality = "high";
  brush.drawImage(canvas, 56 - factor * mx / mass, 56 - factor * my / mass, factor * width, factor * height);
  return out;
}

canvas.addEventListener("pointerdown", (event) => {
  canvas.setPointerCapture(event.pointerId);
  last = place(event);
  stroke(event);
});
canvas.addEventListener("pointermove", stroke);
for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, () => {
  last = null;
  const out = centred();
  if (out) out.toBlob((blob) => { picture = {blob, invert: false}; ask(); });
});
$("clear").addEventListener("click", () => {
  clearCanvas();
  picture = null;
  asked++;
  $("result").hidden = $("change").hidden = $("error").hidden = true;
  $("empty").hidden = false;
});

// ---- Pictures, sliders, the token

$("tab-draw").addEventListener("click", () => show("draw"));
$("tab-file").addEventListener("click", () => show("file"));
$("picture").addEventListener("change", () => choose($("picture").files[0]));
$("preview").addEventListener("error", () => { $("preview").hidden = true; });
$("invert").addEventListener("change", () => {
  if (!picture) return;
  picture.invert = $("invert").checked;
  ask();
});
document.addEventListener("paste", (event) => choose([...event.clipboardData.files][0]));
for (const name of ["dragover", "dragleave", "drop"]) document.addEventListener(name, (event) => {
  event.preventDefault();
  $("drop").classList.toggle("over", name === "dragover");
  if (name === "drop") choose(event.dataTransfer.files[0]);
});
for (const id in sliders) $(id).addEventListener("input", () => { showSliders(); soon(); });
$("reset").addEventListener("click", () => { reset(); ask(); });
$("login").addEventListener("submit", (event) => {
  event.preventDefault();
  token = $("token").value;
  loadModel();
});
clearCanvas();
loadModel();
