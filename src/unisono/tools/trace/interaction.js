// ---- text ----------------------------------------------------------------------------------------

function duration(time, step) {
  const size = Math.max(Math.abs(time), step || 0);
  const [divisor, unit] = size < 1e3 ? [1, "ns"] : size < 1e6 ? [1e3, "µs"]
    : size < 1e9 ? [1e6, "ms"] : [1e9, "s"];
  const digits = step ? Math.max(0, Math.ceil(-Math.log10(step / divisor) - 1e-9)) : 2;
  const text = (time / divisor).toFixed(Math.min(digits, 9));
  return (step ? text : text.replace(/\.?0+$/, "")) + " " + unit;
}

function element(kind, text, parent) {
  const made = document.createElement(kind);
  if (text !== undefined && text !== null) made.textContent = text;
  if (parent) parent.append(made);
  return made;
}

function describe(call) {
  const parts = ["verb", "dtype", "count", "op"].map((name) => read(call, name));
  if (parts[2] !== null) parts[2] = "x " + parts[2];
  if (read(call, "root") !== null) parts.push("root " + read(call, "root"));
  if (read(call, "peer") !== null) parts.push("peer " + read(call, "peer"));
  return parts.filter((part) => part !== null).join(" ");
}

function awaited(call) {
  const ranks = call[column.awaited];
  if (ranks === null) return null;
  return Array.isArray(ranks) ? "never came: rank " + ranks.join(", ") : "came last: rank " + ranks;
}

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

// ---- mouse and keyboard ----------------------------------------------------------------------------

let dragged = null;

for (const part of [axis, canvas]) {
  part.addEventListener("wheel", (event) => {
    event.preventDefault();
    const size = event.deltaMode === 1 ? 16 : 1;
    const sideways = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      const move = ((until - from) * sideways * size) / (width - labelWidth);
      look(from + move, until + move);
    } else {
      const here = event.clientX - part.getBoundingClientRect().left;
      zoom(Math.exp(event.deltaY * size * 0.002), timeAt(Math.max(here, labelWidth)));
    }
  }, { passive: false });
  part.addEventListener("pointerdown", (event) => {
    dragged = { at: event.clientX, from, until, moved: false };
    part.setPointerCapture(event.pointerId);
  });
  part.addEventListener("pointermove", (event) => {
    if (dragged) {
      dragged.moved = dragged.moved || Math.abs(event.clientX - dragged.at) > 3;
      const move = ((dragged.at - event.clientX) * (dragged.until - dragged.from)) / (width - labelWidth);
      if (dragged.moved) look(dragged.from + move, dragged.until + move);
    }
    const found = part === canvas && !(dragged && dragged.moved) ? find(event) : null;
    if ((found && found.call) !== (hovered && hovered.call)) redraw(false);
    hovered = found;
    showTip(event);
  });
  part.addEventListener("pointerup", () => {
    if (dragged && !dragged.moved && hovered) showInstance(hovered.call);
    dragged = null;
  });
  part.addEventListener("pointerleave", () => {
    hovered = null;
    tip.hidden = true;
    redraw(false);
  });
}

const middle = () => (from + until) / 2;
const actions = {
  "+": () => zoom(0.5, middle()),
  "=": () => zoom(0.5, middle()),
  "-": () => zoom(2, middle()),
  0: () => look(-end, end * 3),
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

// ---- tables, legend and theme ------------------------------------------------------------------

function table(title, heads, lines) {
  if (!lines.length) return;
  const made = element("table", null, document.getElementById("tables"));
  element("caption", title, made);
  const head = element("tr", null, element("thead", null, made));
  heads.forEach((text) => element("th", text, head));
  const body = element("tbody", null, made);
  for (const { cells, call, bad } of lines) {
    const row = element("tr", null, body);
    cells.forEach((text) => element("td", text, row).classList.toggle("bad", Boolean(bad)));
    if (!call) continue;
    row.className = "link";
    row.title = "zoom to this call";
    row.onclick = () => {
      showInstance(call);
      canvas.scrollIntoView({ block: "nearest" });
    };
  }
}

function fillTables() {
  const broken = [];
  for (const row of rows)
    for (const call of row.rank.calls)
      if (failed(call)) broken.push({ row, call });
  table("last failed calls", ["rank", "call", "at", "state"], broken.slice(-8).map(({ row, call }) => ({
    cells: [row.rank.rank, describe(call), read(call, "call_site") || "", read(call, "state")], call, bad: true,
  })));
  table("largest lateness", ["call", "number", "last", "after median", "at"], data.latest.map((one) => {
    const row = rows[one.rank];
    const call = row.rank.calls.find((it) => read(it, "group") === one.group && read(it, "call") === one.call);
    return { cells: [describe(call), one.call, "rank " + one.rank, duration(one.late), read(call, "call_site") || ""], call };
  }));
  table("came last", ["rank", "calls", "late in total"], data.lateness.slice(0, 8).map((one) => ({
    cells: ["rank " + one.rank, one.calls, duration(one.late)],
  })));
  table("ranks", ["rank", "pid", "state", "call", "at", "state of the call"], data.ranks.map((rank) => {
    const calls = rank.calls;
    const call = calls.find((one) => read(one, "state") === "running") || calls[calls.length - 1];
    const texts = call ? [describe(call), read(call, "call_site") || "", read(call, "state")] : ["none", "", ""];
    return { cells: [rank.rank, rank.pid, rank.state, ...texts], call, bad: lost(rank) };
  }));
}

function fillLegend() {
  const present = new Set(data.ranks.flatMap((rank) => rank.calls.map((call) => read(call, "verb"))));
  const legend = document.getElementById("legend");
  for (const verb of [...verbs.filter((one) => present.has(one)), ...[...present].filter((one) => !verbs.includes(one))]) {
    const entry = element("span", null, legend);
    element("i", null, entry).style.background = "var(--" + (verbs.includes(verb) ? verb : "other") + ")";
    entry.append(verb);
  }
}

function setTheme(dark) {
  document.documentElement.classList.toggle("dark", dark);
  readColours();
  redraw();
}

const system = window.matchMedia("(prefers-color-scheme: dark)");
system.addEventListener("change", () => setTheme(system.matches));
document.getElementById("theme").onclick = () =>
  setTheme(!document.documentElement.classList.contains("dark"));
document.getElementById("facts").textContent =
  data.ranks.length + " ranks, " + rows.reduce((sum, row) => sum + row.rank.calls.length, 0) +
  " calls, written " + data.written + " by rank " + data.by;
document.getElementById("reason").textContent = data.reason;
fillLegend();
fillTables();
window.addEventListener("resize", () => redraw());
setTheme(system.matches);
