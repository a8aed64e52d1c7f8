"use strict";

/* Which part of its image the viewer shows: by wheel, pointers and keys. */

const CLOSEST = 16; // CSS pixels for each pixel of the image, at most
const REACH = 4; // CSS pixels beside a box that are still it

const lens = {
  zoom: 1, // 1 where the whole image fits
  x: 0.5, // of the middle, as a share of the image
  y: 0.5,
  pointers: new Map(), // the last event of those that are down, by id
  hasMoved: false, // since the first of them came down
};

function panes() {
  return [...byId("stage").querySelectorAll(".pane")];
}

/* Width and height of a pane, and CSS pixels for each pixel of the image: fitScale where the
   whole image fits, scale as it is. */
function lensSize() {
  const { record } = viewer;
  const { width, height } = panes()[0].getBoundingClientRect();
  const fitScale = Math.min(width / record.width, height / record.height);
  return { width, height, fitScale, scale: fitScale * lens.zoom };
}

/* Puts image and boxes where the lens is; past the image's edges there is nothing to see. */
function placeLens() {
  const { record } = viewer;
  const { width, height, scale } = lensSize();
  const partWidth = width / scale; // in pixels of the image
  const partHeight = height / scale;
  lens.x = lensMiddle(lens.x, partWidth / record.width);
  lens.y = lensMiddle(lens.y, partHeight / record.height);
  const left = lens.x * record.width - width / 2 / scale;
  const top = lens.y * record.height - height / 2 / scale;
  for (const pane of panes()) {
    const image = pane.firstChild;
    const drawings = pane.querySelectorAll("svg");
    showPart(record, [image, ...drawings], [left, top, partWidth, partHeight]);
    image.classList.toggle("near", scale >= 4);
  }
  byId("stage").style.setProperty("--shape", width / height); // for paper
  byId("stage").classList.toggle("zoomed", lens.zoom > 1);
  byId("zoom").textContent = `${Math.round(100 * scale)} %`;
  byId("zoom").setAttribute("aria-pressed", lens.zoom > 1);
}

/* The middle of the lens along one axis, kept so that the lens does not pass the edges. */
function lensMiddle(middle, share) {
  if (share >= 1) return 0.5;
  return Math.max(share / 2, Math.min(1 - share / 2, middle));
}

/* Zooms; what is under a point of the window, {clientX, clientY}, stays there. */
function zoomTo(zoom, point) {
  const { record } = viewer;
  if (!record?.width || !panes().length) return;
  const { fitScale, scale } = lensSize();
  const maxZoom = Math.max(8, CLOSEST / fitScale);
  lens.zoom = Math.max(1, Math.min(zoom, maxZoom));
  const gain = 1 / scale - 1 / (fitScale * lens.zoom);
  const [x, y] = point ? fromMiddle(point) : [0, 0];
  lens.x += (x * gain) / record.width;
  lens.y += (y * gain) / record.height;
  drawBoxes();
}

/* Between the whole image and its own pixels. */
function toggleZoom(point) {
  const ownPixels = Math.max(2, 1 / lensSize().fitScale);
  zoomTo(lens.zoom > 1 ? 1 : ownPixels, point);
}

/* Moves the image by CSS pixels. */
function pan(x, y) {
  const { scale } = lensSize();
  lens.x -= x / scale / viewer.record.width;
  lens.y -= y / scale / viewer.record.height;
  placeLens();
}

/* Brings a box into the middle, at a third of the room. */
function zoomToBox(box) {
  const [x1, y1, x2, y2] = coordinatesOf(box);
  const { record } = viewer;
  const { width, height, fitScale } = lensSize();
  lens.x = (x1 + x2) / 2 / record.width;
  lens.y = (y1 + y2) / 2 / record.height;
  const boxScale = Math.min(width / (x2 - x1), height / (y2 - y1));
  zoomTo(boxScale / fitScale / 3);
}

