"use strict";

/* How many boxes each moment of a video has, by class. */

const TIMELINE_VIDEOS = 20; // drawn at once
const TIMELINE_CLASSES = 6; // with a colour of their own; the others are grey
const TIMELINE_BINS = 240;
const TIMELINE_HEIGHT = 60;
const TIMELINE_TRACKS = 40; // of a video, at once
const OTHERS = "#8a949e";

function drawTimeline() {
  const named = findTest();
  const videos = joinedVideos().filter(({ records }) => records.some(named));
  const [drawn, ...more] = cutList(videos, "videos", TIMELINE_VIDEOS);
  const none = element("p.quiet", "No video has such a name");
  const figures = drawn.length ? drawn.map(videoFigure) : [none];
  byId("view-timeline").replaceChildren(...figures, ...more);
}

/* Videos; the parts of one that several runs have read are one. */
function joinedVideos() {
  const joined = new Map();
  for (const video of page.videos) {
    const records = video.records.filter((record) => !record.isReplaced);
    if (!records.length) continue;
    const key =
      records[0].time === undefined && page.runs.length > 1
        ? video.source
        : video;
    if (!joined.has(key))
      joined.set(key, { source: video.source, records: [] });
    joined.get(key).records.push(...records);
  }
  return [...joined.values()];
}

function timeOf({ time_s: time, frame }) {
  return time === undefined ? frame : time;
}

function videoFigure({ records }) {
  const start = timeOf(records[0]);
  const last = records.reduce(
    (most, record) => Math.max(most, timeOf(record)),
    start,
  );
  const span = Math.max(last - start, 1e-9);
  const passes = boxTest();
  const bins = records.slice(0, TIMELINE_BINS).map(() => ({ boxes: [] }));
  const all = [];
  for (const record of records) {
    const place = Math.floor(((timeOf(record) - start) / span) * bins.length);
    const bin = bins[Math.min(bins.length - 1, place)];
    const boxes = shownBoxes(record, passes);
    for (const box of boxes) all.push(box);
    bin.failed ||= Boolean(record.error);
    if (boxes.length > bin.boxes.length || !bin.record)
      Object.assign(bin, { boxes, record });
  }
  const kinds = [...frequencies(all.map(styleOf)).keys()];
  const coloured = kinds.slice(0, TIMELINE_CLASSES);
  const more = kinds.length - coloured.length;
  if (more) coloured.push({ name: `${more} more`, colour: OTHERS });
  const most = Math.max(1, ...bins.map(({ boxes }) => boxes.length));
  const frames = records[0].time_s === undefined; // without times
  const axis = [start, last].map((at) =>
    element("span", frames ? `frame ${at}` : clockText(at)),
  );
  return figure(
    baseName(records[0]),
    `${countText(records.length, "frame")}, ${boxCountText(all.length)}, at most ${most} at once`,
    strip(stack(bins, coloured, most), bins, records),
    element("div.axis.quiet", { "aria-hidden": "true" }, ...axis),
    legend(coloured.map(({ name, colour }) => legendEntry(name, colour))),
    ...trackRows(
      records,
      (record) => `${(100 * (timeOf(record) - start)) / span}%`,
    ),
  );
}

/* A bar for each bin, and in it a part for each colour; the last one is of all others. */
function stack(bins, coloured, most) {
  const paths = coloured.map(() => "");
  let failed = "";
  for (const [at, bin] of bins.entries()) {
    if (bin.failed) failed += `M${at} 0h1v${TIMELINE_HEIGHT}h-1Z`;
    const counts = coloured.map(() => 0);
    for (const box of bin.boxes) {
      const number = coloured.indexOf(styleOf(box));
      counts[number < 0 ? counts.length - 1 : number] += 1;
    }
    let base = TIMELINE_HEIGHT;
    for (const [number, count] of counts.entries()) {
      const height = ((TIMELINE_HEIGHT - 4) * count) / most;
      if (count) paths[number] += `M${at} ${base}h1v${-height}h-1Z`;
      base -= height;
    }
  }
  const viewBox = `0 0 ${bins.length} ${TIMELINE_HEIGHT}`;
  return vector(
    "svg",
    { viewBox, preserveAspectRatio: "none", "aria-hidden": "true" },
    ...paths.map((d, number) =>
      vector("path", { d, fill: coloured[number].colour }),
    ),
    vector("path", { d: failed, class: "failed" }),
  );
}

