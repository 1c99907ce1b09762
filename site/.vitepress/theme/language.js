// The language in which a reader wants examples: chosen once, kept in the browser, and the same on all pages.

import { ref } from "vue";
import { LANGUAGES } from "../../build/languages.mjs";

const KEY = "workglow-limit-language";
/** Languages that do for each other where one is missing. */
const SIMILAR = { js: ["ts"], ts: ["js"], c: ["cpp"], cpp: ["c"] };

/** Empty until the page is alive: what the server drew knows nobody's choice. */
export const language = ref("");

export function begin() {
  language.value = document.documentElement.dataset.language;
  addEventListener("storage", ({ key, newValue }) => key === KEY && newValue in LANGUAGES && choose(newValue));
}

export function choose(chosen) {
  language.value = chosen;
  document.documentElement.dataset.language = chosen;
  try {
    localStorage.setItem(KEY, chosen);
  } catch {
    // Without storage the choice holds until the page is left.
  }
}

/** Of these languages, the one to show. */
export const best = (languages) => [language.value, ...(SIMILAR[language.value] ?? [])].find((one) => languages.includes(one)) ?? languages[0];
