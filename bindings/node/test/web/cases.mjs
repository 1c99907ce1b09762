// The cases of tests/vectors that need no more than workglow-limit/web has (see `LACKS`), and how they run, in Node and in browsers. Limits
// are declared by texts, so each limiter of a case becomes a policy, and a composite's parts have the names that the case gives them.

const words = (text) => text.split(/\s+/).filter((word) => word !== "");
const fields = (words) => Object.fromEntries(words.map((word) => (word.includes("=") ? word.split("=") : ["", word])));

/** What a case may need that this entry does not have. */
const LACKS = new Set(["reserve", "present", "renew", "arrived", "record_job_start", "record_job_completion", "next_available", "stats"]);

/** The texts of a kind: each is a window or a policy. */
export const KINDS = {
  rate(given) {
    const at = given.includes("backoff") ? given.indexOf("backoff") : given.length;
    const [, initial, thousandths, max, jitter] = given.slice(at);
    const windows = [];
    for (let i = 0; i < at; i += 2) windows.push(`${given[i]}/${given[i + 1]}us`);
    if (initial !== undefined) windows[windows.length - 1] += ` backoff ${initial}us x${thousandths / 1000} max ${max}us ${jitter}`;
    return windows;
  },
  concurrency: ([max, lease]) => [`${max} concurrent${lease === undefined ? "" : ` lease ${lease}us`}`],
  delay: ([delay]) => [`delay ${delay}us`],
  evenly_spaced: ([max, window, how]) => [`${max}/${window}us spaced${how === "strict" ? " strictly" : ""}`],
  token_bucket: ([rate, period, burst]) => [`${rate}/${period}us burst ${burst}`],
  leaky_bucket: ([rate, period, queue]) => [`${rate}/${period}us queue ${queue}`],
  fixed_window: ([max, window]) => [`${max}/${window}us fixed`],
  sliding_window_counter: ([max, window]) => [`${max}/${window}us counter`],
  policy: (words) => [words.join(" ")],
};

/** The policy of a case; nothing if there is none. */
export function policyOf({ limiters, isFirstOf }) {
  if (isFirstOf || limiters.some(([kind]) => !Object.hasOwn(KINDS, kind))) return undefined;
  const texts = limiters.map(([kind, ...given]) => KINDS[kind](given));
  if (texts.length === 1) return texts[0].join(" + ");
  if (limiters.some(([kind]) => kind === "policy")) return undefined;
  return texts.flatMap((all, i) => all.map((text) => `limit-${i + 1}: ${text}`)).join(" + ");
}

export const isLacking = ({ steps, limiters }) =>
  steps.some(
    ({ call, given, wanted }) =>
      LACKS.has(call) || given.charges || given.parts || given.of || (call === "acquire" && wanted[""] !== "admitted"),
  ) ||
  (limiters.length > 1 && steps.some(({ call }) => call === "override"));

export function casesOf(text) {
  const cases = [];
  for (const [i, raw] of text.split("\n").entries()) {
    const [first, ...rest] = words(raw.replace(/#.*/, ""));
    if (first === undefined) continue;
    if (first === "case") cases.push({ name: rest.join(" "), limiters: [], steps: [] });
    else if (first === "first_of") cases.at(-1).isFirstOf = true;
    else if (first === "limiter") cases.at(-1).limiters.push(rest);
    else {
      const arrow = rest.indexOf("=>");
      const [call, ...given] = arrow < 0 ? rest : rest.slice(0, arrow);
      const wanted = arrow < 0 ? {} : fields(rest.slice(arrow + 1));
      cases.at(-1).steps.push({ line: i + 1, at: Number(first), call, given: fields(given), wanted });
    }
  }
  return cases;
}

const us = (ms) => String(Math.round(ms * 1000));
const fieldsOf = (decision) => ({
  "": decision.admitted ? "admitted" : "denied",
  retry: us(decision.retryAfter),
  suggested: us(decision.suggestedAfter),
  reset: us(decision.resetAfter),
  remaining: String(decision.remaining),
  limit: String(decision.limit),
  by: String(decision.deniedBy).replace(/^x\//, ""),
});

async function answer(store, limiter, { call, given }, permits) {
  const { key } = given;
  const start = { key, weight: given.weight === undefined ? undefined : Number(given.weight) };
  const keep = (permit) => void (given.as !== undefined && permit !== null && permits.set(given.as, permit));
  switch (call) {
    case "decide": {
      const decision = await limiter.decide(start);
      keep(decision.permit);
      return fieldsOf(decision);
    }
    case "peek":
      return fieldsOf(await limiter.peek(start));
    case "try_acquire": {
      const permit = await limiter.tryAcquire(start);
      keep(permit);
      return { "": permit === null ? "denied" : "admitted" };
    }
    case "acquire":
      keep(await limiter.acquire({ ...start, timeout: `${given.for}us` }));
      return { "": "admitted" };
    case "can_proceed":
      return { "": (await limiter.canProceed({ key })) ? "yes" : "no" };
    case "complete":
    case "cancel":
      return permits.get(given.permit)[call]();
    case "settle":
      return permits.get(given.permit).settle(Number(given.actual));
    case "override":
      return store.override(limiter.name, given.policy.replaceAll("_", " "), { key });
    case "lift":
      return store.lift(limiter.name, { key });
    case "pause":
      return limiter.pause(`${given.for}us`, { key });
    case "clear":
      return limiter.clear({ key });
    default:
      throw new Error(`no call ${call}`);
  }
}

function assertEqual(got, wanted, what) {
  if (got !== wanted) throw new Error(`${what}: got ${got}, wanted ${wanted}`);
}

/** Runs a case on a new store at this address. `between`: what happens before each step, which it is given. */
export async function run({ LimitError, ManualClock, open }, address, one, policy, between = async () => {}) {
  const clock = new ManualClock();
  const store = await open(address, { clock });
  const limiter = store.limiter(one.limiters.length > 1 ? "x" : "limit-1", policy);
  const permits = new Map();
  let time = 0;
  for (const step of one.steps) {
    clock.advance((step.at - time) / 1000);
    time = step.at;
    await between(step);
    let got;
    try {
      got = (await answer(store, limiter, step, permits)) ?? {};
    } catch (error) {
      if (!(error instanceof LimitError)) throw error;
      got = { error: error.code };
    }
    assertEqual(got.error, step.wanted.error, `line ${step.line}`);
    for (const [field, value] of Object.entries(step.wanted)) assertEqual(got[field], value, `line ${step.line}: ${field}`);
  }
  store.close();
}

/** The kind of a case's limit. */
export const kindOf = ({ limiters }) => (limiters.length > 1 ? "composite" : limiters[0][0]);
