// The limits of the routes. A limit of the same name is the same limit, in every process that opens the store.

import { Store } from "workglow-limit";
import { limitRequests } from "workglow-limit/next";

export const store = new Store(process.env.STORE ?? "sqlite:limits.db", { timeout: "60s" });
export const limit = limitRequests({ trustedProxies: ["unix", "10.0.0.0/8"] });
