// The part of a knowledge graph that an answer used: what is drawn of it.

const MOST_NODES = 40;

/**
 * Return the nodes and the edges to draw. What several documents state is one edge with several sources. Edges of the
 * paths that the prompt tells come first, and are `told`.
 */
export function drawable({ entities, relations, paths }) {
  const nodes = new Map(entities.slice(0, MOST_NODES).map((entity) => [entity.name, entity]));
  const edges = new Map();
  let left = entities.length - nodes.size;
  const add = ({ head, relation, tail, document_id: documentId, index }, told) => {
    const unknown = [...new Set([head, tail])].filter((name) => !nodes.has(name));
    if (nodes.size + unknown.length > MOST_NODES) {
      left += 1;
      return;
    }
    for (const name of unknown) nodes.set(name, { name, score: 0 });
    const stated = JSON.stringify([head, relation, tail]);
    if (!edges.has(stated)) edges.set(stated, { head, relation, tail, told, sources: [] });
    const { sources } = edges.get(stated);
    const known = sources.some((source) => source.documentId === documentId && source.index === index);
    if (!known) sources.push({ documentId, index });
  };
  for (const step of paths.flatMap(steps)) add(step, true);
  for (const relation of relations) add(relation, false);
  return { nodes: [...nodes.values()], edges: [...edges.values()], left };
}

/** The relations that a path leads along, from head to tail. Those with `<-` are walked against their direction. */
function steps({ entities, relations, sources }) {
  return relations.map((arrow, number) => {
    const ends = [entities[number], entities[number + 1]];
    const [head, tail] = arrow.startsWith("<-") ? ends.reverse() : ends;
    return { head, relation: arrow.replace(/^<?-|->?$/g, ""), tail, ...sources[number] };
  });
}

/** A path as the prompt tells it. */
export const textOf = ({ entities, relations }) =>
  entities.map((entity, number) => (number ? `${relations[number - 1]} ${entity}` : entity)).join(" ");

/** The documents that state a node's relations, each once. */
export const documentsAt = ({ name }, edges) =>
  new Set(edges.filter(({ head, tail }) => head === name || tail === name).flatMap(documentsOf));

export const documentsOf = ({ sources }) => sources.map(({ documentId }) => documentId);
