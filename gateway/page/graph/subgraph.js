// The part of a knowledge graph that an answer used: what is drawn of it.

const MOST_NODES = 40;

/** Return the nodes and the edges to draw. What several documents state is one edge with several sources. */
export function drawable({ entities, relations }) {
  const nodes = new Map(entities.slice(0, MOST_NODES).map((entity) => [entity.name, entity]));
  const edges = new Map();
  let left = entities.length - nodes.size;
  for (const { head, relation, tail, document_id: documentId, index } of relations) {
    const unknown = [...new Set([head, tail])].filter((name) => !nodes.has(name));
    if (nodes.size + unknown.length > MOST_NODES) {
      left += 1;
      continue;
    }
    for (const name of unknown) nodes.set(name, { name, score: 0 });
    const stated = JSON.stringify([head, relation, tail]);
    if (!edges.has(stated)) edges.set(stated, { head, relation, tail, sources: [] });
    edges.get(stated).sources.push({ documentId, index });
  }
  return { nodes: [...nodes.values()], edges: [...edges.values()], left };
}

/** The documents that state a node's relations, each once. */
export const documentsAt = ({ name }, edges) =>
  new Set(edges.filter(({ head, tail }) => head === name || tail === name).flatMap(documentsOf));

export const documentsOf = ({ sources }) => sources.map(({ documentId }) => documentId);
