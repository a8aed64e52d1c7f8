"use strict";

/* The page on which a reviewer says of images whether something is in them. The format of the data,
   and of the labels that the page writes, is in detcli/page/review_page.py. */

const GRID_LOOKS = 20;
const LOOKS_AHEAD = 8; // whose images are loaded before they are shown
const FRAME_MS = 500; // for each image of a burst
const LABELS_PER_SAVE = 100; // also how many lines the browser keeps in one item
const PACE_LOOKS = 100; // the latest answers, from which the time left is estimated
const BREAK_S = 30; // an answer that took longer was a break

const review = {
  deck: undefined, // what data/deck.js says
  who: new URLSearchParams(location.search).get("who") || "reviewer",
  looks: new Map(), // by pass and source; their answers are those that were not withdrawn
  lines: [], // of labels.jsonl
  file: null, // what the reviewer saves to, where the browser can write files
  answered: [], // each look with the seconds it took, in the order of answering
  round: 1,
  shown: [], // looks
  shownAt: 0, // in milliseconds of performance.now()
  frames: new Map(), // the elements of looks that are shown or come next
  frameNumber: 0, // of a burst, counted on from the first
  timer: 0,
  isGrid: false,
  marked: new Set(), // looks of the grid with something in them
};

/* Called by data/deck.js. */
function deck(description) {
  review.deck = description;
}

/* Called by each chunk. */
function looks(list) {
  for (const fields of list) {
    const boxesItem = storageKey(`boxes ${keyOf(fields)}`);
    const hasBoxesSeen = storedText(boxesItem) !== null;
    review.looks.set(keyOf(fields), { ...fields, answers: [], hasBoxesSeen });
  }
}

function keyOf({ source, pass }) {
  return `${pass} ${source}`;
}

function looksOfRound() {
  const all = [...review.looks.values()];
  return all.filter(({ round }) => round === review.round);
}

/* Those without an answer, and then those of which the reviewer was unsure once. */
function openLooks() {
  const unanswered = looksOfRound().filter((look) => !look.answers.length);
  const unsure = looksOfRound().filter(
    ({ answers }) => answers.length === 1 && answers[0] === null,
  );
  return unanswered.concat(unsure);
}

/* Takes a label as the reviewer's answer, now or after a reload. A label of another deck is kept,
   but means nothing here. */
function applyLabel(label) {
  const look = review.looks.get(keyOf(label));
  if (!look) return;
  if (label.animal === "undo") {
    look.answers.pop();
    review.answered.pop();
  } else {
    look.answers.push(label.animal);
    review.answered.push({ look, seconds: label.seconds });
  }
  look.hasBoxesSeen ||= label.boxes_seen;
  review.round = look.round;
}

function addLabel(look, animal, seconds) {
  const label = {
    source: look.source,
    animal,
    who: review.who,
    at: `${new Date().toISOString().slice(0, 19)}Z`,
    seconds: Math.round(10 * seconds) / 10,
    pass: look.pass,
    boxes_seen: look.hasBoxesSeen,
    review: review.deck.review,
  };
  applyLabel(label);
  review.lines.push(JSON.stringify(label));
  const item = Math.floor((review.lines.length - 1) / LABELS_PER_SAVE);
  keep(item, review.lines.slice(item * LABELS_PER_SAVE).join("\n"));
  if (review.lines.length % LABELS_PER_SAVE === 0) writeLabels();
}

function storageKey(item) {
  return JSON.stringify(["detcli review", review.deck.id, review.who, item]);
}

function keep(item, text) {
  if (!storeText(storageKey(item), text))
    notify("This browser keeps no answers: save before you leave");
}

function restoreLabels() {
  for (let item = 0; ; item += 1) {
    const text = storedText(storageKey(item));
    if (text === null) break;
    review.lines.push(...text.split("\n"));
  }
  for (const line of review.lines) applyLabel(JSON.parse(line));
}

function notify(text) {
  byId("notice").textContent = text;
}

function labelsName() {
  return `labels-${review.who.replace(/[^\p{L}\p{N}._-]/gu, "_")}.jsonl`;
}

/* Where the browser can write files, the reviewer chooses one once. */
async function saveLabels() {
  if (!review.file && window.showSaveFilePicker) {
    const choice = window.showSaveFilePicker({ suggestedName: labelsName() });
    review.file = await choice.catch(() => null);
    if (!review.file) return; // the reviewer has closed the dialog
  }
  if (review.file) return writeLabels();
  saveText(labelsName(), `${review.lines.join("\n")}\n`);
  showSaved(review.lines.length);
}

async function writeLabels() {
  if (!review.file) return;
  const lineCount = review.lines.length;
  try {
    const stream = await review.file.createWritable();
    await stream.write(`${review.lines.join("\n")}\n`);
    await stream.close();
    showSaved(lineCount);
  } catch {
    review.file = null;
    notify("The labels could not be written: save again");
  }
}

function showSaved(lineCount) {
  notify("");
  byId("saved").textContent = `${numberText(lineCount)} saved`;
}

