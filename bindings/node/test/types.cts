// The same types for CommonJS.

import limits = require("workglow-limit");
import axios = require("workglow-limit/axios");
import bullmq = require("workglow-limit/bullmq");
import express = require("workglow-limit/express");
import expressRateLimit = require("workglow-limit/express-rate-limit");
import fastify = require("workglow-limit/fastify");
import fastifyRateLimit = require("workglow-limit/fastify-rate-limit");
import fetch = require("workglow-limit/fetch");
import hono = require("workglow-limit/hono");
import http = require("workglow-limit/http");
import next = require("workglow-limit/next");
import opentelemetry = require("workglow-limit/opentelemetry");
import undici = require("workglow-limit/undici");
import workglow = require("workglow-limit/workglow");

export const permit: limits.Permit | null = new limits.NullLimiter().tryAcquire();
export const processor: Promise<number> = bullmq.withLimiter(new limits.NullLimiter(), null, () => 1)({} as never);
export const pause: Promise<number> = http.heed(new limits.NullLimiter(), new Response());
export const limiter: workglow.WorkglowLimiter = workglow.toWorkglow(new limits.NullLimiter());
export const get: Promise<Response> = fetch.limitFetch(new limits.NullLimiter())("http://localhost");
export const kinds: string = typeof axios.limitAxios + typeof undici.limitUndici;
export const servers = [express, fastify, hono, next].map(({ limitRequests }) => limitRequests);
export const stores = [expressRateLimit.LimitStore, fastifyRateLimit.limitStore];
export const end: () => void = opentelemetry.instrument(new limits.Store("memory:"));
