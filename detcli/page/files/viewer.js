"use strict";

/* One image, large, with its boxes and a list of them. */

const viewer = {
  record: null,
  openId: "", // what the address says of it
  borderPercent: 50, // of the width, where the sides of a comparison meet
  chosenBox: null, // the one that was clicked on
};

function openViewer(record, chosenBox = null) {
  const isSameVideo = record.video && record.video === viewer.record?.video;
  if (!isSameVideo) Object.assign(lens, { zoom: 1, x: 0.5, y: 0.5 });
  viewer.record = record;
  viewer.chosenBox = chosenBox;
  byId("viewer-name").replaceChildren(element("bdi", baseName(record)));
  describe(record);
  byId("viewer-marks").replaceChildren(markButtons(record));
  if (!byId("viewer").open) byId("viewer").showModal();
  fillStage();
  refreshViewer();
  if (player.playback) return;
  byId("viewer-name").focus({ preventScroll: true });
  const index = shownRecords.indexOf(record);
  preload(shownRecords[index + 1]);
  preload(shownRecords[index - 1]);
}

/* Loads the image of a record, if there is one, for whoever steps to it. */
function preload(record) {
  if (record && hasPicture(record)) new Image().src = pictureAddress(record);
}

/* One pane, or one for each side of a comparison. */
function fillStage() {
  const arrangement = page.sides.length ? state.sides : "both";
  const sideNamesOfPanes = {
    both: [[]],
    swipe: [page.sides],
    pair: page.sides.map((name) => [name]),
  };
  const newPanes = sideNamesOfPanes[arrangement].map((sideNames) => {
    const texts = sideNames.map((name) => element("span.side-name", name));
    return element("div.pane", viewerImage(viewer.record), ...texts);
  });
  byId("stage").className = `stage ${arrangement}`;
  byId("stage").replaceChildren(...newPanes);
  if (arrangement === "swipe") byId("stage").append(borderSlider());
}

/* What moves the border between the two sides of a comparison. */
function borderSlider() {
  const slider = element("input", {
    type: "range",
    value: viewer.borderPercent,
    step: 0.5,
    "aria-label": `Where ${page.sides[0]} ends and ${page.sides[1]} begins`,
  });
  slider.oninput = () => {
    viewer.borderPercent = slider.value;
    byId("stage").style.setProperty("--border", slider.value / 100);
  };
  slider.oninput();
  return slider;
}

/* The image, or its thumbnail if the file has moved or changed, or a power cut has taken the copy. */
function viewerImage(record) {
  if (!hasPicture(record)) return placeholder("No image was kept");
  const alt = `${displayName(record)}: ${tally(record)}`;
  const address = pictureAddress(record);
  const image = pictureImage(address, { alt, decoding: "sync" });
  const giveUp = image.onerror;
  let fault = "";
  const fallBack = (text) => {
    fault = text;
    image.onerror = giveUp;
    showThumbnail(image, record);
  };
  const lossText = record.original
    ? "The file is not where it was"
    : "The copy of the image is lost";
  image.onerror = () => fallBack(lossText);
  image.onload = () => {
    const { naturalWidth: width, naturalHeight: height } = image;
    const hasOtherSize = record.original && !fault && width !== record.width;
    if (hasOtherSize) {
      fallBack("The file is another one now");
    } else if (record === viewer.record) {
      const isCopy = width < record.width;
      const copyText = isCopy ? `a copy of ${width} × ${height}` : "";
      describe(record, copyText, fault);
    }
  };
  return image;
}

/* Facts and warnings; `copyText` and `fault` are of the image that is shown. */
function describe(record, copyText = "", fault = "") {
  const { width, height, frame, source } = record;
  const facts = [];
  if (width) facts.push(`${width} × ${height} pixels`);
  if (frame !== undefined) facts.push(`frame ${frame} · ${momentText(record)}`);
  if (baseName(record) !== source) facts.push(source);
  if (copyText) facts.push(copyText);
  if (record.repeat) facts.push(repeatText(record.repeat));
  byId("viewer-facts").textContent = facts.join(" · ");

  const warnings = [...record.warnings, fault].filter(Boolean);
  const notices = warnings.map((text) => element("p.notice", text));
  byId("viewer-warnings").replaceChildren(...notices);
}

