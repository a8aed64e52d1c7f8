"use strict";

/* One picture, large, with its boxes and a list of them. */

const viewer = {
  record: null,
  border: 50, // percent of the width, where the sides of a comparison meet
  chosen: null, // the box that was clicked on
};

function openViewer(record) {
  if (!record.video || record.video !== viewer.record?.video) Object.assign(lens, { zoom: 1, x: 0.5, y: 0.5 });
  Object.assign(viewer, { record, chosen: null });
  byId("viewer-name").replaceChildren(element("bdi", {}, baseName(record)));
  describe(record);
  byId("viewer-marks").replaceChildren(markButtons(String(record.number)));
  if (!byId("viewer").open) byId("viewer").showModal();
  fillStage();
  refreshViewer();
  if (player.on) return;
  byId("viewer-name").focus({ preventScroll: true });
  const place = shown.indexOf(record);
  for (const next of [shown[place + 1], shown[place - 1]]) { // ready when they are wanted
    if (next && hasPicture(next)) new Image().src = fileOf(next);
  }
}

function fileOf(record) {
  return record.original || `pictures/${record.file}.jpg`;
}

/* One pane, or one for each side of a comparison. */
function fillStage() {
  const way = page.sides.length ? state.sides : "both";
  const names = way === "both" ? [] : page.sides.map((name) => element("span", { class: "side-name" }, name));
  const made = (way === "pair" ? names.map((name) => [name]) : [names]).map((group) => element("div", { class: "pane" }, pictureOf(viewer.record), ...group));
  byId("stage").className = `stage ${way}`;
  byId("stage").replaceChildren(...made);
  if (way !== "swipe") return;
  const border = element("input", { type: "range", value: viewer.border, step: 0.5, "aria-label": `Where ${page.sides[0]} ends and ${page.sides[1]} begins` });
  const move = () => {
    viewer.border = border.value;
    byId("stage").style.setProperty("--border", border.value / 100);
  };
  border.addEventListener("input", move);
  move();
  byId("stage").append(border);
}

/* The picture; of a file that is no more as it was, the thumbnail. */
function pictureOf(record) {
  const missing = (text) => element("span", { class: "missing" }, text);
  if (!hasPicture(record)) return missing("No picture was kept");
  const image = element("img", { alt: `${nameOf(record)}: ${tally(record)}`, decoding: "sync", draggable: "false" });
  let fault = "";
  const fallBack = (text) => {
    fault = text;
    image.src = `thumbnails/${record.file}.jpg`;
  };
  image.addEventListener("error", () => {
    if (!record.original || fault) image.replaceWith(missing("The picture cannot be shown"));
    else fallBack("The file is not where it was");
  });
  image.addEventListener("load", () => {
    const { naturalWidth: width, naturalHeight: height } = image;
    if (record.original && !fault && width !== record.width) fallBack("The file is another one now");
    else if (record === viewer.record) describe(record, width < record.width ? `a copy of ${width} × ${height}` : "", fault);
  });
  image.src = fileOf(record);
  return image;
}

/* Facts and warnings; `copy` and `fault` are of the picture that is shown. */
function describe(record, copy = "", fault = "") {
  byId("viewer-facts").textContent = [...factsOf(record), copy].filter(Boolean).join(" · ");
  const warnings = [...record.warnings, fault].filter(Boolean);
  byId("viewer-warnings").replaceChildren(...warnings.map((text) => element("p", { class: "notice" }, text)));
}

function factsOf(record) {
  const facts = [];
  if (record.width) facts.push(`${record.width} × ${record.height} pixels`);
  if (record.frame !== undefined) facts.push(`frame ${record.frame}`, moment(record));
  if (baseName(record) !== record.source) facts.push(record.source);
  return facts;
}

/* Draws what depends on the filter and on the size of the window. */
function refreshViewer() {
  const { record } = viewer;
  if (!record || !byId("viewer").open) return;
  for (const what of ["boxes", "labels"]) byId(what).setAttribute("aria-pressed", state[what] === "on");
  if (byId("sides").value !== state.sides) fillStage();
  byId("sides").value = state.sides;
  const place = shown.indexOf(record);
  const position = place < 0 ? "" : `${(place + 1).toLocaleString("en")} of ${shown.length.toLocaleString("en")}`;
  byId("position").textContent = position;
  byId("previous").disabled = place <= 0;
  byId("next").disabled = place < 0 || place >= shown.length - 1;
  const boxes = shownBoxes(record);
  if (!boxes.includes(viewer.chosen)) viewer.chosen = null;
  byId("viewer-found").hidden = !boxes.length;
  byId("viewer-found").tBodies[0].replaceChildren(...boxes.map(rowOf));
  byId("viewer-nothing").textContent = boxes.length ? hiddenText(record, boxes) : nothingText(record);
  byId("sides").parentElement.hidden = !page.sides.length;
  showMoments();
  drawBoxes();
}

function hiddenText(record, boxes) {
  const hidden = record.to - record.from - boxes.length;
  return hidden ? `${hidden.toLocaleString("en")} more hidden by the filters` : "";
}

function nothingText(record) {
  const all = record.to - record.from;
  return all ? `${counted(all, "detection")} hidden by the filters` : "Nothing was found";
}

