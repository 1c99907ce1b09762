// Draws the references: turns the data that `make docs` reads from the doc comments into pages of markdown.

import { readFileSync } from "node:fs";
import { address, referenced, references } from "./pages.mjs";

/** In a module with more items, each class with methods gets its own page. */
const LARGE = 25;
const KINDS = {
  class: "Classes",
  interface: "Interfaces",
  type: "Types",
  function: "Functions",
  variable: "Variables",
  macro: "Constants",
  property: "Constants",
};
const RUST_KINDS = {
  struct: "Structs",
  enum: "Enums",
  trait: "Traits",
  fn: "Functions",
  type: "Type aliases",
  constant: "Constants",
  macro: "Macros",
};
const TITLES = { python: "Python", node: "Node", c: "C", cpp: "C++", rust: "Rust" };

const data = new Map(referenced.map((language) => [language, JSON.parse(readFileSync(`${references}${language}.json`, "utf8"))]));

const slug = (name) => name.replace(/^.*[./]/, "").toLowerCase();
const isCall = ({ kind }) => kind === "method" || kind === "constructor";

/** The addresses of a language's names. */
class Places {
  #places = new Map();
  #taken = new Map();
  constructor(language) {
    this.language = language;
  }
  /** Reserves an anchor on a page for a name. */
  add(page, name, anchor) {
    const key = `${page}#${anchor.toLowerCase()}`;
    const count = this.#taken.get(key) ?? 0;
    this.#taken.set(key, count + 1);
    const id = count ? `${anchor}-${count}` : anchor;
    if (!this.#places.has(name)) this.#places.set(name, address(page) + (id ? `#${id}` : ""));
    return id;
  }
  get(name) {
    return this.#places.get(name);
  }
}

/** Returns a link to a name's description. */
function linked(places, name, of) {
  const found = places.get(name) ?? places.get(`${of}.${name}`);
  return found && `[\`${name}\`](${found})`;
}

/** Returns a comment as markdown: code is fenced, names are links, and HTML is escaped. */
function prose(text, { fence, places, of = "" }) {
  const blocks = [];
  const keep = (block) => `\u0000${blocks.push(block) - 1}\u0000`;
  const lines = text.split("\n");
  const out = [];
  for (let i = 0; i < lines.length; ) {
    if (/^```/.test(lines[i])) {
      const from = i++;
      while (i < lines.length && !/^```/.test(lines[i])) i++;
      const name = lines[from].slice(3).trim() || fence;
      out.push(keep([`\`\`\`${name}`, ...lines.slice(from + 1, i++), "```"].join("\n")));
    } else if (/^ {4}/.test(lines[i]) && !out.at(-1)?.trim()) {
      const code = [];
      while (i < lines.length && (/^ {4}/.test(lines[i]) || !lines[i].trim())) code.push(lines[i++].slice(4));
      while (!code.at(-1)?.trim()) code.pop();
      out.push(keep([`\`\`\`${fence}`, ...code, "```"].join("\n")), "");
    } else out.push(lines[i++]);
  }
  const name = fence === "c" ? /\b(?:wgl|WGL)_\w+\b/g : /\b[A-Z]\w*(?:\.\w+)?\b/g;
  const isName = (word) => fence === "c" || /\.|[a-z][A-Z]/.test(word);
  return out
    .join("\n")
    .replace(/`[^`]+`|\[[^\]]*\]\([^)]*\)/g, (code) => keep(linked(places, code.slice(1, -1).replace(/\(\)$/, ""), of) ?? code))
    .replace(name, (word) => (isName(word) && linked(places, word, of) ? keep(linked(places, word, of)) : word))
    .replaceAll("&", "&amp;")
    .replaceAll("<", "&lt;")
    .replaceAll("{{", "&#123;&#123;")
    .replace(/\*(?=\S)/g, "\\*")
    .replace(/(?<=\w)_(?=\w)/g, "\\_")
    .replace(/\u0000(\d+)\u0000/g, (_, i) => blocks[i]);
}

const code = (fence, text) => `\`\`\`${fence}\n${text}\n\`\`\``;
const indented = (text) => text.replace(/\n(?=.)/g, "\n  ");

/** Returns the first sentence of a comment on one line. */
function first(doc, context) {
  const [paragraph] = doc.split(/\n\s*\n/);
  if (/^ {4}|^```/.test(paragraph)) return "";
  const line = paragraph.replace(/\s+/g, " ").trim();
  return prose(line.match(/^.*?[^.]\.(?=\s|$)(?!\s[a-z])/)?.[0] ?? line, context).replaceAll("|", "\\|");
}

function front(title, language) {
  return `---\ntitle: ${JSON.stringify(`${title} · ${TITLES[language]}`)}\nlanguage: ${language}\noutline: [2, 3]\n---\n\n# ${title.replaceAll("_", "\\_")} <span class="language">${TITLES[language]}</span>\n`;
}

/** Returns the pages and the sidebar of one language. */
function draw(language) {
  const { fence, modules, doc = "", include } = data.get(language);
  const places = new Places(language);
  const context = { fence, places };
  const base = `reference/${language}/`;
  const pages = new Map();
  const sidebar = [];

  // All anchors are known before the first text is drawn, because texts link to them.
  const plan = modules.map((module) => {
    const page = `${base}${slug(module.name) === "workglow_limit" || slug(module.name) === "workglow-limit" ? "index" : slug(module.name)}.md`;
    const isLarge = module.items.length > LARGE;
    return {
      ...module,
      page,
      items: module.items.map((item) => {
        const isOwn = isLarge && item.members?.some(isCall) && item.members.length > 2;
        const own = isOwn ? `${base}${item.name}.md` : page;
        const id = places.add(own, item.name, isOwn ? "" : item.name);
        const members = (item.members ?? []).map((member) => {
          const name = isOwn ? member.name : `${item.name}.${member.name}`;
          return {
            ...member,
            id: isCall(member) ? places.add(own, `${item.name}.${member.name}`, name.replace(/\W+/g, "-").replace(/-$/, "")) : undefined,
          };
        });
        return { ...item, own: isOwn && own, id, members };
      }),
    };
  });

  /** Returns the text of one item. Its calls are headings of this level. */
  function body(item, level) {
    const parts = [];
    const inside = { ...context, of: item.name };
    if (item.signature) parts.push(code(fence, item.signature));
    if (item.doc) parts.push(prose(item.doc, inside));
    const properties = item.members?.filter((member) => !isCall(member)) ?? [];
    if (properties.length) {
      parts.push(
        properties
          .map(
            (one) =>
              `* <code>${one.signature
                .replace(/\s+/g, " ")
                .replaceAll("&", "&amp;")
                .replaceAll("<", "&lt;")
                .replace(
                  /[*_{}[\]`]/g,
                  (char) => `&#${char.charCodeAt(0)};`,
                )}</code>${one.doc ? `  \n  ${indented(prose(one.doc, inside))}` : ""}`,
          )
          .join("\n"),
      );
    }
    const calls = item.members?.filter(isCall) ?? [];
    for (const call of calls) {
      parts.push(
        `${"#".repeat(level)} ${(call.name === "constructor" ? `new ${item.name}` : call.name).replaceAll("_", "\\_").replace(/[<>]/g, "\\$&")} {#${call.id}}`,
        code(fence, call.signature),
      );
      if (call.doc) parts.push(prose(call.doc, inside));
    }
    const inherited = item.inherited?.length ? item.inherited : [];
    const bases = (item.bases ?? []).map((base) => linked(places, base.replace(/<.*/, ""), "")).filter(Boolean);
    if (bases.length || inherited.length) {
      const all = inherited.map(
        (name) =>
          (item.bases ?? []).map((base) => linked(places, `${base}.${name}`, "")?.replace(/\[`.*\./, "[`")).find(Boolean) ??
          linked(places, `Limiter.${name}`, "")?.replace(/\[`.*\./, "[`") ??
          `\`${name}\``,
      );
      parts.push(`Inherits${bases.length ? ` from ${bases.join(", ")}` : ""}${all.length ? `: ${all.join(", ")}` : ""}.`);
    }
    return parts.join("\n\n");
  }

  for (const module of plan) {
    const shown = module.name;
    const parts = [front(shown, language)];
    if (module.doc) parts.push(prose(module.doc, context));
    const groups = Map.groupBy
      ? Map.groupBy(module.items, ({ kind }) => KINDS[kind])
      : module.items.reduce((all, item) => all.set(KINDS[item.kind], [...(all.get(KINDS[item.kind]) ?? []), item]), new Map());
    if (module.items.length > 3) {
      for (const [title, items] of groups) {
        if (groups.size > 1) parts.push(`**${title}**`);
        parts.push(
          [
            "| | |",
            "| --- | --- |",
            ...items.map(
              (item) =>
                `| ${linked(places, item.name, "")?.replace(/\(.*\)/, `(${address(item.own || module.page)}${item.own ? "" : `#${item.id}`})`)} | ${first(item.doc, context)} |`,
            ),
          ].join("\n"),
        );
      }
    }
    for (const item of module.items) {
      if (item.own) pages.set(item.own, `${front(item.name, language)}\n${body(item, 2)}\n`);
      else parts.push(`## ${item.name.replaceAll("_", "\\_")} {#${item.id}}`, body(item, 3));
    }
    pages.set(module.page, `${parts.join("\n\n")}\n`);
    const own = module.items.filter(({ own }) => own).map((item) => ({ text: item.name, link: address(item.own) }));
    // The sidebar omits the package's name from its modules.
    sidebar.push({ text: shown.replace(/^workglow.limit[./]/, ""), link: address(module.page), ...(own.length ? { items: own } : {}) });
  }
  if (doc) {
    const page = `${base}index.md`;
    const list =
      modules.length > 1 ? `\n\n${plan.map(({ name, page, items }) => `* [${name}](${address(page)}): ${items.length}`).join("\n")}` : "";
    if (!pages.has(page)) {
      pages.set(page, `${front(`${TITLES[language]} reference`, language)}\n${code(fence, include)}\n\n${prose(doc, context)}${list}\n`);
      sidebar.unshift({ text: "Overview", link: address(page) });
    }
  }
  return { pages, sidebar: [{ text: `${TITLES[language]} reference`, items: sidebar }] };
}

/** Returns the page of Rust, whose reference is drawn by rustdoc. The page has the names for the search, and links. */
function rust() {
  const { items } = data.get("rust");
  const page = "reference/rust/index.md";
  const link = (text, href) => `[${text}](./api/workglow_limit/${href}){target="_self"}`;
  const places = new Places("rust");
  const parts = [
    front("workglow_limit", "rust"),
    `The pages of ${link("rustdoc", "index.html")} describe the crate. All names that are public:`,
  ];
  for (const [kind, title] of Object.entries(RUST_KINDS)) {
    const found = items.filter((item) => item.kind === kind);
    if (!found.length) continue;
    parts.push(`## ${title}`);
    for (const { name, href, doc, members } of found) {
      parts.push(`### ${name.replaceAll("_", "\\_")} {#${places.add(page, `${kind} ${name}`, name.replaceAll("::", "-"))}}`);
      if (doc) parts.push(prose(doc, { fence: "rust", places: new Map() }));
      parts.push([link(`${kind} \`${name}\``, href), ...members.map((member) => link(`\`${member.name}\``, member.href))].join(" · "));
    }
  }
  return {
    pages: new Map([[page, `${parts.join("\n\n")}\n`]]),
    sidebar: [
      {
        text: "Rust reference",
        items: [
          { text: "workglow_limit", link: address(page) },
          { text: "rustdoc", link: "/reference/rust/api/workglow_limit/index.html", target: "_self" },
        ],
      },
    ],
  };
}

/** Returns the pages, the sidebar and the first page of each language. */
export function drawn() {
  return referenced.map((language) => ({
    language,
    title: TITLES[language],
    link: `/reference/${language}/`,
    ...(language === "rust" ? rust() : draw(language)),
  }));
}

export const rustdoc = `${references}rust`;
