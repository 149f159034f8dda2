// Draws the timeline. Only what is visible is drawn, and neighbours that share a pixel are drawn as
// one, so that dragging stays smooth with 64 ranks of 1024 calls each.
const axis = document.getElementById("axis");
const canvas = document.getElementById("rows");
let hovered = null;
let colours = {};
let narrow = false; // a phone

function prepare(element, height) {
  const ratio = window.devicePixelRatio || 1;
  width = canvas.parentElement.clientWidth;
  narrow = width < 520;
  labelWidth = narrow ? 92 : 116;
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
  for (const name of [...verbs, "other", "back", "fore", "quiet", "line", "stripe", "bad", "wait"])
    colours[name] = style.getPropertyValue("--" + name).trim();
}

const subgroups = data.groups.map((one) => one.group).filter((group) => group !== 0);

/// A colour for each subgroup; neighbours in the list are far apart on the colour wheel.
function groupColour(group) {
  const hue = (25 + subgroups.indexOf(group) * 137.5) % 360;
  const dark = document.documentElement.classList.contains("dark");
  return "hsl(" + hue + " 85% " + (dark ? 62 : 42) + "%)";
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
  drawMap();
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
  for (const row of rows) drawLabel(pen, row);
}

/// The rank, and the share of the time that it waited, as a number and as a bar.
function drawLabel(pen, row) {
  const bad = lost(row.rank);
  const middle = row.top + row.height / 2;
  if (row.height >= 19) {
    pen.fillStyle = colours.wait;
    pen.globalAlpha = 0.4;
    pen.fillRect(8, row.top + row.height - 4, (labelWidth - 14) * row.rank.waiting, 2.5);
    pen.globalAlpha = 1;
  }
  pen.fillStyle = bad ? colours.bad : colours.fore;
  pen.fillText((narrow ? "" : "rank ") + row.rank.rank + (bad ? " ✕" : ""), 8, middle);
  pen.fillStyle = colours.quiet;
  pen.textAlign = "right";
  pen.fillText(percent(row.rank.waiting), labelWidth - 6, middle);
  pen.textAlign = "left";
}

function drawAxis() {
  const pen = prepare(axis, axisHeight);
  const rough = (until - from) / Math.max((width - labelWidth) / 110, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((one) => one * power >= rough);
  const ticks = [];
  pen.fillStyle = colours.quiet;
  if (narrow) pen.fillText("rank", 8, axisHeight / 2);
  pen.textAlign = "right";
  pen.fillText("waiting", labelWidth - 6, axisHeight / 2);
  pen.textAlign = "left";
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
  const right = x(endOf(call));
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
  const group = read(call, "group");
  if (group !== 0) {
    const band = Math.max(place.height * 0.2, 3);
    pen.fillStyle = groupColour(group);
    pen.fillRect(left, place.top + place.height - band, Math.max(right - left, 1), band);
  }
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
  for (const { row = hovered.row, call } of instanceOf(hovered.call)) {
    const place = box(row, call);
    const left = Math.max(place.left, labelWidth - 4);
    const span = Math.min(place.right, width + 4) - left;
    pen.strokeRect(left - 0.5, place.top - 0.5, Math.max(span, 1) + 1, place.height + 1);
  }
}