/* Draws what depends on the filter and on the size of the window. */
function refreshViewer() {
  const { record } = viewer;
  if (!record || !byId("viewer").open) return;
  byId("boxes").ariaPressed = String(state.boxes === "on");
  byId("labels").ariaPressed = String(state.labels === "on");
  byId("sides").parentElement.hidden = !page.sides.length;
  if (byId("sides").value !== state.sides) fillStage();
  byId("sides").value = state.sides;

  const boxes = shownBoxes(record);
  if (!boxes.includes(viewer.chosenBox)) viewer.chosenBox = null;
  byId("viewer-found").hidden = !boxes.length;
  byId("viewer-found").tBodies[0].replaceChildren(...boxes.map(boxRow));
  const boxCount = record.endBox - record.firstBox;
  byId("viewer-nothing").textContent = hiddenText(boxCount, boxes.length);
  showPosition();
  showMoments();
  drawBoxes();
}

/* "3 of 17", and whether there is a previous and a next one. */
function showPosition() {
  const { items, index } = stops();
  const isAmong = index >= 0;
  const text = `${numberText(index + 1)} of ${numberText(items.length)}`;
  byId("position").textContent = isAmong ? text : "";
  byId("previous").disabled = index <= 0;
  byId("next").disabled = !isAmong || index >= items.length - 1;
}

/* How many boxes of an image the filters hide. */
function hiddenText(boxCount, shownCount) {
  if (boxCount === 0) return "Nothing was found";
  const hiddenCount = boxCount - shownCount;
  if (hiddenCount === 0) return "";
  const text = shownCount
    ? `${numberText(hiddenCount)} more`
    : countText(hiddenCount, "detection");
  return `${text} hidden by the filters`;
}

function drawBoxes() {
  const { record } = viewer;
  if (!record?.width || !byId("viewer").open) return;
  const { scale } = lensSize();
  if (!(scale > 0)) return;
  for (const svg of byId("stage").querySelectorAll(".pane svg")) svg.remove();
  if (state.boxes === "on") {
    const boxes = shownBoxes(record);
    for (const [paneIndex, pane] of panes().entries()) {
      for (const side of sidesOfPane(paneIndex))
        pane.append(drawLarge(record, boxes, scale, side));
    }
  }
  placeLens();
  highlight(null);
}

/* The sides of a comparison that have a drawing of their own in a pane; undefined for one of all
   boxes. */
function sidesOfPane(paneIndex) {
  if (page.sides.length && state.sides === "swipe") return [0, 1];
  if (page.sides.length && state.sides === "pair") return [paneIndex];
  return [undefined];
}

/* A row of the list of boxes. */
function boxRow(box) {
  const style = styleOf(box);
  const [x1, y1, x2, y2] = coordinatesOf(box).map(Math.round);
  const className = element("bdi", classNameOf(box));
  const name = button(swatch(style), trackText(box), className);
  const kindText = page.kinds.length ? ` ${style.name}${moveText(box)}` : "";
  const kind = element("span.quiet", kindText);
  const isRepeated = boxColumns.repeated.has(box);
  const row = element(
    "tr",
    { "data-box": box, class: isRepeated ? "dim" : "" },
    element("td", name, kind, watchedText(box)),
    element("td.number", scoresText(box)),
    element("td.number.quiet", `${x1}, ${y1} to ${x2}, ${y2}`),
    element("td", markButtons({ record: viewer.record, box })),
  );
  for (const type of ["pointerenter", "focusin"])
    row.addEventListener(type, () => highlight(box));
  for (const type of ["pointerleave", "focusout"])
    row.addEventListener(type, () => highlight(null));
  row.addEventListener("click", () => choose(box));
  return row;
}

/* Where a box stands, what it has crossed, what it says, and whether it is repeated; an empty text
   if nothing. */
function watchedText(box) {
  const zones = boxColumns.zones.get(box) || [];
  const crossings = boxColumns.crossings.get(box) || [];
  const texts = [...zones, ...crossings];
  if (boxColumns.classified.has(box)) {
    texts.push(boxColumns.classified.get(box));
  }
  if (boxColumns.text.has(box)) texts.push(boxColumns.text.get(box));
  if (boxColumns.repeated.has(box))
    texts.push(`repeated, group ${boxColumns.repeated.get(box)}`);
  if (!texts.length) return "";
  return element("bdi.quiet.note", ` ${texts.join(", ")}`);
}

/* How far a box is from its counterpart in a comparison, at the corner that moved most. */
function moveText(box) {
  const counterpart = boxColumns.counterpart.get(box);
  if (!counterpart) return "";
  const moves = coordinatesOf(box).map((edge, index) =>
    Math.abs(edge - counterpart[index + 1]),
  );
  return `, ${Math.max(...moves).toFixed(1)} pixels apart`;
}

