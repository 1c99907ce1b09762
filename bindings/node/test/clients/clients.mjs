// The limited clients behind one interface: real clients, which talk to a real server.

import axios from "axios";
import { text } from "node:stream/consumers";
import { limitAxios } from "workglow-limit/axios";
import { limitFetch } from "workglow-limit/fetch";
import { limitUndici } from "workglow-limit/undici";

/** Returns undici by its major version. Version 8 needs Node 22.19. */
const undici = { 7: await import("undici") };
const [major, minor] = process.versions.node.split(".").map(Number);
if (major > 22 || (major === 22 && minor >= 19)) undici[8] = await import("undici-8");
export { undici };

const ofFetch =
  (fetch) =>
  async (url, { stream, ...init } = {}) => {
    const response = await fetch(url, { ...init, ...(typeof init.body?.pipe === "function" ? { duplex: "half" } : {}) });
    return { status: response.status, headers: response.headers, text: () => response.text(), cancel: () => response.body.cancel() };
  };

const ofUndici =
  ({ Agent, request }) =>
  (limiter, options, t) => {
    const agent = new Agent();
    t?.after(() => agent.close());
    const dispatcher = agent.compose(limitUndici(limiter, options));
    return async (url, { method = "GET", ...init } = {}) => {
      const { statusCode, headers, body } = await request(url, { method, ...init, dispatcher });
      const cancel = () => (body.on("error", () => {}), body.destroy());
      return { status: statusCode, headers: new Headers(Object.entries(headers)), text: () => body.text(), cancel };
    };
  };

const ofAxios = (adapter, responseType) => (limiter, options) => {
  const instance = axios.create({ adapter, responseType, transformResponse: (data) => data, validateStatus: null });
  limitAxios(instance, limiter, options);
  return async (url, { method, headers, body, signal } = {}) => {
    const response = await instance.request({ url, method, headers, data: body, signal });
    const { data } = response;
    const read = typeof data === "string" ? async () => data : () => text(data);
    const cancel = async () => (data.destroy ? data.destroy() : data.cancel?.());
    return { status: response.status, headers: new Headers(response.headers.toJSON()), text: read, cancel };
  };
};

/** Makes a limited function `send(url, { method, headers, body, signal })`. */
export const clients = {
  fetch: (limiter, options) => ofFetch(limitFetch(limiter, options)),
  "axios by node:http": ofAxios("http", "text"),
  "axios by node:http, as a stream": ofAxios("http", "stream"),
  "axios by fetch": ofAxios("fetch", "text"),
  "axios by fetch, as a stream": ofAxios("fetch", "stream"),
};
for (const [version, package_] of Object.entries(undici)) {
  clients[`undici ${version}`] = ofUndici(package_);
  clients[`the fetch of undici ${version}`] = (limiter, options) => ofFetch(limitFetch(limiter, { ...options, fetch: package_.fetch }));
}
/** The clients that return when the whole body has arrived. */
export const isWhole = (client) => client.startsWith("axios") && !client.endsWith("stream");
/** The clients that read a body before it is requested. */
export const isEager = (client) => client.startsWith("undici");
