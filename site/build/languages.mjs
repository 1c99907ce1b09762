// The languages of the examples: the name in a fence and the name for readers. Blocks of `sh`, `toml` and `text` belong to every language.

export const LANGUAGES = { python: "Python", js: "Node", ts: "TypeScript", c: "C", cpp: "C++", rust: "Rust" };

const named = new Map(Object.entries(LANGUAGES).map(([fence, name]) => [name.toLowerCase(), fence]));

/** Returns the language whose name is the whole title of a section. */
export const titled = (title) => named.get(title.trim().toLowerCase());
