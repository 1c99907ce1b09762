// Writes the public names of the crate as data, with links into the pages of rustdoc: docs/api/rust.mjs DIRECTORY FILE.

import { readFileSync, writeFileSync } from "node:fs";

const [directory, file] = process.argv.slice(2);
const read = (name) => readFileSync(`${directory}/workglow_limit/${name}`, "utf8");
const plain = (html) =>
  html
    .replaceAll("&quot;", '"')
    .replaceAll("&#39;", "'")
    .replaceAll("&#x27;", "'")
    .replaceAll("&lt;", "<")
    .replaceAll("&gt;", ">")
    .replaceAll("&amp;", "&");

const items = [...read("all.html").matchAll(/<a href="((?:[\w]+\/)*(\w+)\.(\w+)\.html)">/g)].map(([, href, kind, name]) => {
  const page = read(href);
  const own = page.split(/id="(?:trait-implementations|implementors)"/)[0];
  const members = [...own.matchAll(/ id="((?:ty)?method|variant|structfield|associatedconstant)\.(\w+)"/g)].map(([, kind, name]) => ({
    name,
    href: `${href}#${kind}.${name}`,
  }));
  const doc = plain(page.match(/<meta name="description" content="([^"]*)"/)[1]);
  const path = href.split("/").slice(0, -1);
  return { name: [...path, name].join("::"), kind, href, doc: doc.startsWith("API documentation for the Rust") ? "" : doc, members };
});
if (!items.length) throw new Error(`${directory} describes nothing`);
// The root is what programs need to limit their own calls; everything else is in a module.
const root = items.filter(({ name }) => !name.includes("::"));
if (root.length > 34) throw new Error(`the root of the crate has ${root.length} names instead of 34: put new ones into a module of lib.rs`);
writeFileSync(file, JSON.stringify({ title: "Rust", fence: "rust", items }, null, 1));
