// The knowledge tree: a treemap for each tier, and a table of all nodes.

import { byId, el, onWidth, svg, table } from "./dom.js";
import { bytes, compact, count, percent } from "./numbers.js";
import { nested } from "./treemap.js";

const MOST_CELLS = 500;
const MOST_ROWS = 100;
const HEIGHT = 190;
const LETTER = 7;
const AGES = [
  [0, "by the last request"],
  [5, "up to 5 ago"],
  [20, "20 ago"],
  [100, "100 ago"],
  [1000, "1,000 ago"],
  [Infinity, "before"],
];
const TIERS = { gpu: "GPU", host: "Host memory", disk: "Disk" };

export class Tree {
  constructor(tip) {
    this.tiers = byId("tiers");
    this.note = byId("tree-note");
    this.table = byId("tree-table");
    this.tip = tip;
    this.maps = new Map();
    this.nodes = [];
    const ages = AGES.map(([, words], age) => el("span", { class: `age age-${age}` }, words));
    byId("ages").append("Used", ...ages, el("span", { class: "age pinned" }, "pinned"));
    this.table.addEventListener("toggle", () => this.list());
  }

  show(tree) {
    this.nodes = flat(tree);
    const names = tree.tiers.map(({ place }) => place);
    for (const name of this.maps.keys()) if (!names.includes(name)) this.forget(name);
    tree.tiers.forEach((tier, number) => this.map(names[number]).show(tier, this.nodes));
    this.say(tree);
    this.list();
  }

  map(name) {
    if (!this.maps.has(name)) {
      const map = new TierMap(name, this.tip);
      this.maps.set(name, map);
      this.tiers.append(map.box);
    }
    return this.maps.get(name);
  }

  forget(name) {
    this.maps.get(name).box.remove();
    this.maps.delete(name);
  }

  say(tree) {
    const hidden = tree.nodes - this.nodes.length;
    const words = [`${count(tree.nodes)} ${tree.nodes === 1 ? "node" : "nodes"}.`];
    if (!tree.tiers.length) words.push("The engine keeps no KV outside its own cache.");
    else if (!tree.nodes) words.push("The documents of the first answer will appear here.");
    if (hidden > 0) words.push(`${count(hidden)} of them are used less than those shown.`);
    const bounded = [...this.maps.values()].some(({ left }) => left > 0);
    if (bounded) words.push(`Each tier shows its ${MOST_CELLS} largest.`);
    this.note.textContent = words.join(" ");
  }

  /** Update the table if it is open. */
  list() {
    if (!this.table.open) return;
    const largest = [...this.nodes].sort((one, other) => other.tokens - one.tokens).slice(0, MOST_ROWS);
    const rows = largest.map((node) => [
      node.name,
      node.places.join(", "),
      count(node.tokens),
      node.frequency.toFixed(1),
      count(node.requests_ago),
      [node.pinned && "pinned", node.locked && "in use"].filter(Boolean).join(", "),
    ]);
    const caption = `The ${rows.length} largest of ${count(this.nodes.length)} nodes`;
    const headings = ["Document", "Tiers", "Tokens", "Frequency", "Requests ago", "State"];
    this.table.lastElementChild.replaceChildren(table(caption, headings, rows));
  }
}

class TierMap {
  constructor(name, tip) {
    this.tip = tip;
    this.cells = new Map();
    this.order = [];
    this.left = 0;
    this.name = name;
    const [kind, instance] = name.split("@");
    this.title = [TIERS[kind] ?? kind, instance].filter(Boolean).join(" · ");
    this.held = el("span", { class: "held" });
    this.meter = el("meter", { min: 0, max: 1, value: 0, "aria-label": `${this.title}: share in use` });
    this.root = svg("svg", { class: "map", height: HEIGHT, tabindex: 0, role: "group" });
    this.empty = el("p", { class: "empty" }, "Empty.");
    const head = el("div", { class: "tier-head" }, el("h3", {}, this.title), this.held, this.meter);
    this.box = el("div", { class: "tier" }, head, this.root, this.empty);
    this.root.addEventListener("pointermove", ({ target }) => this.point(this.cells.get(target.parentNode.dataset?.key)));
    this.root.addEventListener("pointerleave", () => this.point(null));
    this.root.addEventListener("blur", () => this.point(null));
    this.root.addEventListener("keydown", (event) => this.step(event));
    onWidth(this.box, () => this.draw());
  }

  show(tier, nodes) {
    this.tier = tier;
    const here = nodes.filter(({ places }) => places.includes(this.name));
    this.drawn = new Set([...here].sort((one, other) => other.tokens - one.tokens).slice(0, MOST_CELLS));
    this.left = here.length - this.drawn.size;
    this.tops = nodes.filter(({ parent }) => !parent);
    // Not tokens, if the engine says what KV takes: of layers with windows or states, a document has other pages.
    const [used, capacity] =
      tier.used_bytes === null
        ? [compact(tier.used_tokens), `${compact(tier.capacity_tokens)} tokens`]
        : [bytes(tier.used_bytes), bytes(tier.capacity_bytes)];
    this.held.textContent = `${used} of ${capacity}, ${count(tier.nodes)} nodes`;
    this.meter.value = tier.used_tokens / tier.capacity_tokens;
    this.root.setAttribute(
      "aria-label",
      `${this.title}: ${percent(this.meter.value)} in use by ${count(tier.nodes)} nodes. Arrow keys go through them.`,
    );
    this.draw();
  }

