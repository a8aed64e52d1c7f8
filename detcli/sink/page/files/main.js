"use strict";

/* Ties the parts together: views, filters, keys. */

const VIEWS = ["pictures", "wall", "timeline", "figures", "problems"];

let currentView = null;
let drawn = null; // the address of what is drawn, whichever picture is open
let refreshing = false;

/* Once a frame at most, however fast the slider moves. */
function refresh() {
  if (refreshing) return;
  refreshing = true;
  requestAnimationFrame(() => {
    refreshing = false;
    select();
    countChoices();
    drawScoreBars();
    grid.items = LAYOUTS[state.view]?.items() || [];
    drawView();
    showCounts();
    refreshViewer();
  });
}

function drawView() {
  const draw = { pictures: refreshGrid, wall: refreshGrid, figures: drawFigures, timeline: drawTimeline, problems: drawProblems };
  draw[state.view]();
}

/* A button for a list that is cut, which `grow` makes longer. */
function moreButton(text, grow) {
  const more = element("button", { type: "button" }, text);
  more.addEventListener("click", () => {
    grow();
    drawView();
  });
  return more;
}

function showCounts() {
  const problems = problemRecords();
  const failed = problems.filter((record) => record.error).length;
  const records = page.records.filter((record) => !record.replaced);
  const pictures = records.filter((record) => record.frame === undefined && !record.error).length;
  const frames = records.length - pictures - failed;
  const inputs = [];
  if (pictures || !frames) inputs.push(counted(pictures, "picture"));
  if (frames) inputs.push(counted(frames, "frame"));
  const boxes = records.reduce((sum, record) => sum + record.to - record.from, 0);
  const title = `${inputs.join(" and ")}, ${counted(boxes, page.kinds.length ? "box" : "detection", page.kinds.length ? "boxes" : undefined)}`;
  byId("title").textContent = title;
  document.title = `${title} - detcli`;
  byId("count-pictures").textContent = shown.length.toLocaleString("en");
  byId("count-problems").textContent = problems.length ? problems.length.toLocaleString("en") : "";
  document.querySelector('nav [data-view="timeline"]').hidden = !page.videos.length;
  const beyond = grid.items.length - 1 - lastPlace();
  const crops = grid.items.filter(({ box }) => box !== undefined).length;
  const text = shown.length
    ? `${state.view === "wall" ? `${counted(crops, "crop")} of ` : ""}${counted(shown.length, "picture")} ${state.among.length ? "of a table's row " : ""}shown${beyond > 0 ? `; the last ${beyond.toLocaleString("en")} are out of reach, so narrow the filter` : ""}`
    : "No picture passes the filter";
  byId("shown").textContent = text;
  if (page.loaded === page.chunks) byId("announce").textContent = text;
}

/* What the whole is: still growing, cut short, or complete. */
function showState() {
  const last = page.runs[page.runs.length - 1];
  const texts = [];
  if (page.loaded < page.chunks) texts.push(`Loading ${Math.round((100 * page.loaded) / page.chunks)} %`);
  else if (!last) texts.push("This page has no records");
  else if (last.state === "running") texts.push("The run is still going on, or was cut off: reload for more");
  else if (last.state === "stopped") texts.push("The run was stopped early");
  if (page.damaged.length) texts.push(`${counted(page.damaged.length, "part")} of the records cannot be read`);
  byId("state").textContent = texts.join(". ");
}

function showAbout() {
  const last = page.runs[page.runs.length - 1];
  if (!last) return;
  byId("summary").hidden = !last.summary.length;
  byId("summary").className = { true: "agree", false: "differ" }[last.agree] || "";
  byId("summary").replaceChildren(...last.summary.map((text) => element("p", {}, text)));
  const facts = page.runs.flatMap((run, number) => (
    [...run.facts, ["begun", run.begun], ...(run.ended ? [["ended", run.ended]] : [])]
      .map(([name, value]) => [page.runs.length > 1 ? `run ${number + 1}, ${name}` : name, value])
  ));
  byId("foot").replaceChildren(
    element("h2", {}, `Made by detcli ${last.command}`),
    element("dl", {}, ...facts.map(([name, value]) => (
      element("div", {}, element("dt", {}, name), element("dd", {}, element("bdi", {}, value)))
    ))),
  );
}