function drawBoxes() {
  const { record } = viewer;
  if (!record?.width || !byId("viewer").open) return;
  const { scale } = lensSize();
  if (!(scale > 0)) return;
  const boxes = shownBoxes(record);
  for (const [at, pane] of panes().entries()) {
    for (const svg of pane.querySelectorAll("svg")) svg.remove();
    const sides = { swipe: [0, 1], pair: [at] }[page.sides.length ? state.sides : ""] || [undefined];
    if (state.boxes === "on") pane.append(...sides.map((side) => drawLarge(record, boxes, scale, side)));
  }
  placeLens();
  highlight(null);
}

function rowOf(box) {
  const entry = boxColour(box);
  const { name } = page.classes[found.classOf.data[box]];
  const swatch = element("span", { class: entry.dashed ? "swatch dashed" : "swatch", style: { color: entry.colour } });
  const kind = page.kinds.length ? element("span", { class: "quiet" }, ` ${entry.name}`) : undefined;
  const [x1, y1, x2, y2] = [...sidesOf(box)].map(Math.round);
  const other = found.other.get(box);
  const row = element(
    "tr",
    { "data-box": box },
    element("td", {}, element("button", { type: "button", "aria-pressed": "false" }, swatch, trackText(box) || undefined, element("bdi", {}, name)), kind, watchedText(box)),
    element("td", { class: "number" }, scoreText(found.score.data[box]), other && other[0] !== null ? ` → ${scoreText(other[0])}` : undefined),
    element("td", { class: "number quiet" }, `${x1}, ${y1} to ${x2}, ${y2}`),
    element("td", {}, markButtons(markKey({ record: viewer.record, box }))),
  );
  for (const come of ["pointerenter", "focusin"]) row.addEventListener(come, () => highlight(box));
  for (const go of ["pointerleave", "focusout"]) row.addEventListener(go, () => highlight(null));
  row.addEventListener("click", () => choose(box));
  return row;
}

/* Where it stands, what it has crossed, and what it says. */
function watchedText(box) {
  const crossed = (found.crossed.get(box) || []).map(([line, side]) => `${line} to the ${side}`);
  const said = found.texts.has(box) ? [found.texts.get(box)] : [];
  const texts = [...(found.zones.get(box) || []), ...crossed, ...said];
  return texts.length ? element("bdi", { class: "quiet note" }, ` ${texts.join(", ")}`) : undefined;
}

function scoreText(score) {
  return score === null || Number.isNaN(score) ? "label" : score.toFixed(2);
}

/* Lights a box up wherever it is; null for the one that was chosen. */
function highlight(box, scrolls = false) {
  const lit = box ?? viewer.chosen;
  for (const svg of byId("stage").querySelectorAll(".pane svg")) {
    svg.classList.toggle("dimmed", lit !== null);
    svg.querySelector(".extra")?.remove();
    for (const part of svg.querySelectorAll("[data-box]")) part.classList.toggle("chosen", Number(part.dataset.box) === lit);
    if (!svg.querySelector(".box.chosen") || svg.querySelector(".label.chosen")) continue;
    const label = drawLabel(viewer.record, lit, lensSize().scale, svg.dataset.side && Number(svg.dataset.side));
    if (label) svg.append(vector("g", { class: "extra" }, label));
  }
  for (const row of byId("viewer-found").tBodies[0].rows) {
    const chosen = Number(row.dataset.box) === lit;
    row.classList.toggle("chosen", chosen);
    row.querySelector("button").setAttribute("aria-pressed", Number(row.dataset.box) === viewer.chosen);
    if (chosen && scrolls) row.scrollIntoView({ block: "nearest" });
  }
}

/* Keeps a box lit; a row brings it close, and once more the whole picture. */
function choose(box, inPicture = false) {
  viewer.chosen = box === viewer.chosen ? null : box;
  if (!inPicture && viewer.chosen !== null) zoomToBox(box);
  else if (!inPicture) zoomTo(1);
  highlight(null, inPicture);
}

function step(by) {
  const next = shown[shown.indexOf(viewer.record) + by];
  if (next) goTo(next);
}

function goTo(record) {
  player.on = null;
  change({ picture: String(record.number) }); // one step back leaves the viewer
}

function toggle(what) {
  change({ [what]: state[what] === "on" ? "off" : "on" });
}

function toggleFull() {
  if (document.fullscreenElement) document.exitFullscreen();
  else (byId("viewer").open ? byId("viewer-body") : document.documentElement).requestFullscreen();
}

function closeViewer() {
  const place = placeOf(viewer.record);
  Object.assign(viewer, { record: null });
  player.on = null;
  byId("stage").replaceChildren();
  if (document.fullscreenElement) document.exitFullscreen();
  if (place >= 0 && !byId("view-pictures").hidden) focusTile(place);
}

function startViewer() {
  byId("previous").addEventListener("click", () => step(-1));
  byId("next").addEventListener("click", () => step(1));
  for (const what of ["boxes", "labels"]) byId(what).addEventListener("click", () => toggle(what));
  byId("sides").addEventListener("change", (event) => change({ sides: event.target.value }));
  startZoom();
  startPlayer();
  byId("full").addEventListener("click", toggleFull);
  byId("close").addEventListener("click", () => byId("viewer").close());
  byId("viewer").addEventListener("close", () => {
    closeViewer();
    if (state.picture) change({ picture: "" });
  });
  document.addEventListener("fullscreenchange", () => {
    byId("full").setAttribute("aria-pressed", Boolean(document.fullscreenElement));
  });
  new ResizeObserver(drawBoxes).observe(byId("stage"));
}
