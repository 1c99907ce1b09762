import { defineConfig } from "vitepress";
import { LANGUAGES } from "../build/languages.mjs";
import { plugin, slugify } from "../build/markdown.mjs";
import { built, guides, project, repository, root, staged, version } from "../build/pages.mjs";
import { drawn } from "../build/reference.mjs";

const references = drawn();
const guide = [...guides(), { text: "The project", items: project }];

/** Returns words and whole names: `try`, `acquire` and `try_acquire` all find `try_acquire`. */
function tokenize(text) {
  const words = text.split(/[\n\r\p{Z}\p{P}\p{S}]+/u);
  const names = text.match(/\w*[a-z0-9](?:_\w+|[A-Z]\w*)/g) ?? [];
  const parts = names.flatMap((name) => (name.includes("_") ? [] : (name.match(/[A-Z]?[a-z]+/g) ?? [])));
  return [...words, ...names, ...parts].filter(Boolean);
}

/** Ranks an exact name above longer ones, and guides above references. */
function boostDocument(id, term, { title }) {
  return (title.toLowerCase() === term ? 3 : 1) * (id.includes("/guide/") ? 1.6 : 1);
}

/** Renders a page for the search, which needs no colours: they take most of the time. */
function rendered(text, env, md) {
  const { highlight } = md.options;
  md.options.highlight = (code) => `<pre><code>${md.utils.escapeHtml(code)}</code></pre>`;
  try {
    return md.render(text, env);
  } finally {
    md.options.highlight = highlight;
  }
}

/** Adds the main landmark to pages whose layout has none. */
const withMain = (html) => (html.includes("<main") ? html : html.replace(/ id="VPContent"/, ' id="VPContent" role="main"'));

export default defineConfig({
  title: "workglow-limit",
  description: "One rate limit for Python, Node, C, C++ and Rust, shared by all processes and never exceeded",
  srcDir: staged,
  srcExclude: ["public/**"],
  outDir: built,
  cacheDir: `${root}target/site-cache`,
  base: process.env.BASE ?? "/",
  head: [
    ["link", { rel: "icon", href: `${process.env.BASE ?? "/"}icon.svg`, type: "image/svg+xml" }],
    ["meta", { name: "theme-color", content: "#3451b2" }],
    // The language is known before the first paint, so that no page changes it while it loads.
    [
      "script",
      {},
      `document.documentElement.dataset.language = (() => { try { return localStorage.getItem("workglow-limit-language") } catch {} })() ?? ${JSON.stringify(Object.keys(LANGUAGES)[0])}`,
    ],
  ],
  markdown: {
    theme: { light: "github-light-high-contrast", dark: "github-dark-high-contrast" },
    anchor: { slugify },
    image: { lazyLoading: true },
    config: (md) => void md.use(plugin),
  },
  transformHtml: withMain,
  // rustdoc draws its own pages.
  ignoreDeadLinks: [/^\.\/api\//],
  vite: {
    publicDir: `${staged}public`,
    build: { chunkSizeWarningLimit: 4096 },
    logLevel: "warn",
  },
  themeConfig: {
    version,
    nav: [
      { text: "Guides", link: "/guide/quickstart.html", activeMatch: "^/(guide/|overview|architecture|contributing|changelog|security)" },
      ...(references.length
        ? [{ text: "Reference", activeMatch: "^/reference/", items: references.map(({ title, link }) => ({ text: title, link })) }]
        : []),
      { text: "Playground", link: "/playground.html" },
    ],
    sidebar: {
      ...Object.fromEntries(references.map(({ link, sidebar }) => [link, sidebar])),
      "/": guide,
    },
    outline: { level: [2, 3], label: "On this page" },
    socialLinks: repository ? [{ icon: "github", link: repository, ariaLabel: "The sources" }] : [],
    search: {
      provider: "local",
      options: {
        detailedView: false,
        _render: rendered,
        miniSearch: {
          options: { tokenize },
          searchOptions: { boostDocument, fuzzy: 0.15, prefix: true, boost: { title: 6, titles: 2, text: 1 }, combineWith: "AND" },
        },
      },
    },
    docFooter: { prev: "Previous", next: "Next" },
    footer: { message: "MIT or Apache-2.0" },
  },
});