/* What shows a look, empty until all images are loaded. */
function frameOf(look) {
  if (review.frames.has(look)) return review.frames.get(look);
  const frame = element("div.frame");
  review.frames.set(look, frame);
  Promise.all(look.images.map(loadImage)).then((pictures) => {
    frame.append(...pictures);
    if (review.shown.includes(look)) startFrames();
  });
  return frame;
}

/* An image with its boxes, or a sentence in its place. */
async function loadImage({ file, boxes }) {
  const image = element("img", { alt: "", draggable: "false", src: file });
  try {
    await image.decode();
  } catch {
    const text = "The image cannot be shown, so it is not empty but unsure";
    return element("div", element("span.missing", text));
  }
  const { naturalWidth: width, naturalHeight: height } = image;
  const outlines = boxes.map(([left, top, right, bottom]) =>
    outline([left * width, top * height, right * width, bottom * height]),
  );
  const paths = cased(outlines.join(""), "#ffd400");
  return element("div", image, overlay({ width, height }, ...paths));
}

/* Shows what comes next, as it is: whole, of its own brightness, without boxes. */
function show() {
  const shownCount = review.isGrid ? GRID_LOOKS : 1;
  const next = openLooks().slice(0, shownCount + LOOKS_AHEAD);
  review.shown = next.slice(0, shownCount);
  review.frames = new Map(next.map((look) => [look, frameOf(look)]));
  const frames = review.shown.map(frameOf);
  const tiles = review.isGrid ? frames.map(tileOf) : frames;
  byId("stage").replaceChildren(...tiles);
  for (const view of ["zoom", "brighter", "boxes-on", "pause"])
    setView(view, false);
  setView("grid", review.isGrid);
  document.body.dataset.state = frames.length ? "open" : "complete";
  startFrames();
  showProgress();
  if (!frames.length) showEnd();
}

function tileOf(frame, index) {
  const isMarked = review.marked.has(review.shown[index]);
  const label = `Image ${index + 1}`;
  const attributes = { "aria-pressed": String(isMarked), "aria-label": label };
  return button({ ...attributes, class: "tile", "data-tile": index }, frame);
}

/* Plays bursts from their first images on. The reviewer looks since the last image was loaded. */
function startFrames() {
  clearInterval(review.timer);
  review.timer = setInterval(() => {
    if (byId("stage").matches(":not(.pause)"))
      showFrame(review.frameNumber + 1);
  }, FRAME_MS);
  review.shownAt = performance.now();
  showFrame(0);
}

function showFrame(number) {
  review.frameNumber = number;
  for (const look of review.shown) {
    const pictures = [...frameOf(look).children];
    for (const [index, picture] of pictures.entries())
      picture.hidden = index !== number % pictures.length;
  }
  const imageCount = review.shown[0]?.images.length;
  const isBurst = imageCount > 1 && !review.isGrid;
  const position = `${(number % imageCount) + 1} / ${imageCount}`;
  byId("position").textContent = isBurst ? position : "";
}

/* Turns a view on or off; without a second argument, the other way than now. */
function setView(view, isOn) {
  const isOnNow = byId("stage").classList.toggle(view, isOn);
  const viewButton = document.querySelector(`[data-action="${view}"]`);
  viewButton.setAttribute("aria-pressed", isOnNow);
}

function showBoxes() {
  setView("boxes-on");
  for (const look of review.shown) {
    look.hasBoxesSeen = true;
    keep(`boxes ${keyOf(look)}`, "seen");
  }
}

function showGrid() {
  review.isGrid = !review.isGrid;
  review.marked.clear();
  show();
}

/* "612 of 2,484; 14 animals; 21 min left" */
function showProgress() {
  const all = looksOfRound();
  const openCount = openLooks().length;
  const countOf = (value) =>
    all.filter(({ answers }) => answers.at(-1) === value).length;
  let wantedText = `${numberText(countOf(1))} with ${review.deck.wanted}`;
  if (review.deck.wanted === "animal")
    wantedText = countText(countOf(1), "animal");
  const texts = [
    `${numberText(all.length - openCount)} of ${numberText(all.length)}`,
    wantedText,
    `${numberText(Math.ceil((openCount * secondsPerLook()) / 60))} min left`,
  ];
  if (countOf(null)) texts.splice(2, 0, `${countOf(null)} unsure`);
  byId("progress").textContent = texts.join("; ");
}

/* The mean of the latest answers; a second before there are any. */
function secondsPerLook() {
  const latest = review.answered.slice(-PACE_LOOKS);
  let sum = 0;
  for (const { seconds } of latest) sum += Math.min(seconds, BREAK_S);
  return latest.length ? sum / latest.length : 1;
}

/* Says the command that checks the labels, and whether there is another round. */
function showEnd() {
  const { round } = review;
  const folder = decodeURIComponent(location.pathname)
    .replace(/\/[^/]*$/, "")
    .replace(/^\/(?=[A-Za-z]:)/, ""); // of Windows
  const files = [folder, labelsName()].map(shellWord).join(" ");
  const nextCount = review.deck.rounds[round];
  byId("end-title").textContent = `Round ${round} is complete`;
  byId("file-name").textContent = labelsName();
  byId("command").value = `detcli promise check ${files}`;
  byId("no-round").hidden = Boolean(nextCount);
  byId("copied").textContent = "";
  byId("more").hidden = !nextCount;
  byId("next-round").textContent =
    `${round + 1}: ${numberText(nextCount || 0)} more`;
  byId("end-title").focus();
  writeLabels();
}

