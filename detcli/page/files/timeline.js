"use strict";

/* How many boxes each moment of a video has, by class or by track. */

const TIMELINE_VIDEOS = 20; // drawn at once
const TIMELINE_CLASSES = 6; // with a colour of their own; the others are grey
const TIMELINE_BINS = 240;
const TIMELINE_HEIGHT = 60;
const TIMELINE_TRACKS = 40; // of a video, at once
const OTHERS = "#8a949e";

function drawTimeline() {
  const passesSearch = findTest();
  const videos = joinedVideos().filter(({ records }) =>
    records.some(passesSearch),
  );
  const { listed, moreButton } = cutList(videos, "videos", TIMELINE_VIDEOS);
  const parts = listed.map(videoFigure);
  if (!parts.length) parts.push(element("p.quiet", "No video has such a name"));
  if (moreButton) parts.push(moreButton);
  byId("view-timeline").replaceChildren(...parts);
}

/* Videos, {source, records}; the parts of one that several runs have read are one. */
function joinedVideos() {
  const videosByKey = new Map();
  for (const video of page.videos) {
    const { source } = video;
    const records = video.records.filter((record) => !record.isReplaced);
    if (!records.length) continue;
    const isStream = records[0].time !== undefined;
    const mayHaveParts = !isStream && page.runs.length > 1;
    const key = mayHaveParts ? source : video;
    if (!videosByKey.has(key)) videosByKey.set(key, { source, records: [] });
    videosByKey.get(key).records.push(...records);
  }
  return [...videosByKey.values()];
}

/* The position of a frame on the axis: its time in seconds, or its number if it has no time. */
function timeOf({ time_s: timeS, frame }) {
  return timeS === undefined ? frame : timeS;
}

/* From the first frame to the last one: where it starts, where it ends, and its length. */
function timeSpan(records) {
  const start = timeOf(records[0]);
  let end = start;
  for (const record of records) end = Math.max(end, timeOf(record));
  return { start, end, span: Math.max(end - start, 1e-9) };
}

function videoFigure({ records }) {
  const { start, end, span } = timeSpan(records);
  const { bins, allBoxes } = binRecords(records, start, span);
  const countedStyleOf = newCountedStyles();
  const styles = legendStyles(allBoxes, countedStyleOf);
  const maxBoxes = Math.max(1, ...bins.map(({ boxes }) => boxes.length));

  const hasTimes = records[0].time_s !== undefined;
  const axisTexts = [start, end].map((time) =>
    element("span", hasTimes ? clockText(time) : `frame ${time}`),
  );
  const frameCount = countText(records.length, "frame");
  const boxCount = boxCountText(allBoxes.length);
  const percentOf = (record) => `${(100 * (timeOf(record) - start)) / span}%`;
  return figure(
    baseName(records[0]),
    `${frameCount}, ${boxCount}, at most ${maxBoxes} at once`,
    strip(stack(bins, styles, countedStyleOf, maxBoxes), bins, records),
    element("div.axis.quiet", { "aria-hidden": "true" }, ...axisTexts),
    legend(styles.map(({ name, colour }) => legendEntry(name, colour))),
    ...trackRows(records, percentOf),
  );
}

/* The bins of a timeline, and all boxes that are shown. A bin has the boxes of the record that has
   most of them, and whether any of its records failed; without records it has no record. */
function binRecords(records, start, span) {
  const passesFilter = boxTest();
  const bins = records.slice(0, TIMELINE_BINS).map(() => ({ boxes: [] }));
  const allBoxes = [];
  for (const record of records) {
    const share = (timeOf(record) - start) / span;
    const index = Math.floor(share * bins.length);
    const bin = bins[Math.min(bins.length - 1, index)];
    const boxes = shownBoxes(record, passesFilter);
    for (const box of boxes) allBoxes.push(box);
    if (record.error) bin.hasFailed = true;
    if (boxes.length > bin.boxes.length || !bin.record) {
      bin.boxes = boxes;
      bin.record = record;
    }
  }
  return { bins, allBoxes };
}

