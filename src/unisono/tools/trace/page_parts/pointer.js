// ---- the tooltip -------------------------------------------------------------------------------

const tip = document.getElementById("tip");

function showTip(event) {
  tip.hidden = !hovered;
  if (!hovered) return;
  const { row, call } = hovered;
  tip.replaceChildren();
  element("b", "rank " + row.rank.rank + ": " + describe(call), tip);
  const list = element("dl", null, tip);
  const facts = {
    process: "pid " + row.rank.pid + ", " + row.rank.state,
    begins: duration(call[column.begin]) + " after the first call",
    takes: duration(call[column.length]) + (read(call, "state") === "running" ? " so far" : ""),
    waits: call[column.wait] ? duration(call[column.wait]) : null,
    others: awaited(call),
  };
  for (const name of data.fields)
    if (!["begin", "length", "wait", "lane", "awaited"].includes(name)) facts[name] = read(call, name);
  if (facts.group === 0) facts.group = "world";
  for (const [name, value] of Object.entries(facts)) {
    if (value === null) continue;
    element("dt", name, list);
    element("dd", String(value), list);
  }
  const box = tip.getBoundingClientRect();
  const right = event.clientX + 16 + box.width > window.innerWidth;
  const below = event.clientY + 16 + box.height > window.innerHeight;
  tip.style.left = Math.max(event.clientX + (right ? -16 - box.width : 16), 4) + "px";
  tip.style.top = Math.max(event.clientY + (below ? -16 - box.height : 16), 4) + "px";
}

function find(event) {
  const frame = canvas.getBoundingClientRect();
  const here = event.clientX - frame.left;
  const down = event.clientY - frame.top;
  const row = rows.find((one) => down >= one.top && down < one.top + one.height);
  if (!row || here < labelWidth) return null;
  let best = null;
  let nearest = 4; // pixels: short calls must be easy to hit
  for (let index = firstVisible(row); index < row.rank.calls.length; index++) {
    const call = row.rank.calls[index];
    const place = box(row, call);
    if (place.left > here + 4) break;
    if (row.lanes > 1 && (down < place.top || down > place.top + place.height)) continue;
    const distance = Math.max(place.left - here, here - place.right, 0);
    if (distance < nearest || (distance === 0 && best)) {
      best = { row, call };
      nearest = distance;
    }
  }
  return best;
}

// ---- pointers: the mouse, and one or two fingers -----------------------------------------------

const pointers = new Map(); // by number, those that touch: where they are
let dragged = null; // by one pointer: where it began, and the window at that time
let pinched = null; // by two: the times under them

/// Moves the window so that two times are under two positions.
function pinch(times, places) {
  if (Math.abs(places[1] - places[0]) < 10) return;
  const scale = (times[1] - times[0]) / (places[1] - places[0]);
  if (scale <= 0) return; // the fingers have crossed
  const start = times[0] - (places[0] - labelWidth) * scale;
  look(start, start + (width - labelWidth) * scale);
}

/// Begins anew with the pointers that touch now.
function grasp(moved) {
  const places = [...pointers.values()];
  const [at] = places;
  dragged = places.length === 1 ? { at, from, until, moved } : null;
  pinched = places.length === 2 ? places.map(timeAt) : null;
}

function hover(found, event) {
  if ((found && found.call) !== (hovered && hovered.call)) redraw(false);
  hovered = found;
  showTip(event);
}

for (const part of [axis, canvas]) {
  const place = (event) => event.clientX - part.getBoundingClientRect().left;
  part.addEventListener("wheel", (event) => {
    event.preventDefault();
    const size = event.deltaMode === 1 ? 16 : 1;
    const sideways = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      const move = ((until - from) * sideways * size) / (width - labelWidth);
      look(from + move, until + move);
    } else {
      zoom(Math.exp(event.deltaY * size * 0.002), timeAt(Math.max(place(event), labelWidth)));
    }
  }, { passive: false });
  part.addEventListener("pointerdown", (event) => {
    pointers.set(event.pointerId, place(event));
    grasp(pointers.size > 1);
    part.setPointerCapture(event.pointerId);
  });
  part.addEventListener("pointermove", (event) => {
    if (pointers.has(event.pointerId)) pointers.set(event.pointerId, place(event));
    if (pinched) {
      pinch(pinched, [...pointers.values()]);
    } else if (dragged) {
      dragged.moved = dragged.moved || Math.abs(place(event) - dragged.at) > 3;
      const move = ((dragged.at - place(event)) * (dragged.until - dragged.from)) / (width - labelWidth);
      if (dragged.moved) look(dragged.from + move, dragged.until + move);
    }
    const free = !pinched && !(dragged && dragged.moved);
    // A finger shows a call where it taps, and not on its way.
    if (event.pointerType === "touch" && free) return;
    hover(part === canvas && free ? find(event) : null, event);
  });
  part.addEventListener("pointerup", (event) => {
    const clicked = dragged && !dragged.moved;
    pointers.delete(event.pointerId);
    grasp(true);
    if (!clicked || part !== canvas) return;
    const found = find(event);
    const known = found && hovered && found.call === hovered.call;
    if (event.pointerType === "touch" && !known) hover(found, event);
    else if (found) showInstance(found.call);
  });
  part.addEventListener("pointercancel", (event) => {
    // The browser has taken the finger to scroll the page.
    pointers.delete(event.pointerId);
    grasp(true);
  });
  part.addEventListener("pointerleave", (event) => {
    if (event.pointerType !== "touch") hover(null, event);
  });
  // Two fingers are ours; with one the browser scrolls the page up and down.
  for (const kind of ["touchstart", "touchmove"])
    part.addEventListener(kind, (event) => {
      if (event.touches.length > 1) event.preventDefault();
    }, { passive: false });
}

// ---- keyboard and buttons ------------------------------------------------------------------------

const middle = () => (from + until) / 2;
const actions = {
  "+": () => zoom(0.5, middle()),
  "=": () => zoom(0.5, middle()),
  "-": () => zoom(2, middle()),
  0: () => look(lowest, highest),
  f: showFailure,
  ArrowLeft: () => look(from - (until - from) / 5, until - (until - from) / 5),
  ArrowRight: () => look(from + (until - from) / 5, until + (until - from) / 5),
};
window.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || !Object.hasOwn(actions, event.key)) return;
  event.preventDefault();
  actions[event.key]();
});
document.getElementById("zoom-in").onclick = actions["+"];
document.getElementById("zoom-out").onclick = actions["-"];
document.getElementById("show-all").onclick = actions[0];
document.getElementById("show-failure").onclick = actions.f;