  draw() {
    const width = Math.floor(this.box.clientWidth);
    if (!this.drawn || !width) return;
    this.root.toggleAttribute("hidden", !this.drawn.size);
    this.empty.hidden = this.drawn.size > 0;
    this.root.setAttribute("width", width);
    const groups = this.tops.map((node) => this.group(node)).filter(({ size }) => size);
    const leaves = nested(groups, { x: 0, y: 0, width, height: HEIGHT });
    const gone = new Set(this.cells.keys());
    for (const { leaf, ...box } of leaves) {
      gone.delete(leaf.key);
      if (!this.cells.has(leaf.key)) this.cells.set(leaf.key, new Cell(this.root));
      this.cells.get(leaf.key).show(leaf, box);
    }
    for (const key of gone) {
      this.cells.get(key).root.remove();
      this.cells.delete(key);
    }
    this.order = leaves.map(({ leaf }) => leaf.key);
  }

  /** Return a node and its descendants as nested groups for the treemap. */
  group(node) {
    const groups = node.behind.map((child) => this.group(child)).filter(({ size }) => size);
    const own = this.drawn.has(node) ? { leaf: node, size: node.tokens } : null;
    if (own && !groups.length) return own;
    if (own) groups.push(own);
    return { groups, size: groups.reduce((sum, { size }) => sum + size, 0) };
  }

  step(event) {
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!by || !this.order.length) return;
    event.preventDefault();
    const at = this.order.indexOf(this.pointed);
    const next = at < 0 ? (by > 0 ? 0 : this.order.length - 1) : (at + by + this.order.length) % this.order.length;
    this.point(this.cells.get(this.order[next]));
  }

  point(cell) {
    this.cells.get(this.pointed)?.root.classList.remove("pointed");
    this.pointed = cell?.node.key;
    if (!cell) return this.tip.hide();
    cell.root.classList.add("pointed");
    return this.tip.show(cell.node.name, factsOf(cell.node), cell.root.getBoundingClientRect());
  }
}

class Cell {
  constructor(parent) {
    this.rect = svg("rect", { rx: 2 });
    this.label = svg("text", {});
    this.root = svg("g", {}, this.rect, this.label);
    parent.append(this.root);
  }

  show(node, { x, y, width, height }) {
    this.node = node;
    this.root.dataset.key = node.key;
    const pointed = this.root.classList.contains("pointed") ? " pointed" : "";
    this.root.setAttribute("class", `cell age-${ageOf(node)}${node.pinned ? " pinned" : ""}${pointed}`);
    const box = { x: x + 0.5, y: y + 0.5, width: Math.max(0.5, width - 1), height: Math.max(0.5, height - 1) };
    for (const [name, value] of Object.entries(box)) this.rect.setAttribute(name, value.toFixed(1));
    const letters = Math.floor((width - 10) / LETTER);
    const fits = height > 18 && letters > 4;
    const name = node.name.split("/").at(-1);
    this.label.textContent = !fits ? "" : name.length > letters ? `${name.slice(0, letters - 1)}…` : name;
    this.label.setAttribute("x", (x + 6).toFixed(1));
    this.label.setAttribute("y", (y + 15).toFixed(1));
  }
}

/** What the tooltip says about a node. */
function factsOf(node) {
  return [
    `${count(node.tokens)} tokens in ${node.places.join(", ")}`,
    `frequency ${node.frequency.toFixed(1)}, used ${node.requests_ago ? `${count(node.requests_ago)} requests ago` : "by the last request"}`,
    [node.pinned && "pinned", node.locked && "in use now"].filter(Boolean).join(", "),
  ].filter(Boolean);
}

const ageOf = ({ requests_ago: ago }) => AGES.findIndex(([most]) => ago <= most);

/** Return all nodes of a reply with their names and children, parents before children. */
function flat(tree) {
  const nodes = [];
  const visit = (parent, namespace) => (given) => {
    const found = tree.documents[namespace]?.[given.content];
    const plain = parent ? `unnamed ${given.content.slice(0, 8)}` : "System prompt";
    const node = { ...given, parent, name: found ? nameOf(found) : plain, behind: [] };
    nodes.push(node);
    node.behind = given.children.map(visit(node, namespace));
    return node;
  };
  for (const [namespace, tops] of Object.entries(tree.namespaces)) tops.forEach(visit(null, namespace));
  return nodes;
}

/** The file name, with the part's number for all parts but the first. */
const nameOf = ({ filename, index }) => (index ? `${filename} (${index + 1})` : filename);
