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

function percent(share) {
  return Math.round(share * 100) + "%";
}

const groupsShown = 10;

// ---- tables, legend and theme ------------------------------------------------------------------

function table(title, heads, lines) {
  if (!lines.length) return;
  const frame = element("div", null, document.getElementById("tables"));
  const made = element("table", null, frame);
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
  table("last failed calls", ["rank", "call", "at", "state"], failures.slice(-8).map(({ row, call }) => ({
    cells: [row.rank.rank, describe(call), read(call, "call_site") || "", read(call, "state")], call, bad: true,
  })));
  table("largest lateness", ["call", "number", "last", "after median", "at"], data.latest.map((one) => {
    const row = rows[one.rank];
    const call = row.rank.calls.find((it) => read(it, "group") === one.group && read(it, "call") === one.call);
    return { cells: [describe(call), one.call, "rank " + one.rank, duration(one.late), read(call, "call_site") || ""], call };
  }));
  const heads = ["rank", "waiting", "calls/s", "came last", "late in total", "at most"];
  const late = data.ranks.slice().sort((one, other) => other.late - one.late);
  table("waiting and lateness", heads, late.map((rank) => ({
    cells: [
      rank.rank, percent(rank.waiting), Number(rank.calls_per_second.toPrecision(3)),
      rank.came_last + " of " + rank.compared, duration(rank.late), duration(rank.worst),
    ],
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
  for (const { group, ranks } of data.groups.filter((one) => one.group !== 0).slice(0, groupsShown)) {
    const entry = element("span", null, legend);
    const mark = element("i", null, entry);
    mark.className = "group";
    mark.dataset.group = group;
    entry.append("group " + group + ": ranks " + ranks);
  }
  if (subgroups.length > groupsShown)
    element("span", "and " + (subgroups.length - groupsShown) + " more groups", legend);
}

// ---- theme and start ---------------------------------------------------------------------------

function setTheme(dark) {
  document.documentElement.classList.toggle("dark", dark);
  readColours();
  for (const mark of document.querySelectorAll("#legend i.group"))
    mark.style.borderBottomColor = groupColour(Number(mark.dataset.group));
  redraw();
}

const system = window.matchMedia("(prefers-color-scheme: dark)");
system.addEventListener("change", () => setTheme(system.matches));
document.getElementById("theme").onclick = () =>
  setTheme(!document.documentElement.classList.contains("dark"));
document.getElementById("facts").textContent =
  "job " + data.job + ", " + data.ranks.length + " ranks, " +
  rows.reduce((sum, row) => sum + row.rank.calls.length, 0) + " calls, " +
  (data.by === null ? "seen while it ran" : "written by rank " + data.by);
document.getElementById("reason").textContent = data.reason;
document.getElementById("reason").hidden = !data.reason;
document.getElementById("show-failure").textContent = failures.length ? "failure" : "last calls";
fillLegend();
fillTables();
window.addEventListener("resize", () => redraw());
setTheme(system.matches);
showFailure();
draw();
const cause = rowOfFailure();
if (cause) {
  const top = canvas.getBoundingClientRect().top + cause.top;
  if (top + cause.height > window.innerHeight) window.scrollBy(0, top - window.innerHeight / 2);
}