/* Shows what the state says. */
function follow() {
  fillFilters();
  showTheme();
  showView();
  const now = addressOf({ picture: "" });
  if (now !== drawn) {
    if (drawn !== null && !viewer.record) grid.current = 0;
    drawn = now;
    refresh();
  }
  const [number, box] = state.picture.split(".");
  const record = page.records[number];
  if (!record || record.error) byId("viewer").close();
  else if (record !== viewer.record) {
    openViewer(record);
    if (box < record.to - record.from) choose(record.from + Number(box), true);
  }
}

function showView() {
  for (const link of document.querySelectorAll("nav a")) {
    const { view } = link.dataset;
    link.href = addressOf({ view, picture: "" });
    if (view === state.view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (state.view === currentView) return;
  currentView = state.view;
  for (const one of VIEWS.filter((view) => view !== "wall")) {
    byId(`view-${one}`).hidden = one !== (LAYOUTS[currentView] ? "pictures" : currentView);
  }
  byId("grid").dataset.view = currentView;
  byId("group").parentElement.hidden = currentView !== "wall";
  window.scrollTo(0, 0);
}

/* The fields say what the state says. */
function fillFilters() {
  byId("search").value = state.find;
  for (const [at, id] of ["least", "below"].entries()) {
    byId(id).value = state.score[at];
    byId(`${id}-shown`).textContent = state.score[at].toFixed(2);
  }
  for (const [at, id] of ["smallest", "larger"].entries()) {
    byId(id).value = state.size[at] === ROWS.size.first[at] ? "" : state.size[at];
  }
  for (const id of ["sort", "near", "group", "show"]) byId(id).value = state[id];
  byId("near").hidden = state.sort !== "uncertain";
  for (const input of byId("filters").querySelectorAll("[type=checkbox]")) {
    input.checked = state[input.name].includes(CHOICES[input.name][1]()[input.value].name);
  }
}

/* What a field says, of which the event tells. */
function valueOf({ name, id, value, checked }) {
  if (name === "score") {
    const [least, below] = ["least", "below"].map((one) => Number(byId(one).value));
    return id === "least" ? [Math.min(least, below), below] : [least, Math.max(least, below)];
  }
  if (name === "size") return [Number(byId("smallest").value), Number(byId("larger").value) || Infinity];
  if (!CHOICES[name]) return value;
  const chosen = CHOICES[name][1]()[value].name;
  const others = state[name].filter((one) => one !== chosen);
  return checked ? [...others, chosen] : others;
}

function startFilters() {
  const form = byId("filters");
  form.addEventListener("input", ({ target }) => change({ [target.name]: valueOf(target) }));
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", (event) => {
    event.preventDefault();
    change(initial(FILTERS));
  });
  byId("open-filters").addEventListener("click", () => {
    const open = document.body.classList.toggle("filtering");
    byId("open-filters").setAttribute("aria-expanded", open);
  });
}

/* What is usual depends on the run. */
function startOrders() {
  const last = page.runs[page.runs.length - 1];
  for (const [value, [text]] of Object.entries(ORDERS)) {
    if (value !== "wrong" || page.kinds.length) byId("sort").append(element("option", { value }, text));
  }
  if (page.kinds.length) ROWS.sort.first = "wrong";
  ROWS.score.first[0] = Math.floor((last ? last.floor : 0) * 100) / 100;
  readAddress();
}

const DARK = window.matchMedia("(prefers-color-scheme: dark)");

function showTheme() {
  const theme = state.theme || (DARK.matches ? "dark" : "light");
  document.documentElement.dataset.theme = theme;
  byId("theme").setAttribute("aria-pressed", theme === "dark");
}

