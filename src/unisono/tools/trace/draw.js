"use strict";
// Draws the timeline. Only what is visible is drawn, and neighbours that share a pixel are drawn as
// one, so that dragging stays smooth with 64 ranks of 1024 calls each. Texts of the trace reach the
// page only as text nodes.
const data = JSON.parse(document.getElementById("data").textContent);
const column = Object.fromEntries(data.fields.map((name, index) => [name, index]));
const textual = new Set(data.textual);
const verbs = ["all_reduce", "reduce", "reduce_scatter", "all_gather", "gather", "broadcast",
  "scatter", "all_to_all", "send", "recv", "barrier", "split"];
const lanesShown = 8;

function read(call, name) {
  const value = call[column[name]];
  return textual.has(name) && value !== null ? data.texts[value] : value;
}

// ---- layout ------------------------------------------------------------------------------------

const labelWidth = 86;
const axisHeight = 26;
const single = data.ranks.length <= 12 ? 26 : data.ranks.length <= 32 ? 19 : 14;
let total = 0;
let end = 1;
const rows = data.ranks.map((rank) => {
  let lanes = 1;
  // The latest end so far. It never decreases, so a binary search finds long calls as well.
  let reach = 0;
  const reaches = rank.calls.map((call) => {
    lanes = Math.max(lanes, Math.min(call[column.lane] + 1, lanesShown));
    reach = Math.max(reach, call[column.begin] + call[column.length]);
    return reach;
  });
  end = Math.max(end, reach);
  const height = lanes === 1 ? single : 6 + lanes * Math.max(single * 0.65, 9);
  const row = { rank, reaches, lanes, top: total, height, reach };
  total += height;
  return row;
});
const sameCall = new Map(); // group and call number: the records of all ranks
for (const row of rows)
  for (const call of row.rank.calls)
    if (read(call, "call") !== null) {
      const key = instanceKey(call);
      if (!sameCall.has(key)) sameCall.set(key, []);
      sameCall.get(key).push({ row, call });
    }

function instanceKey(call) {
  return read(call, "call") === null ? null : read(call, "group") + ":" + read(call, "call");
}

function firstArrival(call) {
  return Math.min(...sameCall.get(instanceKey(call)).map((one) => one.call[column.begin]));
}

function failed(call) {
  const state = read(call, "state");
  return state !== "running" && state !== "done";
}

function lost(rank) {
  return !["running", "left", "starting"].includes(rank.state);
}

// ---- the window on the time axis ---------------------------------------------------------------

const axis = document.getElementById("axis");
const canvas = document.getElementById("rows");
const margin = 0.02;
let from = -end * margin;
let until = end * (1 + margin);
let hovered = null;
let colours = {};
let width = 0;

function x(time) {
  return labelWidth + ((time - from) / (until - from)) * (width - labelWidth);
}

function timeAt(position) {
  return from + ((position - labelWidth) / (width - labelWidth)) * (until - from);
}

function look(newFrom, newUntil) {
  const span = Math.min(Math.max(newUntil - newFrom, 100), end * (1 + 2 * margin));
  const lowest = -end * margin;
  const highest = end * (1 + margin);
  from = Math.min(Math.max(newFrom, lowest), highest - span);
  until = from + span;
  redraw();
}

function zoom(factor, around) {
  look(around - (around - from) * factor, around + (until - around) * factor);
}

function showInstance(call) {
  const calls = sameCall.get(instanceKey(call)) || [{ call }];
  const first = Math.min(...calls.map((one) => one.call[column.begin]));
  const last = Math.max(...calls.map((one) => one.call[column.begin] + one.call[column.length]));
  const room = Math.max((last - first) * 0.15, 200);
  look(first - room, last + room);
}

// ---- drawing -----------------------------------------------------------------------------------

function prepare(element, height) {
  const ratio = window.devicePixelRatio || 1;
  width = canvas.parentElement.clientWidth;
  element.width = Math.round(width * ratio);
  element.height = Math.round(height * ratio);
  element.style.height = height + "px";
  const pen = element.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.font = "12px system-ui, sans-serif";
  pen.textBaseline = "middle";
  return pen;
}

function readColours() {
  const style = getComputedStyle(document.documentElement);
  colours = {};
  for (const name of [...verbs, "other", "back", "fore", "quiet", "line", "stripe", "bad"])
    colours[name] = style.getPropertyValue("--" + name).trim();
}

function colourOf(call) {
  const verb = read(call, "verb");
  return verbs.includes(verb) ? colours[verb] : colours.other;
}

// The picture without the pointer: as long as the window stays, moving over it copies this one.
const picture = document.createElement("canvas");
let stale = true;
let planned = false;

function redraw(changed = true) {
  stale = stale || changed;
  if (planned) return;
  planned = true;
  requestAnimationFrame(() => {
    planned = false;
    draw();
  });
}

function draw() {
  const screen = prepare(canvas, total);
  if (stale) drawPicture(prepare(picture, total));
  stale = false;
  if (picture.height) screen.drawImage(picture, 0, 0, width, total);
  if (hovered) drawHovered(screen);
}

function drawPicture(pen) {
  const ticks = drawAxis();
  rows.forEach((row, index) => {
    pen.fillStyle = index % 2 ? colours.stripe : colours.back;
    pen.fillRect(0, row.top, width, row.height);
  });
  pen.fillStyle = colours.line;
  for (const tick of ticks) pen.fillRect(Math.round(x(tick)), 0, 1, total);
  pen.save();
  pen.beginPath();
  pen.rect(labelWidth, 0, width - labelWidth, total);
  pen.clip();
  for (const row of rows) drawRow(pen, row);
  pen.restore();
  for (const row of rows) {
    const bad = lost(row.rank);
    pen.fillStyle = bad ? colours.bad : colours.fore;
    pen.fillText("rank " + row.rank.rank + (bad ? " ✕" : ""), 8, row.top + row.height / 2);
  }
}