function legend(entries) {
  return element("ul.legend", ...entries);
}

function legendEntry(text, colour, sign = swatch({ colour })) {
  return element("li", sign, element("bdi", text));
}

/* A row for each track: when it is seen and crosses lines. `at` says where a frame is. */
function trackRows(records, at) {
  const tracks = new Map();
  const texts = [];
  for (const record of records) {
    for (const box of shownBoxes(record)) {
      const track = boxColumns.track[box];
      if (!track) continue;
      if (!tracks.has(track))
        tracks.set(track, { box, first: record, crossings: [] });
      Object.assign(tracks.get(track), { last: record });
      for (const text of boxColumns.crossings.get(box) || []) {
        tracks.get(track).crossings.push([record, text]);
        texts.push(text);
      }
    }
  }
  const [listed, ...more] = cutList(
    [...tracks.values()],
    "tracks",
    TIMELINE_TRACKS,
  );
  if (!listed.length) return [];
  const rows = listed.map(({ box, first, last, crossings }) => {
    const name = titleOf(box);
    const link = (kind, record, title, style) => {
      const href = linkTo(nearestPicture(record, records));
      const place = { left: at(record), ...style };
      return element(`a.${kind}`, {
        href,
        title,
        "aria-label": title,
        style: place,
      });
    };
    const life = link(
      "life",
      first,
      `${name}, ${momentText(first)} to ${momentText(last)}`,
      {
        right: `calc(100% - ${at(last)})`,
        background: styleOf(box).colour,
      },
    );
    const marked = crossings.map(([record, text]) =>
      link(
        "crossing",
        record,
        `${name} crosses ${text}, ${momentText(record)}`,
      ),
    );
    return element(
      "li",
      element("bdi", name),
      element("span.lane", life, ...marked),
    );
  });
  const sums = [...frequencies(texts)].map(
    ([text, count]) => `${text}: ${numberText(count)}`,
  );
  const entries = sums.map((text) =>
    legendEntry(text, "", element("span.crossing")),
  );
  return [legend(entries), element("ul.tracks", ...rows), ...more];
}

/* With the pointer or the keys of a slider one chooses a moment, and opens it. */
function strip(svg, bins, records) {
  const filled = [...bins.keys()].filter((at) => bins[at].record);
  const marker = element("span.marker", { hidden: true });
  const shownAt = element("output.moment");
  const label = `Moments of ${baseName(records[0])}`;
  const range = { type: "range", max: filled.length - 1, value: 0 };
  const slider = element("input", { ...range, "aria-label": label });
  const choose = () => {
    const { record, boxes, failed } = bins[filled[slider.value]];
    const text = `${momentText(record)}: ${boxCountText(boxes.length)}`;
    shownAt.textContent = failed ? `${text}, some frames failed` : text;
    slider.setAttribute("aria-valuetext", shownAt.textContent);
    const share = (100 * (filled[slider.value] + 0.5)) / bins.length;
    marker.hidden = false;
    marker.style.left = `${share}%`;
    shownAt.style.left = `${Math.max(12, Math.min(88, share))}%`;
  };
  const point = (event) => {
    const room = slider.getBoundingClientRect();
    const wanted = ((event.clientX - room.left) / room.width) * bins.length;
    slider.value = filled.indexOf(
      nearest(filled, (at) => Math.abs(at + 0.5 - wanted)),
    );
    choose();
  };
  const open = () => {
    location.hash = linkTo(
      nearestPicture(bins[filled[slider.value]].record, records),
    );
  };
  slider.addEventListener("input", choose);
  slider.addEventListener("pointermove", point);
  slider.addEventListener("click", (event) => {
    point(event);
    open();
  });
  slider.addEventListener("keydown", ({ key }) => key === "Enter" && open());
  slider.setAttribute("aria-valuetext", momentText(bins[filled[0]].record));
  return element("div.strip", svg, marker, shownAt, slider);
}

/* The first of those that are least far. */
function nearest(items, far) {
  return items.reduce(
    (best, one) => (far(one) < far(best) ? one : best),
    items[0],
  );
}

/* The frame itself, or the nearest of which a picture was kept. */
function nearestPicture(record, records) {
  const far = ({ frame }) => Math.abs(frame - record.frame);
  return nearest(keptFrames(records), far) || record;
}
