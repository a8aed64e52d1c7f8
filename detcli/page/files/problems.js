"use strict";

/* Inputs that failed, and those with warnings. */

const LISTED_PROBLEMS = 200;

function problemRecords() {
  return page.records.filter(
    ({ isReplaced, error, warnings }) =>
      !isReplaced && (error || warnings.length),
  );
}

function drawProblems() {
  const named = findTest();
  const records = problemRecords()
    .filter(named)
    .sort((a, b) => !a.error - !b.error);
  const failed = records.filter((record) => record.error).length;
  const [listed, ...more] = cutList(records, "inputs", LISTED_PROBLEMS);
  const warned = countText(records.length - failed, "input");
  const sums = `${countText(failed, "input")} failed, ${warned} with warnings`;
  byId("view-problems").replaceChildren(
    element("p.quiet", records.length ? sums : "No failed inputs, no warnings"),
    element("ul.problems", ...listed.map(problem)),
    ...more,
  );
}

function problem(record) {
  const [type, message, hint] = record.error || ["warning"];
  const texts = record.error ? [message] : record.warnings;
  const name =
    record.frame === undefined
      ? record.source
      : `${record.source} · ${momentText(record)}`;
  const shownName = element("bdi.name", name);
  return element(
    "li",
    { class: record.error ? "failed" : "warned" },
    element("span.tag", type),
    record.error
      ? shownName
      : element("a", { href: linkTo(record) }, shownName),
    ...texts.map((text) => element("p", text)),
    hint ? element("p.quiet", hint) : undefined,
  );
}
