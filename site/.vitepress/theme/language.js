// The language of the examples. The reader chooses it once for all pages, and the browser keeps it.

import { ref } from "vue";
import { LANGUAGES } from "../../build/languages.mjs";

const KEY = "workglow-limit-language";
/** Substitutes where a language is missing. */
const SIMILAR = { js: ["ts"], ts: ["js"], c: ["cpp"], cpp: ["c"] };

/** Empty until the page is mounted, because the built HTML is the same for all readers. */
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

/** Returns the one of these languages to show. */
export const best = (languages) =>
  [language.value, ...(SIMILAR[language.value] ?? [])].find((one) => languages.includes(one)) ?? languages[0];