function drawAxis() {
  const pen = prepare(axis, axisHeight);
  const rough = (until - from) / Math.max((width - labelWidth) / 110, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((one) => one * power >= rough);
  const ticks = [];
  pen.fillStyle = colours.quiet;
  for (let tick = Math.ceil(from / step) * step; tick <= until; tick += step) {
    if (x(tick) < labelWidth) continue;
    ticks.push(tick);
    pen.fillText(duration(tick, step), x(tick) + 3, axisHeight / 2);
    pen.fillRect(Math.round(x(tick)), axisHeight - 7, 1, 7);
  }
  return ticks;
}

function box(row, call) {
  const lane = Math.min(call[column.lane], lanesShown - 1);
  const height = (row.height - 6) / row.lanes;
  const left = x(call[column.begin]);
  const right = x(call[column.begin] + call[column.length]);
  const gap = row.lanes > 1 ? 1 : 0;
  return { left, right, top: row.top + 3 + lane * height, height: height - gap };
}

function firstVisible(row) {
  // `reaches` never decreases, so a binary search finds the first call that ends in the window.
  let low = 0;
  let high = row.reaches.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (row.reaches[middle] < from) low = middle + 1;
    else high = middle;
  }
  return low;
}

function drawRow(pen, row) {
  const calls = row.rank.calls;
  const painted = new Array(lanesShown).fill(-1); // by lane: the last pixel that is drawn
  for (let index = firstVisible(row); index < calls.length; index++) {
    const call = calls[index];
    if (call[column.begin] > until) break;
    const place = box(row, call);
    const bad = failed(call);
    const lane = Math.min(call[column.lane], lanesShown - 1);
    const pixel = Math.floor(place.right);
    if (pixel <= painted[lane] && !bad) continue;
    painted[lane] = pixel;
    drawCall(pen, row, call, place, bad);
  }
  if (lost(row.rank)) drawLoss(pen, row);
}

/// After the end of a rank that was lost: a dashed line, and how the rank ended.
function drawLoss(pen, row) {
  const left = Math.max(x(row.reach), labelWidth) + 6;
  const right = x(end);
  const middle = row.top + row.height / 2;
  const text = row.rank.state;
  const room = pen.measureText(text).width + 16;
  pen.fillStyle = colours.bad;
  for (let at = left; at < right; at += 7) pen.fillRect(at, middle, 4, 1.5);
  if (right - left < room) return;
  pen.clearRect(left + 14, middle - 6, room - 8, 12);
  pen.fillText(text, left + 18, middle + 0.5);
}

function drawCall(pen, row, call, place, bad) {
  const left = Math.max(place.left, labelWidth - 4);
  const right = Math.min(Math.max(place.right, place.left + 1), width + 4);
  const met = Math.min(Math.max(x(call[column.begin] + call[column.wait]), left), right);
  pen.fillStyle = colourOf(call);
  pen.globalAlpha = 0.3;
  pen.fillRect(left, place.top, met - left, place.height);
  pen.globalAlpha = 1;
  // A call stays visible however short it was.
  pen.fillRect(Math.min(met, right - 1), place.top, Math.max(right - met, 1), place.height);
  if (bad) {
    pen.fillStyle = colours.bad;
    pen.globalAlpha = 0.28;
    pen.fillRect(left, place.top, right - left, place.height);
    pen.globalAlpha = 1;
    pen.fillRect(left, place.top, right - left, 2);
    pen.fillRect(left, place.top + place.height - 2, right - left, 2);
    pen.fillRect(right - 3, place.top, 3, place.height);
  }
  if (read(call, "state") === "running") {
    pen.fillStyle = colours.fore;
    for (let y = place.top; y < place.top + place.height; y += 4) pen.fillRect(right - 1, y, 2, 2);
  }
  if (call[column.awaited] === row.rank.rank && place.left - x(firstArrival(call)) >= 6)
    drawTriangle(pen, place);
  const space = right - left - 8;
  if (space > 46 && place.height >= 11) {
    pen.save();
    pen.beginPath();
    pen.rect(left + 4, place.top, space, place.height);
    pen.clip();
    // Dark text reads best on the pale part, light text on the full one (inverted in dark mode).
    pen.fillStyle = met - left > 24 ? colours.fore : colours.back;
    pen.fillText(read(call, "verb"), left + 8, place.top + place.height / 2 + 0.5);
    pen.restore();
  }
}

function drawTriangle(pen, place) {
  pen.fillStyle = colours.fore;
  pen.beginPath();
  pen.moveTo(place.left - 4, place.top - 3);
  pen.lineTo(place.left + 4, place.top - 3);
  pen.lineTo(place.left, place.top + 4);
  pen.fill();
}

function drawHovered(pen) {
  pen.strokeStyle = colours.fore;
  pen.lineWidth = 1.5;
  for (const { row, call } of sameCall.get(instanceKey(hovered.call)) || [hovered]) {
    const place = box(row, call);
    const left = Math.max(place.left, labelWidth - 4);
    const span = Math.min(place.right, width + 4) - left;
    pen.strokeRect(left - 0.5, place.top - 0.5, Math.max(span, 1) + 1, place.height + 1);
  }
}
