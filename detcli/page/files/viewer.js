"use strict";

/* One picture, large, with its boxes and a list of them. */

const viewer = {
  record: null,
  openId: "", // what the address says of it
  borderPercent: 50, // percent of the width, where the sides of a comparison meet
  chosenBox: null, // the box that was clicked on
};

function openViewer(record, chosen = null) {
  const goesOn = record.video && record.video === viewer.record?.video;
  if (!goesOn) Object.assign(lens, { zoom: 1, x: 0.5, y: 0.5 });
  Object.assign(viewer, { record, chosenBox: chosen });
  byId("viewer-name").replaceChildren(element("bdi", baseName(record)));
  describe(record);
  byId("viewer-marks").replaceChildren(markButtons(record));
  if (!byId("viewer").open) byId("viewer").showModal();
  fillStage();
  refreshViewer();
  if (player.playback) return;
  byId("viewer-name").focus({ preventScroll: true });
  const place = shownRecords.indexOf(record);
  for (const next of [shownRecords[place + 1], shownRecords[place - 1]]) {
    // ready when they are wanted
    if (next && hasPicture(next)) new Image().src = pictureAddress(next);
  }
}

/* One pane, or one for each side of a comparison. */
function fillStage() {
  const way = page.sides.length ? state.sides : "both";
  const groups = {
    both: [[]],
    swipe: [page.sides],
    pair: page.sides.map((name) => [name]),
  }[way];
  const made = groups.map((names) => {
    const texts = names.map((name) => element("span.side-name", name));
    return element("div.pane", pictureOf(viewer.record), ...texts);
  });
  byId("stage").className = `stage ${way}`;
  byId("stage").replaceChildren(...made);
  if (way !== "swipe") return;
  const label = `Where ${page.sides[0]} ends and ${page.sides[1]} begins`;
  const attributes = {
    type: "range",
    value: viewer.borderPercent,
    step: 0.5,
    "aria-label": label,
  };
  const border = element("input", attributes);
  border.oninput = () => {
    viewer.borderPercent = border.value;
    byId("stage").style.setProperty("--border", border.value / 100);
  };
  border.oninput();
  byId("stage").append(border);
}

/* The picture, or its thumbnail if the file has moved or changed. */
function pictureOf(record) {
  if (!hasPicture(record)) return placeholder("No picture was kept");
  const alt = `${displayName(record)}: ${tally(record)}`;
  const image = pictureImage(pictureAddress(record), { alt, decoding: "sync" });
  const giveUp = image.onerror;
  let fault = "";
  const fallBack = (text) => {
    fault = text;
    image.onerror = giveUp;
    image.src = thumbnailAddress(record);
  };
  if (record.original)
    image.onerror = () => fallBack("The file is not where it was");
  image.onload = () => {
    const { naturalWidth: width, naturalHeight: height } = image;
    const copy = width < record.width ? `a copy of ${width} × ${height}` : "";
    const other = record.original && !fault && width !== record.width;
    if (other) fallBack("The file is another one now");
    else if (record === viewer.record) describe(record, copy, fault);
  };
  return image;
}

/* Facts and warnings; `copy` and `fault` are of the picture that is shown. */
function describe(record, copy = "", fault = "") {
  const { width, height, frame, source } = record;
  const facts = [
    width && `${width} × ${height} pixels`,
    frame === undefined ? "" : `frame ${frame} · ${momentText(record)}`,
    baseName(record) === source ? "" : source,
    copy,
  ];
  byId("viewer-facts").textContent = facts.filter(Boolean).join(" · ");
  const warnings = [...record.warnings, fault].filter(Boolean);
  const notices = warnings.map((text) => element("p.notice", text));
  byId("viewer-warnings").replaceChildren(...notices);
}

/* Draws what depends on the filter and on the size of the window. */
function refreshViewer() {
  const { record } = viewer;
  if (!record || !byId("viewer").open) return;
  for (const what of ["boxes", "labels"])
    byId(what).ariaPressed = String(state[what] === "on");
  if (byId("sides").value !== state.sides) fillStage();
  byId("sides").value = state.sides;
  const boxes = shownBoxes(record);
  if (!boxes.includes(viewer.chosenBox)) viewer.chosenBox = null;
  const [items, place] = stops();
  const position = `${numberText(place + 1)} of ${numberText(items.length)}`;
  byId("position").textContent = place < 0 ? "" : position;
  byId("previous").disabled = place <= 0;
  byId("next").disabled = place < 0 || place >= items.length - 1;
  byId("viewer-found").hidden = !boxes.length;
  byId("viewer-found").tBodies[0].replaceChildren(...boxes.map(rowOf));
  byId("viewer-nothing").textContent = hiddenText(
    record.endBox - record.firstBox,
    boxes.length,
  );
  byId("sides").parentElement.hidden = !page.sides.length;
  showMoments();
  drawBoxes();
}

function hiddenText(all, drawn) {
  if (all === drawn) return all ? "" : "Nothing was found";
  const hidden = drawn
    ? `${numberText(all - drawn)} more`
    : countText(all, "detection");
  return `${hidden} hidden by the filters`;
}

function drawBoxes() {
  const { record } = viewer;
  if (!record?.width || !byId("viewer").open) return;
  const { scale } = lensSize();
  if (!(scale > 0)) return;
  const boxes = shownBoxes(record);
  for (const svg of byId("stage").querySelectorAll(".pane svg")) svg.remove();
  for (const [at, pane] of state.boxes === "on" ? panes().entries() : []) {
    const sides = (page.sides.length &&
      { swipe: [0, 1], pair: [at] }[state.sides]) || [undefined];
    pane.append(...sides.map((side) => drawLarge(record, boxes, scale, side)));
  }
  placeLens();
  highlight(null);
}

