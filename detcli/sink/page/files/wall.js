"use strict";

/* A wall of crops: every box by itself, in groups that begin with a tile for their name. */

const AROUND = 1.4; // side of a crop for each pixel of its box
const LEAST_SIDE = 24; // pixels of the picture
const LANES = 2; // crops that are drawn at a time
const KEPT_IMAGES = 64; // that are decoded, for crops of the same picture

const GROUPS = {
  class: ["Class", () => true, (box) => page.classes[found.classOf.data[box]].name],
  track: ["Track", () => page.tracked, (box, record) => trackText(box) && `${trackText(box)}· ${baseName(record)}`],
  text: ["Text", () => found.texts.size, (box) => found.texts.get(box)],
};

const waiting = []; // crops that are not drawn yet
let drawing = 0; // how many are
const images = new Map(); // by address, the one that was used last at the end

/* The crops of the pictures that are shown: the largest group first, each in the order that is chosen. */
function wallItems() {
  const passes = boxTest();
  const [, , keys] = ORDERS[state.sort];
  const keyOf = keys ? keys() : () => 0;
  const groups = new Map();
  for (const record of shown) {
    for (let box = record.from; box < record.to; box += 1) {
      if (state.show === "marked" && !marks.has(markKey({ record, box }))) continue;
      const name = passes(box) && GROUPS[state.group][2](box, record);
      if (!name) continue;
      if (!groups.has(name)) groups.set(name, []);
      const key = keyOf(box);
      groups.get(name).push({ record, box, key: Number.isNaN(key) ? Infinity : key }); // a label has no score
    }
  }
  const largest = [...groups].sort(([, a], [, b]) => b.length - a.length);
  return largest.flatMap(([name, crops]) => [{ name, count: crops.length }, ...crops.sort(byKey)]);
}

function cropTile({ name, count, record, box }) {
  if (name) {
    return element("span", { class: "group" }, element("bdi", { class: "name", title: name }, name), counted(count, "box", "boxes"));
  }
  const side = Math.round(grid.width * window.devicePixelRatio);
  const canvas = element("canvas", { width: side, height: side });
  const kind = page.kinds.length ? ` ${boxColour(box).name}` : "";
  const link = element(
    "a",
    { href: addressOf({ picture: `${record.number}.${box - record.from}` }), title: `${labelText(box)}\n${nameOf(record)}` },
    element("span", { class: "frame" }, hasPicture(record) ? canvas : missingCrop("No picture")),
    element(
      "span",
      { class: "caption" },
      element("bdi", { class: "name" }, `${scoreText(found.score.data[box])} ${trackText(box)}${page.classes[found.classOf.data[box]].name}${kind}`),
      element("bdi", { class: "quiet" }, nameOf(record)),
    ),
  );
  waiting.push([canvas, record, box]);
  queueMicrotask(drawWaiting); // when the tile is in the grid
  return link;
}

function missingCrop(text) {
  return element("span", { class: "missing" }, text);
}

/* Draws the crops that are still there: those that were scrolled past are not. */
async function drawWaiting() {
  if (drawing === LANES) return;
  drawing += 1;
  while (waiting.length) {
    const [canvas, record, box] = waiting.shift();
    if (canvas.isConnected) await drawCrop(canvas, record, box).catch(() => canvas.replaceWith(missingCrop("The picture cannot be shown")));
  }
  drawing -= 1;
}

/* A square around the box, within the picture as far as it fits, from the thumbnail where that is large enough. */
async function drawCrop(canvas, record, box) {
  const [x1, y1, x2, y2] = sidesOf(box);
  const side = Math.min(AROUND * Math.max(LEAST_SIDE, x2 - x1, y2 - y1), Math.max(record.width, record.height));
  const from = (middle, room) => (side > room ? (room - side) / 2 : Math.max(0, Math.min(middle - side / 2, room - side)));
  const [left, top] = [from((x1 + x2) / 2, record.width), from((y1 + y2) / 2, record.height)];
  const small = (320 * side) / Math.max(record.width, record.height) >= canvas.width;
  const image = await load(small ? `thumbnails/${record.file}.jpg` : fileOf(record));
  const context = canvas.getContext("2d");
  const ratio = image.naturalWidth / record.width;
  context.drawImage(image, ratio * left, ratio * top, ratio * side, ratio * side, 0, 0, canvas.width, canvas.height);
  const scale = canvas.width / side;
  for (const [colour, width] of [["rgb(0 0 0 / 0.45)", 3], [boxColour(box).colour, 1.5]]) {
    Object.assign(context, { strokeStyle: colour, lineWidth: width * window.devicePixelRatio });
    context.strokeRect(scale * (x1 - left), scale * (y1 - top), scale * (x2 - x1), scale * (y2 - y1));
  }
}

function load(address) {
  let loaded = images.get(address);
  if (!loaded) {
    const image = new Image();
    image.src = address;
    loaded = image.decode().then(() => image);
  }
  images.delete(address);
  images.set(address, loaded);
  if (images.size > KEPT_IMAGES) images.delete(images.keys().next().value);
  return loaded;
}
