// Serves a folder like a plain web server: files as they are, `index.html` for folders, `404.html` for missing files. Assets, whose names
// change with their content, may be cached.
import { readFile, stat } from "node:fs/promises";
import { createServer } from "node:http";
import { extname, join, normalize } from "node:path";

const TYPES = {
  ".html": "text/html; charset=utf-8",
  ".js": "text/javascript",
  ".css": "text/css",
  ".json": "application/json",
  ".svg": "image/svg+xml",
  ".png": "image/png",
  ".woff2": "font/woff2",
};

export async function serve(folder) {
  const server = createServer(async (request, response) => {
    let path = join(folder, normalize(decodeURIComponent(new URL(request.url, "http://localhost").pathname)));
    if (
      await stat(path).then(
        (found) => found.isDirectory(),
        () => false,
      )
    )
      path = join(path, "index.html");
    const found = await readFile(path).catch(() => undefined);
    response.writeHead(found ? 200 : 404, {
      "Content-Type": TYPES[found ? extname(path) : ".html"] ?? "application/octet-stream",
      ...(found && path.startsWith(join(folder, "assets/")) && { "Cache-Control": "max-age=3600" }),
    });
    response.end(found ?? (await readFile(join(folder, "404.html")).catch(() => "")));
  });
  await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
  return { url: `http://127.0.0.1:${server.address().port}`, close: () => server.close() };
}
