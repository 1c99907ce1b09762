// The site in a real browser, built as `make site` does, but without the references of Node and Rust, which take the longest.
//
// It needs the packages of site/ and Chromium (CHROMIUM=path, or one of the usual names in PATH). SITE=folder tests a site that is
// already built.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { cpSync, existsSync, mkdirSync, mkdtempSync, readFileSync, readdirSync, rmSync, symlinkSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { delimiter, join } from "node:path";
import { after, before, test } from "node:test";
import { chromium } from "playwright-core";
import { pages as guidePages, address, guides } from "../../site/build/pages.mjs";
import { slugify } from "../../site/build/markdown.mjs";
import { counts, requestsOf, rows, span, tally } from "../../site/playground/run.mjs";
import { serve } from "./server.mjs";

const root = new URL("../..", import.meta.url).pathname;
const named = (name) => process.env.PATH.split(delimiter).map((directory) => join(directory, name));
const executablePath = [process.env.CHROMIUM, ...["chromium", "chromium-browser", "google-chrome"].flatMap(named)].find(
  (path) => path && existsSync(path),
);
const skip = !executablePath
  ? "no Chromium is installed"
  : !existsSync(`${root}site/node_modules`)
    ? "no packages: npm ci --prefix site"
    : false;
const ARGS = [
  "--no-sandbox",
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
];
const PATIENCE = 60_000;
const work = `${root}target/site-test/`;
const site = process.env.SITE ?? `${work}site`;
const python = [process.env.PYTHON, `${root}target/venv/bin/python`].find((path) => path && existsSync(path));
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const record = JSON.parse(readFileSync(`${root}site/playground/traces.json`, "utf8"));

let browser;
let server;
/** Maps the address of each page to its HTML. The pages of rustdoc are left out. */
let all;

function build() {
  rmSync(work, { recursive: true, force: true });
  mkdirSync(`${work}docs`, { recursive: true });
  execFileSync("node", ["docs/api/headers.mjs", `${work}docs`], { cwd: root });
  if (python) execFileSync(python, ["docs/api/python.py", `${work}docs/python.json`], { cwd: root });
  const folders = { SITE_PAGES: `${work}pages`, SITE_OUT: site, SITE_REFERENCES: `${work}docs` };
  execFileSync("npm", ["--silent", "--prefix", "site", "run", "build"], {
    cwd: root,
    env: { ...process.env, ...folders },
    stdio: ["ignore", "ignore", "inherit"],
  });
}

before(async () => {
  if (skip) return;
  if (!process.env.SITE) build();
  const files = readdirSync(site, { recursive: true }).filter((path) => path.endsWith(".html") && !path.startsWith("reference/rust/api/"));
  all = new Map(files.map((path) => [`/${path}`, readFileSync(join(site, path), "utf8")]));
  server = await serve(site);
  browser = await chromium.launch({ executablePath, args: ARGS });
});
after(async () => {
  await browser?.close();
  server?.close();
});

/** Opens a page. `complaints` collects its errors, and each request that leaves the site. */
async function open(path, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(PATIENCE);
  page.complaints = [];
  page.on("console", (message) => ["error", "warning"].includes(message.type()) && page.complaints.push(message.text()));
  page.on("pageerror", (error) => page.complaints.push(error.message));
  page.on(
    "request",
    (request) =>
      /^(?:data:|blob:)/.test(request.url()) || request.url().startsWith(server.url) || page.complaints.push(`loads ${request.url()}`),
  );
  await page.goto(server.url + path);
  if (options.javaScriptEnabled !== false) await page.waitForFunction(() => document.querySelector("#app").__vue_app__);
  return page;
}
const close = (page) => page.context().close();

const decoded = (text) =>
  text.replaceAll("&quot;", '"').replaceAll("&#39;", "'").replaceAll("&lt;", "<").replaceAll("&gt;", ">").replaceAll("&amp;", "&");
const attributes = (html, name) => [...html.matchAll(new RegExp(`<[a-z][^>]*? ${name}="([^"]*)"`, "g"))].map(([, value]) => decoded(value));

