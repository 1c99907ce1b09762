// The page of `workglow-limit serve` in a real browser, with a real server: other processes obey the changes made there.
//
// The tests need Chromium (CHROMIUM=path, or a usual name in PATH) and the command (BIN=path, or the binary that cargo built), and are
// skipped without them.
import assert from "node:assert/strict";
import { execFileSync, spawn, spawnSync } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { delimiter, join } from "node:path";
import { createInterface } from "node:readline";
import { after, afterEach, before, beforeEach, test } from "node:test";
import { chromium } from "playwright-core";

const root = new URL("../..", import.meta.url).pathname;
const named = (name) => process.env.PATH.split(delimiter).map((directory) => join(directory, name));
const executablePath = [process.env.CHROMIUM, ...["chromium", "chromium-browser", "google-chrome"].flatMap(named)].find(
  (path) => path && existsSync(path),
);
const target = process.env.CARGO_TARGET_DIR ?? join(root, "target");
const bin = [process.env.BIN, join(target, "debug/workglow-limit"), join(target, "release/workglow-limit")].find(
  (path) => path && existsSync(path),
);
const skip = !executablePath ? "no Chromium is installed" : !bin ? "the command is not built: cargo build -p workglow-limit-cli" : false;

const ARGS = [
  "--no-sandbox",
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
];
const HOSTILE = `<img src=x onerror="document.title='hacked'">`;
const LIMITS = `[mail]\nallowed = 100\nperiod = "1h"\n["openai"]\nallowed = 20\nperiod = "1m"\n[${JSON.stringify(HOSTILE)}]\nallowed = 7\nperiod = "1m"\n`;
const PATIENCE = 60_000;

let browser;
let directory;
let store;
let server;
let context;
let page;
let complaints;

before(async () => {
  if (!skip) browser = await chromium.launch({ executablePath, args: ARGS, timeout: PATIENCE });
});
after(() => browser?.close());

/** Runs the command, and returns its JSON. The exit code is ignored, because `peek` exits with 4 for a denial. */
const run = (...args) => JSON.parse(spawnSync(bin, ["--json", "--store", store, ...args], { encoding: "utf8" }).stdout);

async function serve(args = [], listen = "127.0.0.1:0") {
  const child = spawn(bin, ["--json", "--store", store, "serve", "--listen", listen, ...args], { stdio: ["ignore", "pipe", "inherit"] });
  const said = await new Promise((started, failed) => {
    createInterface({ input: child.stdout }).once("line", (line) => started(JSON.parse(line)));
    child.once("exit", (code) => failed(new Error(`serve ended with ${code}`)));
  });
  return { child, ...said, end: () => new Promise((ended) => child.once("exit", ended) && child.kill("SIGTERM")) };
}

async function open(options = {}) {
  context = await browser.newContext({ viewport: { width: 1280, height: 800 }, ...options });
  page = await context.newPage();
  page.setDefaultTimeout(PATIENCE);
  // Every error on the console, including violations of the content security policy, is a fault of the page.
  page.on("console", (message) => message.type() === "error" && complaints.push(message.text()));
  page.on("pageerror", (error) => complaints.push(error.message));
  return page;
}

beforeEach(async () => {
  if (skip) return;
  complaints = [];
  directory = mkdtempSync(join(tmpdir(), "workglow-limit-page-"));
  store = `sqlite:${join(directory, "limits.db")}`;
  writeFileSync(join(directory, "limits.toml"), LIMITS);
  execFileSync(bin, ["--store", store, "load", "--create", join(directory, "limits.toml")]);
});

afterEach(async () => {
  if (skip) return;
  await context?.close();
  if (server?.child.exitCode === null) await server.end();
  rmSync(directory, { recursive: true, force: true });
});

const row = (name) => page.getByRole("option", { name: new RegExp(`^${name} `) });

