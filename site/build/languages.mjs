// The languages of examples: how a fence names each, and how people do. Code in `sh`, `toml` or `text` is for all of them.

export const LANGUAGES = { python: "Python", js: "Node", ts: "TypeScript", c: "C", cpp: "C++", rust: "Rust" };

const named = new Map(Object.entries(LANGUAGES).map(([fence, name]) => [name.toLowerCase(), fence]));

/** The language that is meant by a section's title, if the title is nothing else. */
export const titled = (title) => named.get(title.trim().toLowerCase());
