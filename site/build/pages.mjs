// The pages of the site, the file that each comes from, and their order, which is that of docs/README.md.

import { existsSync, readFileSync, readdirSync } from "node:fs";
import { posix, resolve } from "node:path";

export const root = new URL("../..", import.meta.url).pathname;
// The tests build in other folders.
const folder = (name, usual) => `${resolve(root, process.env[name] ?? usual)}/`;
export const staged = folder("SITE_PAGES", "target/site-pages");
export const built = folder("SITE_OUT", "target/site");
export const references = folder("SITE_REFERENCES", "target/docs");

const read = (path) => readFileSync(root + path, "utf8");

/** The repository's address, if there is one. */
export const repository = read("Cargo.toml").match(/^repository = "(.*)"/m)?.[1];
export const version = read("Cargo.toml").match(/^version = "(.*)"/m)[1];

/** The project's own pages, next to the guides. */
const PROJECT = {
  "README.md": ["overview.md", "Overview"],
  "ARCHITECTURE.md": ["architecture.md", "Architecture"],
  "CONTRIBUTING.md": ["contributing.md", "Contributing"],
  "CHANGELOG.md": ["changelog.md", "Changelog"],
  "SECURITY.md": ["security.md", "Security"],
};

/** Maps a file's path in the repository to its page. */
export const pages = new Map(Object.entries(PROJECT).map(([path, [page]]) => [path, page]));
for (const name of [...readdirSync(`${root}docs`), ...readdirSync(`${root}docs/design`).map((name) => `design/${name}`)].sort()) {
  if (name.endsWith(".md")) pages.set(`docs/${name}`, name === "README.md" ? "guide/index.md" : `guide/${name}`);
}
const sources = new Map([...pages].map(([path, page]) => [page, path]));

export const address = (page) => `/${page.replace(/(^|\/)index\.md$/, "$1").replace(/\.md$/, ".html")}`;

/** Returns the address on the site for a link, or a picture, of a page; nothing for a file that only the repository has. */
export function target(page, link) {
  const source = sources.get(page);
  if (source === undefined || /^[a-z]+:|^#|^\//i.test(link)) return link;
  const [, path, hash] = link.match(/^([^#]*)(#.*)?$/);
  const found = posix.normalize(posix.join(posix.dirname(source), decodeURI(path)));
  if (pages.has(found)) return address(pages.get(found)) + (hash ?? "");
  if (/\.(svg|png)$/.test(found)) return `/${found}`;
  if (!existsSync(root + found)) throw new Error(`${source} links to ${link}, and there is no ${found}`);
  return repository && `${repository}/blob/main/${found}${hash ?? ""}`;
}

const plain = (text) => text.replace(/`/g, "");

/** Returns the groups of guides in the order of docs/README.md. Pages that it does not list come last. */
export function guides() {
  const groups = [];
  const seen = new Set(["guide/index.md"]);
  const lines = read("docs/README.md").split("\n");
  for (const [i, line] of lines.entries()) {
    const title = /^\|[\s|:-]+\|?$/.test(lines[i + 1] ?? "") ? line.split("|")[1] : line.match(/^## (.*)/)?.[1];
    if (title?.trim()) groups.push({ text: title.trim().replace(/^./, (first) => first.toUpperCase()), items: [] });
    // The first link of a table row or a list item is the entry.
    const [, text, path] = line.match(/^(?:\||[*-] )\s*\[([^\]]+)\]\(([^)#]+\.md)\)/) ?? [];
    const page = path && pages.get(posix.join("docs", path));
    if (!page || seen.has(page) || !groups.length) continue;
    seen.add(page);
    groups.at(-1).items.push({ text: plain(text), link: address(page) });
  }
  const others = [...pages].filter(([path, page]) => path.startsWith("docs/") && !seen.has(page));
  const titleOf = (path) => plain(read(path).match(/^# (.*)/m)[1]);
  if (others.length) groups.push({ text: "More", items: others.map(([path, page]) => ({ text: titleOf(path), link: address(page) })) });
  return groups.filter(({ items }) => items.length);
}

export const project = Object.values(PROJECT).map(([page, text]) => ({ text, link: address(page) }));

/** The languages whose reference `make docs` has written, in their order. */
export const referenced = ["python", "node", "c", "cpp", "rust"].filter((name) => existsSync(`${references}${name}.json`));
