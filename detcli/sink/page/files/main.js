"use strict";

/* Ties the parts together: views, filters, keys. */

const VIEWS = ["pictures", "timeline", "figures", "problems"];

let currentView = null;
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
    byId("least-shown").textContent = filter.least.toFixed(2);
    showCounts();
    drawView();
    refreshViewer();
  });
}

function drawView() {
  const draw = { pictures: refreshGrid, figures: drawFigures, timeline: drawTimeline, problems: drawProblems };
  draw[currentView || "pictures"]();
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
  document.querySelector('nav a[href="#timeline"]').hidden = !page.videos.length;
  const beyond = shown.length - 1 - lastPlace();
  const text = shown.length
    ? `${counted(shown.length, "picture")} shown${beyond > 0 ? `; the last ${beyond.toLocaleString("en")} are out of reach, so narrow the filter` : ""}`
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

/* The address says which view or picture is open, so that links lead to pictures. */
function follow() {
  const name = decodeURIComponent(location.hash.slice(1));
  const picture = /^picture-(\d+)$/.exec(name);
  const record = picture && page.records[Number(picture[1])];
  if (record && !record.error) {
    showView(currentView || "pictures");
    openViewer(record);
    return;
  }
  if (byId("viewer").open) byId("viewer").close();
  if (name === "main") {
    byId("main").focus();
    return;
  }
  showView(VIEWS.includes(name) ? name : "pictures");
}

function showView(view) {
  if (view === currentView) return;
  currentView = view;
  for (const one of VIEWS) byId(`view-${one}`).hidden = one !== view;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${view}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  window.scrollTo(0, 0);
  drawView();
}

function startFilters() {
  const form = byId("filters");
  const read = () => {
    filter.text = byId("search").value;
    filter.least = Number(byId("least").value);
    filter.sort = byId("sort").value;
    filter.show = byId("show").value;
    const chosen = (id) => new Set(
      [...document.querySelectorAll(`#${id} input:checked`)].map((input) => Number(input.value)),
    );
    filter.classes = chosen("classes");
    filter.kinds = chosen("kinds");
    grid.current = 0;
    refresh();
  };
  form.addEventListener("input", read);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => {
    for (const input of form.querySelectorAll("input[type=checkbox]")) input.checked = false;
    setTimeout(read); // when the fields have their first values
  });
  byId("open-filters").addEventListener("click", () => {
    const open = document.body.classList.toggle("filtering");
    byId("open-filters").setAttribute("aria-expanded", open);
  });
}

function startOrders() {
  const last = page.runs[page.runs.length - 1];
  const compared = page.kinds.length > 0;
  for (const [value, [text]] of Object.entries(ORDERS)) {
    if (value !== "wrong" || compared) byId("sort").append(element("option", { value }, text));
  }
  if (compared) {
    filter.sort = "wrong";
    byId("sort").value = "wrong";
    byId("sort").querySelector('[value="wrong"]').defaultSelected = true;
  }
  filter.least = Math.floor((last ? last.floor : 0) * 100) / 100;
  byId("least").value = filter.least;
  byId("least").setAttribute("value", filter.least);
}

function startTheme() {
  const button = byId("theme");
  const show = (dark) => {
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    button.setAttribute("aria-pressed", dark);
  };
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  show(system.matches);
  system.addEventListener("change", () => show(system.matches));
  button.addEventListener("click", () => show(document.documentElement.dataset.theme !== "dark"));
}

function startKeys() {
  byId("open-keys").addEventListener("click", () => byId("keys").showModal());
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || byId("keys").open) return;
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
  const everywhere = { f: toggleFull, "?": () => byId("keys").showModal() };
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
      ...(page.sides.length && { s: () => showSides({ both: "swipe", swipe: "pair", pair: "both" }[viewer.sides]) }),
      ...(viewer.record.video && { " ": togglePlay, "[": () => jump(-1), "]": () => jump(1) }),
    };
  }
  const search = () => {
    document.body.classList.add("filtering");
    byId("open-filters").setAttribute("aria-expanded", true);
    byId("search").focus();
    byId("search").select();
  };
  if (currentView !== "pictures") return { ...everywhere, "/": search };
  const inGrid = byId("grid").contains(document.activeElement);
  const move = (by) => () => focusTile(inGrid ? grid.current + by : grid.current);
  const moves = { ArrowLeft: move(-1), ArrowRight: move(1), Home: move(-Infinity), End: move(Infinity) };
  const rows = { ArrowUp: move(-grid.columns), ArrowDown: move(grid.columns) };
  return { ...everywhere, "/": search, ...(inGrid ? { ...moves, ...rows } : { ArrowDown: move(0), ArrowRight: move(0) }) };
}

async function start() {
  startTheme();
  startFilters();
  startViewer();
  startKeys();
  window.addEventListener("scroll", scheduleTiles, { passive: true });
  new ResizeObserver(() => {
    const before = grid.width;
    layOut();
    if (before !== grid.width) refreshGrid();
  }).observe(byId("grid"));
  window.addEventListener("hashchange", follow);
  let begun = false;
  await loadData(() => {
    if (!begun) {
      begun = true;
      startOrders();
      showAbout();
    }
    showState();
    listChoices();
    refresh();
  });
  if (!begun) {
    startOrders();
    showAbout();
  }
  showState();
  follow();
  refresh();
  document.documentElement.dataset.ready = "true";
}

start();
