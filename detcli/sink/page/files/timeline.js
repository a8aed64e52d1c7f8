"use strict";

/* How many boxes each moment of a video has, by class. */

const TIMELINE_VIDEOS = 20; // drawn at once
const TIMELINE_CLASSES = 6; // with a colour of their own; the others are grey
const TIMELINE_BINS = 240;
const TIMELINE_HEIGHT = 60;
const TIMELINE_TRACKS = 40; // of a video, at once
const OTHERS = "#8a949e";

let timelineVideos = TIMELINE_VIDEOS;
let timelineTracks = TIMELINE_TRACKS;

function drawTimeline() {
  const named = findTest();
  const videos = joinedVideos().filter(({ records }) => records.some(named));
  const parts = videos.slice(0, timelineVideos).map(videoFigure);
  if (videos.length > parts.length) {
    parts.push(moreButton(`Show more of ${videos.length} videos`, () => { timelineVideos += TIMELINE_VIDEOS; }));
  }
  if (!videos.length) parts.push(element("p", { class: "quiet" }, "No video has such a name"));
  byId("view-timeline").replaceChildren(...parts);
}

/* Videos; the parts of one that several runs have read are one. */
function joinedVideos() {
  const joined = new Map();
  for (const video of page.videos) {
    const records = video.records.filter((record) => !record.replaced);
    if (!records.length) continue;
    const key = records[0].time === undefined && page.runs.length > 1 ? video.source : video;
    if (!joined.has(key)) joined.set(key, { source: video.source, records: [] });
    joined.get(key).records.push(...records);
  }
  return [...joined.values()];
}

function timeOf({ time_s: time, frame }) {
  return time === undefined ? frame : time;
}

