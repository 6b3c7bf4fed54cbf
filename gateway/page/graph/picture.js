// Draws entities as nodes and relations as arrows between them.

import { svg } from "../dom.js";
import { placed } from "./layout.js";

const MARGIN = { x: 88, top: 30, bottom: 34 };
const BEND = 26;
const ARROW = 8;
const LETTERS = 24;
const FEW_EDGES = 14;
const LETTER = 7.2;
const LINE = 36;

const short = (name) => (name.length > LETTERS ? `${name.slice(0, LETTERS - 1)}…` : name);
const turned = ([x, y]) => [-y, x];

/** High enough for all names, also on a narrow page. */
const heightOf = (count, width) => Math.min(1100, Math.max(180 + 8 * count, (count * LINE * 260) / width));

/** Draw the graph into `root`. Returns the elements of each node and each edge, in their order. */
export function draw(root, { nodes, edges }, width) {
  const height = heightOf(nodes.length, width);
  const aside = Math.min(MARGIN.x, width / 4);
  const box = { x: aside, y: MARGIN.top, width: width - 2 * aside, height: height - MARGIN.top - MARGIN.bottom };
  const numbers = new Map(nodes.map(({ name }, number) => [name, number]));
  const ends = edges.map(({ head, tail }) => [numbers.get(head), numbers.get(tail)]);
  const radii = nodes.map(radius(nodes));
  const sizes = nodes.map(({ name }) => ({ width: 12 + LETTER * short(name).length, height: LINE }));
  const points = placed(sizes, ends, box);
  const bends = bendsOf(ends);
  const drawnEdges = edges.map((edge, number) => {
    const [from, to] = ends[number];
    const shape = from === to ? loop(points[from], radii[from], bends[number]) : arrow(points, radii, ends[number], bends[number]);
    return edgeOf(edge, number, shape);
  });
  const drawnNodes = nodes.map((node, number) => nodeOf(node, number, points[number], radii[number]));
  for (const [name, value] of Object.entries({ width, height, viewBox: `0 0 ${width} ${height}` })) root.setAttribute(name, value);
  root.classList.toggle("crowded", edges.length > FEW_EDGES);
  root.replaceChildren(...drawnEdges, ...drawnNodes);
  return { nodes: drawnNodes, edges: drawnEdges };
}

/** How large nodes are: by their scores. Ends of relations that have none are the smallest. */
function radius(nodes) {
  const best = Math.max(...nodes.map(({ score }) => score), Number.EPSILON);
  return ({ score }) => 4 + 5 * Math.sqrt(Math.max(0, score) / best);
}

/** How far each edge bends, so that edges between the same nodes lie side by side. */
function bendsOf(ends) {
  const pair = ([from, to]) => `${Math.min(from, to)} ${Math.max(from, to)}`;
  const beside = Map.groupBy(ends.keys(), (number) => pair(ends[number]));
  const bends = [];
  for (const numbers of beside.values()) {
    numbers.forEach((number, place) => {
      const [from, to] = ends[number];
      if (from === to) bends[number] = place;
      else bends[number] = (place - (numbers.length - 1) / 2) * (from < to ? 1 : -1);
    });
  }
  return bends;
}

/** A curve from one node to another, with the point of its arrow and the place of its label. */
function arrow(points, radii, [from, to], bend) {
  const [start, end] = [points[from], points[to]];
  const way = [end[0] - start[0], end[1] - start[1]];
  const length = Math.hypot(...way) || 1;
  const ahead = way.map((part) => part / length);
  const aside = turned(ahead).map((part) => part * bend * BEND);
  const control = [0, 1].map((axis) => (start[axis] + end[axis]) / 2 + 2 * aside[axis]);
  const last = [end[0] - control[0], end[1] - control[1]];
  const into = last.map((part) => part / (Math.hypot(...last) || 1));
  const tip = [0, 1].map((axis) => end[axis] - into[axis] * (radii[to] + 2));
  return {
    line: `M${at(start)}Q${at(control)} ${at(tip)}`,
    head: headOf(tip, into),
    label: [0, 1].map((axis) => (start[axis] + end[axis]) / 2 + aside[axis]),
  };
}

/** A loop above a node. Several of them stand inside of each other. */
function loop([x, y], size, place) {
  const high = 24 + 12 * place;
  const [left, right, base] = [x - size, x + size, y - size];
  const tip = [x + size * 0.7, y - size * 0.7 - 2];
  return {
    line: `M${at([x - size * 0.7, base])}C${at([left - high / 2, base - high])} ${at([right + high / 2, base - high])} ${at(tip)}`,
    head: headOf(tip, [-0.5, 0.87]),
    label: [x, base - high * 0.8],
  };
}

function headOf(tip, into) {
  const side = turned(into);
  const corner = (sign) => [0, 1].map((axis) => tip[axis] - ARROW * into[axis] + sign * 0.4 * ARROW * side[axis]);
  return `M${at(tip)}L${at(corner(1))}L${at(corner(-1))}Z`;
}

const at = ([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`;

function edgeOf({ relation, told }, number, { line, head, label: [x, y] }) {
  return svg(
    "g",
    { class: told ? "edge told" : "edge", "data-edge": number },
    svg("path", { class: "near", d: line }),
    svg("path", { class: "way", d: line }),
    svg("path", { class: "head", d: head }),
    svg("text", { x: x.toFixed(1), y: (y + 4).toFixed(1), "text-anchor": "middle" }, short(relation)),
  );
}

function nodeOf({ name, score }, number, [x, y], size) {
  return svg(
    "g",
    { class: score > 0 ? "node active" : "node", "data-node": number },
    svg("circle", { cx: x.toFixed(1), cy: y.toFixed(1), r: size.toFixed(1) }),
    svg("text", { x: x.toFixed(1), y: (y + size + 14).toFixed(1), "text-anchor": "middle" }, short(name)),
  );
}
