export const GET = async () => new Response("behind the proxy");