/* The score of a box, and that of its counterpart in a comparison. */
function scoresText(box) {
  const text = scoreText(boxColumns.score[box]);
  const counterpart = boxColumns.counterpart.get(box);
  if (!counterpart || counterpart[0] === null) return text;
  return `${text} → ${scoreText(counterpart[0])}`;
}

function scoreText(score) {
  return score === null || Number.isNaN(score) ? "label" : score.toFixed(2);
}

/* Lights a box up wherever it is; null for the one that was chosen. */
function highlight(box, scrolls = false) {
  const litBox = box ?? viewer.chosenBox;
  for (const svg of byId("stage").querySelectorAll(".pane svg"))
    highlightInDrawing(svg, litBox);
  for (const row of byId("viewer-found").tBodies[0].rows) {
    const rowBox = Number(row.dataset.box);
    row.classList.toggle("chosen", rowBox === litBox);
    const isChosen = rowBox === viewer.chosenBox;
    row.querySelector("button").setAttribute("aria-pressed", isChosen);
    if (rowBox === litBox && scrolls) row.scrollIntoView({ block: "nearest" });
  }
}

/* A box that is lit has a label, whatever that covers. */
function highlightInDrawing(svg, litBox) {
  svg.classList.toggle("dimmed", litBox !== null);
  svg.querySelector(".extra")?.remove();
  for (const part of svg.querySelectorAll("[data-box]")) {
    part.classList.toggle("chosen", Number(part.dataset.box) === litBox);
  }
  const hasBox = svg.querySelector(".box.chosen");
  const hasLabel = svg.querySelector(".label.chosen");
  if (!hasBox || hasLabel) return;
  const side = svg.dataset.side && Number(svg.dataset.side);
  const label = drawLabel(viewer.record, litBox, lensSize().scale, side);
  if (label) svg.append(vector("g.extra", label));
}

/* Keeps a box lit; a row brings it close, and once more the whole image. */
function choose(box, isInPicture = false) {
  viewer.chosenBox = box === viewer.chosenBox ? null : box;
  if (!isInPicture) {
    if (viewer.chosenBox !== null) zoomToBox(box);
    else zoomTo(1);
  }
  highlight(null, isInPicture);
}

/* What one goes through, images or the crops of the wall, and the index of what is open; -1 if
   it is not among them. */
function stops() {
  if (state.view !== "wall") {
    const index = shownRecords.indexOf(viewer.record);
    return { items: shownRecords, index };
  }
  const crops = grid.items.filter(({ record }) => record);
  let index = crops.findIndex(({ box }) => box === viewer.chosenBox);
  if (index < 0)
    index = crops.findIndex(({ record }) => record === viewer.record);
  return { items: crops, index };
}

/* Goes to the next image or crop, or with -1 to the previous one. */
function step(by) {
  const { items, index } = stops();
  const item = items[index + by];
  if (!item) return;
  grid.currentIndex = grid.items.indexOf(item); // where the keyboard is when the viewer closes
  goTo(item);
}

function goTo(item) {
  player.playback = null;
  changeState({ picture: idOf(item) }); // one step back leaves the viewer
}

/* Turns boxes or labels on or off. */
function toggle(key) {
  changeState({ [key]: state[key] === "on" ? "off" : "on" });
}

function toggleFull() {
  const isOpen = byId("viewer").open;
  const part = isOpen ? byId("viewer-body") : document.documentElement;
  if (document.fullscreenElement) document.exitFullscreen();
  else part.requestFullscreen();
}

/* The keyboard goes back to the tile of the image. */
function closeViewer() {
  const index = tileIndexOf(viewer.record);
  viewer.record = null;
  viewer.openId = "";
  player.playback = null;
  byId("stage").replaceChildren();
  if (document.fullscreenElement) document.exitFullscreen();
  if (index >= 0 && !byId("view-pictures").hidden) focusTile(index);
  if (state.picture) changeState({ picture: "" });
}

function startViewer() {
  byId("previous").addEventListener("click", () => step(-1));
  byId("next").addEventListener("click", () => step(1));
  byId("boxes").addEventListener("click", () => toggle("boxes"));
  byId("labels").addEventListener("click", () => toggle("labels"));
  byId("sides").addEventListener("change", (event) =>
    changeState({ sides: event.target.value }),
  );
  startZoom();
  startPlayer();
  byId("full").addEventListener("click", toggleFull);
  byId("close").addEventListener("click", () => byId("viewer").close());
  byId("viewer").addEventListener("close", closeViewer);
  document.addEventListener("fullscreenchange", () => {
    const isFull = Boolean(document.fullscreenElement);
    byId("full").setAttribute("aria-pressed", isFull);
  });
  new ResizeObserver(drawBoxes).observe(byId("stage"));
}
