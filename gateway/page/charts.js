// Line charts of the gateway's last minutes.

import { byId, el, onWidth, svg } from "./dom.js";
import { count, duration, percent, ticks } from "./numbers.js";

const HEIGHT = 132;
const MARGIN = { top: 10, right: 10, bottom: 20, left: 52 };
const LATELY_S = 60;

const sum = (buckets, field) => buckets.reduce((total, bucket) => total + bucket[field], 0);

/** Share of cached prompt tokens in the minute that ended `ago` seconds ago; null without prompts. */
function hitRate(buckets, ago) {
  const lately = buckets.filter(({ ago_s: other }) => other >= ago && other < ago + LATELY_S);
  const prompts = sum(lately, "prompt_tokens");
  return prompts ? sum(lately, "cached_tokens") / prompts : null;
}

export class Charts {
  constructor() {
    this.hits = new Chart("Hit rate", "Share of a minute's prompt tokens that were cached", percent, [
      ["hits", "cached", ({ share }) => share],
    ]);
    this.hits.most = 1;
    this.ttft = new Chart("Time to first token", "By the end time of queries", duration, [
      ["p95", "p95", (bucket) => bucket.ttft_p95_ms],
      ["p50", "median", (bucket) => bucket.ttft_p50_ms],
    ]);
    this.totals = el("p", { class: "note" });
    byId("charts").append(this.hits.box, this.ttft.box, this.totals);
  }

  show(report) {
    const { buckets, window_s: window } = report;
    const shares = buckets.map((bucket) => ({ ...bucket, share: hitRate(buckets, bucket.ago_s) }));
    const now = hitRate(buckets, 0);
    const timed = buckets.findLast(({ first_tokens: came }) => came);
    this.hits.show(shares, window, now === null ? "" : `${percent(now)} in the last minute`);
    this.ttft.show(buckets, window, timed ? `${duration(timed.ttft_p50_ms)} at last` : "");
    const [queries, refused] = [sum(buckets, "queries"), sum(buckets, "rejected")];
    this.totals.textContent = `${count(queries)} ${queries === 1 ? "query" : "queries"} ended, ${count(refused)} refused.`;
  }
}

class Chart {
  constructor(title, what, format, series) {
    this.format = format;
    this.series = series;
    this.title = title;
    this.now = el("strong", {});
    this.root = svg("svg", { class: "chart", height: HEIGHT, role: "img" });
    const keys = series.length > 1 ? series.toReversed().map(([name, words]) => el("span", { class: `legend ${name}` }, words)) : [];
    const head = el("figcaption", {}, el("span", { title: what }, title), ...keys, this.now);
    this.box = el("figure", {}, head, this.root);
    onWidth(this.box, () => this.draw());
  }

  show(buckets, window, now) {
    [this.buckets, this.window] = [buckets, window];
    this.now.textContent = now;
    this.draw();
  }

  draw() {
    const width = Math.floor(this.box.clientWidth);
    if (!this.buckets || !width) return;
    const lines = this.series.map(([name, , value]) => [
      name,
      this.buckets.map((bucket) => [bucket.ago_s, value(bucket)]).filter(([, height]) => height !== null),
    ]);
    const values = lines.flatMap(([, points]) => points.map(([, height]) => height));
    const most = this.most ?? roof(Math.max(0, ...values));
    const x = (ago) => width - MARGIN.right - (ago / this.window) * (width - MARGIN.left - MARGIN.right);
    const y = (height) => HEIGHT - MARGIN.bottom - (height / most) * (HEIGHT - MARGIN.top - MARGIN.bottom);
    this.root.setAttribute("width", width);
    const said = values.length ? this.now.textContent : "nothing yet";
    this.root.replaceChildren(svg("title", {}, `${this.title}: ${said}`), ...this.frame(x, y, most, width));
    for (const [name, points] of lines) this.root.append(...drawn(name, points, x, y));
    if (!values.length) {
      const middle = { class: "nothing", x: width / 2, y: HEIGHT / 2, "text-anchor": "middle" };
      this.root.append(svg("text", middle, "No queries"));
    }
  }

  frame(x, y, most, width) {
    const marks = [];
    for (const height of ticks(most, 4)) {
      marks.push(
        svg("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: y(height), y2: y(height) }),
        svg("text", { class: "tick", x: MARGIN.left - 6, y: y(height) + 4, "text-anchor": "end" }, this.axis(height)),
      );
    }
    for (const minutes of [15, 10, 5, 0]) {
      const label = minutes ? `−${minutes} min` : "now";
      const anchor = { 15: "start", 0: "end" }[minutes] ?? "middle";
      marks.push(svg("text", { class: "tick", x: x(minutes * 60), y: HEIGHT - 4, "text-anchor": anchor }, label));
    }
    return marks;
  }

  axis(height) {
    return height || this.most ? this.format(height).replace(/\.0+ /, " ") : "0";
  }
}

/** A line through the points with a dot at the newest. The line breaks at gaps of over a minute. */
function drawn(name, points, x, y) {
  if (!points.length) return [];
  const path = points
    .map(([ago, height], number) => {
      const broken = number === 0 || points[number - 1][0] - ago > LATELY_S;
      return `${broken ? "M" : "L"}${x(ago).toFixed(1)} ${y(height).toFixed(1)}`;
    })
    .join("");
  const [ago, height] = points.at(-1);
  return [
    svg("path", { class: `line ${name}`, d: path }),
    svg("circle", { class: `dot ${name}`, cx: x(ago), cy: y(height), r: 3 }),
  ];
}

/** Round up to a figure that suits an axis. */
function roof(value) {
  if (!value) return 100;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 6, 8, 10].map((factor) => factor * power).find((round) => round >= value);
}