/* What the system prefers is not in the address. */
function toggleTheme() {
  const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  change({ theme: (theme === "dark") === DARK.matches ? "" : theme });
}

function startKeys() {
  byId("open-keys").addEventListener("click", () => byId("keys").showModal());
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || byId("keys").open || byId("marks").open) return;
    const typing = event.target.matches("input:not([type=checkbox]), select, textarea")
      || (event.key === " " && event.target.matches("button, video"));
    if (typing) {
      if (event.key === "Escape" && event.target.id === "search") focusTile(grid.current);
      return;
    }
    const action = actions()[event.key];
    if (action) {
      event.preventDefault();
      action();
    }
  });
}

/* What keys do: in the viewer, or outside. */
function actions() {
  const everywhere = { f: toggleFull, "?": () => byId("keys").showModal(), x: () => markFocused("drop"), k: () => markFocused("keep") };
  if (byId("viewer").open) {
    const near = lens.zoom > 1;
    const move = (x, y) => () => (near ? pan(60 * x, 60 * y) : step(-x));
    return {
      ...everywhere,
      b: () => toggle("boxes"),
      l: () => toggle("labels"),
      p: () => step(-1),
      n: () => step(1),
      "+": () => zoomTo(1.5 * lens.zoom),
      "=": () => zoomTo(1.5 * lens.zoom),
      "-": () => zoomTo(lens.zoom / 1.5),
      0: () => zoomTo(1),
      ArrowLeft: move(1, 0),
      ArrowRight: move(-1, 0),
      ...(near && { ArrowUp: move(0, 1), ArrowDown: move(0, -1) }),
      ...(page.sides.length && { s: () => change({ sides: { both: "swipe", swipe: "pair", pair: "both" }[state.sides] }) }),
      ...(viewer.record.video && { " ": togglePlay, "[": () => jump(-1), "]": () => jump(1) }),
    };
  }
  const search = () => {
    document.body.classList.add("filtering");
    byId("open-filters").setAttribute("aria-expanded", true);
    byId("search").focus();
    byId("search").select();
  };
  if (!LAYOUTS[state.view]) return { ...everywhere, "/": search };
  const inGrid = byId("grid").contains(document.activeElement);
  const move = (by) => () => focusTile(inGrid ? grid.current + by : grid.current);
  const moves = { ArrowLeft: move(-1), ArrowRight: move(1), Home: move(-Infinity), End: move(Infinity) };
  const rows = { ArrowUp: move(-grid.columns), ArrowDown: move(grid.columns) };
  return { ...everywhere, "/": search, ...(inGrid ? { ...moves, ...rows } : { ArrowDown: move(0), ArrowRight: move(0) }) };
}

async function start() {
  readAddress();
  showTheme();
  DARK.addEventListener("change", showTheme);
  byId("theme").addEventListener("click", toggleTheme);
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault(); // the address says something else
    byId("main").focus();
  });
  startFilters();
  startViewer();
  startMarks();
  startKeys();
  startPrint();
  byId("grid").addEventListener("focusin", ({ target }) => {
    grid.current = [...grid.tiles].find(([, tile]) => tile.contains(target))?.[0] ?? grid.current;
  });
  window.addEventListener("scroll", scheduleTiles, { passive: true });
  new ResizeObserver(() => {
    const before = grid.width;
    layOut();
    if (before !== grid.width) refreshGrid();
  }).observe(byId("grid"));
  window.addEventListener("hashchange", () => {
    readAddress();
    follow();
  });
  for (const type of ["click", "pagehide"]) window.addEventListener(type, () => toWrite && writeAddress(), true);
  let begun = false;
  await loadData(() => {
    if (!begun) {
      begun = true;
      startOrders();
      showAbout();
    }
    showState();
    listChoices();
    showView();
    refresh();
  });
  if (!begun) {
    startOrders();
    showAbout();
  }
  showState();
  restoreMarks();
  follow();
  document.documentElement.dataset.ready = "true";
}

start();
