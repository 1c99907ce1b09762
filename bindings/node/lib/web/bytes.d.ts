/** The module's bytes. `scripts/web.mjs` writes this file when it has built the module. */
export declare const bytes: () => Uint8Array<ArrayBuffer>;
