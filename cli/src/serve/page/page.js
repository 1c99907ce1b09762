// The list of limits, and the state of the page.
import { brief, count, level, make, overridden, pace, set, spark, time, windowed } from "./draw.js";
import { Panel } from "./panel.js";
import { Stream } from "./stream.js";

const PAGE = 50;
const $ = (id) => document.getElementById(id);
const list = $("list");

const address = new URLSearchParams(location.hash.slice(1));
/** The requested data. It is kept in the URL, so that a link leads to it. */
const state = { search: address.get("search") ?? "", sort: address.get("sort") ?? "fullest", offset: 0, chosen: address.get("limit") };
/** The last event of the server. */
let seen = null;
let hello = null;
let sparks = new Map();
const rows = new Map();

const panel = new Panel($("panel"), {
  close: () => choose(null),
  say,
  takesChanges: () => hello?.takes_changes ?? false,
});
const stream = new Stream(received, changed);

function say(text) {
  set($("said"), text);
}

// ---- events of the server ----

function received(name, data) {
  if (name === "hello") {
    hello = data;
    $("read-only").hidden = data.takes_changes;
    panel.allow();
  } else if (name === "trouble") {
    trouble(data.error);
  } else if (name === "look") {
    if (data.sparks) sparks = new Map(data.sparks);
    if (!$("trouble").hidden) say("The store responds again.");
    $("trouble").hidden = true;
    connection("live", "Live");
    seen = data;
    draw();
    if (state.chosen) panel.take(state.chosen, data);
  }
}

function trouble(error) {
  connection("trouble", "Store failed");
  const text = `The store does not respond: ${error.message}${error.hint ? ` — ${error.hint}` : ""}. The page shows the last known state; the server keeps trying.`;
  if ($("trouble").hidden || $("trouble").textContent !== text) set($("trouble"), text);
  $("trouble").hidden = false;
}

function connection(name, text) {
  if ($("state").dataset.state === name && $("state-text").textContent === text) return;
  const was = $("state").dataset.state;
  $("state").dataset.state = name;
  set($("state-text"), text);
  $("retry").hidden = name !== "lost";
  document.body.classList.toggle("is-lost", name === "lost");
  if (was !== name && name === "lost") say("The connection to the server is lost. The page reconnects.");
  if (was === "lost" && name === "live") say("The connection is back.");
}

function changed(name, seconds, error) {
  if (name === "live") return;
  if (name === "connecting") return connection("connecting", "Connecting");
  if (name === "lost") return connection("lost", `Lost, retry in ${seconds} s`);
  connection("lost", "A token is needed");
  panel.askToken(error.message, () => stream.retry());
}

// ---- the list ----

const TOTALS = [
  ["limits", (all) => count(all.limits)],
  ["full", (all) => all.full && count(all.full), "full"],
  ["near", (all) => all.near - all.full && count(all.near - all.full), "near"],
  ["paused", (all) => all.paused && count(all.paused), "full"],
  ["overridden", (all) => all.overridden && count(all.overridden), "own"],
  ["waiting", (all) => all.waiting && count(all.waiting)],
  ["denied/s", (all) => (all.pace.denied >= 0.05 ? pace(all.pace.denied) : 0)],
];
const totals = TOTALS.map(([name, , is]) => make("div", { "data-is": is, hidden: true }, make("dt", {}, name), make("dd")));
$("totals").append(...totals);

