// The same types for CommonJS.

import limits = require("workglow-limit");

export const permit: limits.Permit | null = new limits.NullLimiter().tryAcquire();