test("an override made in the browser is obeyed by another process, until it is lifted", { skip }, async () => {
  server = await serve();
  await open();
  await page.goto(`${server.listening}#token=${server.token}`);
  await row("openai").click();
  assert.ok(!page.url().includes("token"), "the token leaves the address");
  assert.ok(page.url().endsWith("#limit=openai"));
  await page.getByRole("button", { name: "Override" }).click();
  await page.getByLabel("Policy").fill("3 per minute");
  await page.locator("#confirm").click();
  await page.getByText("declared: 20/1m").waitFor();
  assert.equal(run("peek", "openai").limit, 3);
  // An invalid policy shows the server's message, and the dialog stays open.
  await page.getByRole("button", { name: "Override" }).click();
  await page.getByLabel("Policy").fill("3/1x");
  await page.locator("#confirm").click();
  await page.locator("#dialog-error", { hasText: 'policy is "3/1x"' }).waitFor();
  await page.getByRole("button", { name: "Cancel" }).click();
  await page.getByRole("button", { name: "Lift" }).click();
  await page.locator("#confirm").click();
  await page.getByText("declared: 20/1m").waitFor({ state: "hidden" });
  assert.equal(run("peek", "openai").limit, 20);
  assert.deepEqual(
    complaints.filter((text) => !text.includes("400")),
    [],
  );
});

test("changes need the token", { skip }, async () => {
  server = await serve();
  await open();
  await page.goto(`${server.listening}#limit=mail`);
  await page.getByRole("button", { name: "Pause" }).click();
  await page.getByRole("textbox", { name: "Token" }).fill("not-the-token-but-something");
  await page.locator("#confirm").click();
  await page.locator("#dialog-error", { hasText: "token" }).waitFor();
  assert.ok(run("peek", "mail").admitted);
  await page.getByRole("textbox", { name: "Token" }).fill(server.token);
  await page.locator("#confirm").click();
  await row("mail").getByText("paused").waitFor();
  assert.ok(!run("peek", "mail").admitted);
  // A page of another origin in the same browser cannot make requests, not even with the token.
  const other = await context.newPage();
  await other.route("http://evil.example/", (route) => route.fulfill({ contentType: "text/html", body: "<p>evil" }));
  await other.goto("http://evil.example/");
  const refused = await other.evaluate(
    async ([url, token]) => {
      const change = {
        method: "POST",
        headers: { Authorization: `Bearer ${token}`, "Content-Type": "application/json" },
        body: `{"limit":"openai","policy":"1/1h"}`,
      };
      const plain = { method: "POST", mode: "no-cors", body: `{"limit":"openai","policy":"1/1h"}` };
      const asked = [
        fetch(`${url}api/snapshot`),
        fetch(`${url}api/override`, change),
        fetch(`${url}api/override`, plain).then((answer) => answer.type),
      ];
      return (await Promise.allSettled(asked)).map((one) => one.value ?? "refused");
    },
    [server.listening, server.token],
  );
  assert.deepEqual(refused.slice(0, 2), ["refused", "refused"]);
  assert.equal(run("peek", "openai").limit, 20);
});

