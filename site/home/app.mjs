import { Store } from "workglow-limit";

const store = new Store("sqlite:limits.db");
const openai = store.limiter("openai", "100/1m");

const ask = openai.wrap(
  async (tenant, prompt) => prompt.toUpperCase(), // call the API
  (tenant) => ({ key: tenant, timeout: "30s" }),
);
console.log(await ask("acme", "hello"));
console.log(openai.peek({ key: "acme" }).remaining, "left");