function rowOf(box) {
  const entry = styleOf(box);
  const [x1, y1, x2, y2] = coordinatesOf(box).map(Math.round);
  const score = boxColumns.counterpart.get(box)?.[0] ?? null; // of the other side
  const name = button(
    swatch(entry),
    trackText(box),
    element("bdi", classNameOf(box)),
  );
  const kind = page.kinds.length ? element("span.quiet", ` ${entry.name}`) : "";
  const scores =
    scoreText(boxColumns.score[box]) +
    (score === null ? "" : ` → ${scoreText(score)}`);
  const row = element(
    "tr",
    { "data-box": box },
    element("td", name, kind, watchedText(box)),
    element("td.number", scores),
    element("td.number.quiet", `${x1}, ${y1} to ${x2}, ${y2}`),
    element("td", markButtons({ record: viewer.record, box })),
  );
  for (const come of ["pointerenter", "focusin"])
    row.addEventListener(come, () => highlight(box));
  for (const go of ["pointerleave", "focusout"])
    row.addEventListener(go, () => highlight(null));
  row.addEventListener("click", () => choose(box));
  return row;
}

/* Where it stands, what it has crossed, and what it says. */
function watchedText(box) {
  const { zones, crossings, text } = boxColumns;
  const said = [zones, crossings, text]
    .flatMap((one) => one.get(box) || [])
    .join(", ");
  return said && element("bdi.quiet.note", ` ${said}`);
}

function scoreText(score) {
  return score === null || Number.isNaN(score) ? "label" : score.toFixed(2);
}

/* Lights a box up wherever it is; null for the one that was chosen. */
function highlight(box, scrolls = false) {
  const lit = box ?? viewer.chosenBox;
  for (const svg of byId("stage").querySelectorAll(".pane svg")) {
    svg.classList.toggle("dimmed", lit !== null);
    svg.querySelector(".extra")?.remove();
    for (const part of svg.querySelectorAll("[data-box]")) {
      part.classList.toggle("chosen", Number(part.dataset.box) === lit);
    }
    if (!svg.querySelector(".box.chosen") || svg.querySelector(".label.chosen"))
      continue;
    const side = svg.dataset.side && Number(svg.dataset.side);
    const label = drawLabel(viewer.record, lit, lensSize().scale, side);
    if (label) svg.append(vector("g.extra", label));
  }
  for (const row of byId("viewer-found").tBodies[0].rows) {
    const box = Number(row.dataset.box);
    row.classList.toggle("chosen", box === lit);
    row
      .querySelector("button")
      .setAttribute("aria-pressed", box === viewer.chosenBox);
    if (box === lit && scrolls) row.scrollIntoView({ block: "nearest" });
  }
}

/* Keeps a box lit; a row brings it close, and once more the whole picture. */
function choose(box, inPicture = false) {
  viewer.chosenBox = box === viewer.chosenBox ? null : box;
  if (!inPicture && viewer.chosenBox !== null) zoomToBox(box);
  else if (!inPicture) zoomTo(1);
  highlight(null, inPicture);
}

/* What one goes through, pictures or the crops of the wall, and where one is. */
function stops() {
  if (state.view !== "wall")
    return [shownRecords, shownRecords.indexOf(viewer.record)];
  const crops = grid.items.filter(({ record }) => record);
  const place = crops.findIndex(({ box }) => box === viewer.chosenBox);
  return [
    crops,
    place < 0
      ? crops.findIndex(({ record }) => record === viewer.record)
      : place,
  ];
}

function step(by) {
  const [items, place] = stops();
  const next = items[place + by];
  if (!next) return;
  grid.currentIndex = grid.items.indexOf(next); // where the keyboard is when the viewer closes
  goTo(next);
}

function goTo(item) {
  player.playback = null;
  changeState({ picture: idOf(item) }); // one step back leaves the viewer
}

function toggle(what) {
  changeState({ [what]: state[what] === "on" ? "off" : "on" });
}

function toggleFull() {
  if (document.fullscreenElement) document.exitFullscreen();
  else
    (byId("viewer").open
      ? byId("viewer-body")
      : document.documentElement
    ).requestFullscreen();
}

function closeViewer() {
  const place = tileIndexOf(viewer.record);
  Object.assign(viewer, { record: null, openId: "" });
  player.playback = null;
  byId("stage").replaceChildren();
  if (document.fullscreenElement) document.exitFullscreen();
  if (place >= 0 && !byId("view-pictures").hidden) focusTile(place);
  if (state.picture) changeState({ picture: "" });
}

function startViewer() {
  byId("previous").addEventListener("click", () => step(-1));
  byId("next").addEventListener("click", () => step(1));
  for (const what of ["boxes", "labels"])
    byId(what).addEventListener("click", () => toggle(what));
  byId("sides").addEventListener("change", (event) =>
    changeState({ sides: event.target.value }),
  );
  startZoom();
  startPlayer();
  byId("full").addEventListener("click", toggleFull);
  byId("close").addEventListener("click", () => byId("viewer").close());
  byId("viewer").addEventListener("close", closeViewer);
  document.addEventListener("fullscreenchange", () => {
    byId("full").setAttribute(
      "aria-pressed",
      Boolean(document.fullscreenElement),
    );
  });
  new ResizeObserver(drawBoxes).observe(byId("stage"));
}