test("the keyboard is enough", { skip }, async () => {
  server = await serve();
  await open();
  await page.goto(`${server.listening}#token=${server.token}`);
  await row("mail").waitFor();
  await page.keyboard.press("/");
  await page.keyboard.type("open");
  await page.waitForFunction(() => document.querySelectorAll("[role=option]").length === 1);
  await page.keyboard.press("ArrowDown");
  await page.getByRole("heading", { level: 2, name: "openai" }).waitFor();
  assert.equal(await row("openai").getAttribute("aria-selected"), "true");
  await page.getByRole("button", { name: "Override" }).waitFor();
  await page.keyboard.press("o");
  await page.getByRole("dialog", { name: "Override openai" }).waitFor();
  await page.keyboard.press("Escape");
  await page.getByRole("dialog").waitFor({ state: "hidden" });
  await page.keyboard.press("o");
  await page.keyboard.type("5/1m");
  await page.keyboard.press("Enter");
  await page.getByText("declared: 20/1m").waitFor();
  assert.equal(run("peek", "openai").limit, 5);
  // (The page may hear of the change before it has the answer.)
  await page.getByRole("dialog").waitFor({ state: "hidden" });
  await page.keyboard.press("Escape");
  await page.locator("#panel").waitFor({ state: "hidden" });
  // Without a limit, there is nothing to change.
  for (const key of ["o", "l", "p"]) await page.keyboard.press(key);
  assert.equal(await page.getByRole("dialog").isVisible(), false);
  // The focus is always visible.
  for (let i = 0; i < 12; i++) {
    await page.keyboard.press("Tab");
    const shown = await page.evaluate(() => {
      const focused = document.activeElement;
      const style = getComputedStyle(focused.matches("[type=radio]") ? focused.nextElementSibling : focused);
      return focused === document.body || style.outlineStyle !== "none" || focused.outerHTML;
    });
    assert.equal(shown, true);
  }
  assert.deepEqual(complaints, []);
});

test("nothing on the page hinders assistive technology", { skip }, async () => {
  run("override", "mail", "50/1h");
  run("pause", "openai", "1h");
  server = await serve();
  const source = readFileSync(new URL("node_modules/axe-core/axe.min.js", import.meta.url), "utf8");
  for (const [width, colorScheme] of [
    [1280, "light"],
    [1280, "dark"],
    [360, "light"],
  ]) {
    await open({ viewport: { width, height: 800 }, colorScheme, reducedMotion: "reduce" });
    const check = async (what) => {
      await page.evaluate(source);
      const { violations } = await page.evaluate(() => globalThis.axe.run({ rules: { "label-content-name-mismatch": { enabled: true } } }));
      const found = violations.map((rule) => `${rule.id}: ${rule.nodes.map((node) => `${node.html} ${node.failureSummary}`).join("; ")}`);
      assert.deepEqual(found, [], `${what}, ${colorScheme} at ${width}`);
    };
    await page.goto(`${server.listening}#token=${server.token}`);
    await row("openai").waitFor();
    await check("the list");
    await row("mail").click();
    await page.locator(".plot").first().waitFor();
    await check("a limit");
    await page.getByRole("button", { name: "Override" }).click();
    await page.getByRole("dialog").waitFor();
    await check("the dialog");
    await context.close();
  }
});

test("hostile names are shown as text", { skip }, async () => {
  server = await serve(["--read-only"]);
  await open();
  await page.goto(server.listening);
  await page.getByText(HOSTILE).first().click();
  await page.getByRole("heading", { level: 2, name: HOSTILE }).waitFor();
  await page.locator(".plot").first().waitFor();
  assert.equal(await page.locator("img").count(), 0);
  assert.ok(!(await page.title()).includes("hacked"));
  assert.ok(await page.locator("#read-only").isVisible());
  assert.equal(await page.getByRole("button", { name: "Override" }).isVisible(), false);
  // The URL leads to the limit.
  await page.reload();
  await page.getByRole("heading", { level: 2, name: HOSTILE }).waitFor();
  await page.goto(`${server.listening}#limit=nowhere`);
  await page.getByText("has no limit “nowhere”").waitFor();
  assert.deepEqual(complaints, []);
});

test("a missing store and a stopped server are shown, and the page reconnects", { skip }, async () => {
  server = await serve();
  await open();
  await page.goto(server.listening);
  await page.getByText("Live").waitFor();
  const files = ["limits.db", "limits.db-lane"].map((name) => join(directory, name));
  for (const file of files) renameSync(file, `${file}.kept`);
  await page.getByText("The store does not respond").waitFor();
  for (const file of files) renameSync(`${file}.kept`, file);
  await page.getByText("The store does not respond").waitFor({ state: "hidden" });
  await page.getByText("Live").waitFor();
  await server.end();
  await page.getByText("Lost, retry in").waitFor();
  server = await serve([], new URL(server.listening).host);
  await page.getByText("Live").waitFor();
});

