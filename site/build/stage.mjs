// Collects the site's pages in target/site-pages: the guides as they are, the references, the pictures, and the pages of this folder.

import { cpSync, existsSync, mkdirSync, readFileSync, readdirSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { dirname } from "node:path";
import { pages, root, staged } from "./pages.mjs";
import { drawn, rustdoc } from "./reference.mjs";

function write(page, text) {
  mkdirSync(dirname(staged + page), { recursive: true });
  writeFileSync(staged + page, text);
}

/** Returns a program of the home page, which the tests run. */
const code = (file) => `\`\`\`${file.endsWith(".py") ? "python" : "js"}\n${readFileSync(`${root}site/home/${file}`, "utf8")}\`\`\``;

rmSync(staged, { recursive: true, force: true });
for (const [path, page] of pages) write(page, readFileSync(root + path, "utf8"));
for (const name of readdirSync(`${root}site/pages`)) {
  const text = readFileSync(`${root}site/pages/${name}`, "utf8");
  write(
    name,
    text.replace(/^<!-- code: (\S+) -->$/gm, (_, file) => code(file)),
  );
}
for (const reference of drawn()) for (const [page, text] of reference.pages) write(page, text);

// The pages import packages from their own folder.
symlinkSync(`${root}site/node_modules`, `${staged}node_modules`);

const isPicture = (path) => !/\.[a-z]+$/.test(path) || /\.(svg|png)$/.test(path);
cpSync(`${root}docs`, `${staged}public/docs`, {
  recursive: true,
  filter: (path) => isPicture(path) && !/\/(api|design|grafana)$/.test(path),
});
cpSync(`${root}site/public`, `${staged}public`, { recursive: true });
if (existsSync(rustdoc)) cpSync(rustdoc, `${staged}public/reference/rust/api`, { recursive: true });
