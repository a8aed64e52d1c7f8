"use strict";

/* Inputs that failed, and those with warnings. */

const LISTED_PROBLEMS = 200;

function problemRecords() {
  return page.records.filter(
    ({ isReplaced, error, warnings }) =>
      !isReplaced && (error || warnings.length),
  );
}

/* Those that failed come first. */
function drawProblems() {
  const records = problemRecords().filter(findTest());
  const hasOnlyWarnings = ({ error }) => !error; // false, as 0, is before true
  records.sort(
    (recordA, recordB) => hasOnlyWarnings(recordA) - hasOnlyWarnings(recordB),
  );
  const failedCount = records.filter(({ error }) => error).length;
  const warnedCount = records.length - failedCount;
  const failedText = `${countText(failedCount, "input")} failed`;
  const warnedText = `${countText(warnedCount, "input")} with warnings`;
  const text = records.length
    ? `${failedText}, ${warnedText}`
    : "No failed inputs, no warnings";

  const { listed, moreButton } = cutList(records, "inputs", LISTED_PROBLEMS);
  const parts = [
    element("p.quiet", text),
    element("ul.problems", ...listed.map(problemItem)),
  ];
  if (moreButton) parts.push(moreButton);
  byId("view-problems").replaceChildren(...parts);
}

function problemItem(record) {
  const { source, frame } = record;
  const isFrame = frame !== undefined;
  const text = isFrame ? `${source} · ${momentText(record)}` : source;
  const name = element("bdi.name", text);
  if (record.error) {
    const [type, message, hint] = record.error;
    return element(
      "li",
      { class: "failed" },
      element("span.tag", type),
      name,
      element("p", message),
      hint ? element("p.quiet", hint) : undefined,
    );
  }
  return element(
    "li",
    { class: "warned" },
    element("span.tag", "warning"),
    element("a", { href: linkTo(record) }, name),
    ...record.warnings.map((warning) => element("p", warning)),
  );
}