test("every_guide_is_a_page_and_in_the_navigation", { skip }, () => {
  for (const page of guidePages.values()) assert.ok(all.has(address(page).replace(/\/$/, "/index.html")), page);
  const listed = guides().flatMap(({ items }) => items.map(({ link }) => link));
  assert.equal(new Set(listed).size, listed.length);
  assert.equal(listed.length, [...guidePages.keys()].filter((path) => path.startsWith("docs/")).length - 1);
  assert.equal(listed[0], "/guide/quickstart.html");
});

test("every_link_and_anchor_leads_somewhere", { skip }, () => {
  const ids = new Map([...all].map(([path, html]) => [path, new Set(attributes(html, "id"))]));
  const broken = [];
  for (const [path, html] of all) {
    if (path === "/404.html") continue;
    for (const link of [...attributes(html, "href"), ...attributes(html, "src")]) {
      if (/^(?:[a-z]+:|$)/i.test(link)) continue;
      const url = new URL(link, `http://site${path}`);
      const file = decodeURIComponent(url.pathname).replace(/\/$/, "/index.html");
      const isThere =
        existsSync(join(site, file)) || (file.startsWith("/reference/rust/api/") && !existsSync(join(site, "reference/rust")));
      const anchor = decodeURIComponent(url.hash.slice(1));
      if (!isThere || (anchor && ids.has(file) && !ids.get(file).has(anchor))) broken.push(`${path}: ${link}`);
    }
  }
  assert.deepEqual(broken, []);
});

test("anchors_are_those_of_code_hosts", () => {
  assert.equal(slugify("What it does beside Workglow's own"), "what-it-does-beside-workglows-own");
  assert.equal(slugify("C++"), "c");
  assert.equal(slugify("`max_executions`, and more"), "max_executions-and-more");
});