/* A function from a box to the style that it counts as: that of its class or kind, or of its track,
   if tracks are counted and it has one. All boxes of a track have the same object. */
function newCountedStyles() {
  if (state.count === "class") return groupStyleOf;
  const stylesByTrack = new Map();
  return (box) => {
    const track = boxColumns.track[box];
    if (!track) return groupStyleOf(box);
    if (!stylesByTrack.has(track))
      stylesByTrack.set(track, { ...styleOf(box), name: titleOf(box) });
    return stylesByTrack.get(track);
  };
}

/* The most frequent styles of boxes; if there are more, the last is for all others. */
function legendStyles(boxes, countedStyleOf) {
  const allStyles = [...frequencies(boxes.map(countedStyleOf)).keys()];
  const limit = state.count === "class" ? TIMELINE_CLASSES : TIMELINE_TRACKS;
  const styles = allStyles.slice(0, limit);
  const otherCount = allStyles.length - styles.length;
  if (otherCount) styles.push({ name: `${otherCount} more`, colour: OTHERS });
  return styles;
}

/* A bar for each bin, and in it a part for each style; the last one is of all others. */
function stack(bins, styles, countedStyleOf, maxBoxes) {
  const paths = styles.map(() => "");
  let failedPath = "";
  for (const [column, bin] of bins.entries()) {
    if (bin.hasFailed) failedPath += `M${column} 0h1v${TIMELINE_HEIGHT}h-1Z`;
    let bottom = TIMELINE_HEIGHT; // of the next part; parts are stacked upwards
    const boxStyles = bin.boxes.map(countedStyleOf);
    for (const [index, count] of styleCounts(boxStyles, styles).entries()) {
      const height = ((TIMELINE_HEIGHT - 4) * count) / maxBoxes;
      if (count) paths[index] += `M${column} ${bottom}h1v${-height}h-1Z`;
      bottom -= height;
    }
  }
  const viewBox = `0 0 ${bins.length} ${TIMELINE_HEIGHT}`;
  return vector(
    "svg",
    { viewBox, preserveAspectRatio: "none", "aria-hidden": "true" },
    ...paths.map((path, index) =>
      vector("path", { d: path, fill: styles[index].colour }),
    ),
    vector("path", { d: failedPath, class: "failed" }),
  );
}

/* How many boxes have each style; any other counts as the last one. */
function styleCounts(boxStyles, styles) {
  const counts = styles.map(() => 0);
  for (const style of boxStyles) {
    const index = styles.indexOf(style);
    counts[index < 0 ? counts.length - 1 : index] += 1;
  }
  return counts;
}

function legend(entries) {
  return element("ul.legend", ...entries);
}

function legendEntry(text, colour, sign = swatch({ colour })) {
  return element("li", sign, element("bdi", text));
}

/* A row for each track: when it is seen and crosses lines. `percentOf` says where a frame is. */
function trackRows(records, percentOf) {
  const { tracks, crossingTexts } = tracksOf(records);
  const { listed, moreButton } = cutList(tracks, "tracks", TIMELINE_TRACKS);
  if (!listed.length) return [];
  const rows = listed.map((track) => trackRow(track, records, percentOf));
  const parts = [crossingLegend(crossingTexts), element("ul.tracks", ...rows)];
  if (moreButton) parts.push(moreButton);
  return parts;
}

/* The tracks of a video: a box of each, its first and its last record, and its crossings; and the
   texts of all crossings, in their order. */
function tracksOf(records) {
  const tracks = new Map();
  const crossingTexts = [];
  for (const record of records) {
    for (const box of shownBoxes(record)) {
      const number = boxColumns.track[box];
      if (!number) continue;
      if (!tracks.has(number))
        tracks.set(number, { box, first: record, crossings: [] });
      const track = tracks.get(number);
      track.last = record;
      for (const text of boxColumns.crossings.get(box) || []) {
        track.crossings.push({ record, text });
        crossingTexts.push(text);
      }
    }
  }
  return { tracks: [...tracks.values()], crossingTexts };
}

