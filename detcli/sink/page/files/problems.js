"use strict";

/* Inputs that failed, and those with warnings. */

const LISTED_PROBLEMS = 200;

let problemsShown = LISTED_PROBLEMS;

function problemRecords() {
  return page.records.filter((record) => !record.replaced && (record.error || record.warnings.length));
}

function drawProblems() {
  const named = findTest();
  const records = problemRecords().filter(named).sort((a, b) => Boolean(b.error) - Boolean(a.error));
  const failed = records.filter((record) => record.error).length;
  const listed = records.slice(0, problemsShown).map(problem);
  const view = byId("view-problems");
  const sums = `${counted(failed, "input")} failed, ${counted(records.length - failed, "input")} with warnings`;
  view.replaceChildren(
    element("p", { class: "quiet" }, records.length ? sums : "No failed inputs, no warnings"),
    element("ul", { class: "problems" }, ...listed),
  );
  if (records.length > listed.length) {
    view.append(moreButton(`Show more of ${records.length.toLocaleString("en")}`, () => { problemsShown += LISTED_PROBLEMS; }));
  }
}

function problem(record) {
  const name = element("bdi", { class: "name" }, record.frame === undefined ? record.source : `${record.source} · ${moment(record)}`);
  if (!record.error) {
    const link = element("a", { href: addressOf({ picture: String(record.number) }) }, name);
    return element("li", { class: "warned" }, element("span", { class: "tag" }, "warning"), link, ...record.warnings.map((text) => element("p", {}, text)));
  }
  const [type, message, hint] = record.error;
  return element(
    "li",
    { class: "failed" },
    element("span", { class: "tag" }, type),
    name,
    element("p", {}, message),
    hint ? element("p", { class: "quiet" }, hint) : undefined,
  );
}
