// Elements, numbers and charts. Names are untrusted: they are used as text only.

/** An element: `make("p.faint", { id }, "text", child)`. */
export function make(what, attributes = {}, ...children) {
  const [tag, ...classes] = what.split(".");
  const element = document.createElement(tag);
  if (classes.length) element.className = classes.join(" ");
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== false && value != null) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child != null && child !== false));
  return element;
}

export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Sets a text only if it differs, so that screen readers and selections are not disturbed. */
export function set(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

const whole = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
export const count = (n) => whole.format(n);
export const brief = (n) => (n < 10_000 ? whole.format(n) : short.format(n));
export const pace = (n) => (n < 0.05 ? "0" : n < 10 ? n.toFixed(1) : brief(Math.round(n)));
export const clock = (at) => new Date(at * 1000).toLocaleTimeString([], { hour12: false });
const hour = new Intl.DateTimeFormat([], {
  weekday: "short",
  day: "numeric",
  month: "short",
  hour: "2-digit",
  minute: "2-digit",
  hourCycle: "h23",
});
const day = new Intl.DateTimeFormat([], { day: "numeric", month: "short" });

export function bytes(size) {
  const step = size < 1024 ? 0 : Math.min(4, Math.floor(Math.log2(size) / 10));
  return `${step ? (size / 1024 ** step).toFixed(1) : size} ${["B", "KiB", "MiB", "GiB", "TiB"][step]}`;
}

/** A duration, rounded up. */
export function time(seconds) {
  if (seconds <= 0) return "0 s";
  if (seconds < 1) return `${Math.ceil(seconds * 1000)} ms`;
  if (seconds < 10 && !Number.isInteger(seconds)) return `${(Math.ceil(seconds * 10) / 10).toFixed(1)} s`;
  const s = Math.ceil(seconds);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60 ? `${s % 60} s` : ""}`.trim();
  const [step, units] = s < 86_400 ? [3600, ["h", "min", 60]] : [86_400, ["d", "h", 3600]];
  const rest = Math.floor((s % step) / units[2]);
  return `${Math.floor(s / step)} ${units[0]}${rest ? ` ${rest} ${units[1]}` : ""}`;
}

/** The name of a window: `in 1 min`, or `at once`. */
export const windowed = (window) => (window == null ? "at once" : `in ${time(window)}`);

/** What has put a policy above the declared one. */
export const overridden = (by) =>
  by == null || by === "operator"
    ? "An operator's policy in place of the declared one"
    : `Learned from ${by}, in place of the declared policy`;

export const level = (share, near) => (share >= 1 ? "full" : near ? "near" : "free");

/** A sparkline of percentages; null is a gap. */
export function spark(values) {
  const [width, height] = [100, 24];
  const x = (i) => ((i / (values.length - 1)) * width).toFixed(1);
  const y = (value) => (height - 1 - (value / 100) * (height - 2)).toFixed(1);
  let [line, area, start] = ["", "", -1];
  values.forEach((value, i) => {
    if (value == null) return;
    if (start < 0) [start, line, area] = [i, `${line}M${x(i)} ${y(value)}`, `${area}M${x(i)} ${height}L${x(i)} ${y(value)}`];
    else [line, area] = [`${line}L${x(i)} ${y(value)}`, `${area}L${x(i)} ${y(value)}`];
    if (values[i + 1] == null) {
      if (start === i) line += "h.01";
      [area, start] = [`${area}L${x(i)} ${height}Z`, -1];
    }
  });
  const drawn = svg("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  drawn.append(
    svg("path", { class: "base", d: `M0 ${height}H${width}` }),
    svg("path", { class: "area", d: area }),
    svg("path", { d: line }),
  );
  return drawn;
}

/** The next round number. */
function round(most) {
  const unit = 10 ** Math.floor(Math.log10(Math.max(1, most)));
  return Math.max(1, ([1, 1.5, 2, 3, 4, 5, 6, 8, 10].find((n) => n * unit >= most) ?? 10) * unit);
}

const LEFT = 52;
const RIGHT = 8;

/** A chart with grid lines. `scale` converts a value to a y coordinate. */
function plot(width, height, top, base, most, label) {
  const drawn = svg("svg", { class: "plot", viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": label });
  const scale = (value) => base - (Math.min(value, most) / most) * (base - top);
  for (const value of most >= 2 && most % 2 === 0 ? [0, most / 2, most] : [0, most]) {
    drawn.append(
      svg("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: scale(value), y2: scale(value) }),
      svg("text", { x: LEFT - 8, y: scale(value) + 4, "text-anchor": "end" }, brief(value)),
    );
  }
  return { drawn, scale };
}

/** Shows the values under the pointer: `at(x)` returns `{ x, y, values }`, or nothing. */
function follow(drawn, width, bottom, readout, rest, at) {
  const cursor = svg("line", { class: "cursor", y1: 8, y2: bottom, visibility: "hidden" });
  const ball = svg("circle", { class: "ball", r: 4, visibility: "hidden" });
  drawn.append(cursor, ball);
  const show = (found) => {
    for (const mark of [cursor, ball]) mark.setAttribute("visibility", found ? "visible" : "hidden");
    if (found) {
      for (const end of ["x1", "x2"]) cursor.setAttribute(end, found.x);
      ball.setAttribute("cx", found.x);
      ball.setAttribute("cy", found.y);
      if (found.y == null) ball.setAttribute("visibility", "hidden");
    }
    readout.replaceChildren(...(found ? found.values : rest));
  };
  drawn.addEventListener("pointermove", (event) => {
    const box = drawn.getBoundingClientRect();
    show(at(((event.clientX - box.left) / box.width) * width));
  });
  drawn.addEventListener("pointerleave", () => show(null));
  show(null);
}

const figure = (label, value, mark) =>
  make("span", {}, mark ? make(`i.key${mark === "units" ? "" : `.${mark}`}`) : null, `${label} `, make("b", {}, value));

const NEAR = 0.8;

/** The periods with the same limit. */
function zones(points, step) {
  const all = [];
  for (const { at, limit } of points) {
    const last = all.at(-1);
    if (last && at - last[1] < 2.5 * step) last[1] = at;
    if (!last || last[1] !== at || last[2] !== limit) all.push([at, at, limit]);
  }
  return all;
}

/** The usage of a window over the last 15 minutes with its limit, and the denials below. */
export function quarter(series, window, span, readout, width) {
  const column = series.windows.find((found) => found.window === window) ?? series.windows[0];
  const [top, base, strip] = [10, 150, 182];
  const known = column.used.map((used, i) => ({
    used,
    limit: column.limit[i],
    at: series.at[i],
    denied: series.denied[i],
    waiting: series.waiting[i],
  }));
  const seen = known.filter((point) => point.used != null);
  const limit = seen.at(-1)?.limit ?? 1;
  const peak = Math.max(0, ...seen.map((point) => point.used));
  const most = round(Math.max(limit * 1.1, ...seen.map((point) => Math.max(point.used, point.limit))));
  const last = series.at.at(-1) ?? Date.now() / 1000;
  const x = (at) => width - RIGHT - ((last - at) / span) * (width - LEFT - RIGHT);
  const label = `Used ${windowed(column.window)} over the last ${Math.round(span / 60)} minutes: now ${count(seen.at(-1)?.used ?? 0)} of ${count(limit)}, at most ${count(peak)}.`;
  const { drawn, scale } = plot(width, strip + 18, top, base, most, label);
  let [line, area, limits, before] = ["", "", "", null];
  const close = (point) => `L${x(point.at)} ${base}Z`;
  for (const point of known) {
    const isNext = before && point.used != null && point.at - before.at < 2.5 * series.step;
    if (before && !isNext) area += close(before);
    if (point.used != null) {
      line += `${isNext ? "L" : "M"}${x(point.at)} ${scale(point.used)}`;
      area += `${isNext ? "" : `M${x(point.at)} ${base}`}L${x(point.at)} ${scale(point.used)}`;
      limits += isNext ? `H${x(point.at)}V${scale(point.limit)}` : `M${x(point.at)} ${scale(point.limit)}`;
    }
    before = point.used == null ? null : point;
  }
  if (before) area += close(before);
  drawn.append(
    ...zones(seen, series.step).map(([from, to, limit]) =>
      svg("rect", { class: "zone", x: x(from), width: x(to) - x(from), y: scale(limit), height: scale(limit * NEAR) - scale(limit) }),
    ),
  );
  drawn.append(svg("path", { class: "area", d: area }), svg("path", { d: line }), svg("path", { class: "limit", d: limits }));
  const denied = Math.max(1, ...series.denied);
  for (const point of known.filter((point) => point.denied)) {
    const height = Math.max(2, (point.denied / denied) * 20);
    drawn.append(svg("rect", { class: "denied", x: x(point.at) - 1.2, width: 2.4, y: strip - height, height }));
  }
  drawn.append(svg("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: strip, y2: strip }));
  drawn.append(svg("text", { x: LEFT - 8, y: strip, "text-anchor": "end" }, "denied"));
  for (const minutes of [15, 10, 5, 0]) {
    const anchor = minutes === 0 ? "end" : minutes === 15 ? "start" : "middle";
    drawn.append(svg("text", { x: x(last - minutes * 60), y: strip + 15, "text-anchor": anchor }, minutes ? `−${minutes} min` : "now"));
  }
  const rest = [
    figure("used", `${count(seen.at(-1)?.used ?? 0)} of ${count(limit)}`, "units"),
    figure("highest", count(peak)),
    figure("denied", count(series.denied.reduce((a, b) => a + b, 0)), "denied"),
  ];
  follow(drawn, width, strip, readout, rest, (at) => {
    if (!seen.length) return null;
    const point = seen.reduce((a, b) => (Math.abs(x(b.at) - at) < Math.abs(x(a.at) - at) ? b : a));
    const values = [
      make("b", {}, clock(point.at)),
      figure("used", `${count(point.used)} of ${count(point.limit)}`, "units"),
      figure(`denied in ${series.step} s`, count(point.denied), "denied"),
      figure("waiting", count(point.waiting)),
    ];
    return { x: x(point.at), y: scale(point.used), values };
  });
  return drawn;
}

/** The units of each hour over a number of days, and the denials below. */
export function month(history, days, now, readout, width) {
  const [top, base, strip, step] = [10, 110, 140, history.step];
  const until = (Math.floor(now / step) + 1) * step;
  const since = until - days * 86_400;
  const steps = history.steps.filter((one) => one.at >= since);
  const sum = (name) => steps.reduce((all, one) => all + one[name], 0);
  const most = round(Math.max(1, ...steps.map((one) => one.units)));
  const label = `Units per hour in the last ${days} days: ${count(sum("units"))} in total, ${count(sum("denied"))} attempts denied.`;
  const { drawn, scale } = plot(width, strip + 18, top, base, most, label);
  const x = (at) => LEFT + ((at - since) / (until - since)) * (width - LEFT - RIGHT);
  const wide = Math.max(1, ((width - LEFT - RIGHT) * step) / (until - since) - (days > 7 ? 0 : 1));
  const denied = Math.max(1, ...steps.map((one) => one.denied));
  for (const one of steps) {
    if (one.units)
      drawn.append(
        svg("rect", {
          class: "units",
          x: x(one.at),
          width: wide,
          y: Math.min(scale(one.units), base - 1),
          height: Math.max(1, base - scale(one.units)),
        }),
      );
    const height = Math.max(2, (one.denied / denied) * 18);
    if (one.denied) drawn.append(svg("rect", { class: "denied", x: x(one.at), width: wide, y: strip - height, height }));
  }
  drawn.append(
    svg("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: strip, y2: strip }),
    svg("text", { x: LEFT - 8, y: strip, "text-anchor": "end" }, "denied"),
  );
  const marks = width < 480 ? 3 : 5;
  for (let i = 0; i < marks; i++) {
    const at = since + ((until - since) * i) / (marks - 1);
    const text = i === marks - 1 ? "now" : days > 1 ? day.format(at * 1000) : clock(at).slice(0, 5);
    drawn.append(svg("text", { x: x(at), y: strip + 15, "text-anchor": i === 0 ? "start" : i === marks - 1 ? "end" : "middle" }, text));
  }
  const peak = Math.max(0, ...steps.map((one) => one.peak));
  const rest = [
    figure("units", count(sum("units")), "units"),
    figure("denied", count(sum("denied")), "denied"),
    figure("waited", count(sum("waited"))),
    figure("peak", count(peak)),
  ];
  follow(drawn, width, strip, readout, rest, (at) => {
    const one = steps.find((one) => at >= x(one.at) && at < x(one.at + step));
    return (
      one && {
        x: x(one.at) + wide / 2,
        y: null,
        values: [
          make("b", {}, hour.format(one.at * 1000)),
          figure("units", count(one.units), "units"),
          figure("denied", count(one.denied), "denied"),
          figure("waited", count(one.waited)),
          figure("peak", count(one.peak)),
        ],
      }
    );
  });
  return drawn;
}