/* How often lines were crossed, in each direction. */
function crossingLegend(crossingTexts) {
  const counts = [...frequencies(crossingTexts)];
  const entries = counts.map(([text, count]) => {
    const sign = element("span.crossing");
    return legendEntry(`${text}: ${numberText(count)}`, "", sign);
  });
  return legend(entries);
}

function trackRow({ box, first, last, crossings }, records, percentOf) {
  const name = titleOf(box);
  const link = (className, record, title, style) => {
    return element(`a.${className}`, {
      href: linkTo(nearestPicture(record, records)),
      title,
      "aria-label": title,
      style: { left: percentOf(record), ...style },
    });
  };

  const lifeTitle = `${name}, ${momentText(first)} to ${momentText(last)}`;
  const life = link("life", first, lifeTitle, {
    right: `calc(100% - ${percentOf(last)})`,
    background: styleOf(box).colour,
  });
  const crossingLinks = crossings.map(({ record, text }) => {
    const title = `${name} crosses ${text}, ${momentText(record)}`;
    return link("crossing", record, title, {});
  });
  const lane = element("span.lane", life, ...crossingLinks);
  return element("li", element("bdi", name), lane);
}

/* With the pointer or the keys of a slider one chooses a moment, and opens it. The slider goes
   through the bins that have records. */
function strip(svg, bins, records) {
  const filledBins = [...bins.keys()].filter((index) => bins[index].record);
  const marker = element("span.marker", { hidden: true });
  const momentOutput = element("output.moment");
  const slider = element("input", {
    type: "range",
    max: filledBins.length - 1,
    value: 0,
    "aria-label": `Moments of ${baseName(records[0])}`,
  });
  const firstRecord = bins[filledBins[0]].record;
  slider.setAttribute("aria-valuetext", momentText(firstRecord));

  const showMoment = () => {
    const index = filledBins[slider.value];
    momentOutput.textContent = binText(bins[index]);
    slider.setAttribute("aria-valuetext", momentOutput.textContent);
    const percent = (100 * (index + 0.5)) / bins.length;
    marker.hidden = false;
    marker.style.left = `${percent}%`;
    momentOutput.style.left = `${Math.max(12, Math.min(88, percent))}%`;
  };
  const openMoment = () => {
    const { record } = bins[filledBins[slider.value]];
    location.hash = linkTo(nearestPicture(record, records));
  };
  const pointTo = (event) => {
    slider.value = nearestBin(event, slider, filledBins, bins.length);
    showMoment();
  };
  slider.addEventListener("input", showMoment);
  slider.addEventListener("pointermove", pointTo);
  slider.addEventListener("click", (event) => {
    pointTo(event);
    openMoment();
  });
  slider.addEventListener("keydown", ({ key }) => {
    if (key === "Enter") openMoment();
  });
  return element("div.strip", svg, marker, momentOutput, slider);
}

/* Which of the filled bins is nearest to the pointer: its index among them. */
function nearestBin(event, slider, filledBins, binCount) {
  const area = slider.getBoundingClientRect();
  const share = (event.clientX - area.left) / area.width;
  const pointedAt = share * binCount;
  const bin = lowestBy(filledBins, (index) =>
    Math.abs(index + 0.5 - pointedAt),
  );
  return filledBins.indexOf(bin);
}

function binText({ record, boxes, hasFailed }) {
  const text = `${momentText(record)}: ${boxCountText(boxes.length)}`;
  return hasFailed ? `${text}, some frames failed` : text;
}

/* The first of the items with the lowest key; undefined if there are none. */
function lowestBy(items, keyOf) {
  let lowest = items[0];
  for (const item of items) {
    if (keyOf(item) < keyOf(lowest)) lowest = item;
  }
  return lowest;
}

/* The frame itself, or the nearest of which an image was kept. */
function nearestPicture(record, records) {
  const distanceTo = ({ frame }) => Math.abs(frame - record.frame);
  return lowestBy(framesWithPicture(records), distanceTo) || record;
}
