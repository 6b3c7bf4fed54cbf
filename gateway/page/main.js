// Connects the parts of the page: the question form, the documents, and the views that are
// refreshed by polling.

import { KeyForm } from "./access.js";
import { Answer } from "./answer.js";
import { json } from "./api.js";
import { Ask } from "./ask.js";
import { Charts } from "./charts.js";
import { Collections } from "./collections.js";
import { Documents } from "./documents/documents.js";
import { byId } from "./dom.js";
import { Gantt } from "./gantt.js";
import { Graph } from "./graph/graph.js";
import { Mode } from "./graph/mode.js";
import { Live } from "./live.js";
import { chooseTheme } from "./theme.js";
import { Tip } from "./tip.js";
import { Tree } from "./tree.js";

const CACHE = "v1/admin/cache";
// Limits for a large tree. Most requests use its top.
const MOST_NODES = 3000;
const DEPTH = 128;

chooseTheme();
const tip = new Tip();
const tree = new Tree(tip);
const charts = new Charts();
const gantt = new Gantt();
const readiness = byId("readiness");
const liveNote = byId("live-note");

const live = new Live(async () => {
  if (readiness.dataset.ready === "no") greet();
  try {
    const shown = await json(`${CACHE}/tree?depth=${DEPTH}&limit=${MOST_NODES}`, { admin: true });
    const report = await json(`${CACHE}/activity`, { admin: true });
    for (const part of document.querySelectorAll(".looked-at")) part.hidden = false;
    tree.show(shown);
    charts.show(report);
    adminKey.accepted();
    liveNote.textContent = "";
    return "well";
  } catch (error) {
    const refused = error.status === 401 || error.status === 403;
    if (refused) adminKey.ask(error);
    liveNote.textContent = refused ? "" : error.message;
    return refused ? "refused" : "failed";
  }
});

const adminKey = new KeyForm("admin", "The tree and the charts are for administrators.", () => live.now());
const apiKey = new KeyForm("api", "To use this gateway, you must have a key.", open);
const collections = new Collections(apiKey);
const answer = new Answer();
const graph = new Graph(tip, (stating) => answer.point(stating));
new Ask(answer, graph, new Mode(collections), apiKey, (timeline) => {
  if (timeline) gantt.show(timeline);
  else greet();
  live.again();
});
const documents = new Documents(collections, apiKey);

async function open() {
  documents.open();
  live.now();
  greet();
}

/** Show whether the gateway is ready, and the model. */
async function greet() {
  try {
    await json("readyz");
    readiness.dataset.ready = "yes";
    readiness.textContent = "Ready";
  } catch (error) {
    readiness.dataset.ready = "no";
    readiness.textContent = error.message;
  }
  try {
    const { data } = await json("v1/models");
    byId("model").textContent = data[0].id;
    byId("model").hidden = false;
  } catch {
    // A key is missing, or there is no engine. The page reports both elsewhere.
  }
}

open();