function draw() {
  const { summary } = seen;
  set($("store"), `\u200e${summary.store}`);
  $("store").title = summary.store;
  TOTALS.forEach(([, value], i) => {
    const text = value(summary);
    totals[i].hidden = !text;
    set(totals[i].lastChild, String(text));
  });
  document.title = summary.full || summary.paused ? `(${summary.full + summary.paused}) Limits` : "Limits";
  const names = new Set(seen.limits.map((limit) => limit.name));
  for (const [name, row] of rows) {
    if (!names.has(name)) {
      row.element.remove();
      rows.delete(name);
    }
  }
  seen.limits.forEach((limit, i) => {
    if (!rows.has(limit.name)) rows.set(limit.name, newRow(limit.name));
    const row = rows.get(limit.name);
    fill(row, limit);
    row.element.setAttribute("aria-posinset", seen.offset + i + 1);
    row.element.setAttribute("aria-setsize", seen.found);
    if (list.children[i] !== row.element) list.insertBefore(row.element, list.children[i] ?? null);
  });
  mark();
  $("empty").hidden = seen.limits.length > 0;
  if (!seen.limits.length) {
    set(
      $("empty"),
      state.search
        ? `No limit has “${state.search}” in its name.`
        : "This store has no limits yet. Programs declare them, and so does the command “workglow-limit load”.",
    );
  }
  $("pager").hidden = seen.found <= PAGE;
  set($("range"), `${count(seen.offset + 1)}–${count(seen.offset + seen.limits.length)} of ${count(seen.found)}`);
  $("previous").disabled = seen.offset === 0;
  $("next").disabled = seen.offset + PAGE >= seen.found;
  // The page was removed.
  if (!seen.limits.length && seen.found && state.offset) turn(0);
}

let ids = 0;

function newRow(name) {
  const row = {
    paused: make("span.badge.paused", { hidden: true }),
    own: make("span.badge.own", { hidden: true, title: "An operator's policy in place of the declared one" }, "override"),
    policy: make("span.policy.mono.faint.cut"),
    used: make("span"),
    window: make("span.unseen"),
    share: make("span.share.faint"),
    fill: make("i"),
    trend: make("span.trend"),
    denied: make("span"),
    waiting: make("span"),
  };
  row.use = make(
    "span.use",
    {},
    make("span.figures", {}, make("span.unseen", {}, "used"), row.used, row.window, row.share),
    make("span.bar", {}, row.fill),
  );
  const title = make("span.name", {}, make("span.cut", { title: name }, name), row.own, row.paused);
  row.element = make("li.row", { role: "option", id: `row-${ids++}`, "aria-selected": "false" });
  // Screen readers say what is seen, and the words that the head of the list shows.
  const worded = (figure, word) => make("span", {}, figure, make("span.unseen", {}, ` ${word}`));
  [row.deniedCell, row.waitingCell] = [worded(row.denied, "denied"), worded(row.waiting, "waiting")];
  row.element.append(make("span.who", {}, title, row.policy), row.use, row.trend, row.deniedCell, row.waitingCell);
  row.element.addEventListener("click", () => choose(name, true));
  return row;
}

function fill(row, limit) {
  const usage = limit.usage[0];
  set(row.policy, limit.policy);
  row.policy.title = limit.policy;
  row.own.hidden = !limit.is_overridden;
  row.own.title = overridden(limit.overridden_by);
  row.paused.hidden = limit.paused_for <= 0;
  if (limit.paused_for > 0) set(row.paused, `paused ${time(limit.paused_for)}`);
  set(row.used, `${brief(usage.used)} / ${brief(usage.limit)}`);
  set(row.window, windowed(usage.window));
  set(row.share, `${Math.floor(limit.share * 100)}%`);
  row.use.dataset.level = level(limit.share, limit.near);
  row.fill.style.transform = `scaleX(${Math.min(1, limit.share)})`;
  set(row.denied, `${pace(limit.pace.denied)}/s`);
  row.deniedCell.className = `denied number ${limit.pace.denied < 0.05 ? "quiet" : "hot"}`;
  set(row.waiting, brief(limit.waiting));
  row.waitingCell.className = `waiting number ${limit.waiting ? "busy" : "quiet"}`;
  const line = sparks.get(limit.name);
  if (line && row.line !== line) row.trend.replaceChildren(spark((row.line = line)));
}

function mark() {
  for (const [name, row] of rows) row.element.setAttribute("aria-selected", String(name === state.chosen));
  const chosen = rows.get(state.chosen);
  if (chosen) list.setAttribute("aria-activedescendant", chosen.element.id);
  else list.removeAttribute("aria-activedescendant");
}

// ---- actions of the user ----

