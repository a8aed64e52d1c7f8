"use strict";

/* Boxes over a picture, as vectors. */

const TILE_BOXES = 100; // drawn on a thumbnail; the best come first

function boxColour(box) {
  const entry = page.kinds.length
    ? page.kinds[found.kind.data[box]]
    : page.classes[found.classOf.data[box]];
  return entry || { colour: "#888", ink: "#fff", name: "?", dashed: false };
}

function sidesOf(box) {
  return found.sides.data.subarray(4 * box, 4 * box + 4);
}

function shownBoxes(record) {
  const passes = boxTest();
  const boxes = [];
  for (let box = record.from; box < record.to; box += 1) if (passes(box)) boxes.push(box);
  return boxes;
}

function outline([x1, y1, x2, y2]) {
  return `M${x1} ${y1}H${x2}V${y2}H${x1}Z`;
}

function overlay(record) {
  return vector("svg", {
    viewBox: `0 0 ${record.width} ${record.height}`,
    preserveAspectRatio: "xMidYMid meet",
    class: "boxes",
    "aria-hidden": "true",
  });
}

/* The boxes of a thumbnail: one path for each colour. */
function drawThumbnail(record) {
  const paths = new Map();
  for (const box of shownBoxes(record).slice(0, TILE_BOXES)) {
    const { colour } = boxColour(box);
    paths.set(colour, (paths.get(colour) || "") + outline(sidesOf(box)));
  }
  const svg = overlay(record);
  for (const [colour, path] of paths) {
    svg.append(vector("path", { d: path, class: "casing" }), vector("path", { d: path, stroke: colour }));
  }
  return svg;
}

/* The boxes of a large picture, with labels whose size does not depend on the picture's.
   `scale` is in CSS pixels for each pixel of the picture. */
function drawLarge(record, boxes, scale) {
  const svg = overlay(record);
  const places = [];
  const labels = vector("g");
  for (const box of [...boxes].reverse()) { // the best on top
    const { colour, dashed } = boxColour(box);
    const group = vector("g", { class: dashed ? "box dashed" : "box", "data-box": box });
    const path = outline(sidesOf(box));
    group.append(vector("path", { d: path, class: "casing" }), vector("path", { d: path, stroke: colour }));
    const other = found.other.get(box);
    if (other) {
      group.append(vector("path", { d: outline(other.slice(1)), stroke: colour, class: "other" }));
    }
    svg.append(group);
  }
  for (const box of boxes) {
    const label = drawLabel(record, box, scale, places);
    if (label) labels.append(label);
  }
  svg.append(labels);
  return svg;
}

const MEASURE = document.createElement("canvas").getContext("2d");
MEASURE.font = "600 12px system-ui, sans-serif";

function labelText(box) {
  const { name } = page.classes[found.classOf.data[box]];
  const score = found.score.data[box];
  const short = name.length > 40 ? `${name.slice(0, 39)}…` : name;
  return Number.isNaN(score) ? short : `${short} ${score.toFixed(2)}`;
}

/* A label above, inside or below its box, wherever it covers no other label; null if it fits nowhere. */
function drawLabel(record, box, scale, places) {
  const [x1, y1, x2, y2] = sidesOf(box);
  const text = labelText(box);
  const [width, height] = [(MEASURE.measureText(text).width + 10) / scale, 18 / scale];
  const left = Math.max(0, Math.min(x1, record.width - width));
  const right = Math.max(0, Math.min(x2 - width, record.width - width));
  const tries = [[left, y1 - height], [left, y1], [left, y2], [right, y1 - height], [right, y2 - height]];
  const place = tries.find(([x, y]) => y >= 0 && y + height <= record.height
    && !places.some(([px, py, pw]) => x < px + pw && px < x + width
      && y < py + height && py < y + height));
  if (!place) return null;
  places.push([...place, width]);
  const { colour, ink } = boxColour(box);
  const group = vector("g", { class: "label", "data-box": box });
  group.append(
    vector("rect", { x: place[0], y: place[1], width, height, rx: 2 / scale, fill: colour }),
    vector("text", {
      x: place[0] + 5 / scale, y: place[1] + 13 / scale, fill: ink, "font-size": 12 / scale,
    }, text),
  );
  return group;
}
