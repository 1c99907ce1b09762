import { notFound, redirect } from "next/navigation";
import { limit, store } from "../../limits.js";

// Failed requests do not count.
export const GET = limit(
  async (request) => {
    switch (request.nextUrl.searchParams.get("how")) {
      case "throws":
        throw new Error("planned");
      case "missing":
        return notFound();
      case "answers":
        return new Response("planned", { status: 503 });
      case "redirects":
        redirect("/plain");
    }
    return new Response("fine");
  },
  { limiter: store.limiter("failing", "2/1h"), skipFailed: true },
);
