import { defineConfig } from "vitepress";
import { LANGUAGES } from "../build/languages.mjs";
import { plugin, slugify } from "../build/markdown.mjs";
import { guides, project, repository, root, version } from "../build/pages.mjs";
import { drawn } from "../build/reference.mjs";

const references = drawn();
const guide = [...guides(), { text: "The project", items: project }];

/** Words, and the names that they are parts of: `try_acquire` is found by `try`, by `acquire` and by itself. */
function tokenize(text) {
  const words = text.split(/[\n\r\p{Z}\p{P}\p{S}]+/u);
  const names = text.match(/\w*[a-z0-9](?:_\w+|[A-Z]\w*)/g) ?? [];
  return [...words, ...names, ...names.flatMap((name) => name.match(/[A-Z]?[a-z]+/g) ?? [])].filter(Boolean);
}

export default defineConfig({
  title: "workglow-limit",
  description: "One rate limit for Python, Node, C, C++ and Rust, shared by all processes and never exceeded",
  srcDir: "../target/site-pages",
  outDir: `${root}target/site`,
  cacheDir: `${root}target/site-cache`,
  base: process.env.BASE ?? "/",
  head: [
    ["link", { rel: "icon", href: `${process.env.BASE ?? "/"}icon.svg`, type: "image/svg+xml" }],
    ["meta", { name: "theme-color", content: "#3451b2" }],
    // Before anything is drawn, so that no page shows one language first and then another.
    ["script", {}, `document.documentElement.dataset.language = (() => { try { return localStorage.getItem("workglow-limit-language") } catch {} })() ?? ${JSON.stringify(Object.keys(LANGUAGES)[0])}`],
  ],
  markdown: {
    theme: { light: "github-light-high-contrast", dark: "github-dark-high-contrast" },
    anchor: { slugify },
    image: { lazyLoading: true },
    config: (md) => void md.use(plugin),
  },
  // rustdoc draws its own pages.
  ignoreDeadLinks: [/^\/reference\/rust\/api\//],
  vite: {
    publicDir: `${root}target/site-pages/public`,
    build: { chunkSizeWarningLimit: 4096 },
    logLevel: "warn",
  },
  themeConfig: {
    version,
    nav: [
      { text: "Guides", link: "/guide/quickstart.html", activeMatch: "^/(guide/|overview|architecture|contributing|changelog)" },
      ...(references.length ? [{ text: "Reference", activeMatch: "^/reference/", items: references.map(({ title, link }) => ({ text: title, link })) }] : []),
      { text: "Playground", link: "/playground.html" },
    ],
    sidebar: {
      ...Object.fromEntries(references.map(({ link, sidebar }) => [link, sidebar])),
      "/": guide,
    },
    outline: { level: [2, 3], label: "On this page" },
    socialLinks: [{ icon: "github", link: repository, ariaLabel: "The sources" }],
    search: {
      provider: "local",
      options: {
        detailedView: false,
        miniSearch: { options: { tokenize }, searchOptions: { fuzzy: 0.15, prefix: true, boost: { title: 6, titles: 2, text: 1 }, combineWith: "AND" } },
      },
    },
    docFooter: { prev: "Previous", next: "Next" },
    footer: { message: "MIT or Apache-2.0" },
  },
});
