"use strict";

/* Which part of its picture the viewer shows: by wheel, pointers and keys. */

const CLOSEST = 16; // CSS pixels for each pixel of the picture, at most
const REACH = 4; // CSS pixels beside a box that are still it

const lens = {
  zoom: 1, // 1 where the whole picture fits
  x: 0.5, // of the middle, as a share of the picture
  y: 0.5,
  pointers: new Map(), // positions of those that are down, by id
  moved: false, // since the first of them came down
};

function panes() {
  return [...byId("stage").querySelectorAll(".pane")];
}

/* Width and height of a pane; CSS pixels for each pixel of the picture, whole and as it is. */
function lensSize() {
  const { width, height } = panes()[0].getBoundingClientRect();
  const whole = Math.min(
    width / viewer.record.width,
    height / viewer.record.height,
  );
  return { width, height, whole, scale: whole * lens.zoom };
}

/* Puts picture and boxes where the lens is; past the picture's edges there is nothing to see. */
function placeLens() {
  const { record } = viewer;
  const { width, height, scale } = lensSize();
  const within = (at, room) =>
    room >= 1 ? 0.5 : Math.max(room / 2, Math.min(1 - room / 2, at));
  lens.x = within(lens.x, width / scale / record.width);
  lens.y = within(lens.y, height / scale / record.height);
  const left = lens.x * record.width - width / 2 / scale;
  const top = lens.y * record.height - height / 2 / scale;
  for (const pane of panes()) {
    const parts = [pane.firstChild, ...pane.querySelectorAll("svg")];
    showPart(record, parts, [left, top, width / scale, height / scale]);
    pane.firstChild.classList.toggle("near", scale >= 4);
  }
  byId("stage").style.setProperty("--shape", width / height); // for paper
  byId("stage").classList.toggle("zoomed", lens.zoom > 1);
  byId("zoom").textContent = `${Math.round(100 * scale)} %`;
  byId("zoom").setAttribute("aria-pressed", lens.zoom > 1);
}

/* Zooms; what is under a point of the window stays there. */
function zoomTo(zoom, at) {
  if (!viewer.record?.width || !panes().length) return;
  const { whole, scale } = lensSize();
  lens.zoom = Math.max(1, Math.min(zoom, Math.max(8, CLOSEST / whole)));
  const gain = 1 / scale - 1 / (whole * lens.zoom);
  const [x, y] = at ? fromMiddle(at) : [0, 0];
  lens.x += (x * gain) / viewer.record.width;
  lens.y += (y * gain) / viewer.record.height;
  drawBoxes();
}

/* Between the whole picture and its own pixels. */
function zoomInOut(at) {
  zoomTo(lens.zoom > 1 ? 1 : Math.max(2, 1 / lensSize().whole), at);
}

function pan(x, y) {
  const { scale } = lensSize();
  lens.x -= x / scale / viewer.record.width;
  lens.y -= y / scale / viewer.record.height;
  placeLens();
}

function zoomToBox(box) {
  const [x1, y1, x2, y2] = coordinatesOf(box);
  const { record } = viewer;
  const { width, height, whole } = lensSize();
  Object.assign(lens, {
    x: (x1 + x2) / 2 / record.width,
    y: (y1 + y2) / 2 / record.height,
  });
  zoomTo(Math.min(width / (x2 - x1), height / (y2 - y1)) / whole / 3);
}

/* How far a point of the window is from the middle of its pane. */
function fromMiddle({ clientX, clientY }) {
  const rooms = panes().map((pane) => pane.getBoundingClientRect());
  const { left, top, width, height } =
    rooms.findLast((room) => clientX >= room.left && clientY >= room.top) ||
    rooms[0]; // panes are beside or below each other
  return [clientX - left - width / 2, clientY - top - height / 2];
}

/* The smallest box that is drawn under the pointer; null if there is none. */
function boxAt(event) {
  const { scale } = lensSize();
  const { record } = viewer;
  const [fromX, fromY] = fromMiddle(event);
  const [x, y] = [
    lens.x * record.width + fromX / scale,
    lens.y * record.height + fromY / scale,
  ];
  const far = REACH / scale;
  const boxes = state.boxes === "on" ? shownBoxes(record) : [];
  const under = boxes.filter((box) => {
    const [x1, y1, x2, y2] = coordinatesOf(box);
    return x > x1 - far && x < x2 + far && y > y1 - far && y < y2 + far;
  });
  return nearest(under, sizeOf) ?? null;
}

function pointerMoves(event) {
  if (!viewer.record?.width) return;
  const { pointers } = lens;
  const before = pointers.get(event.pointerId);
  if (!before) {
    if (event.pointerType === "mouse") highlight(boxAt(event), true);
    return;
  }
  const [x, y] = [
    event.clientX - before.clientX,
    event.clientY - before.clientY,
  ];
  if (!lens.moved && Math.hypot(x, y) < REACH) return; // a click is not steady
  lens.moved = true;
  pointers.set(event.pointerId, event);
  pan(x / pointers.size, y / pointers.size);
  const other = [...pointers.values()].find((one) => one !== event);
  if (!other) return;
  const far = (one) =>
    Math.hypot(one.clientX - other.clientX, one.clientY - other.clientY);
  const middle = {
    clientX: (event.clientX + other.clientX) / 2,
    clientY: (event.clientY + other.clientY) / 2,
  };
  if (far(before)) zoomTo((lens.zoom * far(event)) / far(before), middle);
}

function startZoom() {
  const stage = byId("stage");
  stage.addEventListener(
    "wheel",
    (event) => {
      event.preventDefault();
      const lines = event.deltaMode ? 20 : 1; // and pinching a touchpad comes as a wheel with Ctrl
      zoomTo(
        lens.zoom *
          Math.exp(-event.deltaY * lines * (event.ctrlKey ? 0.01 : 0.0015)),
        event,
      );
    },
    { passive: false },
  );
  stage.addEventListener("pointerdown", (event) => {
    if (event.button || event.target.closest("input, video")) return;
    stage.setPointerCapture(event.pointerId);
    if (!lens.pointers.size) lens.moved = false;
    lens.pointers.set(event.pointerId, event);
  });
  stage.addEventListener("pointermove", pointerMoves);
  for (const end of ["pointerup", "pointercancel"]) {
    stage.addEventListener(end, (event) => {
      if (
        !lens.pointers.delete(event.pointerId) ||
        lens.moved ||
        end === "pointercancel"
      )
        return;
      if (viewer.record?.width) choose(boxAt(event), true);
    });
  }
  stage.addEventListener("pointerleave", () => highlight(null));
  stage.addEventListener("dblclick", (event) => {
    if (!event.target.closest("input, video")) zoomInOut(event);
  });
  byId("zoom").addEventListener("click", () => zoomInOut());
}