/* How far a point of the window is from the middle of its pane. */
function fromMiddle({ clientX, clientY }) {
  const areas = panes().map((pane) => pane.getBoundingClientRect());
  const startsBefore = (area) => clientX >= area.left && clientY >= area.top;
  const area = areas.findLast(startsBefore) || areas[0]; // panes are beside or below each other
  const x = clientX - area.left - area.width / 2;
  const y = clientY - area.top - area.height / 2;
  return [x, y];
}

/* The smallest box that is drawn under the pointer; null if there is none. */
function boxAt(event) {
  if (state.boxes !== "on") return null;
  const { record } = viewer;
  const { scale } = lensSize();
  const [fromMiddleX, fromMiddleY] = fromMiddle(event);
  const x = lens.x * record.width + fromMiddleX / scale;
  const y = lens.y * record.height + fromMiddleY / scale;
  const reach = REACH / scale;
  const boxes = shownBoxes(record).filter((box) => {
    const [x1, y1, x2, y2] = coordinatesOf(box);
    const isBeside = x > x1 - reach && x < x2 + reach;
    return isBeside && y > y1 - reach && y < y2 + reach;
  });
  return lowestBy(boxes, sizeOf) ?? null;
}

/* Lights up the box under a mouse; a pointer that is down moves the image, two pinch it. */
function pointerMoves(event) {
  if (!viewer.record?.width) return;
  const earlierEvent = lens.pointers.get(event.pointerId);
  if (earlierEvent) drag(event, earlierEvent);
  else if (event.pointerType === "mouse") highlight(boxAt(event), true);
}

function drag(event, earlierEvent) {
  const { pointers } = lens;
  const x = event.clientX - earlierEvent.clientX;
  const y = event.clientY - earlierEvent.clientY;
  if (!lens.hasMoved && Math.hypot(x, y) < REACH) return; // a click is not steady
  lens.hasMoved = true;
  pointers.set(event.pointerId, event);
  pan(x / pointers.size, y / pointers.size);

  const otherFinger = [...pointers.values()].find(
    (pointer) => pointer !== event,
  );
  if (!otherFinger) return;
  const earlierDistance = distance(earlierEvent, otherFinger);
  if (earlierDistance === 0) return;
  const middle = {
    clientX: (event.clientX + otherFinger.clientX) / 2,
    clientY: (event.clientY + otherFinger.clientY) / 2,
  };
  const zoom = (lens.zoom * distance(event, otherFinger)) / earlierDistance;
  zoomTo(zoom, middle);
}

/* Between two points of the window. */
function distance(a, b) {
  return Math.hypot(a.clientX - b.clientX, a.clientY - b.clientY);
}

function wheelTurns(event) {
  event.preventDefault();
  const unit = event.deltaMode ? 20 : 1; // lines or pixels
  const speed = event.ctrlKey ? 0.01 : 0.0015; // pinching a touchpad comes as a wheel with Ctrl
  zoomTo(lens.zoom * Math.exp(-event.deltaY * unit * speed), event);
}

function pointerComesDown(event) {
  if (event.button || event.target.closest("input, video")) return;
  byId("stage").setPointerCapture(event.pointerId);
  if (!lens.pointers.size) lens.hasMoved = false;
  lens.pointers.set(event.pointerId, event);
}

/* A pointer that has not moved has clicked on a box, or beside all. */
function pointerGoesUp(event) {
  const wasDown = lens.pointers.delete(event.pointerId);
  if (!wasDown || lens.hasMoved || !viewer.record?.width) return;
  choose(boxAt(event), true);
}

function startZoom() {
  const stage = byId("stage");
  stage.addEventListener("wheel", wheelTurns, { passive: false });
  stage.addEventListener("pointerdown", pointerComesDown);
  stage.addEventListener("pointermove", pointerMoves);
  stage.addEventListener("pointerup", pointerGoesUp);
  stage.addEventListener("pointercancel", (event) =>
    lens.pointers.delete(event.pointerId),
  );
  stage.addEventListener("pointerleave", () => highlight(null));
  stage.addEventListener("dblclick", (event) => {
    if (!event.target.closest("input, video")) toggleZoom(event);
  });
  byId("zoom").addEventListener("click", () => toggleZoom());
}
