"use strict";

/* One picture, large, with its boxes and a list of them. */

const viewer = {
  record: null,
  boxes: true,
  image: null,
};

function openViewer(record) {
  viewer.record = record;
  const stage = byId("stage");
  stage.replaceChildren();
  viewer.image = null;
  if (hasPicture(record)) {
    viewer.image = element("img", { alt: `${nameOf(record)}: ${tally(record)}` });
    viewer.image.addEventListener("error", () => showMissing("The picture cannot be shown"));
    viewer.image.src = `pictures/${record.file}.jpg`;
    stage.append(viewer.image);
  } else {
    showMissing("No picture was kept");
  }
  byId("viewer-name").replaceChildren(element("bdi", {}, baseName(record)));
  byId("viewer-facts").textContent = factsOf(record).join(" · ");
  const warnings = record.warnings.map((warning) => element("p", { class: "notice" }, warning));
  byId("viewer-warnings").replaceChildren(...warnings);
  if (!byId("viewer").open) byId("viewer").showModal();
  refreshViewer();
  byId("viewer-name").focus({ preventScroll: true });
  const place = shown.indexOf(record);
  for (const next of [shown[place + 1], shown[place - 1]]) { // ready when they are wanted
    if (next && hasPicture(next)) new Image().src = `pictures/${next.file}.jpg`;
  }
}

function showMissing(text) {
  byId("stage").querySelector("img")?.remove();
  byId("stage").prepend(element("span", { class: "missing" }, text));
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
  const place = shown.indexOf(record);
  const position = place < 0 ? "" : `${(place + 1).toLocaleString("en")} of ${shown.length.toLocaleString("en")}`;
  byId("position").textContent = position;
  byId("previous").disabled = place <= 0;
  byId("next").disabled = place < 0 || place >= shown.length - 1;
  const boxes = shownBoxes(record);
  drawBoxes(boxes);
  byId("viewer-found").hidden = !boxes.length;
  byId("viewer-found").tBodies[0].replaceChildren(...boxes.map(rowOf));
  byId("viewer-nothing").textContent = boxes.length ? hiddenText(record, boxes) : nothingText(record);
}

function hiddenText(record, boxes) {
  const hidden = record.to - record.from - boxes.length;
  return hidden ? `${hidden.toLocaleString("en")} more hidden by the filters` : "";
}

function nothingText(record) {
  const all = record.to - record.from;
  return all ? `${counted(all, "detection")} hidden by the filters` : "Nothing was found";
}

function drawBoxes(boxes) {
  const stage = byId("stage");
  stage.querySelector("svg")?.remove();
  const { record } = viewer;
  if (!viewer.boxes || !record.width) return;
  const room = stage.getBoundingClientRect();
  const scale = Math.min(room.width / record.width, room.height / record.height);
  if (scale > 0) stage.append(drawLarge(record, boxes, scale));
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
    element("td", {}, swatch, trackText(box) || undefined, element("bdi", {}, name), kind, watchedText(box)),
    element("td", { class: "number" }, scoreText(found.score.data[box]), other ? ` → ${scoreText(other[0])}` : undefined),
    element("td", { class: "number quiet" }, `${x1}, ${y1} to ${x2}, ${y2}`),
  );
  row.addEventListener("pointerenter", () => highlight(box));
  row.addEventListener("pointerleave", () => highlight(null));
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

function highlight(box) {
  const svg = byId("stage").querySelector("svg");
  if (!svg) return;
  svg.classList.toggle("dimmed", box !== null);
  for (const part of svg.querySelectorAll("[data-box]")) {
    part.classList.toggle("chosen", box !== null && Number(part.dataset.box) === box);
  }
}

function step(by) {
  const place = shown.indexOf(viewer.record) + by;
  if (place < 0 || place >= shown.length) return;
  change({ picture: String(shown[place].number) }); // one step back leaves the viewer
}

function toggleBoxes() {
  viewer.boxes = !viewer.boxes;
  byId("boxes").setAttribute("aria-pressed", viewer.boxes);
  refreshViewer();
}

function toggleFull() {
  if (document.fullscreenElement) document.exitFullscreen();
  else (byId("viewer").open ? byId("viewer-body") : document.documentElement).requestFullscreen();
}

function closeViewer() {
  const place = shown.indexOf(viewer.record);
  viewer.record = null;
  byId("stage").replaceChildren();
  if (document.fullscreenElement) document.exitFullscreen();
  if (place >= 0 && !byId("view-pictures").hidden) focusTile(place);
}

function startViewer() {
  byId("previous").addEventListener("click", () => step(-1));
  byId("next").addEventListener("click", () => step(1));
  byId("boxes").addEventListener("click", toggleBoxes);
  byId("full").addEventListener("click", toggleFull);
  byId("close").addEventListener("click", () => byId("viewer").close());
  byId("viewer").addEventListener("close", () => {
    closeViewer();
    if (state.picture) change({ picture: "" });
  });
  document.addEventListener("fullscreenchange", () => {
    byId("full").setAttribute("aria-pressed", Boolean(document.fullscreenElement));
  });
  new ResizeObserver(() => {
    if (viewer.record && byId("viewer").open) drawBoxes(shownBoxes(viewer.record));
  }).observe(byId("stage"));
}