/* Takes the same answer, or one for each, of all that is shown; none before it can be seen. */
function answer(text, valueOf) {
  const isLoaded = review.shown.every((look) => frameOf(look).children.length);
  if (!review.shown.length || !isLoaded) return;
  const seconds = (performance.now() - review.shownAt) / 1000;
  for (const look of review.shown) {
    const isMissing = frameOf(look).querySelector(".missing") !== null;
    const value = valueOf(look) || (isMissing ? null : valueOf(look));
    addLabel(look, value, seconds / review.shown.length);
  }
  review.marked.clear();
  show();
  byId("announce").textContent = `${text}: ${byId("progress").textContent}`;
}

/* Withdraws the latest answer of the round, or the latest grid. */
function undo() {
  const count = review.isGrid ? GRID_LOOKS : 1;
  for (const { look } of review.answered.slice(-count).reverse()) {
    if (look.round !== review.round) break;
    if (review.isGrid && look.answers.at(-1)) review.marked.add(look);
    addLabel(look, "undo", 0);
  }
  show();
  byId("announce").textContent = `Undone: ${byId("progress").textContent}`;
}

const ACTIONS = {
  nothing: () => answer("Nothing", () => 0),
  wanted: () => answer(byId("wanted").textContent, () => 1),
  unsure: () => answer("Unsure", () => null),
  rest: () => answer("Grid", (look) => Number(review.marked.has(look))),
  undo,
  zoom: () => setView("zoom"),
  brighter: () => setView("brighter"),
  "boxes-on": showBoxes,
  pause: () => setView("pause"),
  grid: showGrid,
  save: saveLabels,
  help: () => byId("keys").showModal(),
  copy: async () => {
    await copyField(byId("command"));
    byId("copied").textContent = "Copied";
  },
  "go-on": () => {
    review.round += 1;
    show();
  },
};

/* A key does what the visible button that names it does, if the browser does nothing with it where
   the focus is. A key that is held down is one answer. */
function pressKey(event) {
  const { key, target, ctrlKey, metaKey, altKey, repeat } = event;
  if (ctrlKey || metaKey || altKey || byId("keys").open) return;
  const isEnterOnTile = key === "Enter" && target.matches(".tile");
  const activates = [" ", "Enter"].includes(key) && !isEnterOnTile;
  if (target.matches("input") || (activates && target.matches("button")))
    return;
  let name = key.length === 1 ? key.toLowerCase() : key;
  if (key === " ") name = "Space";
  const pressed = document.querySelector(
    `[aria-keyshortcuts~="${CSS.escape(name)}"]`,
  );
  if (!pressed?.checkVisibility()) return;
  event.preventDefault();
  if (!repeat) ACTIONS[pressed.dataset.action]();
}

function click({ target }) {
  const clicked = target.closest("button");
  const { action, tile } = clicked?.dataset || {};
  if (action) ACTIONS[action]();
  else if (tile) {
    const look = review.shown[tile];
    if (!review.marked.delete(look)) review.marked.add(look);
    clicked.setAttribute("aria-pressed", review.marked.has(look));
  } else if (byId("stage").contains(target) && !review.isGrid) setView("zoom");
}

/* What is under the pointer stays there when the image is zoomed. */
function moveLens({ clientX, clientY }) {
  const { left, top, width, height } = byId("stage").getBoundingClientRect();
  byId("stage").style.setProperty("--x", (clientX - left) / width);
  byId("stage").style.setProperty("--y", (clientY - top) / height);
}

async function start() {
  await loadScript("data/deck.js");
  const chunkCount = review.deck?.chunks || 0;
  for (let number = 0; number < chunkCount; number += 1)
    await loadScript(`data/${number}.js`);
  document.documentElement.dataset.ready = "true";
  if (!chunkCount || review.looks.size !== review.deck.looks)
    return notify("This page has no images, or part of its data is missing");

  for (const part of document.querySelectorAll(".wanted"))
    part.textContent = review.deck.wanted;
  let whoText = review.who;
  if (whoText === "reviewer")
    whoText += " (your name: ?who=NAME in the address)";
  byId("who").textContent = whoText;
  document.addEventListener("keydown", pressKey);
  document.addEventListener("click", click);
  byId("stage").addEventListener("pointermove", moveLens);
  byId("stage").addEventListener("pointerdown", moveLens);
  document.addEventListener("mousedown", (event) => {
    if (event.target.closest("button")) event.preventDefault(); // the focus stays
  });
  // The same reviewer may answer in another window.
  window.addEventListener("storage", ({ key }) => {
    if (key?.startsWith(storageKey("").slice(0, -3))) location.reload();
  });
  restoreLabels();
  show();
}

start();
