// The timeline of one question: a lane for each kind of work, and a line at the first token.

import { byId, onWidth, svg, table } from "./dom.js";
import { duration, ticks } from "./numbers.js";

const LANES = [
  ["Search", "retrieval_stage"],
  ["Rerank", "rerank"],
  ["Speculation", "speculation"],
  ["Queue", "queue"],
  ["KV load", "kv_load"],
  ["Prefill", "prefill"],
  ["Answer", "decode"],
];
const NAMES = { retrieval_stage: "Search", first_token: "First token", decode: "Answer", end: "End" };
const OUTCOMES = {
  confirmed: "confirmed by the final documents",
  wrong: "dropped: the documents changed",
  gave_way: "dropped: it gave way to a request",
};
const LANE = 30;
const BAR = 16;
const TOP = 26;
const AXIS = 24;
const LETTER = 6.6;

const nameOf = ({ name }) => NAMES[name] ?? LANES.find(([, lane]) => lane === name)[0];
const wordsOf = ({ detail }) => OUTCOMES[detail] ?? detail ?? "";
const endOf = ({ at_ms: at, duration_ms: lasted }) => at + (lasted ?? 0);

export class Gantt {
  constructor() {
    this.box = byId("timeline");
    this.extent = byId("extent");
    this.table = byId("timeline-table");
    this.entries = null;
    this.whole = false;
    this.extent.addEventListener("click", ({ target }) => {
      if (!target.dataset.extent) return;
      this.whole = target.dataset.extent === "whole";
      this.draw();
    });
    onWidth(this.box, () => this.draw());
  }

  show(entries) {
    this.entries = entries;
    const rows = entries.map((entry) => [
      nameOf(entry),
      duration(entry.at_ms),
      entry.duration_ms === undefined ? "" : duration(entry.duration_ms),
      wordsOf(entry),
    ]);
    this.table.lastElementChild.replaceChildren(
      table("The timeline of the last question", ["Phase", "Start", "Duration", "Detail"], rows),
    );
    this.table.hidden = this.extent.hidden = false;
    this.draw();
  }

  draw() {
    if (!this.entries) return;
    for (const button of this.extent.children) {
      button.setAttribute("aria-pressed", (button.dataset.extent === "whole") === this.whole);
    }
    const last = Math.max(...this.entries.map(endOf), 0.001);
    const first = this.entries.find(({ name }) => name === "first_token");
    const end = this.whole || !first ? last : Math.min(last, first.at_ms * 1.25);
    this.box.replaceChildren(picture(this.entries, Math.max(280, this.box.clientWidth), end));
  }
}

function picture(entries, width, end) {
  const left = width < 560 ? 78 : 104;
  const right = width - 14;
  const height = TOP + LANES.length * LANE + AXIS;
  const x = (ms) => left + (Math.min(ms, end) / end) * (right - left);
  const root = svg("svg", { class: "gantt", width, height, viewBox: `0 0 ${width} ${height}`, role: "img" });
  root.append(svg("title", {}, summary(entries)));
  for (const ms of ticks(end, width < 560 ? 4 : 8)) {
    const base = TOP + LANES.length * LANE;
    root.append(
      svg("line", { class: "grid", x1: x(ms), x2: x(ms), y1: TOP, y2: base }),
      svg("text", { class: "tick", x: x(ms), y: base + 16, "text-anchor": ms ? "middle" : "start" }, axis(ms)),
    );
  }
  let free = 0;
  for (const entry of entries.filter(({ name }) => name === "first_token" || name === "end")) {
    if (entry.at_ms <= end) free = moment(root, entry, x(entry.at_ms), { free, right });
  }
  LANES.forEach(([label, name], number) => {
    const y = TOP + number * LANE;
    const own = entries.filter((entry) => entry.name === name);
    root.append(svg("line", { class: "rule", x1: 0, x2: right, y1: y, y2: y }));
    root.append(svg("text", { class: own.length ? "lane" : "lane none", x: 0, y: y + LANE / 2 + 4 }, label));
    lane(root, own, y + (LANE - BAR) / 2, x, { left, right, end });
  });
  return root;
}