function videoFigure(video) {
  const { records } = video;
  const start = timeOf(records[0]);
  const last = records.reduce((most, record) => Math.max(most, timeOf(record)), start);
  const span = Math.max(last - start, 1e-9);
  const passes = boxTest();
  const bins = Array.from({ length: Math.min(TIMELINE_BINS, records.length) }, () => ({ counts: new Map(), most: 0, record: null, failed: false }));
  const totals = new Map();
  let boxes = 0;
  for (const record of records) {
    const bin = bins[Math.min(bins.length - 1, Math.floor(((timeOf(record) - start) / span) * bins.length))];
    const counts = new Map();
    const frame = shownBoxes(record, passes);
    for (const box of frame) {
      const number = page.kinds.length ? found.kind.data[box] : found.classOf.data[box];
      counts.set(number, (counts.get(number) || 0) + 1);
      totals.set(number, (totals.get(number) || 0) + 1);
    }
    boxes += frame.length;
    bin.failed ||= Boolean(record.error);
    if (frame.length > bin.most || !bin.record) Object.assign(bin, { counts, most: frame.length, record });
  }
  const entries = page.kinds.length ? page.kinds : page.classes;
  const order = [...totals.keys()].sort((a, b) => totals.get(b) - totals.get(a));
  const coloured = order.slice(0, TIMELINE_CLASSES);
  const most = Math.max(1, ...bins.map((bin) => bin.most));
  const svg = vector("svg", { viewBox: `0 0 ${bins.length} ${TIMELINE_HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  for (const [number, path] of stackedPaths(bins, coloured, most)) {
    svg.append(vector("path", { d: path, fill: number === null ? OTHERS : entries[number].colour }));
  }
  const failed = bins.flatMap((bin, at) => (bin.failed ? [`M${at} 0h1v${TIMELINE_HEIGHT}h-1Z`] : []));
  if (failed.length) svg.append(vector("path", { d: failed.join(""), class: "failed" }));
  const more = order.length - coloured.length;
  const named = [...coloured.map((number) => [entries[number].name, entries[number].colour]), ...(more ? [[`${more} more`, OTHERS]] : [])];
  const axis = records[0].time_s === undefined ? [`frame ${start}`, `frame ${last}`] : [clock(start), clock(last)];
  return figure(
    baseName(video.records[0]),
    `${counted(records.length, "frame")}, ${counted(boxes, "box", "boxes")}, at most ${most} at once`,
    strip(svg, bins, video),
    element("div", { class: "axis quiet", "aria-hidden": "true" }, element("span", {}, axis[0]), element("span", {}, axis[1])),
    legend(named.map(([name, color]) => legendEntry(name, "swatch", color))),
    ...trackRows(records, (record) => `${(100 * (timeOf(record) - start)) / span}%`),
  );
}

function legend(entries) {
  return element("ul", { class: "legend" }, ...entries);
}

function legendEntry(text, mark, color = "") {
  return element("li", {}, element("span", { class: mark, style: { color } }), element("bdi", {}, text));
}

/* A row for each track: while it is seen, and where it crosses a line. `at` says where a frame is. */
function trackRows(records, at) {
  const tracks = new Map();
  const sums = new Map();
  for (const record of records) {
    for (const box of shownBoxes(record)) {
      const track = found.track.data[box];
      if (!track) continue;
      if (!tracks.has(track)) tracks.set(track, { box, first: record, crossings: [] });
      Object.assign(tracks.get(track), { last: record });
      for (const [line, side] of found.crossed.get(box) || []) {
        tracks.get(track).crossings.push([record, `${line} to the ${side}`]);
        sums.set(`${line} to the ${side}`, (sums.get(`${line} to the ${side}`) || 0) + 1);
      }
    }
  }
  if (!tracks.size) return [];
  const rows = [...tracks.values()].slice(0, timelineTracks).map(({ box, first, last, crossings }) => {
    const name = `${trackText(box)}${page.classes[found.classOf.data[box]].name}`;
    const link = (record, title, style) => element("a", {
      href: addressOf({ picture: String(nearestPicture(record, records).number) }), title, "aria-label": title, ...style,
    });
    const bar = link(first, `${name}, ${moment(first)} to ${moment(last)}`, { class: "life", style: { left: at(first), right: `calc(100% - ${at(last)})`, background: boxColour(box).colour } });
    const marks = crossings.map(([record, text]) => link(record, `${name} crosses ${text}, ${moment(record)}`, { class: "crossing", style: { left: at(record) } }));
    return element("li", {}, element("bdi", {}, name), element("span", { class: "lane" }, bar, ...marks));
  });
  const all = [...sums].map(([text, count]) => legendEntry(`${text}: ${count.toLocaleString("en")}`, "crossing"));
  const parts = [legend(all), element("ul", { class: "tracks" }, ...rows)];
  return rows.length < tracks.size ? [...parts, moreButton(`Show more of ${tracks.size} tracks`, () => { timelineTracks += TIMELINE_TRACKS; })] : parts;
}

function stackedPaths(bins, coloured, most) {
  const paths = new Map([...coloured.map((number) => [number, ""]), [null, ""]]);
  for (const [at, bin] of bins.entries()) {
    let base = TIMELINE_HEIGHT;
    let rest = bin.most;
    for (const number of [...coloured, null]) {
      const count = number === null ? rest : bin.counts.get(number) || 0;
      rest -= count;
      const height = ((TIMELINE_HEIGHT - 4) * count) / most;
      if (!count) continue;
      paths.set(number, `${paths.get(number)}M${at} ${base}h1v${-height}h-1Z`);
      base -= height;
    }
  }
  return paths;
}

/* With the pointer or the keys of a slider one chooses a moment, and opens it. */
function strip(svg, bins, video) {
  const marker = element("span", { class: "marker", hidden: true });
  const shownAt = element("output", { class: "moment" });
  const filled = bins.flatMap((bin, at) => (bin.record ? [at] : []));
  const slider = element("input", { type: "range", max: filled.length - 1, value: 0, "aria-label": `Moments of ${baseName(video.records[0])}` });
  const choose = (place) => {
    slider.value = place;
    const bin = bins[filled[place]];
    const text = `${moment(bin.record)}: ${counted(bin.most, "box", "boxes")}${bin.failed ? ", some frames failed" : ""}`;
    slider.setAttribute("aria-valuetext", text);
    const share = (100 * (filled[place] + 0.5)) / bins.length;
    marker.hidden = false;
    marker.style.left = `${share}%`;
    shownAt.textContent = text;
    shownAt.style.left = `${Math.max(12, Math.min(88, share))}%`;
  };
  const point = (event) => {
    const room = slider.getBoundingClientRect();
    choose(nearestPlace(filled, ((event.clientX - room.left) / room.width) * bins.length));
  };
  const open = () => {
    const record = nearestPicture(bins[filled[slider.value]].record, video.records);
    location.hash = addressOf({ picture: String(record.number) });
  };
  slider.addEventListener("input", () => choose(slider.value));
  slider.addEventListener("pointermove", point);
  slider.addEventListener("click", (event) => {
    point(event);
    open();
  });
  slider.addEventListener("keydown", ({ key }) => key === "Enter" && open());
  slider.setAttribute("aria-valuetext", moment(bins[filled[0]].record));
  return element("div", { class: "strip" }, svg, marker, shownAt, slider);
}

function nearestPlace(filled, wanted) {
  const far = (place) => Math.abs(filled[place] + 0.5 - wanted);
  return [...filled.keys()].reduce((best, place) => (far(place) < far(best) ? place : best), 0);
}

/* The frame itself, or the nearest of which a picture was kept. */
function nearestPicture(record, records) {
  const kept = records.filter((one) => !one.error && hasPicture(one));
  const far = (one) => Math.abs(one.frame - record.frame);
  return kept.reduce((best, one) => (best && far(best) <= far(one) ? best : one), null) || record;
}
