/* What eslint checks in the scripts of the page: its recommended rules.

   The page is opened from a disk, where browsers load no modules. So its scripts share one scope,
   and what each of them defines is a global of the others. The review page is another page: of
   the others it loads parts.js alone. */

import { readFileSync, readdirSync } from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";

const require = createRequire(path.resolve(".node/package.json"));
const js = require("@eslint/js");
const globals = require("globals");

const FOLDER = "detcli/page/files";
const DEFINITION = /^(?:async )?(?:function|const|let|class) (\w+)/gm;

const REVIEW = "review.js";
const SHARED = "parts.js";
const scripts = readdirSync(FOLDER).filter((name) => name.endsWith(".js"));

function namesDefinedIn(script) {
  const source = readFileSync(path.join(FOLDER, script), "utf8");
  return [...source.matchAll(DEFINITION)].map((match) => match[1]);
}

/* The scripts that a page loads beside a script. */
function othersOf(script) {
  if (script === REVIEW) return [SHARED];
  return scripts.filter((name) => ![script, REVIEW].includes(name));
}

function configOf(script) {
  const others = othersOf(script);
  const names = others.flatMap(namesDefinedIn);
  return {
    files: [`${FOLDER}/${script}`],
    languageOptions: {
      sourceType: "script",
      globals: {
        ...globals.browser,
        ...Object.fromEntries(names.map((name) => [name, "writable"])),
      },
    },
    rules: { "no-unused-vars": ["error", { vars: "local" }] },
  };
}

export default [js.configs.recommended, ...scripts.map(configOf)];