test("comments_for_the_snippet_runner_never_show", { skip }, () => {
  const shown = (html) => decoded(html.replace(/<!--[^]*?-->|<script[^]*?<\/script>|<[^>]*>/g, ""));
  for (const [path, page] of guidePages) {
    const text = shown(all.get(address(page).replace(/\/$/, "/index.html")));
    const markdown = readFileSync(root + path, "utf8");
    const visible = markdown.replace(/<!--[^]*?-->/g, "");
    assert.ok(!text.includes("<!--") || visible.includes("<!--") || path.endsWith("snippets/README.md"), path);
    for (const [, comment] of markdown.replace(/`[^`\n]*`/g, "").matchAll(/<!--([^]*?)-->/g)) {
      for (const line of comment.split("\n").filter((line) => line.trim().length > 12 && !visible.includes(line.trim()))) {
        assert.ok(!text.includes(line.trim()), `${path} shows ${line}`);
      }
    }
  }
});

test("every_page_is_sound_and_fits_a_phone", { skip }, async () => {
  const waiting = [...all.keys()].filter((path) => path !== "/404.html");
  const found = [];
  async function visitor() {
    const page = await open("/404.html", { viewport: { width: 360, height: 740 }, isMobile: true });
    // The pages that a page links to are not fetched with it: each has its own turn.
    await page.addInitScript(() => Object.defineProperty(navigator.connection, "saveData", { value: true }));
    page.complaints.length = 0;
    for (let path = waiting.pop(); path; path = waiting.pop()) {
      await page.goto(server.url + path);
      await page.locator("h1").first().waitFor({ state: "attached" });
      const seen = await page.evaluate(() => ({
        wider: document.documentElement.scrollWidth - 360,
        headings: document.querySelectorAll("h1").length,
        title: document.title,
        broken: [...document.images].filter((image) => image.complete && image.naturalWidth === 0 && image.src).map(({ src }) => src),
      }));
      if (seen.wider > 0 || seen.headings !== 1 || !seen.title.includes("workglow-limit") || seen.broken.length)
        found.push({ path, ...seen });
      found.push(...page.complaints.splice(0).map((complaint) => `${path}: ${complaint}`));
    }
    await close(page);
  }
  await Promise.all([visitor(), visitor(), visitor()]);
  assert.deepEqual(found, []);
});

const tab = (page, name) => page.getByRole("tab", { name, exact: true }).first();
const chosen = (page) =>
  page.locator(".lang-tabs").evaluateAll((groups) => groups.map((group) => group.querySelector("[aria-selected=true]").dataset.lang));

test("a_language_is_chosen_once_for_all_pages", { skip }, async () => {
  const page = await open("/guide/quickstart.html");
  await tab(page, "Node").click();
  await page.getByText("import { Store } from").first().waitFor();
  assert.equal(await page.getByText("from workglow_limit import Store").first().isVisible(), false);
  await page.locator(".VPSidebar").getByRole("link", { name: "The calls" }).click();
  await page.locator("h1", { hasText: "calls" }).waitFor();
  const onCalls = await chosen(page);
  assert.ok(onCalls.length > 0 && onCalls.every((language) => language === "js"), onCalls.join());
  await page.reload();
  await page.locator(".lang-tabs[data-active]").first().waitFor();
  assert.deepEqual(await chosen(page), onCalls);
  // A language that the page lacks is replaced by the most similar one. The arrow keys choose, too.
  await page.goto(`${server.url}/guide/quickstart.html`);
  await tab(page, "Node").focus();
  await page.keyboard.press("ArrowRight");
  await page.getByText("using permit").first().waitFor();
  assert.equal(await page.evaluate(() => document.activeElement.textContent.trim()), "TypeScript");
  await page.goto(`${server.url}/guide/calls.html`);
  await page.locator(".lang-tabs[data-active]").first().waitFor();
  assert.deepEqual(await chosen(page), onCalls);
  await page.getByLabel("Examples in").selectOption("Python");
  assert.ok((await chosen(page)).every((language) => language === "python"));
  assert.deepEqual(page.complaints, []);
  await close(page);
});

test("the_chosen_language_is_drawn_first", { skip }, async () => {
  const page = await open("/guide/quickstart.html");
  await tab(page, "Rust").click();
  // The head's script and the style choose the panel before the page's own script runs.
  await page.route("**/assets/**.js", (route) => route.abort());
  await page.reload();
  assert.equal(await page.locator('[data-panel="rust"]').first().isVisible(), true);
  assert.equal(await page.locator('[data-panel="python"]').first().isVisible(), false);
  await close(page);
  const plain = await open("/guide/quickstart.html", { javaScriptEnabled: false });
  for (const language of ["python", "js", "rust"])
    assert.equal(await plain.locator(`[data-panel="${language}"]`).first().isVisible(), true);
  await close(plain);
});

test("a_link_into_a_tab_opens_it", { skip }, async () => {
  const page = await open("/guide/quickstart.html#c-1");
  await page.getByText("workglow_limit.hpp").first().waitFor();
  assert.equal(await tab(page, "C++").getAttribute("aria-selected"), "true");
  await page.locator(".vp-doc").getByRole("link", { name: "Rust", exact: true }).first().click();
  await page.getByText("use workglow_limit").first().waitFor();
  // The link changed no choice.
  assert.equal(await page.evaluate(() => document.documentElement.dataset.language), "python");
  await close(page);
});

test("code_in_two_languages_becomes_tabs", { skip }, () => {
  const html = all.get("/guide/calls.html");
  assert.match(html, /class="lang-tabs code" data-langs="python js"/);
  // A program and its output are no group.
  assert.doesNotMatch(html, /data-langs="[^"]*(?:text|sh|toml)/);
});

test("the_search_finds_guides_and_calls", { skip }, async () => {
  const page = await open("/guide/celery.html");
  const search = page.locator("#localsearch-input");
  const results = page.locator(".VPLocalSearchBox .result");
  async function find(text, address) {
    await page.keyboard.press("Control+k");
    await search.fill(text);
    await page.waitForFunction(
      (part) => [...document.querySelectorAll(".VPLocalSearchBox .result")].slice(0, 5).some(({ href }) => href.includes(part)),
      address,
    );
    await page.keyboard.press("Escape");
    await results.first().waitFor({ state: "detached" });
  }
  await find("token bucket", "/guide/limiters.html#token-bucket");
  await find("wgl_settle", "/reference/c/functions.html#wgl_settle");
  await find("record_job_start", "/reference/");
  if (python) await find("try_acquire_async", "/reference/python/Limiter.html#try_acquire_async");
  await page.keyboard.press("Control+k");
  await search.fill("wgl_settle");
  await page.waitForFunction(() => document.querySelector(".VPLocalSearchBox .result.selected")?.href.includes("wgl_settle"));
  await page.keyboard.press("Enter");
  await page.waitForURL(/wgl_settle/);
  await search.waitFor({ state: "detached" });
  assert.deepEqual(page.complaints, []);
  await close(page);
});

test("dark_mode_is_kept", { skip }, async () => {
  const page = await open("/guide/limiters.html", { colorScheme: "light" });
  const ground = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const light = await ground();
  await page.locator(".VPNavBarAppearance").getByRole("switch").click();
  await page.locator("html.dark").waitFor();
  assert.notEqual(await ground(), light);
  await page.reload();
  await page.locator("html.dark").waitFor();
  await close(page);
  const night = await open("/", { colorScheme: "dark" });
  await night.locator("html.dark").waitFor();
  await close(night);
});

async function violations(page) {
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() =>
    globalThis.axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"] }),
  );
  return violations.map(
    ({ id, nodes }) =>
      `${id}: ${nodes
        .slice(0, 3)
        .map(({ target, failureSummary }) => `${target} ${failureSummary.split("\n")[1]}`)
        .join("; ")}`,
  );
}

test("axe_finds_nothing", { skip, timeout: 120_000 }, async () => {
  const paths = ["/", "/guide/quickstart.html", "/guide/limiters.html", "/reference/cpp/Permit.html", "/playground.html"];
  const found = {};
  await Promise.all(
    ["light", "dark"].map(async (colorScheme) => {
      const page = await open("/404.html", { colorScheme, reducedMotion: "reduce" });
      // Long pages take seconds each, and have nothing that is special in the dark.
      for (const path of paths.filter((path) => colorScheme === "light" || !path.includes("limiters"))) {
        await page.goto(server.url + path);
        if (path.includes("playground")) await page.locator(".chart svg").waitFor();
        const all = await violations(page);
        if (all.length) found[`${path} ${colorScheme}`] = all;
      }
      await close(page);
    }),
  );
  assert.deepEqual(found, {});
});

// ---- the playground ----

const runs = record.kinds.flatMap((kind) =>
  ["wait", "deny"].flatMap((callers) => record.loads.flatMap((_, a) => record.loads.map((_, b) => ({ kind, callers, a, b })))),
);

test("no_recorded_run_exceeds_its_bound", () => {
  assert.equal(runs.length, Object.keys(record.traces).length);
  for (const { kind, callers, a, b } of runs) {
    const { requests, used } = requestsOf(record, kind.name, callers, a, b);
    const of = `${kind.name} ${callers} ${a} ${b}`;
    const starts = requests.filter(({ isStart }) => isStart).map(({ at }) => at);
    assert.ok(Math.max(0, ...counts(starts, span(record, kind)).map(([, count]) => count)) <= kind.bound, of);
    assert.ok(Math.max(...used) <= kind.limit, of);
    assert.equal(used.length, record.length / record.sample + 1);
    const { asked, started, denied, waiting, longest } = tally(requests);
    assert.deepEqual([started + denied, waiting], [asked, 0], of);
    assert.ok(longest <= record.timeout && (callers === "wait" || longest === 0), of);
    const { placed, count } = rows(requests, 20, 0);
    assert.ok(placed.every(({ row }) => row < count));
  }
});

const number = async (page, is) => Number((await page.locator(`[data-is="${is}"]`).textContent()).match(/\d+/)[0]);

test("the_playground_plays_pauses_and_is_scrubbed", { skip }, async () => {
  const page = await open("/playground.html");
  const clock = page.getByRole("slider", { name: "Time" });
  const button = page.getByRole("button", { name: /^(Play|Pause)$/ });
  const at = async () => Number(await clock.inputValue());
  await page.waitForFunction(() => document.querySelector("[type=range]")?.value > 300);
  await button.click();
  assert.equal((await button.textContent()).trim(), "Play");
  const paused = await at();
  await page.waitForTimeout(150);
  assert.equal(await at(), paused);
  // At the end the numbers are those of the record.
  await clock.focus();
  await page.keyboard.press("End");
  const { requests } = requestsOf(record, "rate", "wait", 2, 4);
  const { started, denied } = tally(requests);
  assert.deepEqual([await number(page, "started"), await number(page, "denied")], [started, denied]);
  // A moment in the middle has fewer, and stays while the limiter changes.
  await page.keyboard.press("Home");
  for (let i = 0; i < 40; i++) await page.keyboard.press("ArrowRight");
  assert.equal(await at(), 2000);
  const middle = tally(requests, 2000);
  assert.deepEqual([await number(page, "started"), await number(page, "waiting")], [middle.started, middle.waiting]);
  await page.getByRole("radio", { name: "Fixed window" }).check();
  assert.equal(await at(), 2000);
  assert.equal(await number(page, "started"), tally(requestsOf(record, "fixed-window", "wait", 2, 4).requests, 2000).started);
  assert.ok(page.url().endsWith("#fixed-window,2,4,wait"));
  assert.deepEqual(page.complaints, []);
  await close(page);
});

test("the_playground_shows_every_limiter", { skip }, async () => {
  const page = await open("/playground.html", { reducedMotion: "reduce" });
  const clock = page.getByRole("slider", { name: "Time" });
  await clock.waitFor();
  // With reduced motion nothing plays automatically.
  assert.equal(Number(await clock.inputValue()), record.length);
  await page.getByRole("combobox", { name: "Worker A" }).selectOption({ index: 3 });
  await page.getByRole("radio", { name: "are denied" }).check();
  const explained = new Set(attributes(all.get("/guide/limiters.html"), "id"));
  for (const kind of record.kinds) {
    assert.ok(explained.has(kind.name), kind.name);
    await page.getByRole("radio", { name: kind.title, exact: true }).check();
    const { requests } = requestsOf(record, kind.name, "deny", 3, 4);
    assert.equal(await number(page, "started"), tally(requests).started);
    assert.ok((await number(page, "most")) <= kind.bound);
    await page.getByRole("img", { name: `${kind.title}, ${kind.policy}.` }).waitFor();
    assert.equal(await page.locator(".chart .denied").count(), tally(requests).denied);
  }
  // The address leads to the same run. The arrow keys choose the limiter.
  const address = page.url();
  await page.goto(`${server.url}/`);
  await page.goto(address);
  await page.getByRole("radio", { name: "Concurrency" }).waitFor();
  assert.equal(await page.getByRole("radio", { name: "Concurrency" }).isChecked(), true);
  await page.getByRole("radio", { name: "Concurrency" }).focus();
  await page.keyboard.press("ArrowLeft");
  assert.equal(await page.getByRole("radio", { name: "Sliding window counter" }).isChecked(), true);
  assert.deepEqual(page.complaints, []);
  await close(page);
});

test("what_is_focused_shows_it", { skip }, async () => {
  const page = await open("/playground.html", { reducedMotion: "reduce" });
  await page.locator(".chart svg").waitFor();
  for (let i = 0; i < 18; i++) {
    await page.keyboard.press("Tab");
    const shown = await page.evaluate(() => {
      const focused = document.activeElement;
      const style = getComputedStyle(focused.matches("[type=radio]") ? focused.nextElementSibling : focused);
      return focused === document.body || style.outlineStyle !== "none" || focused.outerHTML;
    });
    assert.equal(shown, true);
  }
  await close(page);
});

test("the_programs_of_the_home_page_share_a_limit", (t) => {
  const packages = `${root}target/demo/node_modules`;
  if (!python || !existsSync(`${packages}/workglow-limit`)) return t.skip("the packages are not built: make dist");
  const directory = mkdtempSync(join(tmpdir(), "workglow-limit-site-"));
  cpSync(`${root}site/home`, directory, { recursive: true });
  symlinkSync(packages, join(directory, "node_modules"));
  const run = (program, file) => execFileSync(program, [file], { cwd: directory, encoding: "utf8" });
  assert.equal(run(python, "app.py"), "HELLO\n99 left\n");
  assert.equal(run("node", "app.mjs"), "HELLO\n98 left\n");
  rmSync(directory, { recursive: true });
});
