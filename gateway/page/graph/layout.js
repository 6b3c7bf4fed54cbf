// Places the nodes of a small graph by forces (Fruchterman and Reingold 1991), and moves what covers each other apart.
// The same graph always looks the same.

const STEPS = 300;
const ROUNDS = 200;
const GOLDEN_ANGLE = Math.PI * (3 - Math.sqrt(5));
const GRAVITY = 0.2;

/** Return a point in the box for each node. `sizes` are how much room they need, `edges` pairs of their numbers. */
export function placed(sizes, edges, { x, y, width, height }) {
  const count = sizes.length;
  // The unit is the distance that two neighbours keep.
  const points = Array.from({ length: count }, (_, number) => {
    const [far, angle] = [Math.sqrt(number), number * GOLDEN_ANGLE];
    return [far * Math.cos(angle), far * Math.sin(angle)];
  });
  for (let step = 0; step < STEPS; step += 1) move(points, edges, 0.5 * (1 - step / STEPS));
  const [across, down] = [0, 1].map((axis) => extent(points.map((point) => point[axis])));
  const inside = points.map(([px, py]) => [across(px) * width, down(py) * height]);
  for (let round = 0; round < ROUNDS && separate(inside, sizes, { width, height }); round += 1);
  return inside.map(([px, py]) => [x + px, y + py]);
}

/** Push nodes that cover each other apart, on the axis where less is to do. Returns whether there were any. */
function separate(points, sizes, box) {
  let any = false;
  for (let one = 1; one < points.length; one += 1) {
    for (let other = 0; other < one; other += 1) {
      const [dx, dy] = [points[one][0] - points[other][0], points[one][1] - points[other][1]];
      const over = [
        (sizes[one].width + sizes[other].width) / 2 - Math.abs(dx),
        (sizes[one].height + sizes[other].height) / 2 - Math.abs(dy),
      ];
      if (over[0] <= 0 || over[1] <= 0) continue;
      any = true;
      const axis = over[0] < over[1] ? 0 : 1;
      const push = ((axis ? dy : dx) < 0 ? -1 : 1) * (over[axis] / 2 + 0.5);
      points[one][axis] += push;
      points[other][axis] -= push;
    }
  }
  for (const point of points) {
    point[0] = Math.min(Math.max(point[0], 0), box.width);
    point[1] = Math.min(Math.max(point[1], 0), box.height);
  }
  return any;
}

/** Move each point by the forces on it, at most by `most`. */
function move(points, edges, most) {
  const forces = points.map(([px, py]) => [-GRAVITY * px, -GRAVITY * py]);
  const push = (one, other, strength) => {
    const [dx, dy] = [points[one][0] - points[other][0], points[one][1] - points[other][1]];
    const distance = Math.hypot(dx, dy) || 1e-3;
    const force = strength(distance) / distance;
    forces[one][0] += dx * force;
    forces[one][1] += dy * force;
    forces[other][0] -= dx * force;
    forces[other][1] -= dy * force;
  };
  for (let one = 1; one < points.length; one += 1) {
    for (let other = 0; other < one; other += 1) push(one, other, (distance) => 1 / distance);
  }
  for (const [one, other] of edges) if (one !== other) push(one, other, (distance) => -(distance ** 2));
  points.forEach((point, number) => {
    const [fx, fy] = forces[number];
    const limit = Math.min(1, most / (Math.hypot(fx, fy) || 1));
    point[0] += fx * limit;
    point[1] += fy * limit;
  });
}

/** A function from values to shares of the way from the least one to the largest; the middle if they are alike. */
function extent(values) {
  const [least, largest] = [Math.min(...values), Math.max(...values)];
  return largest - least < 1e-6 ? () => 0.5 : (value) => (value - least) / (largest - least);
}
