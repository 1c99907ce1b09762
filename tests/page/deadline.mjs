// A test of tabs that does not end is an error, which says what each of its pages was doing, and who leads the stores.

/** In ms: longer than what a test waits for itself, and so short that the tests after it run, too. */
const DEADLINE = 300_000;
/** How long a page may take to say what it is doing, in ms. */
const ANSWER = 5_000;
/** So many of a page's last errors are shown. */
const ERRORS = 3;

/** Runs the body of a test. `pages`: returns those that are open. */
export async function inTime(body, pages, deadline = DEADLINE) {
  let timer;
  const late = new Promise((_, failed) => {
    timer = setTimeout(async () => failed(new Error(await stateOf(pages(), deadline))), deadline);
  });
  try {
    return await Promise.race([body(), late]);
  } finally {
    clearTimeout(timer);
  }
}

async function stateOf(pages, deadline) {
  const told = await Promise.all(pages.map((page, i) => shown(page, i + 1)));
  return [`not over after ${deadline / 1e3} s, with ${pages.length} pages:`, ...told.flat()].join("\n");
}

const errors = new WeakMap();

/** Keeps the last errors of a page, for what is shown of it. */
export function watch(page) {
  const seen = [];
  errors.set(page, seen);
  const add = (text) => void (seen.push(text), seen.splice(0, seen.length - ERRORS));
  page.on("pageerror", (error) => add(`${error}`));
  // (It has no icon.)
  page.on("console", (message) => message.type() === "error" && !message.location().url.endsWith("/favicon.ico") && add(message.text()));
  page.on("crash", () => add("it has crashed"));
}

async function shown(page, number) {
  const asked = page.evaluate(() =>
    navigator.locks.request(crypto.randomUUID(), async (own) => {
      const { held, pending } = await navigator.locks.query();
      const { clientId } = held.find(({ name }) => name === own.name);
      return { doing: window.doing, clientId, held: held.filter(({ name }) => name !== own.name), pending };
    }),
  );
  const silent = new Promise((tell) => setTimeout(tell, ANSWER, new Error(`no answer for ${ANSWER / 1e3} s`)));
  const state = await Promise.race([asked, silent]).catch((error) => error);
  const lines = (errors.get(page) ?? []).map((error) => `  error: ${error}`);
  if (state instanceof Error) return [`page ${number}: ${state.message}`, ...lines];
  // Pages of one origin and profile see the same locks, also those of workers and other pages.
  const who = ({ clientId }) => (clientId === state.clientId ? "it" : clientId.slice(0, 8));
  const of = (does, locks) => locks.map((lock) => `  ${who(lock)} ${does} (${lock.mode}): ${lock.name}`);
  const leads = state.held.some(({ name }) => name.startsWith("workglow-limit lead ")) ? [] : ["  nobody leads a store"];
  const name = `page ${number} (${state.clientId.slice(0, 8)})`;
  return [
    `${name}: ${state.doing ?? "does not say what it does"}`,
    ...lines,
    ...leads,
    ...of("holds", state.held),
    ...of("awaits", state.pending),
  ];
}
