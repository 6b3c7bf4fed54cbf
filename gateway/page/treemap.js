// Nested squarified treemaps (Bruls, Huizing, van Wijk 2000).

/** Divide the box into one nearly square rectangle for each item. Areas are proportional to `size`. */
export function squarify(items, { x, y, width, height }) {
  const placed = [];
  let rest = items.filter(({ size }) => size > 0).sort((one, other) => other.size - one.size);
  let left = rest.reduce((sum, { size }) => sum + size, 0);
  while (rest.length && width > 0 && height > 0) {
    const scale = (width * height) / left;
    const side = Math.min(width, height);
    const { taken, sum } = row(rest, side, scale);
    const depth = (sum * scale) / side;
    let along = 0;
    for (const item of rest.slice(0, taken)) {
      const length = (item.size * scale) / depth;
      const box =
        width >= height
          ? { x, y: y + along, width: depth, height: length }
          : { x: x + along, y, width: length, height: depth };
      placed.push({ item, ...box });
      along += length;
    }
    if (width >= height) [x, width] = [x + depth, width - depth];
    else [y, height] = [y + depth, height - depth];
    rest = rest.slice(taken);
    left -= sum;
  }
  return placed;
}

/** Return how many items go into the next row. A row grows until its worst aspect ratio would get worse. */
function row(items, side, scale) {
  let taken = 0;
  let sum = 0;
  let worst = Infinity;
  for (const { size } of items) {
    const area = (sum + size) * scale;
    const shape = Math.max((side ** 2 * items[0].size * scale) / area ** 2, area ** 2 / (side ** 2 * size * scale));
    if (taken && shape > worst) break;
    [taken, sum, worst] = [taken + 1, sum + size, shape];
  }
  return { taken, sum };
}

/** Return the rectangles of the leaves of nested groups. A group is `{size, leaf}` or `{size, groups}`. */
export function nested(groups, box, gap = 1.5) {
  return squarify(groups, box).flatMap(({ item, ...inside }) => {
    if (item.leaf) return [{ leaf: item.leaf, ...inside }];
    if (inside.width < 6 * gap || inside.height < 6 * gap) return nested(item.groups, inside, 0);
    const { x, y, width, height } = inside;
    return nested(item.groups, { x: x + gap, y: y + gap, width: width - 2 * gap, height: height - 2 * gap }, gap);
  });
}
