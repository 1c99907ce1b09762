// A worker process that takes a job and never ends it. It is also the file of a sandboxed processor, which ends.

import { Worker } from "bullmq";
import { Store } from "workglow-limit";
import { withLimiter } from "workglow-limit/bullmq";

const { TEST_STORE, TEST_POLICY, TEST_QUEUE, TEST_PORT } = process.env;
const limiter = new Store(TEST_STORE).limiter("limit", TEST_POLICY);

if (TEST_QUEUE !== undefined) {
  const stuck = withLimiter(limiter, null, () => {
    process.send("started");
    return new Promise(() => {});
  });
  const connection = { host: "127.0.0.1", port: Number(TEST_PORT) };
  new Worker(TEST_QUEUE, stuck, { connection, lockDuration: 1000, stalledInterval: 500 });
}

export default withLimiter(
  limiter,
  (job) => job.data.key,
  async (job) => ({ pid: process.pid, data: job.data }),
);
