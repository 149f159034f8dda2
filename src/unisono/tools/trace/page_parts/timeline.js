"use strict";
// The calls of the trace, where they are on the page, and the window on the time axis. Texts of the
// trace reach the page only as text nodes.
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
    reach = Math.max(reach, endOf(call));
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

function endOf(call) {
  return call[column.begin] + call[column.length];
}

function instanceKey(call) {
  return read(call, "call") === null ? null : read(call, "group") + ":" + read(call, "call");
}

function instanceOf(call) {
  return sameCall.get(instanceKey(call)) || [{ call }];
}

function firstArrival(call) {
  return Math.min(...instanceOf(call).map((one) => one.call[column.begin]));
}

function lastEnd(call) {
  return Math.max(...instanceOf(call).map((one) => endOf(one.call)));
}

function failed(call) {
  const state = read(call, "state");
  return state !== "running" && state !== "done";
}

function lost(rank) {
  return !["running", "left", "starting"].includes(rank.state);
}

const failures = rows.flatMap((row) =>
  row.rank.calls.filter(failed).map((call) => ({ row, call })));
failures.sort((one, other) => endOf(one.call) - endOf(other.call));

// ---- the window on the time axis ---------------------------------------------------------------

const margin = 0.02;
const lowest = -end * margin;
const highest = end * (1 + margin);
let from = lowest;
let until = highest;
let labelWidth = 0; // both are set before anything is drawn
let width = 0;

function x(time) {
  return labelWidth + ((time - from) / (until - from)) * (width - labelWidth);
}

function timeAt(position) {
  return from + ((position - labelWidth) / (width - labelWidth)) * (until - from);
}

function look(newFrom, newUntil) {
  const span = Math.min(Math.max(newUntil - newFrom, 100), highest - lowest);
  from = Math.min(Math.max(newFrom, lowest), highest - span);
  until = from + span;
  redraw();
}

function zoom(factor, around) {
  look(around - (around - from) * factor, around + (until - around) * factor);
}

function showInstance(call) {
  const first = firstArrival(call);
  const last = lastEnd(call);
  const room = Math.max((last - first) * 0.15, 200);
  look(first - room, last + room);
}

/// Shows the last call that failed and some that came before it; without one the last calls.
function showFailure() {
  if (!failures.length) {
    const starts = rows.filter((row) => row.rank.calls.length)
      .map((row) => row.rank.calls[Math.max(row.rank.calls.length - 24, 0)][column.begin])
      .sort((one, other) => one - other);
    const start = starts.length ? starts[starts.length >> 1] : lowest;
    look(start, end + (end - start) * 0.05);
    return;
  }
  const { row, call } = failures[failures.length - 1];
  const first = firstArrival(call);
  const length = Math.max(lastEnd(call) - first, 100);
  const before = row.rank.calls[Math.max(row.rank.calls.indexOf(call) - 6, 0)][column.begin];
  // However short the failed call was, it takes a good part of the width.
  look(Math.min(first - length * 0.5, Math.max(before, first - length * 6)),
    lastEnd(call) + length * 0.15);
}

/// The row in which to look for the cause: a rank that was lost, or never came, or that failed.
function rowOfFailure() {
  const gone = rows.find((row) => lost(row.rank));
  if (gone || !failures.length) return gone;
  const { row, call } = failures[failures.length - 1];
  const missing = call[column.awaited];
  return Array.isArray(missing) ? rows[missing[0]] : row;
}
