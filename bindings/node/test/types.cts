// The same types for CommonJS.

import limits = require("workglow-limit");
import workglow = require("workglow-limit/workglow");

export const permit: limits.Permit | null = new limits.NullLimiter().tryAcquire();
export const limiter: workglow.WorkglowLimiter = workglow.toWorkglow(new limits.NullLimiter());