function want() {
  const kept = new URLSearchParams();
  if (state.chosen) kept.set("limit", state.chosen);
  if (state.search) kept.set("search", state.search);
  if (state.sort !== "fullest") kept.set("sort", state.sort);
  const hash = kept.size ? `#${kept}` : "";
  if (location.hash !== hash) history.replaceState(null, "", location.pathname + hash);
  const asked = { sort: state.sort, offset: state.offset, limit: PAGE };
  if (state.search) asked.search = state.search;
  if (state.chosen) asked.detail = state.chosen;
  stream.want(asked);
}

function choose(name, isPointed = false) {
  const isSame = name === state.chosen;
  state.chosen = name;
  document.body.classList.toggle("has-limit", name != null);
  $("nothing").hidden = name != null;
  mark();
  if (name == null) {
    panel.hide();
    list.focus({ preventScroll: true });
  } else {
    rows.get(name)?.element.scrollIntoView({ block: "nearest" });
    panel.show(
      name,
      seen?.limits.find((limit) => limit.name === name),
    );
    // If the list is hidden, the panel gets the focus.
    if (getComputedStyle($("limits")).display === "none") $("panel").focus();
    else if (isPointed) list.focus({ preventScroll: true });
  }
  if (!isSame) want();
}

function turn(offset) {
  state.offset = Math.max(0, offset);
  list.scrollTop = 0;
  want();
}

function move(step) {
  if (!seen?.limits.length) return;
  const at = seen.limits.findIndex((limit) => limit.name === state.chosen);
  const next = at < 0 ? (step > 0 ? 0 : seen.limits.length - 1) : at + step;
  if (next >= 0 && next < seen.limits.length) return choose(seen.limits[next].name);
  if (next < 0 && seen.offset > 0) turn(seen.offset - PAGE);
  else if (next >= seen.limits.length && seen.offset + PAGE < seen.found) turn(seen.offset + PAGE);
}

let typing = 0;
$("search").value = state.search;
$("search").addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(() => {
    Object.assign(state, { search: $("search").value.trim(), offset: 0 });
    want();
  }, 150);
});
for (const radio of document.querySelectorAll("[name=sort]")) {
  radio.checked = radio.value === state.sort;
  radio.addEventListener("change", () => {
    Object.assign(state, { sort: radio.value, offset: 0 });
    list.scrollTop = 0;
    want();
  });
}
if (!document.querySelector("[name=sort]:checked")) document.querySelector("[name=sort]").checked = !!(state.sort = "fullest");
$("previous").addEventListener("click", () => turn(state.offset - PAGE));
$("next").addEventListener("click", () => turn(state.offset + PAGE));
$("retry").addEventListener("click", () => stream.retry());

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || $("dialog").open) return;
  const isTyping = event.target.matches("input:not([type=radio])");
  if (event.key === "Escape") {
    if (isTyping && $("search").value) return; // The browser clears the field.
    if (isTyping) list.focus();
    else if (state.chosen) choose(null);
    return;
  }
  if (isTyping) {
    if (event.key !== "ArrowDown" && event.key !== "Enter") return;
    event.preventDefault();
    list.focus();
    return move(1);
  }
  const isInList = event.target === list || event.target === document.body;
  const act = {
    "/": () => $("search").select(),
    j: () => move(1),
    k: () => move(-1),
    ArrowDown: isInList && (() => move(1)),
    ArrowUp: isInList && (() => move(-1)),
    Home: isInList && (() => seen && choose(seen.limits[0]?.name)),
    End: isInList && (() => seen && choose(seen.limits.at(-1)?.name)),
    Enter: isInList && state.chosen && (() => $("panel").focus()),
    o: () => panel.act("override"),
    l: () => panel.act("lift"),
    p: () => panel.act("pause"),
  }[event.key];
  if (!act) return;
  event.preventDefault();
  act();
});
addEventListener("hashchange", () => {
  const name = new URLSearchParams(location.hash.slice(1)).get("limit");
  if (name !== state.chosen) choose(name);
});

if (state.chosen) choose(state.chosen);
want();
