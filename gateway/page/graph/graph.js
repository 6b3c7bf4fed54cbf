// The panel of the knowledge graph: what an answer used of it, drawn and as tables.

import { byId, el, onWidth, svg, table } from "../dom.js";
import { count } from "../numbers.js";
import { draw } from "./picture.js";
import { documentsAt, documentsOf, drawable, textOf } from "./subgraph.js";

const LEAST_WIDTH = 300;

const several = (number, one, more) => `${count(number)} ${number === 1 ? one : more}`;

export class Graph {
  /** `mark` is called with the ids of the documents that state what is pointed at. */
  constructor(tip, mark) {
    this.tip = tip;
    this.mark = mark;
    this.panel = byId("graph");
    this.box = byId("graph-picture");
    this.note = byId("graph-note");
    this.table = byId("graph-table");
    this.root = svg("svg", { class: "knowledge", tabindex: 0, role: "group" });
    this.shown = null;
    this.stops = [];
    this.pointed = -1;
    this.root.addEventListener("pointermove", ({ target }) => this.point(this.stopAt(target)));
    this.root.addEventListener("pointerleave", () => this.point(-1));
    this.root.addEventListener("blur", () => this.point(-1));
    this.root.addEventListener("keydown", (event) => this.step(event));
    onWidth(this.box, () => this.draw());
  }

  begin() {
    this.point(-1);
    this.shown = null;
    this.panel.hidden = true;
  }

  /** Show what a search reports. Without a graph mode, it reports nothing. */
  show(graph) {
    if (!graph) return;
    this.shown = drawable(graph);
    this.panel.hidden = false;
    this.box.replaceChildren(this.root);
    this.root.toggleAttribute("hidden", !this.shown.nodes.length);
    const size = `${several(this.shown.nodes.length, "entity", "entities")} and ${several(this.shown.edges.length, "relation", "relations")}`;
    this.root.setAttribute("aria-label", `${size}. Arrow keys go through them.`);
    this.note.textContent = [
      !this.shown.nodes.length && "The question led to no entity of the graph.",
      this.shown.edges.some(({ told }) => told) && "Heavy arrows are the facts in the prompt.",
      this.shown.left && "The picture would be too full with all of them. The tables have the rest.",
    ].filter(Boolean).join(" ");
    this.table.hidden = !this.shown.nodes.length;
    this.table.lastElementChild.replaceChildren(...tables(graph));
    this.draw();
  }

  draw() {
    const width = Math.max(LEAST_WIDTH, Math.floor(this.box.clientWidth));
    if (!this.shown?.nodes.length || !this.box.clientWidth) return;
    this.point(-1);
    const { nodes, edges } = this.shown;
    const drawn = draw(this.root, this.shown, width);
    const edgesAt = (name) => drawn.edges.filter((_, number) => edges[number].head === name || edges[number].tail === name);
    // Relations first: the keyboard goes through them in this order.
    this.stops = [
      ...edges.map((edge, number) => ({
        elements: [drawn.edges[number], ...nodes.flatMap(({ name }, end) => (name === edge.head || name === edge.tail ? [drawn.nodes[end]] : []))],
        documents: documentsOf(edge),
        title: `${edge.head} -${edge.relation}-> ${edge.tail}`,
        facts: edge.sources.map(({ documentId, index }) => `${documentId}, chunk ${index + 1}`),
      })),
      ...nodes.map((node, number) => ({
        elements: [drawn.nodes[number], ...edgesAt(node.name)],
        documents: documentsAt(node, edges),
        title: node.name,
        facts: node.chunks === undefined ? [] : [`${several(node.chunks, "chunk mentions", "chunks mention")} it`],
      })),
    ];
  }

  /** The number of the stop that an element belongs to, or -1. */
  stopAt(element) {
    const { edge, node } = element.closest("g")?.dataset ?? {};
    return edge ? Number(edge) : node ? this.shown.edges.length + Number(node) : -1;
  }

  step(event) {
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!by || !this.stops.length) return;
    event.preventDefault();
    const from = this.pointed < 0 && by < 0 ? 0 : this.pointed;
    this.point((from + by + this.stops.length) % this.stops.length);
  }

  point(number) {
    if (number === this.pointed) return;
    for (const lit of this.root.querySelectorAll(".pointed")) lit.classList.remove("pointed");
    this.pointed = number;
    const stop = this.stops[number];
    this.root.classList.toggle("pointing", Boolean(stop));
    this.mark(new Set(stop?.documents));
    if (!stop) {
      this.tip.hide();
      return;
    }
    for (const element of stop.elements) element.classList.add("pointed");
    this.tip.show(stop.title, stop.facts, stop.elements[0].getBoundingClientRect());
  }
}

function tables({ entities, relations, paths }) {
  const told = paths.map((path) => [textOf(path), [...new Set(path.sources.map(({ document_id: documentId }) => documentId))].join(", ")]);
  return [
    ...(told.length ? [table("Facts in the prompt", ["Path", "Documents"], told)] : []),
    table(
      "Relations, the best first",
      ["Entity", "Relation", "Entity", "Document", "Chunk"],
      relations.map(({ head, relation, tail, document_id: documentId, index }) => [head, relation, tail, documentId, index + 1]),
    ),
    table(
      "Entities, the most active first",
      ["Entity", "Activation", "Chunks"],
      entities.map(({ name, score, chunks }) => [name, score.toFixed(2), count(chunks)]),
    ),
  ].map((rows) => el("div", {}, rows));
}
