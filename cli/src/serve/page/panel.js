// The selected limit: usage, waiters and history; and the operator's changes.
import { brief, bytes, clock, count, level, make, month, overridden, pace, quarter, set, time, windowed } from "./draw.js";
import { get, post, token } from "./stream.js";

const HISTORY = 60_000; // The interval between requests for the history.
const $ = (id) => document.getElementById(id);

/** A row of radio buttons. */
function segments(name, label, options, chosen, choose) {
  const option = ([value, text]) =>
    make(
      "label",
      {},
      make("input", { type: "radio", name, value, checked: value === chosen, onchange: () => choose(value) }),
      make("span", {}, text),
    );
  return make("fieldset.segments", {}, make("legend.unseen", {}, label), ...options.map(option));
}

const block = (title, ...children) => make("section.block", {}, make("div.title", {}, make("h3", {}, title)), ...children);

export class Panel {
  #name = null;
  #seen = null;
  #series = null;
  #history = null;
  #tick = -1;
  #asked = 0;
  #days = 0;
  #window;
  #shownDays = 31;
  #abort = null;

  constructor(element, { close, say, takesChanges }) {
    Object.assign(this, { element, close, say, takesChanges });
    // Charts fill the width.
    new ResizeObserver(() => this.#drawCharts()).observe(element);
    $("cancel").addEventListener("click", () => $("dialog").close());
  }

  hide() {
    this.#abort?.abort();
    [this.#name, this.#seen, this.parts] = [null, null, null];
    this.element.hidden = true;
  }

  show(name) {
    if (name === this.#name) return;
    this.#abort?.abort();
    this.#abort = new AbortController();
    [this.#name, this.#seen, this.parts] = [name, null, null];
    [this.#series, this.#history, this.#tick, this.#asked, this.#window] = [null, null, -1, 0, undefined];
    this.element.hidden = false;
    this.element.scrollTop = 0;
    this.element.replaceChildren(
      make("button.back", { type: "button", onclick: this.close }, "‹ All limits"),
      make("div.head", {}, make("div.titles", {}, make("h2", {}, name))),
    );
  }

  /** Takes an event with this limit's details. */
  take(name, look) {
    if (name !== this.#name || look.detail === undefined || (look.detail && look.detail.name !== name)) return;
    if (!look.detail) {
      this.parts = null;
      return this.element.replaceChildren(
        make("button.back", { type: "button", onclick: this.close }, "‹ All limits"),
        make("p.empty", {}, `This store has no limit “${name}”. It may have been removed, or not be declared yet.`),
      );
    }
    this.#seen = look.detail;
    if (!this.parts) this.#build();
    this.#fill(look);
    if (look.tick !== this.#tick) {
      this.#tick = look.tick;
      this.#ask("/api/series", { limit: name }, (series) => (this.#series = series));
    }
    if (Date.now() - this.#asked > HISTORY) {
      this.#asked = Date.now();
      this.#ask("/api/history", { limit: name }, (history) => {
        this.#history = history;
        this.#offerDays();
      });
    }
  }

  async #ask(path, parameters, then) {
    const { signal } = this.#abort;
    try {
      const answer = await get(path, parameters, signal);
      if (signal.aborted) return;
      then(answer);
      this.#drawCharts();
    } catch {
      // The next event asks again, and the list shows the error.
    }
  }

  /** Chooses the time to show by the age of the history, until the user selects one. */
  #offerDays() {
    if (this.parts.days.hasChildNodes()) return;
    const age = (Date.now() / 1000 - (this.#history.steps[0]?.at ?? Infinity)) / 86_400;
    const shown = this.#days || [1, 7].find((days) => age < days) || 31;
    const choices = segments(
      "days",
      "Days",
      [
        ["1", "Day"],
        ["7", "Week"],
        ["31", "Month"],
      ],
      String(shown),
      (value) => {
        this.#days = this.#shownDays = Number(value);
        this.#drawCharts();
      },
    );
    this.#shownDays = shown;
    this.parts.days.append(choices);
  }

  #build() {
    const parts = (this.parts = {
      own: make("span.badge.own", { hidden: true }, "override"),
      policy: make("p.policy.mono"),
      declared: make("p.faint.mono.policy", { hidden: true }),
      override: make("button", { type: "button", onclick: () => this.act("override"), "aria-keyshortcuts": "o" }, "Override"),
      lift: make("button", { type: "button", onclick: () => this.act("lift"), "aria-keyshortcuts": "l" }, "Lift"),
      pause: make("button", { type: "button", onclick: () => this.act("pause"), "aria-keyshortcuts": "p" }, "Pause"),
      used: make("b"),
      of: make("span.faint"),
      level: make("span.level"),
      windows: make("div"),
      quarter: make("div"),
      quarterSays: make("div.readout"),
      days: make("div"),
      month: make("div"),
      monthSays: make("div.readout"),
      gates: make("div"),
      waits: make("div.waits"),
      counters: make("dl.counters"),
      beside: make("div.scroll"),
      keys: make("div.scroll"),
      tenants: make("div.scroll"),
      processes: make("div.scroll"),
      store: make("dl.counters"),
    });
    parts.actions = make("div.actions", {}, parts.override, parts.lift, parts.pause);
    const titles = make(
      "div.titles",
      {},
      make("h2", {}, `${this.#name} `),
      make("p.faint", {}, this.#seen.kind.replaceAll("_", " "), " ", parts.own),
      parts.policy,
      parts.declared,
    );
    const past = block("Units per hour", parts.month, parts.monthSays);
    past.firstChild.append(parts.days);
    parts.recent = block("Last 15 minutes", parts.quarter, parts.quarterSays);
    parts.recent.firstChild.append(parts.windows);
    this.element.replaceChildren(
      make("button.back", { type: "button", onclick: this.close }, "‹ All limits"),
      make("div.head", {}, titles, parts.actions),
      make("div.now", {}, parts.used, parts.of, parts.level),
      parts.recent,
      past,
      (parts.besideBlock = block("Parts", parts.beside)),
      (parts.gateBlock = block("Gates", parts.gates)),
      block("Waits", parts.waits),
      block("Counters", parts.counters),
      (parts.keyBlock = block("Busiest keys", parts.keys)),
      (parts.tenantBlock = block("Tenants", parts.tenants)),
      (parts.processBlock = block("Processes on this machine", parts.processes)),
      block("Store", parts.store),
    );
    this.allow();
  }

  /** Shows the allowed changes. */
  allow() {
    if (!this.parts) return;
    this.parts.actions.hidden = !this.takesChanges();
    const { override, hot_keys: keys } = this.#seen;
    this.parts.lift.disabled = !override && !keys.some((key) => key.override);
  }

  #fill(look) {
    const { parts } = this;
    const seen = this.#seen;
    const { usage, stats } = seen;
    const share = Math.max(...usage.map((one) => one.used / Math.max(1, one.limit)));
    set(parts.policy, seen.policy);
    parts.own.hidden = parts.declared.hidden = !seen.override;
    parts.own.title = overridden(seen.overridden_by);
    set(parts.declared, `declared: ${seen.declared}`);
    this.allow();
    set(parts.used, `${count(usage[0].used)} / ${count(usage[0].limit)}`);
    const of = seen.fullest ? `, by ${seen.fullest}` : seen.keys > 0 ? ", without a key" : "";
    set(parts.of, `used ${windowed(usage[0].window)}${of}`);
    parts.level.dataset.level = seen.paused_for > 0 ? "full" : level(share, seen.near);
    const next = seen.retry_after > 0 ? `next start in ${time(seen.retry_after)}` : "";
    set(
      parts.level,
      seen.paused_for > 0
        ? `paused for ${time(seen.paused_for)}`
        : share >= 1
          ? `full${next ? `, ${next}` : ""}`
          : next || (seen.near ? "near its limit" : "available"),
    );
    this.#fillWindows(usage);
    this.#fillParts(seen);
    this.#fillGates(seen);
    const most = Math.max(1, ...seen.waits.counts);
    const names = [...seen.waits.bounds.map((bound) => `≤ ${time(bound)}`), `> ${time(seen.waits.bounds.at(-1))}`];
    const waits = seen.waits.counts.map((n, i) => [names[i], n]);
    if (parts.waits.dataset.is !== seen.waits.counts.join()) {
      parts.waits.dataset.is = seen.waits.counts.join();
      if (waits.some(([, n]) => n)) {
        parts.waits.replaceChildren(
          ...waits.flatMap(([name, n]) => [make("span.faint.number", {}, name), this.#bar(n / most), make("span.number", {}, count(n))]),
        );
      } else parts.waits.replaceChildren(make("p.faint", {}, "No start had to wait."));
    }
    this.#fillCounters(parts.counters, [
      ["admitted", count(stats.admitted)],
      ["denied", count(stats.denied)],
      ["units granted", count(stats.units_granted)],
      ["granting", `${pace(seen.pace.granted)}/s`],
      ["denying", `${pace(seen.pace.denied)}/s`],
      ["waiting now", count(seen.waiting)],
      ["peak, last minute", count(seen.peak)],
      ["had to wait", count(stats.waited)],
      ["average wait", stats.waited ? time(stats.wait_time / stats.waited) : "–"],
      ["cancelled", count(stats.cancelled)],
      ["places lost", count(seen.places_lost)],
      ["store errors", count(stats.store_errors)],
      ["policy changes", count(stats.policy_changes)],
      ["keys", count(seen.keys)],
      seen.grants && ["grants held", count(seen.grants.held)],
      seen.grants && ["server requests", count(seen.grants.requests)],
    ]);
    parts.keyBlock.hidden = !seen.hot_keys.length;
    parts.keys.replaceChildren(
      this.#table(
        ["Key", "Used", "#Granted", "#Denied"],
        seen.hot_keys.map((key) => {
          const use = key.usage[0];
          const badges = [
            key.override && make("span.badge.own", { title: key.override }, "override"),
            key.paused_for > 0 && make("span.badge.paused", {}, `paused ${time(key.paused_for)}`),
          ];
          return [
            make("span.name", {}, make("span.cut.mono", { title: key.key }, key.key || "(none)"), ...badges.filter(Boolean)),
            use ? `${brief(use.used)} / ${brief(use.limit)}` : "–",
            brief(key.stats.units_granted),
            brief(key.stats.denied),
          ];
        }),
      ),
    );
    parts.tenantBlock.hidden = !seen.tenants.length;
    parts.tenants.replaceChildren(
      this.#table(
        ["Tenant, the next first", "#Share", "#Waits"],
        seen.tenants.map((tenant) => [
          make("span.cut.mono", { title: tenant.key }, tenant.key),
          String(tenant.share),
          tenant.waits === null ? "–" : time(tenant.waits),
        ]),
      ),
    );
    const { summary } = look;
    parts.processBlock.hidden = !summary.processes.length;
    parts.processes.replaceChildren(
      this.#table(
        ["Program", "#Pid", "#Since"],
        summary.processes.map((one) => [
          make("span.cut", { title: one.program }, one.program || "unknown"),
          String(one.pid),
          time(Math.floor(one.since)),
        ]),
      ),
    );
    this.#fillCounters(parts.store, [
      ["ledger lag", time(summary.ledger_lag)],
      summary.lane_bytes && ["lane", bytes(summary.lane_bytes)],
      ["failures of serve", count(summary.failures)],
      !summary.counts_all_processes && ["counts of", "this process only"],
    ]);
  }

  #bar(share) {
    const inner = make("i");
    inner.style.transform = `scaleX(${share})`;
    return make("span.bar", { "aria-hidden": "true" }, inner);
  }

  #table(heads, rows) {
    const is = heads.map((head) => head.startsWith("#"));
    const cell = (tag, content, i) =>
      make(`${tag}${is[i] ? ".number" : i === 0 && tag === "td" ? ".long" : ""}`, tag === "th" ? { scope: "col" } : {}, content);
    return make(
      "table",
      {},
      make("thead", {}, make("tr", {}, ...heads.map((head, i) => cell("th", head.replace("#", ""), i)))),
      make("tbody", {}, ...rows.map((row) => make("tr", {}, ...row.map((content, i) => cell("td", content, i))))),
    );
  }

  #fillCounters(list, all) {
    const shown = all.filter(Boolean);
    if (list.children.length !== shown.length)
      list.replaceChildren(...shown.map(([name]) => make("div", {}, make("dt", {}, name), make("dd"))));
    shown.forEach(([, value], i) => set(list.children[i].lastChild, value));
  }

  #fillWindows(usage) {
    const windows = usage.map((one) => one.window).sort((a, b) => a - b);
    // By default, the longest window that fits into 15 minutes.
    if (this.#window === undefined || !windows.includes(this.#window))
      this.#window = windows.findLast((window) => window <= 900) ?? windows[0];
    if (this.parts.windows.dataset.is === windows.join()) return;
    this.parts.windows.dataset.is = windows.join();
    const choices = segments(
      "window",
      "Window",
      windows.map((window) => [String(window), time(window)]),
      String(this.#window),
      (value) => {
        this.#window = windows.find((window) => String(window) === value);
        this.#drawCharts();
      },
    );
    this.parts.windows.replaceChildren(...(windows.length > 1 ? [choices] : []));
  }

  /** The parts of the limit that this one belongs to, those that denied most first. */
  #fillParts({ name, parts: beside }) {
    const { besideBlock, beside: table } = this.parts;
    besideBlock.hidden = !beside;
    if (!beside) return;
    set(besideBlock.querySelector("h3"), `Parts of ${beside.of}`);
    // Rows are kept while their order is, so that a link is not replaced under the pointer.
    const order = beside.parts.map((part) => part.name).join();
    if (table.dataset.is !== order) {
      table.dataset.is = order;
      const link = (part) => make("a.cut", { href: `#limit=${encodeURIComponent(part.name)}`, title: part.name }, part.part);
      const title = (part) => (part.name === name ? make("b.cut", { title: name }, part.part) : link(part));
      table.replaceChildren(
        this.#table(
          ["Part", "Used", "#Waiting", "#Denied"],
          beside.parts.map((part) => [title(part), "", "", ""]),
        ),
      );
    }
    const denied = beside.parts.reduce((sum, part) => sum + part.denied, 0);
    const rows = table.querySelectorAll("tbody tr");
    for (const [i, part] of beside.parts.entries()) {
      const [use] = part.usage;
      const paused = part.paused_for > 0 ? `, paused ${time(part.paused_for)}` : "";
      const share = part.denied ? ` (${Math.round((100 * part.denied) / denied)} %)` : "";
      const texts = [
        `${brief(use.used)} / ${brief(use.limit)} ${windowed(use.window)}${paused}`,
        brief(part.waiting),
        `${brief(part.denied)}${share}`,
      ];
      texts.forEach((text, j) => set(rows[i].children[j + 1], text));
    }
  }

  #fillGates(seen) {
    const until = (seconds) => `until ${clock(Date.now() / 1000 + seconds)}, for ${time(seconds)}`;
    const closed = [
      ...(seen.paused_for > 0 ? [["the whole limit", seen.paused_for]] : []),
      ...seen.hot_keys
        .filter((key) => key.paused_for > 0 && key.paused_for > seen.paused_for)
        .map((key) => [`key ${key.key}`, key.paused_for]),
    ];
    this.parts.gateBlock.hidden = false;
    const rows = closed.map(([who, seconds]) => make("p", {}, make("span.badge.paused", {}, "closed"), ` ${who} ${until(seconds)}`));
    this.parts.gates.replaceChildren(...(rows.length ? rows : [make("p.faint", {}, "All open.")]));
  }

  #drawCharts() {
    if (!this.parts || this.element.hidden) return;
    const style = getComputedStyle(this.element);
    const width = Math.floor(this.element.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight));
    if (width < 100) return;
    const { parts } = this;
    if (this.#series?.at.length) parts.quarter.replaceChildren(quarter(this.#series, this.#window, 900, parts.quarterSays, width));
    if (this.#history) parts.month.replaceChildren(month(this.#history, this.#shownDays, Date.now() / 1000, parts.monthSays, width));
  }

  // ---- changes ----

  act(what) {
    if (!this.#seen || !this.parts || !this.takesChanges() || $("dialog").open) return;
    const [name, seen] = [this.#name, this.#seen];
    const key = { name: "key", label: "Only for this key (optional)", placeholder: "the whole limit" };
    if (what === "override") {
      this.#dialog({
        title: `Override ${name}`,
        text: `Programs declare ${seen.declared}. The override replaces it at once in all processes, until it is lifted.`,
        confirm: "Override",
        said: (done) => `${name}: ${done.policy} applies.`,
        path: "/api/override",
        fields: [{ name: "policy", label: "Policy", value: seen.policy, placeholder: "50/1m + 5/1s", mono: true }, key],
      });
    } else if (what === "pause") {
      this.#dialog({
        title: `Pause ${name}`,
        text: "No start is admitted during the pause. A pause can be extended here but not shortened; the command “workglow-limit clear” ends it, and forgets past starts.",
        confirm: "Pause",
        said: () => `${name} is paused.`,
        path: "/api/pause",
        fields: [
          { name: "duration", label: "Duration", value: "1m", placeholder: "30s, 5m, 2h", chips: ["30s", "1m", "5m", "15m", "1h"] },
          key,
        ],
      });
    } else if (!this.parts.lift.disabled) {
      const hasKeys = seen.hot_keys.some((found) => found.override);
      const text = seen.override
        ? `The declared policy ${seen.declared} replaces ${seen.override} again.`
        : "Some keys have an override. Enter the key whose override is lifted.";
      this.#dialog({
        title: `Lift the override of ${name}`,
        text,
        confirm: "Lift",
        said: () => `${name}: the override is lifted.`,
        path: "/api/lift",
        fields: hasKeys ? [{ ...key, label: seen.override ? key.label : "Key", placeholder: seen.override ? key.placeholder : "" }] : [],
      });
    }
  }

  /** Asks for the token for reading. */
  askToken(message, then) {
    token.set(null);
    this.#dialog({ title: "A token is needed", text: message, confirm: "Continue", fields: [], submit: async () => then() });
  }

  #dialog({ title, text, confirm, fields, path, said, submit }) {
    const name = this.#name;
    set($("dialog-title"), title);
    set($("dialog-text"), text);
    set($("confirm"), confirm);
    $("dialog-error").hidden = true;
    $("token-field").hidden = token.get() != null;
    $("token").value = "";
    const inputs = {};
    $("fields").replaceChildren(
      ...fields.map((field) => {
        const input = (inputs[field.name] = make(`input${field.mono ? ".mono" : ""}`, {
          type: "text",
          value: field.value ?? "",
          placeholder: field.placeholder,
          autocomplete: "off",
          autocapitalize: "off",
          spellcheck: "false",
        }));
        const chips =
          field.chips &&
          make(
            "span.chips",
            {},
            ...field.chips.map((chip) => make("button.small", { type: "button", onclick: () => (input.value = chip) }, chip)),
          );
        return make("div.field", {}, make("label.field-label", {}, make("span", {}, field.label), input), chips);
      }),
    );
    const send = async () => {
      const body = { limit: name };
      for (const field of fields) if (inputs[field.name].value !== "" || field.name !== "key") body[field.name] = inputs[field.name].value;
      this.say(said(await post(path, body)));
    };
    $("form").onsubmit = async (event) => {
      event.preventDefault();
      if (!$("token-field").hidden) token.set($("token").value.trim());
      $("confirm").disabled = true;
      try {
        await (submit ?? send)();
        $("dialog").close();
      } catch (error) {
        set($("dialog-error"), [error.message, error.hint].filter(Boolean).join("\n"));
        $("dialog-error").hidden = false;
        if (error.status === 401) {
          token.set(null);
          $("token-field").hidden = false;
          $("token").select();
        }
      } finally {
        $("confirm").disabled = false;
      }
    };
    $("dialog").showModal();
    const first = $("fields").querySelector("input") ?? ($("token-field").hidden ? $("confirm") : $("token"));
    first.focus();
    first.select?.();
  }
}
