// ---- the map: the whole time in one strip, and on it the window that is shown --------------------

const map = document.getElementById("map");
const mapHeight = Math.max(Math.min(rows.length * 6, 60), 36); // many ranks share lines of pixels
const grip = 8; // pixels around an edge of the window
const mapPicture = document.createElement("canvas");
let mapDrawnFor = null;

function mapX(time) {
  return labelWidth + ((time - lowest) / (highest - lowest)) * (width - labelWidth);
}

function mapTime(position) {
  return lowest + ((position - labelWidth) / (width - labelWidth)) * (highest - lowest);
}

function drawMap() {
  const pen = prepare(map, mapHeight);
  const shape = width + " " + colours.back;
  if (mapDrawnFor !== shape) drawMapPicture(prepare(mapPicture, mapHeight));
  mapDrawnFor = shape;
  pen.drawImage(mapPicture, 0, 0, width, mapHeight);
  const left = mapX(from);
  const right = Math.max(mapX(until), left + 2);
  pen.fillStyle = colours.back;
  pen.globalAlpha = 0.65;
  pen.fillRect(labelWidth, 0, left - labelWidth, mapHeight);
  pen.fillRect(right, 0, width - right, mapHeight);
  pen.globalAlpha = 1;
  pen.strokeStyle = colours.fore;
  pen.lineWidth = 1.5;
  pen.strokeRect(left, 0.75, right - left, mapHeight - 1.5);
  pen.fillStyle = colours.fore;
  for (const edge of [left, right]) pen.fillRect(edge - 1.5, mapHeight / 2 - 6, 3, 12);
}

function drawMapPicture(pen) {
  pen.fillStyle = colours.stripe;
  pen.fillRect(0, 0, width, mapHeight);
  pen.fillStyle = colours.quiet;
  pen.fillText("all calls", 8, mapHeight / 2);
  const step = mapHeight / rows.length;
  rows.forEach((row, index) => {
    const top = index * step;
    let painted = -1;
    for (const call of row.rank.calls) {
      const left = mapX(call[column.begin]);
      const right = Math.max(mapX(endOf(call)), left + 1);
      if (Math.floor(right) <= painted) continue;
      painted = Math.floor(right);
      const met = Math.min(mapX(call[column.begin] + call[column.wait]), right);
      pen.fillStyle = colourOf(call);
      pen.globalAlpha = 0.3;
      pen.fillRect(left, top, met - left, Math.max(step - 0.5, 1));
      pen.globalAlpha = 1;
      pen.fillRect(Math.min(met, right - 1), top, Math.max(right - met, 1), Math.max(step - 0.5, 1));
    }
  });
  pen.fillStyle = colours.bad;
  for (const { call } of failures) pen.fillRect(mapX(endOf(call)) - 1, 0, 2, mapHeight);
}

// ---- moving the window on the map --------------------------------------------------------------

let held = null;

function mapPosition(event) {
  return event.clientX - map.getBoundingClientRect().left;
}

/// What the pointer would take hold of: an edge of the window, or all of it.
function mapPart(here) {
  const left = mapX(from);
  const right = mapX(until);
  // A small window has no inside left between its edges, so they are held from outside.
  const inside = Math.min(grip, (right - left) / 4);
  if (here > left - grip && here < left + inside) return "left";
  if (here > right - inside && here < right + grip) return "right";
  return "all";
}

map.addEventListener("pointerdown", (event) => {
  const here = mapPosition(event);
  const part = mapPart(here);
  if (part === "all" && (here < mapX(from) || here > mapX(until))) {
    const half = (until - from) / 2;
    look(mapTime(here) - half, mapTime(here) + half);
  }
  held = { part, at: mapTime(here), from, until };
  map.setPointerCapture(event.pointerId);
});
map.addEventListener("pointermove", (event) => {
  const here = mapPosition(event);
  map.style.cursor = (held ? held.part : mapPart(here)) === "all" ? "grab" : "ew-resize";
  if (!held) return;
  const move = mapTime(here) - held.at;
  if (held.part === "left") look(Math.min(held.from + move, held.until - 100), held.until);
  else if (held.part === "right") look(held.from, Math.max(held.until + move, held.from + 100));
  else look(held.from + move, held.until + move);
});
for (const kind of ["pointerup", "pointercancel"]) map.addEventListener(kind, () => (held = null));