function lane(root, entries, y, x, { left, right, end }) {
  const middle = y + BAR / 2 + 4;
  let after = left;
  for (const [number, entry] of entries.entries()) {
    if (entry.at_ms >= end) continue;
    const from = x(entry.at_ms);
    const width = Math.max(2, x(endOf(entry)) - from - (entry.name === "retrieval_stage" ? 1 : 0));
    const kind = entry.name === "speculation" ? `speculation ${entry.detail}` : entry.name;
    const bar = svg("rect", { class: `bar ${kind}`, x: from, y, width, height: BAR, rx: Math.min(3, width / 2) });
    bar.append(svg("title", {}, `${nameOf(entry)}: ${duration(entry.duration_ms)} ${wordsOf(entry)}`));
    root.append(bar);
    if (entry.name === "retrieval_stage" && width > 16) {
      const inside = { class: "inside", x: from + width / 2, y: middle, "text-anchor": "middle" };
      root.append(svg("text", inside, String(number + 1)));
    }
    after = Math.max(after, from + width);
  }
  if (entries.length) note(root, said(entries, end), { after, middle, left, right });
}

function said(entries, end) {
  const lasted = entries.reduce((sum, entry) => sum + entry.duration_ms, 0);
  const goesOn = endOf(entries.at(-1)) > end ? ", goes on" : "";
  const [only] = entries;
  if (only.name === "speculation") {
    const confirmed = entries.filter(({ detail }) => detail === "confirmed").length;
    const dropped = entries.length - confirmed;
    return [dropped && `${dropped} dropped`, confirmed && "confirmed"].filter(Boolean).join(", ");
  }
  const detail = only.name === "retrieval_stage" || only.name === "queue" ? "" : `, ${wordsOf(only)}`;
  return duration(lasted) + detail + goesOn;
}

/** Label the bars: after them if there is room, else before them, else inside, else not at all. */
function note(root, words, { after, middle, left, right }) {
  const first = Math.min(...[...root.querySelectorAll(".bar")].filter(level(middle)).map((bar) => bar.x.baseVal.value));
  const needed = words.length * LETTER + 8;
  if (after + needed < right) root.append(svg("text", { class: "beside", x: after + 8, y: middle }, words));
  else if (first - needed > left) {
    root.append(svg("text", { class: "beside", x: first - 8, y: middle, "text-anchor": "end" }, words));
  } else if (after - first > needed) {
    root.append(svg("text", { class: "inside", x: first + 8, y: middle }, words));
  }
}

const level = (middle) => (bar) => Math.abs(bar.y.baseVal.value + BAR / 2 + 4 - middle) < 1;

/** Draw a line, and a label if it begins behind `free`, where an earlier one ends. Returns the end of the last one. */
function moment(root, entry, at, { free, right }) {
  const label = `${nameOf(entry).toLowerCase()} ${duration(entry.at_ms)}`;
  const length = label.length * LETTER;
  const outside = at + length > right;
  const from = outside ? at - length : at - length / 2;
  root.append(svg("line", { class: `moment ${entry.name}`, x1: at, x2: at, y1: TOP - 6, y2: TOP + LANES.length * LANE }));
  if (from < free) return free;
  root.append(svg("text", { class: `when ${entry.name}`, x: at, y: TOP - 12, "text-anchor": outside ? "end" : "middle" }, label));
  return from + length;
}

const axis = (ms) => (ms ? duration(ms).replace(/\.0+ /, " ") : "0");

function summary(entries) {
  const first = entries.find(({ name }) => name === "first_token");
  const end = entries.find(({ name }) => name === "end");
  return `Timeline: first token after ${duration(first?.at_ms ?? 0)}, end after ${duration(end?.at_ms ?? 0)}.`;
}