test("a narrow screen shows the list or a limit, and nothing overflows", { skip }, async () => {
  server = await serve();
  for (const [width, height] of [
    [360, 740],
    [768, 1024],
    [1440, 900],
  ]) {
    await open({ viewport: { width, height }, colorScheme: width === 768 ? "dark" : "light" });
    await page.goto(server.listening);
    await row("mail").click();
    await page.locator(".plot").first().waitFor();
    assert.equal(await page.locator("#limits").isVisible(), width > 999);
    const wider = await page.evaluate(() =>
      [document.documentElement, document.querySelector("#panel")].map((one) => one.scrollWidth - one.clientWidth),
    );
    assert.deepEqual(wider, [0, 0], `at ${width}`);
    if (width < 1000) {
      await page.getByRole("button", { name: "All limits" }).click();
      await row("openai").waitFor();
    }
    assert.deepEqual(complaints, []);
    await context.close();
  }
});

test("a part is shown beside the other parts of its limit, and leads to them", { skip }, async () => {
  writeFileSync(join(directory, "parts.toml"), 'llm = "requests: 9/1h + tokens: 100/1h + 5 concurrent"\n');
  execFileSync(bin, ["--store", store, "load", join(directory, "parts.toml")]);
  server = await serve();
  await open();
  await page.goto(`${server.listening}#limit=${encodeURIComponent("llm/requests")}`);
  await page.getByRole("heading", { name: "Parts of llm" }).waitFor();
  const parts = page.locator("section.block", { hasText: "Parts of llm" });
  assert.deepEqual(await parts.locator("tbody tr td:first-child").allTextContents(), ["concurrency", "requests", "tokens"]);
  await parts.getByText(/^0 \/ 100 in /).waitFor();
  assert.equal(await parts.getByRole("link", { name: "requests" }).count(), 0, "it is shown already");
  await parts.getByRole("link", { name: "tokens" }).click();
  await page.getByRole("heading", { name: "llm/tokens" }).waitFor();
  await parts.getByRole("link", { name: "requests" }).waitFor();
  await page.locator("#search").fill("mail");
  await row("mail").click();
  await page.getByText("100/1h").first().waitFor();
  await page.getByRole("heading", { name: "Parts of llm" }).waitFor({ state: "hidden" });
  assert.deepEqual(complaints, []);
});

test("ten thousand limits are paged and searchable", { skip }, async () => {
  const all = Array.from({ length: 10_000 }, (_, i) => `["tenant-${String(i).padStart(5, "0")}"]\nallowed = 100\nperiod = "1m"\n`);
  writeFileSync(join(directory, "limits.toml"), all.join(""));
  execFileSync(bin, ["--store", store, "load", join(directory, "limits.toml")]);
  server = await serve();
  await open();
  await page.goto(`${server.listening}#sort=name`);
  await page.getByText("1–50 of 10,003").waitFor();
  await page.getByRole("button", { name: "Next page" }).click();
  await page.getByText("51–100 of 10,003").waitFor();
  assert.equal(await page.getByRole("option").count(), 50);
  await page.getByLabel("Search limits by name").fill("TENANT-04242");
  await row("tenant-04242").click();
  await page.locator(".plot").first().waitFor();
  assert.deepEqual(complaints, []);
});

test("the page asks for the token for reading", { skip }, async () => {
  const token = "a-token-for-reading-0123456789";
  writeFileSync(join(directory, "token"), token);
  server = await serve(["--read-token-file", join(directory, "token"), "--read-only"]);
  await open();
  await page.goto(server.listening);
  await page.getByRole("dialog", { name: "A token is needed" }).waitFor();
  await page.getByRole("textbox", { name: "Token" }).fill(token);
  await page.keyboard.press("Enter");
  await row("mail").waitFor();
});
